"""The planner: one option for every slot, so that the gradient errs least and everything fits.

A pure function of the menus (menu.py) and of a goal. For menus that do not depend on each other it starts at the
smallest option everywhere and takes, again and again, the step that lowers the cost most per byte until the bytes are
used up. On menus whose gains shrink (their lower convex hulls) this is the best there is, up to the last step. The cost
is the error; where the error is as good as none it is the time, and the error is held by a multiplier that is bisected.

Options that recompute make menus depend on each other: the noise of a source is in what is recomputed from it. So the
planner goes round a few times, each round pricing these options by the choice of the round before, and the best of the
choices that it met is the plan.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from daf.quant.plan import coupled
from daf.quant.plan.menu import Choice, Kind, Menu, Menus, Option, Total, noise_of, total

GOOD_ERROR = 0.01**2  # a gradient that errs by 1% trains as an exact one does: from there on the faster plan is better
ERROR_CAP = 0.35**2  # what a wish for fewer bytes may cost. Beyond, hardly any of the gradient is left to learn from
LOST_ERROR = (
    0.5  # of the squared gradient: more than that no budget is worth. Memory that is short then is asked for in vain
)
WORTH_TIME = 4.0  # times the squared error: a step as fast as wanted is not worth more
MARGIN = 0.05  # what a change of plan must gain
NUM_ROUNDS = 4
NUM_HALVINGS = 12

Cost = Callable[[Option], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """What to plan for. Errors are squared (menu.py).

    max_bytes    what there is room for. No plan takes more if there is one that does not and keeps `lost_error`
    wish_bytes   what the user would like to store at most: kept as long as the error stays under the cap
    max_error    if set: the fewest bytes with no more than this error
    good_error   below this, errors are alike and the fastest plan is taken
    max_seconds  what a step may take longer, as long as bits can do instead: unless that doubles the error
    """

    max_bytes: float = math.inf
    wish_bytes: float = math.inf
    max_error: float | None = None
    good_error: float = GOOD_ERROR
    error_cap: float = ERROR_CAP
    lost_error: float = math.inf
    max_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Plan:
    """The option of each slot, and what they come to.

    is_met   it fits the room, and a wish that was made is fulfilled
    """

    chosen: Choice
    stored_bytes: int
    error: float
    seconds: float
    is_met: bool

    @property
    def num_changed(self) -> int:
        """Slots whose content is not just kept."""
        return sum(option.kind is not Kind.KEEP for option in self.chosen.values())


def plan(menus: Menus, goal: Goal, before: Mapping[int, Option] | None = None) -> Plan:
    """The best choice for `goal`. `before`: the choice in force, which is left only for a gain."""
    menus = {slot_id: menu for slot_id, menu in menus.items() if menu}
    chosen = _choose(menus, goal)
    if before:
        chosen = _stay(menus, goal, chosen, before)
    sums = total(chosen)
    is_met = sums.stored_bytes <= min(goal.max_bytes, goal.wish_bytes)
    if goal.max_error is not None:
        is_met = is_met and sums.error <= goal.max_error * (1 + 1e-9)
    return Plan(chosen, sums.stored_bytes, sums.error, sums.seconds, is_met)


def _choose(menus: Menus, goal: Goal) -> Choice:
    if goal.max_error is not None:
        return _best(menus, goal.max_bytes, _error, enough=goal.max_error)
    room = min(goal.max_bytes, goal.wish_bytes)
    kept = _all_kept(menus)
    if kept is not None and total(kept).stored_bytes <= room:
        return kept  # by far the most frequent plan, and nothing can be better
    chosen = _best(menus, room, _error)
    sums = total(chosen)
    if room < goal.max_bytes and (sums.error > goal.error_cap or sums.stored_bytes > room):
        return _best(menus, goal.max_bytes, _error, enough=goal.error_cap)
    if sums.error > goal.lost_error:
        return _best(menus, math.inf, _error, enough=goal.lost_error)
    if sums.error <= goal.good_error:
        return _bisect(menus, room, _Aim(_seconds, _error, goal.good_error), chosen)
    if sums.seconds > goal.max_seconds:
        faster = _bisect(menus, room, _Aim(_error, _seconds, goal.max_seconds), _best(menus, room, _seconds))
        if total(faster).error <= max(goal.good_error, WORTH_TIME * sums.error):
            return faster
    return chosen


def _all_kept(menus: Menus) -> Choice | None:
    kept = {slot_id: option for slot_id, menu in menus.items() for option in menu if option.kind is Kind.KEEP}
    return kept if len(kept) == len(menus) else None


@dataclass(frozen=True, slots=True)
class _Aim:
    """Least `cost` with at most `limit` of `bound`."""

    cost: Cost
    bound: Cost
    limit: float

    def is_met(self, sums: Total) -> bool:
        return _of(sums, self.bound) <= self.limit

    def weighed(self, weight: float) -> Cost:
        return lambda option: self.cost(option) + weight * self.bound(option)


def _bisect(menus: Menus, room: float, aim: _Aim, best: Choice) -> Choice:
    """The least cost whose bound holds, by the multiplier of the bound. `best`: where the bound holds, if it can."""
    low, high = -9.0, 9.0  # powers of ten
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        chosen = _best(menus, room, aim.weighed(10.0**middle))
        sums = total(chosen)
        if not aim.is_met(sums):
            low = middle
            continue
        high = middle
        if sums.stored_bytes <= room and _of(sums, aim.cost) <= _of(total(best), aim.cost):
            best = chosen
    return best


def _error(option: Option) -> float:
    return option.error


def _seconds(option: Option) -> float:
    return option.seconds


def _of(sums: Total, cost: Cost) -> float:
    return sums.error if cost is _error else sums.seconds


def _best(menus: Menus, room: float, cost: Cost, enough: float = 0.0) -> Choice:
    """Least cost in the room, or the fewest bytes of which it is `enough`. Goes round where menus depend on each other.

    The first round prices nothing that is recomputed, so it recomputes what it can.
    """
    found = best = _greedy(menus, menus, room, cost, enough)
    if not any(option.needs for menu in menus.values() for option in menu):
        return best
    for _ in range(NUM_ROUNDS):
        before, found = found, _greedy(menus, _priced(menus, found), room, cost, enough)
        if found == before:
            break
        if _rank(found, room, cost, enough) < _rank(best, room, cost, enough):
            best = found
    settled = coupled.choose(menus, room, _weights(cost), enough)
    if settled is not None and _rank(settled, room, cost, enough) < _rank(best, room, cost, enough):
        best = settled
    return best


def _weights(cost: Cost) -> coupled.Weights:
    """Costs are linear."""
    return coupled.Weights(cost(Option(Kind.KEEP, 0, 1.0)), cost(Option(Kind.KEEP, 0, 0.0, 1.0)))


def _rank(chosen: Choice, room: float, cost: Cost, enough: float) -> tuple[float, float, float]:
    """Less is better: what is too much, what it costs above what is enough, the bytes."""
    sums = total(chosen)
    coupling = sums.error - sum(option.error for option in chosen.values())
    costs = sum(cost(option) for option in chosen.values()) + (coupling if cost is not _seconds else 0.0)
    return max(0.0, sums.stored_bytes - room), max(costs, enough), sums.stored_bytes


def _priced(menus: Menus, chosen: Choice) -> Menus:
    """Menus with the errors that options have beside what is chosen for the other slots."""
    passes: dict[int, float] = {}
    for option in chosen.values():
        for source in option.needs:
            passes[source] = passes.get(source, 0.0) + option.passes
    known: dict[int, float] = {}

    def price(option: Option, slot_id: int) -> Option:
        incoming = sum(noise_of(chosen, source, known) for source in option.needs)
        extra = option.passes * incoming + passes.get(slot_id, 0.0) * (option.noise + incoming)
        return replace(option, error=option.error + extra) if extra else option

    return {slot_id: [price(option, slot_id) for option in menu] for slot_id, menu in menus.items()}


@dataclass(frozen=True, slots=True)
class _Step:
    """What an option costs, and which of the menu it is."""

    stored_bytes: int
    cost: float
    index: int


def _greedy(menus: Menus, priced: Menus, room: float, cost: Cost, enough: float) -> Choice:
    """From the smallest options on, the step that gains most per byte, until the bytes are used or the cost is low."""
    hulls = {
        slot_id: _hull([_Step(o.stored_bytes, cost(o), i) for i, o in enumerate(menu)])
        for slot_id, menu in priced.items()
    }
    at = dict.fromkeys(hulls, 0)
    num_bytes = sum(steps[0].stored_bytes for steps in hulls.values())
    costs = sum(steps[0].cost for steps in hulls.values())
    heap = [(-_gain(steps[0], steps[1]), slot_id) for slot_id, steps in hulls.items() if len(steps) > 1]
    heapq.heapify(heap)
    while heap and costs > enough:
        _, slot_id = heapq.heappop(heap)
        steps, index = hulls[slot_id], at[slot_id]
        step, after = steps[index], steps[index + 1]
        if num_bytes + after.stored_bytes - step.stored_bytes > room:
            continue  # a smaller step of another slot may still fit
        at[slot_id] = index + 1
        num_bytes += after.stored_bytes - step.stored_bytes
        costs += after.cost - step.cost
        if index + 2 < len(steps):
            heapq.heappush(heap, (-_gain(after, steps[index + 2]), slot_id))
    return {slot_id: menus[slot_id][steps[at[slot_id]].index] for slot_id, steps in hulls.items()}


def _hull(steps: list[_Step]) -> list[_Step]:
    """The options worth taking: from the smallest on, each costs less, and gains per byte only shrink."""
    kept: list[_Step] = []
    for step in sorted(steps, key=lambda step: (step.stored_bytes, step.cost)):
        if kept and step.cost >= kept[-1].cost:
            continue
        while len(kept) >= 2 and _gain(kept[-2], kept[-1]) <= _gain(kept[-2], step):
            kept.pop()
        kept.append(step)
    return kept


def _gain(before: _Step, after: _Step) -> float:
    return (before.cost - after.cost) / max(1, after.stored_bytes - before.stored_bytes)


def _stay(menus: Menus, goal: Goal, chosen: Choice, before: Mapping[int, Option]) -> Choice:
    """Takes back the changes that gain least, as long as all of them together are worth no more than the margin."""
    same = {slot_id: _same(menus[slot_id], option) for slot_id, option in before.items() if slot_id in menus}
    changed = {
        slot_id: option for slot_id, option in same.items() if option is not None and option is not chosen[slot_id]
    }
    room = total(chosen).stored_bytes if goal.max_error is not None else min(goal.max_bytes, goal.wish_bytes)
    result = _take_back(chosen, changed, room)
    is_worth_it = _exceeds(total(result), total(chosen), MARGIN)
    return chosen if is_worth_it else result


def _take_back(chosen: Choice, changed: Choice, room: float) -> Choice:
    result, sums = dict(chosen), total(chosen)
    limit = sums
    for slot_id in sorted(changed, key=lambda slot_id: abs(changed[slot_id].error - chosen[slot_id].error)):
        old, new = changed[slot_id], chosen[slot_id]
        trial = Total(
            sums.stored_bytes + old.stored_bytes - new.stored_bytes,
            sums.error + old.error - new.error,
            sums.seconds + old.seconds - new.seconds,
        )
        if trial.stored_bytes <= max(room, limit.stored_bytes) and not _exceeds(trial, limit, MARGIN):
            sums, result[slot_id] = trial, old
    return result


def _exceeds(sums: Total, limit: Total, margin: float) -> bool:
    return sums.error > limit.error * (1 + margin) or sums.seconds > limit.seconds * (1 + margin)


def _same(menu: Menu, option: Option) -> Option | None:
    """The option of a new menu that does what `option` of an older one did."""
    for other in menu:
        if other.kind is option.kind and other.spec == option.spec and other.needs == option.needs:
            return other
    return None
