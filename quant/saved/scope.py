"""Where in the model the program is: the path of the running module, per thread.

Autograd's hooks see tensors, not places. Global module hooks give each saved tensor a place that is the same in every
step: the module's path, which call of it this is in one run of the whole, and the order of the save in that call.
Saves outside every module (a loss written with functions, say) are placed after the module that ran last.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks

from daf.quant import _gate
from daf.quant.compiled.dynamo import stay_out
from daf.quant.torch_internals import current_node, next_number

if TYPE_CHECKING:
    from daf.quant.recompute.module_rerun import Call


MAX_PATHS = 4096  # modules known, before those that are gone are looked for


class Frame:
    """One module call under way. `order` numbers the saves that it makes; `call` is the engine's, if it follows it;
    nodes that it makes are numbered from `first_number` on. `inputs_of` is a module that is about to be called, while
    the engine saves its input."""

    __slots__ = ("call", "first_number", "inputs_of", "module", "order", "path")

    def __init__(self, path: str, module: torch.nn.Module | None) -> None:
        self.path = path
        self.module = module
        self.order = 0
        self.call: Call | None = None
        self.inputs_of: torch.nn.Module | None = None
        self.first_number = next_number()


class _ThreadFrames(threading.local):
    def __init__(self) -> None:
        self.stack: list[Frame] = [Frame("", None)]
        self.num_calls: dict[str, int] = {}
        self.epoch = 0


class Scope:
    """Keeps a stack of frames per thread, and the paths of all modules seen.

    Paths are held by module identity beside a weak reference, not in a WeakKeyDictionary: the look-up runs at every
    module call, and a module's own hash and equality are the user's to define.
    """

    def __init__(self) -> None:
        self._threads = _ThreadFrames()
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._roots: dict[str, list[weakref.ref[torch.nn.Module]]] = {}
        self._num_paths_to_clean = MAX_PATHS
        self._handles: list[Any] = []
        self._epoch = 0  # frames of an earlier one were left without notice

    def install(
        self,
        *,
        on_root: Callable[[torch.nn.Module], None],
        on_enter: Callable[[torch.nn.Module, tuple[object, ...]], Call | None],
        on_leave: Callable[[Frame, tuple[object, ...], object], None],
    ) -> None:
        """Starts following module calls. `on_root` runs at every outermost module call, in its thread; what `on_enter`
        returns at a call stays with its frame, which goes to `on_leave` at its end."""
        self._on_root, self._on_enter, self._on_leave = on_root, on_enter, on_leave
        self.note_backward()
        stay_out(self._enter, self._leave)
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        self._filter = warnings.filters[0]
        self.wake()

    def wake(self) -> None:
        """Follows module calls from now on; those under way are not known."""
        self._epoch += 1
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def rest(self) -> None:
        """Follows no calls until `wake`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def remove(self) -> None:
        self.rest()
        with contextlib.suppress(ValueError):  # the user reset all filters since
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]

    def frame(self) -> Frame:
        """The frame that a save made now belongs to."""
        return self._threads.stack[-1]

    def is_new_step(self) -> bool:
        """Whether this save is the first after a backward, outside of any backward; asked at every save."""
        if not _gate.is_after_backward() or current_node() is not None:
            return False
        _gate.set_after_backward(False)
        frame = self.frame()
        if frame.module is None:
            frame.order = 0
        return True

    def is_after_backward(self) -> bool:
        """Whether a backward pass ran in this thread since its last save."""
        return _gate.is_after_backward()

    def modules(self) -> list[torch.nn.Module]:
        """The modules that were seen so far and live."""
        found = (reference() for reference, _path in list(self._paths.values()))
        return [module for module in found if module is not None]

    def named_modules(self) -> list[tuple[str, torch.nn.Module]]:
        """The same, with their paths."""
        found = ((path, reference()) for reference, path in list(self._paths.values()))
        return [(path, module) for path, module in found if module is not None]

    def num_of_class(self, name: str) -> int:
        """How many of the modules seen so far are of the class of this name."""
        return sum(type(module).__name__ == name for module in self.modules())

    def note_backward(self) -> None:
        """A backward pass is running in this thread: what is saved next, outside modules, is a new round."""
        _gate.set_after_backward(True)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        threads = self._threads
        stack = threads.stack
        if threads.epoch != self._epoch:
            threads.epoch = self._epoch
            del stack[1:]
            _gate.set_followed(False)
        if len(stack) == 1:
            threads.num_calls.clear()
            self._on_root(module)
        known = self._paths.get(id(module))
        if known is None or known[0]() is not module:
            path = self._name(module, stack[-1])
        else:
            path = known[1]
        num_calls = threads.num_calls
        number = num_calls[path] = num_calls.get(path, 0) + 1
        frame = Frame(path if number == 1 else f"{path}@{number}", module)
        frame.call = self._on_enter(module, args)
        stack.append(frame)
        if frame.call is not None:
            _gate.set_followed(True)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._threads.stack
        # Frames above this module's are calls that an exception cut short before their own hook could run.
        for depth in range(len(stack) - 1, 0, -1):
            if stack[depth].module is module:
                frame = stack[depth]
                del stack[depth:]
                _gate.set_followed(stack[-1].call is not None)
                if depth == 1:
                    stack[0] = Frame(f"after {frame.path}", None)
                self._on_leave(frame, args, output)
                return

    def _name(self, module: torch.nn.Module, parent: Frame) -> str:
        """Names a module never seen and all modules below it, so that the tree is walked once."""
        self._forget_the_dead()
        kind = type(module).__name__
        root = self._root_name(kind, module) if parent.module is None else f"{parent.path}.{kind}"
        for name, child in module.named_modules():
            known = self._paths.get(id(child))
            if known is None or known[0]() is not child:
                self._paths[id(child)] = (weakref.ref(child), f"{root}.{name}" if name else root)
        return self._paths[id(module)][1]

    def _root_name(self, kind: str, module: torch.nn.Module) -> str:
        """Numbers of modules that are gone are given out again: one that is made anew in every step keeps its slots."""
        roots = self._roots.setdefault(kind, [])
        free = next((n for n, root in enumerate(roots) if root() is None), len(roots))
        roots[free : free + 1] = [weakref.ref(module)]
        return kind if free == 0 else f"{kind}#{free + 1}"

    def _forget_the_dead(self) -> None:
        if len(self._paths) > self._num_paths_to_clean:
            self._paths = {key: entry for key, entry in list(self._paths.items()) if entry[0]() is not None}
            self._num_paths_to_clean = max(MAX_PATHS, 2 * len(self._paths))
