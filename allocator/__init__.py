"""The arena in C: pages, extents, importance index, eviction, one budget; its stats page and front doors.

`Arena` needs the C module; `statspage` is pure Python, so that a sidecar can read pages without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daf.allocator.arena import Arena, Outcome, Stash, StashSpec

__all__ = ["Arena", "Outcome", "Stash", "StashSpec"]

_LAZY = dict.fromkeys(__all__, "daf.allocator.arena")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'daf.allocator' has no attribute {name!r}")
