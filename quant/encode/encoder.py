"""Writes tensors into the arena: which plan a slot has for this size, and the exact ways of masks and infinities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from daf.kernels import Coder, Spec, coder
from daf.quant.encode.backends import SAMPLED_GROUPS, Backend
from daf.quant.encode.choice import BOOL, EXACT, LOSSY, MASK, UNPLANNED, Chooser, is_relu_like, producer
from daf.quant.encode.masks import fingerprint, has_infinity, is_constant, is_finite, looks_like_mask
from daf.quant.encode.packing import InlinePacker, Packer
from daf.quant.encode.rows import Rows, alike
from daf.quant.encode.unconfirmed import Unconfirmed
from daf.quant.ops import OFTEN_INFINITE
from daf.quant.plan.menu import Kind
from daf.quant.saved.handles import Compressed, Exact
from daf.quant.saved.layout import Layout
from daf.quant.saved.slots import Curve, Plan, Slot

WORTH_IT = 0.75  # coded bytes must stay under this share of the raw ones
_INLINE = InlinePacker()
_DEVICE = InlinePacker()  # the device itself packs: its kernels are queued, and the host goes on at once
MIN_ROWS = 128  # fewer rows than this make column groups too short
MIN_COLS = 16  # below, rows are shorter than a vector register and column groups ten times slower than runs
MAX_RECOMPUTE_WIDTH = 2
MAX_SIZES = 128  # of one slot that are remembered: batches may have a new size in every step
FINITE_EVERY = 64  # saves of a slot between two looks for infinities

DTYPES = {
    torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip

LATE_WIDTH = 8
LATE_SUPPORT_WIDTH = 4
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Encoder:
    """Turns a tensor of a slot into a stash. `floor` is the number of planes that eviction leaves."""

    def __init__(self, chooser: Chooser, floor: int, packer: Packer) -> None:
        self.packer = packer
        self.chooser = chooser
        self._floor = floor
        self.is_sampling = False

    def may_recompute_at(self, slot: Slot) -> bool:
        """Whether a slot that can be recomputed from another should be: as planned, else at narrow widths."""
        return (
            slot.plan.kind is Kind.RECOMPUTE if self.chooser.is_planned else self.chooser.width <= MAX_RECOMPUTE_WIDTH
        )

    def measure(self, tensor: Tensor, layout: Layout, slot: Slot, backend: Backend) -> None:
        """Learns what compressing a tensor that is kept exact would take and cost. Writes nothing."""
        facts, dtype = slot.facts, tensor.dtype
        facts.is_constant = is_constant(tensor)
        facts.lossless = None
        slot.seen.raw_bytes = layout.numel * tensor.element_size()
        if not layout.is_dense or layout.is_expanded:
            return self._measure_some(tensor, layout, slot, backend)
        if dtype is torch.bool or dtype in INTEGERS:
            spec = BOOL if dtype is torch.bool else Spec("int", backend.num_int_bits(tensor))
        elif facts.is_constant and facts.is_mask is not False and dtype in LOSSY and looks_like_mask(tensor):
            spec = MASK
        else:
            return self._measure_some(tensor, layout, slot, backend)
        coded = coder(spec, DTYPES[dtype], layout.numel, layout.cols)
        facts.lossless = (spec, _stored_bytes(coded, backend))
        return None

    def _measure_some(self, tensor: Tensor, layout: Layout, slot: Slot, backend: Backend) -> None:
        if tensor.dtype not in LOSSY:
            return
        source, beside_bytes = _dense(tensor, layout), 0
        slot.facts.is_finite = slot.facts.is_finite and is_finite(source)
        if is_by_rows(slot, layout):
            source, rows = alike(source, layout.cols)
            beside_bytes = rows.num_bytes
        slot.facts.curves = self._curves(source, layout, backend, is_relu_like(tensor, slot), beside_bytes)

    def compress_late(self, exact: Exact, layout: Layout, backend: Backend) -> Compressed | None:
        """Encodes what was kept exact, at a width that leaves the arena planes to drop. The caller says what may be."""
        tensor, slot = exact.tensor, exact.slot
        if tensor is None or tensor._version != exact.version:
            return None
        source = _dense(tensor, layout)
        spec = self._late_spec(exact, layout, source, backend)
        if spec.codec not in EXACT and not is_finite(source):
            return None
        plan = self._make_plan(slot, tensor.dtype, layout, backend, spec)
        if plan is None:
            return None
        stored = self._write(source, plan, slot, _INLINE, None)
        stored.fingerprint = fingerprint(source) if slot.facts.is_constant else None
        return stored

    def _late_spec(self, exact: Exact, layout: Layout, source: Tensor, backend: Backend) -> Spec:
        if exact.dtype is torch.bool or exact.dtype in INTEGERS:
            return BOOL if exact.dtype is torch.bool else Spec("int", backend.num_int_bits(source))
        if is_late_mask(exact, layout):
            return MASK
        if exact.is_relu:
            return Spec("support", LATE_SUPPORT_WIDTH)
        if exact.slot.plan.planned is not None and exact.slot.plan.planned.codec not in EXACT:
            return exact.slot.plan.planned
        return Spec("minmax", LATE_WIDTH, "column" if has_columns(layout) else "run")

    def encode(self, tensor: Tensor, layout: Layout, slot: Slot, backend: Backend) -> Compressed | None:
        source, dtype = _dense(tensor, layout), tensor.dtype
        doubt = None
        if dtype.is_floating_point:
            if slot.facts.is_mask is not False and is_constant(tensor) and dtype is not torch.float64:
                coded = self._encode_mask(source, layout, slot, backend)
                if slot.facts.is_mask:
                    return coded
            doubt = self._look_for_infinities(tensor, source, slot, backend)
        if dtype in INTEGERS:
            spec, doubt = self._width_of(source, slot, backend)
        else:
            spec = self.chooser.choose(tensor, slot)
        slot.use(spec)
        rows = None
        if spec.codec not in EXACT and is_by_rows(slot, layout):
            source, rows = alike(source, layout.cols)
        if self.is_sampling and spec.codec not in UNPLANNED:
            beside_bytes = 0 if rows is None else rows.num_bytes
            slot.facts.curves = self._curves(source, layout, backend, is_relu_like(tensor, slot), beside_bytes)
            slot.plan.by_size.clear()
        plan = self._plan(slot, dtype, layout, backend)
        return None if plan is None else self._write(source, plan, slot, self.packer, doubt, rows=rows)

    def _encode_mask(self, source: Tensor, layout: Layout, slot: Slot, backend: Backend) -> Compressed | None:
        """Codes a tensor that holds one value besides zero, and finds out whether it does."""
        slot.use(MASK)
        plan = self._plan(slot, source.dtype, layout, backend)
        if plan is None:
            return None
        doubt = Unconfirmed(source, slot, "is_mask") if slot.facts.is_mask and not backend.is_host else None
        try:
            coded = self._write(source, plan, slot, _INLINE, doubt)
        except ValueError:
            slot.facts.is_mask = False
            return None
        slot.facts.is_mask = True
        return coded

    def _look_for_infinities(self, tensor: Tensor, source: Tensor, slot: Slot, backend: Backend) -> Unconfirmed | None:
        is_due = slot.seen.num_saves % FINITE_EVERY == 0 or producer(tensor) in OFTEN_INFINITE or is_constant(tensor)
        if not slot.facts.is_finite or not is_due:
            return None
        if not backend.is_host and slot.seen.num_saves:
            return Unconfirmed(source, slot, "is_finite", has_infinity(tensor))
        slot.facts.is_finite = is_finite(tensor)
        return None

    def _width_of(self, source: Tensor, slot: Slot, backend: Backend) -> tuple[Spec, Unconfirmed | None]:
        """The planes that integers need: looked for, or on a device as many as before."""
        if backend.is_host:
            return Spec("int", backend.num_int_bits(source)), None
        before = slot.plan.spec
        if before is not None and slot.facts.is_known:
            return before, Unconfirmed(source, slot, "is_known")
        slot.facts.is_known = True
        return Spec("int", max(backend.num_int_bits(source), 1 if before is None else before.bits)), None

    def _write(
        self,
        source: Tensor,
        plan: Plan,
        slot: Slot,
        packer: Packer,
        doubt: Unconfirmed | None,
        *,
        rows: Rows | None = None,
    ) -> Compressed:
        backend = plan.backend
        stash = backend.arena.reserve(plan.stash_spec, slot.id, source.nbytes)
        seed = slot.id << 32 | slot.seen.num_saves  # no two saves round alike

        def encode(tensor: Tensor) -> Any:
            try:
                return backend.encode(plan.coder, tensor, stash.planes, seed, doubt)
            finally:
                stash.unpin()

        try:
            ticket = (packer if backend.is_host else _DEVICE).submit(encode, source)
        except BaseException:
            stash.release()
            raise
        slot.seen.num_saves += 1
        slot.seen.raw_bytes, slot.seen.stored_bytes = source.nbytes, plan.stored_bytes
        return Compressed(stash, ticket, plan, slot, dtype=source.dtype, raw_bytes=source.nbytes, rows=rows)

    def _plan(self, slot: Slot, dtype: torch.dtype, layout: Layout, backend: Backend) -> Plan | None:
        key = (layout.numel, layout.cols, backend)
        if key not in slot.plan.by_size:
            if len(slot.plan.by_size) >= MAX_SIZES:
                slot.plan.by_size.clear()
            slot.plan.by_size[key] = self._make_plan(slot, dtype, layout, backend)
        return slot.plan.by_size[key]

    def _make_plan(
        self, slot: Slot, dtype: torch.dtype, layout: Layout, backend: Backend, spec: Spec | None = None
    ) -> Plan | None:
        spec = slot.plan.spec if spec is None else spec
        assert spec is not None
        coded = coder(spec, DTYPES[dtype], layout.numel, layout.cols)
        stored_bytes = _stored_bytes(coded, backend)
        if spec.codec != "raw" and stored_bytes > WORTH_IT * layout.numel * dtype.itemsize and dtype is not torch.bool:
            return None
        backend.check(spec, DTYPES[dtype])
        importance = slot.stream_importance(spec, len(coded.stream_bytes))
        floor = len(coded.stream_bytes) if spec.codec in EXACT else 1 + min(self._floor, spec.bits)
        stash_spec = backend.arena.stash_spec(coded.stream_bytes, importance, floor)
        return Plan(spec, coded, backend, stash_spec, stored_bytes)

    def _curves(
        self, source: Tensor, layout: Layout, backend: Backend, is_relu: bool, beside_bytes: int
    ) -> list[Curve]:
        """How the codecs that suit this tensor do, from a few of its groups; nothing where these are all zero.
        `beside_bytes` are kept beside the planes."""
        curves = [
            _curve(candidate, source, layout, backend, beside_bytes)
            for candidate in candidates(layout, is_relu, self.chooser.is_stochastic)
        ]
        return [curve for curve in curves if len(curve.errors) > curve.min_bits]


def is_late_mask(exact: Exact, layout: Layout) -> bool:
    """Whether a content that was kept exact looks like a mask, dropout's say. The codec looks at all of it."""
    facts, tensor = exact.slot.facts, exact.tensor
    if not facts.is_constant or facts.is_mask is False or exact.dtype not in LOSSY or not layout.is_dense:
        return False
    if facts.is_mask is None and (tensor is None or not looks_like_mask(tensor)):
        facts.is_mask = False
    return facts.is_mask is not False


