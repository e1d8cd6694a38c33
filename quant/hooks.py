"""Autograd's saved-tensor hooks: pushed in every thread that trains, taken off again, away while torch refuses them.

Hooks belong to a thread. The thread that opens a session is hooked at once, others at their next module call. A thread
that keeps the hooks of an engine that is gone takes them off at its next save.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from daf.quant.compiled.dynamo import let_transforms_run, stay_out
from daf.quant.torch_internals import current_node, pop_hooks, push_hooks, top_hooks, why_hooks_are_refused

if TYPE_CHECKING:
    from torch import Tensor

_lock = threading.Lock()
_all_hooks: weakref.WeakSet[Hooks] = weakref.WeakSet()  # of removed engines too: a thread may still have them
_installed: weakref.WeakSet[Hooks] = weakref.WeakSet()
_pushed: weakref.WeakSet[_Pushed] = weakref.WeakSet()
_undo: Callable[[], None] | None = None  # gives torch its own way to refuse hooks back
_is_fork_watched = False


class _Pushed:
    """One thread's hooks. Lives in the thread's own storage, so it goes when the thread does."""

    __slots__ = ("__weakref__",)


class Hooks:
    """One engine's pair of hooks, in however many threads."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pair = (pack, unpack)
        self._packs = [pack]  # of all pairs that some thread may have
        self._threads = threading.local()
        self.is_installed = False
        self.is_wanted = False  # installed, and not resting
        _all_hooks.add(self)
        stay_out(pack, unpack)

    def install(self) -> None:
        _watch_fork()
        with _lock:
            self.is_installed = self.is_wanted = True
            _installed.add(self)
            _step_in()
        self.push()

    def remove(self) -> None:
        with _lock:
            self.is_installed = self.is_wanted = False
            _installed.discard(self)
        self.pop()
        _maybe_step_out()

    def push(self) -> None:
        """Hook this thread; inside a transform of torch.func, which refuses hooks, or within somebody else's hooks,
        whose end would take ours off instead of them, the next call outside does."""
        if getattr(self._threads, "pushed", None) is None and why_hooks_are_refused() is None and not _are_others_on():
            push_hooks(*self._pair)
            pushed = self._threads.pushed = _Pushed()
            with _lock:
                _pushed.add(pushed)

    def rest(self) -> bool:
        """Take our hooks off until `wake`: this thread's at once, others' at their next save. False: not ours to do."""
        self.is_wanted = not (self.is_installed and self.pop())
        return not self.is_wanted

    def wake(self) -> None:
        """Hook this thread again, others at their next module call. A backward ends with the hooks it began with, so
        what is pushed inside one would be lost."""
        self.is_wanted = self.is_installed
        if self.is_wanted and current_node() is None:
            self.push()

    def change(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> bool:
        """Use another pair from now on: in this thread at once, if ours is innermost. Others keep theirs, which serves
        as well. Returns whether this thread has the new one."""
        if not self.pop():
            return False
        self._pair = (pack, unpack)
        self._packs.append(pack)
        self.push()
        return True

    def pop(self) -> bool:
        """Take our hooks off this thread if they are innermost; any other order is someone else's to undo."""
        top = top_hooks()
        if top is None or not self._has(top[0]):
            return False
        pop_hooks()
        self._threads.pushed = None
        if not self.is_installed:
            _maybe_step_out()
        return True

    def _has(self, pack: object) -> bool:
        return any(pack is one for one in self._packs)


def _step_in() -> None:
    """From the first engine on, transforms of torch.func run beside our hooks."""
    global _undo
    if _undo is None:
        _undo = let_transforms_run(_is_ours)


def _maybe_step_out() -> None:
    """Give torch its own back, once no engine is installed and no thread has hooks left."""
    global _undo
    with _lock:
        if _undo is not None and not _installed and not _pushed:
            _undo()
            _undo = None


def _are_others_on() -> bool:
    top = top_hooks()
    return top is not None and not _is_ours(top)


def _is_ours(pair: tuple[Any, Any]) -> bool:
    """Removed engines' too: a thread may keep theirs until its next save."""
    return any(hooks._has(pair[0]) for hooks in list(_all_hooks))


def _watch_fork() -> None:
    global _is_fork_watched
    if not _is_fork_watched:
        _is_fork_watched = True
        os.register_at_fork(after_in_child=_leave_child_alone)


def _leave_child_alone() -> None:
    """A forked child (a DataLoader's worker) has the parent's hooks but not its arena: it keeps everything exact."""
    for hooks in list(_installed):
        hooks.is_installed = hooks.is_wanted = False
