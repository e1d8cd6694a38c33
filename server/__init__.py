"""The sidecar: reads stats pages, writes commands; REST, events, Prometheus. Never imports torch.

Others use `ensure_running()` (start one, or find the one that runs), `start_beside()` (the same, without waiting) and
`Client` (talk to it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daf.server.client import Client, SidecarError
    from daf.server.process.launch import ensure_running, start_beside

__all__ = ["Client", "SidecarError", "ensure_running", "start_beside"]

_LAZY = {
    "Client": "daf.server.client",
    "SidecarError": "daf.server.client",
    "ensure_running": "daf.server.process.launch",
    "start_beside": "daf.server.process.launch",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'daf.server' has no attribute {name!r}")
