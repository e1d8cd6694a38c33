"""DAF: a memory budget that a PyTorch training run keeps.

Importing this package does nothing but define names; `daf.Session(...)` or `PYTORCH_ALLOCATOR=daf` switch DAF on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daf import integrations
    from daf.allocator import memory_stats, memory_summary
    from daf.errors import DafError, DafOutOfMemoryError
    from daf.session import Session, active

__version__ = "0.1.0"
__all__ = [
    "DafError",
    "DafOutOfMemoryError",
    "Session",
    "__version__",
    "active",
    "integrations",
    "memory_stats",
    "memory_summary",
]

# Loaded when first asked for: this package is imported wherever torch is, DAF on or off.
_LAZY = {
    "DafError": "daf.errors",
    "DafOutOfMemoryError": "daf.errors",
    "Session": "daf.session",
    "active": "daf.session",
    "memory_stats": "daf.allocator",
    "memory_summary": "daf.allocator",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "integrations":
        return importlib.import_module("daf.integrations")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'daf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
