"""The engine with the Triton twins in place of C, in Triton's interpreter: one function a case, run by triton_process.

Each returns what differs from the same training with C. The tensors are on the CPU; all else is as on a device.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daf.allocator import Arena
from daf.kernels import Spec, coder
from daf.kernels.triton import codec
from daf.quant import Engine
from daf.quant.encode.backends import CudaDevice, Device, Host
from daf.quant.encode.encoder import _curve
from daf.quant.plan.policy import Wish
from daf.quant.recompute import attention
from daf.quant.saved.layout import layout_of
from tests.unit.allocator.cuda_double import CudaDouble

CPU = torch.device("cpu")
MIN_BYTES = 2048  # the interpreter is slow
Between = Callable[[Arena], object]
Make = Callable[[], tuple[nn.Module, Callable[[int], Tensor]]]


def host_arena() -> Arena:
    return Arena(64 << 20, page_bytes=512, publish=False)


@contextmanager
def engine_at(*, on_device: bool, make_arena: Callable[[], Arena] = host_arena, **settings: Any) -> Iterator[Engine]:
    with make_arena() as home:
        engine = Engine(home, min_bytes=MIN_BYTES, **settings)
        if on_device:
            engine.backends.host = Device(home, CPU)
        with engine:
            yield engine


def nothing(_arena: Arena) -> None: ...


def gradients(make: Make, engine: Engine, steps: int, between: Between = nothing) -> list[Tensor]:
    """Of `steps` steps; `between` runs between forward and backward."""
    torch.manual_seed(0)
    model, loss_of = make()
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = loss_of(step)
        between(engine.arena)
        found += torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return found


def differences(make: Make, steps: int = 2, between: Between = nothing, **settings: Any) -> list[str]:
    with engine_at(on_device=False, **settings) as engine:
        want = gradients(make, engine, steps, between)
    with engine_at(on_device=True, **settings) as engine:
        got = gradients(make, engine, steps, between)
        stats = engine.stats()
    found = [f"gradient {i}" for i, (a, b) in enumerate(zip(want, got, strict=True)) if not same(a, b)]
    if stats["failures_total"] or not stats["coded_total"] or "passed_kernel_total" in stats:
        found.append(f"not all was coded: {stats}")
    return found


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def convolutions(batch: int = 2) -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU(), nn.Flatten()
    )
    return model, lambda _step: model(torch.randn(batch, 3, 14, 14)).square().mean()


class Block(nn.Module):
    """One block of a transformer over embedded tokens, with dropout in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = (t.view(*ids.shape, 2, 8).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(a.transpose(1, 2).flatten(2)), 0.1)
        return x + self.down(F.dropout(F.gelu(self.up(self.norm2(x))), 0.1))  # type: ignore[no-any-return]


def transformer() -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = Block()
    return model, lambda _step: model(torch.randint(300, (2, 64))).square().mean()


