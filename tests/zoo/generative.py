"""Models that make data: autoencoders, GANs, flows, diffusion, energies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.member import Member, adam, kind, seeded


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


@kind()
def autoencoder(seed: int) -> Member:
    down = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()]
    model = nn.Sequential(*down, *up)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        target = (batch[0] / 3).clamp(-1, 1)
        return F.mse_loss(model(target), target)

    return Member(model, loss, data.images(seed, batch=64, size=32), adam(model, 2e-3))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(256, 256, 32), mlp(16, 256, 256)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


@kind()
def variational_autoencoder(seed: int) -> Member:
    model = VAE()

    def make(number: int) -> Tensor:
        return (data.images(seed, batch=1024, size=16, channels=1)(number)[0].flatten(1) > 0).float()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x) + kl

    return Member(model, loss, make, adam(model))


class Quantized(nn.Module):
    """VQ-VAE: nearest code, gradients straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.codes = mlp(64, 128, 32), mlp(32, 128, 64), nn.Embedding(64, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        code = self.codes(torch.cdist(z.detach(), self.codes.weight).argmin(-1))
        commitment = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return self.decoder(z + (code - z).detach()), commitment


@kind()
def vector_quantized_autoencoder(seed: int) -> Member:
    model = Quantized()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, commitment = model(x)
        return F.mse_loss(out, x) + commitment

    return Member(model, loss, data.waves(seed, batch=2048, length=64), adam(model, 3e-3))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = mlp(16, 128, 128, 64)
        self.critic = mlp(64, 128, 128, 1, activation=nn.SELU)


def gan_member(seed: int, critic_loss: Any, generator_loss: Any) -> Member:
    model = Adversaries()
    optimizers = adam(model.generator, 1e-3), adam(model.critic, 1e-3)

    def update(_member: Member, real: Tensor) -> Tensor:
        fake = model.generator(torch.randn(len(real), 16))
        optimizers[1].zero_grad()
        loss = critic_loss(model.critic, real, fake.detach())
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        generator_loss(model.critic, fake).backward()
        optimizers[0].step()
        return loss.detach()

    return Member(model, lambda *_: torch.zeros(()), data.waves(seed, batch=768, length=64), optimizers[0], update)


@kind()
def gan(seed: int) -> Member:
    def critic_loss(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()

    return gan_member(seed, critic_loss, lambda critic, fake: F.softplus(-critic(fake)).mean())


@kind()
def wasserstein_gan_with_penalty(seed: int) -> Member:
    """The gradient's norm at points between real and made ones is part of the loss."""

    def critic_loss(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (grad,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + 10 * (grad.norm(2, dim=1) - 1).square().mean()

    return gan_member(seed, critic_loss, lambda critic, fake: -critic(fake).mean())


class Flow(nn.Module):
    """RealNVP: affine couplings, halves swapped in between."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(8, 128, 16, activation=nn.Tanh) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        log_det = x.new_zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, -1)
            scale, shift = net(a).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([b * scale.exp() + shift, a], -1)
            log_det = log_det + scale.sum(-1)
        return -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1) + log_det


@kind(long_steps=300)
def normalizing_flow(seed: int) -> Member:
    model = Flow()

    def make(number: int) -> Tensor:
        x = torch.randn(2048, 16, generator=seeded(seed, number))
        return torch.cat([x[:, :8], torch.sin(2 * x[:, :8]) + 0.2 * x[:, 8:]], -1)

    return Member(model, lambda model, x: -model(x).mean(), make, adam(model, 2e-3))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 128))
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 128)
        self.norm, self.out = nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(torch.linspace(0, 6, 8))
        h = F.silu(self.first(x) + self.time(torch.cat([angle.sin(), angle.cos()], -1)))
        return self.out(self.norm(h + F.silu(self.second(h))))


@kind()
def diffusion_loss(seed: int) -> Member:
    model = Denoiser()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x)), torch.randn_like(x)
        signal = torch.cos(0.5 * math.pi * t)[:, None]
        return F.mse_loss(model(signal * x + (1 - signal.square()).sqrt() * noise, t), noise)

    return Member(model, loss, data.waves(seed, batch=1536, length=64), adam(model, 2e-3))


@kind()
def score_matching(seed: int) -> Member:
    """Sliced score matching: the loss holds a second derivative along a random direction."""
    model = mlp(16, 128, 128, 1, activation=nn.Softplus)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x, direction = x.requires_grad_(), torch.randn_like(x)
        (score,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad((score * direction).sum(), x, create_graph=True)
        return (0.5 * (score * direction).sum(-1).square() + (curvature * direction).sum(-1)).mean()

    return Member(model, loss, lambda n: torch.randn(256, 16, generator=seeded(seed, n)), adam(model, 2e-3))


@kind(needs="diffusers")
def unet2d(seed: int) -> Member:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=8,
    ).train()
    scheduler = DDPMScheduler(num_train_timesteps=100)

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        noise, t = torch.randn_like(batch[0]), torch.randint(0, 100, (len(batch[0]),))
        return F.mse_loss(model(scheduler.add_noise(batch[0], noise, t), t).sample, noise)

    return Member(model, loss, data.images(seed, batch=4, size=16), adam(model, 1e-3))


@kind(needs="diffusers")
def autoencoder_kl(seed: int) -> Member:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        latent_channels=4,
    ).train()

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        latent = model.encode(batch[0]).latent_dist
        out = model.decode(latent.sample()).sample
        return F.l1_loss(out, batch[0]) + 1e-4 * latent.kl().mean()

    return Member(model, loss, data.images(seed, batch=2, size=16), adam(model, 1e-3))
