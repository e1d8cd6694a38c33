"""Keeps Dynamo out of DAF's own code.

Under `torch.compile` every Python frame that is entered is traced, DAF's hooks among them, unless its code is marked;
and `torch.func` transforms refuse to be traced while hooks for saved tensors are pushed. So a script compiled under DAF
gives the graphs of plain torch:

    hooks of autograd and modules   their code is marked: run as it is, and all that it calls
    module calls that are traced    the module hooks see `torch.compiler.is_compiling()` and return at once (scope.py)
    transforms of torch.func        switch our hooks off instead of refusing to run

It also says when a compilation begins, which is when the budget decides whether the graph may stay plain torch's.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from daf.quant.torch_internals import pop_hooks, push_hooks, top_hooks

_autograd: Any = torch._C._autograd
_disable_hooks = _autograd._saved_tensors_hooks_disable
_enable_hooks = _autograd._saved_tensors_hooks_enable
_can_overlook = "fail_if_non_empty" in (_disable_hooks.__doc__ or "")  # not before torch 2.8


def stay_out(*functions: Callable[..., object]) -> None:
    """Has Dynamo run these, and whatever they call, as they are.

    It is the code that is marked, so that a call costs nothing more; torch._dynamo need not be imported.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        mark = eval_frame.set_code_exec_strategy
    except (ImportError, AttributeError):  # an older torch: graphs break at our hooks, results are the same
        return
    for function in functions:
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None:
            mark(code, strategy)


class Compilations:
    """Says when Dynamo begins to compile. It is imported with the first call of `torch.compile`, and not for us; a
    `torch._dynamo.reset()` forgets who listens."""

    def __init__(self, on_begin: Callable[[], None]) -> None:
        self._on_begin = on_begin

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        compile_function = torch.compile

        @functools.wraps(compile_function)
        def compiles(*args: Any, **kwargs: Any) -> Any:
            compiled = compile_function(*args, **kwargs)
            self.watch()
            return compiled

        torch.compile = compiles
        self.watch()
        try:
            yield
        finally:
            if torch.compile is compiles:
                torch.compile = compile_function
            self._forget()

    def watch(self) -> None:
        handler = _callbacks()
        if handler is not None and self._begin not in handler.start_callbacks:
            handler.register_start_callback(self._begin)

    def _begin(self, _args: object) -> None:
        self._on_begin()

    def _forget(self) -> None:
        handler = _callbacks()
        if handler is not None and self._begin in handler.start_callbacks:
            handler.remove_start_callback(self._begin)


def _callbacks() -> Any:
    return getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)


class _Away(threading.local):
    """Our hooks, while a transform runs in this thread: only where torch cannot switch them off in their place."""

    hooks: tuple[Any, Any] | None = None


def let_transforms_run(is_ours: Callable[[tuple[Any, Any]], bool]) -> Callable[[], None]:
    """torch.func refuses to run, or to be traced, while hooks are pushed. Where there are none but ours (`is_ours` of
    the pair), they are switched off for the time of the transform.

    The functions that are replaced are those that eager transforms and Dynamo call alike. Returns what undoes it.
    """
    away = _Away()

    @functools.wraps(_disable_hooks, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def disable(error_message: str, fail_if_non_empty: bool = True) -> None:
        is_alone = fail_if_non_empty and _are_alone(is_ours)
        if _can_overlook:
            _disable_hooks(error_message, fail_if_non_empty and not is_alone)
            return
        if is_alone:
            away.hooks = top_hooks()
            pop_hooks()
        _disable_hooks(error_message)

    @functools.wraps(_enable_hooks, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def enable() -> None:
        _enable_hooks()
        if away.hooks is not None:
            push_hooks(*away.hooks)
            away.hooks = None

    stay_out(disable, enable)
    _autograd._saved_tensors_hooks_disable = disable
    if not _can_overlook:
        _autograd._saved_tensors_hooks_enable = enable

    def undo() -> None:
        _autograd._saved_tensors_hooks_disable = _disable_hooks
        _autograd._saved_tensors_hooks_enable = _enable_hooks

    return undo


def _are_alone(is_ours: Callable[[tuple[Any, Any]], bool]) -> bool:
    """Whether this thread's only hooks are ours; false if hooks are refused at this moment."""
    top = top_hooks()
    if top is None or not is_ours(top):
        return False
    pop_hooks()
    try:
        return top_hooks() is None
    finally:
        push_hooks(*top)
