"""When to sample, and what to make of it: the step clock, importance into the arena, and the plan of `bits="auto"`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daf.kernels import Spec
from daf.quant.importance import Probe
from daf.quant.planner import Goal, Option, Outcome, plan
from daf.quant.rectified import FOLLOW_ERROR
from daf.quant.slots import Slot, SlotTable
from daf.quant.spotcheck import is_exact

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.quant.fidelity import Fidelity
    from daf.quant.ledger import Ledger

SHOW_EVERY = 8  # steps between two looks for widths that the stats page does not show yet
# Odd, so that of two models that are trained in turn both are met. In the first hundreds of steps gradients change by
# orders of magnitude in thirty, and a plan that is older gives bits where they mattered once.
SAMPLE_EVERY = 31
EARLY_SAMPLES = frozenset({1, 2, 7, 16})
BUDGET_SHARE = 0.97  # of the bytes that are free for planes: the rest is for what changes from step to step
RATIO_SHARE = 0.99  # of the bytes that a ratio allows; the rest is for the ends of pages
ENOUGH_BYTES = 256 << 10  # what a ratio leaves to the smallest model: less helps nobody, and costs it its gradient
ROOMY_SHARE = 0.8
SPARED = 4  # of the largest saved tensors: what a sparing step does without (ResNet-18: three)
BUDGET_CHANGE = 0.02
MIX_CHANGE = 0.1
MIX_REST = 7  # steps between two samples that a change of the mix calls for: batches of all lengths are one mix
# What a codec's error must be lower by to be worth its time: columns take twice as long as runs, a tree of four levels
# four times as long as min/max of four bits, which is often as good.
COLUMN_PRICE = 1.05
TREE_PRICE = (1.0, 1.0, 1.0, 1.1, 1.25)
MEASURE_EVERY = 50  # steps between two measurements of the gradient, where a fidelity target is set


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked of `auto`, within the budget, which always holds.

    ratio      store no more than the raw bytes divided by this
    max_error  instead of a ratio: as many bits as the gradient needs for its relative error to be this low
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
        self.arena = arena
        self._table = table
        self._ledger = ledger
        self._wish = wish
        self._clock = clock
        self._began = 0.0
        self._planned_raw_bytes = 0
        self._sampled_at = 0
        self._plane_bytes = math.inf  # what the budget was found to leave for planes
        self._evicted_bytes = 0  # so far
        self._cap_bytes = math.inf  # what a plan may take at most, since a step under the last one had to evict
        self._error_scale = 0.0  # squared relative error per unit of the planner's error, once it was measured
        self._was_told = False
        self._was_always_sparing = True
        ledger.monitor.on_measured = self._hear
        if wish is not None and wish.max_error:
            ledger.monitor.every = MEASURE_EVERY

    def begin_step(self) -> None:
        now = self._clock()
        if self.num_steps:
            self.arena.step(now - self._began)
        self._began = now
        self._ledger.begin_step()
        if self.probe.is_on:
            self.probe.is_on = False
            self._look_at_budget()
            self._cap_bytes = math.inf
            self._learn()
        elif self._wish is not None and self._has_budget_changed():
            self._plan([slot for slot in self._table if slot.id in self.probe.slots], self._wish)
        if self.num_steps % SHOW_EVERY == 0:
            self._publish_changes()
        self.num_steps += 1
        if is_sampled(self.num_steps) or self._has_mix_changed():
            self._sampled_at = self.num_steps
            self.probe.start()

    def tight_budget(self) -> int:
        """The budget in bytes if the step that begins must be sparing, 0 where there is room.

        Nothing is known before the first step. What sparing ones took is less than what others will.
        """
        stats = self.arena.stats()
        peak_bytes = stats["peak_live_bytes"]
        if self._was_always_sparing:
            peak_bytes += SPARED * max((slot.raw_bytes for slot in self._table), default=0)
        is_roomy = self.num_steps > 1 and peak_bytes < ROOMY_SHARE * stats["budget_bytes"]
        self._was_always_sparing &= not is_roomy
        return 0 if is_roomy else int(stats["budget_bytes"])

    def _has_mix_changed(self) -> bool:
        raw_bytes = self._ledger.step_raw_bytes
        has_changed = abs(raw_bytes - self._planned_raw_bytes) > MIX_CHANGE * self._planned_raw_bytes
        return has_changed and self.num_steps >= self._sampled_at + MIX_REST

    def _has_budget_changed(self) -> bool:
        """Whether planes have more or less room than the plan was made for, or the last step had to evict some."""
        before, evicted_before = self._plane_bytes, self._evicted_bytes
        self._look_at_budget()
        if abs(self._plane_bytes - before) > BUDGET_CHANGE * before:
            self._cap_bytes = math.inf
            return True
        if self._evicted_bytes > evicted_before and self.outcome is not None:
            self._cap_bytes = self.outcome.stored_bytes + self._ledger.step_fixed_bytes
            self._cap_bytes -= self._evicted_bytes - evicted_before
            return True
        return False

    def _look_at_budget(self) -> None:
        """What the budget leaves for planes beside the tensors that share it, and what was evicted so far."""
        stats = self.arena.stats()
        self._plane_bytes = BUDGET_SHARE * (stats["budget_bytes"] - stats["peak_tensor_bytes"])
        self._evicted_bytes = int(stats["evicted_bytes_total"])

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
            if slot.num_saves:  # else its tensors were passed through so far
                self.publish(slot)

    def _plan(self, slots: list[Slot], wish: Wish) -> None:
        menus = {slot.id: menu_of(slot, self.probe.slots[slot.id].num_saves) for slot in slots if slot.curves}
        fixed_bytes = self._ledger.step_fixed_bytes
        max_bytes = min(self._plane_bytes, self._cap_bytes)
        max_error = 0.0
        if wish.max_error:
            scale = self._error_scale or 1.0 / max(self.probe.gradient_energy, 1e-30)
            max_error = wish.max_error**2 / scale
        else:
            max_bytes = min(max_bytes, max(RATIO_SHARE * self._ledger.step_raw_bytes / wish.ratio, ENOUGH_BYTES))
        self.outcome = plan(menus, Goal(max_bytes - fixed_bytes, max_error))
        if max_error and self.outcome.error > max_error:
            self._say_that_the_budget_is_short(wish)
        for slot in slots:
            if slot.id in self.outcome.chosen:
                spec = self.outcome.chosen[slot.id].spec
                slot.follows = spec is None
                slot.planned = spec or slot.planned
                slot.plans.clear()

    def _hear(self, total: Fidelity) -> None:
        """The gradient was measured: sets the planner's errors to scale, and plans anew where the wish is missed."""
        self.arena.event("fidelity", value=total.error)
        if self._wish is None or not self._wish.max_error or self.outcome is None or not self.outcome.error:
            return
        self._error_scale = total.error**2 / self.outcome.error
        if total.error > self._wish.max_error:
            self._plan([slot for slot in self._table if slot.id in self.probe.slots], self._wish)

    def _say_that_the_budget_is_short(self, wish: Wish) -> None:
        if not self._was_told:
            self._was_told = True
            warnings.warn(
                f"daf: the budget does not give the bits that a gradient error of {wish.max_error:.0%} needs; "
                f"training goes on with all that fit",
                stacklevel=2,
            )

    def _publish_changes(self) -> None:
        for slot in self._table:
            if slot.spec is not None and slot.shown != (slot.spec.codec, slot.bits):
                self.publish(slot)

    def publish(self, slot: Slot) -> None:
        """Writes the slot's row on the stats page."""
        codec, bits = slot.shown = (slot.spec.codec if slot.spec else "", slot.bits)
        self.arena.slot(
            slot.id,
            name=slot.name,
            op=slot.op,
            codec=codec,
            bits=bits,
            raw_bytes=slot.raw_bytes,
            stored_bytes=slot.stored_bytes,
            importance=slot.importance,
            fidelity=1.0 if is_exact(slot) else slot.fidelity,
        )


def is_sampled(step_number: int) -> bool:
    """Whether a step is sampled whatever happens; a change of the mix adds others."""
    return step_number in EARLY_SAMPLES or step_number % SAMPLE_EVERY == 0


def menu_of(slot: Slot, num_saves: int = 1) -> list[Option]:
    """Every codec and width that suits the slot, with bytes and expected error of all that a step saves there."""
    importance = num_saves * slot.importance
    following = [Option(None, 0, importance * FOLLOW_ERROR)] if slot.can_follow else []
    return following + [
        _option(
            Spec(curve.codec, bits, curve.group), num_saves * curve.stored_bytes[bits], importance * curve.errors[bits]
        )
        for curve in slot.curves
        for bits in range(curve.min_bits, len(curve.errors))
    ]


def _option(spec: Spec, stored_bytes: int, error: float) -> Option:
    """An option whose error counts as more than it is where the codec takes its time."""
    if spec.group == "column":
        error *= COLUMN_PRICE
    if spec.codec == "meansplit":
        error *= TREE_PRICE[spec.bits]
    return Option(spec, stored_bytes, error)
