# The C functions as cffi shows them. Raw pointers are Any here and stay inside this package.
from typing import Any

ffi: Any
lib: Any
