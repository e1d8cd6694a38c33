"""The guard: what is measured to go wrong is kept exact, and said."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from daf.kernels import Spec
from daf.quant import Engine
from daf.quant.plan.guard import BOUND, RETRY, Guard, expected_error
from daf.quant.saved.handles import Compressed
from daf.quant.saved.layout import Layout
from daf.quant.saved.slots import Curve, Slot
from tests.unit.quant.host_arena import HostArena


def make_slot(number: int = 0, error: float = 0.0) -> Slot:
    slot = Slot(number, ("layer", number, torch.float32, 2))
    slot.plan.spec = Spec("minmax", 4)
    slot.facts.curves = [Curve("minmax", "run", 4, (1.0, 1.0, 1.0, 1.0, error**2), (0,) * 5)]
    return slot


def test_an_op_within_the_bound_goes_on_and_one_above_is_kept_exact() -> None:
    guard, slot = Guard(HostArena()), make_slot()
    assert guard.judge("layer", [slot], BOUND)
    assert slot.facts.is_trusted
    assert not guard.judge("layer", [slot], 1.5 * BOUND)
    assert not slot.facts.is_trusted


def test_an_error_that_the_codec_promised_is_no_reason() -> None:
    slot = make_slot(error=0.3)
    assert expected_error(slot) == pytest.approx(0.3)
    assert Guard(HostArena()).judge("layer", [slot], 0.44)
    assert not Guard(HostArena()).judge("layer", [slot], 0.46)


def test_gradients_that_are_not_finite_are_always_a_reason() -> None:
    slot = make_slot(error=0.9)
    assert not Guard(HostArena()).judge("layer", [slot], math.inf)


def test_a_distrusted_slot_is_tried_again_later_and_then_later_still() -> None:
    guard, slot = Guard(HostArena()), make_slot()
    guard.judge("layer", [slot], 1.0)
    guard.begin_step(RETRY - 1)
    assert not slot.facts.is_trusted
    guard.begin_step(RETRY)
    assert slot.facts.is_trusted
    guard.judge("layer", [slot], 1.0)
    guard.begin_step(2 * RETRY)
    assert not slot.facts.is_trusted


def test_a_codec_that_decodes_wrongly_is_found_and_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    x = torch.randn(512, 256)
    decode = Compressed.decode

    def decode_wrongly(self: Compressed, layout: Layout) -> torch.Tensor:
        value = decode(self, layout)
        return value * 1.5 if self.slot.path == "Sequential.1" else value

    monkeypatch.setattr(Compressed, "decode", decode_wrongly)
    arena = HostArena()
    with Engine(arena, bits=8) as engine:
        for _ in range(50):
            net(x).square().mean().backward()
        distrusted = [slot.path for slot in engine.slots() if not slot.facts.is_trusted]
        assert engine.stats()["guarded_total"] == len(distrusted)
        assert engine.stats()["passed_guarded_total"] > 0
    assert distrusted == ["Sequential.1"]
    assert any("erred by" in event for event in arena.events)