def half_transformer() -> tuple[nn.Module, Callable[[int], Tensor]]:
    model, loss_of = transformer()

    def loss(step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(step)

    return model, loss


class Scaled(nn.Module):
    """y = w * constant: autograd saves the constant."""

    def __init__(self, constants: list[Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(constants[0].shape[-1]))
        self.constants = constants

    def forward(self, step: int) -> Tensor:
        return (self.weight * self.constants[step]).sum()


def scaled(*constants: Tensor) -> Make:
    def make() -> tuple[nn.Module, Callable[[int], Tensor]]:
        model = Scaled(list(constants))
        return model, model

    return make


def picked(*widths: int) -> Make:
    """Indices that need so many bits, step by step."""

    def make() -> tuple[nn.Module, Callable[[int], Tensor]]:
        model = nn.Embedding(1 << max(widths), 2)
        return model, lambda step: model(torch.arange(900) % (1 << widths[step])).square().mean()

    return make


# -- cases


def conv_net() -> list[str]:
    return differences(convolutions, bits=2)


def transformer_block() -> list[str]:
    return differences(transformer, bits=2)


def half_precision() -> list[str]:
    return differences(half_transformer, bits=2)


def stochastic_rounding() -> list[str]:
    return differences(convolutions, steps=1, bits=2, rounding="stochastic")


def lossless() -> list[str]:
    return differences(transformer, bits="lossless")


def evicted_within_a_step() -> list[str]:
    return differences(convolutions, bits=2, floor=0, between=lambda arena: arena.evict(4))


def over_the_drivers_double() -> list[str]:
    """Planes in a device's arena, whose memory the double makes of the machine's own."""
    with tempfile.TemporaryDirectory() as folder:
        double = CudaDouble(pathlib.Path(folder))
        double.reset()

        def device_arena() -> Arena:
            double.malloc(1 << 20)
            return Arena.of(int(double.ffi.cast("uintptr_t", double.lib.daf_cuda_arena(0))), device="cuda:0")

        found = differences(
            lambda: convolutions(8), bits=2, floor=0, between=lambda arena: arena.evict(4), make_arena=device_arena
        )
        with device_arena() as arena:
            found += [] if arena.stats()["plane_bytes"] == 0 else ["planes are left"]
            found += [] if arena.stats()["evictions_total"] else ["nothing was evicted"]
        double.lib.daf_cuda_detach(0)
        return [*found, *(["violations"] if double.violations() or double.mapped_bytes() else [])]


def planned() -> list[str]:
    """`auto` samples a few groups of each tensor, so its curves are near C's and not equal to them."""
    with engine_at(on_device=True, bits="auto", wish=Wish(ratio=16)) as engine:
        gradients(transformer, engine, 3)
        stats = engine.stats()
        slots = [slot for slot in engine.slots() if slot.facts.curves]
    found = [] if slots and not stats["failures_total"] else [f"nothing was planned: {stats}"]
    for shape in ((5000,), (130, 100), (512, 70), (1300, 33)):
        for group in ("run", "column")[: len(shape)]:
            found += curve_differs(torch.randn(shape), group)
    return found


def curve_differs(x: Tensor, group: str) -> list[str]:
    layout, arena = layout_of(x.shape, x.stride()), Arena(1 << 20, publish=False)
    want, got = (
        _curve(("meansplit", group, range(1, 5)), x, layout, place) for place in (Host(arena), Device(arena, CPU))
    )
    is_near = all(abs(a - b) <= 0.15 * a for a, b in zip(want.errors, got.errors, strict=True))
    return [] if is_near and want.stored_bytes == got.stored_bytes else [f"{tuple(x.shape)} {group}: {want} {got}"]


def integer_widths() -> list[str]:
    arena, found = Arena(1 << 20, publish=False), []
    for numbers in ([5], [0, 1], [-(2**63), 2**63 - 1], [7] * 5000, [*range(5000)], [-3, *[9] * 4095, 100, 101]):
        x = torch.tensor(numbers)
        want, got = Host(arena).num_int_bits(x), Device(arena, CPU).num_int_bits(x)
        if want != got:
            found.append(f"{numbers[:4]}: {got} bits instead of {want}")
    return found


def integers_that_grow_wider() -> list[str]:
    """The third step does not fit the width of the first two: the tensor itself is held, the fourth looks anew."""
    return differences(picked(4, 4, 9, 9, 4), steps=5, bits=2)


def a_mask_that_is_none() -> list[str]:
    mask = (torch.arange(2000) % 3 == 0).float().view(2, 1000) * 1.25
    return differences(scaled(mask, mask, torch.randn(2, 1000), mask), steps=4, bits="lossless")


def an_infinity_that_comes_later() -> list[str]:
    x = torch.randn(2, 1000)
    bad = x.clone()
    bad[0, 7] = float("inf")
    with engine_at(on_device=True, bits=2) as engine:
        got = gradients(scaled(x, bad, bad), engine, 3)
    want = [bad.sum(0)] * 2
    return [f"step {i + 1}" for i, (a, b) in enumerate(zip(got[1:], want, strict=True)) if not torch.equal(a, b)]


def a_tensor_held_in_doubt_is_let_go() -> list[str]:
    """Once the device has answered: at the next save."""
    with engine_at(on_device=True, bits=2) as engine:
        weight = nn.Parameter(torch.randn(1000))
        losses, held = [], []
        for _ in range(4):
            x = torch.randn(2, 1000)
            held.append(weakref.ref(x.untyped_storage()))
            losses.append((weight * x).sum())
            del x
            torch.autograd.grad((weight[:4] * torch.ones(4)).sum(), weight)  # the next save is another step's
        assert [slot.seen.num_saves for slot in engine.slots()] == [4]
        # The interpreter itself holds the arguments of its last launch.
        return [f"tensor {i} is held" for i, reference in enumerate(held[:-1]) if reference() is not None]


def attention_that_cannot_be_run_again() -> list[str]:
    """Its q, k, v, output and log-sum-exp are all exact then, from the first step on: nothing is left to explode."""

    def refuse(*_inputs: object) -> None:
        raise RuntimeError("no such kernel")

    name, kind = next(iter(attention.KINDS.items()))
    attention.KINDS[name] = attention.Kind(refuse, kind.mask, kind.lse)  # type: ignore[arg-type]
    with engine_at(on_device=True, bits=2) as engine:
        got = gradients(attended, engine, 2)
        stats = engine.stats()
    attention.KINDS[name] = kind
    with engine_at(on_device=False, bits="off") as engine:
        want = gradients(attended, engine, 2)
    found = [f"gradient {i}" for i, (a, b) in enumerate(zip(want, got, strict=True)) if not same(a, b)]
    # In the first step the output; in the second q, k, v and the output. The log-sum-exp is small.
    return found if stats["passed_attention_total"] == 5 else [*found, f"counted {stats}"]


def attended() -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = nn.ParameterList([torch.randn(2, 2, 64, 16) for _ in range(3)])

    def loss(_step: int) -> Tensor:
        q, k, v = (p * 2 for p in model)
        return F.scaled_dot_product_attention(q, k, v).sum()

    return model, loss


def planes_wanted_on_another_stream() -> list[str]:
    """They are decoded on the home stream, which the reader's waits for. torch.cuda's calls are the test's own."""
    log: list[str] = []
    x, c = torch.randn(1300), coder(Spec("raw", 0), "float32", 1300)
    fakes = {
        "current_device": lambda: None,
        "default_stream": lambda _device: "home",
        "current_stream": lambda _device: types.SimpleNamespace(wait_stream=lambda other: log.append(f"wait {other}")),
        "stream": lambda name: contextlib.nullcontext(log.append(f"on {name}")),
    }
    layout, raw_stream = layout_of(x.shape, x.stride()), mock.Mock(return_value=0)
    with (
        host_arena() as arena,
        contextlib.ExitStack() as patches,
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", raw_stream, create=True),
        mock.patch.object(Tensor, "record_stream", side_effect=lambda _stream: log.append("recorded")),
    ):
        for name, fake in fakes.items():
            patches.enter_context(mock.patch.object(torch.cuda, name, fake))
        device = CudaDevice(arena, CPU, 0)
        stash = arena.reserve(arena.stash_spec(c.stream_bytes, [1.0] * len(c.stream_bytes)))
        token = device.encode(c, x, stash.planes, 0)
        at_home = device.decode(c, layout, x.dtype, stash.planes, token)
        found = [] if device.is_home() and not log else [f"at home: {log}"]
        raw_stream.return_value = 5
        elsewhere = device.decode(c, layout, x.dtype, stash.planes, token)
        found += [] if not device.is_home() and log == ["on home", "wait home", "recorded"] else [f"elsewhere: {log}"]
        stash.unpin()
    return found if torch.equal(at_home, x) and torch.equal(elsewhere, x) else [*found, "decoded otherwise"]


def a_kernel_that_does_not_compile() -> list[str]:
    def refuse(*_arguments: object) -> None:
        raise RuntimeError("PassManager::run failed")

    codec._ENCODERS["meansplit"] = refuse
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with engine_at(on_device=True, bits=2) as engine:
            got = gradients(transformer, engine, 2)
            stats = engine.stats()
    codec._ENCODERS["meansplit"] = codec._encode_meansplit
    with engine_at(on_device=False, bits="off") as engine:
        want = gradients(transformer, engine, 2)
    told = [str(one.message) for one in said if "daf" in str(one.message)]
    found = [] if all(map(same, want, got)) else ["the gradients are not exact"]
    if len(told) != 1 or "PassManager::run failed" not in told[0]:
        found.append(f"said {told}")
    return found if stats["passed_kernel_total"] and not stats["failures_total"] else [*found, f"counted {stats}"]


def a_kernel_that_miscodes() -> list[str]:
    original = codec._ENCODERS["meansplit"]

    def miscode(coder: Any, src: Tensor, planes: Any) -> None:
        original(coder, src * 1.001, planes)

    codec._ENCODERS["meansplit"] = miscode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with engine_at(on_device=True, bits=2) as engine:
            gradients(transformer, engine, 1)
            stats = engine.stats()
    codec._ENCODERS["meansplit"] = original
    return [] if stats.get("passed_kernel_total") else [f"not noticed: {stats}"]


CASES: dict[str, Callable[[], list[str]]] = {
    case.__name__: case
    for case in (
        conv_net, transformer_block, half_precision, stochastic_rounding, lossless, evicted_within_a_step,
        over_the_drivers_double, planned, integer_widths, integers_that_grow_wider, a_mask_that_is_none,
        an_infinity_that_comes_later,
        a_tensor_held_in_doubt_is_let_go, attention_that_cannot_be_run_again, a_kernel_that_does_not_compile,
        a_kernel_that_miscodes, planes_wanted_on_another_stream,
    )
}  # fmt: skip
