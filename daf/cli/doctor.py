"""`daf doctor`: what DAF finds on this machine, what is in force and why, what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from daf import __version__, settings_file
from daf.autoload import VARIABLE
from daf.cli import checks
from daf.config import Config, variable
from daf.sizes import format_bytes

Line = tuple[str, str]
_PACKAGES = ("torch", "cffi", "psutil", "prometheus-client", "fastapi", "uvicorn", "triton")


@click.command()
def doctor() -> None:
    """Print versions, machine, settings in force and where they come from, and try every part.

    The exit code is 1 where something is broken.
    """
    for title, lines in (
        ("Versions", _versions()),
        ("Machine", _machine()),
        ("Settings", _settings()),
    ):
        click.secho(title, bold=True)
        for name, text in lines:
            click.echo(f"  {name:<20} {text}")
    click.secho("Checks", bold=True)
    found = list(map(_shown, checks.findings()))
    broken = [one.name for one in found if one.state is checks.State.BROKEN]
    if broken:
        raise click.ClickException(f"broken: {', '.join(broken)}")


def _shown(finding: checks.Finding) -> checks.Finding:
    colour = {checks.State.FINE: "green", checks.State.NOTE: "yellow", checks.State.BROKEN: "red"}[finding.state]
    click.echo(f"  {finding.name:<20} {click.style(f'{finding.state:<7}', fg=colour)} {finding.text}")
    return finding


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
    found = settings_file.find(Path.cwd())
    in_file = {variable(name): str(found[0]) for name in found[1]} if found else {}
    for name in Config.__dataclass_fields__:
        source = variable(name) if variable(name) in os.environ else in_file.get(variable(name), "default")
        yield name, f"{str(getattr(config, name)) or '-':<28} ({source})"
