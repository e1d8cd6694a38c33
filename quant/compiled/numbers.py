"""Slots of compiled graphs by number: the only thing about a slot that stands in a graph.

A compiled graph may come from a cache on disk, in a process that never saw it being made. So the number itself says
what the planner must know of the slot:

    | hash of the place, 39 bits | who reads it, 24 bits: one for each name in READERS |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from daf.quant.ops import node_name

# The order is part of what is on disk: add at the end.
READERS = tuple(map(node_name, (
    "Mm", "Addmm", "Bmm", "Baddbmm", "Convolution", "Gelu", "Silu", "Mish", "Tanh", "Sigmoid", "Softmax",
    "NativeLayerNorm", "NativeGroupNorm", "NativeBatchNorm", "Mul", "Relu",
    "ScaledDotProductFlashAttentionForCpu",
)))  # fmt: skip
_READER_BITS = 24
_HASH_BITS = 39

_places: dict[int, str] = {}  # of the graphs that were compiled in this process


def number_of(place: str, ops: Iterable[str], graph: str) -> int:
    """`graph` tells graphs apart that have places of the same name."""
    digest = hashlib.blake2b(f"{graph}\0{place}".encode(), digest_size=8).digest()
    bits = sum(1 << READERS.index(op) for op in set(ops))
    number = (int.from_bytes(digest, "little") >> (64 - _HASH_BITS)) << _READER_BITS | bits
    _places[number] = place
    return number


def place_of(number: int) -> str:
    return _places.get(number) or f"compiled {number >> _READER_BITS:010x}"


def readers_of(number: int) -> set[str]:
    return {name for bit, name in enumerate(READERS) if number >> bit & 1}
