"""What compiled graphs save is compressed behind handles: soundly, in order, without compiling anew."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from daf.quant import Engine
from daf.quant.compiled import ops, pair, store
from daf.quant.compiled.readers import EAGER_ATTENTION
from daf.quant.plan.policy import Wish
from tests.unit.quant.host_arena import HostArena

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WIDTH, LENGTH, BATCH = 64, 64, 4
X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 2, WIDTH // 2)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block() for _ in range(num_blocks)))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def loss_of(model: nn.Module, x: Tensor = X) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), torch.arange(x.shape[0] * x.shape[1]) % 8)


class Mlp(nn.Module):
    """Quickly compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()) for _ in range(2))
        self.down, self.head = nn.Linear(4 * WIDTH, WIDTH), nn.Linear(4 * WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[1](self.down(self.blocks[0](x))))


def compile_loss(model: nn.Module, **options: Any) -> Callable[..., Tensor]:
    options = {"backend": "aot_eager", **options}
    return torch.compile(lambda x=X: loss_of(model, x), **options)


def gradient(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    model.zero_grad()
    loss().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours - exact).norm() / exact.norm())


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def arena() -> HostArena:
    return HostArena()


def engine_of(arena: HostArena, bits: int | str = 8, **options: Any) -> Engine:
    options = {"wish": Wish(ratio=8), **options} if bits == "auto" else options
    return Engine(arena, bits=bits, min_bytes=1024, **options)


# -- the ops


def test_the_ops_pass_torchs_own_checks() -> None:
    ops.define()
    x = torch.randn(64, 64)
    torch.library.opcheck(torch.ops.daf.stash.default, (x, 5))
    handle = torch.ops.daf.stash(x, 5)
    torch.library.opcheck(torch.ops.daf.unstash.default, (handle, x, [64, 64], [64, 1], torch.float32, 5))


@pytest.mark.parametrize("is_on", [False, True])
def test_a_handle_owns_its_stash(arena: HostArena, is_on: bool) -> None:
    ops.define()
    x = torch.randn(256, 256)
    before = len(ops.handles)
    with engine_of(arena, 4) if is_on else contextlib.nullcontext() as engine:
        handle = torch.ops.daf.stash(x, 1)
        assert (handle.dtype, handle.shape) == (torch.uint8, (16,))
        assert arena.num_live() == int(is_on)
        view = handle.detach()
        del handle
        got = torch.ops.daf.unstash(view, view, [256, 256], [1, 256], torch.float32, 1)
        assert got.stride() == (1, 256)
        assert error(got, x) < 0.15
        assert len(ops.handles) == before + 1
        del view
        assert len(ops.handles) == before
        assert engine is None or engine.stats()["stored_bytes"] == 0
        assert arena.num_live() == 0


# -- gradients


def test_a_compiled_transformer_is_compressed(arena: HostArena) -> None:
    model = Model()
    compiled = compile_loss(model, fullgraph=True)
    exact = gradient(model, lambda: loss_of(model))
    for bits, most in ((8, 0.02), (4, 0.2), ("auto", 0.6)):
        with engine_of(arena, bits) as engine:
            for _ in range(3):
                ours = gradient(model, compiled)
        stats = engine.stats()
        assert error(ours, exact) < most
        assert stats["failures_total"] == 0
        assert bits == "auto" or stats["peak_raw_bytes"] > 2 * stats["peak_stored_bytes"]
        assert arena.num_live() == 0
    floats = [slot for slot in engine.slots() if slot.facts.ops]
    assert len(floats) >= 16
    assert all(slot.facts.importance > 0 and slot.facts.curves for slot in floats)
    with engine_of(arena, "lossless"):
        assert error(gradient(model, compiled), exact) < 1e-6


def test_importance_of_attention_is_what_eager_code_measures(arena: HostArena) -> None:
    """Its own gradients are given to no op of a graph, but to the layer before."""
    model, found = Model(2), []
    for loss in (lambda: loss_of(model), compile_loss(model)):
        with engine_of(arena, "auto") as engine:
            for _ in range(4):
                gradient(model, loss)
        attended = [slot for slot in engine.slots() if slot.facts.ops == {EAGER_ATTENTION}]
        found.append(max(slot.facts.importance for slot in attended))
    eager, compiled = found
    assert eager / 8 < compiled < 8 * eager


