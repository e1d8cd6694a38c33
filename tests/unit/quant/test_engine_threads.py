"""Hooks belong to a thread: those of an engine that is gone take themselves off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


@pytest.fixture
def thread() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Runs what it is given in one other thread, always the same."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield lambda work: pool.submit(work).result()


def train() -> None:
    net = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))
    net(torch.randn(256, 128)).sum().backward()


def test_hooks_left_in_another_thread_go_at_its_next_save(thread: Callable[[Callable[[], object]], object]) -> None:
    arena = HostArena()
    with Engine(arena, bits=2):
        thread(train)
        assert thread(lambda: _top_hooks(True)) is not None
    num_stashes = len(arena.stashes)
    thread(train)
    assert len(arena.stashes) == num_stashes
    assert thread(lambda: _top_hooks(True)) is None


def test_torch_func_works_in_a_thread_whose_engine_is_gone(thread: Callable[[Callable[[], object]], object]) -> None:
    with Engine(HostArena(), bits=2):
        thread(train)
    grad = thread(lambda: torch.func.grad(lambda x: x.sin().sum())(torch.zeros(4)))
    assert torch.equal(grad, torch.ones(4))


def test_a_thread_is_hooked_again_by_the_next_engine(thread: Callable[[Callable[[], object]], object]) -> None:
    with Engine(HostArena(), bits=2):
        thread(train)
    arena = HostArena()
    with Engine(arena, bits=2):
        thread(train)
        thread(train)
        assert arena.stashes
    assert threading.current_thread() is threading.main_thread()
    assert _top_hooks(True) is None
