"""What `daf run` and `daf fidelity` are given: settings, and a script, module or command; the process it becomes."""

from __future__ import annotations

import difflib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import click

from daf.config import Config, variable

LAUNCHED_BY = "DAF_LAUNCHED_BY"  # the pid of the `daf run` that a process stems from, on its stats page too
CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PYTHON = re.compile(r"python[\d.]*")
_OPTIONS = (
    click.option("--budget", help="Bytes that tensors and saved activations may take: 2GiB, 512MB, 50%, auto."),
    click.option("--bits", help="Width of saved activations: auto, 1 to 8, lossless, off."),
    click.option("--ratio", help="With --bits auto: how many times less to store than plain torch does."),
    click.option("--max-error", help="With --bits auto: the relative error that the gradient may have, such as 10%."),
    click.option("--floor", help="Planes that every saved activation keeps, however tight the budget."),
    click.option("--spill", help="A folder for saved activations that the budget has no room for at their floors."),
    click.option("--name", help="What to call this run on the page and in metrics."),
    click.option("--trace", type=click.Path(dir_okay=False), help="Record every allocation to this file."),
)  # fmt: skip


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that set what `DAF_*` variables set."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def script_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-m` and the words of what is to run."""
    command = click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")(
        command
    )
    return click.option("-m", "is_module", is_flag=True, help="Run a module, as `python -m` does.")(command)


def environment_of(settings: Mapping[str, str | None]) -> tuple[Config, dict[str, str]]:
    """Return what will be in force, and the variables that bring it about; an error quotes what cannot be read."""
    from daf import settings_file

    chosen = {name: value for name, value in settings.items() if value is not None}
    variables = {**os.environ, **{variable(name): value for name, value in chosen.items()}}
    try:
        Config.read(chosen)
        return settings_file.config(variables), variables
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def command_of(words: Sequence[str], *, is_module: bool = False) -> list[str]:
    """Return the command that runs a script, a module, or a command line such as `torchrun train.py`.

    What does not exist is an error here, before anything starts.
    """
    first, *rest = words
    if is_module:
        return [sys.executable, "-m", first, *rest]
    path = pathlib.Path(first)
    if path.exists() and not _is_program(path):
        return [sys.executable, first, *rest]
    found = shutil.which(first)
    if found is None:
        raise click.UsageError(_missing(first))
    if is_python(first):
        _require_script(rest)
    return [found, *rest]


def is_python(program: str) -> bool:
    return _PYTHON.fullmatch(pathlib.Path(program).name) is not None


def _is_program(path: pathlib.Path) -> bool:
    """Whether the system runs `path` itself: an executable file that is no Python script."""
    if path.suffix == ".py" or not path.is_file() or not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        start = file.read(128)
    return not (start.startswith(b"PK") or (start.startswith(b"#!") and b"python" in start.split(b"\n")[0]))


def _require_script(words: Sequence[str]) -> None:
    """Look whether the script of `python SCRIPT` is there. After options that take a value nothing is assumed."""
    if words and not words[0].startswith("-") and not pathlib.Path(words[0]).exists():
        raise click.UsageError(_missing(words[0]))


def _missing(word: str) -> str:
    path = pathlib.Path(word)
    names = [str(one) for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(word, names, n=1)
    advice = f"; did you mean {close[0]}?" if close else ""
    kind = "script" if path.suffix == ".py" or path.parent != pathlib.Path() else "script or command"
    return f"there is no {kind} {word!r}{advice}"


def call(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Run `command` to its end, passing signals on; return its pid and return code."""
    child = subprocess.Popen(command, env=dict(environment))

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    # A terminal sends its interrupt to the child as well, so here it is only waited out.
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return child.pid, child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
