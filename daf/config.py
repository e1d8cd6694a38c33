"""Every setting of DAF in one frozen object, read from `DAF_*` variables or from `daf.Session(...)`.

Both ways go through the same table of readers, so a value means the same wherever it is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daf.sizes import format_bytes, parse_bytes, parse_percent

ENV_PREFIX = "DAF_"
# Part of what is free when the run starts: the rest is for what DAF does not manage (code, libraries, the system).
AUTO_BUDGET_FRACTION = 0.8
_ON = {"on", "1", "true", "yes"}
_OFF = {"off", "0", "false", "no", ""}
_NO_WISH = {"none", "off", ""}


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """A number of bytes, or a part of what is free when the run starts."""

    num_bytes: int = 0
    fraction_of_free: float = 0.0

    def resolve(self, free_bytes: int) -> int:
        return self.num_bytes or int(self.fraction_of_free * free_bytes)

    def __str__(self) -> str:
        return format_bytes(self.num_bytes) if self.num_bytes else f"{self.fraction_of_free:.0%} of what is free"


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What is in force. `Config.read({...})` takes the words that users write; the fields hold their meaning."""

    budget: Budget = Budget(fraction_of_free=AUTO_BUDGET_FRACTION)
    bits: int | str = "auto"
    ratio: float | None = None
    max_error: float | None = None
    max_slowdown: float | None = 1.1
    floor: int = 1
    spill: str = ""
    page_bytes: int = 4096
    cpu_allocator: bool = True
    packing: str = "inline"
    rounding: str = "nearest"
    sidecar: str = "off"
    name: str = ""
    trace: str = ""
    profiling: bool = False
    deterministic: bool = False

    @classmethod
    def read(cls, words: Mapping[str, object]) -> Config:
        """Return the config that `words` (setting name to value) describe; raise ValueError for one that cannot be."""
        unknown = sorted(set(words) - set(_READERS))
        if unknown:
            raise ValueError(f"there is no setting {unknown[0]!r}; the settings are {', '.join(sorted(_READERS))}")
        return cls(**{name: _READERS[name](name, value) for name, value in words.items()})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Return the config that the `DAF_*` variables describe; variables that are no setting are not looked at."""
        words = {name: environment[variable(name)] for name in _READERS if variable(name) in environment}
        try:
            return cls.read(words)
        except ValueError as error:
            raise ValueError(f"{ENV_PREFIX}{error}") from None


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def _refuse(name: str, value: object, right: str) -> ValueError:
    return ValueError(f"{name.upper()}={value!s}: cannot be read; write {right}")


def _budget(name: str, value: object) -> Budget:
    right = "2GiB, 512MB, 50% (of what is free) or auto"
    if isinstance(value, Budget):
        return value
    text = str(value).strip()
    if text.lower() == "auto":
        return Budget(fraction_of_free=AUTO_BUDGET_FRACTION)
    try:
        percent = parse_percent(text)
        budget = Budget(fraction_of_free=percent) if percent is not None else Budget(num_bytes=parse_bytes(text))
    except ValueError:
        raise _refuse(name, value, right) from None
    if budget.num_bytes <= 0 and not 0 < budget.fraction_of_free <= 1:
        raise _refuse(name, value, right)
    return budget


def _bits(name: str, value: object) -> int | str:
    text = str(value).strip().lower()
    if text in {"auto", "lossless", "off"}:
        return text
    if text.isdecimal() and 1 <= int(text) <= 8:
        return int(text)
    raise _refuse(name, value, "auto, lossless, off or a width from 1 to 8")


def _ratio(name: str, value: object) -> float | None:
    text = str(value).strip().lower().removesuffix("x")
    if text in _NO_WISH:
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if 1 <= ratio <= 1000:
        return ratio
    raise _refuse(
        name, value, "how many times less to store than plain torch does, such as 16 or 20x; none: no such wish"
    )


def _max_error(name: str, value: object) -> float | None:
    text = str(value).strip()
    if text.lower() in _NO_WISH:
        return None
    try:
        error = parse_percent(text)
        error = float(text) if error is None else error
    except ValueError:
        error = -1.0
    if 0 <= error <= 1:
        return error or None
    raise _refuse(name, value, "the relative error that the gradient may have, such as 0.1 or 10%; 0: no such target")


def _max_slowdown(name: str, value: object) -> float | None:
    text = str(value).strip().lower().removesuffix("x")
    if text in _NO_WISH:
        return None
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = 0.0
    if 1 <= slowdown <= 100:
        return slowdown
    raise _refuse(name, value, "how many times as long a step may take as in plain torch, such as 1.3; none: no bound")


def _spill(name: str, value: object) -> str:
    text = str(value).strip()
    if text.lower() in _OFF:
        return ""
    folder = Path(text).expanduser()
    if folder.is_dir():
        return str(folder)
    raise _refuse(name, value, "a folder that exists, for saved activations that memory has no room for")


def _floor(name: str, value: object) -> int:
    text = str(value).strip()
    if text.isdecimal() and int(text) <= 8:
        return int(text)
    raise _refuse(name, value, "the number of planes a stash always keeps, 0 to 8")


def _page_bytes(name: str, value: object) -> int:
    try:
        num_bytes = parse_bytes(str(value))
    except ValueError:
        num_bytes = 0
    if 512 <= num_bytes <= 2**20 and num_bytes & (num_bytes - 1) == 0:
        return num_bytes
    raise _refuse(name, value, "a power of two from 512 to 1MiB, such as 4KiB")


def _flag(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text in _ON | _OFF:
        return text in _ON
    raise _refuse(name, value, "on or off")


def _packing(name: str, value: object) -> str:
    text = str(value).strip().lower()
    if text in {"auto", "inline", "worker", "device"}:
        return text
    raise _refuse(name, value, "auto, inline, worker or device")


def _rounding(name: str, value: object) -> str:
    text = str(value).strip().lower()
    if text in {"nearest", "stochastic"}:
        return text
    raise _refuse(name, value, "nearest or stochastic")


def _sidecar(name: str, value: object) -> str:
    text = str(value).strip().lower()
    host, colon, port = text.rpartition(":")
    if text in _OFF:
        return "off"
    if text in _ON:
        return "on"
    if colon and host and port.isdecimal() and int(port) < 65536:
        return text
    raise _refuse(name, value, "on, off or an address such as 127.0.0.1:8787")


def _text(_name: str, value: object) -> str:
    return str(value)


_READERS: dict[str, Callable[[str, object], Any]] = {
    "budget": _budget,
    "bits": _bits,
    "ratio": _ratio,
    "max_error": _max_error,
    "max_slowdown": _max_slowdown,
    "floor": _floor,
    "spill": _spill,
    "page_bytes": _page_bytes,
    "cpu_allocator": _flag,
    "packing": _packing,
    "rounding": _rounding,
    "sidecar": _sidecar,
    "name": _text,
    "trace": _text,
    "profiling": _flag,
    "deterministic": _flag,
}
