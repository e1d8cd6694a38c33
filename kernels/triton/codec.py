"""Encode and decode on the device that holds the tensor: the Triton twins behind the same coders, layout and bytes.

Needs the extra `gpu` (Triton). Nothing else in DAF imports this module; TRITON_INTERPRET=1 runs it on CPU tensors.
"""

from __future__ import annotations

import array
import dataclasses
from typing import Any

import torch

from daf.kernels._native import ffi, lib
from daf.kernels.coder import Coder, StashError
from daf.kernels.triton import dual, exact, meansplit, minmax

_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_MAGIC = 0x31464144
_GROUP, _ROWS, _COLS, _NODES, _BLOCK = 256, 4, 64, 16, 4096
_UNIT_GROUPS = 16  # at most these share a unit of headers, whose rest the encoder clears
_EXACTLY = {"enable_fp_fusion": False}  # see numbers.py


def encode(
    coder: Coder, src: torch.Tensor, planes_addr: int, seed: int = 0, *, doubt: torch.Tensor | None = None
) -> torch.Tensor:
    """Write every stream from the dense tensor `src`, on its device and current stream. Same bytes as Coder.encode.

    Returns the planes' table on the device, which decode takes as long as the planes stay where they are.
    doubt: int32 [1] on the device, which gets a 1 where the elements do not go into the planes (integers too wide, a
           mask of several values). Without it that is a ValueError, and the host waits for the device to know.
    """
    _check_tensor(coder, src)
    planes = _Planes.read(coder, planes_addr, src.device, seed=seed)
    if planes.num_streams != coder._native.num_streams:
        raise StashError(
            f"encode: planes have {planes.num_streams} streams, {coder} writes {coder._native.num_streams}"
        )
    if coder.spec.codec not in _DECODERS:
        raise ValueError(
            f"{coder.spec.codec} has no Triton twin; right would be to keep such tensors exact on a device"
        )
    if coder.spec.codec in _DOUBTFUL:
        _encode_doubtful(coder, src, planes, doubt)
    else:
        _ENCODERS[coder.spec.codec](coder, src, planes)
    return planes.table


def decode(
    coder: Coder, dst: torch.Tensor, planes_addr: int, *, table: torch.Tensor | None = None, verify: bool = True
) -> None:
    """Fill the dense tensor `dst` from the live streams. Same bytes as Coder.decode.

    table: what encode returned. Nothing is copied to the device then.
    verify: read the tag first and refuse a foreign stash. It waits for the device; the stash's owner may leave it out.
    """
    _check_tensor(coder, dst)
    planes = _Planes.read(coder, planes_addr, dst.device, table=table)
    if verify:
        planes.verify(coder)
    if coder.numel:
        _DECODERS[coder.spec.codec](coder, dst, planes)