def _dense(tensor: Tensor, layout: Layout) -> Tensor:
    """The distinct elements without gaps. A slice is gathered: coding it alone lets go of the whole that it was cut
    from."""
    source = tensor.detach()
    if layout.is_expanded:
        source = source.as_strided(layout.core_shape, layout.strides, source.storage_offset())
    if layout.is_dense:
        return source
    return source.new_empty_strided(layout.core_shape, layout.core_strides).copy_(source)


def _curve(candidate: Candidate, source: Tensor, layout: Layout, backend: Backend, beside_bytes: int = 0) -> Curve:
    codec, group, widths = candidate
    dtype = DTYPES[source.dtype]
    some, cols = backend.sample(source, layout.cols, group)
    widest = coder(Spec(codec, widths[-1], group), dtype, some.numel(), cols)
    errors = widest.relative_distortion(some.data_ptr(), SAMPLED_GROUPS)
    coders = {bits: coder(Spec(codec, bits, group), dtype, layout.numel, layout.cols) for bits in widths}
    stored_bytes = [
        _stored_bytes(coders[bits], backend) + beside_bytes if bits in coders else 0 for bits in range(len(errors))
    ]
    worth_it = sum(num_bytes <= WORTH_IT * source.nbytes for num_bytes in stored_bytes)
    if worth_it < len(errors):  # a tensor that is to be wider than that is kept exact
        errors, stored_bytes = (*errors[:worth_it], 0.0), [*stored_bytes[:worth_it], source.nbytes]
    return Curve(codec, group, widths[0], errors, tuple(stored_bytes))


def _stored_bytes(coded: Coder, backend: Backend) -> int:
    """What the streams take in whole pages."""
    page_bytes = backend.arena.page_bytes
    return sum(-(-num_bytes // page_bytes) * page_bytes for num_bytes in coded.stream_bytes)


Candidate = tuple[str, str, range]  # codec, group shape, widths


def is_by_rows(slot: Slot, layout: Layout) -> bool:
    """Whether the tensors of a slot are stored with rows of one size: what a norm reads."""
    return slot.facts.is_input_of_norm and layout.cols >= MIN_COLS


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
