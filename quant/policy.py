"""When to sample, and what to make of it: the step clock, importance into the arena, and the plan of `bits="auto"`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daf.kernels import Spec
from daf.quant.importance import Probe
from daf.quant.planner import Goal, Option, Outcome, plan
from daf.quant.rectified import FOLLOW_ERROR
from daf.quant.slots import Slot, SlotTable

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.quant.ledger import Ledger

SAMPLE_EVERY = 64
EARLY_SAMPLES = frozenset({1, 2, 4, 8, 16, 32})
BUDGET_SHARE = 0.97  # of the bytes that are free for planes: the rest is for what changes from step to step
MIX_CHANGE = 0.1


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked of `auto`. All that are set hold; a budget always does.

    ratio      store no more than the raw bytes divided by this
    max_error  add no bits once the gradient's relative error is expected to be this low
    """

    ratio: float = 16.0
    max_error: float = 0.0


class Policy:
    """Follows the steps of training. A step begins with the first save after a backward."""

    def __init__(
        self,
        arena: Arena,
        table: SlotTable,
        ledger: Ledger,
        *,
        wish: Wish | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.probe = Probe()
        self.num_steps = 0
        self.outcome: Outcome | None = None
        self._arena = arena
        self._table = table
        self._ledger = ledger
        self._wish = wish
        self._clock = clock
        self._began = 0.0
        self._planned_raw_bytes = 0

    def begin_step(self) -> None:
        now = self._clock()
        if self.num_steps:
            self._arena.step(now - self._began)
        self._began = now
        if self.probe.is_on:
            self.probe.is_on = False
            self._learn()
        self.num_steps += 1
        if self.num_steps in EARLY_SAMPLES or self.num_steps % SAMPLE_EVERY == 0 or self._has_mix_changed():
            self.probe.start()
        self._ledger.begin_step()

    def _has_mix_changed(self) -> bool:
        raw_bytes = self._ledger.step_raw_bytes
        return abs(raw_bytes - self._planned_raw_bytes) > MIX_CHANGE * self._planned_raw_bytes

    def _learn(self) -> None:
        slots = [slot for slot in self._table if slot.id in self.probe.slots]
        scores = self.probe.scores(slots)
        if not any(scores.values()):
            scores = dict.fromkeys(scores, 1.0)
        for slot in slots:
            slot.importance = scores[slot.id]
        self._planned_raw_bytes = self._ledger.step_raw_bytes
        if self._wish is not None:
            self._plan(slots, self._wish)
        for slot in self._table:
            self._publish(slot)

    def _plan(self, slots: list[Slot], wish: Wish) -> None:
        menus = {slot.id: menu_of(slot) for slot in slots if slot.curves}
        fixed_bytes = self._ledger.passed_bytes + sum(slot.stored_bytes for slot in slots if not slot.curves)
        max_bytes = min(self._plane_bytes(), self._ledger.step_raw_bytes / wish.ratio) - fixed_bytes
        max_error = wish.max_error**2 * self.probe.gradient_energy
        self.outcome = plan(menus, Goal(max_bytes, max_error))
        for slot in slots:
            if slot.id in self.outcome.chosen:
                spec = self.outcome.chosen[slot.id].spec
                slot.follows = spec is None
                slot.planned = spec or slot.planned
                slot.plans.clear()

    def _plane_bytes(self) -> float:
        """What the budget leaves for planes beside the tensors that share it."""
        stats = self._arena.stats()
        return BUDGET_SHARE * (stats["budget_bytes"] - stats["peak_tensor_bytes"])

    def _publish(self, slot: Slot) -> None:
        self._arena.slot(
            slot.id,
            name=slot.name,
            op=slot.op,
            codec=slot.spec.codec if slot.spec else "",
            bits=slot.spec.bits if slot.spec else 0,
            raw_bytes=slot.raw_bytes,
            stored_bytes=slot.stored_bytes,
            importance=slot.importance,
            fidelity=slot.fidelity,
        )


def menu_of(slot: Slot) -> list[Option]:
    """Every codec and width that suits the slot, with the error it is expected to cause."""
    following = [Option(None, 0, slot.importance * FOLLOW_ERROR)] if slot.can_follow else []
    return following + [
        Option(Spec(curve.codec, bits, curve.group), curve.stored_bytes[bits], slot.importance * curve.errors[bits])
        for curve in slot.curves
        for bits in range(curve.min_bits, len(curve.errors))
    ]
