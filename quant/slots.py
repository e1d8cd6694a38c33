"""Slots: the places in a model where tensors are saved, stable over steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from daf.kernels import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daf.kernels import Coder
    from daf.quant.doubt import Answer
    from daf.quant.places import Place

PlanKey = tuple[int, int, "Place"]  # numel, cols
SlotKey = tuple[str, int, torch.dtype, int]  # path, order, dtype, number of axes


@dataclass(frozen=True, slots=True)
class Plan:
    """How tensors of one slot, size and place are encoded: made once, used at every save.

    stored_bytes is what the pages cost, each stream's tail page included.
    """

    spec: Spec
    coder: Coder
    place: Place
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
class Slot:
    """One place, and what has been learned about it.

    ops        names of the autograd nodes that asked for the tensors saved here, e.g. ConvolutionBackward0
    readers    paths of the modules that saved the same content, or content that follows from it
    partners   ids of the slots whose gradient noise here gets into; empty: its own
    spec       codec, width and group shape in force; None until the first save chooses
    is_known   the integers met so far fit `spec`: on a device the next are taken to (doubt.py)
    is_mask    holds zeros and one other value, as dropout's noise does; None until the first save is looked at
    followers  ids of the slots whose tensors follow from this one's
    can_follow  its tensors follow, roughly, from a ReLU's output (rectified.py)
    follows    ... and are made to, so they are not stored
    is_flat    whether they cannot, as last asked (rectified.py)
    is_finite  no infinity or NaN was met so far
    planned    what the planner chose; None where it has no say
    curves     of each codec that suits the slot, from the last sampled step
    fidelity   worst cosine of the ops that read it, exact against coded; 0: not measured (spotcheck.py)
    num_evicted  planes that were missing when a tensor was last asked for
    shown      codec and bits on the stats page
    plans      emptied when `spec` changes
    """

    id: int
    key: SlotKey
    ops: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    partners: tuple[int, ...] = ()
    spec: Spec | None = None
    planned: Spec | None = None
    curves: list[Curve] = field(default_factory=list)
    plans: dict[PlanKey, Plan | None] = field(default_factory=dict)
    is_known: bool = False
    is_mask: bool | None = None
    followers: set[int] = field(default_factory=set)
    can_follow: bool = False
    follows: bool = False
    is_flat: Answer | None = None
    is_finite: bool = True
    num_evicted: int = 0
    shown: tuple[str, float] = ("", 0.0)
    num_saves: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    importance: float = 0.0
    fidelity: float = 0.0

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
        return 0.0 if self.spec is None else max(0, self.spec.bits - self.num_evicted)

    @property
    def op(self) -> str:
        return "+".join(sorted(name.removesuffix("0").removesuffix("Backward") for name in self.ops))

    def stream_importance(self, spec: Spec, num_streams: int) -> list[float]:
        """The cost of losing each stream: the error that it takes away, times the slot's importance."""
        for curve in self.curves:
            if (curve.codec, curve.group) == (spec.codec, spec.group) and self.importance:
                errors = curve.errors
                return [self.importance * (errors[max(0, i - 1)] - errors[i]) for i in range(num_streams)]
        return [4.0**-i for i in range(num_streams)]

    def use(self, spec: Spec) -> None:
        if spec != self.spec:
            self.spec = spec
            self.fidelity = 0.0
            self.plans.clear()


class SlotTable:
    """All slots by key. Threads share it; a dict's setdefault keeps two first saves from making two slots."""

    def __init__(self) -> None:
        self._by_key: dict[SlotKey, Slot] = {}

    def at(self, key: SlotKey) -> Slot:
        slot = self._by_key.get(key)
        if slot is None:
            slot = self._by_key.setdefault(key, Slot(id=len(self._by_key), key=key))
        return slot

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)
