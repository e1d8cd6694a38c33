"""Slots: the places in a model where tensors are saved, stable over steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from daf.kernels import Spec
from daf.quant.ops import short
from daf.quant.plan.menu import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daf.kernels import Coder
    from daf.quant.encode.backends import Backend
    from daf.quant.encode.unconfirmed import Answer

PlanKey = tuple[int, int, "Backend"]  # numel, cols
MAX_SLOTS = 16384
NUM_UNREAD = 8  # saves that nobody asked for, after which a slot is taken to be never read
NEVER_READ = "never read"  # what the stats page shows in place of its readers
SlotKey = tuple[str, int, torch.dtype, int]  # path, order, dtype, number of axes


@dataclass(frozen=True, slots=True)
class Plan:
    """How tensors of one slot, size and backend are encoded: made once, used at every save.

    stored_bytes is what the pages cost, each stream's tail page included.
    """

    spec: Spec
    coder: Coder
    backend: Backend
    stash_spec: Any
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Curve:
    """How one codec does at a slot: relative energy of its error with 0, 1, ... planes, and the bytes these take."""

    codec: str
    group: str
    min_bits: int
    errors: tuple[float, ...]
    stored_bytes: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Facts:
    """What has been learned about a slot, by whoever saw it.

    ops            names of the autograd nodes that asked for the tensors saved here
    is_vouched_for  all its readers are known to bear noise, before any backward: by the kind of module, or the graph
    exact_for      uses that bear no noise, met so far: its tensors are exact (uses.py)
    readers        paths of the modules that saved the same content, or content that is recomputed from it
    partners       ids of the slots whose gradient noise here gets into; empty: its own
    curves         of each codec that suits the slot, from the last sampled step
    importance     expected gradient error per unit of relative error here
    importance_recomputed  the same of the error that recomputing it from a ReLU's output makes
    own_error      squared relative error of the worst gradient that an op makes of it, per relative energy of noise
    is_trusted     what its compression does to gradients was not found to be too much (plan/guard.py)
    is_known       the integers met so far fit the spec: on a device the next are taken to (unconfirmed.py)
    is_mask        holds zeros and one other value, as dropout's noise does; None until the first save is looked at
    is_relu        holds a ReLU's outputs, though the tensors do not say so: those of a compiled graph
    is_finite      no infinity or NaN was met so far
    is_flat        whether its batch norm cannot be inverted, as last asked (batchnorm_relu.py)
    can_recompute  its tensors can be recomputed, roughly, from a ReLU's output (batchnorm_relu.py)
    followers      ids of the slots whose tensors are recomputed from this one's
    is_read        a backward has asked for its tensors, so `ops` are all
    is_constant    autograd has no history of it: a mask, noise, a batch, a statistic
    lossless       the codec that stores its masks or integers without loss, and the bytes that it takes
    sources        ids of the slots that its tensors can be recomputed from
    is_input_of_norm  a layer norm or RMSNorm reads it
    is_made_to_fit  its reader takes it only exact, or recomputed with all else that it saved
    is_through_layers  that takes products with weights, which last recompute_seconds
    source_gain    how much noisier it is then than these, relative to each
    """

    ops: set[str] = field(default_factory=set)
    is_vouched_for: bool = False
    exact_for: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    partners: tuple[int, ...] = ()
    curves: list[Curve] = field(default_factory=list)
    importance: float = 0.0
    importance_recomputed: float = 0.0
    own_error: float = 0.0
    is_trusted: bool = True
    is_known: bool = False
    is_mask: bool | None = None
    is_relu: bool = False
    is_finite: bool = True
    is_flat: Answer | None = None
    can_recompute: bool = False
    followers: set[int] = field(default_factory=set)
    is_read: bool = False
    is_constant: bool = False
    lossless: tuple[Spec, int] | None = None
    sources: tuple[int, ...] = ()
    is_input_of_norm: bool = False
    is_made_to_fit: bool = False
    is_through_layers: bool = False
    recompute_seconds: float = 0.0
    source_gain: float = 1.0

    @property
    def may_compress(self) -> bool:
        """Whether its readers have been seen, or are known by the kind of module, and all of them bear noise."""
        return (bool(self.ops) or self.is_vouched_for) and not self.exact_for


@dataclass(slots=True, eq=False)
class SlotPlan:
    """How a slot's tensors are stored from now on.

    spec           codec, width and group shape in force; None until the first save chooses
    planned        what the planner chose; None where it has no say
    kind           what is done with its tensors, where the budget decides
    is_recomputed  not stored but recomputed from a ReLU's output
    by_size        ways to encode, one for each size, None: kept exact; emptied when `spec` changes
    """

    spec: Spec | None = None
    planned: Spec | None = None
    kind: Kind = Kind.KEEP
    is_recomputed: bool = False
    by_size: dict[PlanKey, Plan | None] = field(default_factory=dict)

    @property
    def is_not_worth_it(self) -> bool:
        """Whether `spec` would save too little at every size seen, so that the tensors are kept exact."""
        ways = list(self.by_size.values())  # a copy: other threads save meanwhile
        return bool(ways) and not any(ways)


@dataclass(slots=True, eq=False)
class Seen:
    """What the stats page shows of a slot.

    fidelity     worst cosine of the ops that read it, exact against decoded; 0: not measured (measure/op.py)
    num_evicted  planes that were missing when a tensor was last asked for
    shown        codec and width on the stats page
    is_unread    whether it is shown there as never read
    """

    num_saves: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    fidelity: float = 0.0
    num_evicted: int = 0
    shown: tuple[str, float] = ("", 0.0)
    is_unread: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """One place in a model where a tensor is saved: its identity, and three parts, each with writers of its own."""

    id: int
    key: SlotKey
    facts: Facts = field(default_factory=Facts)
    plan: SlotPlan = field(default_factory=SlotPlan)
    seen: Seen = field(default_factory=Seen)

    @property
    def path(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        path, order, _, _ = self.key
        return f"{path or 'start'}:{order}"

    @property
    def bits(self) -> float:
        """The width that was left when a tensor was last asked for."""
        return 0.0 if self.plan.spec is None else max(0, self.plan.spec.bits - self.seen.num_evicted)

    @property
    def is_never_read(self) -> bool:
        """Saved often, kept as it is, and no backward has asked for it."""
        is_kept = self.plan.kind is Kind.KEEP and self.plan.spec is None
        return is_kept and not self.facts.is_read and self.seen.num_saves >= NUM_UNREAD

    @property
    def op(self) -> str:
        if self.is_never_read:
            return NEVER_READ
        return "+".join(sorted(map(short, self.facts.ops)))

    def stream_importance(self, spec: Spec, num_streams: int) -> list[float]:
        """The cost of losing each stream: the error that it takes away, times the slot's importance."""
        importance = self.facts.importance
        for curve in self.facts.curves:
            if (curve.codec, curve.group) == (spec.codec, spec.group) and importance:
                known = curve.errors  # of widths that were worth it
                errors = (*known, *[known[-1]] * (num_streams - len(known)))
                return [importance * (errors[max(0, i - 1)] - errors[i]) for i in range(num_streams)]
        return [4.0**-i for i in range(num_streams)]

    def use(self, spec: Spec) -> None:
        if spec != self.plan.spec:
            self.plan.spec = spec
            self.seen.fidelity = 0.0
            self.plan.by_size.clear()


class SlotTable:
    """All slots by key. Threads share it; a dict's setdefault keeps two first saves from making two slots.

    A program whose places never end (modules made and kept in a loop) shares one last slot beyond MAX_SLOTS.
    """

    def __init__(self) -> None:
        self._by_key: dict[SlotKey, Slot] = {}

    def at(self, key: SlotKey) -> Slot:
        slot = self._by_key.get(key)
        if slot is None:
            if len(self._by_key) >= MAX_SLOTS:
                key = ("elsewhere", 1, key[2], key[3])
            slot = self._by_key.setdefault(key, Slot(id=len(self._by_key), key=key))
        return slot

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)
