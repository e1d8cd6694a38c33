"""Outputs and inputs with a structure: chains, sets, capsules, routes, queries over memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.generative import mlp
from tests.zoo.member import Member, adam, kind, seeded


class Chain(nn.Module):
    """A CRF's negative log-likelihood: the forward algorithm by log-sum-exp."""

    def __init__(self, tags: int = 12) -> None:
        super().__init__()
        self.score, self.move = mlp(32, 128, tags), nn.Parameter(0.1 * torch.randn(tags, tags))

    def forward(self, x: Tensor, tags: Tensor) -> Tensor:
        scores = self.score(x)
        total = scores[:, 0]
        for step in range(1, x.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.move, 1) + scores[:, step]
        path = scores.gather(2, tags[..., None]).sum((1, 2)) + self.move[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(total, 1) - path).mean() / x.shape[1]


@kind()
def crf(seed: int) -> Member:
    model = Chain()

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        tags = torch.randint(0, 12, (64, 20), generator=generator)
        return F.one_hot(tags, 32).float() + 0.5 * torch.randn(64, 20, 32, generator=generator), tags

    return Member(model, lambda model, batch: model(*batch), make, adam(model, 3e-3))


class SetTransformer(nn.Module):
    """Induced points and pooling by attention, through nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.points = nn.Linear(4, 64), nn.Parameter(0.1 * torch.randn(1, 16, 64))
        self.first = nn.MultiheadAttention(64, 4, batch_first=True)
        self.second = nn.MultiheadAttention(64, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inputs(x)
        points = self.points.expand(len(x), -1, -1)
        induced = self.first(points, h, h)[0]
        h = self.norm(h + self.second(h, induced, induced, need_weights=False)[0])
        return self.head(h.amax(1))[:, 0]


@kind()
def set_transformer(seed: int) -> Member:
    model = SetTransformer()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(model(x), x[..., 0].amax(1))

    return Member(model, loss, lambda n: torch.randn(32, 64, 4, generator=seeded(seed, n)), adam(model, 2e-3))


def squash(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / torch.sqrt(square + 1e-8)


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 5, 4)
        self.weight = nn.Parameter(0.1 * torch.randn(36, 10, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        parts = squash(self.conv(x).view(len(x), 36, -1)[..., :8])
        votes = torch.einsum("bic,ijcd->bijd", parts, self.weight)
        route = torch.zeros(votes.shape[:3])
        for _ in range(3):
            out = squash((route.softmax(2)[..., None] * votes).sum(1))
            route = route + (votes * out[:, None]).sum(-1)
        return out.norm(dim=-1)


@kind()
def capsules_with_routing(seed: int) -> Member:
    model = Capsules()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        length, right = model(batch[0]), F.one_hot(batch[1], 10)
        return (right * F.relu(0.9 - length).square() + 0.5 * (1 - right) * F.relu(length - 0.1).square()).sum(1).mean()

    return Member(model, loss, data.images(seed, batch=32, size=28, channels=1), adam(model, 5e-3))


@kind()
def broadcasting(seed: int) -> Member:
    """Everything with everything, by expand: what is saved is a view of much less."""
    model = nn.ModuleDict({"left": nn.Linear(16, 64), "right": nn.Linear(16, 64), "head": nn.Linear(64, 1)})

    def loss(model: nn.ModuleDict, x: Tensor) -> Tensor:
        left = model["left"](x)[:, None].expand(-1, 96, -1)
        right = model["right"](x)[None].expand(96, -1, -1)
        score = model["head"](torch.tanh(left * right + left))[..., 0]
        return F.mse_loss(score, torch.cdist(x, x))

    return Member(model, loss, lambda n: torch.randn(96, 16, generator=seeded(seed, n)), adam(model, 5e-3))


class Highway(nn.Module):
    """Activations of all kinds, each as a gate of the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 192) for _ in range(12))
        self.head = nn.Linear(96, 8)

    def forward(self, x: Tensor) -> Tensor:
        activations = [F.gelu, F.silu, F.mish, F.softplus, F.elu, F.celu, F.selu, F.hardswish, F.softsign]
        activations += [F.tanhshrink, F.logsigmoid, F.leaky_relu]
        for layer, activation in zip(self.layers, activations, strict=True):
            value, gate = layer(x).chunk(2, -1)
            x = x + torch.sigmoid(gate) * (activation(value) - x)
        return self.head(F.normalize(x, dim=-1) * 5)


@kind()
def activation_functions(seed: int) -> Member:
    model = Highway()
    batches = data.labelled(seed, batch=256, inputs=96, classes=8)
    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches, adam(model, 3e-3))


class Siren(nn.Module):
    """A picture as a function of place: sines of large arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 128), nn.Linear(128, 128), nn.Linear(128, 3)])
        with torch.no_grad():
            self.layers[0].weight.uniform_(-0.5, 0.5)
            self.layers[1].weight.uniform_(-0.007, 0.007)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x))
        return self.layers[-1](x)


@kind()
def siren(seed: int) -> Member:
    model = Siren()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        target = torch.stack([torch.sin(9 * x[:, 0]), torch.cos(7 * x[:, 1]), x.prod(-1)], -1)
        return F.mse_loss(model(x), target)

    return Member(model, loss, lambda n: 2 * torch.rand(1024, 2, generator=seeded(seed, n)) - 1, adam(model, 1e-3))


class Renderer(nn.Module):
    """NeRF: exponentials of densities, a cumulative product along each ray."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(18, 96, 96, 4)

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        depth = torch.linspace(0, 1, 24)
        x = origins[:, None] + depth[:, None] * directions[:, None]
        out = self.net(torch.cat([torch.sin(x * 2**k) for k in range(3)] + [torch.cos(x * 2**k) for k in range(3)], -1))
        density, colour = F.softplus(out[..., 3]), out[..., :3].sigmoid()
        alpha = 1 - torch.exp(-density / 4)
        through = torch.cumprod(1 - alpha + 1e-10, -1)
        weight = alpha * torch.cat([torch.ones(len(x), 1), through[:, :-1]], -1)
        return (weight[..., None] * colour).sum(1)


@kind()
def radiance_field(seed: int) -> Member:
    model = Renderer()

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        return torch.randn(96, 3, generator=generator), torch.randn(96, 3, generator=generator)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(*batch), (batch[0] + batch[1]).sigmoid())

    return Member(model, loss, make, adam(model, 3e-3))
