"""The allocation profile that a run wrote beside its stats page, as tree, as lines and as modules.

The file is another process's: whatever is in it that is no profile counts as no profile.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from daf.server.memory.tree import build

SUFFIX = ".profile"
MAX_BYTES = 64 << 20
NUM_LINES = 20
_INNER = (f"{os.sep}site-packages{os.sep}", f"{os.sep}torch{os.sep}", "<frozen")


def read_profile(page_path: pathlib.Path) -> dict[str, Any] | None:
    """Return the profile of the run whose stats page is `page_path`; None where it has none."""
    path = page_path.with_suffix(SUFFIX)
    try:
        if path.stat().st_size > MAX_BYTES or path.is_symlink():
            return None
        found = json.loads(path.read_text())
        for stack, num_bytes, num_blocks in found["peak"]:
            _check(found["stacks"][str(stack)], num_bytes, num_blocks)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(found)


def _check(stack: Mapping[str, Any], *numbers: object) -> None:
    if not all(isinstance(number, int) for number in numbers):
        raise TypeError("a profile counts in whole numbers")
    for file, line, function in stack["frames"]:
        if not (isinstance(file, str) and isinstance(line, int) and isinstance(function, str)):
            raise TypeError("a frame is a file, a line and a function")
    if not (isinstance(stack["module"], str) and isinstance(stack["op"], str)):
        raise TypeError("a stack has a module and an op")


def answer_of(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a profile: who held what when tensors took most."""
    return {
        "time": float(profile.get("time", 0.0)),
        "peak_bytes": int(profile.get("peak_bytes", 0)),
        "peak_at": float(profile.get("peak_at", 0.0)),
        "look_share": float(profile.get("look_share", 0.0)),
        "tree": build("peak", (([*_names(stack)], num_bytes) for stack, num_bytes, _ in _peak(profile))),
        "lines": _lines(profile),
        "modules": _modules(profile),
    }


def _peak(profile: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    for number, num_bytes, num_blocks in profile["peak"]:
        yield profile["stacks"][str(number)], num_bytes, num_blocks


def _names(stack: Mapping[str, Any]) -> Iterator[str]:
    for file, line, function in stack["frames"]:
        yield f"{_short(file)}:{line} {function}"
    if stack["module"] and not stack["module"].startswith("after "):
        yield stack["module"]
    if stack["op"]:
        yield stack["op"]


def _lines(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The innermost lines of the user's own code, by the bytes that they hold at the peak."""
    found: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0])
    for stack, num_bytes, num_blocks in _peak(profile):
        if stack["frames"]:
            count = found[line_of(stack)]
            count[0] += num_bytes
            count[1] += num_blocks
    most = sorted(found.items(), key=lambda item: -item[1][0])[:NUM_LINES]
    return [
        {"file": file, "line": line, "function": function, "bytes": num_bytes, "blocks": num_blocks}
        for (file, line, function), (num_bytes, num_blocks) in most
    ]


def line_of(stack: Mapping[str, Any]) -> tuple[str, int, str]:
    """Return file, line and function of the innermost frame that is not in a library, else of the innermost."""
    frames = stack["frames"]
    own = [frame for frame in frames if not any(part in frame[0] for part in _INNER)]
    file, line, function = (own or frames)[-1]
    return file, line, function


def _modules(profile: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: dict[str, int] = defaultdict(int)
    for stack, num_bytes, _ in _peak(profile):
        found[stack["module"] or "outside modules"] += num_bytes
    most = sorted(found.items(), key=lambda item: -item[1])[:NUM_LINES]
    return [{"module": module, "bytes": num_bytes} for module, num_bytes in most]


def _short(file: str) -> str:
    return (
        "/".join(pathlib.PurePath(file).parts[-2:]) if any(part in file for part in _INNER) else os.path.basename(file)
    )
