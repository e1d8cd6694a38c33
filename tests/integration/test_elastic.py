"""The budget decides: exact while all fits, fewer bits where it does not, exact again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import daf

WIDTH = 64


def perceptron() -> nn.Module:
    blocks = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
              for _ in range(4)]  # fmt: skip
    return nn.Sequential(*blocks)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.unsqueeze(1))
        for block in self.blocks:
            x = x + block(x)
        return x


MODELS: list[Callable[[], nn.Module]] = [perceptron, encoder, Images]


def train(make: Callable[[], nn.Module], rows: Sequence[int]) -> list[list[Tensor]]:
    """The gradients of each step, outside of torch's memory; weights stand still, so that two runs can be compared."""
    torch.manual_seed(0)
    model, found = make(), []
    for number, count in enumerate(rows):
        model.zero_grad()
        torch.manual_seed(number)
        model(torch.randn(count, 64, WIDTH)).square().mean().backward()
        grads = [parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None]
        found.append([torch.from_numpy(grad.copy()) for grad in grads])
    return found


def need_bytes(make: Callable[[], nn.Module], rows: Sequence[int]) -> int:
    with daf.Session(budget="4GiB", bits="off") as session:
        train(make, rows)
        return int(session.stats()["peak_resident_bytes"])


def error(ours: list[Tensor], exact: list[Tensor]) -> float:
    difference = sum(float((a - b).square().sum()) for a, b in zip(ours, exact, strict=True))
    return float((difference / sum(float(b.square().sum()) for b in exact)) ** 0.5)


@pytest.mark.parametrize("make", MODELS)
def test_with_room_every_gradient_is_plain_torchs_to_the_last_bit(make: Callable[[], nn.Module]) -> None:
    rows = [32] * 4
    plain = train(make, rows)
    with daf.Session(budget=int(1.3 * need_bytes(make, rows))) as session:
        ours = train(make, rows)
        stats = session.stats()
    assert all(
        torch.equal(a, b) for one, other in zip(ours, plain, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert stats["compressed_bytes"] == stats["recomputed_bytes"] == stats["late_total"] == 0


@pytest.mark.parametrize("make", [perceptron, Images])
def test_where_memory_is_short_the_budget_is_kept_and_the_gradient_is_close(make: Callable[[], nn.Module]) -> None:
    rows = [64] * 6
    plain = train(make, rows)
    budget = int(0.65 * need_bytes(make, rows))
    with daf.Session(budget=budget) as session:
        ours = train(make, rows)
        stats = session.stats()
    assert stats["peak_resident_bytes"] <= 1.005 * budget
    assert stats["recomputed_bytes"] + stats["compressed_bytes"] > 0
    assert error(ours[-1], plain[-1]) < 0.1


def test_a_batch_twice_as_large_costs_bits_and_not_the_run_and_small_ones_are_exact_again() -> None:
    rows = [64, 64, 64, 128, 64, 64]
    plain = train(perceptron, rows)
    budget = int(1.1 * need_bytes(perceptron, rows[:3]))
    with daf.Session(budget=budget) as session:
        ours = train(perceptron, rows)
        stats = session.stats()
    assert stats["late_total"] > 0
    assert stats["peak_resident_bytes"] <= 1.005 * budget
    errors = [error(a, b) for a, b in zip(ours, plain, strict=True)]
    assert errors[:3] == [0.0] * 3
    assert 0.0 < errors[3] < 0.1
    assert errors[4:] == [0.0] * 2


def test_a_budget_lowered_within_a_step_lets_the_step_end_and_is_kept_from_the_next_on() -> None:
    rows = [64] * 10
    plain = train(perceptron, rows)
    need = need_bytes(perceptron, rows)
    wanted = int(0.7 * need)
    num_calls = 0

    def lower(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 50:  # in the middle of the third step's forward
            assert session.set_budget(wanted).state in ("applied", "pending")

    with daf.Session(budget=2 * need) as session:
        handle = nn.modules.module.register_module_forward_hook(lower)
        ours = train(perceptron, rows)
        handle.remove()
        stats = session.stats()
    assert stats["budget_bytes"] == wanted
    assert stats["last_step_resident_bytes"] <= 1.005 * wanted
    assert stats["recomputed_bytes"] + stats["compressed_bytes"] > 0
    assert max(error(a, b) for a, b in zip(ours, plain, strict=True)) < 0.1
