"""cffi's module, built from arena.h and backend.h. Only arena.py and its neighbours touch it."""

from typing import Any

ffi: Any
lib: Any
