"""Made-up data with something to learn in it: every batch comes from its seed and number alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.zoo.member import seeded


def tokens(seed: int, *, batch: int, length: int, vocab: int) -> Callable[[int], Tensor]:
    """Sequences in which a token mostly determines the next one: [batch, length], 0 (padding) never among them."""

    def make(number: int) -> Tensor:
        generator = seeded(seed, number)
        columns = [torch.randint(1, vocab, (batch,), generator=generator)]
        for _ in range(length - 1):
            is_noise = torch.rand(batch, generator=generator) < 0.1
            noise = torch.randint(1, vocab, (batch,), generator=generator)
            columns.append(torch.where(is_noise, noise, (columns[-1] * 3 + 1) % (vocab - 1) + 1))
        return torch.stack(columns, 1)

    return make


def images(
    seed: int, *, batch: int, size: int, channels: int = 3, classes: int = 10
) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Gratings whose direction is the class, in noise: [batch, channels, size, size] and labels."""
    axis = torch.linspace(0, 1, size)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        labels = torch.randint(0, classes, (batch,), generator=generator)
        angle = labels.float()[:, None, None] * math.pi / classes
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=generator)
        waves = torch.sin(12 * (rows * angle.cos() + columns * angle.sin()) + phase)
        noise = torch.randn(batch, channels, size, size, generator=generator)
        return waves[:, None] + 0.5 * noise, labels

    return make


def points(seed: int, *, batch: int, inputs: int, outputs: int = 1) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A smooth function of many numbers, the same for all batches of a seed: [batch, inputs], [batch, outputs]."""
    weights = torch.randn(inputs, outputs, generator=seeded(seed, -1)) / math.sqrt(inputs)

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        x = torch.randn(batch, inputs, generator=generator)
        return x, torch.sin(2 * x @ weights) + 0.1 * torch.randn(batch, outputs, generator=generator)

    return make


def labelled(seed: int, *, batch: int, inputs: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Clusters: [batch, inputs] and the number of the cluster that each is from."""
    centres = torch.randn(classes, inputs, generator=seeded(seed, -1))

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        labels = torch.randint(0, classes, (batch,), generator=generator)
        return centres[labels] + 1.5 * torch.randn(batch, inputs, generator=generator), labels

    return make


def waves(seed: int, *, batch: int, length: int) -> Callable[[int], Tensor]:
    """Sums of two sines of random pitch: [batch, length]."""
    time = torch.arange(length) / length

    def make(number: int) -> Tensor:
        generator = seeded(seed, number)
        pitch = 2 + 10 * torch.rand(batch, 2, 1, generator=generator)
        phase = 6.28 * torch.rand(batch, 2, 1, generator=generator)
        return torch.sin(6.28 * pitch * time + phase).mean(1)

    return make
