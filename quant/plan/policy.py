"""When to sample, when to plan, and what a plan does to the slots: the step clock of `bits="auto"`.

While all saved tensors fit the budget they are kept exact and nothing is sampled. A step in which memory runs short is
helped by late compression (relief.py); if the next one runs short too, the steps from then on are planned.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daf.quant.measure.importance import Probe
from daf.quant.measure.op import is_exact
from daf.quant.plan.menu import Kind, Option
from daf.quant.plan.options import anchored, menu_of
from daf.quant.plan.planner import LOST_ERROR, Goal, Plan, plan
from daf.quant.plan.readers import is_recomputable, may_compress
from daf.quant.plan.relief import Step
from daf.quant.plan.room import Room
from daf.quant.plan.speed import Speeds
from daf.quant.saved.slots import Slot, SlotTable

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.quant.measure.gradient import Fidelity, Monitor
    from daf.quant.saved.ledger import Ledger

SHOW_EVERY = 8  # steps between two looks for widths that the stats page does not show yet
# Odd, so that of two models that are trained in turn both are met. In the first hundreds of steps gradients change by
# orders of magnitude in thirty, and a plan that is older gives bits where they mattered once.
SAMPLE_EVERY = 31
EARLY_SAMPLES = frozenset({1, 2, 4, 7, 11, 16, 22})
NUM_SHORT = 2  # steps in a row that must run short before all are planned: one batch that is longer is no reason
RATIO_SHARE = 0.99  # of the bytes that a ratio allows; the rest is for the ends of pages
ENOUGH_BYTES = 256 << 10  # what a ratio leaves to the smallest model: less helps nobody, and costs it its gradient
ROOMY_SHARE = 0.8
REST_SHARE = 0.4  # of the budget: steps that stay below need not be seen; at half of it they are again
SEEN_STEPS = 4  # before any that is not: readers are known, and the optimizer has its state
SURE_STEPS = 2 * SHOW_EVERY + 1  # before, where something was not read yet: by then it is shown as never read
SPARED = 4  # of the largest saved tensors: what a memory-saving step does without (ResNet-18: three)
MIX_CHANGE = 0.1
MIX_REST = 7  # steps between two samples that a change of the mix calls for: batches of all lengths are one mix
MEASURE_EVERY = 50  # steps between two measurements of the gradient, where a fidelity target is set
FLOAT_BYTES = 4
_NO_RELIEF = Step(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks beside the budget, which always holds. Without either, the budget alone decides.

    ratio      store so many times less than plain torch, of what can be compressed, even where there is room
    max_error  the fewest bytes whose relative gradient error stays below
    max_slowdown  what a step should take at most, of plain torch's, as long as bits can do instead of time
    """

    ratio: float | None = None
    max_error: float | None = None
    max_slowdown: float | None = None

    def __bool__(self) -> bool:
        return bool(self.ratio or self.max_error)


