"""The codecs' speed beside memcpy and their peers, and the error of each.

    python -m benchmarks.codec [--json FILE] [--isa avx512,avx2] [--threads 1,2] [--elements 16777216] [--cpu-time]

GB/s are bytes of the uncompressed side over time, the shortest of some rounds; memcpy runs in the same round with the
same threads. `ratio` is the codec's speed over memcpy's. --cpu-time counts the processor's time instead of the clock's,
for one thread on a machine that others use too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.codec_peers import peers
from benchmarks.report import Row, format_table, write_json
from daf import kernels
from daf.kernels import HostPlanes, Spec, coder

WIDTHS = {
    "minmax": range(1, 9), "minmax-sr": range(1, 9), "meansplit": range(1, 5), "support": range(1, 5),
    "int": (8, 16), "raw": (0,),
}  # fmt: skip
ROUNDS = 7
COLUMNS = {
    "codec": str, "op": str, "bits": str, "group": str, "dtype": str, "isa": str, "threads": str,
    "gb_per_s": "{:.2f}".format, "memcpy_gb_per_s": "{:.2f}".format, "ratio": "{:.2f}".format,
}  # fmt: skip
Call = Callable[[], object]
_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def copier(dst: torch.Tensor, src: torch.Tensor, threads: int, pool: concurrent.futures.Executor) -> Call:
    """Return a call of libc's memcpy over the whole tensor, each thread its share."""
    size, part = src.nbytes, -(-src.nbytes // threads // 4096) * 4096
    shares = [(start, min(part, size - start)) for start in range(0, size, part)]

    def copy(share: tuple[int, int]) -> None:
        _memcpy(dst.data_ptr() + share[0], src.data_ptr() + share[0], share[1])

    if threads == 1:
        return lambda: copy(shares[0])
    return lambda: list(pool.map(copy, shares))


def interleaved(calls: Sequence[Call], clock: Callable[[], float]) -> list[float]:
    """Return the shortest time of each call over rounds in which they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


class Bench:
    """One tensor, and the rows measured on it."""

    def __init__(self, elements: int, clock: Callable[[], float]) -> None:
        self.x = torch.randn(elements)
        self.back, self.copy = torch.zeros(elements), torch.zeros(elements)
        self.clock, self.rows = clock, list[Row]()
        self.pool = concurrent.futures.ThreadPoolExecutor(8)

    def row(self, x: torch.Tensor, seconds: float, copy_seconds: float, **names: object) -> None:
        speed, memcpy = x.nbytes / seconds / 1e9, x.nbytes / copy_seconds / 1e9
        dtype = str(x.dtype).removeprefix("torch.")
        self.rows.append({
            **names, "dtype": dtype, "threads": torch.get_num_threads(), "elements": x.numel(),
            "gb_per_s": speed, "memcpy_gb_per_s": memcpy, "ratio": speed / memcpy,
        })  # fmt: skip

    def codec(self, spec: Spec, x: torch.Tensor) -> None:
        """Encode and decode x with what is in force."""
        code = coder(spec, str(x.dtype).removeprefix("torch."), x.numel(), 1024)
        planes, back = HostPlanes(code.stream_bytes), torch.zeros_like(x)
        copy = copier(torch.zeros_like(x), x, torch.get_num_threads(), self.pool)
        encode = lambda: code.encode(x.data_ptr(), planes.address, 1)  # noqa: E731
        decode = lambda: code.decode(back.data_ptr(), planes.address)  # noqa: E731
        copy_seconds, *seconds = interleaved([copy, encode, decode], self.clock)
        for op, value in zip(("encode", "decode"), seconds, strict=True):
            names = {"codec": spec.codec, "op": op, "bits": spec.bits, "group": spec.group, "isa": kernels.isa()}
            self.row(x, value, copy_seconds, **names)

    def peers(self) -> None:
        """The peers on the same tensor."""
        copy = copier(self.copy, self.x, torch.get_num_threads(), self.pool)
        for peer in peers():
            stored = peer.encode(self.x)
            calls = [copy, lambda p=peer: p.encode(self.x), lambda p=peer, s=stored: p.decode(s)]  # type: ignore[misc]
            copy_seconds, *seconds = interleaved(calls, self.clock)
            for op, value in zip(("encode", "decode"), seconds, strict=True):
                self.row(self.x, value, copy_seconds, codec=peer.name, op=op, bits=peer.bits, group="run", isa="")


def errors() -> list[Row]:
    """Mean squared error of each codec and width, and bits an element with headers."""
    numel = 256 * 4096
    normal = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    tensors = {"normal": normal, "relu": normal.relu()}
    rows: list[Row] = []
    for name in ("minmax", "minmax-sr", "meansplit", "support"):
        for bits in WIDTHS[name]:
            code = coder(Spec(name, bits), "float32", numel)
            mse = {kind: code.distortion(x.data_ptr(), 4096)[-1] for kind, x in tensors.items()}
            rows.append({"codec": name, "bits": bits, "bits_per_element": 8 * code.num_bytes / numel, **mse})
    return rows


def measure(bench: Bench, isas: Sequence[str], threads: Sequence[int]) -> None:
    for count in threads:
        torch.set_num_threads(count)
        for isa in isas:
            kernels.set_isa(isa)
            for name, widths in WIDTHS.items():
                source = torch.randint(0, 200, bench.x.shape) if name == "int" else bench.x
                for bits in widths:
                    bench.codec(Spec(name, bits), source.relu() if name == "support" else source)
            bench.codec(Spec("meansplit", 2, "column"), bench.x)
            bench.codec(Spec("meansplit", 2), bench.x.bfloat16())
        bench.peers()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows, with machine and versions, to FILE")
    parser.add_argument("--isa", default="", help="comma separated; default: all of this processor but scalar")
    parser.add_argument("--threads", default="1,2", help="comma separated; default: %(default)s")
    parser.add_argument("--elements", type=int, default=1 << 24, help="default: %(default)s (64 MiB of float32)")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of the calling thread, not the clock")
    arguments = parser.parse_args()
    isas = (
        arguments.isa.split(",") if arguments.isa else [name for name in kernels.available_isas() if name != "scalar"]
    )
    bench = Bench(arguments.elements, time.thread_time if arguments.cpu_time else time.perf_counter)
    measure(bench, isas, [int(count) for count in arguments.threads.split(",")])
    print(format_table(bench.rows, COLUMNS))
    mse = errors()
    print(
        format_table(
            mse,
            dict.fromkeys(("codec", "bits"), str)
            | dict.fromkeys(("bits_per_element", "normal", "relu"), "{:.4f}".format),
        )
    )
    if arguments.json:
        write_json(arguments.json, bench.rows, errors=mse)


if __name__ == "__main__":
    main()
