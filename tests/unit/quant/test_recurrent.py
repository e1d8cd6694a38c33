"""LSTM layers run again instead of being stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena


class Language(nn.Module):
    """Embedding, LSTM, vocabulary."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True, **options)  # type: ignore[arg-type]
        self.head = nn.LazyLinear(64)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.lstm(self.token(tokens))[0]).flatten(0, 1), tokens.flatten())


def gradients(net: nn.Module, tokens: Tensor) -> list[Tensor]:
    net.zero_grad()
    net(tokens).backward()
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}])
def test_an_lstm_stores_a_sixth_and_its_gradient_is_near(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    net, tokens = Language(**options), torch.randint(64, (16, 48))
    plain = gradients(net, tokens)
    with Engine(HostArena(), bits=8) as engine:
        for _ in range(3):
            ours = gradients(net, tokens)
        stats = engine.stats()
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(ours, plain, strict=True)]
    assert max(errors) < 0.05
    assert stats["peak_raw_bytes"] > 6 * stats["peak_stored_bytes"]


def test_a_second_backward_over_an_lstm_gives_the_same() -> None:
    torch.manual_seed(0)
    net, tokens = Language(), torch.randint(64, (16, 48))
    with Engine(HostArena(), bits=8):
        loss = net(tokens)
        first = torch.autograd.grad(loss, net.lstm.weight_hh_l0, retain_graph=True)[0]
        second = torch.autograd.grad(loss, net.lstm.weight_hh_l0)[0]
    assert torch.equal(first, second)


def test_the_last_state_that_another_op_saves_is_that_state() -> None:
    torch.manual_seed(0)
    lstm, x = nn.LSTM(64, 64), torch.randn(8, 128, 64)

    def gradient() -> Tensor:
        _, (hidden, cell) = lstm(x)
        return torch.autograd.grad((hidden * cell).tanh().sum(), lstm.weight_hh_l0)[0]

    plain = gradient()
    with Engine(HostArena(), bits=8):
        for _ in range(3):
            ours = gradient()
    assert (ours - plain).norm() < 0.05 * plain.norm()
