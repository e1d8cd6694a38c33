"""The files of the live page by the names they are served under.

The chart library is uPlot (50 times smaller than plotly's bundle, and a frame of it takes milliseconds). It is not kept
in the repo: `scripts/chart-library` fetches it by its hash when DAF is built, and wheels carry it.
"""

from __future__ import annotations

import functools
import pathlib

PAGE_DIR = pathlib.Path(__file__).parent / "page"
LIBRARY_DIR = pathlib.Path(__file__).parent / "library"
LIBRARY_FILES = ("uPlot.iife.js", "uPlot.min.css")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@functools.cache
def page_files() -> dict[str, pathlib.Path]:
    """Return every file the page may ask for, by name. What is not in here is not served.

    The rooms of the folder are not part of the names: modules import each other as neighbours wherever they lie.
    """
    files = {path.name: path for path in sorted(PAGE_DIR.rglob("*")) if path.suffix in MEDIA_TYPES}
    return files | {name: library_file(name) for name in LIBRARY_FILES}


def media_type(name: str) -> str:
    """Return the media type to serve `name` with.

    >>> media_type("app.js")
    'text/javascript; charset=utf-8'
    """
    return MEDIA_TYPES[pathlib.PurePath(name).suffix]


def library_file(name: str) -> pathlib.Path:
    """Return where a file of the chart library is; raise FileNotFoundError that says how to get it."""
    path = LIBRARY_DIR / name
    if not path.is_file():
        raise FileNotFoundError(f"the dashboard's chart library is missing: run scripts/chart-library ({path})")
    return path
