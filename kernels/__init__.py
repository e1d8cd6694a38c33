"""Bit-plane codecs in C and Triton: reduce, encode, decode. Knows nothing of autograd, arenas or policy."""

from daf.kernels.coder import Coder, HostPlanes, Spec, StashError, available_isas, choose_bits, coder, isa, set_isa

__all__ = [
    "Coder",
    "HostPlanes",
    "Spec",
    "StashError",
    "available_isas",
    "choose_bits",
    "coder",
    "isa",
    "set_isa",
]
