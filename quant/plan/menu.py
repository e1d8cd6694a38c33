"""What can be done with a slot: one menu, and an option for each way of getting its content back in backward.

    kind        resident bytes     error                                milliseconds
    keep        all of them        none                                 none
    recompute   none               that of what it is recomputed from   of working it out again
    compress    those of a width   of that width                        of encoding and decoding
    spill       none               none                                 of writing and reading a file

Bytes and error are those of all tensors that one step saves at the slot. Errors are squared gradient errors over the
gradient's energy, so they add up over slots, and 1 means "as large as the gradient".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from daf.kernels import Spec


class Kind(StrEnum):
    """The four ways, in the order in which memory that runs short goes through them."""

    KEEP = "keep"
    RECOMPUTE = "recompute"
    COMPRESS = "compress"
    SPILL = "spill"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to have a slot's content in backward.

    spec     codec and width, of COMPRESS
    noise    relative energy of the error of the content itself
    needs    ids of the slots that it is recomputed from; their noise is in it too
    passes   what noise of relative energy 1 in any of these adds to `error`
    """

    kind: Kind
    stored_bytes: int
    error: float
    seconds: float = 0.0
    spec: Spec | None = None
    noise: float = 0.0
    needs: tuple[int, ...] = ()
    passes: float = 0.0


Menu = Sequence[Option]
Menus = Mapping[int, Menu]
Choice = dict[int, Option]


@dataclass(frozen=True, slots=True)
class Total:
    """What a choice comes to, with errors counted through whatever is recomputed."""

    stored_bytes: int
    error: float
    seconds: float


def total(choice: Mapping[int, Option]) -> Total:
    noises: dict[int, float] = {}
    error = sum(option.error + option.passes * _incoming(choice, option, noises) for option in choice.values())
    stored_bytes = sum(option.stored_bytes for option in choice.values())
    return Total(stored_bytes, error, sum(option.seconds for option in choice.values()))


def noise_of(choice: Mapping[int, Option], slot_id: int, known: dict[int, float] | None = None) -> float:
    """The noise in a slot's content under a choice, that of its sources included. Slots without a menu are exact."""
    known = {} if known is None else known
    if slot_id not in known:
        option = choice.get(slot_id)
        known[slot_id] = 0.0  # a ring of sources ends here; menus have none
        if option is not None:
            known[slot_id] = option.noise + _incoming(choice, option, known)
    return known[slot_id]


def _incoming(choice: Mapping[int, Option], option: Option, known: dict[int, float]) -> float:
    return sum(noise_of(choice, source, known) for source in option.needs)
