# mypy: ignore-errors
"""Triton twins of the range reduction (reduce.c): parallel, atomic and hybrid, whole tensors and channels, same keys.

A program reduces blocks [LANES channels, DEPTH elements each]: one channel along memory where channels are runs, 32
side by side where they are columns. Minima of keys are exact in any order, so all three give the same bits.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
import triton
import triton.language as tl

from daf.kernels.reduce.choice import STRATEGIES, Case, Chooser

DEPTH = tl.constexpr(1024)
COLUMN_LANES = 32
COLUMN_DEPTH = 64
_KINDS = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_WAVES = 4  # hybrid: programs per SM, enough to hide each other's loads


@triton.jit
def key_of(bits, KIND: tl.constexpr):
    """A value's bits as a signed integer of the same order."""
    if KIND == 1:
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    elif KIND > 1:
        key = bits ^ ((bits >> 15) & 0x7FFF)
    else:
        key = bits
    return key


@triton.jit
def is_finite(bits, KIND: tl.constexpr):
    if KIND == 1:
        finite = (bits & 0x7FFFFFFF) < 0x7F800000
    elif KIND == 2:
        finite = (bits & 0x7FFF) < 0x7F80
    elif KIND == 3:
        finite = (bits & 0x7FFF) < 0x7C00
    else:
        finite = bits == bits
    return finite


@triton.jit
def block_range(src, block, outer, channels, inner, segments, least, greatest, KIND: tl.constexpr, LANES: tl.constexpr,
                DEPTH: tl.constexpr):  # fmt: skip
    """Channel [LANES], whether it is one, and its range of keys in one block."""
    depth = tl.arange(0, DEPTH)[None, :]
    lane = tl.arange(0, LANES)
    if LANES == 1:
        run = block // segments
        at = block % segments * DEPTH + depth
        channel = run % channels + lane
        real = lane == 0
        index, keep = run * inner + at, real[:, None] & (at < inner)
    else:
        columns = (channels + LANES - 1) // LANES
        row = block // columns * DEPTH + depth
        channel = block % columns * LANES + lane
        real = channel < channels
        index, keep = row * channels + channel[:, None], real[:, None] & (row < outer)
    bits = tl.load(src + index, mask=keep, other=0).to(least.dtype)
    keep = keep & is_finite(bits, KIND)
    key = key_of(bits, KIND)
    lo = tl.min(tl.where(keep, key, greatest), axis=1)
    hi = tl.max(tl.where(keep, key, least), axis=1)
    return channel, real, lo, hi


