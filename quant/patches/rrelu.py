"""Functions that save a tensor before they fill it: torch.rrelu draws its noise after the save.

A hook that encodes at once would encode whatever lay there before, so the saves of these pass by all hooks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from daf.quant.torch_internals import top_hooks

_NAMES = ("rrelu", "rrelu_")


@contextlib.contextmanager
def past_hooks() -> Iterator[None]:
    """While entered, no hook sees what these functions save."""
    originals = {name: getattr(torch, name) for name in _NAMES}
    for name, function in originals.items():
        setattr(torch, name, _past_hooks(function))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def _past_hooks(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if top_hooks() is None:
            return function(*args, **kwargs)
        with saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor):
            return function(*args, **kwargs)

    return call
