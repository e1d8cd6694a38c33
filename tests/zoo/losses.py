"""Losses, each on a small net: what they divide by, take the logarithm of or compare is what tries DAF."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.generative import mlp
from tests.zoo.member import Member, adam, kind, seeded

BATCH, INPUTS, CLASSES = 1024, 64, 16
Loss = Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]


def regression(seed: int, loss: Loss, *, outputs: int = 1, targets: int = 1, lr: float = 2e-3) -> Member:
    model = mlp(INPUTS, 256, 256, outputs)
    return Member(model, loss, data.points(seed, batch=BATCH, inputs=INPUTS, outputs=targets), adam(model, lr))


def classification(seed: int, loss: Loss, *, outputs: int = CLASSES, lr: float = 2e-3) -> Member:
    model = mlp(INPUTS, 256, 256, outputs)
    return Member(model, loss, data.labelled(seed, batch=BATCH, inputs=INPUTS, classes=CLASSES), adam(model, lr))


@kind(long_steps=300)
def mse_regression(seed: int) -> Member:
    return regression(seed, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), outputs=32, targets=32)


@kind()
def huber_regression(seed: int) -> Member:
    return regression(
        seed, lambda model, batch: F.huber_loss(model(batch[0]), batch[1], delta=0.3), outputs=32, targets=32
    )


@kind()
def quantile_regression(seed: int) -> Member:
    levels = torch.linspace(0.05, 0.95, 19)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        gap = batch[1] - model(batch[0]).cumsum(-1)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    return regression(seed, loss, outputs=19)


@kind()
def gaussian_likelihood(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        mean, raw = model(batch[0]).chunk(2, -1)
        return F.gaussian_nll_loss(mean, batch[1], F.softplus(raw) + 1e-3)

    return regression(seed, loss, outputs=32, targets=16)


@kind()
def poisson_and_gamma(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        log_rate, raw = model(batch[0]).chunk(2, -1)
        count, shape = (4 * batch[1].abs()).round(), F.softplus(raw) + 0.1
        gamma = torch.lgamma(shape) - (shape - 1) * torch.log(batch[1].abs() + 0.01) + batch[1].abs()
        return F.poisson_nll_loss(log_rate, count) + gamma.mean()

    return regression(seed, loss, outputs=32, targets=16)


@kind()
def mixture_density(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        share, mean, log_std = model(batch[0]).chunk(3, -1)
        z = (batch[1] - mean) / log_std.clamp(-4, 3).exp()
        log_prob = -0.5 * z.square() - log_std.clamp(-4, 3) - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(share.log_softmax(-1) + log_prob, -1).mean()

    return regression(seed, loss, outputs=24)


@kind()
def binary_labels(seed: int) -> Member:
    """BCE of many labels at once, written through the sigmoid."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy(model(batch[0]).sigmoid(), (batch[1] > 0).float())

    return regression(seed, loss, outputs=64, targets=64)


@kind()
def focal(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        log_p = F.log_softmax(model(batch[0]), -1).gather(1, batch[1][:, None])[:, 0]
        return -((1 - log_p.exp()).pow(2) * log_p).mean()

    return classification(seed, loss)


@kind()
def focal_of_pixels(seed: int) -> Member:
    """The same in a dense prediction, where its tensors are the largest."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        p, target = model(batch[0]).sigmoid(), (batch[1] > 0.5).float()
        right = p * target + (1 - p) * (1 - target)
        return -(0.25 * (1 - right) ** 2 * torch.log(right + 1e-8)).mean()

    return regression(seed, loss, outputs=128, targets=128)


@kind()
def label_smoothing_and_margin(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1], label_smoothing=0.1) + 0.1 * F.multi_margin_loss(scores, batch[1])

    return classification(seed, loss)


@kind()
def distillation(seed: int) -> Member:
    """KL to a frozen teacher's softened answers."""
    teacher = mlp(INPUTS, 128, CLASSES).requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        theirs = F.softmax(3 * teacher(batch[0]), -1)
        ours = F.log_softmax(model(batch[0]) / 2, -1)
        return 4 * F.kl_div(ours, theirs, reduction="batchmean")

    return classification(seed, loss)


@kind()
def wide_softmax(seed: int) -> Member:
    """A vocabulary's worth of classes: log-probabilities are the largest thing saved."""
    model = nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 2048))
    batches = data.labelled(seed, batch=512, inputs=INPUTS, classes=2048)
    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches, adam(model, 1e-2))


