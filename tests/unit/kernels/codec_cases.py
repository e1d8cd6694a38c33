"""Cases for the codecs: every codec, width, shape and dtype over tensors that are kind and tensors that are not."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from daf.kernels import HostPlanes, Spec, coder
from daf.kernels.coder import DTYPES, SHAPES

WIDTHS = {"minmax": 8, "minmax-sr": 8, "meansplit": 4, "support": 4, "dual": 4}
FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}
KINDS = ("normal", "relu", "tiny", "loud", "constant", "integers", "wild", "dropout", "flat")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    spec: Spec
    dtype: str
    numel: int
    cols: int
    rows: int
    kind: str
    seed: int
    page_bytes: int

    def source(self) -> bytes:
        """The tensor's bytes."""
        if self.dtype in INTEGERS:
            return _integers(self.spec.bits, self.numel, self.dtype, self.seed).tobytes()
        return _elements(self.kind, self.numel, self.dtype, self.seed).tobytes()

    def record(self, isa: str) -> bytes:
        """The case as tests/native/codec_tool.c reads it."""
        source = self.source()
        head = struct.pack(
            "<16s16sIIIIQQQQQ", self.spec.codec.encode(), isa.encode(), self.spec.bits, SHAPES[self.spec.group],
            DTYPES[self.dtype], self.page_bytes, self.numel, self.cols, self.rows, self.seed, len(source),
        )  # fmt: skip
        return head + source

    def run(self) -> bytes:
        """Encode and decode with every number of planes, here and now; the same bytes as codec_tool writes."""
        source = np.frombuffer(self.source(), np.uint8).copy()
        code = coder(self.spec, self.dtype, self.numel, self.cols, self.rows)
        planes = HostPlanes(code.stream_bytes, self.page_bytes)
        code.encode(source.ctypes.data, planes.address, self.seed)
        parts = [struct.pack("<I", 0)] + [planes.stream(s) for s in range(planes.num_streams)]
        for _ in range(planes.num_streams):
            back = np.zeros_like(source)
            code.decode(back.ctypes.data, planes.address)
            parts.append(back.tobytes())
            if planes.num_streams > 1:
                planes.drop(1)
        return b"".join(parts)


def _integers(bits: int, numel: int, dtype: str, seed: int) -> npt.NDArray[np.generic]:
    """Integers from the type's least on that need at most `bits` planes."""
    bits = min(bits, INTEGERS[dtype])
    codes = np.random.default_rng(seed).integers(0, 1 << bits, numel, dtype=np.uint64, endpoint=False)
    return (codes + np.uint64(np.iinfo(dtype).min & (2**64 - 1))).astype(dtype)


def _elements(kind: str, numel: int, dtype: str, seed: int) -> npt.NDArray[np.generic]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(numel).astype(np.float32)
    if kind == "relu":
        x = np.maximum(x, 0)
    elif kind == "tiny":
        x *= np.float32(1e-38)
    elif kind == "loud":
        x = np.where(rng.random(numel) < 0.01, x * 1e4, x + 100).astype(np.float32)
    elif kind == "constant":
        x[:] = rng.choice([0.0, -0.0, 0.1, -7.5])
    elif kind == "integers":
        x = np.round(x * 3).astype(np.float32)
    elif kind == "dropout":
        x[rng.random(numel) < rng.choice([0.001, 0.1, 0.9])] = 0
        x[: numel // 3] *= np.float32(1e-41)
    elif kind == "flat":
        x = np.repeat(x[: -(-numel // 700)], 700)[:numel]
        x[rng.random(numel) < rng.choice([0, 0.001])] = rng.choice([0.0, np.nan])
    elif kind == "logprob":
        x = -np.abs(x * rng.choice([0.1, 3, 9]))
        x[rng.random(numel) < rng.choice([0.0, 0.1])] = -np.inf
        x[rng.random(numel) < 0.001] = rng.choice([0.0, np.nan])
    elif kind == "mask":
        x = np.where(rng.random(numel) < 0.9, rng.choice([1.25, -np.inf, -0.0]), 0).astype(np.float32)
    elif kind == "wild":
        spots = rng.random(numel) < 0.003
        x[spots] = rng.choice([np.nan, np.inf, -np.inf, 3e38, -1e36, -0.0, 1e-45], int(spots.sum()))
    if dtype == "bfloat16":
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(np.float16) if dtype == "float16" else x


@st.composite
def exact_cases(draw: st.DrawFn) -> Case:
    """Any case of integers, flags, masks or log-probabilities."""
    name = draw(st.sampled_from(["int", "bool", "mask", "logprob"]))
    dtypes = {"int": sorted(INTEGERS), "bool": ["uint8"], "mask": FLOATS, "logprob": FLOATS}
    cols = draw(st.sampled_from([1, 2, 10, 77, 3000])) if name == "logprob" else 0
    numel = draw(st.integers(0, 9000))
    return Case(
        spec=Spec(name, draw(st.integers(*{"int": (1, 64), "logprob": (2, 8)}.get(name, (1, 1))))),
        dtype=draw(st.sampled_from(dtypes[name])),
        numel=numel // cols * cols if cols else numel,
        cols=cols,
        rows=0,
        kind="logprob" if cols else "mask",
        seed=draw(st.integers(0, 2**32)),
        page_bytes=draw(st.sampled_from([512, 4096])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case of a float codec."""
    name = draw(st.sampled_from(sorted(WIDTHS)))
    group = draw(st.sampled_from(["run", "column"]))
    has_rows = group == "column" or name == "dual"
    cols = draw(st.sampled_from([1, 3, 8, 16, 24, 48, 64, 100, 192])) if has_rows else 0
    rows = draw(st.integers(0, 700)) if cols else 0
    return Case(
        spec=Spec(name, draw(st.integers(1, WIDTHS[name])), group),
        dtype=draw(st.sampled_from(FLOATS)),
        numel=rows * cols if cols else draw(st.integers(0, 9000)),
        cols=cols,
        rows=0,
        kind=draw(st.sampled_from(KINDS)),
        seed=draw(st.integers(0, 2**32)),
        page_bytes=draw(st.sampled_from([512, 4096])),
    )
