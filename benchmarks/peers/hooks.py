"""Compression by saved-tensor hooks, in torch ops: which tensors are coded, each once, and how many bytes that takes.

The rules are GACT's: floats of two to four dimensions that belong to the graph are coded, masks take one bit (on the
CPU dropout saves its mask as floats: zeros and one other value), the rest (parameters, indices, statistics) stays as
it is.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from benchmarks.peers.method import Method, StorageMeter
from benchmarks.workloads.workload import Batch, Workload

MIN_ELEMENTS = 256


class Codec(Protocol):
    """What a scheme does to one float tensor. A code is a tuple of tensors."""

    def encode(self, tensor: Tensor, random: torch.Generator) -> tuple[Tensor, ...]: ...

    def decode(self, code: tuple[Tensor, ...], shape: torch.Size) -> Tensor: ...


class Packed:
    """One coded tensor, shared by every place of the graph that saved it."""

    def __init__(self, codec: Codec, code: tuple[Tensor, ...], like: Tensor) -> None:
        self.codec = codec
        self.code = code
        self.shape = like.shape
        self.dtype = like.dtype

    @property
    def num_bytes(self) -> int:
        return sum(part.untyped_storage().nbytes() for part in self.code)


@dataclass(slots=True)
class _Known:
    """A storage that was coded. The weak reference keeps its address from being reused for another storage."""

    storage: StorageWeakRef
    packed: weakref.ref[Packed]


class HookMethod(Method):
    """Train with every fitting saved tensor coded by `codec`."""

    def __init__(self, workload: Workload, codec: Codec) -> None:
        super().__init__(workload)
        self.codec = codec
        self._random = torch.Generator().manual_seed(0)
        self._known: dict[Any, _Known] = {}
        self._meter: StorageMeter | None = None
        self._exact = False
        self._parameters = {p.untyped_storage().data_ptr() for p in workload.model.parameters()}

    def forward(self, batch: Batch) -> Tensor:
        if self._exact:
            return super().forward(batch)
        self._known.clear()
        with saved_tensors_hooks(self._pack, self._unpack):
            return super().forward(batch)

    def exact(self) -> _Exactly:
        return _Exactly(self)

    def saved_bytes(self, batch: Batch) -> int:
        self._meter = StorageMeter(self.workload.model)
        loss = self.forward(batch)
        alive = (known.packed() for known in self._known.values())
        coded_bytes = sum(packed.num_bytes for packed in alive if packed is not None)
        total_bytes = coded_bytes + self._meter.total_bytes
        self._meter = None
        del loss
        return total_bytes

    def _pack(self, tensor: Tensor) -> Packed | Tensor:
        codec = self._codec_for(tensor)
        if codec is None:
            return self._meter.add(tensor) if self._meter is not None else tensor
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version)
        known = self._known.get(key)
        packed = known.packed() if known is not None else None
        if packed is None:
            packed = Packed(codec, codec.encode(tensor.detach(), self._random), tensor)
            self._known[key] = _Known(StorageWeakRef(storage), weakref.ref(packed))
        return packed

    def _codec_for(self, tensor: Tensor) -> Codec | None:
        if tensor.numel() < MIN_ELEMENTS or tensor.untyped_storage().data_ptr() in self._parameters:
            return None
        if tensor.dtype == torch.bool:
            return MASK
        if not tensor.is_floating_point() or not 2 <= tensor.dim() <= 4:
            return None
        if tensor.requires_grad:
            return self.codec
        return MASK if is_mask(tensor) else None

    @staticmethod
    def _unpack(packed: Packed | Tensor) -> Tensor:
        if not isinstance(packed, Packed):
            return packed
        return packed.codec.decode(packed.code, packed.shape).to(packed.dtype)


class Mask:
    """One bit an element and the value of those that are not zero."""

    def encode(self, tensor: Tensor, _random: torch.Generator) -> tuple[Tensor, ...]:
        return pack_bits((tensor != 0).flatten().to(torch.uint8), 1), tensor.max().clone()

    def decode(self, code: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
        return unpack_bits(code[0], 1, shape.numel()).view(shape) * code[1]


MASK = Mask()


def is_mask(tensor: Tensor) -> bool:
    """Say whether a float tensor holds zeros and one positive value only, as dropout's noise does."""
    value = tensor.max()
    return bool(value > 0) and bool(((tensor == 0) | (tensor == value)).all())


class _Exactly:
    """While entered, the method's hooks stay away."""

    def __init__(self, method: HookMethod) -> None:
        self._method = method

    def __enter__(self) -> None:
        self._method._exact = True

    def __exit__(self, *_exception: object) -> None:
        self._method._exact = False


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes [n] (uint8, below 2**bits) -> bytes [ceil(n * bits / 8)]."""
    per_byte = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -len(codes) % per_byte)).view(-1, per_byte)
    packed = codes[:, 0].clone()
    for place in range(1, per_byte):
        packed |= codes[:, place] << (bits * place)
    return packed


def unpack_bits(packed: Tensor, bits: int, num_codes: int) -> Tensor:
    """The reverse: bytes -> codes [num_codes]."""
    places = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((packed.unsqueeze(1) >> places) & (2**bits - 1)).flatten()[:num_codes]


def quantize(groups: Tensor, bits: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Groups [n, size] -> packed codes, least value [n, 1] and step [n, 1] in bf16; stochastic rounding, unbiased."""
    least = groups.amin(1, keepdim=True).bfloat16()
    step = ((groups.amax(1, keepdim=True) - least) / (2**bits - 1)).bfloat16()
    scaled = (groups - least) / step.clamp_min(1e-20)
    noise = torch.empty_like(scaled).uniform_(generator=random)
    codes = scaled.add_(noise).floor_().clamp_(0, 2**bits - 1).to(torch.uint8)
    return pack_bits(codes.flatten(), bits), least, step


def dequantize(packed: Tensor, least: Tensor, step: Tensor, *, bits: int, group_size: int) -> Tensor:
    """The reverse: groups [n, size] in fp32."""
    codes = unpack_bits(packed, bits, len(least) * group_size).view(-1, group_size)
    return torch.addcmul(least.float(), codes.float(), step.float())
