"""Whether a device codes as the C reference does: tried on the device itself, before anything relies on it.

The twins are proven in Triton's interpreter. A compiler or a GPU that nobody has tried yet may still differ, so the
first use of each codec on a device is a few thousand elements, coded on both sides and compared to the last bit.
"""

from __future__ import annotations

import torch

from daf.kernels.coder import Coder, HostPlanes, Spec, coder
from daf.kernels.triton import codec

_ROWS = 260  # more than one group down a column
_COLS = {"int": 17}  # more than one block of integers
_PAGE_BYTES = 512


def matches_reference(spec: Spec, dtype: str, device: torch.device) -> bool:
    """Whether `device` writes the same planes, and decodes them to the same elements, with and without the last one."""
    x = _values(spec, getattr(torch, dtype))
    c = coder(spec, dtype, x.numel(), x.shape[1])
    ours = HostPlanes(c.stream_bytes, _PAGE_BYTES)
    c.encode(x.data_ptr(), ours.address, 1)
    memory = torch.zeros(sum(_num_pages(c)) * _PAGE_BYTES, dtype=torch.uint8, device=device)
    theirs = HostPlanes(c.stream_bytes, _PAGE_BYTES, memory.data_ptr())
    codec.encode(c, x.to(device), theirs.address, 1)
    written = memory.cpu()
    for stream, first in enumerate(_first_pages(c)):
        start = first * _PAGE_BYTES
        if ours.stream(stream) != written[start : start + c.stream_bytes[stream]].numpy().tobytes():
            return False
    is_alike = _decode_alike(c, x, ours, theirs, device)
    if len(c.stream_bytes) > 1:
        ours.drop()
        theirs.drop()
        is_alike = is_alike and _decode_alike(c, x, ours, theirs, device)
    return is_alike


def _decode_alike(c: Coder, x: torch.Tensor, ours: HostPlanes, theirs: HostPlanes, device: torch.device) -> bool:
    want, got = torch.empty_like(x), torch.empty_like(x, device=device)
    c.decode(want.data_ptr(), ours.address)
    codec.decode(c, got, theirs.address)
    return torch.equal(want.view(torch.uint8), got.cpu().view(torch.uint8))


def _num_pages(c: Coder) -> list[int]:
    return [-(-num_bytes // _PAGE_BYTES) for num_bytes in c.stream_bytes]


def _first_pages(c: Coder) -> list[int]:
    counts = _num_pages(c)
    return [sum(counts[:stream]) for stream in range(len(counts))]


def _values(spec: Spec, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(_ROWS, _COLS.get(spec.codec, 5), device="cpu", generator=torch.Generator().manual_seed(7)) * 3
    if spec.codec == "mask":
        x = torch.where(x > 0, 1.25, 0.0)
    elif spec.codec == "support":
        x = x.relu()
    elif spec.codec == "int":
        x = x.abs() % min(2**spec.bits, 100)
    return x > 0 if dtype == torch.bool else x.to(dtype)
