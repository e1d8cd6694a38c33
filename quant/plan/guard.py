"""The guard: an op whose gradients come out too wrong has its saved tensors kept exact from then on.

What may be compressed is decided by a table (ops.py) and how far by estimates (importance). Both can be wrong about a
model that nobody has seen. So single ops are measured in the ordinary backward (measure/op.py), exact contents against
decoded ones, and what was measured rules:

    error of the op's gradients      verdict
    not finite                       exact
    above BOUND, and 1.5 times       exact: the codec does worse than it should, or the op is more sensitive than the
    what its codecs promise          table says
    else                             as planned

A distrusted slot stays exact for RETRY steps, then is tried again; each time it fails it waits twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.quant.saved.slots import Slot

BOUND = 0.2  # relative error of the gradients that one op makes
SLACK = 1.5  # times the error that the codecs' own curves promise together
RETRY = 500  # steps until a distrusted slot is tried again


class Guard:
    """Judges measurements, and keeps the list of distrusted slots with the step at which each is tried again."""

    def __init__(self, arena: Arena, bound: float = BOUND) -> None:
        self.arena = arena
        self.bound = bound
        self.num_distrusted_total = 0
        self._step = 0
        self._until: dict[int, tuple[Slot, int]] = {}
        self._waits: dict[int, int] = {}

    def judge(self, op: str, slots: Iterable[Slot], error: float) -> bool:
        """Whether the op whose gradients erred by `error` may go on as it is; if not, its slots are distrusted."""
        coded = [slot for slot in slots if slot.facts.is_trusted]
        if error <= max(self.bound, SLACK * math.hypot(*(expected_error(slot) for slot in coded))):
            return True
        for slot in coded:
            self._distrust(slot, op, error)
        return False

    def begin_step(self, number: int) -> None:
        self._step = number
        for slot_id, (slot, until) in list(self._until.items()):
            if number >= until:
                slot.facts.is_trusted = True
                del self._until[slot_id]

    def _distrust(self, slot: Slot, op: str, error: float) -> None:
        slot.facts.is_trusted = False
        self.num_distrusted_total += 1
        wait = self._waits[slot.id] = 2 * self._waits.get(slot.id, RETRY // 2)
        self._until[slot.id] = (slot, self._step + wait)
        shown = "not finite" if not math.isfinite(error) else f"{error:.0%}"
        text = f"{slot.name} kept exact: gradients of {op} erred by {shown}"
        self.arena.event("warning", slot_id=slot.id, value=error if math.isfinite(error) else -1.0, text=text)


def expected_error(slot: Slot) -> float:
    """The relative error that the slot's codec promises at its width; 0 where nothing is known of it."""
    spec = slot.plan.spec
    for curve in slot.facts.curves:
        if (
            spec is not None
            and (curve.codec, curve.group) == (spec.codec, spec.group)
            and spec.bits < len(curve.errors)
        ):
            return math.sqrt(max(0.0, curve.errors[spec.bits]))
    return 0.0
