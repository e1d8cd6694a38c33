"""What `daf doctor` tries: each check says what it found, and whether that is fine, worth knowing, or broken."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from daf import settings_file
from daf.sizes import format_bytes


class State(StrEnum):
    """FINE, or worth knowing (NOTE), or something that DAF promises does not work here (BROKEN)."""

    FINE = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    text: str
    state: State = State.FINE


def findings() -> Iterator[Finding]:
    """Run every check, one after the other; one that fails in an unforeseen way is broken too."""
    for name, check in _CHECKS.items():
        try:
            text, state = check()
        except Exception as error:
            text, state = f"not working: {error}", State.BROKEN
        yield Finding(name, text, state)


def _settings() -> tuple[str, State]:
    try:
        settings_file.config(os.environ)
    except ValueError as error:
        return f"DAF would stay off: {error}", State.BROKEN
    if sentences := settings_file.misspelt(os.environ):
        return " ".join(sentences), State.BROKEN
    return "all can be read", State.FINE


def _runtime_folder() -> tuple[str, State]:
    from daf.allocator.stats.runtime_dir import make_runtime_dir

    folder = make_runtime_dir()
    with tempfile.TemporaryFile(dir=folder):
        return f"{folder} can be written", State.FINE


def _kernels() -> tuple[str, State]:
    from daf import kernels

    return f"{kernels.isa()} in use; this processor has {', '.join(kernels.available_isas())}", State.FINE


def _arena() -> tuple[str, State]:
    from daf.allocator import Arena

    with Arena(budget_bytes=1 << 20, publish=False) as arena:
        return f"works; pages of {format_bytes(arena.page_bytes)}", State.FINE


def _shim() -> tuple[str, State]:
    """The part that puts torch's CPU tensors into the arena: without it the budget covers activations only."""
    from daf.allocator.torch import shim

    try:
        shim.load()
    except shim.ShimError as error:
        return f"torch's CPU tensors stay outside the budget: {error}", State.BROKEN
    kind = "ready-made" if shim.ready_made_path().exists() else "compiled here"
    return f"{kind}, loads; torch's CPU tensors come from the arena", State.FINE


def _internals() -> tuple[str, State]:
    """Private names of torch that DAF uses and the installed one lacks, with what is lost."""
    from daf.quant.torch_internals import internals, missing

    lacking = "; ".join(f"no {internal.name}: {internal.loss}" for internal in missing())
    return (lacking, State.NOTE) if lacking else (f"all {len(internals())} are here", State.FINE)


def _sidecar() -> tuple[str, State]:
    from daf.allocator.stats.runtime_dir import make_runtime_dir
    from daf.server.app import create_app  # everything that the process needs can be imported
    from daf.server.process.launch import running
    from daf.server.process.runfile import is_held
    from daf.server.settings import Settings

    assert create_app is not None
    settings = Settings(make_runtime_dir())
    if found := running(settings):
        return f"answers at {found.address}", State.FINE
    if is_held(settings.lock_path):
        return f"runs, but does not answer: see {settings.runtime_dir / 'sidecar.log'}", State.BROKEN
    return "not running; `daf run` and `daf serve` start it", State.FINE


def _port() -> tuple[str, State]:
    from daf.allocator.stats.runtime_dir import make_runtime_dir
    from daf.server.process.launch import running
    from daf.server.settings import DEFAULT_HOST, DEFAULT_PORT, Settings

    found = running(Settings(make_runtime_dir()))
    if found and found.address.endswith(f":{DEFAULT_PORT}"):
        return f"{DEFAULT_PORT} is the sidecar's", State.FINE
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            trial.bind((DEFAULT_HOST, DEFAULT_PORT))
            return f"{DEFAULT_PORT} is free", State.FINE
    return f"{DEFAULT_PORT} is another program's: the sidecar takes one that is free", State.NOTE


def _cuda() -> tuple[str, State]:
    import importlib.util

    import torch

    if not torch.cuda.is_available():
        return "no CUDA device: DAF works on the CPU", State.FINE
    has_triton = importlib.util.find_spec("triton") is not None
    text = f"{torch.cuda.get_device_name()}, {'with' if has_triton else 'not compressed without'} Triton"
    return text, State.FINE if has_triton else State.NOTE


_CHECKS: dict[str, Callable[[], tuple[str, State]]] = {
    "settings": _settings,
    "runtime folder": _runtime_folder,
    "kernels": _kernels,
    "arena": _arena,
    "shim": _shim,
    "torch's internals": _internals,
    "sidecar": _sidecar,
    "port": _port,
    "cuda": _cuda,
}
