"""What follows from decoded tensors: the passes in C against torch's own ops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from daf.quant.recompute import batchnorm_relu
from daf.quant.recompute.layernorm_bound import draw_in
from daf.quant.recompute.rules import normalized

SHAPES = [(3, 5, 7, 9), (2, 64, 8, 8), (33, 17), (2, 3, 70000), (1, 1, 1, 1), (0, 4, 2, 2)]


def channels(num: int) -> batchnorm_relu._Channels:
    generator = torch.Generator().manual_seed(num)
    scale, offset, low = (torch.randn(num, generator=generator) for _ in range(3))
    return batchnorm_relu._Channels(scale, offset, low)


def by_definition(numbers: batchnorm_relu._Channels, y: Tensor, shortcut: Tensor | None) -> Tensor:
    scale, offset, low = (
        tensor.view(1, -1, *[1] * (y.dim() - 2)) for tensor in (numbers.scale, numbers.offset, numbers.low)
    )
    return torch.where(y > 0, (y if shortcut is None else y - shortcut) * scale + offset, low.expand_as(y))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_shortcut", [False, True])
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_walking_back_gives_what_the_definition_gives(
    shape: tuple[int, ...], has_shortcut: bool, is_channels_last: bool
) -> None:
    def dense(tensor: Tensor) -> Tensor:
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1) if is_channels_last else tensor

    torch.manual_seed(0)
    y = dense(torch.randn(shape).relu_())
    shortcut = dense(torch.randn(shape)) if has_shortcut else None
    numbers = channels(shape[1])
    got = numbers.walk_back(y, shortcut)
    torch.testing.assert_close(got, by_definition(numbers, y, shortcut))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_walked_back_by_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y, shortcut = torch.randn(4, 6, 5, 5).relu_().to(dtype), torch.randn(4, 6, 5, 5).to(dtype)
    numbers = channels(6)
    got = numbers.walk_back(y, shortcut)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), by_definition(numbers, y.float(), shortcut.float()), atol=0.1, rtol=0.05)


def test_a_shortcut_of_other_strides_is_walked_back_by_torch() -> None:
    torch.manual_seed(0)
    y, shortcut = torch.randn(4, 6, 5, 5).relu_(), torch.randn(4, 5, 5, 6).movedim(-1, 1)
    numbers = channels(6)
    torch.testing.assert_close(numbers.walk_back(y, shortcut), by_definition(numbers, y, shortcut))


@pytest.mark.parametrize("shape", [(2, 3, 384), (5, 1), (1, 70001), (200, 300), (0, 8)])
@pytest.mark.parametrize(("has_weight", "has_bias"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("is_dense", [False, True])
def test_normalizing_is_layer_norm(shape: tuple[int, ...], has_weight: bool, has_bias: bool, is_dense: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) if is_dense else torch.randn(*shape, 2)[..., 0]
    weight = torch.randn(shape[-1]) if has_weight else None
    bias = torch.randn(shape[-1]) if has_bias else None
    out, mean, rstd = torch.native_layer_norm(x, [shape[-1]], weight, bias, 1e-5)
    torch.testing.assert_close(normalized(x, mean, rstd, weight, bias), out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 3, 384), (5, 1), (1, 70001), (200, 300), (7, 19), (0, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_drawn_in_to_what_their_statistics_allow_and_no_further(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.tensor([0.01, 3.0, 1.0]).repeat(shape[0])[: shape[0]].view(
        -1, *[1] * (len(shape) - 1)
    )
    _, mean, rstd = torch.native_layer_norm(x, [shape[-1]], None, None, 1e-5)
    noisy = (x + torch.randn(shape)).to(dtype)
    away = noisy.float() - mean
    square = (away * rstd).square().mean(-1, keepdim=True)
    wanted = mean + away / square.clamp_min(1.0).sqrt()
    draw_in(noisy, mean, rstd)
    torch.testing.assert_close(noisy.float(), wanted, atol=0.02 if dtype is torch.bfloat16 else 1e-4, rtol=1e-2)
