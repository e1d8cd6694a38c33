from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from daf.quant.patches.slices import Slices


@pytest.fixture
def slices() -> Iterator[Slices]:
    found = Slices()
    yield found
    found.resize(0)


def gradients(dims: int, memory_format: torch.memory_format, **options: int) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(10, 8, *[16] * dims).contiguous(memory_format=memory_format).requires_grad_()
    weight, bias = torch.randn(12, 8 // options.get("groups", 1), *[3] * dims), torch.randn(12)
    weight.requires_grad_()
    bias.requires_grad_()
    y = [F.conv1d, F.conv2d, F.conv3d][dims - 1](x, weight, bias, **options)  # type: ignore[operator]
    y.square().sum().backward()
    return [y.detach(), *(leaf.grad for leaf in (x, weight, bias) if leaf.grad is not None)]


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"groups": 4}, {"dilation": 2}])
@pytest.mark.parametrize(
    ("dims", "memory_format"),
    [(1, torch.contiguous_format), (2, torch.contiguous_format), (2, torch.channels_last), (3, torch.channels_last_3d)],
)
def test_slices_give_what_the_whole_gives(
    slices: Slices, dims: int, memory_format: torch.memory_format, options: dict[str, int]
) -> None:
    whole = gradients(dims, memory_format, **options)
    slices.resize(4096)
    in_slices = gradients(dims, memory_format, **options)
    assert len(whole) == len(in_slices) == 4
    for a, b in zip(whole, in_slices, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-2)
        assert a.stride() == b.stride()


def norm_gradients(memory_format: torch.memory_format, **options: bool) -> list[Tensor]:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(10, affine=options.get("affine", True)).train(options.get("is_training", True))
    x = (3 + torch.randn(6, 10, 12, 12)).contiguous(memory_format=memory_format).requires_grad_()
    norm(x).pow(3).sum().backward()
    assert x.grad is not None
    return [x.grad, *(weight.grad for weight in norm.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"is_training": False}])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_batch_norms_slices_give_what_the_whole_gives(
    slices: Slices, memory_format: torch.memory_format, options: dict[str, bool]
) -> None:
    whole = norm_gradients(memory_format, **options)
    slices.resize(4096)
    in_slices = norm_gradients(memory_format, **options)
    assert len(whole) == len(in_slices) == (1 if options.get("affine") is False else 3)
    for a, b in zip(whole, in_slices, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()


def test_a_batch_norms_frozen_weight_and_input_without_gradient_are_respected(slices: Slices) -> None:
    slices.resize(1024)
    x, norm = torch.randn(8, 4, 16, 16), torch.nn.BatchNorm2d(4)
    norm(x).square().sum().backward()
    assert norm.weight.grad is not None
    norm.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    norm(leaf).pow(3).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_a_torch_that_does_not_give_its_kernel_away_runs_it(slices: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    slices.resize(1024)
    assert all(found.isfinite().all() for found in norm_gradients(torch.contiguous_format))


def test_a_frozen_weight_and_an_input_without_gradient_are_respected(slices: Slices) -> None:
    slices.resize(1024)
    x, weight = torch.randn(8, 4, 16, 16), torch.randn(4, 4, 3, 3, requires_grad=True)
    F.conv2d(x, weight).sum().backward()
    assert weight.grad is not None
    frozen, leaf = weight.detach(), x.clone().requires_grad_()
    F.conv2d(leaf, frozen).sum().backward()
    assert leaf.grad is not None


def test_without_a_limit_torch_runs_its_own_op(slices: Slices) -> None:
    slices.resize(1024)
    slices.resize(0)
    before = gradients(2, torch.contiguous_format)
    slices.resize(1 << 30)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(2, torch.contiguous_format), strict=True))
