"""The allocator's view of a stash and the kernels' planes are one layout, though neither knows the other."""

from __future__ import annotations

from daf.allocator._native import ffi as allocator_ffi
from daf.kernels._native import ffi as kernels_ffi


def layout(ffi: object, name: str) -> list[tuple[str, int, int]]:
    struct = ffi.typeof(name)  # type: ignore[attr-defined]
    return [(field, info.offset, ffi.sizeof(info.type)) for field, info in struct.fields]  # type: ignore[attr-defined]


def test_a_stash_view_is_what_coders_read() -> None:
    assert layout(allocator_ffi, "daf_stash_view_t") == layout(kernels_ffi, "daf_planes_t")
    assert allocator_ffi.sizeof("daf_stash_view_t") == 64
