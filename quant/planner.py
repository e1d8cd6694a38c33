"""The planner: from budget and importance to a codec and a width per slot.

Every slot has a menu of options, each with its bytes and the gradient error it is expected to cause (error^2 adds up
over slots). The planner starts at the cheapest option everywhere and takes, again and again, the step that lowers the
error most per byte, until the goal is met. On menus whose gains shrink (their lower convex hulls) this is optimal up to
the last step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sortedcontainers import SortedList

from daf.kernels import Spec


@dataclass(frozen=True, slots=True)
class Option:
    """One way to store a slot. `error` is the squared gradient error that it is expected to cause.

    Without a spec the slot is not stored at all, but follows from another (rectified.py).
    """

    spec: Spec | None
    stored_bytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Goal:
    """What to plan for; the planner stops adding bits at whichever is met first.

    max_bytes   do not store more than this (a budget; or an average width times the number of elements)
    max_error   do not add bits once the expected squared gradient error is this low (a fidelity target)
    """

    max_bytes: float = float("inf")
    max_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The option of each slot, and what they come to. `is_met` is false where even the cheapest options are too big."""

    chosen: dict[int, Option]
    stored_bytes: int
    error: float
    is_met: bool


class _Step(NamedTuple):
    """Going from one option of a slot to the next: sorted by gain per byte, best first."""

    minus_gain_per_byte: float
    slot_id: int
    position: int


Menu = Sequence[Option]


def plan(menus: Mapping[int, Menu], goal: Goal) -> Outcome:
    hulls = {slot_id: hull(menu) for slot_id, menu in menus.items() if menu}
    chosen = {slot_id: options[0] for slot_id, options in hulls.items()}
    num_bytes = sum(option.stored_bytes for option in chosen.values())
    error = sum(option.error for option in chosen.values())
    steps = SortedList(_next_step(slot_id, hulls[slot_id], 1) for slot_id in hulls)
    while steps and error > goal.max_error:
        step = steps.pop(0)
        options = hulls[step.slot_id]
        if step.position >= len(options):
            continue
        before, after = options[step.position - 1], options[step.position]
        if num_bytes + after.stored_bytes - before.stored_bytes > goal.max_bytes:
            continue  # a smaller step of another slot may still fit
        chosen[step.slot_id] = after
        num_bytes += after.stored_bytes - before.stored_bytes
        error += after.error - before.error
        steps.add(_next_step(step.slot_id, options, step.position + 1))
    return Outcome(chosen, num_bytes, error, num_bytes <= goal.max_bytes)


def _next_step(slot_id: int, options: Menu, index: int) -> _Step:
    if index >= len(options):
        return _Step(0.0, slot_id, index)
    before, after = options[index - 1], options[index]
    gain = (before.error - after.error) / (after.stored_bytes - before.stored_bytes)
    return _Step(-gain, slot_id, index)


def hull(menu: Menu) -> list[Option]:
    """The options worth taking: from the cheapest on, each with less error, and gains per byte that only shrink."""
    kept: list[Option] = []
    for option in sorted(menu, key=lambda option: (option.stored_bytes, option.error)):
        if kept and option.error >= kept[-1].error:
            continue
        while len(kept) >= 2 and _gain(kept[-2], kept[-1]) <= _gain(kept[-2], option):
            kept.pop()
        kept.append(option)
    return kept


def _gain(before: Option, after: Option) -> float:
    return (before.error - after.error) / max(1, after.stored_bytes - before.stored_bytes)
