"""When the policy samples and when it plans anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from daf.quant import Engine, Wish
from daf.quant.measure.importance import Layer, Probe, SlotSample, energy_of
from daf.quant.plan.policy import ENOUGH_BYTES
from daf.quant.saved.slots import Facts, Slot
from tests.unit.quant.host_arena import HostArena


class TightArena(HostArena):
    """A HostArena that says how much was evicted, as a test wants it."""

    def __init__(self, budget_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.budget_bytes = budget_bytes
        self.evicted_bytes = 0

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "evicted_bytes_total": self.evicted_bytes}


class PeakArena(HostArena):
    """A HostArena that says what a step took, as a test wants it."""

    peak_bytes = 0

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "peak_live_bytes": self.peak_bytes}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))


def step(net: nn.Module, rows: int = 512) -> None:
    x = torch.randn(rows, 64)
    net(x).square().mean().backward()


def planned_bytes(engine: Engine) -> int:
    assert engine.policy.outcome is not None
    return engine.policy.outcome.stored_bytes


def test_the_plan_shrinks_with_the_budget_and_grows_with_it_again() -> None:
    net, arena = make_net(), TightArena()
    with Engine(arena, bits="auto", wish=Wish(ratio=4.0)) as engine:
        sizes = []
        for budget_bytes in (1 << 40, 60 << 10, 40 << 10, 1 << 40):
            arena.budget_bytes = budget_bytes
            for _ in range(3):
                step(net)
            sizes.append(planned_bytes(engine))
            assert sizes[-1] <= budget_bytes
    assert min(sizes[0], sizes[3]) >= sizes[1] >= sizes[2]


@pytest.mark.parametrize(
    ("peaks_percent", "is_tight"),
    [
        ((50, 50, 50), (True, True, True)),  # ten more for each of four tensors might not fit
        ((30, 70, 70), (True, False, False)),  # 70 was a step that did not spare
        ((30, 85, 85), (True, False, True)),
    ],
)
def test_what_sparing_steps_took_is_not_what_others_will_take(
    peaks_percent: tuple[int, ...], is_tight: tuple[bool, ...]
) -> None:
    arena = PeakArena()
    engine = Engine(arena, bits=2)
    engine.table.at(("layer", 1, torch.float32, 2)).seen.raw_bytes = arena.budget_bytes // 10
    found = []
    for after_percent in peaks_percent:
        engine.policy.begin_step()
        found.append(engine.policy.tight_budget() > 0)
        arena.peak_bytes = after_percent * arena.budget_bytes // 100
    assert tuple(found) == is_tight


def test_batches_of_all_lengths_are_not_sampled_at_every_step() -> None:
    net, sampled = make_net(), []
    with Engine(TightArena(), bits="auto", wish=Wish(ratio=16.0)) as engine:
        for number in range(40):
            step(net, rows=(512, 900, 300)[number % 3])
            sampled.append(engine.policy.probe.is_on)
    assert sum(sampled) <= 10


def test_a_slot_has_a_plan_from_the_second_step_on() -> None:
    net = make_net()
    with Engine(TightArena(), bits="auto", wish=Wish(ratio=6.0)) as engine:
        step(net)
        step(net)
        raw_bytes = engine.stats()["peak_raw_bytes"]
        assert 0 < planned_bytes(engine) <= raw_bytes / 6


def test_a_ratio_does_not_squeeze_a_model_that_takes_next_to_nothing() -> None:
    net = make_net()
    with Engine(TightArena(), bits="auto", wish=Wish(ratio=100.0)) as engine:
        for _ in range(2):
            step(net)
        fixed = sum(slot.seen.raw_bytes for slot in engine.slots() if slot.op == "Pow")
        assert planned_bytes(engine) - fixed <= ENOUGH_BYTES
        assert engine.stats()["expected_error"] < 0.03


def test_what_an_unknown_op_reads_is_exact_whatever_the_ratio() -> None:
    leaf = torch.randn(8192, requires_grad=True)
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=100.0)) as engine:
        for _ in range(4):
            leaf.grad = None
            (leaf * 1).log1p().nansum().backward()
        assert leaf.grad is not None
        want = torch.where(leaf.detach() > -1, 1 / (1 + leaf.detach()), 0.0)
        assert torch.equal(leaf.grad[leaf > -1], want[leaf > -1])
        assert engine.stats()["compressed_bytes"] == 0


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(1 << 20), torch.randn(64, 8, 32, 32).to(memory_format=torch.channels_last), torch.randn(7, 5)],
)
def test_the_energy_of_a_large_tensor_is_estimated_well(tensor: Tensor) -> None:
    assert energy_of(tensor) == pytest.approx(float(tensor.square().sum()), rel=0.05)


def test_a_tensor_whose_memory_was_taken_away_has_no_energy_and_is_not_read() -> None:
    weight = torch.randn(256, 256)
    weight.untyped_storage().resize_(0)
    assert energy_of(weight) == 0.0


def test_the_energy_of_what_lies_scattered_counts_all_of_it() -> None:
    part = torch.randn(2048, 2048)[:, ::2]
    assert energy_of(part) == pytest.approx(float(part.square().sum()), rel=2e-3)
    assert energy_of(torch.ones(1).expand(1 << 20)) == pytest.approx(float(1 << 20), rel=1e-4)


def test_a_model_that_is_called_many_times_before_one_backward_keeps_its_ratio() -> None:
    net = make_net()
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=8.0)) as engine:
        for _ in range(4):
            torch.stack([net(torch.randn(512, 64)).square().mean() for _ in range(6)]).sum().backward()
        loss = torch.stack([net(torch.randn(512, 64)).square().mean() for _ in range(6)]).sum()
        stats = engine.stats()
        fixed = 6 * sum(slot.seen.raw_bytes for slot in engine.slots() if slot.op == "Pow")
        assert stats["stored_bytes"] - fixed <= (stats["raw_bytes"] - fixed) / 8
        del loss


def test_nothing_is_sampled_and_nothing_changes_while_all_fits() -> None:
    net, arena = make_net(), HostArena()
    plain = make_net()
    step_data = torch.randn(512, 64)
    plain(step_data).square().mean().backward()
    with Engine(arena, bits="auto") as engine:
        for _ in range(40):
            net.zero_grad()
            net(step_data).square().mean().backward()
            assert not engine.policy.probe.is_on
        assert not arena.stashes
        stats = engine.stats()
        assert stats["compressed_bytes"] == stats["recomputed_bytes"] == 0
        assert stats["kept_bytes"] >= stats["peak_raw_bytes"]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


def test_readers_are_known_before_any_backward() -> None:
    net = make_net()
    with Engine(HostArena(), bits="auto") as engine:
        loss = net(torch.randn(512, 64)).square().mean()
        ops = {slot.name: slot.op for slot in engine.slots()}
        assert ops["Sequential.0:1"] == "Addmm"
        assert ops["Sequential.1:1"] == "Gelu"
        del loss


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer": (lambda: nn.LayerNorm(64), (256, 64)),
    "layer, no weight": (lambda: nn.LayerNorm(64, elementwise_affine=False), (256, 64)),
    "batch": (lambda: nn.BatchNorm2d(8), (16, 8, 6, 6)),
    "instance": (lambda: nn.InstanceNorm2d(8), (16, 8, 6, 6)),
    "group": (lambda: nn.GroupNorm(2, 8), (16, 8, 6, 6)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("along", [0.0, 3.0])
def test_the_noise_that_a_norm_passes_on_is_estimated_well_even_where_its_gradient_cancels(
    name: str, along: float
) -> None:
    torch.manual_seed(0)
    make, shape = NORMS[name]
    norm, x = make(), 2.0 * torch.randn(shape) + 0.5
    grad = torch.randn(shape) + along * norm(x).detach()
    noise = 0.02 * torch.randn(shape)

    def gradient(content: Tensor) -> Tensor:
        """As if `content` had been saved in the place of x, statistics and all else being those of x."""
        leaf = x.clone().requires_grad_()

        def unpack(saved: Tensor) -> Tensor:
            return content.view(saved.shape) if saved.numel() == x.numel() else saved

        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            out = norm(leaf)
        return torch.autograd.grad(out, leaf, grad)[0]

    made = energy_of(gradient(x + noise) - gradient(x))
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=8.0), min_bytes=1024) as engine:
        probe = engine.policy.probe
        norm(x.clone().requires_grad_() * 1).backward(grad)
        (flow, _) = probe.factors.norms
        estimated = flow.spread * energy_of(noise) / energy_of(x)
    assert 0.7 < estimated / made < 1.4


@pytest.mark.parametrize("name", ["matrices", "convolution", "elements", "batched"])
def test_noise_in_a_factor_is_weighed_whoever_multiplies(name: str) -> None:
    torch.manual_seed(0)
    shapes = {"matrices": ((64, 96), (96, 48)), "elements": ((64, 96), (64, 96)), "batched": ((4, 64, 96), (4, 96, 48))}
    first, second = shapes.get(name, ((8, 6, 12, 12), (5, 6, 3, 3)))
    product = {"elements": torch.mul, "convolution": nn.functional.conv2d}.get(name, torch.matmul)
    a, b = torch.randn(first), torch.randn(second, requires_grad=True)
    grad = torch.randn_like(product(a, b))

    def gradient(content: Tensor) -> Tensor:
        return torch.autograd.grad(product(content, b), b, grad)[0]

    noise = 0.1 * torch.randn(first)
    made = energy_of(gradient(a + noise) - gradient(a))
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=8.0), min_bytes=64) as engine:
        product(a.clone().requires_grad_() * 1, b * 1).backward(grad)
        estimated = next(one for one in engine.policy.probe.factors.found if one.slots and one.spread)
        assert estimated.pull == pytest.approx(energy_of(gradient(a)), rel=1e-3)
        assert 0.7 < estimated.spread * energy_of(noise) / energy_of(a) / made < 1.4


def test_what_no_gradient_was_seen_at_is_exact() -> None:
    leaf = torch.randn(128, 64, requires_grad=True)
    with Engine(HostArena(), bits="auto", wish=Wish(ratio=100.0), min_bytes=1024) as engine:
        for _ in range(4):
            h = leaf * 1
            ((h @ h.t()) * 0.0).sum().backward()
        assert engine.stats()["compressed_bytes"] == 0


def test_noise_shrinks_on_its_way_into_an_adapter_as_the_gradient_does() -> None:
    probe = Probe()
    probe.layers["adapter"] = Layer("adapter", clock=1, input_energy=50.0, rows=10.0, grad_energy=2.0)
    probe.slots[0] = SlotSample(clock=2, grad_energy=1000.0)
    slot = Slot(0, ("act", 1, torch.float32, 2), Facts(ops={"TanhBackward0"}))
    assert probe.scores([slot])[0] == 1000.0 * 50.0 / 10.0
    frozen = nn.Linear(8, 8).requires_grad_(False)
    x = torch.randn(4, 8, requires_grad=True)
    probe.see_layer("frozen", frozen, (x,), frozen(x))
    assert probe.scores([slot])[0] == pytest.approx(2.0 * 50.0 / 10.0)


def test_layers_that_are_frozen_below_all_trained_ones_are_no_sign_of_adapters() -> None:
    probe, frozen, x = Probe(), nn.Linear(8, 8).requires_grad_(False), torch.randn(4, 8)
    probe.see_layer("frozen", frozen, (x,), frozen(x))
    assert not probe.has_adapters
