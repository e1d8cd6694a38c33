"""Trees of bytes, as the page draws them: `{"name", "bytes", "children"}`, largest child first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

SMALL_SHARE = 0.002  # of the whole: smaller parts are one part
MAX_DEPTH = 24


class Node:
    """One part while a tree is built."""

    __slots__ = ("children", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0
        self.children: dict[str, Node] = {}

    def add(self, names: Sequence[str], num_bytes: int) -> None:
        node = self
        node.num_bytes += num_bytes
        for name in names[:MAX_DEPTH]:
            node = node.children.setdefault(name, Node())
            node.num_bytes += num_bytes


def build(name: str, parts: Iterable[tuple[Sequence[str], int]]) -> dict[str, Any]:
    """Return the tree of `parts`: the names from the root down, and the bytes at their end."""
    root = Node()
    for names, num_bytes in parts:
        if num_bytes > 0:
            root.add(names, num_bytes)
    return _shown(name, root, SMALL_SHARE * root.num_bytes)


def _shown(name: str, node: Node, least_bytes: float) -> dict[str, Any]:
    children = sorted(node.children.items(), key=lambda item: (-item[1].num_bytes, item[0]))
    large = [_shown(child, part, least_bytes) for child, part in children if part.num_bytes >= least_bytes]
    rest = sum(part.num_bytes for _, part in children if part.num_bytes < least_bytes)
    if rest:
        large.append({"name": f"{len(children) - len(large)} smaller", "bytes": rest, "children": []})
    return {"name": name, "bytes": node.num_bytes, "children": large}
