"""Writes tensors into the arena: which plan a slot has for this size, and the exact ways of masks and infinities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from daf.kernels import Coder, Spec, coder
from daf.quant.choice import MASK, Chooser, is_relu_like, producer
from daf.quant.handles import Coded
from daf.quant.layout import Layout
from daf.quant.masks import is_constant, is_finite
from daf.quant.packing import InlinePacker, Packer
from daf.quant.slots import Curve, Plan, Slot

if TYPE_CHECKING:
    from daf.allocator import Arena

WORTH_IT = 0.75  # coded bytes must stay under this share of the raw ones
EXACT = frozenset({"raw", "int", "bool", "mask"})
_INLINE = InlinePacker()
SAMPLED_GROUPS = 64
MIN_ROWS = 128  # fewer rows than this make column groups too short
MIN_COLS = 16  # below, rows are shorter than a vector register and column groups ten times slower than runs
MAX_FOLLOW_WIDTH = 2
FINITE_EVERY = 64  # saves of a slot between two looks for infinities
OFTEN_INFINITE = frozenset({"LogSoftmaxBackward0", "MaskedFillBackward0", "WhereBackward0", "LogBackward0"})

DTYPES = {
    torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip


class Encoder:
    """Turns a tensor of a slot into a stash. `floor` is the number of planes that eviction leaves."""

    def __init__(self, arena: Arena, chooser: Chooser, floor: int, packer: Packer) -> None:
        self.packer = packer
        self._arena = arena
        self.chooser = chooser
        self._floor = floor
        self.is_sampling = False

    def may_follow(self, slot: Slot) -> bool:
        """Whether a slot that can follow from another should: as planned, else at narrow widths."""
        return slot.follows if slot.curves and self.chooser.is_planned else self.chooser.width <= MAX_FOLLOW_WIDTH

    def encode(self, tensor: Tensor, layout: Layout, slot: Slot) -> Coded | None:
        source = tensor.detach()
        if layout.is_expanded:
            source = source.as_strided(layout.core_shape, layout.strides)
        if not layout.is_dense:
            # A slice is gathered first: coding it alone lets go of the whole that it was cut from.
            compact = torch.empty_strided(layout.core_shape, layout.core_strides, dtype=tensor.dtype)
            source = compact.copy_(source)
        if tensor.dtype.is_floating_point:
            if slot.is_mask is not False and is_constant(tensor) and tensor.dtype is not torch.float64:
                coded = self._encode_mask(source, layout, slot)
                if slot.is_mask:
                    return coded
            self._look_for_infinities(tensor, slot)
        spec = self.chooser.choose(tensor, source, slot)
        slot.use(spec)
        if self.is_sampling and spec.codec not in EXACT:
            slot.curves = self._curves(source, layout, is_relu_like(tensor))
            slot.plans.clear()
        plan = self._plan(slot, tensor.dtype, layout)
        return None if plan is None else self._write(source, plan, slot, self.packer)

    def _encode_mask(self, source: Tensor, layout: Layout, slot: Slot) -> Coded | None:
        """Codes a tensor that holds one value besides zero, and finds out whether it does."""
        slot.use(MASK)
        plan = self._plan(slot, source.dtype, layout)
        if plan is None:
            return None
        try:
            coded = self._write(source, plan, slot, _INLINE)
        except ValueError:
            slot.is_mask = False
            return None
        slot.is_mask = True
        return coded

    def _look_for_infinities(self, tensor: Tensor, slot: Slot) -> None:
        is_due = slot.num_saves % FINITE_EVERY == 0 or producer(tensor) in OFTEN_INFINITE or is_constant(tensor)
        if slot.is_finite and is_due:
            slot.is_finite = is_finite(tensor)

    def _write(self, source: Tensor, plan: Plan, slot: Slot, packer: Packer) -> Coded:
        stash = self._arena.reserve(plan.stash_spec, slot.id, source.nbytes)
        seed = slot.id << 32 | slot.num_saves  # no two saves round alike

        def encode(tensor: Tensor) -> None:
            try:
                plan.coder.encode(tensor.data_ptr(), stash.planes, seed)
            finally:
                stash.unpin()

        try:
            ticket = packer.submit(encode, source)
        except BaseException:
            stash.release()
            raise
        slot.num_saves += 1
        slot.raw_bytes, slot.stored_bytes = source.nbytes, plan.stored_bytes
        return Coded(stash, ticket, plan, slot, dtype=source.dtype, raw_bytes=source.nbytes)

    def _plan(self, slot: Slot, dtype: torch.dtype, layout: Layout) -> Plan | None:
        size = (layout.numel, layout.cols)
        if size not in slot.plans:
            slot.plans[size] = self._make_plan(slot, dtype, layout)
        return slot.plans[size]

    def _make_plan(self, slot: Slot, dtype: torch.dtype, layout: Layout) -> Plan | None:
        spec = slot.spec
        assert spec is not None
        coded = coder(spec, DTYPES[dtype], layout.numel, layout.cols)
        stored_bytes = self._stored_bytes(coded)
        if spec.codec != "raw" and stored_bytes > WORTH_IT * layout.numel * dtype.itemsize and dtype is not torch.bool:
            return None
        importance = slot.stream_importance(spec, len(coded.stream_bytes))
        floor = len(coded.stream_bytes) if spec.codec in EXACT else 1 + min(self._floor, spec.bits)
        stash_spec = self._arena.stash_spec(coded.stream_bytes, importance, floor)
        return Plan(spec, coded, stash_spec, stored_bytes)

    def _stored_bytes(self, coded: Coder) -> int:
        """What the streams take in whole pages."""
        page_bytes = self._arena.page_bytes
        return sum(-(-num_bytes // page_bytes) * page_bytes for num_bytes in coded.stream_bytes)

    def _curves(self, source: Tensor, layout: Layout, is_relu: bool) -> list[Curve]:
        """How the codecs that suit this tensor do, from a few of its groups; nothing where these are all zero."""
        curves = [
            self._curve(candidate, source, layout)
            for candidate in candidates(layout, is_relu, self.chooser.is_stochastic)
        ]
        return [curve for curve in curves if len(curve.errors) > curve.min_bits]

    def _curve(self, candidate: Candidate, source: Tensor, layout: Layout) -> Curve:
        codec, group, widths = candidate
        dtype = DTYPES[source.dtype]
        coders = {bits: coder(Spec(codec, bits, group), dtype, layout.numel, layout.cols) for bits in widths}
        errors = coders[widths[-1]].relative_distortion(source.data_ptr(), SAMPLED_GROUPS)
        stored_bytes = [self._stored_bytes(coders[bits]) if bits in coders else 0 for bits in range(len(errors))]
        worth_it = sum(num_bytes <= WORTH_IT * source.nbytes for num_bytes in stored_bytes)
        if worth_it < len(errors):  # a tensor that is to be wider than that is kept as it is
            errors, stored_bytes = (*errors[:worth_it], 0.0), [*stored_bytes[:worth_it], source.nbytes]
        return Curve(codec, group, widths[0], errors, tuple(stored_bytes))


Candidate = tuple[str, str, range]  # codec, group shape, widths


def has_columns(layout: Layout) -> bool:
    """Whether column groups are long enough to be worth their header, and rows to be worth a vector register."""
    return layout.cols >= MIN_COLS and layout.numel // layout.cols >= MIN_ROWS


def candidates(layout: Layout, is_relu: bool, is_stochastic: bool = False) -> list[Candidate]:
    groups = ["run", "column"] if has_columns(layout) else ["run"]
    if is_relu:
        return [("support", group, range(5)) for group in groups]
    if is_stochastic:
        return [("minmax-sr", group, range(1, 9)) for group in groups]
    return [
        choice for group in groups for choice in (("meansplit", group, range(1, 5)), ("minmax", group, range(4, 9)))
    ]
