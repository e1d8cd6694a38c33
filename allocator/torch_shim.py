"""Builds and loads the C++ shim that torch's CPU allocator needs, once per torch version and source.

The shim must match the C++ of the torch that is installed, so it cannot come ready-made in a wheel of ours. It is one
small file: two seconds of the system's C++ compiler at first use, then a file in the user's cache folder.
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
import tempfile

from daf.errors import DafError

SOURCE = pathlib.Path(__file__).with_name("torch_cpu.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


class ShimError(DafError):
    """The shim could not be built or loaded; the message says what to install."""


def cache_dir() -> pathlib.Path:
    """Return where built shims are kept: $DAF_CACHE_DIR, else $XDG_CACHE_HOME/daf, else ~/.cache/daf."""
    if chosen := os.environ.get("DAF_CACHE_DIR"):
        return pathlib.Path(chosen)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "daf"


def shim_path() -> pathlib.Path:
    """Return the path of the shim for the installed torch, built or not."""
    import torch

    tag = hashlib.sha256(SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:16]
    return cache_dir() / f"torch_cpu-{torch.__version__}-{tag}.so"


def find_compiler() -> list[str]:
    """Return the C++ compiler's command: $CXX, else the first of c++, g++, clang++."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
    wanted = chosen[0] if chosen else " or ".join(_COMPILERS)
    raise ShimError(f"no C++ compiler: {wanted} was not found (Debian: apt install g++)")


def build() -> pathlib.Path:
    """Return the shim's path, compiling it first if this torch and source have none yet."""
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


@functools.cache
def load() -> ctypes.CDLL:
    """Return the shim, built if need be. Loaded once and for all: torch keeps pointers into it."""
    path = build()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ShimError(f"cannot load {path}: {error} (delete the file to have it built anew)") from error
