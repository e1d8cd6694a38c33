"""The runtime folder, and the real stats pages in it."""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Sequence

from daf.errors import DafError
from daf.server.source import Page


def runtime_dir() -> pathlib.Path:
    """Return the folder of stats pages: `$DAF_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/daf`, else `/tmp/daf-<uid>`."""
    if own := os.environ.get("DAF_RUNTIME_DIR"):
        return pathlib.Path(own)
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return pathlib.Path(xdg) / "daf"
    return pathlib.Path(f"/tmp/daf-{os.getuid()}")


def own_folder(path: pathlib.Path) -> None:
    """Make the folder if need be; refuse one that another user could put files into."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise DafError(
            f"{path} must be a folder of yours that only you can use (mode 0700): it is not, so it is left alone"
        )


def discover() -> Sequence[Page]:
    from daf.allocator import statspage

    return statspage.discover()  # type: ignore[no-any-return]