def test_statistics_of_a_norm_are_exact(arena: HostArena) -> None:
    model = Mlp()
    model.head = nn.Sequential(nn.LayerNorm(4 * WIDTH), model.head)
    compiled = compile_loss(model)
    with engine_of(arena, 4) as engine:
        gradient(model, lambda: compiled(X.repeat(4, 1, 1)))
    assert engine.slots()
    assert not any(slot.seen.raw_bytes == 4 * BATCH * LENGTH * 4 for slot in engine.slots())


def test_attention_of_large_scores_stays_consistent(arena: HostArena) -> None:
    leaves = [torch.randn(2, 4, 256, 32).requires_grad_() for _ in range(3)]
    weight = 5 * torch.randn(32, 32, generator=torch.Generator().manual_seed(3)) / 32**0.5

    def attend(*inputs: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(one @ weight for one in inputs)).square().sum()

    exact = torch.autograd.grad(attend(*leaves), leaves)
    with engine_of(arena, 4) as engine:
        ours = torch.autograd.grad(torch.compile(attend, backend="aot_eager")(*leaves), leaves)
    assert engine.stats()["coded_total"] >= 3
    for got, want in zip(ours, exact, strict=True):
        assert got.norm() < 2 * want.norm()


def test_lossless_is_compiled_plain_to_the_last_bit(arena: HostArena) -> None:
    model = Mlp()
    compiled = compile_loss(model)
    exact = gradient(model, compiled)
    with engine_of(arena, "lossless"):
        assert torch.equal(gradient(model, compiled), exact)


FRAGILE: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda y: y.square().add(1).log(),
    "division": lambda y: 1 / (y.square() + 0.1),
    "root": lambda y: (y.square() + 1e-3).sqrt(),
    "power": lambda y: y.abs().add(0.1).pow(-1.5),
    "exponential": torch.exp,
    "log-softmax": lambda y: F.log_softmax(3 * y, -1),
    "written-out norm": lambda y: y * y.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt(),
    "largest": lambda y: y.amax(-1),
    "sorted": lambda y: y.sort(-1).values,
    "cumulative product": lambda y: (0.1 * y + 1).cumprod(-1),
    "difference": lambda y: (y - torch.cos(y @ y)).square(),
    "leaky": lambda y: F.leaky_relu(y, 0.2),
}


@pytest.mark.parametrize("name", FRAGILE)
def test_what_noise_would_harm_is_exact(arena: HostArena, name: str) -> None:
    weight = torch.randn(64, 64).requires_grad_()
    x = torch.randn(64, 64)

    def loss() -> Tensor:
        values = FRAGILE[name](x @ weight)
        return (values * torch.linspace(-1, 1, values.shape[-1])).sum()

    (exact,) = torch.autograd.grad(loss(), weight)
    with engine_of(arena, 1):
        (ours,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(), weight)
    assert error(ours, exact) < 1e-5, "a value that is divided by, or the like, was coded"


