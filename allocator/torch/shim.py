"""Finds and loads the C++ shim that torch's CPU allocator needs: ready-made, else compiled here.

The shim must match the C++ of the torch that is installed. A wheel carries one for every torch minor release that was
known when it was made; before its first use it is tried in a process of its own, since a wrong one would crash. Where
none fits, it is one small file and two seconds of the system's C++ compiler. What was tried or compiled is remembered
in the user's cache folder, by torch's version and the shim's content.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings

from daf.errors import DafError

SOURCE = pathlib.Path(__file__).with_name("cpu_shim.cpp")
READY_MADE = pathlib.Path(__file__).with_name("shims")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


class ShimError(DafError):
    """The shim could not be built or loaded; the message says what to install."""


class ShimWarning(UserWarning):
    """A ready-made shim could not be used; what DAF does instead is in the message."""


def cache_dir() -> pathlib.Path:
    """Return where built shims are kept: $DAF_CACHE_DIR, else $XDG_CACHE_HOME/daf, else ~/.cache/daf."""
    if chosen := os.environ.get("DAF_CACHE_DIR"):
        return pathlib.Path(chosen)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "daf"


def shim_path() -> pathlib.Path:
    """Return the path of the compiled shim for the installed torch, built or not."""
    import torch

    tag = hashlib.sha256(SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:16]
    return cache_dir() / f"torch_cpu-{torch.__version__}-{tag}.so"


def ready_made_path(folder: pathlib.Path = READY_MADE) -> pathlib.Path:
    """Return where the wheel has the shim for the installed torch, if it has one: by minor release and C++ ABI."""
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    return folder / f"torch-{minor}-{'cxx11' if torch.compiled_with_cxx11_abi() else 'old'}.so"


def find_compiler() -> list[str]:
    """Return the C++ compiler's command: $CXX, else the first of c++, g++, clang++."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    wanted = chosen[0] if chosen else " or ".join(_COMPILERS)
    raise ShimError(f"no C++ compiler: {wanted} was not found (Debian: apt install g++)")


def find() -> pathlib.Path:
    """Return the shim to load: the wheel's, if it works here, else one compiled here; ShimError without either."""
    path = ready_made_path()
    if not path.exists():
        return build()
    complaint = trial(path)
    if complaint is None:
        return path
    warnings.warn(f"DAF's ready-made shim {path.name} does not work here: {complaint}", ShimWarning, stacklevel=2)
    return build()


def trial(path: pathlib.Path) -> str | None:
    """Try a shim in a process of its own; return what went wrong. What worked is remembered and not tried again."""
    import torch

    mark = cache_dir() / f"tried-{torch.__version__}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if mark.exists():
        return None
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_ALLOCATOR"}
    command = [sys.executable, "-P", str(SOURCE.with_name("shim_trial.py")), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    except (OSError, subprocess.SubprocessError) as error:
        return f"it could not be tried ({error})"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the trial ended with {done.returncode}"]
        return lines[-1]
    _leave(mark)
    return None


def _leave(mark: pathlib.Path) -> None:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch()
    except OSError:  # no cache: the next process tries again, which takes a second
        return


def build() -> pathlib.Path:
    """Return the compiled shim's path, compiling it first if this torch and source have none yet."""
    path = shim_path()
    if path.exists():
        return path
    compiler = find_compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = pathlib.Path(folder) / path.name
            _compile(compiler, made)
            os.replace(made, path)  # whole or not at all: other ranks may be building the same file
    except OSError as error:
        raise ShimError(f"cannot write to {path.parent}: {error} (DAF_CACHE_DIR names another folder)") from error
    return path


def _compile(compiler: list[str], path: pathlib.Path) -> None:
    import torch

    root = pathlib.Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [*compiler, *_FLAGS, abi, f"-I{root / 'include'}", str(SOURCE), "-o", str(path)]
    result = subprocess.run(
        [*command, f"-L{root / 'lib'}", "-lc10"], capture_output=True, text=True, check=False, timeout=300
    )
    if result.returncode != 0:
        first_error = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip())
        raise ShimError(
            f"{compiler[0]} could not compile {SOURCE.name} against torch {torch.__version__}: {first_error}"
        )


def _torch_library() -> pathlib.Path:
    import torch

    return pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"


@functools.cache
def load() -> ctypes.CDLL:
    """Return the shim, built if need be. Loaded once and for all: torch keeps pointers into it."""
    path = find()
    try:
        ctypes.CDLL(str(_torch_library()), mode=ctypes.RTLD_GLOBAL)  # a ready-made shim names no library of torch's
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ShimError(f"cannot load {path}: {error} (delete the file to have it built anew)") from error
