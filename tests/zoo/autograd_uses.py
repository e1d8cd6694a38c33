"""Ways to use autograd that are not one forward and one backward: MAML, checkpoints, own functions, in-place ops."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.zoo import data
from tests.zoo.generative import mlp
from tests.zoo.language import Block, RMSNorm, fused
from tests.zoo.member import Member, adam, kind, seeded, update_once


@kind()
def maml(seed: int) -> Member:
    """The gradient through a gradient step: create_graph."""
    model = mlp(8, 128, 128, 1, activation=nn.Tanh)

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        phase = torch.rand((), generator=generator)
        x = torch.randn(2, 256, 8, generator=generator)
        return x, torch.sin(x.sum(-1, keepdim=True) + 6 * phase)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        (x, later_x), (y, later_y) = batch
        weights = dict(model.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(functional_call(model, weights, (x,)), y)
            grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), grads, strict=True)}
        return F.mse_loss(functional_call(model, weights, (later_x,)), later_y)

    return Member(model, loss, make, adam(model, 2e-3))


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inputs, self.head = nn.Linear(32, 64), nn.Linear(64, 8)
        self.blocks = nn.ModuleList(Block(64, fused, RMSNorm) for _ in range(2))
        self.norm, self.use_reentrant = nn.LayerNorm(64), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        for block in self.blocks:
            x = checkpoint(lambda h, block=block: self.norm(block(h)), x, use_reentrant=self.use_reentrant)
        return self.head(x.mean(1))


def checkpointed(seed: int, *, use_reentrant: bool) -> Member:
    model = Checkpointed(use_reentrant=use_reentrant)

    def make(number: int) -> tuple[Tensor, Tensor]:
        x, labels = data.labelled(seed, batch=16, inputs=32, classes=8)(number)
        return x[:, None] + torch.randn(16, 48, 32, generator=seeded(seed + 3, number)), labels

    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), make, adam(model, 3e-3))


@kind()
def checkpoint_reentrant(seed: int) -> Member:
    return checkpointed(seed, use_reentrant=True)


@kind()
def checkpoint_not_reentrant(seed: int) -> Member:
    return checkpointed(seed, use_reentrant=False)


class Swish(torch.autograd.Function):
    """Saves what it likes and divides by it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, 1 / gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, inverse = ctx.saved_tensors
        gate = 1 / inverse
        return grads[0] * (gate + x * gate * (1 - gate))


class CubeRoot(torch.autograd.Function):
    """Its gradient is a power of its saved output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sign() * (x.abs() + 1e-3).pow(1 / 3)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return grads[0] / (3 * root.square())


@kind()
def own_functions(seed: int) -> Member:
    model = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 8)])

    def loss(model: nn.ModuleList, batch: tuple[Tensor, Tensor]) -> Tensor:
        h = CubeRoot.apply(model[1](Swish.apply(model[0](batch[0]))))
        return F.cross_entropy(model[2](h), batch[1])

    return Member(model, loss, data.labelled(seed, batch=1024, inputs=64, classes=8), adam(model, 1e-3))


@torch.library.custom_op("daf_zoo::soft_rank", mutates_args=())
def soft_rank(x: Tensor) -> Tensor:
    return torch.exp(torch.tanh(x)).clone()


def _save_output(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _soft_rank_backward(ctx: Any, grad: Tensor) -> Tensor:
    x, out = ctx.saved_tensors
    return grad * out * (1 - out.log().square()) + 0 * x


soft_rank.register_autograd(_soft_rank_backward, setup_context=_save_output)


@kind()
def library_op(seed: int) -> Member:
    """An op of torch.library, unknown to everybody, whose backward takes a logarithm of what it saved."""
    model = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 8)])

    def loss(model: nn.ModuleList, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model[1](soft_rank(model[0](batch[0]))), batch[1])

    return Member(model, loss, data.labelled(seed, batch=1024, inputs=64, classes=8), adam(model, 2e-3))


class InPlace(nn.Module):
    """Buffers written into, activations in place, views of one tensor saved before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu_(self.first(x))
        out = torch.empty_like(h)
        out[:, :128] = h[:, 128:] * 2
        out[:, 128:] = torch.sin(h[:, :128])
        out = self.second(out).tanh_()
        out = out.clone().mul_(h.detach().clone().clamp_(max=1)).add_(0.1)
        return self.head(out)


@kind()
def in_place(seed: int) -> Member:
    model = InPlace()
    batches = data.labelled(seed, batch=1024, inputs=64, classes=8)
    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches, adam(model, 2e-3))


@kind()
def refilled_buffer(seed: int) -> Member:
    """One input buffer for all batches, refilled by copy_ and by numpy while the older graph still lives."""
    model = mlp(64, 256, 256, 8)
    buffer, batches = torch.zeros(512, 64), data.labelled(seed, batch=512, inputs=64, classes=8)

    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        member.optimizer.zero_grad()
        buffer.data.copy_(batch[0])
        first = F.cross_entropy(model(buffer.clone()), batch[1])
        buffer.numpy()[:] = batch[0].flip(1).numpy()
        second = F.cross_entropy(model(buffer), batch[1])
        (first + 0.1 * second).backward()
        member.optimizer.step()
        return first.detach()

    return Member(model, lambda *_: torch.zeros(()), batches, adam(model, 2e-3), update)


@kind()
def several_backwards(seed: int) -> Member:
    """retain_graph, a second backward through the same graph, and a gradient of one term alone."""
    model = mlp(64, 256, 256, 8, activation=nn.GELU)

    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        member.optimizer.zero_grad()
        scores = model(batch[0])
        loss = F.cross_entropy(scores, batch[1])
        loss.backward(retain_graph=True)
        torch.autograd.grad(scores.square().mean(), list(model.parameters()), retain_graph=True)
        (0.01 * scores.square().mean()).backward()
        member.optimizer.step()
        return loss.detach()

    batches = data.labelled(seed, batch=1024, inputs=64, classes=8)
    return Member(model, lambda *_: torch.zeros(()), batches, adam(model, 2e-3), update)


@kind()
def per_sample_gradients(seed: int) -> Member:
    """torch.func: vmap of grad in every step, then clipped and summed as DP-SGD does."""
    model = mlp(32, 64, 64, 8, activation=nn.Tanh)

    def sample_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        grads = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))(weights, *batch)
        norm = sum(grad.flatten(1).square().sum(1) for grad in grads.values()).sqrt()
        for name, weight in model.named_parameters():
            grad = grads[name]
            weight.grad = (grad / norm.clamp(min=1).view(-1, *[1] * (grad.dim() - 1))).mean(0)
        member.optimizer.step()
        with torch.no_grad():
            return F.cross_entropy(model(batch[0]), batch[1])

    batches = data.labelled(seed, batch=256, inputs=32, classes=8)
    return Member(model, lambda *_: torch.zeros(()), batches, adam(model, 5e-3), update)


@kind()
def hessian_vector_product(seed: int) -> Member:
    """Sharpness along a random direction, in the loss."""
    model = mlp(32, 128, 8, activation=nn.Softplus)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        weights = list(model.parameters())
        value = F.cross_entropy(model(batch[0]), batch[1])
        grads = torch.autograd.grad(value, weights, create_graph=True)
        along = sum((grad * torch.randn_like(grad)).sum() for grad in grads)
        sharp = torch.autograd.grad(along, weights, create_graph=True)
        return value + 1e-3 * sum(part.square().sum() for part in sharp)

    batches = data.labelled(seed, batch=512, inputs=32, classes=8)
    return Member(model, loss, batches, adam(model, 3e-3), update_once)
