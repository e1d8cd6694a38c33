"""The gate in front of the hooks: what it answers in C is what the engine would have answered, to the last bit."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import daf
from daf.quant.saved.handles import Kept

Step = Callable[[int], Tensor]


class _Branches(nn.Module):
    """Control flow that depends on the data, a norm written out, and an op whose root amplifies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if float(x.sum()) > 0 else self.second(x).tanh()
        return self.scale * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def branches() -> Step:
    model = _Branches()
    return lambda step: model(torch.sin(torch.arange(64.0) + step).reshape(4, 16) + (-1) ** step).square().mean()


def batches() -> Step:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8))
    return lambda step: model(torch.cos(torch.arange(64.0 * (1 + step % 5)).reshape(-1, 64))).square().mean()


def two_models() -> Step:
    lstm, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 1)
    other = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1))

    def run(step: int) -> Tensor:
        if step % 2:
            return head(lstm(torch.ones(2, 5, 8) * step)[0]).mean()
        return other(torch.full((3, 1, 8, 8), 0.1 * step)).mean()

    return run


def attention() -> Step:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return lambda step: layer(torch.sin(torch.arange(2 * 6 * 16.0) + step).reshape(2, 6, 16)).square().mean()


def parameters_of(step: Step) -> list[nn.Parameter]:
    cells = [cell.cell_contents for cell in step.__closure__ or ()]
    return [parameter for cell in cells if isinstance(cell, nn.Module) for parameter in cell.parameters()]


def run(make: Callable[[], Step], session: daf.Session | None, *, is_fast: bool = True) -> tuple[list[Tensor], int]:
    """Losses and gradients of ten steps, and how many saves the gate answered."""
    torch.manual_seed(0)
    step, found = make(), []
    for number in range(10):
        if session is not None and not is_fast:
            session.engine._has_device = True  # a gate that never opens
        loss = step(number)
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in parameters_of(step) if p.grad is not None)]
    return found, session.engine.ledger.books.num_packs if session is not None else 0


@pytest.mark.parametrize("settings", [{"bits": "lossless"}, {"bits": 4}, {"ratio": 8}, {}], ids=str)
@pytest.mark.parametrize("make", [branches, batches, two_models, attention])
def test_the_gate_and_the_engine_give_the_same_losses_gradients_and_counts(make, settings):
    results, counts = [], []
    for is_fast in (False, True):
        with daf.Session(budget="256MiB", **settings) as session:
            session.engine._rest._may_rest = lambda: False
            found, num_answered = run(make, session, is_fast=is_fast)
            results.append(found)
            stats = session.stats()
            counts.append({name: stats[name] for name in stats if name.startswith(("passed_", "packs_"))})
            assert (num_answered > 0) is is_fast
            assert stats["failures_total"] == 0
    assert len(results[0]) == len(results[1])
    assert all(map(torch.equal, *results))
    assert counts[0] == counts[1]


@pytest.fixture(name="session")
def open_session() -> Iterator[daf.Session]:
    with daf.Session(budget="256MiB", bits="lossless") as session:
        torch.ones(3, requires_grad=True).exp().sum().backward()
        torch.ones(3, requires_grad=True).exp().sum().backward()
        yield session


def answered(session: daf.Session) -> int:
    return session.engine.ledger.books.num_packs


def test_a_small_tensor_counts_until_its_graph_is_gone(session):
    x = torch.ones(100, requires_grad=True)
    x.exp()  # begins the step
    before = answered(session)
    y = x.exp()
    assert answered(session) == before + 1
    assert session.engine.ledger.passed_bytes == 400
    session.engine.ledger.settle()
    assert session.stats()["saved_kept_bytes"] == 400
    del y
    session.engine.ledger.settle()
    assert session.stats()["saved_kept_bytes"] == session.stats()["passed_bytes"] == 0


def test_a_graph_is_freed_without_the_garbage_collector(session):
    x = torch.ones(100, requires_grad=True)
    x.exp()
    gc.disable()
    try:
        y = x.exp().exp().tanh()
        assert session.engine.ledger.books.live_bytes == 1200
        del y
        assert session.engine.ledger.books.live_bytes == 0
    finally:
        gc.enable()


def test_a_small_tensor_that_is_written_over_raises_torchs_error(session):
    x = torch.ones(10, requires_grad=True)
    x.exp()
    before = answered(session)
    y = x.exp()
    loss = y.sum()
    assert answered(session) > before
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_no_plain_tensor_goes_to_the_engine(session):
    class Odd(Tensor):
        pass

    weight = torch.ones(4, requires_grad=True)
    weight.exp()
    before = answered(session)
    out = weight * torch.eye(4).to_sparse().to_dense().as_subclass(Odd)
    out.sum().backward()
    assert session.stats()["passed_subclass_total"] == 1
    assert answered(session) <= before + 1


def test_double_backward_goes_through_the_gate(session):
    x = torch.linspace(-1, 1, 9, requires_grad=True)
    (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.allclose(x.grad, -torch.sin(2 * x.detach()))
    assert session.stats()["failures_total"] == 0


def test_an_exception_inside_a_followed_call_leaves_the_gate_open():
    class RMSNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 3:
                raise ValueError("three")
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    model = nn.Sequential(nn.Linear(256, 256), RMSNorm(), nn.Linear(256, 2))
    with daf.Session(budget="256MiB", bits=4) as session:
        for rows in (64, 64, 3, 64, 64):
            try:
                model(torch.randn(rows, 256)).sum().backward()
            except ValueError:
                continue
        session.engine.spot._next = lambda: None  # the clock chooses steps in which an op is measured, without the gate
        before = answered(session)
        x = torch.ones(3, requires_grad=True)
        x.exp()
        x.exp()
        assert answered(session) > before


def test_eight_threads_get_the_gradients_of_plain_torch():
    def work(results: dict[int, Tensor], seed: int) -> None:
        model = models[seed]
        for step in range(12):
            model(torch.sin(torch.arange(320.0) * (seed + step + 1)).reshape(10, 32)).square().mean().backward()
        results[seed] = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()

    models = [nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)) for _ in range(8)]
    plain: dict[int, Tensor] = {}
    for seed in range(8):
        work(plain, seed)
    with daf.Session(budget="256MiB", bits="lossless") as session:
        ours: dict[int, Tensor] = {}
        threads = [threading.Thread(target=work, args=(ours, seed)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answered(session) > 0
        gc.collect()
        assert session.stats()["passed_bytes"] == 0
    assert all(torch.equal(plain[seed], ours[seed]) for seed in range(8))


def test_a_handle_outlives_its_engine(session):
    x = torch.ones(10, requires_grad=True)
    x.exp()
    y = x.exp()
    assert isinstance(y.grad_fn._raw_saved_result.data, Kept)
    session.close()
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
