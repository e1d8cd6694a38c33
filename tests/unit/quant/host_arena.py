# ruff: noqa: ARG002  (the arena's own signatures)
"""An arena without a budget, over planes in ordinary memory: enough for the engine's own tests."""

from __future__ import annotations

from typing import Any

from daf.kernels import HostPlanes


class HostStash:
    """One stash. Counts pins so that a test sees an engine that forgets one."""

    def __init__(self, stream_bytes: tuple[int, ...], floor_streams: int) -> None:
        self._planes = HostPlanes(stream_bytes)
        self.floor_streams = floor_streams
        self.num_pins = 1
        self.is_released = False

    @property
    def planes(self) -> int:
        assert self.num_pins > 0, "planes are valid only while pinned"
        return self._planes.address

    @property
    def num_streams(self) -> int:
        return self._planes.num_streams

    def pin(self) -> int:
        assert not self.is_released
        self.num_pins += 1
        return self.num_streams

    def unpin(self) -> None:
        self.num_pins -= 1

    def release(self) -> None:
        self.is_released = True

    def set_importance(self, importance: Any) -> None:
        self.importance = importance

    def drop_to_floor(self) -> None:
        self._planes.drop(self.num_streams - min(self.floor_streams, self.num_streams))


class HostArena:
    """Reserves whatever is asked for. `stashes` are all that were ever reserved."""

    page_bytes = 4096
    budget_bytes = 1 << 40
    paused = False

    def __init__(self) -> None:
        self.stashes: list[HostStash] = []
        self.rows: dict[int, dict[str, Any]] = {}
        self.events: list[str] = []

    def stash_spec(self, stream_bytes: tuple[int, ...], importance: Any, floor_streams: int = 1) -> Any:
        assert len(importance) == len(stream_bytes)
        return stream_bytes, floor_streams

    def reserve(self, spec: Any, slot_id: int = 0, raw_bytes: int = 0) -> HostStash:
        stash = HostStash(*spec)
        self.stashes.append(stash)
        return stash

    def slot(self, slot_id: int, **row: Any) -> None:
        self.rows[slot_id] = row

    def count_saved(self, raw_bytes: int, kept_bytes: int) -> None: ...

    def step(self, seconds: float) -> None: ...

    def tell(self, **numbers: float) -> None: ...

    def event(self, kind: str, **details: Any) -> None:
        self.events.append(f"{kind} {details.get('text', '')}")

    def stats(self) -> dict[str, int]:
        return {
            "budget_bytes": self.budget_bytes,
            "peak_tensor_bytes": 0,
            "peak_live_bytes": 0,
            "evicted_bytes_total": 0,
        }

    def num_live(self) -> int:
        return sum(not stash.is_released for stash in self.stashes)
