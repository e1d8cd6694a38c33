"""The files of the live page by the names they are served under.

The chart library is uPlot (50 times smaller than plotly's bundle, and a frame of it takes milliseconds). It is not kept
here: the package `uplot-python` ships it, and it is served from where that package is installed.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib

PAGE_DIR = pathlib.Path(__file__).parent / "page"
LIBRARY_FILES = ("uPlot.iife.js", "uPlot.min.css")
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@functools.cache
def page_files() -> dict[str, pathlib.Path]:
    """Return every file the page may ask for, by name. What is not in here is not served."""
    files = {path.name: path for path in sorted(PAGE_DIR.iterdir()) if path.suffix in MEDIA_TYPES}
    library = _library_dir()
    return files | {name: library / name for name in LIBRARY_FILES if (library / name).is_file()}


def media_type(name: str) -> str:
    """Return the media type to serve `name` with.

    >>> media_type("app.js")
    'text/javascript; charset=utf-8'
    """
    return MEDIA_TYPES[pathlib.PurePath(name).suffix]


def _library_dir() -> pathlib.Path:
    # Found, not imported: the package's own code, and the notebook machinery it needs, stay out of the sidecar.
    spec = importlib.util.find_spec("uplot")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the chart library is missing: pip install uplot-python")
    return pathlib.Path(spec.origin).parent / "static"
