"""Plans for menus that depend on each other: what is recomputed carries the noise of what it is recomputed from.

For one price of a byte, each slot in turn takes the option that is cheapest beside what the others do: its own error,
the noise that comes in from its sources, the noise that it hands on to whatever is recomputed from it, its bytes. Slots
go from the last to the first, so that what a slot hands on is known when its turn comes. A few turns settle it. The
price is bisected until the bytes fit.

All start out recomputed, and stay so for the first turns: sources then get the bits that all who hang on them are worth
together, which no single one of them would pay for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daf.quant.plan.menu import Choice, Kind, Menu, Menus, Option, Total, noise_of, total

NUM_TURNS = 5
NUM_LOCKED = 2  # turns in which what is recomputed stays so
NUM_HALVINGS = 14
DECADES = 10.0  # the price lies this many powers of ten around that of all bytes for an error of 1


@dataclass(frozen=True, slots=True)
class Weights:
    """What an error of 1 and a second cost."""

    error: float
    seconds: float

    def of(self, option: Option) -> float:
        return self.error * option.error + self.seconds * option.seconds

    def of_total(self, sums: Total) -> float:
        return self.error * sums.error + self.seconds * sums.seconds


def choose(menus: Menus, room: float, weights: Weights, enough: float = 0.0) -> Choice | None:
    """The least cost in the room, or the fewest bytes of which it is `enough`; None where nothing fits."""
    menus = {slot_id: _worth_it(menu, weights) for slot_id, menu in menus.items()}
    most_bytes = sum(max(option.stored_bytes for option in menu) for menu in menus.values())
    unit = max(weights.error, weights.seconds) / max(1, most_bytes)
    low, high = -DECADES, DECADES
    best: Choice | None = None
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        chosen = _settle(menus, weights, unit * 10.0**middle)
        sums = total(chosen)
        if sums.stored_bytes > room:
            low = middle
            continue
        is_enough = weights.of_total(sums) <= enough
        if best is None or not enough or is_enough:
            best = chosen
        low, high = (middle, high) if is_enough and enough else (low, middle)
    return best


def _worth_it(menu: Menu, weights: Weights) -> Menu:
    """Without options that another beats in bytes, cost and noise."""
    kept: list[Option] = []
    for option in sorted(menu, key=lambda one: (one.stored_bytes, weights.of(one), one.noise)):
        if option.needs or not any(
            not one.needs and weights.of(one) <= weights.of(option) and one.noise <= option.noise for one in kept
        ):
            kept.append(option)
    return kept


def _settle(menus: Mapping[int, Menu], weights: Weights, byte_price: float) -> Choice:
    chosen = {slot_id: _start(menu, weights, byte_price) for slot_id, menu in menus.items()}
    order = sorted(menus, reverse=True)
    for turn in range(NUM_TURNS):
        before = dict(chosen)
        _turn(menus, chosen, order, _Prices(weights, byte_price, is_locked=turn < NUM_LOCKED))
        if chosen == before and turn >= NUM_LOCKED:
            break
    return chosen


@dataclass(frozen=True, slots=True)
class _Prices:
    weights: Weights
    byte_price: float
    is_locked: bool


def _start(menu: Menu, weights: Weights, byte_price: float) -> Option:
    return min(menu, key=lambda o: (not o.needs, weights.of(o) + byte_price * o.stored_bytes))


def _turn(menus: Mapping[int, Menu], chosen: Choice, order: list[int], prices: _Prices) -> None:
    noises: dict[int, float] = {}
    for slot_id in chosen:
        noise_of(chosen, slot_id, noises)
    handed_on = dict.fromkeys(chosen, 0.0)  # what noise of energy 1 here costs elsewhere
    error_weight = prices.weights.error
    for slot_id in order:
        passed = handed_on[slot_id]

        def cost(option: Option, passed: float = passed) -> float:
            incoming = sum(noises.get(source, 0.0) for source in option.needs)
            here = prices.weights.of(option) + prices.byte_price * option.stored_bytes
            return here + error_weight * option.passes * incoming + passed * (option.noise + incoming)

        if not (prices.is_locked and chosen[slot_id].kind is Kind.RECOMPUTE):
            chosen[slot_id] = min(menus[slot_id], key=cost)
        option = chosen[slot_id]
        for source in option.needs:
            if source in handed_on:
                handed_on[source] += error_weight * option.passes + passed
