"""Rows of one size: what a norm reads is stored as (x - mean) / scale, row by row, and comes back by these two.

A norm makes its rows alike in size before anything reads them. Coded as they come, loud and quiet rows share a group's
range and the quiet ones drown in it; alike, a few bits do for all. Mean and scale are rounded to bfloat16 first and the
row is divided by what they round to, so they cost four bytes a row and no error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROW_BYTES = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a tensor whose elements lie row by row in memory. mean, scale: [rows, 1], bfloat16."""

    mean: Tensor
    scale: Tensor

    @property
    def num_bytes(self) -> int:
        return self.mean.nbytes + self.scale.nbytes

    def undo(self, value: Tensor) -> None:
        """Makes of what was decoded, in place, what was stored."""
        rows = _by_row(value, len(self.mean))
        if value.dtype is torch.float32:
            torch.addcmul(self.mean.float(), rows, self.scale.float(), out=rows)
        else:
            rows.copy_(torch.addcmul(self.mean.float(), rows.float(), self.scale.float()))


def alike(x: Tensor, num_cols: int) -> tuple[Tensor, Rows]:
    """The rows of `x` with a mean near 0 and a mean square of 1, in the same places, and what makes them `x` again."""
    rows = _by_row(x, x.numel() // num_cols).float()
    mean = rows.mean(1, keepdim=True).bfloat16()
    away = rows - mean.float()
    scale = away.square().mean(1, keepdim=True).sqrt_().bfloat16()
    away.mul_(torch.where(scale > 0, scale.float(), 1.0).reciprocal_())
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    _by_row(made, len(mean)).copy_(away)
    return made, Rows(mean, scale)


def _by_row(x: Tensor, num_rows: int) -> Tensor:
    num_cols = x.numel() // num_rows
    return x.as_strided((num_rows, num_cols), (num_cols, 1))
