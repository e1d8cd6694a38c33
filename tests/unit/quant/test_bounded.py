"""What the engine remembers does not grow with the length of a run."""

from __future__ import annotations

import torch
from torch import nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena


def test_modules_made_anew_in_every_step_share_their_slots() -> None:
    with Engine(HostArena(), bits=4, min_bytes=1024) as engine:
        for step in range(50):
            net = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
            net(torch.randn(64, 32)).sum().backward()
            if step == 3:
                num_slots = len(engine.slots())
        assert len(engine.slots()) == num_slots


def test_modules_that_live_side_by_side_have_slots_of_their_own() -> None:
    with Engine(HostArena(), bits=4, min_bytes=1024) as engine:
        nets = [nn.Linear(32, 32), nn.Linear(32, 32)]
        for net in nets:
            net(torch.randn(64, 32)).square().sum().backward()
        paths = {slot.path for slot in engine.slots()}
    assert {"Linear", "Linear#2"} <= paths


def test_batches_of_ever_new_sizes_do_not_fill_the_memory() -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    with Engine(HostArena(), bits=4, min_bytes=1024) as engine:
        for rows in range(64, 364):
            net(torch.randn(rows, 32)).sum().backward()
        assert max(len(slot.plan.by_size) for slot in engine.slots()) <= 128
