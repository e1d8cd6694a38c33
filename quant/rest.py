"""Out of the way: where nothing is to be decided, steps run without any hook of ours.

A run whose steps stay below a part of the budget keeps every saved tensor exact, and is told so by looks: one step in
LOOK_EVERY is seen in full. In the others neither saved tensors nor module calls are followed. Steps are then counted
at the calls of `backward`, and a step's activations are shown as the last look found them. The hooks are back at once
when half of the budget is live, which the arena tells in the middle of an allocation, or when memory runs short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from daf.quant.torch_internals import current_node, has_compiled, next_number

if TYPE_CHECKING:
    from daf.quant.hooks import Hooks
    from daf.quant.plan.policy import Policy
    from daf.quant.saved.ledger import Ledger
    from daf.quant.saved.scope import Scope

LOOK_EVERY = 31  # steps; odd, so that of two models that are trained in turn both are met


class Rest:
    """Takes the hooks away and brings them back. `may_rest` is asked at the end of every backward that was seen.

    was_whole   whether the step that goes on was seen from its beginning: what is not, no plan is made from
    """

    def __init__(
        self, hooks: Hooks, scope: Scope, policy: Policy, ledger: Ledger, may_rest: Callable[[], bool]
    ) -> None:
        self.is_on = False
        self.was_whole = True
        self._hooks = hooks
        self._scope = scope
        self._policy = policy
        self._ledger = ledger
        self._may_rest = may_rest
        self._lock = threading.RLock()  # wake is called from inside allocations
        self._num_unseen = 0
        self._not_before = 0
        self._last_number = -1  # of the nodes that were made before the last backward ended
        self._ended = 0.0
        self._shown_bytes = 0

    def begin_backward(self) -> None:
        """A backward begins, in the thread that calls it. The first over new nodes ends what was the step before."""
        if not self.is_on or current_node() is not None or next_number() == self._last_number:
            return
        self._num_unseen += 1
        self._policy.begin_unseen_step(self._ended)
        self._show(self._ledger.seen_bytes)

    def end_backward(self) -> None:
        if current_node() is not None:
            return  # it ran inside another
        if self.is_on:
            self._show(0)
            self._last_number, self._ended = next_number(), time.perf_counter()
            if self._num_unseen >= LOOK_EVERY - 1 or has_compiled():
                self.wake(is_between_steps=True)
        elif not self.was_whole:
            self._hooks.push()  # woken inside the backward, perhaps
        elif self._policy.num_steps >= self._not_before and self._may_rest() and not has_compiled():
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._hooks.rest():
                return
            self.is_on = True
            self._scope.rest()
            self._num_unseen = 0
            self._last_number, self._ended = next_number(), time.perf_counter()
        self._policy.arena.want_half(True)

    def wake(self, *, is_between_steps: bool = False) -> None:
        """Every save is seen from now on; in the middle of a step, by those that come after."""
        with self._lock:
            if not self.is_on:
                return
            self.is_on = False
            self.was_whole = is_between_steps
            if not is_between_steps:  # a step grew: others may
                self._not_before = self._policy.num_steps + LOOK_EVERY
            self._hooks.wake()
            self._scope.wake()
        self._show(0)
        self._policy.arena.want_half(False)

    def stop(self) -> None:
        """The engine is removed: nothing is brought back."""
        with self._lock:
            self.is_on = False
        self._show(0)

    def watch(self, relieve: Callable[[int], bool]) -> Callable[[int], bool]:
        """What the arena calls when half of the budget is live (0 bytes missing), or when memory runs short."""

        def hear(missing_bytes: int) -> bool:
            self.wake()
            return missing_bytes > 0 and relieve(missing_bytes)

        return hear

    def _show(self, num_bytes: int) -> None:
        """Activations of a step that is not seen: as many as the last look found."""
        with self._lock:
            change, self._shown_bytes = num_bytes - self._shown_bytes, num_bytes
        if change:
            self._policy.arena.count_saved(change, change)
