# ruff: noqa: ARG001  (a fixture that is only switched on is an argument all the same)
"""Content that is worked out again instead of stored: right, and gone when the graph is."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena


@pytest.fixture
def arena() -> HostArena:
    return HostArena()


@pytest.fixture
def fine(arena: HostArena) -> Iterator[Engine]:
    with Engine(arena, bits=8) as engine:
        yield engine


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def relative_error(ours: list[Tensor], exact: list[Tensor]) -> float:
    difference = sum(float((a - b).square().sum()) for a, b in zip(ours, exact, strict=True))
    return math.sqrt(difference / sum(float(b.square().sum()) for b in exact))


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    net(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


class WrittenOutGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class NoisyGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) * torch.rand_like(x) * torch.tanh(x)


class Attention(nn.Module):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.is_causal = nn.Linear(64, 192), nn.Linear(64, 64), is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(8, 64, 4, 16).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(out.transpose(1, 2).reshape(8, 64, 64))


class DeviceDropout(nn.Module):
    """As F.dropout is done on a GPU, in one op that saves its mask."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.native_dropout(x, 0.25, True)[0]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(n, 16, 3, padding=1) for n in (3, 16, 16))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.first(x)))
        y = F.relu(self.norms[1](self.second(x)), inplace=True)
        return self.head(F.relu(self.norms[2](self.third(y)) + x))


class Projected(Residual):
    """Its shortcut goes through a convolution and a norm of its own, as where a stage of a ResNet begins."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.first(x)))
        return self.head(F.relu(self.norms[1](self.second(x)) + self.norms[2](self.third(x))))


class Gated(nn.Module):
    """silu(a x) * (b x), as most language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def convolutions(norm: nn.Module, function: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), norm, function, nn.Conv2d(16, 8, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
    "gelu": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)), data(256, 64), 1),
    "silu": (lambda: nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 8)), data(256, 64), 1),
    "layer norm": (lambda: nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8)), data(256, 64), 1),
    "written out": (
        lambda: nn.Sequential(nn.Linear(64, 128), WrittenOutGELU(), nn.Linear(128, 8)),
        data(256, 64),
        4,
    ),
    "dropout on a device": (
        lambda: nn.Sequential(nn.Linear(64, 128), nn.Softmax(-1), DeviceDropout(), nn.Linear(128, 8)),
        data(256, 64),
        1,
    ),
    "attention": (Attention, data(8, 64, 64), 1),
    "causal attention": (lambda: Attention(is_causal=True), data(8, 64, 64), 1),
    "gated": (Gated, data(256, 64), 2),
    "batch norm, leaky relu": (lambda: convolutions(nn.BatchNorm2d(16), nn.LeakyReLU(0.1)), data(8, 3, 32, 32), 2),
    "batch norm, hardswish": (lambda: convolutions(nn.BatchNorm2d(16), nn.Hardswish()), data(8, 3, 32, 32), 2),
    "frozen batch norm, elu": (lambda: convolutions(nn.BatchNorm2d(16), nn.ELU()).eval(), data(8, 3, 32, 32), 2),
    "plain batch norm, relu6": (
        lambda: convolutions(nn.BatchNorm2d(16, affine=False), nn.ReLU6()),
        data(8, 3, 32, 32),
        2,
    ),
    "group norm, silu": (lambda: convolutions(nn.GroupNorm(4, 16), nn.SiLU()), data(8, 3, 32, 32), 2),
    "group norm, mish": (lambda: convolutions(nn.GroupNorm(2, 16, affine=False), nn.Mish()), data(8, 3, 32, 32), 2),
    "softplus": (lambda: nn.Sequential(nn.Linear(64, 128), nn.Softplus(), nn.Linear(128, 8)), data(256, 64), 1),
    "norms before relu": (Residual, data(8, 3, 32, 32), 0),
    "two norms before relu": (Projected, data(8, 3, 32, 32), 0),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_close_to_exact_ones(name: str, fine: Engine) -> None:
    make, x, num_derived = NETS[name]
    torch.manual_seed(0)
    net = make()
    for _ in range(3):  # the first step checks and learns; later ones do as they learned
        before = fine.stats()["derived_total"]
        ours = gradients(net, x)
        assert fine.stats()["derived_total"] - before >= num_derived
    fine.remove()
    assert relative_error(ours, gradients(net, x)) < 0.03


