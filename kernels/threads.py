"""How many threads the kernels use: those of torch's own pool, which they find by themselves (threads.h)."""

from __future__ import annotations

from daf.kernels._native import lib


def num_threads() -> int:
    """Return how many threads work that is called from this thread may use now."""
    return int(lib.daf_num_threads())


def limit_threads(most: int) -> None:
    """Cap them for the calling thread; 0 takes the cap away."""
    lib.daf_limit_threads(most)
