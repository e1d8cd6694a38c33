"""Convolutions of every sort, and the norms that go with them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.member import Member, adam, kind, seeded, sgd


def class_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def classifier(seed: int, model: nn.Module, *, batch: int = 16, lr: float = 2e-3) -> Member:
    return Member(model, class_loss, data.images(seed, batch=batch, size=32), adam(model, lr))


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


@kind()
def small_cnn(seed: int) -> Member:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return classifier(seed, nn.Sequential(*layers, nn.Dropout2d(0.1), *head(32)), batch=32)


class Residual(nn.Module):
    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True))))


def resnet(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, Residual(16, norm), nn.AvgPool2d(2), Residual(16, norm), *head(16))


@kind(long_steps=200)
def resnet_batch_norm(seed: int) -> Member:
    model = resnet(nn.BatchNorm2d)
    return Member(model, class_loss, data.images(seed, batch=16, size=32), sgd(model))


@kind()
def resnet_group_norm(seed: int) -> Member:
    return classifier(seed, resnet(lambda channels: nn.GroupNorm(4, channels)))


@kind()
def resnet_instance_norm(seed: int) -> Member:
    return classifier(seed, resnet(lambda channels: nn.InstanceNorm2d(channels, affine=True)))


@kind()
def channels_last(seed: int) -> Member:
    model = resnet(nn.BatchNorm2d).to(memory_format=torch.channels_last)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0].to(memory_format=torch.channels_last)), batch[1])

    return Member(model, loss, data.images(seed, batch=16, size=32), adam(model, 2e-3))


class Separable(nn.Module):
    """Depthwise and pointwise, with a squeeze-and-excitation gate and hard activations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels, bias=False)
        self.squeeze, self.excite = nn.Conv2d(2 * channels, 8, 1), nn.Conv2d(8, 2 * channels, 1)
        self.project, self.norm = nn.Conv2d(2 * channels, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.depthwise(F.relu6(self.expand(x))))
        gate = F.hardsigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(h, 1)))))
        return x + self.norm(self.project(h * gate))


@kind()
def depthwise_separable(seed: int) -> Member:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), Separable(16), Separable(16), *head(16))
    return classifier(seed, model)


class UNet(nn.Module):
    """Down, up by a transposed convolution, and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, padding=1)
        self.deep = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(32, 32, 3, padding=1))
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.out = nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.elu(self.down(x))
        return self.out(torch.cat([h, F.prelu(self.up(self.deep(h)), torch.full((16,), 0.2))], 1))


@kind()
def segmentation_dice(seed: int) -> Member:
    """Cross-entropy of pixels and the Dice loss, which divides."""
    model = UNet()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, target = model(batch[0]), (F.avg_pool2d(batch[0].mean(1), 5, 1, 2) > 0).long()
        share = logits.softmax(1)[:, 1]
        dice = 1 - (2 * (share * target).sum() + 1) / (share.sum() + target.sum() + 1)
        return F.cross_entropy(logits, target) + dice

    return Member(model, loss, data.images(seed, batch=8, size=32), adam(model, 3e-3))


class Detector(nn.Module):
    """A box as centre and size; features are sampled along a learned warp."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Softplus(), nn.Conv2d(16, 16, 3, padding=1))
        self.warp = nn.Linear(16, 6)
        self.box = nn.Linear(16 * 64, 4)
        nn.init.zeros_(self.warp.weight)
        self.warp.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        grid = F.affine_grid(self.warp(h.mean((2, 3))).view(-1, 2, 3), list(h.shape), align_corners=False)
        h = F.interpolate(F.grid_sample(h, grid, align_corners=False), size=(8, 8), mode="bilinear")
        return self.box(h.flatten(1)).sigmoid()


def box_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes as centre and size: [batch, 4] each."""
    low = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (a[:, 2:].prod(-1) + b[:, 2:].prod(-1) - both + 1e-6)


@kind()
def detector_with_warp(seed: int) -> Member:
    model = Detector()

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        box = 0.3 + 0.4 * torch.rand(16, 4, generator=generator)
        axis = (torch.arange(32) + 0.5) / 32
        inside_y = (axis - box[:, 1:2]).abs() < box[:, 3:4] / 2
        inside_x = (axis - box[:, 0:1]).abs() < box[:, 2:3] / 2
        picture = (inside_y[:, None, :, None] & inside_x[:, None, None, :]).float()
        return picture + 0.3 * torch.randn(16, 3, 32, 32, generator=generator), box

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        box = model(batch[0])
        return F.smooth_l1_loss(box, batch[1], beta=0.1) + (1 - box_overlap(box, batch[1])).mean()

    return Member(model, loss, make, adam(model, 1e-3))


@kind()
def convolutions_in_1d_and_3d(seed: int) -> Member:
    model = nn.ModuleDict(
        {
            "sound": nn.Sequential(nn.Conv1d(1, 16, 9, 2), nn.Mish(), nn.Conv1d(16, 16, 9, dilation=2), nn.CELU()),
            "film": nn.Sequential(nn.Conv3d(1, 8, 3), nn.SELU(), nn.MaxPool3d(2), nn.Conv3d(8, 8, 3), nn.Hardtanh()),
            "head": nn.Linear(24, 1),
        }
    )
    sounds = data.waves(seed, batch=32, length=512)

    def make(number: int) -> tuple[Tensor, Tensor]:
        return sounds(number), torch.randn(32, 1, 10, 12, 12, generator=seeded(seed, number))

    def loss(model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        sound, film = batch
        both = torch.cat([model["sound"](sound[:, None]).mean(2), model["film"](film).mean((2, 3, 4))], 1)
        return F.mse_loss(model["head"](both)[:, 0], sound.std(1) + film.mean((1, 2, 3, 4)))

    return Member(model, loss, make, adam(model, 3e-3))
