"""Only what every reader bears noise in is compressed: real ops of each kind, under two bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.quant import Engine
from daf.quant.encode.choice import EXACT
from daf.quant.measure.importance import Layer, Probe, SlotSample
from daf.quant.saved.slots import Slot
from tests.unit.quant.host_arena import HostArena

Function = Callable[[Tensor], Tensor]
STEPS = 3  # the first shows who reads what


def gradients(function: Function, x: Tensor) -> list[Tensor]:
    """Of a parameter that is added to `x`, which saves nothing, and makes no leaf of what the function reads."""
    offset = nn.Parameter(torch.zeros_like(x))
    found = []
    for _ in range(STEPS):
        function(x + offset).sum().backward()
        found.append(offset.grad)
        offset.grad = None
    return found


def under_two_bits(function: Function, x: Tensor) -> tuple[list[Tensor], Engine]:
    with Engine(HostArena(), bits=2) as engine:
        return gradients(function, x), engine


def lossy(engine: Engine) -> list[Slot]:
    return [slot for slot in engine.slots() if slot.plan.spec is not None and slot.plan.spec.codec not in EXACT]


def focal(logits: Tensor) -> Tensor:
    p = logits.softmax(-1)[:, :1]
    return -((1 - p) ** 2) * p.log()


def focal_with_epsilon(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) + 1e-8).log()[:, 0]


def entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


def mixture(raw: Tensor) -> Tensor:
    weights, means, scales = raw.chunk(3, -1)
    density = weights.softmax(-1) * torch.exp(-((means - 0.3) ** 2) / F.softplus(scales) ** 2) / F.softplus(scales)
    return -(density.sum(-1) + 1e-12).log()


def binary(logits: Tensor) -> Tensor:
    p = torch.sigmoid(logits)
    return -(1 - p).log()


def written_out_rms_norm(x: Tensor) -> Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).sigmoid()


def written_out_layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return (centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)).sigmoid()


EXACT_OPS: dict[str, Function] = {
    "log": lambda x: (x.abs() + 1e-3).log(),
    "sqrt": lambda x: (x.abs() + 1e-4).sqrt(),
    "rsqrt": lambda x: (x.abs() + 1e-4).rsqrt(),
    "division": lambda x: 1 / (x.abs() + 1e-3),
    "quotient": lambda x: x / (x.abs().mean(-1, keepdim=True) + 1e-3),
    "root by power": lambda x: (x.abs() + 1e-4).pow(0.5),
    "cube": lambda x: x**3,
    "exponential": torch.exp,
    "norm": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0).detach(), dim=-1),
    "distance": lambda x: torch.cdist(x[:64], x[64:]),
    "product": lambda x: x.view(-1, 8).prod(-1),
    "maximum": lambda x: x.amax(-1),
    "clamp": lambda x: x.clamp(min=1e-3).log(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "sine": torch.sin,
    "mse": lambda x: F.mse_loss(x, torch.ones_like(x)),
    "huber": lambda x: F.huber_loss(x, torch.ones_like(x)),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "kl": lambda x: F.kl_div(x, torch.full_like(x, 0.1), reduction="sum"),
    "focal": focal,
    "focal with epsilon": focal_with_epsilon,
    "entropy": entropy,
    "mixture": mixture,
    "binary": binary,
    "rms norm": written_out_rms_norm,
    "layer norm": written_out_layer_norm,
}


@pytest.mark.parametrize("name", EXACT_OPS)
def test_what_divides_takes_roots_or_compares_gets_exact_content(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 96)
    wanted = gradients(EXACT_OPS[name], x)
    found, engine = under_two_bits(EXACT_OPS[name], x)
    assert engine.stats()["failures_total"] == 0
    for ours, plain in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-7)


class Doubled(torch.autograd.Function):
    """An op that a test has made up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


def test_a_function_that_nobody_knows_gets_exact_content() -> None:
    x = torch.randn(128, 96)
    wanted = gradients(Doubled.apply, x)
    found, engine = under_two_bits(Doubled.apply, x)
    assert all(torch.equal(ours, plain) for ours, plain in zip(found, wanted, strict=True))
    assert lossy(engine) == []


def test_an_op_of_another_library_gets_exact_content() -> None:
    library = torch.library.Library("daf_test_uses", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: 2 * x, "CompositeExplicitAutograd")

    def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0])

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad + 0 * ctx.saved_tensors[0]

    torch.library.register_autograd("daf_test_uses::double", backward, setup_context=keep, lib=library)
    x = torch.randn(128, 96)
    _, engine = under_two_bits(torch.ops.daf_test_uses.double, x)
    assert engine.stats()["coded_total"] > 0
    assert lossy(engine) == []
    library._destroy()