class Policy:
    """Follows the steps of training. A step begins with the first save after a backward."""

    def __init__(
        self,
        arena: Arena,
        table: SlotTable,
        ledger: Ledger,
        monitor: Monitor,
        *,
        wish: Wish | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.probe = Probe()
        self.speeds = Speeds()
        self.num_steps = 0
        self.outcome: Plan | None = None
        self.arena = arena
        self.is_short = bool(wish)
        self._table = table
        self._ledger = ledger
        self._monitor = monitor
        self._wish = wish
        self._clock = clock
        self._began = 0.0
        self._plain_seconds = math.inf
        self._longest_seconds = 0.0
        self._is_in_step = False
        self._room = Room()
        self._num_short = 0
        self._has_fitted = False  # some step, with all exact
        self._short_since = 0
        self._is_saving = False
        self._planned_raw_bytes = 0
        self._sampled_at = 0
        self._evicted_bytes = 0  # so far
        self._error_scale = 1.0  # squared error measured over expected
        self._was_told = False
        self._was_always_saving = True
        monitor.on_measured = self._hear
        if wish is not None and wish.max_error:
            monitor.every = MEASURE_EVERY

    # -- the step clock

    def begin_step(self, relief: Step = _NO_RELIEF, *, was_whole: bool = True) -> None:
        """`was_whole`: the step before was seen from its beginning. Nothing is learned from others."""
        self._tick(self._clock())
        self._ledger.begin_step()
        was_sampled, self.probe.is_on = self.probe.is_on, False
        has_news = was_whole and self.num_steps > 0 and self._wish is not None
        if has_news:
            self._look(relief)
        if was_sampled:
            self._learn()
        if has_news and self._wish is not None:
            self._decide(self._wish, was_sampled=was_sampled)
        if self.num_steps % SHOW_EVERY == 0:
            self._publish_changes()
        self.num_steps += 1
        if self._is_sample_due():
            self._sampled_at = self.num_steps
            self.probe.start()

    def begin_unseen_step(self, began: float) -> None:
        """A step of which no save is seen began then (rest.py)."""
        self._tick(began)
        self.num_steps += 1

    def _tick(self, now: float) -> None:
        if self._is_in_step:
            self._note_plain(now - self._began)
            self.arena.step(now - self._began)
            self._longest_seconds = max(self._longest_seconds, now - self._began)
        self._began = now
        self._is_in_step = True

    def _note_plain(self, seconds: float) -> None:
        """What a step would take in plain torch: at most what one took without what its plan takes."""
        planned = 0.0 if self.outcome is None else self.outcome.seconds
        self._plain_seconds = min(self._plain_seconds, max(seconds - planned, seconds / 2))

    def may_rest(self) -> bool:
        """Whether steps need not be seen: all is kept exact, and stays far below the budget. With a ratio, that is so
        where what it leaves to the smallest model is enough for all."""
        wish, raw_bytes = self._wish, max(self._ledger.step_raw_bytes, self._ledger.seen_bytes)
        if wish is None or wish.max_error or self._num_short or self.num_steps < SEEN_STEPS:
            return False
        if self.num_steps < SURE_STEPS and any(slot.seen.num_saves and not slot.facts.is_read for slot in self._table):
            return False
        if self.is_short and not (wish and raw_bytes <= ENOUGH_BYTES):
            return False
        stats = self.arena.stats()
        live_bytes = max(stats["last_step_live_bytes"], stats["step_peak_live_bytes"], raw_bytes)
        return live_bytes <= REST_SHARE * stats["budget_bytes"] and not stats["pressure_calls_total"]

    def end_last_step(self) -> None:
        """Count the step that no other follows.

        What the script does after its last backward (evaluation, saving) is no part of a step, so the last one is taken
        to be no longer than the longest before it.
        """
        if self._is_in_step:
            seconds = self._clock() - self._began
            self.arena.step(min(seconds, self._longest_seconds or seconds))
            self._is_in_step = False

    @property
    def may_recompute(self) -> bool:
        """Whether modules may be run again instead of storing what they save."""
        return self._wish is None or self.is_short

    @property
    def is_first_step(self) -> bool:
        return self.num_steps <= 1

    @property
    def expects_pressure(self) -> bool:
        """Whether the step that begins is to recompute what it can from its start, though nothing is planned yet. Not
        after a single step that ran short: the batch may have been longer than all others. And on while such a step
        was not short but all of it, exact, would be more than there is room for."""
        if self.is_short:
            return False
        is_held_down = self._is_saving and not self._num_short
        return is_held_down or self._num_short >= (NUM_SHORT if self._has_fitted else 1)

    def tight_budget(self) -> int:
        """The budget in bytes if the step that begins must save memory, 0 where there is room."""
        if self._wish is not None:
            return self._room.budget_bytes if self._is_saving else 0
        stats = self.arena.stats()
        peak_bytes = stats["peak_live_bytes"]
        if self._was_always_saving:  # peaks of memory-saving steps underestimate a normal step
            peak_bytes += SPARED * self._largest_bytes()
        is_roomy = self.num_steps > 1 and peak_bytes < ROOMY_SHARE * stats["budget_bytes"]
        self._was_always_saving &= not is_roomy
        return 0 if is_roomy else int(stats["budget_bytes"])

    def figures(self) -> dict[str, float]:
        """What a plan comes to, and what was measured: relative gradient errors."""
        expected = 0.0 if self.outcome is None else math.sqrt(self.outcome.error * self._error_scale)
        measured = self._monitor.total.error if self._monitor.total is not None else 0.0
        return {**self._ledger.step_shares, "expected_error": expected, "measured_error": measured}

    def _is_sample_due(self) -> bool:
        """Often where gradients are young, never where nothing is to be decided."""
        if self._wish is None or self._wish:
            since = self.num_steps
        elif self.is_short or self._num_short:
            since = self.num_steps - self._short_since
        else:
            return False
        return is_sampled(since) or self._has_mix_changed()

    def _has_mix_changed(self) -> bool:
        raw_bytes = self._ledger.step_raw_bytes
        has_changed = abs(raw_bytes - self._planned_raw_bytes) > MIX_CHANGE * self._planned_raw_bytes
        return has_changed and self.num_steps >= self._sampled_at + MIX_REST

    # -- what is known

    def _look(self, relief: Step) -> None:
        stats = self.arena.stats()
        evicted_bytes = int(stats["evicted_bytes_total"]) - self._evicted_bytes
        self._evicted_bytes += evicted_bytes
        was_short = relief.num_asked > 0 or evicted_bytes > 0
        if was_short and not self._num_short and not self.is_short:
            self._short_since = self.num_steps
        if relief.num_compressed:
            text = f"memory ran short: {relief.num_compressed} tensors were compressed that had been kept exact"
            self.arena.event("plan", value=float(relief.num_compressed), text=text)
        self._num_short = self._num_short + 1 if was_short else 0
        self._has_fitted = self._has_fitted or not (was_short or self.is_short)
        other_bytes = int(stats.get("last_step_live_bytes", 0)) - self._ledger.last_slot_bytes
        is_saving = self._is_saving or was_short
        self._room.look(int(stats["budget_bytes"]), max(other_bytes, relief.other_bytes), is_saving=is_saving)

    def _learn(self) -> None:
        slots = self._sampled()
        scores = self.probe.scores(slots)
        if not any(scores.values()):
            scores = dict.fromkeys(scores, 1.0)
        own_errors, gains = self.probe.own_errors(slots), self.probe.gains()
        for slot in slots:
            if math.isfinite(scores[slot.id]):  # else an overflow: what was known before stays
                slot.facts.importance = scores[slot.id]
                slot.facts.importance_recomputed = self.probe.score_recomputed(slot)
                slot.facts.own_error = own_errors[slot.id]
                slot.facts.source_gain = max([1.0, *(gains.get(source, 1.0) for source in slot.facts.sources)])
        self._planned_raw_bytes = self._ledger.step_raw_bytes
        for slot in self._table:
            if slot.seen.num_saves:  # else its tensors were never a slot's
                self.publish(slot)

    def _sampled(self) -> list[Slot]:
        return [slot for slot in self._table if slot.id in self.probe.slots]

    def _largest_bytes(self) -> int:
        return max((slot.seen.raw_bytes for slot in self._table), default=0)

    # -- what is done

    def _decide(self, wish: Wish, *, was_sampled: bool) -> None:
        """Keep all exact where it fits; else plan, when there is something new to plan with."""
        largest = self._largest_bytes()
        room = self._room.for_slots(largest, is_saving=False)
        fits = self._ledger.step_slot_raw_bytes <= room and not self._num_short
        self._is_saving = not fits and (self._is_saving or self._num_short > 0)
        if fits and not wish:
            self._keep_all()
            return
        if not self.is_short and self._num_short < NUM_SHORT:
            return
        if not fits:
            room = self._room.for_slots(largest, is_saving=self._is_saving)
        is_overfull = self.is_short and self._num_short >= NUM_SHORT
        if self.is_short and not self._num_short:
            room = self._room.at_least_planned(room)
        if self.probe.slots and (was_sampled or is_overfull or not self.is_short or self._room.has_changed(room)):
            self._plan(self._sampled(), wish, room)

    def _keep_all(self) -> None:
        if not self.is_short:
            return
        self.is_short, self.outcome = False, None
        for slot in self._table:
            slot.plan.kind, slot.plan.is_recomputed = Kind.KEEP, False
        self.arena.tell(expected_error=0.0, overhead_seconds=0.0)
        self.arena.event("plan", text=f"all {len(self._table)} layers are exact again")

    def _plan(self, slots: list[Slot], wish: Wish, room: float) -> None:
        energy = self.probe.gradient_energy or sum(slot.facts.importance for slot in slots) or 1.0
        saves = {slot.id: self.probe.slots[slot.id].num_saves for slot in slots}
        before, goal = self.outcome, self._goal(wish, room, slots)
        through = {slot.id for slot in slots if slot.facts.is_through_layers}
        for with_logarithms in (False, True):
            menus = {
                slot.id: menu_of(slot, self.speeds, saves[slot.id], energy, with_logarithms=with_logarithms)
                for slot in slots
            }
            menus = anchored(menus, through)
            self.outcome = plan(menus, goal, None if before is None else before.chosen)
            if self.outcome.stored_bytes <= room:
                break
        assert self.outcome is not None
        self._room.note_planned(room)
        self.is_short = True
        for slot in slots:
            use(slot, self.outcome.chosen[slot.id])
        self._tell(before)
        error = math.sqrt(max(0.0, self.outcome.error * self._error_scale))
        self.arena.tell(expected_error=error, overhead_seconds=self.outcome.seconds)
        if wish.max_error and self.outcome.error > wish.max_error**2 / self._error_scale:
            self._say_that_the_budget_is_short(wish)

    def _goal(self, wish: Wish, room: float, slots: list[Slot]) -> Goal:
        """A ratio is of what can be compressed, in float32. What cannot takes nothing off what others may store."""
        if wish.max_error:
            return Goal(room, max_error=wish.max_error**2 / self._error_scale)
        if not wish.ratio:
            return Goal(room, lost_error=LOST_ERROR, max_seconds=self._max_seconds(wish))
        fixed = raw = 0
        for slot in slots:
            num_bytes = self.probe.slots[slot.id].num_saves * slot.seen.raw_bytes
            if slot.facts.lossless is None and (may_compress(slot) or is_recomputable(slot)):
                raw += num_bytes * FLOAT_BYTES // slot.key[2].itemsize
            else:
                fixed += num_bytes if slot.facts.lossless is None else slot.facts.lossless[1]
        return Goal(
            room,
            lost_error=LOST_ERROR,
            wish_bytes=fixed + max(RATIO_SHARE * raw / wish.ratio, ENOUGH_BYTES),
            max_seconds=self._max_seconds(wish),
        )

    def _max_seconds(self, wish: Wish) -> float:
        return math.inf if wish.max_slowdown is None else (wish.max_slowdown - 1.0) * self._plain_seconds

    def _tell(self, before: Plan | None) -> None:
        """A plan that takes bits away or gives them back is an event."""
        now = self.outcome
        assert now is not None
        if before is not None and abs(now.stored_bytes - before.stored_bytes) <= 0.01 * before.stored_bytes:
            return
        error = math.sqrt(now.error * self._error_scale)
        text = f"{now.num_changed} of {len(now.chosen)} layers compressed, expected gradient error {error:.1%}"
        self.arena.event("plan", num_bytes=now.stored_bytes, value=error, text=text)

    def _hear(self, total: Fidelity) -> None:
        """The gradient was measured: sets the planner's errors to scale, and plans anew where the wish is missed."""
        self.arena.event("fidelity", value=total.error)
        self.arena.tell(measured_error=total.error)
        wish = self._wish
        if wish is None or self.outcome is None or not self.outcome.error:
            return
        self._error_scale = max(total.error**2 / self.outcome.error, 1e-6)
        if wish.max_error and total.error > wish.max_error:
            self._plan(self._sampled(), wish, self._room.for_slots(self._largest_bytes(), is_saving=self._is_saving))

    def _say_that_the_budget_is_short(self, wish: Wish) -> None:
        if not self._was_told:
            self._was_told = True
            warnings.warn(
                f"daf: the budget does not give the bits that a gradient error of {wish.max_error:.0%} needs; "
                f"training goes on with all that fit",
                stacklevel=2,
            )

    # -- the stats page

    def _publish_changes(self) -> None:
        for slot in self._table:
            is_news = slot.seen.shown != self._shown(slot) or slot.seen.is_unread != slot.is_never_read
            if slot.seen.num_saves and is_news:
                self.publish(slot)

    def _shown(self, slot: Slot) -> tuple[str, float]:
        if self._wish is not None and slot.plan.kind is Kind.KEEP:
            return "exact", 8.0 * slot.key[2].itemsize
        if self._wish is not None and slot.plan.kind is Kind.RECOMPUTE:
            return "recompute", 0.0
        if slot.plan.is_not_worth_it and not slot.plan.is_recomputed:
            return "exact", 8.0 * slot.key[2].itemsize
        return slot.plan.spec.codec if slot.plan.spec else "", slot.bits

    def publish(self, slot: Slot) -> None:
        """Writes the slot's row on the stats page."""
        codec, bits = slot.seen.shown = self._shown(slot)
        slot.seen.is_unread = slot.is_never_read
        is_kept = self._wish is not None and slot.plan.kind is Kind.KEEP
        self.arena.slot(
            slot.id,
            name=slot.name,
            op=slot.op,
            codec=codec,
            bits=bits,
            raw_bytes=slot.seen.raw_bytes,
            stored_bytes=slot.seen.stored_bytes,
            importance=slot.facts.importance,
            fidelity=1.0 if is_kept or is_exact(slot) else slot.seen.fidelity,
        )


def use(slot: Slot, option: Option) -> None:
    """From the next save on, the slot does as `option` says."""
    slot.plan.kind = option.kind
    slot.plan.is_recomputed = option.kind is Kind.RECOMPUTE and slot.facts.can_recompute and not slot.facts.sources
    if option.spec is not None and option.spec != slot.plan.planned:
        slot.plan.planned = option.spec
    slot.plan.by_size.clear()


def is_sampled(number: int) -> bool:
    """Whether the step of this number, counted from where samples are wanted, is one of them."""
    return number in EARLY_SAMPLES or (number > 0 and number % SAMPLE_EVERY == 0)
