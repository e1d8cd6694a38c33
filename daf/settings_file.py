"""Settings in a file, the layer below variables and keywords: `daf.toml`, or `[tool.daf]` in `pyproject.toml`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path

from daf.config import ENV_PREFIX, Config, variable
from daf.setting_docs import OTHER_VARIABLES, SETTINGS


def find(folder: Path) -> tuple[Path, dict[str, object]] | None:
    """Return the nearest file with settings, from `folder` upwards, and what it says; None where there is none.

    A file that is no TOML raises ValueError with its path.
    """
    for place in (folder, *folder.parents):
        for name in ("daf.toml", "pyproject.toml"):
            path = place / name
            if path.is_file() and (words := _read(path)) is not None:
                return path, words
    return None


def _read(path: Path) -> dict[str, object] | None:
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        if path.name == "pyproject.toml":  # another tool's to complain about
            return None
        raise ValueError(f"{path}: is no TOML: {error}") from None
    except OSError:
        return None
    return content if path.name == "daf.toml" else content.get("tool", {}).get("daf")


def config(environment: Mapping[str, str]) -> Config:
    """Return what is in force in the working folder with these variables."""
    try:
        folder = Path.cwd()
    except OSError:  # it was removed
        return Config.from_environment(environment)
    return Config.from_environment(layered(environment, folder))


def layered(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return `environment` over what the nearest file says, all as variables."""
    found = find(folder)
    words = found[1] if found else {}
    return {variable(name): _word(value) for name, value in words.items()} | dict(environment)


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return one sentence for each `DAF_*` variable that is nearly, but not, one that DAF reads."""
    names = sorted({*map(variable, SETTINGS), *OTHER_VARIABLES})
    return [
        f"{name} is not read; did you mean {close[0]}?"
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX)
        and name not in names
        and (close := difflib.get_close_matches(name, names, n=1, cutoff=0.8))
    ]
