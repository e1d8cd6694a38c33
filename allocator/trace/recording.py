"""Recording allocations (`daf run --trace FILE`) and reading traces: DAF's, RMM's logs, PyTorch's memory snapshots."""

from __future__ import annotations

import csv
import heapq
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from daf.allocator._native import ffi, lib
from daf.errors import DafError

ACTIONS = ("allocate", "free", "stash", "release", "step")
_COLUMNS = {"Action", "Pointer", "Size"}
_SNAPSHOT_ACTIONS = {"alloc": "allocate", "free_completed": "free"}


def start_trace(path: str | os.PathLike[str]) -> None:
    """Record every allocation of this process's arenas to `path` until stop_trace()."""
    status = lib.daf_trace_open(os.fsencode(path))
    if status == lib.DAF_INVALID:
        raise DafError("a trace is being recorded already")
    if status != lib.DAF_OK:
        raise DafError(f"cannot write a trace to {os.fspath(path)!r}: {os.strerror(ffi.errno)}")


def stop_trace() -> None:
    """End the recording and write what is left of it. Nothing happens when none is under way."""
    if lib.daf_trace_close() != lib.DAF_OK:
        raise DafError("part of the trace could not be written: is the disk full?")


@dataclass(frozen=True, slots=True)
class Record:
    """One request: `action` is one of ACTIONS, `pointer` names the block or stash until it is freed."""

    action: str
    pointer: int
    num_bytes: int
    num_streams: int = 0


def read_trace(path: str | os.PathLike[str]) -> list[Record]:
    """Return the requests in the file at `path`, whichever of the three kinds it is."""
    with open(path, "rb") as file:
        is_pickle = file.read(1) == b"\x80"
    records = list(_only_known(_read_snapshot(path) if is_pickle else _read_csv(path)))
    if not records:
        raise ValueError(f"{os.fspath(path)!r} is a trace without a request")
    return records


def write_trace(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write `records` with the columns that a replay needs, pointers as small numbers: a trace to keep."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("Action,Pointer,Size,Stream\n")
        for record, number in numbered(records):
            file.write(f"{record.action},{number:#x},{record.num_bytes},{record.num_streams}\n")


def numbered(records: Iterable[Record]) -> Iterator[tuple[Record, int]]:
    """Give every block a number while it lives, as small as may be; a step gets 0."""
    numbers: dict[int, int] = {}
    free: list[int] = []
    for record in records:
        if record.action in ("allocate", "stash"):
            numbers[record.pointer] = heapq.heappop(free) if free else len(numbers)
            yield record, numbers[record.pointer]
        elif record.action == "step":
            yield record, 0
        else:
            number = numbers.pop(record.pointer)
            heapq.heappush(free, number)
            yield record, number


def _read_csv(path: str | os.PathLike[str]) -> Iterator[Record]:
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if not set(reader.fieldnames or ()) >= _COLUMNS:
            raise ValueError(f"{os.fspath(path)!r} has no line with the columns Action, Pointer and Size at its start")
        for row in reader:
            action = (row["Action"] or "").strip()
            if action not in ACTIONS:  # RMM also logs failures, which asked for nothing that was held
                continue
            try:
                streams = int(row.get("Stream") or 0) if action == "stash" else 0
                yield Record(action, int(row["Pointer"], 16), int(row["Size"]), streams)
            except (TypeError, ValueError):
                where = f"line {reader.line_num} of the trace {os.fspath(path)!r}"
                raise ValueError(f"{where} has no pointer (hexadecimal) or no size: {list(row.values())}") from None


class _PlainUnpickler(pickle.Unpickler):
    """A snapshot is made of dicts, lists, strings and numbers: no class is ever looked up, so nothing can run."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"a memory snapshot has no business naming {module}.{name}")


def _read_snapshot(path: str | os.PathLike[str]) -> Iterator[Record]:
    try:
        with open(path, "rb") as file:
            snapshot = _load(file)
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no PyTorch memory snapshot, nor a trace: {error}") from None
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise ValueError(f"{os.fspath(path)!r} is no PyTorch memory snapshot: it has no device_traces")
    for events in snapshot["device_traces"]:
        for event in events:
            action = _SNAPSHOT_ACTIONS.get(event["action"])
            if action is not None:
                yield Record(action, int(event["addr"]), int(event["size"]))


def _load(file: IO[bytes]) -> Any:
    return _PlainUnpickler(file).load()


def _only_known(records: Iterable[Record]) -> Iterator[Record]:
    """Leave out frees of what was there before the recording began; free what is there twice (other devices')."""
    live: dict[int, str] = {}
    for record in records:
        if record.action in ("allocate", "stash"):
            if before := live.get(record.pointer):
                yield Record("free" if before == "allocate" else "release", record.pointer, 0)
            live[record.pointer] = record.action
        elif record.action in ("free", "release"):
            if record.pointer not in live:
                continue
            del live[record.pointer]
        yield record
