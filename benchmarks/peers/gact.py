"""The scheme of GACT and ActNN: groups of 256 consecutive values, min/max, stochastic rounding, bf16 headers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.hooks import dequantize, quantize

GROUP = 256


class Gact:
    """One width for all tensors; GACT's own search for widths needs extra passes and is left out."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def encode(self, tensor: Tensor, random: torch.Generator) -> tuple[Tensor, ...]:
        flat = tensor.float().flatten()
        groups = F.pad(flat, (0, -len(flat) % GROUP)).view(-1, GROUP)
        return quantize(groups, self.bits, random)

    def decode(self, code: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
        groups = dequantize(*code, bits=self.bits, group_size=GROUP)
        return groups.flatten()[: shape.numel()].view(shape)
