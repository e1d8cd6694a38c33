"""The schemes that DAF is measured against do what their papers say, and their bytes are counted rightly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.division import Division
from benchmarks.peers.gact import Gact
from benchmarks.peers.hooks import MASK, is_mask, pack_bits, unpack_bits
from benchmarks.peers.method import Method, gradient
from benchmarks.train.methods import daf_setting, make
from benchmarks.workloads.models import build
from benchmarks.workloads.workload import Workload


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packed_bits_come_back(bits: int) -> None:
    codes = torch.randint(2**bits, (1001,), dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.numel() == -(-1001 * bits // 8)
    assert torch.equal(unpack_bits(packed, bits, 1001), codes)


def test_gact_at_8_bits_is_close_and_at_2_bits_unbiased(random: torch.Generator) -> None:
    x = torch.randn(8, 100, generator=random)
    close = Gact(8)
    assert (close.decode(close.encode(x, random), x.shape) - x).abs().max() < 0.05
    coarse = Gact(2)
    mean = torch.stack([coarse.decode(coarse.encode(x, random), x.shape) for _ in range(400)]).mean(0)
    assert (mean - x).abs().max() < 0.35
    assert (mean - x).abs().mean() < 0.05


@pytest.mark.parametrize("shape", [(2, 3, 16, 16), (2, 3, 4, 4), (2, 3, 10, 10), (5, 7, 33)])
def test_division_keeps_block_averages(shape: tuple[int, ...], random: torch.Generator) -> None:
    x = torch.randn(shape, generator=random) + 100
    codec = Division()
    decoded = codec.decode(codec.encode(x, random), x.shape)
    assert decoded.shape == x.shape
    assert (decoded - x).abs().mean() < 2


def test_division_keeps_the_mask_of_a_relu_exactly(random: torch.Generator) -> None:
    x = torch.randn(2, 3, 16, 16, generator=random).relu()
    codec = Division()
    assert torch.equal(codec.decode(codec.encode(x, random), x.shape) > 0, x > 0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_take_one_bit_and_come_back_exactly(dtype: torch.dtype, random: torch.Generator) -> None:
    keep = torch.rand(40, 41, generator=random) < 0.9
    noise = keep if dtype == torch.bool else keep / 0.9
    code = MASK.encode(noise, random)
    assert code[0].numel() == 205
    assert torch.equal(MASK.decode(code, noise.shape).to(dtype), noise)
    assert not is_mask(torch.randn(40, 41, generator=random))


class _Twice(nn.Module):
    """Saves one activation three times (for two products and a ReLU)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.a = nn.Linear(64, 64)
        self.b = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x))
        return self.a(hidden) + self.b(hidden)


def _twice() -> Workload:
    model = _Twice()
    return Workload(
        "twice", model, lambda _: {"x": torch.randn(32, 64)}, lambda net, batch: net(batch["x"]).sum(), [model]
    )


def test_a_storage_that_is_saved_many_times_counts_once() -> None:
    workload = _twice()
    batch = workload.make_batch(0)
    one = 32 * 64 * 4
    assert make("plain", workload).saved_bytes(batch) == 2 * one  # x and hidden
    # x needs no gradient and stays as it is; hidden: 1/16 of its bytes and 8 headers of 4 bytes
    assert make("gact-2", workload).saved_bytes(batch) == one + one // 16 + 8 * 4


def test_checkpoint_keeps_the_blocks_inputs_and_the_exact_gradient() -> None:
    workload = build("resnet18", scale=0.125, batch_size=2)
    batch = workload.make_batch(0)
    exact = gradient(Method(workload), batch, seed=0)
    plain_bytes = make("plain", workload).saved_bytes(batch)
    method = make("checkpoint", workload)
    assert method.saved_bytes(batch) < plain_bytes / 2
    assert torch.allclose(gradient(method, batch, seed=0), exact, atol=1e-6)


def test_inside_exact_a_scheme_gives_the_plain_gradient() -> None:
    workload = build("resnet18", scale=0.125, batch_size=2)
    batch = workload.make_batch(0)
    plain = gradient(Method(workload), batch, seed=0)
    method = make("gact-2", workload)
    coded = gradient(method, batch, seed=0)
    with method.exact():
        exact = gradient(method, batch, seed=0)
    assert torch.equal(exact, plain)
    assert (coded - plain).norm() > 0.01 * plain.norm()


def test_names_of_daf_settings_are_read() -> None:
    assert daf_setting("gact-2") is None
    assert daf_setting("daf-2").bits == "2"
    assert daf_setting("daf-auto-20x").ratio == 20
    with pytest.raises(ValueError, match="no method 'zip'"):
        make("zip", _twice())
