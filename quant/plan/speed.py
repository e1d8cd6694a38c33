"""How long it takes to encode and decode, or to recompute, per byte of the content: measured while training runs."""

from __future__ import annotations

from daf.kernels import Spec

FORGET = 0.1  # the weight of a new measurement
# Seconds per byte until something was measured: one core of a server of 2020.
FIRST = {"minmax": 1.0e-9, "minmax-sr": 1.5e-9, "meansplit": 2.5e-9, "support": 1.5e-9, "mask": 0.3e-9, "": 0.5e-9}
DEFAULT = 1.0e-9

Key = tuple[str, str]  # codec and group; two empty texts: recomputed


class Speeds:
    """Seconds per byte by codec and group shape, averaged over time."""

    def __init__(self) -> None:
        self._seconds: dict[Key, float] = {}

    def note(self, spec: Spec | None, num_bytes: int, seconds: float) -> None:
        """So many bytes took so long, there or back: each is half of the whole."""
        key, found = _key(spec), 2.0 * seconds / max(num_bytes, 1)
        before = self._seconds.get(key)
        self._seconds[key] = found if before is None else before + FORGET * (found - before)

    def of(self, spec: Spec | None, num_bytes: int) -> float:
        """The seconds of encoding and decoding so many bytes; of recomputing them without a spec."""
        key = _key(spec)
        return num_bytes * self._seconds.get(key, FIRST.get(key[0], DEFAULT))


def _key(spec: Spec | None) -> Key:
    return ("", "") if spec is None else (spec.codec, spec.group)
