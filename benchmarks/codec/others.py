"""What others do with the same tensor: the scheme in torch operations, bitsandbytes, torchao. Each a pair of calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

GROUP = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """encode makes what decode takes."""

    name: str
    bits: int
    encode: Callable[[torch.Tensor], Any]
    decode: Callable[[Any], torch.Tensor]

    def error(self, tensors: list[torch.Tensor]) -> float:
        """Mean squared error over all elements; tensors are cut to whole groups."""
        total, count = 0.0, 0
        for tensor in tensors:
            x = tensor.flatten()[: tensor.numel() // GROUP * GROUP]
            back = self.decode(self.encode(x)).flatten()
            total, count = total + float((back - x).square().sum()), count + x.numel()
        return total / count


def peers() -> list[Peer]:
    """Return those that are installed."""
    found = [Peer("torch-ops", 2, _torch_encode, _torch_decode)]
    for add in (_bitsandbytes, _torchao):
        try:
            found += add()
        except Exception as error:
            print(f"{add.__name__[1:]}: not measured, {type(error).__name__}: {error}")
    return found


def _torch_encode(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two bits, min/max over groups of 256, stochastic rounding, four codes to a byte."""
    groups = x.view(-1, GROUP)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = ((high - low) / 3).clamp_min_(1e-30)
    codes = ((groups - low) / scale + torch.rand_like(groups)).floor_().clamp_(0, 3).to(torch.uint8).view(-1, 4)
    packed = codes[:, 0] | codes[:, 1] << 2 | codes[:, 2] << 4 | codes[:, 3] << 6
    return packed, low.bfloat16(), scale.bfloat16()


def _torch_decode(stored: tuple[torch.Tensor, ...]) -> torch.Tensor:
    packed, low, scale = stored
    codes = torch.stack([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], dim=1).view(-1, GROUP)
    return codes.float() * scale.float() + low.float()


def _bitsandbytes() -> list[Peer]:
    from bitsandbytes import functional

    return [
        Peer("bitsandbytes", 8, lambda x: functional.quantize_blockwise(x, blocksize=GROUP),
             lambda stored: functional.dequantize_blockwise(*stored)),
        Peer("bitsandbytes", 4, lambda x: functional.quantize_4bit(x, blocksize=GROUP),
             lambda stored: functional.dequantize_4bit(*stored)),
    ]  # fmt: skip


def _torchao() -> list[Peer]:
    from torchao.quantization import quant_primitives as primitives

    block = (1, GROUP)

    def make(bits: int) -> Peer:
        most = 2**bits - 1

        def encode(x: torch.Tensor) -> Any:
            rows = x.view(-1, GROUP)
            scale, zero = primitives.choose_qparams_affine(
                rows, primitives.MappingType.ASYMMETRIC, block, torch.uint8, 0, most
            )
            return primitives.quantize_affine(rows, block, scale, zero, torch.uint8, 0, most), scale, zero

        def decode(stored: Any) -> torch.Tensor:
            codes, scale, zero = stored
            return primitives.dequantize_affine(codes, block, scale, zero, torch.uint8, 0, most)

        return Peer("torchao", bits, encode, decode)

    return [make(8), make(4), make(2)]
