"""Who codes a tensor: C where the CPU holds it, the Triton twins on the GPU that does. Both write the same bytes.

    backend = backends.at(tensor)                        Host, or the Device of that GPU
    token = backend.encode(coder, tensor, planes, seed)
    value = backend.decode(coder, layout, dtype, planes, token)

A device works in the order of its home stream (allocator/torch/cuda_door.h), and only there. Pages are given back,
evicted and handed out again by the host while kernels that read or write them are still queued: nobody can see it,
because whatever touches those pages next is queued behind them on the same stream, and memory is unmapped only after
the home stream has been waited for. So a tensor that is saved on another stream is kept exact (to code it on the
home stream, its memory would have to be held until that has come by), and planes that are wanted on another stream are
decoded on the home stream, which the other then waits for.

What a device cannot do costs compression, never the run: NotHereError says why, and the tensor is kept exact.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from daf.errors import DafError
from daf.kernels import choose_bits
from daf.quant.encode.unconfirmed import Unconfirmed
from daf.quant.torch_internals import current_stream

if TYPE_CHECKING:
    from daf.allocator import Arena
    from daf.kernels import Coder, Spec
    from daf.quant.saved.layout import Layout

GROUP = 256  # elements of a group, and rows of a column group
BLOCK = 4096  # integers that share a base
SAMPLED_GROUPS = 64
MAX_TILES = 4
CPU = torch.device("cpu")  # named, since a user may have made another the default


class NotHereError(DafError):
    """Tensors like this one cannot be coded where they are. `reason` is what they are counted under."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason
        self.text = text  # for the user; empty where there is nothing to be told


class Backend(Protocol):
    """One memory, and who codes there."""

    arena: Arena
    is_host: bool

    def check(self, spec: Spec, dtype: str) -> None:
        """Raise NotHereError where this cannot be coded."""

    def encode(self, coder: Coder, source: Tensor, planes: int, seed: int, doubt: Unconfirmed | None = None) -> Any:
        """Write the dense tensor `source` into the planes; return what decode wants to be given."""

    def decode(self, coder: Coder, layout: Layout, dtype: torch.dtype, planes: int, token: Any) -> Tensor: ...

    def num_int_bits(self, source: Tensor) -> int:
        """The planes that integers need."""

    def sample(self, source: Tensor, cols: int, group: str) -> tuple[Tensor, int]:
        """A tensor on the host whose groups are (some of) the source's, and its cols."""


class Host:
    """The CPU. Looks at whatever it is asked about, at once."""

    is_host = True

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def check(self, spec: Spec, dtype: str) -> None: ...

    def encode(self, coder: Coder, source: Tensor, planes: int, seed: int, _doubt: Unconfirmed | None = None) -> None:
        coder.encode(source.data_ptr(), planes, seed)

    def decode(self, coder: Coder, layout: Layout, dtype: torch.dtype, planes: int, _token: None) -> Tensor:
        out = torch.empty_strided(layout.core_shape, layout.core_strides, dtype=dtype, device=CPU)
        coder.decode(out.data_ptr(), planes)
        return out

    def num_int_bits(self, source: Tensor) -> int:
        return choose_bits(_name(source.dtype), source.numel(), source.data_ptr())

    def sample(self, source: Tensor, cols: int, _group: str) -> tuple[Tensor, int]:
        return source, cols


