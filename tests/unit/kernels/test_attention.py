"""Attention's forward in C against the definition in double precision, and against torch's own op."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from daf import kernels
from daf.kernels.recompute.attention import Heads, attend
from daf.quant.recompute import attention

aten = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
SHAPES = [  # B, H, L, S, E
    (2, 3, 64, 64, 32), (1, 2, 5, 9, 8), (1, 2, 9, 5, 8), (2, 1, 33, 47, 24), (1, 1, 1, 1, 1), (1, 1, 1, 700, 40),
    (1, 2, 300, 700, 64), (1, 2, 700, 300, 64), (1, 1, 530, 530, 16), (1, 1, 70, 140, 256), (3, 2, 17, 16, 80),
    (2, 2, 16, 31, 100),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _restored_isa() -> Iterator[None]:
    before = kernels.isa()
    yield
    kernels.set_isa(before)


def heads(tensor: Tensor) -> Heads:
    batch, head, row, _ = tensor.stride()
    return Heads(tensor.data_ptr(), (batch, head, row))


def in_c(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    batch, num_heads, length, width = q.shape
    mask = None if mask is None else mask.expand(batch, num_heads, length, k.shape[2])
    out, lse = torch.full_like(q, 7.0), torch.full((batch, length, num_heads), 7.0)
    attend(
        heads(q),
        heads(k),
        heads(v),
        None if mask is None else heads(mask),
        sizes=(batch, num_heads, length, k.shape[2], width),
        scale=scale or 1 / math.sqrt(width),
        is_causal=is_causal,
        out=heads(out),
        lse=lse.data_ptr(),
    )
    return out, lse.transpose(1, 2)


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    scores = q.double() @ k.double().transpose(2, 3) * (scale or 1 / math.sqrt(q.shape[3]))
    if mask is not None:
        scores = scores + mask.double()
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -math.inf)
    lse = scores.logsumexp(3)
    is_blind = lse == -math.inf
    weights = scores.softmax(3).masked_fill(is_blind[..., None], 0.0)
    return (weights @ v.double()).float(), lse.masked_fill(is_blind, 0.0).float()


def inputs(shape: tuple[int, ...], spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as slices of longer rows, as a model's one projection gives them."""
    torch.manual_seed(0)
    batch, num_heads, length, keys, width = shape
    rows = torch.randn(batch, max(length, keys), 3, num_heads, width).mul_(spread).permute(2, 0, 3, 1, 4)
    return rows[0][:, :, :length], rows[1][:, :, :keys], rows[2][:, :, :keys]


def close(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], times: float = 1.0) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5 * times, atol=5e-6 * times)


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_what_its_definition_says(isa: str, shape: tuple[int, ...], is_causal: bool) -> None:
    kernels.set_isa(isa)
    q, k, v = inputs(shape)
    got = in_c(q, k, v, is_causal=is_causal)
    close(got, by_definition(q, k, v, is_causal=is_causal))
    close(got, aten(q, k, v, 0.0, is_causal))


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize("shape", [(2, 3, 40, 70, 16), (1, 2, 20, 700, 32)], ids=str)
@pytest.mark.parametrize("mask_shape", ["BHLS", "1HLS", "B1LS", "B11S", "11LS", "LS", "111S"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_of_any_broadcast_are_added(isa: str, shape: tuple[int, ...], mask_shape: str, is_causal: bool) -> None:
    kernels.set_isa(isa)
    q, k, v = inputs(shape)
    sizes = dict(zip("BHLS", shape, strict=False), **{"1": 1})
    mask = torch.randn([sizes[letter] for letter in mask_shape])
    mask.masked_fill_(torch.rand(mask.shape) < 0.4, -math.inf)
    got = in_c(q, k, v, mask, is_causal=is_causal)
    close(got, by_definition(q, k, v, mask, is_causal=is_causal))
    close(got, aten(q, k, v, 0.0, is_causal, attn_mask=mask if mask.dim() == 4 else mask[None, None]))


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize("num_keys", [40, 700])
def test_a_row_that_sees_no_key_is_zero_as_torch_has_it(isa: str, num_keys: int) -> None:
    kernels.set_isa(isa)
    q, k, v = inputs((1, 2, 20, num_keys, 32))
    mask = torch.zeros(1, 1, 20, num_keys)
    mask[:, :, 3] = -math.inf
    mask[:, :, 5, :-1] = -math.inf  # its only key is in the last block
    mask[:, :, 7, 1:] = -math.inf
    out, lse = in_c(q, k, v, mask)
    assert not out[:, :, 3].any()
    assert not lse[:, :, 3].any()
    torch.testing.assert_close(out[:, :, 5], v[:, :, -1])
    close((out, lse), aten(q, k, v, 0.0, False, attn_mask=mask))


@pytest.mark.parametrize("isa", kernels.available_isas())
def test_large_scores_neither_overflow_nor_lose_their_row(isa: str) -> None:
    kernels.set_isa(isa)
    q, k, v = inputs((1, 2, 40, 600, 64), spread=6.0)
    close(in_c(q, k, v, scale=0.7), by_definition(q, k, v, scale=0.7), times=200.0)  # scores of 800 round by 1e-4


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_row(isa: str, value: float) -> None:
    kernels.set_isa(isa)
    q, k, v = inputs((1, 1, 20, 600, 32))
    q = q.clone()
    q[0, 0, 4, 3] = value
    out, lse = in_c(q, k, v)
    is_bad = torch.zeros(1, 1, 20, dtype=torch.bool)
    is_bad[0, 0, 4] = True
    assert torch.equal(lse.isnan(), is_bad)
    assert torch.equal(out.isnan().all(3), is_bad)
    assert torch.equal(out.isnan().any(3), is_bad)


def test_any_number_of_threads_gives_the_same_attention() -> None:
    q, k, v = inputs((2, 3, 600, 600, 32))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = in_c(q, k, v, is_causal=True)
        for count in (2, 3, 5):
            torch.set_num_threads(count)
            assert all(map(torch.equal, in_c(q, k, v, is_causal=True), wanted))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "change", [Tensor.double, Tensor.bfloat16, lambda x: x.repeat(1, 1, 1, 20)], ids=["double", "bfloat16", "wide"]
)
def test_what_c_does_not_take_goes_to_torch(change) -> None:  # type: ignore[no-untyped-def]
    q, k, v = map(change, inputs((2, 3, 20, 20, 16)))
    got = attention.again_on_cpu(q, k, v, None, True, None)
    assert all(map(torch.equal, got, aten(q, k, v, 0.0, True)))


@pytest.mark.parametrize("has_mask", [False, True])
def test_the_engine_gets_it_in_the_strides_of_torchs_op(has_mask: bool) -> None:
    q, k, v = inputs((2, 3, 20, 30, 16))
    mask = torch.randn(1, 1, 20, 30) if has_mask else None
    got = attention.again_on_cpu(q, k, v, mask, False, 0.3)
    wanted = aten(q, k, v, 0.0, False, attn_mask=mask, scale=0.3)
    close(got, wanted)
    assert [one.stride() for one in got] == [one.stride() for one in wanted]
