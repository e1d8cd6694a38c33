"""Codec `subspace`: rows of C numbers as `mean + A B`, a few coefficients a row in a basis that a slot holds once.

    basis = Basis.fit(x, rank=96)               B [rank, C], ordered by how much of x each of its rows explains
    code = SubspaceCoder(rows, cols, allot(basis.variances, rows, cols, bits=1.0))
    frame = code.encode(x, basis, planes)       A into planes, one stash a block of components; the rest in `frame`
    y = code.decode(frame, planes)              [rows, C]
    basis.refresh(x)                            now and then: one power iteration from where the basis is

The coefficients of a block are bit planes like any other (column groups: a component's 256 neighbours share a header),
so eviction drops planes of a block, and trailing blocks as a whole. Everything here is torch's own products and the
existing coders: this is the reference, and on a GPU the thing itself.

Values that carry structure: rows of zeros come back as zeros. Single zeros do not, and what is not finite is refused
(ValueError): keep such tensors exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from daf.kernels.coder import Coder, HostPlanes, Spec, coder

if TYPE_CHECKING:
    from torch import Tensor

OVERSAMPLED = 8  # directions that are iterated beyond the rank: the last ones that are used converge with them
WIDEST = 8
WIDEST_TREE = 3  # up to here mean-split errs less than min/max
SEED = 0x5DAF


def to_rows(x: Tensor) -> Tensor:
    """Return x as [rows, C] float32: the last dimension of [..., C], the second of maps [N, C, H, W]."""
    if x.dim() < 2:
        raise ValueError(f"a tensor of shape {tuple(x.shape)} has no rows; right would be [..., C] or [N, C, H, W]")
    if x.dim() == 4:
        x = x.permute(0, 2, 3, 1)
    return x.reshape(-1, x.shape[-1]).float()


def from_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows [rows, C] in the shape and dtype of `like`."""
    if like.dim() == 4:
        n, c, h, w = like.shape
        return rows.reshape(n, h, w, c).permute(0, 3, 1, 2).to(like.dtype)
    return rows.reshape(like.shape).to(like.dtype)


