"""The codecs' speed beside memcpy and their peers, and the error of each.

    python -m benchmarks.codec [--json FILE] [--isa avx512,avx2] [--threads 1,2] [--elements 16777216] [--cpu-time]

GB/s are bytes of the uncompressed side over time, the shortest of some rounds; memcpy runs in the same rounds with the
same threads. `ratio` is the codec's speed over memcpy's. Errors are mean squared, on tensors of mean square 1: normal
values, their ReLU, and the activations that a ResNet-18 and a GPT save in a training step. --cpu-time counts the
processor's time instead of the clock's, for one thread on a machine that others use too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.codec.errors import KINDS, Samples, codec_error, samples
from benchmarks.codec.others import Peer, peers
from benchmarks.tools.report import Row, format_table, write_json
from benchmarks.workloads.data import DataFolder
from daf import kernels
from daf.kernels import HostPlanes, Spec, coder

WIDTHS = {
    "minmax": range(1, 9), "minmax-sr": range(1, 9), "meansplit": range(1, 5), "support": range(1, 5),
    "dual": range(1, 5), "int": (8, 16), "bool": (1,), "mask": (1,),
    "raw": (0,),
}  # fmt: skip
EXACT = frozenset({"int", "bool", "mask", "raw"})
OTHERS = (
    (Spec("meansplit", 2, "column"), torch.float32), (Spec("minmax-sr", 2, "column"), torch.float32),
    (Spec("support", 2, "column"), torch.float32), (Spec("meansplit", 2), torch.bfloat16),
    (Spec("minmax-sr", 2), torch.float16),
)  # fmt: skip
COLS = 1024
ROUNDS, SCALAR_ROUNDS, SCALAR_SHARE = 7, 2, 16
MSE = {kind: f"mse_{kind}" for kind in KINDS}
COLUMNS = {
    "codec": str, "op": str, "bits": str, "group": str, "dtype": str, "isa": str, "threads": str,
    "gb_per_s": "{:.2f}".format, "memcpy_gb_per_s": "{:.2f}".format, "ratio": "{:.2f}".format,
    **dict.fromkeys(MSE.values(), "{:.4f}".format),
}  # fmt: skip
Call = Callable[[], object]
_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def copier(dst: Tensor, src: Tensor, threads: int, pool: concurrent.futures.Executor) -> Call:
    """Return a call of libc's memcpy over the whole tensor, each thread its share."""
    size, part = src.nbytes, -(-src.nbytes // threads // 4096) * 4096
    shares = [(start, min(part, size - start)) for start in range(0, size, part)]

    def copy(share: tuple[int, int]) -> None:
        _memcpy(dst.data_ptr() + share[0], src.data_ptr() + share[0], share[1])

    if threads == 1:
        return lambda: copy(shares[0])
    return lambda: list(pool.map(copy, shares))


def interleaved(calls: Sequence[Call], clock: Callable[[], float], rounds: int) -> list[float]:
    """Return the shortest time of each call over rounds in which they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = clock()
            call()
            best[i] = min(best[i], clock() - start)
    return best


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


class Bench:
    """One tensor, and the rows measured on it."""

    def __init__(self, elements: int, clock: Callable[[], float], tensors: Samples) -> None:
        self.x = torch.randn(elements)
        self.clock, self.rows, self.tensors = clock, list[Row](), tensors
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self._errors: dict[Spec, Row] = {}

    def source(self, codec: str, dtype: torch.dtype) -> Tensor:
        """What a codec is given: as many bytes for each, less for the reference."""
        x = self.x[: self.x.numel() // SCALAR_SHARE] if kernels.isa() == "scalar" else self.x
        if codec == "int":
            return torch.randint(0, 200, (x.numel() // 2,))
        if codec == "bool":
            return torch.rand(x.numel()) < 0.5
        if codec == "mask":
            return (x > 0) * 1.25
        return x.relu().to(dtype) if codec == "support" else x.to(dtype)

    def codec(self, spec: Spec, dtype: torch.dtype = torch.float32) -> None:
        """Encode and decode with what is in force."""
        x = self.source(spec.codec, dtype)
        code = coder(spec, dtype_of(x), x.numel(), COLS)
        planes, back = HostPlanes(code.stream_bytes), torch.zeros_like(x)
        calls = [
            copier(torch.zeros_like(x), x, torch.get_num_threads(), self.pool),
            lambda: code.encode(x.data_ptr(), planes.address, 1),
            lambda: code.decode(back.data_ptr(), planes.address),
        ]
        seconds = interleaved(calls, self.clock, SCALAR_ROUNDS if kernels.isa() == "scalar" else ROUNDS)
        self.add(x, seconds, self.errors(spec), codec=spec.codec, bits=spec.bits, group=spec.group, isa=kernels.isa())

    def peer(self, peer: Peer) -> None:
        """A peer on the same tensor, in the same way."""
        stored = peer.encode(self.x)
        copy = copier(torch.zeros_like(self.x), self.x, torch.get_num_threads(), self.pool)
        calls: list[Call] = [copy, lambda: peer.encode(self.x), lambda: peer.decode(stored)]
        seconds = interleaved(calls, self.clock, ROUNDS)
        errors: Row = {MSE[kind]: peer.error(tensors) for kind, tensors in self.tensors.items()}
        self.add(self.x, seconds, errors, codec=peer.name, bits=peer.bits, group="run", isa="")

    def add(self, x: Tensor, seconds: Sequence[float], errors: Row, **names: object) -> None:
        copy_seconds, *both = seconds
        memcpy = x.nbytes / copy_seconds / 1e9
        for op, value in zip(("encode", "decode"), both, strict=True):
            speed = x.nbytes / value / 1e9
            self.rows.append({
                **names, "op": op, "dtype": dtype_of(x), "threads": torch.get_num_threads(), "elements": x.numel(),
                "gb_per_s": speed, "memcpy_gb_per_s": memcpy, "ratio": speed / memcpy, **errors,
            })  # fmt: skip

    def errors(self, spec: Spec) -> Row:
        if spec not in self._errors:
            self._errors[spec] = {
                MSE[kind]: 0.0 if spec.codec in EXACT else codec_error(spec, tensors)
                for kind, tensors in self.tensors.items()
            }
        return self._errors[spec]


def measure(bench: Bench, isas: Sequence[str], threads: Sequence[int]) -> None:
    for count in threads:
        torch.set_num_threads(count)
        for isa in isas:
            kernels.set_isa(isa)
            for name, widths in WIDTHS.items():
                for bits in widths:
                    bench.codec(Spec(name, bits))
            for spec, dtype in OTHERS:
                bench.codec(spec, dtype)
        for peer in peers():
            bench.peer(peer)


def against_peers(rows: Sequence[Row], isa: str) -> list[Row]:
    """Beside each peer's row ours of the same width: stochastic for the scheme in torch operations, else nearest."""
    ours = {
        (row["codec"], row["bits"], row["op"], row["threads"]): row["gb_per_s"]
        for row in rows
        if row["isa"] == isa and row["group"] == "run" and row["dtype"] == "float32"
    }
    found = []
    for row in rows:
        if row["isa"] == "":
            codec = "minmax-sr" if row["codec"] == "torch-ops" else "minmax"
            speed = ours[codec, row["bits"], row["op"], row["threads"]]
            names = {"peer": row["codec"], **{key: row[key] for key in ("bits", "op", "threads")}, "codec": codec}
            found.append(
                {**names, "peer_gb_per_s": row["gb_per_s"], "gb_per_s": speed, "times": speed / row["gb_per_s"]}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the rows, with machine and versions, to FILE")
    parser.add_argument("--isa", default="", help="comma separated; default: all of this processor")
    parser.add_argument("--threads", default="1,2", help="comma separated; default: %(default)s")
    parser.add_argument("--elements", type=int, default=1 << 24, help="default: %(default)s (64 MiB of float32)")
    parser.add_argument("--cpu-time", action="store_true", help="processor time of the calling thread, not the clock")
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets; default: %(default)s")
    arguments = parser.parse_args()
    isas = arguments.isa.split(",") if arguments.isa else kernels.available_isas()
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    bench = Bench(arguments.elements, clock, samples(DataFolder(arguments.data)))
    measure(bench, isas, [int(count) for count in arguments.threads.split(",")])
    print(format_table(bench.rows, COLUMNS))
    beside = against_peers(bench.rows, isas[0])
    number = "{:.2f}".format
    names = dict.fromkeys(("peer", "bits", "op", "threads", "codec"), str)
    print("\n" + format_table(beside, {**names, "peer_gb_per_s": number, "gb_per_s": number, "times": number}))
    if arguments.json:
        write_json(arguments.json, bench.rows, against_peers=beside)


if __name__ == "__main__":
    main()