def _check_tensor(coder: Coder, tensor: torch.Tensor) -> None:
    name = str(tensor.dtype).removeprefix("torch.")
    if name != coder.dtype or tensor.numel() != coder.numel:
        raise ValueError(f"{tensor.numel()} elements of {name} given; this coder takes {coder.numel} of {coder.dtype}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Planes:
    """Planes as kernels take them: one table on the device (see numbers.py) and the page size's logarithm."""

    table: torch.Tensor
    shift: int
    num_streams: int

    @classmethod
    def read(
        cls, coder: Coder, planes_addr: int, device: torch.device, *, seed: int = 0, table: torch.Tensor | None = None
    ) -> _Planes:
        view = ffi.cast("daf_planes_t *", planes_addr)
        page_bytes, num_streams = int(view.page_bytes), int(view.num_streams)
        if page_bytes < lib.DAF_MIN_PAGE_BYTES or page_bytes & (page_bytes - 1):
            raise StashError(
                f"page_bytes is {page_bytes}; it must be a power of two, {lib.DAF_MIN_PAGE_BYTES} at least"
            )
        if not 1 <= num_streams <= coder._native.num_streams:
            raise StashError(f"planes have {num_streams} streams; {coder} has 1 to {coder._native.num_streams}")
        if table is None:
            table = _to_device(_table(coder, view, seed), device)
        return cls(table, page_bytes.bit_length() - 1, num_streams)

    def verify(self, coder: Coder) -> None:
        found = torch.empty(32, dtype=torch.uint8, device=self.table.device)
        _launch(exact.tag_read_kernel, 1, found, self.table, coder.stream_bytes[0] - 32, SHIFT=self.shift)
        if found.cpu().view(torch.int64).tolist() != _tag(coder):
            raise StashError("decode: the stash was written by another coder, or not completely")


def _table(coder: Coder, view: Any, seed: int) -> torch.Tensor:
    num_streams = int(view.num_streams)
    counts = [-(-size // int(view.page_bytes)) for size in coder.stream_bytes[:num_streams]]
    first = [sum(counts[:s]) for s in range(num_streams)]
    words = [*first, *[0] * (12 - num_streams), *_tag(coder), _signed(seed)]
    pages = (ffi.buffer(view.pages + view.first_page[s], 8 * count)[:] for s, count in enumerate(counts) if count)
    return torch.frombuffer(bytearray(b"".join((array.array("q", words).tobytes(), *pages))), dtype=torch.int64)


def _to_device(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Without waiting: torch uses pinned memory again only once the copy from it is done."""
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)


def _tag(coder: Coder) -> list[int]:
    native = coder._native
    head = _MAGIC | native.codec << 32 | native.bits << 40 | native.shape << 48 | native.dtype << 56
    return [head, native.numel, native.cols, native.rows]


def _signed(seed: int) -> int:
    seed &= 0xFFFFFFFFFFFFFFFF
    return seed - (1 << 64) if seed >> 63 else seed


def _launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    if programs:
        kernel[(programs,)](*arguments, **constants, **_EXACTLY)


def _unit_programs(coder: Coder) -> int:
    """Programs that cover the elements; at least one, which writes the tag; and the header units' rest."""
    num_units = max(-(-coder.numel // _GROUP), 1)
    return -(-num_units // _UNIT_GROUPS) * _UNIT_GROUPS // _ROWS


def _group_programs(coder: Coder) -> int:
    return -(-int(coder._native.num_groups) // _UNIT_GROUPS) * _UNIT_GROUPS // _ROWS


def _is_column(coder: Coder) -> bool:
    return coder.spec.group == "column"


def _tag_offset(coder: Coder) -> int:
    return int(coder.stream_bytes[0]) - 32


def _bits_view(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit floats as the integers that kernels make and read; only address and type of the view matter."""
    return tensor.view(torch.int16) if tensor.dtype in {torch.bfloat16, torch.float16} else tensor


def _encode_source(src: torch.Tensor) -> torch.Tensor:
    return src.view(torch.int16) if src.dtype == torch.bfloat16 else src


def _encode_minmax(coder: Coder, src: torch.Tensor, planes: _Planes) -> None:
    native, column = coder._native, _is_column(coder)
    sizes = (coder.numel, max(native.cols, 1), native.num_groups, native.head_offset[0])
    constants = {"BITS": coder.spec.bits, "DTYPE": _DTYPES[coder.dtype], "COLUMN": column, "SHIFT": planes.shift}
    source = _encode_source(src)
    if column:
        _launch(minmax.choose_kernel, _group_programs(coder), source, planes.table, *sizes, **constants)
    stochastic = coder.spec.codec == "minmax-sr"
    _launch(
        minmax.encode_kernel, _unit_programs(coder), source, planes.table, *sizes, _tag_offset(coder),
        STOCHASTIC=stochastic, **constants,
    )  # fmt: skip


def _decode_minmax(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    native = coder._native
    _launch(
        minmax.decode_kernel, _unit_programs(coder), _bits_view(dst), planes.table, coder.numel,
        max(native.cols, 1), native.head_offset[0], BITS=coder.spec.bits, LIVE=planes.num_streams - 1,
        DTYPE=_DTYPES[coder.dtype], COLUMN=_is_column(coder), SHIFT=planes.shift,
    )  # fmt: skip


def _encode_meansplit(coder: Coder, src: torch.Tensor, planes: _Planes) -> None:
    native, source, programs = coder._native, _encode_source(src), _unit_programs(coder)
    constants = {"DTYPE": _DTYPES[coder.dtype], "SUPPORT": coder.spec.codec == "support", "SHIFT": planes.shift}
    if _is_column(coder):
        means = _choose_columns(coder, source, planes, constants)
        arguments: tuple[Any, ...] = (means, coder.numel, native.cols, native.head_offset[0])
        kernel = meansplit.encode_column_kernel
    else:
        arguments = (coder.numel, native.num_groups, native.head_offset[1], native.head_offset[0])
        kernel = meansplit.encode_run_kernel
    constants["BITS"] = coder.spec.bits
    _launch(kernel, programs, source, planes.table, *arguments, _tag_offset(coder), **constants)


def _choose_columns(coder: Coder, source: torch.Tensor, planes: _Planes, constants: dict[str, Any]) -> torch.Tensor:
    """Write the headers of column groups, one launch a level; return the means of their nodes [num_groups * 16]."""
    native, num_nodes = coder._native, max(coder._native.num_groups, 1) * _NODES
    sums, means = (torch.empty(num_nodes, dtype=torch.float32, device=source.device) for _ in range(2))
    counts = torch.empty(num_nodes, dtype=torch.int32, device=source.device)
    programs = -(-int(native.num_groups) // _COLS)
    arguments = (source, planes.table, sums, counts, means, coder.numel, native.cols, native.num_groups)
    _launch(meansplit.choose_root_kernel, programs, *arguments, native.head_offset[0], **constants)
    for level in range(1, coder.spec.bits + 1):
        _launch(
            meansplit.choose_level_kernel, programs, *arguments, native.head_offset[1], native.head_offset[0],
            LEVEL=level, BITS=coder.spec.bits, **constants,
        )  # fmt: skip
    return means


def _decode_meansplit(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    _decode_tree(coder, dst, planes, is_column=_is_column(coder))


def _decode_tree(coder: Coder, dst: torch.Tensor, planes: _Planes, *, is_column: bool) -> None:
    native = coder._native
    leaves = torch.empty(native.num_groups * _NODES, dtype=torch.float32, device=dst.device)
    heads, support_heads, cols = native.head_offset[1], native.head_offset[0], max(native.cols, 1)
    constants = {
        "LIVE": planes.num_streams - 1, "COLUMN": is_column, "SUPPORT": coder.spec.codec == "support",
        "SHIFT": planes.shift,
    }  # fmt: skip
    sizes = (coder.numel, cols, native.num_groups, heads, support_heads)
    _launch(meansplit.leaves_kernel, _group_programs(coder), planes.table, leaves, *sizes, **constants)
    _launch(
        meansplit.decode_kernel, _unit_programs(coder), _bits_view(dst), planes.table, leaves, coder.numel, cols,
        heads, support_heads, DTYPE=_DTYPES[str(dst.dtype).removeprefix("torch.")], **constants,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of a dual coder, as dual.c cuts them."""

    rows: int
    cols: int
    width: int
    num_blocks: int
    offset: int  # of the averages in stream 0

    @classmethod
    def of(cls, coder: Coder) -> _Blocks:
        native = coder._native
        all_rows = coder.numel // native.cols
        rows, width = native.rows or max(all_rows, 1), 1 if _is_column(coder) else 8
        num_blocks = all_rows // rows * -(-rows // 8) * -(-native.cols // width)
        return cls(rows, native.cols, width, num_blocks, -(-2 * native.num_groups // 32) * 32)

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the kernels take them: rows, cols, rows of blocks in a map, blocks in such a row."""
        return self.rows, self.cols, -(-self.rows // 8), -(-self.cols // self.width)


def _encode_dual(coder: Coder, src: torch.Tensor, planes: _Planes) -> None:
    blocks, source, native = _Blocks.of(coder), _encode_source(src), coder._native
    rest = torch.empty(max(coder.numel, 1), dtype=torch.float32, device=src.device)
    constants = {"WIDTH": blocks.width, "DTYPE": _DTYPES[coder.dtype], "SHIFT": planes.shift}
    _launch(
        dual.average_kernel, -(-blocks.num_blocks // 128), source, planes.table, *blocks.sizes,
        blocks.num_blocks, blocks.offset, **constants,
    )  # fmt: skip
    _launch(
        dual.take_kernel, -(-coder.numel // 1024), source, rest, planes.table, coder.numel, *blocks.sizes,
        blocks.offset, **constants,
    )  # fmt: skip
    _launch(
        meansplit.encode_run_kernel, _unit_programs(coder), rest, planes.table, coder.numel, native.num_groups,
        native.head_offset[1], native.head_offset[0], _tag_offset(coder), BITS=coder.spec.bits,
        DTYPE=_DTYPES["float32"], SUPPORT=False, SHIFT=planes.shift,
    )  # fmt: skip


def _decode_dual(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    blocks = _Blocks.of(coder)
    rest = torch.empty(coder.numel, dtype=torch.float32, device=dst.device)
    _decode_tree(coder, rest, planes, is_column=False)
    _launch(
        dual.add_kernel, -(-coder.numel // 1024), _bits_view(dst), rest, planes.table, coder.numel,
        *blocks.sizes, blocks.offset, WIDTH=blocks.width, DTYPE=_DTYPES[coder.dtype], SHIFT=planes.shift,
    )  # fmt: skip


def _encode_raw(coder: Coder, src: torch.Tensor, planes: _Planes) -> None:
    num_bytes = coder.numel * src.element_size()
    _launch(
        exact.raw_encode_kernel, -(-coder.stream_bytes[0] // _BLOCK), _bytes_view(src), planes.table, num_bytes,
        _tag_offset(coder), SHIFT=planes.shift,
    )  # fmt: skip


def _decode_raw(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    num_bytes = coder.numel * dst.element_size()
    _launch(
        exact.raw_decode_kernel, -(-num_bytes // _BLOCK), _bytes_view(dst), planes.table, num_bytes,
        SHIFT=planes.shift,
    )  # fmt: skip


def _bytes_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in memory order, whatever its strides: dense memory is one run."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _encode_bool(coder: Coder, src: torch.Tensor, planes: _Planes) -> None:
    _launch(
        exact.bool_encode_kernel, _unit_programs(coder), _bytes_view(src), planes.table, coder.numel,
        _tag_offset(coder), SHIFT=planes.shift,
    )  # fmt: skip


def _decode_bool(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    _launch(
        exact.bool_decode_kernel,
        _unit_programs(coder),
        _bytes_view(dst),
        planes.table,
        coder.numel,
        SHIFT=planes.shift,
    )


def _float_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Floats as the integers of the same bits, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,)).view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def _encode_doubtful(coder: Coder, src: torch.Tensor, planes: _Planes, doubt: torch.Tensor | None) -> None:
    flag = torch.zeros(1, dtype=torch.int32, device=src.device) if doubt is None else doubt
    _DOUBTFUL[coder.spec.codec](coder, src, planes, flag)
    if doubt is None and int(flag):
        raise ValueError(
            f"encode: integers that do not fit {coder.spec.bits} planes above their block's least, or a mask with "
            "more than one value besides zero"
        )
    _launch(exact.tag_kernel, 1, planes.table, _tag_offset(coder), SHIFT=planes.shift)


def _encode_mask(coder: Coder, src: torch.Tensor, planes: _Planes, doubt: torch.Tensor) -> None:
    bits = _float_bits(src)
    value = torch.zeros(1, dtype=bits.dtype, device=src.device)
    if coder.numel:
        low, high = torch.aminmax(bits)
        value = torch.where(low != 0, low, high)
    _launch(
        exact.mask_encode_kernel, _unit_programs(coder), bits, planes.table, value, doubt, coder.numel,
        int(coder._native.head_offset[0]), SHIFT=planes.shift,
    )  # fmt: skip


def _decode_mask(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    head = int(coder._native.head_offset[0])
    _launch(
        exact.mask_decode_kernel, _unit_programs(coder), _float_bits(dst), planes.table, coder.numel, head,
        SHIFT=planes.shift,
    )  # fmt: skip


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    return _bytes_view(tensor) if tensor.dtype == torch.bool else tensor


def _encode_int(coder: Coder, src: torch.Tensor, planes: _Planes, doubt: torch.Tensor) -> None:
    native = coder._native
    _launch(
        exact.int_encode_kernel, native.num_groups, _integers(src), planes.table, doubt, coder.numel,
        native.num_groups, native.head_offset[0], BITS=coder.spec.bits, SHIFT=planes.shift,
    )  # fmt: skip


def _decode_int(coder: Coder, dst: torch.Tensor, planes: _Planes) -> None:
    native = coder._native
    _launch(
        exact.int_decode_kernel, native.num_groups, _integers(dst), planes.table, coder.numel,
        native.num_groups, native.head_offset[0], BITS=coder.spec.bits, SHIFT=planes.shift,
    )  # fmt: skip


_ENCODERS = {
    "minmax": _encode_minmax, "minmax-sr": _encode_minmax, "meansplit": _encode_meansplit, "support": _encode_meansplit,
    "dual": _encode_dual, "raw": _encode_raw, "bool": _encode_bool,
}  # fmt: skip
_DOUBTFUL = {"mask": _encode_mask, "int": _encode_int}
_DECODERS = {
    "minmax": _decode_minmax, "minmax-sr": _decode_minmax, "meansplit": _decode_meansplit, "support": _decode_meansplit,
    "dual": _decode_dual, "raw": _decode_raw, "bool": _decode_bool, "mask": _decode_mask, "int": _decode_int,
}  # fmt: skip
