"""A recorded trace made ready to run in C, against an arena or this process's malloc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.native import load
from daf.allocator.trace.recording import ACTIONS, Record, numbered

_OP = np.dtype([("action", "u4"), ("id", "u4"), ("num_bytes", "u8"), ("num_streams", "u4"), ("padding", "u4")])


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What a replay found. `nanoseconds` has one entry a request, 0 for steps."""

    num_failed: int
    peak_allocated_bytes: int
    live_bytes: int
    seconds: float
    nanoseconds: npt.NDArray[np.uint32]


class Replay:
    """Numbered once, run often: the numbering is what costs in Python."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._ops = np.zeros(len(records), _OP)
        for i, (record, number) in enumerate(numbered(records)):
            self._ops[i] = (ACTIONS.index(record.action), number, record.num_bytes, record.num_streams, 0)
        self._num_ids = int(self._ops["id"].max(initial=0)) + 1

    def __len__(self) -> int:
        return len(self._ops)

    def run(self, arena: Any = None) -> ReplayOutcome:
        """Replay against `arena`, or against malloc, without the GIL; everything is freed at the end."""
        ffi, lib = load()
        nanoseconds = np.zeros(len(self._ops), np.uint32)
        result = ffi.new("daf_replay_result_t *")
        status = lib.daf_replay(
            ffi.NULL if arena is None else ffi.cast("daf_arena_t *", arena.address),
            ffi.from_buffer("daf_replay_op_t[]", self._ops),
            len(self._ops),
            self._num_ids,
            ffi.from_buffer("uint32_t[]", nanoseconds),
            result,
        )
        if status != 0:
            raise MemoryError("no memory for the books of a replay")
        return ReplayOutcome(
            int(result.num_failed),
            int(result.peak_allocated_bytes),
            int(result.live_bytes),
            float(result.seconds),
            nanoseconds,
        )