@kind()
def ordinal(seed: int) -> Member:
    """Cumulative logits over ordered thresholds."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        edges = F.softplus(out[:, 1:]).cumsum(-1) - 4
        below = torch.sigmoid(edges - out[:, :1])
        bounds = torch.cat([torch.zeros(BATCH, 1), below, torch.ones(BATCH, 1)], -1)
        share = (bounds[:, 1:] - bounds[:, :-1]).clamp(min=1e-6)
        return -share.gather(1, batch[1][:, None]).log().mean()

    return classification(seed, loss)


@kind()
def info_nce(seed: int) -> Member:
    """Two views of each sample; cosine similarities over a temperature."""
    model = mlp(INPUTS, 256, 64)

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        x = torch.randn(512, INPUTS, generator=generator)
        first, second = (x + 0.5 * torch.randn(512, INPUTS, generator=generator) for _ in range(2))
        return first, second

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (F.normalize(model(view), dim=-1) for view in batch)
        return F.cross_entropy(a @ b.t() / 0.07, torch.arange(512))

    return Member(model, loss, make, adam(model, 2e-3))


@kind()
def supervised_contrastive(seed: int) -> Member:
    """The whole matrix of pairs through log-sum-exp with the diagonal left out."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        z = F.normalize(model(batch[0][:512]), dim=-1)
        own = torch.eye(512, dtype=torch.bool)
        scores = (z @ z.t() / 0.2).masked_fill(own, float("-inf"))
        log_p = (scores - scores.logsumexp(1, keepdim=True)).masked_fill(own, 0.0)
        same = ((batch[1][:512, None] == batch[1][None, :512]) & ~own).float()
        return -((log_p * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return classification(seed, loss, outputs=64)


@kind()
def triplet(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        z, labels = model(batch[0]), batch[1]
        order = labels.argsort(stable=True)
        z = z[order]
        return F.triplet_margin_loss(z[:-1], z[1:], z[:-1].roll(300, 0), margin=1.0)

    return classification(seed, loss, outputs=64)


@kind()
def siamese_cosine(seed: int) -> Member:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = model(batch[0]).chunk(2)
        same = 2.0 * (batch[1][: BATCH // 2] == batch[1][BATCH // 2 :]) - 1
        return F.cosine_embedding_loss(a, b, same, margin=0.2) + 0.01 * F.pairwise_distance(a, b).mean()

    return classification(seed, loss, outputs=64)


@kind()
def barlow_twins(seed: int) -> Member:
    """Cross-correlation of standardized outputs: divides by standard deviations over the batch."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (model(batch[0] + 0.3 * torch.randn_like(batch[0])) for _ in range(2))
        a, b = ((z - z.mean(0)) / z.std(0) for z in (a, b))
        c = a.t() @ b / len(a)
        return (c.diagonal() - 1).square().sum() + 0.01 * (c - torch.diag(c.diagonal())).square().sum()

    return classification(seed, loss, outputs=64)


@kind()
def ctc(seed: int) -> Member:
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 12))

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        labels = torch.randint(1, 12, (32, 10), generator=generator)
        frames = F.one_hot(labels, 16).float().repeat_interleave(4, 1)
        return frames + 0.5 * torch.randn(32, 40, 16, generator=generator), labels

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        log_p = model(batch[0]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_p, batch[1], torch.full((32,), 40), torch.full((32,), 10))

    return Member(model, loss, make, adam(model, 3e-3))


@kind()
def sinkhorn(seed: int) -> Member:
    """Optimal transport by 10 rounds of log-sum-exp, the graph kept."""
    model = mlp(16, 128, 16)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        cost = torch.cdist(model(batch[0]), batch[1]).square() / 16
        scores = -cost / 0.1
        u, v = torch.zeros(128, 1), torch.zeros(1, 128)
        for _ in range(10):
            u = -torch.logsumexp(scores + v, 1, keepdim=True)
            v = -torch.logsumexp(scores + u, 0, keepdim=True)
        return ((scores + u + v).exp() * cost).sum() / 128

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        return torch.randn(128, 16, generator=generator), torch.rand(128, 16, generator=generator)

    return Member(model, loss, make, adam(model, 3e-3))


@kind()
def perceptual_and_total_variation(seed: int) -> Member:
    """Features of a frozen net, Gram matrices, and roots of squared differences, eps small."""
    frozen = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
    frozen.requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 3, 3, padding=1))

    def gram(x: Tensor) -> Tensor:
        x = x.flatten(2)
        return x @ x.transpose(1, 2) / x.shape[-1]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        variation = ((out[..., 1:] - out[..., :-1]).square() + 1e-6).sqrt().mean()
        style = F.mse_loss(gram(frozen(out)), gram(frozen(batch[0])))
        return F.l1_loss(out, batch[0]) + style + 0.1 * variation

    return Member(model, loss, data.images(seed, batch=16, size=32), adam(model, 3e-3))