class Device:
    """The Triton twins, on whatever torch device Triton runs: in its interpreter that is the CPU.

    Each codec is tried against C before its first use. Nothing here waits for the device but that trial, and what a
    slot's first save or a sampled step wants to know.
    """

    is_host = False

    def __init__(self, arena: Arena, device: torch.device) -> None:
        from daf.kernels.triton import codec, proof

        self.arena = arena
        self._device = device
        self._codec = codec
        self._matches_reference = proof.matches_reference
        self._faults: dict[tuple[Spec, str], str] = {}  # what is wrong with a codec here; empty: nothing
        self._doubts: deque[Unconfirmed] = deque()

    def check(self, spec: Spec, dtype: str) -> None:
        fault = self._faults.get((spec, dtype))
        if fault is None:
            fault = self._faults[spec, dtype] = self._try(spec, dtype)
        if fault:
            raise NotHereError("kernel", f"{spec.codec} of {spec.bits} bits on {self._device}: {fault}")

    def _try(self, spec: Spec, dtype: str) -> str:
        try:
            return "" if self._matches_reference(spec, dtype, self._device) else "differs from the reference"
        except Exception as error:  # whatever a compiler or a driver comes up with
            return f"{type(error).__name__}: {error}"

    def encode(self, coder: Coder, source: Tensor, planes: int, seed: int, doubt: Unconfirmed | None = None) -> Any:
        self.settle()
        table = self._codec.encode(coder, source, planes, seed, doubt=None if doubt is None else doubt.flag)
        if doubt is None:
            return table
        doubt.ask(table)
        self._doubts.append(doubt)
        return doubt

    def settle(self) -> None:
        """Let go of tensors that were held until the device had answered."""
        while self._doubts and self._doubts[0].is_answered():
            self._doubts.popleft().settle()

    def decode(self, coder: Coder, layout: Layout, dtype: torch.dtype, planes: int, token: Any) -> Tensor:
        if isinstance(token, Unconfirmed):
            token.settle()
            if token.is_broken:
                return token.restore()
            token = token.table
        out = torch.empty_strided(layout.core_shape, layout.core_strides, dtype=dtype, device=self._device)
        self._codec.decode(coder, out, planes, table=token, verify=False)
        return out

    def num_int_bits(self, source: Tensor) -> int:
        flat = source.as_strided((source.numel(),), (1,))
        num_whole = flat.numel() // BLOCK * BLOCK
        parts = [part for part in (flat[:num_whole].view(-1, BLOCK), flat[num_whole:].view(1, -1)) if part.numel()]
        ranges = torch.cat([part.amax(1).long() - part.amin(1).long() for part in parts])
        least, most = torch.stack(torch.aminmax(ranges)).tolist()
        return 64 if least < 0 else max(1, int(most).bit_length())  # less than nothing: more than 63 bits hold

    def sample(self, source: Tensor, cols: int, group: str) -> tuple[Tensor, int]:
        """Evenly spaced groups: a few kilobytes, gathered on the device."""
        start = source.storage_offset()
        if group == "run":
            num_groups = source.numel() // GROUP
            num = min(num_groups, SAMPLED_GROUPS)
            return source.as_strided((num, GROUP), (num_groups // num * GROUP, 1), start).cpu(), 0
        rows = source.numel() // cols
        tiles = max(1, min(MAX_TILES, rows // GROUP))
        width = min(cols, SAMPLED_GROUPS // tiles)
        between = rows // GROUP // tiles * GROUP * cols
        some = source.as_strided((tiles, min(rows, GROUP), width), (between, cols, cols // width), start)
        return some.cpu(), width


class CudaDevice(Device):
    """A CUDA device whose memory an arena of DAF's serves."""

    def __init__(self, arena: Arena, device: torch.device, home: int) -> None:
        super().__init__(arena, device)
        self._home = home
        self._home_stream = torch.cuda.default_stream(device)
        if home:  # torch takes an external stream 0 for none, and gives another
            self._home_stream = torch.cuda.ExternalStream(home, device)  # type: ignore[no-untyped-call]

    def is_home(self) -> bool:
        return current_stream(self._device.index) == self._home

    def is_capturing(self) -> bool:
        return self._home != 0 and torch.cuda.is_current_stream_capturing()

    def _guard(self) -> contextlib.AbstractContextManager[Any]:
        """Triton launches on the thread's current device."""
        is_current = torch.cuda.current_device() == self._device.index
        return contextlib.nullcontext() if is_current else torch.cuda.device(self._device)

    def encode(self, coder: Coder, source: Tensor, planes: int, seed: int, doubt: Unconfirmed | None = None) -> Any:
        with self._guard():
            return super().encode(coder, source, planes, seed, doubt)

    def decode(self, coder: Coder, layout: Layout, dtype: torch.dtype, planes: int, token: Any) -> Tensor:
        if self.is_home():
            with self._guard():
                return super().decode(coder, layout, dtype, planes, token)
        reader = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._home_stream):
            out = super().decode(coder, layout, dtype, planes, token)
        reader.wait_stream(self._home_stream)
        out.record_stream(reader)
        return out


class Backends:
    """The host, and devices as they are met. A device that cannot be used is asked once."""

    def __init__(self, arena: Arena) -> None:
        self.host: Backend = Host(arena)
        self._devices: dict[int, CudaDevice | tuple[str, str]] = {}  # or why not: reason and text

    def on_device(self, tensor: Tensor) -> CudaDevice:
        """The backend of a tensor that is not on the CPU; NotHereError where there is none, now or at all."""
        if not tensor.is_cuda:
            raise NotHereError("unsupported")
        index = tensor.device.index
        backend = self._devices.get(index)
        if backend is None:
            backend = self._devices[index] = _open(tensor.device)
        if isinstance(backend, tuple):
            raise NotHereError(*backend)
        if not backend.is_home() or backend.is_capturing():
            raise NotHereError("stream")
        return backend


def _open(device: torch.device) -> CudaDevice | tuple[str, str]:
    from daf.allocator import device_arena, home_stream

    arena, home = device_arena(device.index), home_stream(device.index)
    if arena is None or home is None:
        return "no_arena", f"{device} is not served by an arena of DAF's: open DAF before CUDA is used"
    try:
        return CudaDevice(arena, device, home)
    except ImportError as error:
        return "no_triton", f"saved tensors on {device} need Triton (pip install triton): {error}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
