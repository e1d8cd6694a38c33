"""Bit-plane codecs in C and Triton: reduce, encode, decode. Knows nothing of autograd, arenas or policy."""
