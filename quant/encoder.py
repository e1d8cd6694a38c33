"""Writes tensors into the arena: which plan a slot has for this size, and the exact ways of masks and infinities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from daf.kernels import Coder, Spec, coder
from daf.quant.choice import MASK, Chooser, is_relu_like, producer
from daf.quant.doubt import Doubt
from daf.quant.handles import Coded
from daf.quant.layout import Layout
from daf.quant.masks import has_infinity, is_constant, is_finite
from daf.quant.packing import DevicePacker, InlinePacker, Packer
from daf.quant.places import SAMPLED_GROUPS, Place
from daf.quant.slots import Curve, Plan, Slot

WORTH_IT = 0.75  # coded bytes must stay under this share of the raw ones
EXACT = frozenset({"raw", "int", "bool", "mask"})
_INLINE = InlinePacker()
_DEVICE = DevicePacker()
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

INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Encoder:
    """Turns a tensor of a slot into a stash. `floor` is the number of planes that eviction leaves."""

    def __init__(self, chooser: Chooser, floor: int, packer: Packer) -> None:
        self.packer = packer
        self.chooser = chooser
        self._floor = floor
        self.is_sampling = False

    def may_follow(self, slot: Slot) -> bool:
        """Whether a slot that can follow from another should: as planned, else at narrow widths."""
        return slot.follows if slot.curves and self.chooser.is_planned else self.chooser.width <= MAX_FOLLOW_WIDTH

    def encode(self, tensor: Tensor, layout: Layout, slot: Slot, place: Place) -> Coded | None:
        source, dtype = tensor.detach(), tensor.dtype
        if layout.is_expanded:
            source = source.as_strided(layout.core_shape, layout.strides)
        if not layout.is_dense:
            # A slice is gathered first: coding it alone lets go of the whole that it was cut from.
            source = source.new_empty_strided(layout.core_shape, layout.core_strides).copy_(source)
        doubt = None
        if dtype.is_floating_point:
            if slot.is_mask is not False and is_constant(tensor) and dtype is not torch.float64:
                coded = self._encode_mask(source, layout, slot, place)
                if slot.is_mask:
                    return coded
            doubt = self._look_for_infinities(tensor, source, slot, place)
        if dtype in INTEGERS:
            spec, doubt = self._width_of(source, slot, place)
        else:
            spec = self.chooser.choose(tensor, slot)
        slot.use(spec)
        if self.is_sampling and spec.codec not in EXACT:
            slot.curves = self._curves(source, layout, place, is_relu_like(tensor))
            slot.plans.clear()
        plan = self._plan(slot, dtype, layout, place)
        return None if plan is None else self._write(source, plan, slot, self.packer, doubt)

    def _encode_mask(self, source: Tensor, layout: Layout, slot: Slot, place: Place) -> Coded | None:
        """Codes a tensor that holds one value besides zero, and finds out whether it does."""
        slot.use(MASK)
        plan = self._plan(slot, source.dtype, layout, place)
        if plan is None:
            return None
        doubt = Doubt(source, slot, "is_mask") if slot.is_mask and not place.is_host else None
        try:
            coded = self._write(source, plan, slot, _INLINE, doubt)
        except ValueError:
            slot.is_mask = False
            return None
        slot.is_mask = True
        return coded

    def _look_for_infinities(self, tensor: Tensor, source: Tensor, slot: Slot, place: Place) -> Doubt | None:
        is_due = slot.num_saves % FINITE_EVERY == 0 or producer(tensor) in OFTEN_INFINITE or is_constant(tensor)
        if not slot.is_finite or not is_due:
            return None
        if not place.is_host and slot.num_saves:
            return Doubt(source, slot, "is_finite", has_infinity(tensor))
        slot.is_finite = is_finite(tensor)
        return None

    def _width_of(self, source: Tensor, slot: Slot, place: Place) -> tuple[Spec, Doubt | None]:
        """The planes that integers need: looked for, or on a device as many as before."""
        if place.is_host:
            return Spec("int", place.num_int_bits(source)), None
        before = slot.spec
        if before is not None and slot.is_known:
            return before, Doubt(source, slot, "is_known")
        slot.is_known = True
        return Spec("int", max(place.num_int_bits(source), 1 if before is None else before.bits)), None

    def _write(self, source: Tensor, plan: Plan, slot: Slot, packer: Packer, doubt: Doubt | None) -> Coded:
        place = plan.place
        stash = place.arena.reserve(plan.stash_spec, slot.id, source.nbytes)
        seed = slot.id << 32 | slot.num_saves  # no two saves round alike

        def encode(tensor: Tensor) -> Any:
            try:
                return place.encode(plan.coder, tensor, stash.planes, seed, doubt)
            finally:
                stash.unpin()

        try:
            ticket = (packer if place.is_host else _DEVICE).submit(encode, source)
        except BaseException:
            stash.release()
            raise
        slot.num_saves += 1
        slot.raw_bytes, slot.stored_bytes = source.nbytes, plan.stored_bytes
        return Coded(stash, ticket, plan, slot, dtype=source.dtype, raw_bytes=source.nbytes)

    def _plan(self, slot: Slot, dtype: torch.dtype, layout: Layout, place: Place) -> Plan | None:
        key = (layout.numel, layout.cols, place)
        if key not in slot.plans:
            slot.plans[key] = self._make_plan(slot, dtype, layout, place)
        return slot.plans[key]

    def _make_plan(self, slot: Slot, dtype: torch.dtype, layout: Layout, place: Place) -> Plan | None:
        spec = slot.spec
        assert spec is not None
        coded = coder(spec, DTYPES[dtype], layout.numel, layout.cols)
        stored_bytes = _stored_bytes(coded, place)
        if spec.codec != "raw" and stored_bytes > WORTH_IT * layout.numel * dtype.itemsize and dtype is not torch.bool:
            return None
        place.check(spec, DTYPES[dtype])
        importance = slot.stream_importance(spec, len(coded.stream_bytes))
        floor = len(coded.stream_bytes) if spec.codec in EXACT else 1 + min(self._floor, spec.bits)
        stash_spec = place.arena.stash_spec(coded.stream_bytes, importance, floor)
        return Plan(spec, coded, place, stash_spec, stored_bytes)

    def _curves(self, source: Tensor, layout: Layout, place: Place, is_relu: bool) -> list[Curve]:
        """How the codecs that suit this tensor do, from a few of its groups; nothing where these are all zero."""
        curves = [
            _curve(candidate, source, layout, place)
            for candidate in candidates(layout, is_relu, self.chooser.is_stochastic)
        ]
        return [curve for curve in curves if len(curve.errors) > curve.min_bits]


def _curve(candidate: Candidate, source: Tensor, layout: Layout, place: Place) -> Curve:
    codec, group, widths = candidate
    dtype = DTYPES[source.dtype]
    some, cols = place.sample(source, layout.cols, group)
    widest = coder(Spec(codec, widths[-1], group), dtype, some.numel(), cols)
    errors = widest.relative_distortion(some.data_ptr(), SAMPLED_GROUPS)
    coders = {bits: coder(Spec(codec, bits, group), dtype, layout.numel, layout.cols) for bits in widths}
    stored_bytes = [_stored_bytes(coders[bits], place) if bits in coders else 0 for bits in range(len(errors))]
    worth_it = sum(num_bytes <= WORTH_IT * source.nbytes for num_bytes in stored_bytes)
    if worth_it < len(errors):  # a tensor that is to be wider than that is kept as it is
        errors, stored_bytes = (*errors[:worth_it], 0.0), [*stored_bytes[:worth_it], source.nbytes]
    return Curve(codec, group, widths[0], errors, tuple(stored_bytes))


def _stored_bytes(coded: Coder, place: Place) -> int:
    """What the streams take in whole pages."""
    page_bytes = place.arena.page_bytes
    return sum(-(-num_bytes // page_bytes) * page_bytes for num_bytes in coded.stream_bytes)


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
