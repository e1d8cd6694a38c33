"""Where in the model memory is asked for: the module under way, or in backward the op and the line of its forward.

torch numbers the nodes of a graph in the order that the forward makes them. A request inside an op comes after its node
was numbered, so the stack that was seen at the highest number up to a node's own is that of its forward.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from daf.quant.torch_internals import current_node, next_number, number_of

if TYPE_CHECKING:
    from daf.quant.saved.scope import Scope

MAX_NUMBERS = 1 << 16
MAX_DISTANCE = 4  # nodes between a request that was seen and the node that is asked for: views, cheap ops


class ModelPlaces:
    """Remembers which stack asked for memory at which number."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._numbers: list[int] = []
        self._stacks: list[int] = []

    def here(self) -> tuple[str, str, int]:
        node = current_node()
        if node is None:
            return self._scope.frame().path, "", 0
        return "", str(node.name()), self._forward_of(number_of(node))

    def saw(self, stack: int) -> None:
        number = next_number() - 1
        if self._numbers and self._numbers[-1] > number:
            return  # another thread's count
        if self._numbers and self._numbers[-1] == number:
            return  # the first request of an op is its output's
        self._numbers.append(number)
        self._stacks.append(stack)
        if len(self._numbers) > MAX_NUMBERS:
            del self._numbers[: MAX_NUMBERS // 2], self._stacks[: MAX_NUMBERS // 2]

    def _forward_of(self, number: int) -> int:
        at = bisect.bisect_right(self._numbers, number) - 1
        if at < 0 or number - self._numbers[at] > MAX_DISTANCE:
            return 0
        return self._stacks[at]