BENIGN: dict[str, Function] = {
    "linear": lambda x: F.linear(x, torch.ones(8, 96, requires_grad=True)),
    "gelu": F.gelu,
    "silu": F.silu,
    "layer norm": lambda x: F.layer_norm(x, (96,)).sigmoid(),
    "relu": F.relu,
    "square": lambda x: x.square(),
    "gate": lambda x: x[:, :48] * x[:, 48:],
}


@pytest.mark.parametrize("name", BENIGN)
def test_what_bears_noise_is_compressed_once_its_readers_were_seen(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 96)
    wanted = gradients(BENIGN[name], x)
    found, engine = under_two_bits(BENIGN[name], x)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-6)  # nothing is known yet
    assert lossy(engine) != []
    assert float((found[-1] - wanted[-1]).norm() / wanted[-1].norm()) < 0.5


def test_content_with_one_fragile_reader_is_exact_for_all() -> None:
    def function(x: Tensor) -> Tensor:
        return F.linear(x, torch.ones(96, 96, requires_grad=True)) + (x.abs() + 1e-3).log()

    torch.manual_seed(0)
    x = torch.randn(128, 96)
    _, engine = under_two_bits(lambda x: function(x) + x.sqrt().nan_to_num(), x.abs())
    slot = next(slot for slot in engine.slots() if "Addmm" in slot.op or "Mm" in slot.op)
    assert any("fragile" in use for use in slot.facts.exact_for)
    assert slot not in lossy(engine)


def test_a_reader_that_appears_later_takes_the_compression_away() -> None:
    weight, scale = torch.ones(96, 96, requires_grad=True), nn.Parameter(torch.ones(128, 96))
    x = torch.rand(128, 96) + 0.1
    with Engine(HostArena(), bits=2) as engine:
        for step in range(5):
            hidden = x * scale
            out = F.linear(hidden, weight)
            if step >= 2:
                out = out + hidden.log()
            out.sum().backward()
        slots = [slot for slot in engine.slots() if slot.facts.exact_for]
        assert slots
        assert all(slot.plan.spec is not None and slot.plan.spec.codec == "raw" for slot in slots)
        assert engine.stats()["surprising_reads_total"] >= 1


def test_modules_of_one_op_are_compressed_from_their_first_save() -> None:
    net = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96))
    with Engine(HostArena(), bits=2) as engine:
        loss = net(torch.randn(256, 96)).sum()
        assert len(lossy(engine)) == 2
        del loss


class RootMeanSquareRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(96))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("make", [RootMeanSquareRMSNorm, lambda: nn.RMSNorm(96)])
def test_a_norm_that_is_run_again_is_compressed_and_quiet_rows_do_not_explode(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    first, norm, last = nn.Linear(96, 96, bias=False), make(), nn.Linear(96, 96)
    x = torch.randn(256, 96) * torch.logspace(-5, 1, 256)[:, None]

    def norm_of_gradient() -> float:
        first.weight.grad = None
        last(norm(first(x))).sigmoid().sum().backward()
        assert first.weight.grad is not None
        return float(first.weight.grad.norm())

    plain = norm_of_gradient()
    with Engine(HostArena(), bits=2) as engine:
        found = [norm_of_gradient() for _ in range(4)]
        assert len(lossy(engine)) >= 2  # what the first layer reads, and what the norm does
    assert max(found) < 2 * plain


def test_importances_of_a_gradient_that_overflowed_are_those_of_before() -> None:
    slot = Slot(0, ("layer", 1, torch.float32, 2))
    slot.facts.ops.add("AddmmBackward0")
    slot.facts.readers.add("layer")
    probe = Probe()
    probe.slots[0] = SlotSample(2)
    probe.layers["layer"] = Layer("layer", 1, input_energy=2.0, rows=1.0, grad_energy=3.0)
    slot.facts.importance = probe.scores([slot])[0]
    before = probe.gradient_energy
    assert slot.facts.importance == pytest.approx(6.0)
    for bad in (float("inf"), float("nan")):
        probe.layers["layer"].grad_energy = bad
        assert probe.scores([slot]) == {0: slot.facts.importance}
        assert probe.gradient_energy == before
