"""From what was learned of a slot to its menu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daf.kernels import Spec
from daf.quant.encode.choice import LOGARITHM_WIDTH
from daf.quant.plan.menu import Kind, Option
from daf.quant.plan.readers import is_free, is_logarithm, may_compress
from daf.quant.recompute.batchnorm_relu import RECOMPUTE_ERROR

if TYPE_CHECKING:
    from collections.abc import Collection

    from daf.quant.plan.speed import Speeds
    from daf.quant.saved.slots import Slot

# What a codec's error must be lower by to be worth its time: columns take twice as long as runs, a tree of four levels
# four times as long as min/max of four bits, which is often as good.
COLUMN_PRICE = 1.05
MAX_CHAIN = 3  # in a block: q and k, their softmax, what is made of that
EXACT_ONLY = 1e9  # what a logarithm makes of noise in its sources: it follows from exact ones alone
TREE_PRICE = (1.0, 1.0, 1.0, 1.1, 1.25)


# Squared relative error of the gradient that one op makes. Beyond, an optimizer that scales each weight's steps by its
# own gradients (Adam) slows this weight down, however little it adds to the error of the whole.
OWN_CAP = 0.5**2


def menu_of(
    slot: Slot, speeds: Speeds, num_saves: int = 1, gradient_energy: float = 1.0, *, with_logarithms: bool = False
) -> list[Option]:
    """All that can be done with the slot, with bytes, error and seconds of all that a step saves there."""
    facts, raw_bytes = slot.facts, num_saves * slot.seen.raw_bytes
    importance = num_saves * facts.importance / gradient_energy
    options = [Option(Kind.KEEP, raw_bytes, 0.0)]
    if facts.lossless is not None:
        spec, stored_bytes = facts.lossless
        seconds = speeds.of(spec, raw_bytes)
        return [*options, Option(Kind.COMPRESS, num_saves * stored_bytes, 0.0, seconds, spec)]
    if is_logarithm(slot) and facts.sources and facts.is_through_layers:
        seconds = num_saves * facts.recompute_seconds
        options.append(Option(Kind.RECOMPUTE, 0, 0.0, seconds, needs=facts.sources, passes=EXACT_ONLY))
    if not may_compress(slot) and not (with_logarithms and is_logarithm(slot)):
        return options
    if not importance and not is_free(slot):
        return options  # no gradient came by, or nobody saw it: what noise would do here is not known
    passes = importance * facts.source_gain
    if facts.sources and facts.is_through_layers and not is_logarithm(slot):
        seconds = num_saves * facts.recompute_seconds
        options.append(Option(Kind.RECOMPUTE, 0, 0.0, seconds, needs=facts.sources, passes=passes))
    elif facts.sources and not facts.is_through_layers:
        seconds = speeds.of(None, raw_bytes)
        return [*options, Option(Kind.RECOMPUTE, 0, 0.0, seconds, needs=facts.sources, passes=passes)]
    if facts.is_made_to_fit:
        return options
    if facts.can_recompute:
        seconds = speeds.of(None, raw_bytes)
        error = num_saves * facts.importance_recomputed / gradient_energy * RECOMPUTE_ERROR
        options.append(Option(Kind.RECOMPUTE, 0, error, seconds, noise=RECOMPUTE_ERROR))
    for curve in facts.curves:
        for bits in range(LOGARITHM_WIDTH if is_logarithm(slot) else curve.min_bits, len(curve.errors)):
            stored_bytes = num_saves * curve.stored_bytes[bits]
            if stored_bytes < raw_bytes:
                spec, noise = Spec(curve.codec, bits, curve.group), curve.errors[bits]
                if facts.own_error * noise + noise**2 > OWN_CAP:
                    continue
                error = importance * noise * _price(spec)
                seconds = speeds.of(spec, raw_bytes)
                options.append(Option(Kind.COMPRESS, stored_bytes, error, seconds, spec, noise))
    return options


def _price(spec: Spec) -> float:
    """By what a codec's error counts as more than it is, for the time that it takes."""
    price = COLUMN_PRICE if spec.group == "column" else 1.0
    return price * TREE_PRICE[spec.bits] if spec.codec == "meansplit" else price


def anchored(menus: dict[int, list[Option]], through: Collection[int]) -> dict[int, list[Option]]:
    """Without ways that grow too long: backward asks for the last content first, and whatever lies before it on its way
    is worked out for it alone. So at most MAX_CHAIN ways through layers (the slots of `through`) follow each other."""
    depths: dict[int, int] = {}
    found: dict[int, list[Option]] = {}
    for slot_id in sorted(menus):
        found[slot_id], depths[slot_id] = menus[slot_id], 0
        for option in menus[slot_id]:
            if not option.needs:
                continue
            depth = (slot_id in through) + max(depths.get(source, 0) for source in option.needs)
            if depth <= MAX_CHAIN:
                depths[slot_id] = depth
            else:
                found[slot_id] = [one for one in menus[slot_id] if one is not option]
    return found
