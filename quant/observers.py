"""Who watches training pass by: importance, the gradient's monitor, the check of single ops, modules run again.

The engine calls them at the points below, in the order of its list, and nothing else. What one of them raises costs
its observation and a warning, never the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from daf.quant.saved.handles import Handle, View
    from daf.quant.saved.scope import Frame
    from daf.quant.saved.slots import Slot


class Observer:
    """Does nothing at any point. `is_on` is asked before every call."""

    __slots__ = ()
    is_on: bool

    def see_slot(self, slot: Slot, tensor: Tensor) -> None:
        """A tensor of `slot` was encoded lossily, or is kept exact because that would not pay."""

    def see_stored(self, view: View, tensor: Tensor) -> None:
        """The content of `tensor` was stored for the first time: `view` is its first save."""

    def see_save(self, frame: Frame, handle: Handle, tensor: Tensor) -> None:
        """A tensor was saved in `frame`; `handle` stands for it."""

    def see_read(self, view: View, node: Any) -> None:
        """The autograd node asks for a saved tensor."""

    def leave_module(self, frame: Frame, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """The module call of `frame` ended."""

    def begin_backward(self, roots: object) -> None:
        """A backward pass begins, in this thread."""