@pytest.mark.parametrize("name", NETS)
def test_nothing_is_held_once_the_graph_is_gone(name: str, fine: Engine, arena: HostArena) -> None:
    make, x, _ = NETS[name]
    net = make()
    gc.disable()
    try:
        for _ in range(2):
            gradients(net, x)
            assert arena.num_live() == 0
        assert fine.stats()["raw_bytes"] == 0
        assert fine.stats()["stored_bytes"] == 0
        assert fine.stats()["passed_bytes"] == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("make", "num_followers"), [(Residual, 3), (Projected, 2)])
def test_norms_before_relu_are_not_stored_at_two_bits(make: type[Residual], num_followers: int) -> None:
    """Of two norms that are added before one ReLU, one is stored."""
    torch.manual_seed(0)
    net, x = make(), data(8, 3, 32, 32)
    with Engine(HostArena(), bits=2) as engine:
        for _ in range(2):
            coarse = gradients(net, x)
        assert engine.stats()["derived_total"] == 2 * num_followers
    assert relative_error(coarse, gradients(net, x)) < 0.3


def test_attention_at_two_bits_does_not_explode() -> None:
    torch.manual_seed(0)
    net, x = Attention(), 3.0 * data(8, 64, 64)
    with Engine(HostArena(), bits=2):
        coarse = gradients(net, x)
    assert relative_error(coarse, gradients(net, x)) < 1.0


def test_a_module_that_comes_out_otherwise_is_not_run_again(fine: Engine) -> None:
    net = nn.Sequential(nn.Linear(64, 128), NoisyGELU(), nn.Linear(128, 8))
    for _ in range(2):
        gradients(net, data(256, 64))
    noisy = [slot for slot in fine.slots() if slot.path == "Sequential.1"]
    assert len(noisy) >= 3, "its intermediates are stored"
    assert all(slot.seen.num_saves == 2 for slot in noisy)


def test_a_head_can_be_differentiated_after_the_trunk_was_released(fine: Engine) -> None:
    trunk, head = nn.Sequential(nn.Linear(64, 128), nn.GELU()), nn.Linear(128, 8)
    features = trunk(data(256, 64))
    out = head(features)
    torch.autograd.grad(features.sum(), trunk.parameters())
    (weight, _) = torch.autograd.grad(out.sum(), head.parameters())
    assert torch.allclose(weight, features.detach().sum(0).expand(8, 128), rtol=0.02, atol=0.3)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_a_norm_whose_bias_is_frozen_is_not_worked_out_without_it(kind: str, fine: Engine) -> None:
    norm = nn.BatchNorm2d(16) if kind == "batch" else nn.GroupNorm(4, 16)
    nn.init.constant_(norm.bias, 3.0)
    norm.bias.requires_grad_(False)
    net, x = convolutions(norm, nn.SiLU()), data(8, 3, 32, 32)
    for _ in range(2):
        net.zero_grad()
        net(x).square().mean().backward()
    ours = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    fine.remove()
    net.zero_grad()
    net(x).square().mean().backward()
    exact = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert relative_error(ours, exact) < 0.03


def test_a_frozen_norm_keeps_its_input(fine: Engine) -> None:
    net = Residual().eval()
    ours = gradients(net, data(8, 3, 32, 32))
    fine.remove()
    assert relative_error(ours, gradients(net, data(8, 3, 32, 32))) < 0.02


def test_keys_and_values_of_a_small_query_do_not_explode() -> None:
    """The output is too small to be coded; keys and values are coded all the same, and it must follow from these."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, length, 32).mul(4).requires_grad_() for length in (8, 512, 512))

    def gradient() -> Tensor:
        out = F.scaled_dot_product_attention(q * 1, k * 1, v * 1)
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(out.square().sum(), (q, k, v))])

    want = gradient()
    with Engine(HostArena(), bits=2):
        got = gradient()
    assert float((got - want).norm() / want.norm()) < 3.0  # 945 where only the output is exact


def test_a_backward_that_reads_nothing_in_its_thread_begins_a_new_step(fine: Engine) -> None:
    """On a GPU nodes run, and unpack, in a thread of the device: the caller's thread sees only the call."""
    x = torch.randn(64, 256, requires_grad=True)
    for _ in range(3):
        (x * 2).sigmoid()
        x.sum().backward()
    assert fine.policy.num_steps == 3
