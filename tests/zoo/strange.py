"""Scripts as a stranger would write them: no module, modules made in the loop, threads, exceptions, hooks of their own.

Each function is one script: it trains and prints what it found. `python -m tests.zoo.strange [NAME...]` runs those
named, or all; `test_strange.py` runs them plain and with `PYTORCH_ALLOCATOR=daf`, and compares what they print.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = "-- "  # before the name of each script in what is printed
SCRIPTS: dict[str, Callable[[], None]] = {}


def script(function: Callable[[], None]) -> Callable[[], None]:
    SCRIPTS[function.__name__] = function
    return function


def say(text: str, tensors: Iterable[Tensor]) -> None:
    """Print a line and the bits of all that was trained, as a digest."""
    digest = hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors))
    print(text, digest.hexdigest()[:16])


def net(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def train(model: nn.Module, steps: int = 6, rows: int = 256) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        x = torch.randn(rows, 64)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sin())
        loss.backward()
        optimizer.step()
    return float(loss)


@script
def functional_parameters_in_dicts() -> None:
    """No nn.Module at all, gradients applied by hand."""
    weights = {"a": torch.randn(64, 128) / 8, "b": torch.zeros(128), "c": torch.randn(128, 64) / 11}
    for weight in weights.values():
        weight.requires_grad_()
    for _ in range(8):
        x = torch.randn(256, 64)
        h = torch.relu(x @ weights["a"] + weights["b"])
        loss = ((h @ weights["c"] - x) ** 2).mean()
        grads = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for weight, grad in zip(weights.values(), grads, strict=True):
                weight.sub_(0.1 * grad)
    say(f"loss {loss.item()!r}", weights.values())


@script
def modules_made_in_the_loop() -> None:
    """A fresh module each step, its weights shared by hand."""
    shared = nn.Parameter(torch.randn(64, 64) / 8)
    for step in range(20):
        layers = [nn.Linear(64, 64) for _ in range(step % 3 + 1)]
        for layer in layers:
            layer.weight = shared
        x = torch.randn(128, 64)
        loss = (nn.Sequential(*layers, nn.Tanh())(x) - x).square().mean()
        loss.backward()
        with torch.no_grad():
            shared -= 0.1 * shared.grad
            shared.grad = None
    say(f"loss {loss.item()!r}", [shared])


@script
def shapes_that_never_repeat() -> None:
    model = nn.Sequential(nn.Conv1d(4, 32, 5), nn.ReLU(), nn.Conv1d(32, 4, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(24):
        x = torch.randn(3 + step % 5, 4, 200 + 17 * step)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    say(f"loss {loss.item()!r}", model.parameters())


@script
def training_in_threads() -> None:
    """Two models in two threads at once, each with its own data; backward of one started from the other thread."""
    models = [net(64, 128, 64), net(64, 96, 64)]
    data = [torch.randn(6, 256, 64, generator=torch.Generator().manual_seed(n)) for n in range(2)]

    def work(model: nn.Module, batches: Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(models, data, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loss = F.mse_loss(models[0](data[0][0]), data[0][0])
    elsewhere = threading.Thread(target=loss.backward)
    elsewhere.start()
    elsewhere.join()
    say("threads", [p for model in models for p in model.parameters()] + [p.grad for p in models[0].parameters()])


@script
def exceptions_in_mid_step() -> None:
    """Errors in forward, in backward and between them; the run goes on each time."""
    model, caught = net(64, 256, 64), []

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:  # noqa: ARG004
            return x * 1

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:  # noqa: ARG004
            raise ArithmeticError("refused")

    for step in range(9):
        try:
            out = model(torch.randn(128, 64))
            if step % 3 == 0:
                out = out @ torch.randn(3, 3)
            if step % 3 == 1:
                out = Refuses.apply(out)
            out.square().mean().backward()
        except (RuntimeError, ArithmeticError) as error:
            caught.append(type(error).__name__)
    print(caught)
    say(f"loss {train(model)!r}", model.parameters())


@script
def graphs_kept_and_used_twice() -> None:
    """retain_graph, a list of losses that lives on, backward in another order than forward."""
    model = net(64, 256, 64)
    losses = [F.mse_loss(model(torch.randn(128, 64)), torch.zeros(128, 64)) for _ in range(4)]
    for loss in reversed(losses):
        loss.backward(retain_graph=True)
    losses[1].backward()
    torch.autograd.backward([losses[0], losses[2]])
    with contextlib.suppress(RuntimeError):
        losses[1].backward()
        print("a freed graph gave a gradient")
    say("kept", [p.grad for p in model.parameters()])


@script
def detached_and_swapped() -> None:
    """detach, no_grad inside forward, requires_grad switched in the loop, weights swapped through .data."""
    model = net(64, 128, 128, 64)
    for step in range(8):
        model[0].requires_grad_(step % 2 == 0)
        x = torch.randn(256, 64)
        h = model[:2](x)
        with torch.no_grad():
            scale = h.std() + model[2](h).std()
        out = model[2:](h.detach() * 0.5 + h * 0.5 / scale)
        (out - h.detach().mean(1, keepdim=True)).square().mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data = parameter.data - 0.05 * parameter.grad
                parameter.grad = None
    say("detached", model.parameters())


@script
def hooks_of_their_own() -> None:
    """Hooks on tensors, modules, nodes and saved tensors, the last doubling what is stored, all at the same time."""
    model, seen = net(64, 128, 64), []
    model[0].register_forward_hook(lambda _module, _args, out: out * 1.5)
    model[2].register_full_backward_hook(lambda _module, _grads, outs: seen.append(float(outs[0].norm())))
    x = torch.randn(256, 64)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        out = model(x)
    out.register_hook(lambda grad: grad * 0.5)
    loss = out.square().mean()
    loss.grad_fn.register_hook(lambda _ins, _outs: None)
    loss.backward()
    with torch.autograd.graph.save_on_cpu():
        model(x).abs().sum().backward()
    print(seen)
    say("hooks", [p.grad for p in model.parameters()])


@script
def functional_transforms() -> None:
    """torch.func: vmap, grad, jacrev, jvp and functional_call, between ordinary steps."""
    model = net(32, 64, 32)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    x = torch.randn(200, 32)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    model(x).sum().backward()
    jacobian = torch.func.jacrev(lambda x: model(x).sum(0))(x)
    value, tangent = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    hessian = torch.func.hessian(lambda x: model(x[None]).square().sum())(x[0])
    say("func", [*each.values(), jacobian, value, tangent, hessian, *(p.grad for p in model.parameters())])


@script
def interrupted_by_the_keyboard() -> None:
    """SIGINT in the middle of forward and of backward reaches the script, every time; training goes on after."""
    model, num_caught = net(64, 256, 256, 64), 0
    for number in range(20):
        x = torch.randn(256, 64)
        try:
            out = model(x)
            if number % 2:
                out.register_hook(lambda _: os.kill(os.getpid(), signal.SIGINT))
            else:
                os.kill(os.getpid(), signal.SIGINT)
            out.square().mean().backward()
            for _ in range(100):
                pass
        except KeyboardInterrupt:
            num_caught += 1
        model.zero_grad()
    print(f"{num_caught} interrupts")
    say(f"loss {train(model)!r}", model.parameters())


@script
def buffers_refilled_through_numpy() -> None:
    """One buffer for all inputs, written through numpy and .data while the graphs of earlier inputs are alive."""
    model, buffer = net(64, 128, 64), torch.zeros(256, 64)
    losses = []
    for step in range(4):
        buffer.numpy()[:] = float(step + 1)
        losses.append(model(buffer.clone()).square().mean())
        buffer.data.fill_(-1.0)
    torch.stack(losses).sum().backward()
    say(f"losses {[loss.item() for loss in losses]!r}", [p.grad for p in model.parameters()])


@script
def second_derivatives_by_hand() -> None:
    """A physicist's script: derivatives of derivatives of a net that is a closure over tensors."""
    a, b = (torch.randn(1, 256) * 3).requires_grad_(), torch.randn(256, 1).div(16).requires_grad_()
    for _ in range(6):
        x = torch.rand(256, 1, requires_grad=True)
        u = torch.tanh(x @ a) @ b
        (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
        (ddu,) = torch.autograd.grad(du, x, torch.ones_like(u), create_graph=True)
        loss = (ddu + u).pow(2).mean() + (u[:1] - 1).abs().sum()
        loss.backward()
        with torch.no_grad():
            for weight in (a, b):
                weight.sub_(1e-3 * weight.grad.clamp(-1, 1))
                weight.grad = None
    say(f"loss {loss.item()!r}", [a, b])


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or SCRIPTS:
        print(f"{HEAD}{name}", flush=True)
        torch.manual_seed(0)
        SCRIPTS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
