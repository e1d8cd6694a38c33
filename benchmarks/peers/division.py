"""DIVISION's scheme: averages of 8 x 8 blocks in bf16, the rest in 2 bits with min/max per sample and channel.

Maps smaller than a block are one block. What is no map (not four-dimensional) is taken as runs of 256 values with
averages of 64: the same bytes. A ReLU's output keeps its sign mask exactly, as in the original.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.hooks import dequantize, pack_bits, quantize, unpack_bits

BITS = 2
BLOCK = 8
RUN = 256


class Division:
    """Low frequencies in high precision, high frequencies in 2 bits."""

    def encode(self, tensor: Tensor, random: torch.Generator) -> tuple[Tensor, ...]:
        maps = _as_maps(tensor.float())
        averages = F.avg_pool2d(maps, _block(maps.shape), ceil_mode=True).bfloat16()
        rest = maps - _spread(averages, maps.shape)
        code = (averages, *quantize(rest.view(-1, maps.shape[2] * maps.shape[3]), BITS, random))
        if tensor.dim() == 4 and tensor.amin() == 0:
            return (*code, pack_bits((tensor > 0).flatten().to(torch.uint8), 1))
        return code

    def decode(self, code: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
        averages, packed, least, step, *mask = code
        size = _maps_shape(shape)
        rest = dequantize(packed, least, step, bits=BITS, group_size=size[2] * size[3]).view(size)
        values = (rest + _spread(averages, size)).flatten()[: shape.numel()].view(shape)
        if mask:
            support = unpack_bits(mask[0], 1, shape.numel()).view(shape)
            values = values.clamp_min_(1e-6).mul_(support)
        return values


def _maps_shape(shape: torch.Size) -> torch.Size:
    if len(shape) == 4:
        return shape
    return torch.Size((1, -(-shape.numel() // RUN), RUN // BLOCK**2, BLOCK**2))


def _as_maps(tensor: Tensor) -> Tensor:
    if tensor.dim() == 4:
        return tensor.contiguous()
    flat = tensor.flatten()
    size = _maps_shape(tensor.shape)
    return F.pad(flat, (0, size.numel() - len(flat))).view(size)


def _block(shape: torch.Size) -> tuple[int, int]:
    if shape[0] == 1 and shape[3] == BLOCK**2:  # runs: a row is a block
        return 1, BLOCK**2
    return min(BLOCK, shape[2]), min(BLOCK, shape[3])


def _spread(averages: Tensor, shape: torch.Size) -> Tensor:
    rows, columns = _block(shape)
    spread = averages.float().repeat_interleave(rows, 2).repeat_interleave(columns, 3)
    return spread[:, :, : shape[2], : shape[3]]