class Basis:
    """Orthonormal directions B [rank, C] of one slot, the most telling first, and the variance along each.

    Held once and used by many saves: what a batch adds to the next is little, so one power iteration now and then from
    the directions there are follows the activations, where a decomposition of each save would cost more than the layer.
    """

    __slots__ = ("_directions", "_variances", "rank")

    def __init__(self, directions: Tensor, rank: int) -> None:
        """directions [at least rank, C]: any start, such as random numbers."""
        if not 1 <= rank <= directions.shape[0]:
            raise ValueError(f"rank is {rank}; it must be 1 to {directions.shape[0]}, the directions there are")
        self.rank = rank
        self._directions = directions
        self._variances = torch.zeros(directions.shape[0], device=directions.device)

    @classmethod
    def fit(cls, x: Tensor, rank: int, num_iterations: int = 2) -> Basis:
        """Return a basis for tensors like x, from a random start that is always the same."""
        rows = to_rows(x)
        cols = rows.shape[1]
        if not 1 <= rank <= cols:
            raise ValueError(f"rank is {rank}; it must be 1 to {cols}, the width of a row")
        generator = torch.Generator().manual_seed(SEED)
        start = torch.randn(min(rank + OVERSAMPLED, cols), cols, generator=generator).to(rows.device)
        basis = cls(start, rank)
        basis.refresh(x, num_iterations)
        return basis

    @property
    def directions(self) -> Tensor:
        """B [rank, C]."""
        return self._directions[: self.rank]

    @property
    def variances(self) -> Tensor:
        """Mean square of the coefficients [rank], in the tensor of the last refresh."""
        return self._variances[: self.rank]

    @property
    def num_bytes(self) -> int:
        """Return what a slot holds."""
        return self._directions.nbytes + self._variances.nbytes

    def refresh(self, x: Tensor, num_iterations: int = 1) -> None:
        """Follow x: power iterations from the directions there are, then these turned to the axes of what they span."""
        rows = to_rows(x)
        rows = rows - rows.mean(0)
        if not rows.isfinite().all():
            return  # the directions there are still serve the finite ones
        found = self._directions
        for _ in range(num_iterations):
            found = torch.linalg.qr(rows.T @ (rows @ found.T)).Q.T
        within = rows @ found.T
        squares, axes = torch.linalg.eigh(within.T @ within / max(len(rows), 1))
        self._directions = axes.flip(1).T @ found
        self._variances = squares.flip(0).clamp(min=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring components that share a stash: how many, and how their coefficients are coded."""

    rank: int
    spec: Spec


def blocks_of(rank: int, bits: int, num_blocks: int = 1) -> tuple[Block, ...]:
    """Return `num_blocks` blocks of nearly equal rank, all of one width."""
    sizes = [rank // num_blocks + (i < rank % num_blocks) for i in range(num_blocks)]
    return tuple(Block(size, _spec(bits)) for size in sizes if size)


def allot(variances: Tensor, rows: int, cols: int, *, bits: float, num_blocks: int = 4) -> tuple[Block, ...]:
    """Return blocks whose widths make the error least for `bits` bits an element of [rows, cols].

    A bit more of a block quarters its error, so each next bit goes to the block whose error is largest for what the bit
    takes; a block that never gets one is left out, and with it its components.
    """
    rank = len(variances)
    empty = blocks_of(rank, 1, num_blocks)
    bounds = [sum(block.rank for block in empty[:i]) for i in range(len(empty))]
    errors = [
        float(variances[at : at + block.rank].sum()) / block.rank for at, block in zip(bounds, empty, strict=True)
    ]
    widths, left = [0] * len(empty), bits * rows * cols
    while True:
        best = max(
            (i for i in range(len(empty)) if widths[i] < WIDEST and empty[i].rank * rows <= left and errors[i] > 0),
            key=lambda i: errors[i], default=None,
        )  # fmt: skip
        if best is None:
            break
        widths[best] += 1
        errors[best] /= 4
        left -= empty[best].rank * rows
    return tuple(Block(block.rank, _spec(width)) for block, width in zip(empty, widths, strict=True) if width)


def _spec(bits: int) -> Spec:
    return Spec("meansplit" if bits <= WIDEST_TREE else "minmax", bits, "column")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """What a save keeps beside its planes.

    directions: B as it was, shared by all saves until the slot's basis is refreshed, so not counted here
    mean: of the rows [C]
    zero_rows: which rows are zero [rows], if any is
    """

    directions: Tensor
    mean: Tensor
    zero_rows: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Return the bytes of mean and flags; a flag is a bit where codec bool stores it."""
        return self.mean.nbytes + (0 if self.zero_rows is None else math.ceil(len(self.zero_rows) / 8))

    def restore(self, coefficients: Tensor) -> Tensor:
        """Return mean + A B [rows, C], rows of zeros as zeros. coefficients: A [rows, at most rank]."""
        rows = torch.addmm(self.mean, coefficients, self.directions[: coefficients.shape[1]])
        return rows if self.zero_rows is None else rows.masked_fill_(self.zero_rows[:, None], 0)

    def weight_gradient(self, gradient: Tensor, coefficients: Tensor) -> Tensor:
        """Return gradient^T (mean + A B) [out, C] from A: the product has rank instead of C columns.

        gradient: [rows, out]. What restore gives rows of zeros, these contribute here: nothing.
        """
        if self.zero_rows is not None:
            gradient = gradient.masked_fill(self.zero_rows[:, None], 0)
        within = (gradient.T @ coefficients) @ self.directions[: coefficients.shape[1]]
        return torch.addr(within, gradient.sum(0), self.mean)


class SubspaceCoder:
    """Encodes and decodes [rows, cols] as blocks of coefficients. Holds no tensor: one serves any number of saves.

    project and Frame.restore are torch's products on any device; encode and decode also write and read planes here, on
    the CPU. Whoever has other planes codes the parts that project gives with `coders`, one by one.
    """

    __slots__ = ("blocks", "coders", "cols", "rows")

    def __init__(self, rows: int, cols: int, blocks: Sequence[Block]) -> None:
        rank = sum(block.rank for block in blocks)
        if not 1 <= rank <= cols:
            raise ValueError(f"the blocks have {rank} components; rows of {cols} have 1 to {cols}")
        self.rows, self.cols, self.blocks = rows, cols, tuple(blocks)
        self.coders: tuple[Coder, ...] = tuple(
            coder(block.spec, "float32", rows * block.rank, block.rank) for block in blocks
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes; the frame and the slot's basis come on top."""
        return sum(one.num_bytes for one in self.coders)

    def make_planes(self) -> list[HostPlanes]:
        """Return planes in ordinary memory, for tests and benchmarks: an arena gives a stash for each of `coders`."""
        return [HostPlanes(one.stream_bytes) for one in self.coders]

    def project(self, x: Tensor, basis: Basis) -> tuple[list[Tensor], Frame]:
        """Return the coefficients [rows, rank] of each block, and the rest. ValueError where x is not finite.

        x: as to_rows takes it, [rows, cols] in all
        """
        rows = to_rows(x)
        if rows.shape != (self.rows, self.cols):
            raise ValueError(f"rows are {tuple(rows.shape)}; this coder takes ({self.rows}, {self.cols})")
        sizes = [block.rank for block in self.blocks]
        if basis.rank < sum(sizes):
            raise ValueError(f"the basis has {basis.rank} directions, the blocks have {sum(sizes)}")
        mean, directions = rows.mean(0), basis.directions
        coefficients = (rows - mean) @ directions[: sum(sizes)].T
        if not coefficients.isfinite().all():
            raise ValueError("the tensor is not finite; right would be to keep it exact")
        is_zero = ~rows.any(1)
        frame = Frame(directions, mean, is_zero if bool(is_zero.any()) else None)
        return [part.contiguous() for part in coefficients.split_with_sizes(sizes, dim=1)], frame

    def encode(self, x: Tensor, basis: Basis, planes: Sequence[int], seed: int = 0) -> Frame:
        """Write each block's coefficients into its planes (addresses), and return the rest."""
        parts, frame = self.project(x, basis)
        for one, part, address in zip(self.coders, parts, planes, strict=True):
            one.encode(part.data_ptr(), address, seed)
        return frame

    def coefficients(self, planes: Sequence[int]) -> Tensor:
        """Return A [rows, components] of the first len(planes) blocks: those behind were dropped."""
        parts = [torch.empty(self.rows, block.rank) for block in self.blocks[: len(planes)]]
        for one, part, address in zip(self.coders, parts, planes, strict=False):
            one.decode(part.data_ptr(), address)
        return torch.cat(parts, dim=1) if parts else torch.empty(self.rows, 0)

    def decode(self, frame: Frame, planes: Sequence[int]) -> Tensor:
        """Return mean + A B [rows, cols] from the blocks that are left."""
        return frame.restore(self.coefficients(planes))
