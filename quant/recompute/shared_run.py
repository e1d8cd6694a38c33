"""Several saved tensors that come out of one computation: done once, handed to all that still wait for theirs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from daf.quant.saved.handles import Handle, Recipe, Recomputed
from daf.quant.saved.layout import Layout


class SharedRun:
    """One call that can be run again, and the contents that it gives. `sources` pass their noise on to them.

    Members are held weakly: each holds the call, and a ring of references would keep the sources stored until the next
    collection of garbage.
    """

    def __init__(self, run: Callable[[], dict[Hashable, Tensor]], sources: tuple[Handle, ...]) -> None:
        self._run = run
        self.sources = sources
        self._members: dict[Hashable, weakref.ref[Recomputed]] = {}

    def member(self, name: Hashable, layout: Layout, dtype: torch.dtype) -> Recomputed:
        """The content called `name`, for a tensor of this layout."""
        recipe = Recipe(lambda: self._restore(name), self.sources)
        derived = Recomputed(recipe, layout, dtype, layout.numel * dtype.itemsize)
        self._members[name] = weakref.ref(derived)
        return derived

    def _restore(self, wanted: Hashable) -> Tensor:
        values = self._run()
        for name, reference in self._members.items():
            other = reference()
            if name != wanted and other is not None and other.num_uses > 0:
                other.decoded = other.fit(values[name])
        return values[wanted]