def test_relus_backward_knows_exactly_where_it_was_above_zero(arena: HostArena) -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)).requires_grad_()
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(6))

    def loss() -> Tensor:
        return ((x @ weight).relu() @ torch.ones(64, 64)).sum()

    (exact,) = torch.autograd.grad(loss(), weight)
    with engine_of(arena, 2) as engine:
        (ours,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager")(), weight)
    assert torch.allclose(ours, exact, rtol=1e-4, atol=1e-3)
    assert any(slot.plan.spec is not None and slot.plan.spec.codec == "support" for slot in engine.slots())


# -- order


@pytest.fixture
def most_alive(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes of decoded tensors that were alive at once, as the last element."""
    alive, most = [0], [0]
    restore = store.Planes.restore

    def counted(self: store.Planes, after: Tensor | None) -> Tensor:
        value = restore(self, after)
        alive[0] += value.nbytes
        most.append(max(most[-1], alive[0]))

        def gone(num_bytes: int = value.nbytes) -> None:
            alive[0] -= num_bytes

        weakref.finalize(value, gone)
        return value

    monkeypatch.setattr(store.Planes, "restore", counted)
    return most


def test_tensors_are_decoded_right_before_they_are_read(arena: HostArena, most_alive: list[int]) -> None:
    model = Model(3)
    compiled = compile_loss(model)
    with engine_of(arena, 4) as engine:
        compiled().backward()
    largest = max(slot.seen.raw_bytes for slot in engine.slots())
    assert 0 < most_alive[-1] <= 3 * largest


@pytest.mark.slow
def test_tensors_are_encoded_right_after_they_are_made(arena: HostArena, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = [0]
    encode = store.CompiledStore.stash

    def counted(self: Any, tensor: Tensor, slot_number: int) -> Any:
        alive.add(tensor.untyped_storage())
        most[0] = max(most[0], sum(storage.nbytes() for storage in alive))
        return encode(self, tensor, slot_number)

    monkeypatch.setattr(store.CompiledStore, "stash", counted)
    compiled = compile_loss(Model(3))
    with engine_of(arena, 4) as engine:
        compiled().backward()
    assert most[0] <= 4 * max(slot.seen.raw_bytes for slot in engine.slots())


# -- plans


def test_nothing_is_compiled_anew_when_budgets_change(arena: HostArena) -> None:
    model = Mlp()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = compile_loss(model, backend=counter)
    widths = set()
    with engine_of(arena, "auto") as engine:
        for step in range(200):
            arena.budget_bytes = 1 << (40 if step % 40 < 20 else 17)
            gradient(model, compiled)
            widths.add(tuple(slot.plan.spec for slot in engine.slots()))
    assert counter.frame_count == 1
    assert len(widths) > 2
    assert engine.stats()["failures_total"] == 0


def test_graphs_are_those_of_plain_torch_until_memory_is_short(
    arena: HostArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Mlp()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = compile_loss(model, backend=counter)
    with engine_of(arena, "auto", wish=Wish()) as engine:
        first = gradient(model, compiled)
        assert torch.equal(first, gradient(model, compiled))
        assert engine.stats()["coded_total"] == 0
        monkeypatch.setattr(engine.policy, "_keep_all", lambda: None)
        engine.policy.is_short = True
        for _ in range(3):
            gradient(model, compiled)
        assert counter.frame_count <= 2
        assert any(slot.facts.ops for slot in engine.slots())


# -- traps


def test_a_graph_that_never_runs_backward_frees_its_stashes(arena: HostArena) -> None:
    compiled = compile_loss(Mlp())
    with engine_of(arena, 4) as engine:
        loss = compiled()
        assert arena.num_live() > 0
        del loss
        gc.collect()
        assert engine.stats()["stored_bytes"] == 0
        assert arena.num_live() == 0


def test_gradients_accumulate_over_graphs_that_live_together(arena: HostArena) -> None:
    model = Mlp()
    compiled = compile_loss(model)
    exact = gradient(model, lambda: loss_of(model, X) + loss_of(model, 2 * X))
    with engine_of(arena, 8):
        ours = gradient(model, lambda: compiled(X) + compiled(2 * X))
    assert error(ours, exact) < 0.02
    assert arena.num_live() == 0


def test_sizes_may_change(arena: HostArena) -> None:
    model = Mlp()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = compile_loss(model, backend=counter, dynamic=True)
    with engine_of(arena, 8):
        for length in (48, 33, 40, 24):
            ours = gradient(model, lambda x=X[:, :length]: compiled(x))
            assert error(ours, gradient(model, lambda x=X[:, :length]: loss_of(model, x))) < 0.03
    assert counter.frame_count == 1


@pytest.mark.slow
def test_two_compiled_models_train_in_turn(arena: HostArena) -> None:
    models = Mlp(), Model(1)
    compiled = [compile_loss(model) for model in models]
    with engine_of(arena, 8):
        ours = [gradient(one, f) for one, f in zip(models, compiled, strict=True) for _ in "ab"]
    for got, model in zip(ours[::2], models, strict=True):
        assert error(got, gradient(model, lambda m=model: loss_of(m))) < 0.02


def test_regions_of_a_model_may_be_compiled(arena: HostArena) -> None:
    model = Model(1)
    exact = gradient(model, lambda: loss_of(model))
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    with engine_of(arena, 8) as engine:
        assert error(gradient(model, lambda: loss_of(model)), exact) < 0.2  # the loss, in eager code, is coarser
    assert engine.stats()["coded_total"] > 8


def test_mixed_precision_keeps_copies_of_weights_exact(arena: HostArena) -> None:
    model = Mlp()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled()

    compiled = compile_loss(model)
    exact = gradient(model, loss)
    with engine_of(arena, 8) as engine:
        assert error(gradient(model, loss), exact) < 0.05
    halves = [slot for slot in engine.slots() if slot.key[2] is torch.bfloat16]
    assert halves
    assert all(slot.seen.raw_bytes % (2 * BATCH * LENGTH) == 0 for slot in halves)


@pytest.mark.slow
def test_a_checkpoint_inside_what_is_compiled(arena: HostArena) -> None:
    model = Model(1)

    def forward(x: Tensor) -> Tensor:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return model.head(x)

    exact = gradient(model, lambda: loss_of(model))
    with engine_of(arena, 8):
        compiled = torch.compile(lambda: loss_of(forward), backend="aot_eager")
        assert error(gradient(model, compiled), exact) < 0.02
    assert arena.num_live() == 0


def test_a_backward_may_run_twice_where_torch_lets_it(arena: HostArena) -> None:
    model = Mlp()
    compiled = compile_loss(model)
    with engine_of(arena, 8), torch._functorch.config.patch(donated_buffer=False):
        loss = compiled()
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_on_after_the_model_was_compiled_and_off_again(arena: HostArena) -> None:
    model = Mlp()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = compile_loss(model, backend=counter)
    exact = gradient(model, compiled)
    for _ in range(2):
        with engine_of(arena, 8) as engine:
            assert 0 < error(gradient(model, compiled), exact) < 0.02
            assert engine.stats()["coded_total"] >= 4
        assert torch.equal(gradient(model, compiled), exact)
    assert counter.frame_count <= 3


def test_a_torch_that_does_not_inline_keeps_all_exact_and_says_so(
    arena: HostArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch._functorch._aot_autograd.utils, "saved_tensors_hooks_are_inlineable", lambda _hooks: False
    )
    model = Mlp()
    compiled = compile_loss(model)
    exact = gradient(model, lambda: loss_of(model))
    with engine_of(arena, 2) as engine, pytest.warns(UserWarning, match="compiled graph"):
        ours = gradient(model, compiled)
    assert error(ours, exact) < 1e-5
    assert engine.stats()["passed_compiled_total"] >= 4


def test_a_torch_that_inlines_in_another_way_keeps_all_exact(arena: HostArena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "why_not", lambda: "torch 9 inlines in another way")
    model = Mlp()
    compiled = compile_loss(model)
    exact = gradient(model, lambda: loss_of(model))
    with engine_of(arena, 2):
        assert error(gradient(model, compiled), exact) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_inductor_compresses_in_order(arena: HostArena, most_alive: list[int]) -> None:
    model = Model(2)
    compiled = compile_loss(model, backend="inductor")
    with engine_of(arena, 4) as engine:
        ours = gradient(model, compiled)
    assert error(ours, gradient(model, lambda: loss_of(model))) < 0.3
    assert engine.stats()["coded_total"] > 15
    assert 0 < most_alive[-1] <= 3 * max(slot.seen.raw_bytes for slot in engine.slots())
    assert arena.num_live() == 0


def test_compiled_autograd_runs_the_same_ops(arena: HostArena) -> None:
    model = Mlp()
    exact = gradient(model, lambda: loss_of(model))
    with engine_of(arena, 8) as engine, torch._dynamo.config.patch(compiled_autograd=True):
        assert error(gradient(model, compile_loss(model)), exact) < 0.02
    assert engine.stats()["coded_total"] >= 4
    assert arena.num_live() == 0