@triton.jit
def parallel_kernel(src, partial_lo, partial_hi, limits, outer, channels, inner, segments, KIND: tl.constexpr,
                    LANES: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Every block stores its partial."""
    block = tl.program_id(0).to(tl.int64)
    least, greatest = tl.load(limits), tl.load(limits + 1)
    _channel, real, lo, hi = block_range(
        src, block, outer, channels, inner, segments, least, greatest, KIND, LANES, DEPTH
    )
    place = block * LANES + tl.arange(0, LANES)
    tl.store(partial_lo + place, lo, mask=real)
    tl.store(partial_hi + place, hi, mask=real)


@triton.jit
def tree_kernel(partial_lo, partial_hi, out_lo, out_hi, limits, rows, segments, row_stride, channel_stride,
                DEPTH: tl.constexpr):  # fmt: skip
    """One program folds the partials of one channel: `rows` times `segments` of them."""
    channel = tl.program_id(0).to(tl.int64)
    least, greatest = tl.load(limits), tl.load(limits + 1)
    lo, hi = greatest, least
    for start in range(0, rows * segments, DEPTH):
        at = start + tl.arange(0, DEPTH)
        place = at // segments * row_stride + at % segments + channel * channel_stride
        keep = at < rows * segments
        lo = tl.minimum(lo, tl.min(tl.load(partial_lo + place, mask=keep, other=greatest), axis=0))
        hi = tl.maximum(hi, tl.max(tl.load(partial_hi + place, mask=keep, other=least), axis=0))
    tl.store(out_lo + channel, lo)
    tl.store(out_hi + channel, hi)


@triton.jit
def atomic_kernel(src, out_lo, out_hi, limits, outer, channels, inner, segments, KIND: tl.constexpr,
                  LANES: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """Every block meets the others in its channels' cells."""
    block = tl.program_id(0).to(tl.int64)
    least, greatest = tl.load(limits), tl.load(limits + 1)
    channel, real, lo, hi = block_range(
        src, block, outer, channels, inner, segments, least, greatest, KIND, LANES, DEPTH
    )
    tl.atomic_min(out_lo + channel, lo, mask=real)
    tl.atomic_max(out_hi + channel, hi, mask=real)


@triton.jit
def hybrid_kernel(src, out_lo, out_hi, limits, outer, channels, inner, segments, blocks, period, shares,
                  KIND: tl.constexpr, LANES: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """A program folds its share of the blocks of the same channels, then meets the others once.

    Blocks b, b + period, ... have the same channels; `segments` of one run follow each other.
    """
    least, greatest = tl.load(limits), tl.load(limits + 1)
    family = tl.program_id(0).to(tl.int64) // shares
    share = tl.program_id(0).to(tl.int64) % shares
    lo = tl.zeros((LANES,), dtype=least.dtype) + greatest
    hi = tl.zeros((LANES,), dtype=least.dtype) + least
    first = family * segments
    channel = family * LANES + tl.arange(0, LANES)
    real = channel < channels
    for turn in range(share, blocks // period * segments, shares):
        block = turn // segments * period + first + turn % segments
        _c, _r, low, high = block_range(
            src, block, outer, channels, inner, segments, least, greatest, KIND, LANES, DEPTH
        )
        lo = tl.minimum(lo, low)
        hi = tl.maximum(hi, high)
    tl.atomic_min(out_lo + channel, lo, mask=real)
    tl.atomic_max(out_hi + channel, hi, mask=real)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor [outer, channels, inner] is cut into blocks. A family: the blocks that share their channels."""

    outer: int
    channels: int
    inner: int

    @property
    def is_column(self) -> bool:
        return self.inner == 1 and self.channels > 1

    @property
    def lanes(self) -> int:
        return COLUMN_LANES if self.is_column else 1

    @property
    def depth(self) -> int:
        return COLUMN_DEPTH if self.is_column else int(DEPTH.value)

    @property
    def segments(self) -> int:
        return 1 if self.is_column else -(-self.inner // self.depth)

    @property
    def families(self) -> int:
        return -(-self.channels // self.lanes)

    @property
    def rows(self) -> int:
        return -(-self.outer // self.depth) if self.is_column else self.outer

    @property
    def blocks(self) -> int:
        return self.rows * self.families * self.segments

    @property
    def constants(self) -> dict[str, int]:
        return {"LANES": self.lanes, "DEPTH": self.depth}

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.outer, self.channels, self.inner, self.segments


def value_ranges(
    values: torch.Tensor, shape: tuple[int, int, int], *, strategy: str = "", chooser: Chooser | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and greatest finite value of each channel of a dense tensor, on its device.

    shape: (outer, channels, inner) in memory order, as in ranges.py. A channel with nothing finite has lo > hi. With a
    chooser, the call is timed to its end, which waits for the device.
    """
    outer, channels, inner = shape
    if min(shape) < 1 or outer * channels * inner != values.numel():
        raise ValueError(f"shape {shape} does not fit a tensor of {values.numel()} elements")
    layout = _Layout(1, 1, outer * inner) if channels == 1 else _Layout(*shape)
    if strategy:
        return _reduce(values, layout, strategy)
    chooser = chooser or _default_chooser
    case = Case.of(numel=values.numel(), channels=channels, num_threads=_num_processors(values.device))
    strategy = chooser.choose(case)
    start = time.perf_counter()
    ranges = _reduce(values, layout, strategy)
    _synchronize(values.device)
    chooser.learn(case, strategy, time.perf_counter() - start)
    return ranges


_default_chooser = Chooser()


def _reduce(values: torch.Tensor, layout: _Layout, strategy: str) -> tuple[torch.Tensor, torch.Tensor]:
    if strategy not in STRATEGIES:
        raise ValueError(f"{strategy!r} is not a strategy; right would be one of {', '.join(STRATEGIES)}")
    kind = _KINDS.get(values.dtype, 0)
    source, width = _as_integers(values)
    limits = torch.tensor([torch.iinfo(width).min, torch.iinfo(width).max], dtype=width, device=values.device)
    lo, hi = (torch.empty(layout.channels, dtype=width, device=values.device).copy_(limits[i]) for i in (1, 0))
    _STRATEGIES[strategy](source, lo, hi, limits, layout, kind)
    return _values_of(lo, values.dtype), _values_of(hi, values.dtype)


def _parallel(source: Any, lo: Any, hi: Any, limits: Any, layout: _Layout, kind: int) -> None:
    partial_lo, partial_hi = (torch.empty(layout.blocks * layout.lanes, dtype=lo.dtype, device=lo.device) for _ in "lh")
    parallel_kernel[(layout.blocks,)](
        source, partial_lo, partial_hi, limits, *layout.sizes, KIND=kind, **layout.constants
    )
    stride = layout.families * layout.lanes * layout.segments
    tree_kernel[(layout.channels,)](
        partial_lo, partial_hi, lo, hi, limits, layout.rows, layout.segments, stride, layout.segments, DEPTH=256
    )


def _atomic(source: Any, lo: Any, hi: Any, limits: Any, layout: _Layout, kind: int) -> None:
    atomic_kernel[(layout.blocks,)](source, lo, hi, limits, *layout.sizes, KIND=kind, **layout.constants)


def _hybrid(source: Any, lo: Any, hi: Any, limits: Any, layout: _Layout, kind: int) -> None:
    blocks_each = layout.rows * layout.segments
    shares = min(blocks_each, max(1, _WAVES * _num_processors(lo.device) // layout.families))
    period = layout.families * layout.segments
    hybrid_kernel[(layout.families * shares,)](
        source, lo, hi, limits, *layout.sizes, layout.blocks, period, shares, KIND=kind, **layout.constants
    )


_STRATEGIES = {"parallel": _parallel, "atomic": _atomic, "hybrid": _hybrid}


def _as_integers(values: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    """The values' bits as kernels read them, and the type that holds their keys."""
    if values.dtype == torch.float32:
        return values.view(torch.int32), torch.int32
    if values.dtype in _KINDS:
        return values.view(torch.int16), torch.int32
    if values.dtype == torch.bool:
        return values.view(torch.uint8), torch.int32
    return values, torch.int64 if values.dtype == torch.int64 else torch.int32


def _values_of(keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What keys stand for. The empty range is infinite for floats and the type's limits, crossed, for integers."""
    if dtype not in _KINDS:
        return keys
    empty_lo, empty_hi = keys == torch.iinfo(torch.int32).max, keys == torch.iinfo(torch.int32).min
    if dtype == torch.float32:
        real = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(torch.float32)
    else:
        real = (keys ^ ((keys >> 15) & 0x7FFF)).to(torch.int16).view(dtype).float()
    return real.masked_fill(empty_lo, float("inf")).masked_fill(empty_hi, float("-inf"))


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
