"""How often somebody may ask: a bucket for each, of those who came last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Rates:
    """Token buckets, one per key, for the most recent keys only."""

    def __init__(self, clock: Callable[[], float], max_keys: int = 1024) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def allow(self, kind: str, who: str, per_second: float) -> bool:
        """Take one from the bucket of `who`; a bucket holds two seconds' worth, at least ten."""
        now, capacity = self._clock(), max(10.0, 2 * per_second)
        level, then = self._buckets.pop((kind, who), (capacity, now))
        level = min(capacity, level + (now - then) * per_second)
        allowed = level >= 1.0
        self._buckets[kind, who] = (level - 1.0 if allowed else level, now)
        while len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return allowed
