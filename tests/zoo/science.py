"""Physics, statistics and linear algebra: second derivatives, solvers, decompositions, Fourier layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.generative import mlp
from tests.zoo.member import Member, adam, kind, seeded


@kind()
def physics_informed(seed: int) -> Member:
    """The heat equation's residual: second derivatives of the net are in the loss."""
    model = mlp(2, 64, 64, 64, 1, activation=nn.Tanh)

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        points = points.requires_grad_()
        u = model(points)
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
        start = torch.stack([points[:, 0].detach(), torch.zeros(len(points))], -1)
        return (first[:, 1] - 0.1 * second[:, 0]).square().mean() + F.mse_loss(
            model(start)[:, 0], torch.sin(3.14159 * start[:, 0])
        )

    return Member(model, loss, lambda n: torch.rand(512, 2, generator=seeded(seed, n)), adam(model, 3e-3))


@kind()
def neural_ode_by_euler(seed: int) -> Member:
    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field, self.head = mlp(33, 128, 32, activation=nn.Tanh), nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            for step in range(12):
                time = x.new_full((len(x), 1), step / 12)
                x = x + self.field(torch.cat([x, time], -1)) / 12
            return self.head(x)

    model = Field()
    batches = data.labelled(seed, batch=384, inputs=32, classes=8)
    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches, adam(model, 5e-3))


class Fourier(nn.Module):
    """FNO: the lowest frequencies times complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.drop = nn.Linear(1, 32), nn.Linear(32, 1)
        self.weight = nn.Parameter(torch.randn(2, 32, 32, 16, dtype=torch.cfloat) / 32)
        self.local = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x[..., None]).transpose(1, 2)
        for weight, local in zip(self.weight, self.local, strict=True):
            low = torch.fft.rfft(h)[..., :16]
            mixed = torch.fft.irfft(torch.einsum("bcf,cdf->bdf", low, weight), n=h.shape[-1])
            h = F.gelu(mixed + local(h))
        return self.drop(h.transpose(1, 2))[..., 0]


@kind()
def fourier_operator(seed: int) -> Member:
    model = Fourier()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(model(x), x.cumsum(-1) / 10)

    return Member(model, loss, data.waves(seed, batch=32, length=128), adam(model, 3e-3))


@kind()
def spectrogram_loss(seed: int) -> Member:
    """Magnitudes of a short Fourier transform and their logarithm."""
    model = nn.Sequential(nn.Conv1d(1, 16, 15, padding=7), nn.Tanh(), nn.Conv1d(16, 1, 15, padding=7))
    window = torch.hann_window(128)

    def magnitude(x: Tensor) -> Tensor:
        return torch.stft(x, 128, 32, window=window, return_complex=True).abs() + 1e-4

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        noisy = x + 0.3 * torch.randn_like(x)
        ours, theirs = magnitude(model(noisy[:, None])[:, 0]), magnitude(x)
        return F.l1_loss(ours.log(), theirs.log()) + (ours - theirs).norm() / theirs.norm()

    return Member(model, loss, data.waves(seed, batch=16, length=1024), adam(model, 3e-3))


class Kernel(nn.Module):
    """A Gaussian process with a learned feature map: Cholesky of 256 points."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.log_noise = mlp(8, 64, 8, activation=nn.Tanh), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.features(x)
        k = torch.exp(-0.5 * (z[:, None] - z[None]).square().sum(-1)) + (self.log_noise.exp() + 1e-3) * torch.eye(
            len(x)
        )
        factor = torch.linalg.cholesky(k)
        weights = torch.cholesky_solve(y, factor)
        return (0.5 * (y * weights).sum() + factor.diagonal().log().sum()) / len(x)


@kind()
def gaussian_process(seed: int) -> Member:
    model = Kernel()
    batches = data.points(seed, batch=256, inputs=8)
    return Member(model, lambda model, batch: model(*batch), batches, adam(model, 1e-2))


class Equilibrium(nn.Module):
    """An implicit layer: a fixed point found without a graph, its gradient by a linear solve."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside, self.head = nn.Linear(32, 32), nn.Linear(64, 32), nn.Linear(32, 8)
        nn.init.orthogonal_(self.inside.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        drive = self.outside(x)
        with torch.no_grad():
            z = torch.zeros_like(drive)
            for _ in range(20):
                z = torch.tanh(self.inside(z) + drive)
        z = torch.tanh(self.inside(z) + drive)
        slope = (1 - z.square()).detach()
        matrix = torch.eye(32) - slope[:, :, None] * self.inside.weight
        return self.head(torch.linalg.solve(matrix, z - z.detach()) + z.detach())


@kind()
def deep_equilibrium(seed: int) -> Member:
    model = Equilibrium()
    batches = data.labelled(seed, batch=512, inputs=64, classes=8)
    return Member(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches, adam(model, 5e-3))


@kind()
def matrix_decompositions(seed: int) -> Member:
    """Nuclear norm, log-determinant, eigenvalues, QR and inverse of what a net makes."""
    model = mlp(16, 128, 144)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raw = model(x).view(-1, 12, 12)
        spd = raw @ raw.transpose(1, 2) + torch.eye(12) * (1 + torch.arange(12) / 12)
        values = torch.linalg.eigvalsh(spd)
        nuclear = torch.linalg.svdvals(raw + torch.eye(12)).sum(-1)
        q = torch.linalg.qr(raw + 3 * torch.eye(12)).Q
        spread = (values - x.abs().mean(-1, keepdim=True)).square().mean()
        return (
            spread
            + 0.1 * nuclear.mean()
            - 0.1 * torch.logdet(spd).mean()
            + torch.linalg.inv(spd).square().mean()
            + (q.diagonal(dim1=1, dim2=2) - 1).square().mean()
        )

    return Member(model, loss, lambda n: torch.randn(256, 16, generator=seeded(seed, n)), adam(model, 2e-3))


@kind()
def running_products(seed: int) -> Member:
    """cumsum, cumprod and logcumsumexp along time: survival analysis and stick breaking."""
    model = mlp(32, 128, 64)

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        x = torch.randn(512, 32, generator=generator)
        return x, (31 * torch.sigmoid(x[:, 0] + 0.3 * torch.randn(512, generator=generator))).long()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = model(batch[0]).chunk(2, -1)
        hazard = torch.sigmoid(first - 2)
        alive = torch.cumprod(1 - hazard, -1)
        dies = (hazard * torch.cat([torch.ones(512, 1), alive[:, :-1]], -1)).gather(1, batch[1][:, None])
        ranks = torch.logcumsumexp(second.sort(dim=-1, descending=True).values, -1).mean()
        return -torch.log(dies + 1e-8).mean() + 0.01 * ranks + 1e-3 * second.cumsum(-1).square().mean()

    return Member(model, loss, make, adam(model, 5e-3))


@kind()
def cox_survival(seed: int) -> Member:
    model = mlp(32, 256, 128, 1)

    def make(number: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(2048, 32, generator=seeded(seed, number))
        return x[x[:, 0].argsort()], (x[:, 1] > -1).float()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        risk = model(batch[0])[:, 0]
        return -((risk - torch.logcumsumexp(risk, 0)) * batch[1]).sum() / batch[1].sum()

    return Member(model, loss, make, adam(model, 2e-3))


@kind()
def double_precision(seed: int) -> Member:
    model = mlp(32, 128, 128, 1, activation=nn.SiLU).double()
    plain = data.points(seed, batch=1024, inputs=32)

    def make(number: int) -> tuple[Tensor, Tensor]:
        x, y = plain(number)
        return x.double(), y.double()

    return Member(model, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), make, adam(model, 2e-3))
