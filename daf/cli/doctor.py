"""`daf doctor`: what DAF finds on this machine, what is in force and why, what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator

import click

from daf import __version__, settings_file
from daf.autoload import VARIABLE
from daf.config import Config, variable
from daf.sizes import format_bytes

Line = tuple[str, str]
_PACKAGES = ("torch", "cffi", "sortedcontainers", "psutil", "prometheus-client", "fastapi", "uvicorn", "triton")


@click.command()
def doctor() -> None:
    """Print versions, processor features, settings in force and where they come from, and what is missing."""
    for title, lines in (
        ("Versions", _versions()),
        ("Machine", _machine()),
        ("Settings", _settings()),
        ("Parts", _parts()),
    ):
        click.secho(title, bold=True)
        for name, text in lines:
            click.echo(f"  {name:<20} {text}")


def _versions() -> Iterator[Line]:
    yield "daf", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed" + (" (only the GPU kernels need it)" if package == "triton" else "")


def _machine() -> Iterator[Line]:
    from daf.session import free_bytes

    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
    yield "free memory", format_bytes(free_bytes())
    for name, why in (("cc", "to build DAF from source"), ("c++", "to serve torch's CPU tensors from the arena")):
        yield f"{name} compiler", shutil.which(name) or f"not found; needed {why}"


def _settings() -> Iterator[Line]:
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        yield VARIABLE, f"not set: DAF is off; {VARIABLE}=daf switches it on"
    elif wanted.lower() == "daf":
        yield VARIABLE, "daf: DAF is on in processes that import torch"
    else:
        yield VARIABLE, f"{wanted}: not known, DAF is off"
    try:
        config = settings_file.config(os.environ)
    except ValueError as error:
        yield "settings", f"DAF would stay off: {error}"
        return
    for name in Config.__dataclass_fields__:
        source = variable(name) if variable(name) in os.environ else "default"
        yield name, f"{str(getattr(config, name)) or '-':<28} ({source})"


def _parts() -> Iterator[Line]:
    yield "kernels", _try(_kernels)
    yield "arena", _try(_arena)
    yield "cuda", _try(_cuda)
    yield "torch's internals", _try(_internals)


def _internals() -> str:
    """Private names of torch that DAF uses and the installed one lacks, with what is lost."""
    from daf.quant.torch_internals import internals, missing

    lacking = "; ".join(f"no {internal.name}: {internal.loss}" for internal in missing())
    return lacking or f"all {len(internals())} are here"


def _try(probe: object) -> str:
    try:
        return str(probe())  # type: ignore[operator]
    except Exception as error:
        return f"not working: {error}"


def _kernels() -> str:
    from daf import kernels

    return f"{kernels.isa()} in use; this processor has {', '.join(kernels.available_isas())}"


def _arena() -> str:
    from daf.allocator import Arena

    with Arena(budget_bytes=1 << 20, publish=False) as arena:
        return f"works; pages of {format_bytes(arena.page_bytes)}"


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device: DAF works on the CPU"
    has_triton = importlib.util.find_spec("triton") is not None
    return f"{torch.cuda.get_device_name()}, {'with' if has_triton else 'not compressed without'} Triton"
