# ruff: noqa: ARG001  (a fixture that is only switched on is an argument all the same)
"""What users of such engines trip over, one test each."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from daf.quant import Engine
from tests.unit.quant.host_arena import HostArena

WIDE = 1 << 14


@pytest.fixture
def arena() -> HostArena:
    return HostArena()


@pytest.fixture
def lossless(arena: HostArena) -> Iterator[Engine]:
    with Engine(arena, bits="lossless") as engine:
        yield engine


@pytest.fixture
def coarse(arena: HostArena) -> Iterator[Engine]:
    with Engine(arena, bits=2) as engine:
        yield engine


def gradients(loss: Callable[[], Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss(), leaves)


def wide(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_parameters_and_their_views_are_never_encoded(coarse: Engine, arena: HostArena) -> None:
    layer = nn.Linear(256, 256)
    x = wide(4, 256).requires_grad_()
    layer(x).sum().backward()
    (x @ layer.weight.t()[:, :128]).sum().backward()
    assert arena.stashes == []
    assert coarse.stats()["passed_parameter_total"] >= 1


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_weight_that_autocast_copied_is_not_encoded(coarse: Engine, arena: HostArena, is_frozen: bool) -> None:
    layer = nn.Linear(256, 256).requires_grad_(not is_frozen)
    x = wide(2, 256).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    assert arena.stashes == []


def test_one_storage_saved_many_times_is_encoded_once(lossless: Engine, arena: HostArena) -> None:
    x = wide(64, 256).requires_grad_() * 1
    q, k, v = (nn.Linear(256, 8) for _ in range(3))
    loss = (q(x) + k(x) + v(x.view(8, 8, 256)).view(64, 8)).sum()
    assert len(arena.stashes) == 1
    assert lossless.stats()["shared_total"] == 2
    loss.backward()


def test_a_new_tensor_at_the_address_of_a_freed_one_is_not_taken_for_it(lossless: Engine) -> None:
    leaves = [wide(WIDE, 1).requires_grad_() for _ in range(20)]
    loss = sum(((leaf * (1.0 + i)).exp().sum() for i, leaf in enumerate(leaves)), torch.zeros(()))
    grads = torch.autograd.grad(loss, leaves)
    for i, (leaf, grad) in enumerate(zip(leaves, grads, strict=True)):
        assert torch.equal(grad, (leaf * (1.0 + i)).exp() * (1.0 + i))


def test_a_tensor_changed_between_two_saves_is_encoded_twice(lossless: Engine) -> None:
    a, b, y = (wide(WIDE, n).requires_grad_() for n in (2, 3, 2))
    x = wide(WIDE, 2)
    first = x.clone()
    out = (x * a).sum()
    x.add_(1.0)
    out = out + (x * y).sum() + b.sum()
    grad_a, grad_y = torch.autograd.grad(out, (a, y))
    assert torch.equal(grad_a, first)
    assert torch.equal(grad_y, first + 1.0)


@pytest.mark.parametrize(
    ("norm", "x"),
    [
        (nn.LayerNorm(16), wide(4096, 16)),
        (nn.GroupNorm(64, 64), wide(64, 64, 16)),
        (nn.RMSNorm(16), wide(4096, 16)),
    ],
)
def test_statistics_of_norms_stay_exact(norm: nn.Module, x: Tensor, arena: HostArena) -> None:
    with Engine(arena, bits=2, min_bytes=4096) as engine:
        norm(x.requires_grad_()).square().sum().backward()
    assert engine.stats()["passed_statistic_total"] == 2


def test_log_probabilities_get_the_bits_that_their_exponential_needs(arena: HostArena) -> None:
    logits, targets = (8.0 * wide(64, 512)).requires_grad_(), torch.arange(64)
    exact = torch.autograd.grad(F.cross_entropy(logits, targets), logits)[0]
    with Engine(arena, bits=2):
        ours = torch.autograd.grad(F.cross_entropy(logits * 1.0, targets), logits)[0]
    assert (ours - exact).norm() < 0.2 * exact.norm()


def test_an_expanded_tensor_stays_small_and_keeps_its_shape(lossless: Engine, arena: HostArena) -> None:
    row = wide(1, WIDE)
    x = wide(64, WIDE).requires_grad_()
    loss = (x * row.expand(64, WIDE)).sum()
    assert arena.num_live() == 1
    assert lossless.stats()["raw_bytes"] == row.nbytes
    (grad,) = torch.autograd.grad(loss, x)
    assert torch.equal(grad, row.expand(64, WIDE))


@pytest.mark.parametrize("bits", [2, 8, "lossless"])
def test_channels_last_strides_come_back(bits: int | str) -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            seen.append(ctx.saved_tensors[0])
            return grad

    with Engine(HostArena(), bits=bits):
        x = wide(2, 16, 32, 32).requires_grad_().to(memory_format=torch.channels_last)
        Look.apply(x).sum().backward()
    assert seen[0].stride() == x.stride()
    assert torch.allclose(seen[0], x, atol=0.0 if bits == "lossless" else 4.0)


def test_a_slice_lets_go_of_the_whole_it_was_cut_from(lossless: Engine) -> None:
    whole = wide(512, 512) * 1
    leaf = wide(512, 128).requires_grad_()
    gone = weakref.ref(whole)
    part = whole[:, :128]
    expected = part.clone()
    loss = (leaf * part).sum()
    del whole, part
    assert gone() is None
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], expected)


def test_packing_does_not_hold_the_graph_alive(coarse: Engine, arena: HostArena) -> None:
    gc.disable()
    try:
        x = wide(256, 256).requires_grad_()
        y = torch.tanh(x * 1)
        small = torch.tanh(x[:2, :2])
        gone = [weakref.ref(y), weakref.ref(small)]
        del y, small
        assert [reference() for reference in gone] == [None, None]
        assert coarse.stats()["stored_bytes"] == 0
        assert arena.num_live() == 0
    finally:
        gc.enable()


def test_a_kept_tensor_changed_in_place_raises_as_torch_does(coarse: Engine) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    y = x * 1
    loss = (y * y).sum()
    y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_can_run_again_over_a_retained_graph(lossless: Engine) -> None:
    x = wide(128, 128).requires_grad_()
    loss = torch.tanh(x * 1).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    for _ in range(3):
        assert torch.equal(torch.autograd.grad(loss, x, retain_graph=True)[0], first)


def test_double_backward_goes_through(lossless: Engine) -> None:
    x = wide(64, 128).requires_grad_()
    (grad,) = torch.autograd.grad((x * 1).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.allclose(second, 6 * x)


def test_only_the_users_own_innermost_hooks_run_inside_their_context(coarse: Engine, arena: HostArena) -> None:
    x = wide(256, 256).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        inside = (x * 1).exp()
    assert arena.stashes == []
    outside = (x * 1).exp()
    assert len(arena.stashes) == 1
    (inside.sum() + outside.sum()).backward()


def test_other_threads_are_hooked_at_their_first_module_call(coarse: Engine, arena: HostArena) -> None:
    net = nn.Sequential(nn.Tanh(), nn.Linear(128, 4))

    def work() -> None:
        net(wide(256, 128).requires_grad_() * 1).sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert arena.stashes
    assert arena.num_live() == 0


def test_torch_func_transforms_work_while_the_engine_is_on(coarse: Engine, arena: HostArena) -> None:
    weight = wide(64, 64)
    per_sample = torch.func.vmap(torch.func.grad(lambda w, x: (w @ x).tanh().sum()), in_dims=(None, 0))
    assert per_sample(weight, wide(32, 64)).shape == (32, 64, 64)
    jacobian = torch.func.jacrev(lambda x: x.sin())(wide(8, 8))
    assert jacobian.shape == (8, 8, 8, 8)
    (wide(256, 256).requires_grad_() * 1).exp().sum().backward()
    assert arena.stashes, "the hooks are back afterwards"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # what torch's own forward mode uses
def test_modules_work_inside_torch_func_transforms(coarse: Engine, arena: HostArena) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1))
    params = {name: parameter.detach() for name, parameter in net.named_parameters()}
    x = wide(256, 64)

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(net, params, (x,)).sum()

    whole = torch.func.grad(loss)(params, x)
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)
    for name, grad in whole.items():
        assert torch.allclose(per_sample[name].sum(0), grad, rtol=1e-3, atol=1e-3)
    assert not arena.stashes
    net(x).sum().backward()
    assert arena.stashes, "the hooks are back afterwards"
    assert torch.func.hessian(lambda x: net(x).sum())(x[:2]).isfinite().all()
    assert coarse.stats()["failures_total"] == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "hessian",
    [
        lambda loss, scale: torch.func.hessian(loss)(scale),
        torch.autograd.functional.hessian,
        lambda loss, scale: torch.autograd.functional.hessian(loss, scale, vectorize=True),
    ],
)
def test_second_derivatives_are_those_of_plain_torch(lossless: Engine, hessian: Callable[..., Tensor]) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 1))
    x, scale = wide(128, 64), wide(4)

    def loss(scale: Tensor) -> Tensor:
        return net(x * scale.repeat(16)).square().sum()

    ours = hessian(loss, scale)
    lossless.remove()
    assert torch.equal(ours, hessian(loss, scale))
    assert lossless.stats()["failures_total"] == 0


@pytest.mark.parametrize("vectorize", [False, True])
def test_batched_gradients_of_autograd_functional(coarse: Engine, vectorize: bool) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 1))
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x).sum(0), wide(256, 64), vectorize=vectorize)
    assert jacobian.shape == (1, 256, 64)
    hessian = torch.autograd.functional.hessian(lambda x: net(x).sum(), wide(4, 64), vectorize=vectorize)
    assert hessian.isfinite().all()
    assert coarse.stats()["failures_total"] == 0


@pytest.mark.filterwarnings("ignore:.*Sparse CSR:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_pass_through(coarse: Engine, layout: torch.layout) -> None:
    matrix, weight = torch.relu(wide(256, 256)).to_sparse(layout=layout), wide(256, 64).requires_grad_()
    (grad,) = gradients(lambda: torch.sparse.mm(matrix, weight).sum(), weight)
    assert torch.allclose(grad, matrix.to_dense().sum(0)[:, None].expand(256, 64), rtol=1e-4, atol=1e-3)
    assert coarse.stats()["passed_unsupported_total"] > 0
    assert coarse.stats()["failures_total"] == 0


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_nested_tensors_pass_through(lossless: Engine) -> None:
    layer = nn.Linear(256, 64)

    def loss() -> Tensor:
        rows = layer(torch.nested.nested_tensor([wide(256, 256), wide(100, 256)]))
        return torch.nested.to_padded_tensor(rows, 0.0).square().sum()

    (ours,) = gradients(loss, layer.weight)
    assert lossless.stats()["failures_total"] == 0
    assert lossless.stats()["passed_unsupported_total"] > 0
    lossless.remove()
    assert torch.equal(ours, *gradients(loss, layer.weight))


def test_a_lazily_negated_tensor_comes_back_with_its_sign(coarse: Engine) -> None:
    x = torch.complex(wide(256, 256), wide(256, 256)).requires_grad_()
    ours = gradients(lambda: torch._neg_view(x.real.contiguous()).pow(3).sum(), x)
    coarse.remove()
    theirs = gradients(lambda: torch._neg_view(x.real.contiguous()).pow(3).sum(), x)
    assert torch.equal(ours[0], theirs[0])


def test_compiled_models_train(coarse: Engine) -> None:
    net = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))
    x = wide(256, 128)
    compiled = torch.compile(net, backend="aot_eager")
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    coarse.remove()
    net.zero_grad()
    net(x).sum().backward()
    for ours, plain in zip(got, net.parameters(), strict=True):
        assert F.cosine_similarity(ours.flatten(), plain.grad.flatten(), dim=0) > 0.8


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_works_in_both_forms(lossless: Engine, use_reentrant: bool) -> None:
    net = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128))
    x = wide(256, 128).requires_grad_()
    plain = torch.autograd.grad(net(x).square().sum(), (x, *net.parameters()))
    net.zero_grad()
    checkpoint(net, x, use_reentrant=use_reentrant).square().sum().backward()
    for want, got in zip(plain, (x, *net.parameters()), strict=True):
        assert torch.equal(want, got.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_amp_trains_in_both_half_types(coarse: Engine, dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 4))
    with torch.autocast("cpu", dtype):
        net(wide(256, 128)).float().square().mean().backward()
    assert coarse.stats()["coded_total"] > 0
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_masks_with_infinities_stay_exact(coarse: Engine) -> None:
    mask = torch.zeros(128, 128).masked_fill_(torch.rand(128, 128) > 0.5, float("-inf"))
    odd = mask.clone()
    odd[0, :3] = torch.tensor([1.0, 2.0, float("inf")])
    for saved in (mask, odd):
        a = wide(128, 128).requires_grad_()
        (grad,) = torch.autograd.grad((a * saved).sum(), a)
        assert torch.equal(grad, saved)


def test_saved_tensors_that_nobody_asks_for_are_let_go(coarse: Engine, arena: HostArena) -> None:
    x = wide(256, 256).requires_grad_() * 1
    y = x.exp()
    assert arena.num_live() == 1
    del y
    coarse.stats()
    assert arena.num_live() == 0


def test_fused_attention_lets_go_of_its_planes_without_the_garbage_collector(coarse: Engine, arena: HostArena) -> None:
    gc.disable()
    try:
        q, k, v = (torch.randn(2, 4, 64, 32, requires_grad=True) * 1 for _ in range(3))
        F.scaled_dot_product_attention(q, k, v).square().sum().backward()
        del q, k, v
        assert arena.num_live() == 0
    finally:
        gc.enable()


def test_small_tensors_are_passed_through(coarse: Engine, arena: HostArena) -> None:
    (torch.randn(8, 8, requires_grad=True) * 1).exp().sum().backward()
    assert arena.stashes == []
    assert coarse.stats()["passed_small_total"] >= 1


def test_dropout_noise_comes_back_exactly_from_one_plane(coarse: Engine) -> None:
    x = wide(256, 256).requires_grad_()
    torch.manual_seed(3)
    out = F.dropout(x * 1, 0.1)
    assert coarse.stats()["stored_bytes"] * 16 < coarse.stats()["raw_bytes"]
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.manual_seed(3)
    coarse.remove()
    assert torch.equal(grad, torch.autograd.grad(F.dropout(x * 1, 0.1).sum(), x)[0])


def test_no_relu_mask_is_ever_wrong(coarse: Engine) -> None:
    x = wide(256, 256).requires_grad_()
    (grad,) = torch.autograd.grad(F.relu(x * 1).sum(), x)
    assert torch.equal(grad, (x > 0).float())


def test_integers_come_back_exactly(coarse: Engine, arena: HostArena) -> None:
    table = torch.randn(5000, 4, requires_grad=True)
    ids = torch.randint(5000, (64, 128))
    F.embedding(ids, table).sum().backward()
    assert arena.stashes
    assert torch.equal(table.grad[:, 0], torch.bincount(ids.flatten(), minlength=5000).float())


def test_a_failing_encoder_costs_compression_and_never_the_run(
    coarse: Engine, arena: HostArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(arena, "reserve", fail)
    x = wide(256, 256).requires_grad_()
    with pytest.warns(UserWarning, match="broken on purpose"):
        loss = (x * 1).exp().sum()
    (grad,) = torch.autograd.grad(loss + (x * 2).exp().sum(), x)
    assert torch.allclose(grad, x.exp() + 2 * (2 * x).exp())
    assert coarse.stats()["failures_total"] >= 2


def test_switched_off_nothing_is_hooked(arena: HostArena) -> None:
    with Engine(arena, bits="off") as engine:
        nn.Linear(256, 256)(wide(256, 256)).exp().sum().backward()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert engine.stats()["packs_total"] == 0


@pytest.mark.parametrize(
    "part", ["recompute.module_rerun.is_candidate", "engine.bound_input", "measure.importance._grads_energy"]
)
def test_whatever_else_fails_costs_no_run_either(coarse: Engine, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fail(*_args: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(f"daf.quant.{part}", fail)
    net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1))
    with pytest.warns(UserWarning, match="broken on purpose"):
        net(wide(256, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert coarse.stats()["failures_total"] > 0


def test_a_graph_made_under_the_engine_runs_after_it_is_gone(arena: HostArena) -> None:
    x = wide(256, 256).requires_grad_()
    with Engine(arena, bits="lossless"):
        loss = (x * 1).exp().sum()
    (grad,) = torch.autograd.grad(loss, x)
    assert torch.equal(grad, x.exp())
    (x * 1).exp().sum().backward()
    assert len(arena.stashes) == 1


@pytest.mark.parametrize("bits", [8, "lossless"])
@pytest.mark.parametrize("refill", ["data", "numpy", "shuffled"])
def test_a_buffer_refilled_behind_autograds_back_is_another_content(bits: int | str, refill: str) -> None:
    net, buffer = nn.Linear(64, 1, bias=False), torch.randn(256, 64)
    new = buffer.flip(0) if refill == "shuffled" else torch.randn(256, 64)
    with Engine(HostArena(), bits=bits, min_bytes=1024):
        for _ in range(2):
            first = net(buffer).sum()
        if refill == "numpy":
            buffer.numpy()[:] = new.numpy()
        else:
            buffer.data.copy_(new)
        (ours,) = torch.autograd.grad((net(buffer) * torch.arange(256.0)[:, None]).sum(), net.weight)
    exact = torch.arange(256.0) @ new
    assert (ours - exact).norm() < 0.05 * exact.norm()
    assert first is not None


def test_a_weight_that_weight_norm_makes_is_no_activation() -> None:
    """It is made of parameters alone and read by the gradient of everything before it."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(256, 256))
    x = torch.randn(64, 256, requires_grad=True)
    with Engine(HostArena(), bits=1):
        (ours,) = torch.autograd.grad(layer(x * 1).sum(), x)
    (plain,) = torch.autograd.grad(layer(x * 1).sum(), x)
    assert torch.equal(ours, plain)
