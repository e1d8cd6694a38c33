"""The least and greatest finite value of a tensor or of each channel, from Python: one C call, strategy chosen here."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence

from daf.errors import DafError
from daf.kernels._native import ffi, lib
from daf.kernels.coder import DTYPES
from daf.kernels.reduce.choice import STRATEGIES, Case, Chooser, stored_profile
from daf.kernels.threads import num_threads

_CODES = {"parallel": lib.DAF_REDUCE_PARALLEL, "atomic": lib.DAF_REDUCE_ATOMIC, "hybrid": lib.DAF_REDUCE_HYBRID}
_REALS = {"float32", "bfloat16", "float16"}
_INTEGERS = {"int64", "int32", "int16", "int8", "uint8", "bool"}


@dataclasses.dataclass(frozen=True, slots=True)
class Ranges:
    """lo[c], hi[c]: the least and greatest finite value of channel c; lo > hi where it has none."""

    lo: Sequence[float]
    hi: Sequence[float]
    strategy: str


@functools.cache
def default_chooser() -> Chooser:
    """Return the chooser that this process's reductions share."""
    return Chooser(stored_profile())


def value_ranges(
    src_ptr: int, dtype: str, shape: tuple[int, int, int], *, strategy: str = "", chooser: Chooser | None = None
) -> Ranges:
    """Return the range of each channel of the dense tensor at `src_ptr`.

    shape: (outer, channels, inner) in memory order. (N, C, H*W) for NCHW, (rows, C, 1) for channels_last or tokens x
    features, (1, 1, n) for the range of the whole. A strategy given is used; otherwise `chooser` names one and learns.
    """
    outer, channels, inner = shape
    if min(shape) < 1:
        raise ValueError(f"shape {shape} has no elements; every part must be at least 1")
    if dtype not in _REALS | _INTEGERS:
        raise ValueError(f"{dtype!r} has no range here; right would be one of {', '.join(sorted(_REALS | _INTEGERS))}")
    if strategy and strategy not in STRATEGIES:
        raise ValueError(f"{strategy!r} is not a strategy; right would be one of {', '.join(STRATEGIES)}")
    if strategy:
        return _reduce(src_ptr, dtype, shape, strategy)
    chooser = chooser or default_chooser()
    case = Case.of(numel=outer * channels * inner, channels=channels, num_threads=num_threads())
    strategy = chooser.choose(case)
    start = time.perf_counter()
    ranges = _reduce(src_ptr, dtype, shape, strategy)
    chooser.learn(case, strategy, time.perf_counter() - start)
    return ranges


def _reduce(src_ptr: int, dtype: str, shape: tuple[int, int, int], strategy: str) -> Ranges:
    request = ffi.new("daf_range_request_t *")
    request.values = ffi.cast("void *", src_ptr)
    request.outer, request.channels, request.inner = shape
    request.dtype, request.strategy = DTYPES[dtype], _CODES[strategy]
    kind = "double[]" if dtype in _REALS else "int64_t[]"
    lo, hi = ffi.new(kind, shape[1]), ffi.new(kind, shape[1])
    numbers = (ffi.cast("daf_number_t *", lo), ffi.cast("daf_number_t *", hi))
    if lib.daf_reduce_ranges(request, *numbers) != lib.DAF_OK:
        raise DafError(f"no memory for the {strategy} reduction of {shape[1]} channels")
    return Ranges(ffi.unpack(lo, shape[1]), ffi.unpack(hi, shape[1]), strategy)
