"""The arena in C: pages, extents, importance index, eviction, one budget; its stats page and front doors.

`Arena` needs the C module; `statspage` is pure Python, so that a sidecar can read pages without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daf.allocator.arena import Arena, Outcome, Stash, StashSpec
    from daf.allocator.torch.cpu_door import FrontDoorWarning, cpu_arena, install_cpu, uninstall_cpu
    from daf.allocator.torch.cuda_door import (
        cuda_arena,
        device_arena,
        home_stream,
        install_cuda,
        library_path,
        maybe_install_cuda,
    )
    from daf.allocator.torch.memory_stats import (
        max_memory_allocated,
        memory_allocated,
        memory_stats,
        reset_accumulated_memory_stats,
        reset_peak_memory_stats,
    )
    from daf.allocator.torch.memory_summary import memory_summary
    from daf.allocator.trace.recording import start_trace, stop_trace

__all__ = [
    "Arena",
    "FrontDoorWarning",
    "Outcome",
    "Stash",
    "StashSpec",
    "cpu_arena",
    "cuda_arena",
    "device_arena",
    "home_stream",
    "install_cpu",
    "install_cuda",
    "library_path",
    "max_memory_allocated",
    "maybe_install_cuda",
    "memory_allocated",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "start_trace",
    "stop_trace",
    "uninstall_cpu",
]

_MODULES = {
    "arena": ("Arena", "Outcome", "Stash", "StashSpec"),
    "torch.cpu_door": ("FrontDoorWarning", "cpu_arena", "install_cpu", "uninstall_cpu"),
    "torch.cuda_door": (
        "cuda_arena",
        "device_arena",
        "home_stream",
        "install_cuda",
        "library_path",
        "maybe_install_cuda",
    ),
    "torch.memory_stats": (
        "max_memory_allocated",
        "memory_allocated",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
    ),
    "torch.memory_summary": ("memory_summary",),
    "trace.recording": ("start_trace", "stop_trace"),
}
_LAZY = {name: f"daf.allocator.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'daf.allocator' has no attribute {name!r}")
