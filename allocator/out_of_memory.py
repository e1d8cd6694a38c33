"""What Python adds to the message of an out-of-memory error: a budget for the whole step, and a file with everything.

The arena knows what it holds. What a first step has not asked for yet, it cannot: gradients and the optimizer's state.
Both are computed from the parameters, which are looked up here, once, when a request has failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import time
import weakref
from typing import Any

from daf.allocator._native import ffi, lib
from daf.allocator.stats import reader, runtime_dir
from daf.allocator.torch import forecast
from daf.allocator.trace.profile import open_profile

NUM_EVENTS = 200
SUFFIX = ".oom.json"
SECONDS_BETWEEN = 1.0  # a program that catches the error and tries smaller pieces is not held up

_arenas: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_recent: weakref.WeakKeyDictionary[Any, _Advice] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True, slots=True)
class _Advice:
    made_at: float  # monotonic
    extra_bytes: int  # beyond what the arena knows itself
    path: bytes


def watch(arena: Any) -> None:
    """Advise when a request of `arena` fails, while it is alive."""
    _arenas[arena.address] = arena
    lib.daf_set_advise(ffi.addressof(lib, "daf_ask_advice"))


@ffi.def_extern()  # type: ignore[untyped-decorator]
def daf_on_out_of_memory(raw: Any, num_bytes: int, advice: Any) -> None:
    """Raise `advice.budget_bytes` to what the step will need, and write the file. Never fails."""
    with contextlib.suppress(Exception):
        arena = _arenas[int(ffi.cast("uintptr_t", raw))]
        known = _recent.get(arena)
        if known is None or time.monotonic() - known.made_at > SECONDS_BETWEEN:
            known = _recent[arena] = _advise(arena, num_bytes, int(advice.budget_bytes))
        advice.budget_bytes += known.extra_bytes
        if len(known.path) < ffi.sizeof(advice.path):
            ffi.memmove(advice.path, known.path + b"\0", len(known.path) + 1)


def _advise(arena: Any, num_bytes: int, least_bytes: int) -> _Advice:
    step_bytes = max(least_bytes, forecast.step_bytes(arena, arena.stats(), least_bytes, num_bytes))
    try:
        path = os.fsencode(write_file(arena, num_bytes, step_bytes))
    except OSError:
        path = b""
    return _Advice(time.monotonic(), step_bytes - least_bytes, path)


def write_file(arena: Any, num_bytes: int, budget_bytes: int) -> pathlib.Path:
    """Write all that is known of the arena to a file of this process in the runtime folder; returns its path."""
    said = {
        "time": time.time(),
        "asked_bytes": num_bytes,
        "advised_budget_bytes": budget_bytes,
        "identity": json.loads(runtime_dir.make_identity()),
        "values": arena.stats(),
    }
    path = runtime_dir.make_runtime_dir() / f"{os.getpid()}-{runtime_dir.process_start_time(os.getpid())}{SUFFIX}"
    if arena.page_path:
        arena.flush()
        path = pathlib.Path(arena.page_path).with_suffix(SUFFIX)
        said |= _page(arena.page_path)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(said, indent=1))
    draft.replace(path)
    if (profile := open_profile()) is not None:
        profile.write()
    return path


def _page(path: str) -> dict[str, Any]:
    page = reader.StatsPage(path)
    try:
        return {
            "identity": dataclasses.asdict(page.identity),
            "slots": [dataclasses.asdict(row) for row in page.slots()],
            "map": [dataclasses.asdict(cell) for cell in page.map()],
            "events": [dataclasses.asdict(event) for event in page.events(page.last_event_id() - NUM_EVENTS)[0]],
        }
    finally:
        page.close()
