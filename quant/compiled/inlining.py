"""Which hooks an engine pushes: its own, which torch leaves out of compiled graphs, or a pair that it inlines.

a ratio, a largest error, bits     the pair, from the beginning
the budget alone                   its own; from the first compilation on a budget's pair, whose graphs are plain
                                   torch's where they fit; the pair, once memory was short or the budget fell
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from daf.quant.compiled.dynamo import Compilations
from daf.quant.compiled.pair import Pair, budget_pair, pair
from daf.quant.hooks import Hooks

OwnHooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Inlining:
    """`budget_bytes` asks for the budget, `num_stashes` how many tensors graphs have stashed so far; `wake` puts hooks
    back that were taken off for some steps."""

    def __init__(
        self,
        own: OwnHooks,
        budget_bytes: Callable[[], int],
        num_stashes: Callable[[], int],
        wake: Callable[[], None],
        *,
        is_asked: bool,
    ) -> None:
        self.hooks = Hooks(*(pair().hooks if is_asked else own))
        self.is_complete = is_asked
        self._budget_bytes, self._num_stashes, self._wake = budget_bytes, num_stashes, wake
        self._of_budget: Pair | None = None

    def watched(self) -> AbstractContextManager[None]:
        self._compilations = Compilations(self._before_compiling)
        return self._compilations.watched()

    @property
    def has_silent_graphs(self) -> bool:
        """Whether there may be graphs that save without a word to the engine."""
        return self._of_budget is not None and not self.is_complete

    def step(self, *, is_short: bool) -> bool:
        """A step begins. Returns whether graphs are compiled anew from now on."""
        self._compilations.watch()
        if self.is_complete or not (is_short or self._has_fallen()):
            return False
        self.is_complete = True
        if self._of_budget is None or self._of_budget.spared_bytes or not self._num_stashes():
            self.hooks.change(*pair().hooks)
        return True

    def _before_compiling(self) -> None:
        self._wake()
        if not self.is_complete and self._of_budget is None:
            of_budget = budget_pair(self._budget_bytes())
            if self.hooks.change(*of_budget.hooks):
                self._of_budget = of_budget

    def _has_fallen(self) -> bool:
        return self._of_budget is not None and self._budget_bytes() < self._of_budget.spared_bytes
