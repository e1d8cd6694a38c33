"""How benchmarks report: a table on the terminal, and a JSON file that says on what and how it was measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PACKAGES = ("torch", "transformers", "peft", "numpy", "torch-daf")


def machine() -> dict[str, Any]:
    """Return what a reader needs to judge a number: processor, cores, memory, system."""
    import psutil

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, where installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command() -> str:
    """Return the command line as a reader would type it, without where its rows go."""
    module = getattr(sys.modules["__main__"].__spec__, "name", Path(sys.argv[0]).name).removesuffix(".__main__")
    words = list(sys.argv[1:])
    if "--json" in words[:-1]:
        place = words.index("--json")
        del words[place : place + 2]
    return " ".join(["python -m", module, *(word for word in words if not word.startswith("--json="))])


def write_json(path: str | Path, rows: Iterable[Mapping[str, Any]], **more: Any) -> None:
    """Write `rows` with machine, versions, command and date; further keywords go beside them."""
    content = {
        "command": command(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        **more,
        "rows": list(rows),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def format_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], str]]) -> str:
    """Return the rows as aligned text. `columns`: row key to how its value is written; missing values show as `-`."""
    cells = [[write(row[key]) if row.get(key) is not None else "-" for key, write in columns.items()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
