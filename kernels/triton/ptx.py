"""Every Triton kernel compiled ahead of time, without a GPU: `python -m daf.kernels.triton.ptx 80 [folder]`.

What is compiled here is one typical specialisation of each kernel; a device compiles those it needs by itself.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from daf.kernels.triton import dual, exact, meansplit, minmax, reduce

TARGETS = (80, 87, 90)  # A100, Orin, H100
_POINTERS = {
    "src": "*i16", "dst": "*i16", "out": "*u8", "table": "*i64", "sums": "*fp32", "counts": "*i32", "means": "*fp32",
    "leaves": "*fp32", "doubt": "*i32", "limits": "*i32", "partial_lo": "*i32", "partial_hi": "*i32",
    "rest": "*fp32", "out_lo": "*i32", "out_hi": "*i32",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
    """One specialisation: the kernel, its constants, and the element type where it is not bfloat16."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    element: str = "*i16"

    def ptx(self, capability: int) -> str:
        """Return the assembly for one compute capability."""
        types = {**_POINTERS, "src": self.element, "dst": self.element, "value": self.element}
        signature = {
            name: "constexpr" if name in self.constants else types.get(name, "i64") for name in self.kernel.arg_names
        }
        source = ASTSource(self.kernel, signature, constexprs=self.constants)
        options = {"enable_fp_fusion": False, "num_warps": 4}
        return str(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"])


def builds() -> Iterator[Build]:
    page = {"SHIFT": 12}
    real = {"DTYPE": 1, **page}
    for column, shape in ((False, "run"), (True, "column")):
        coded = {"BITS": 2, "COLUMN": column, **real}
        split = {"COLUMN": column, "SUPPORT": True, "LIVE": 2, **page}
        yield Build(f"minmax_encode_{shape}", minmax.encode_kernel, {"STOCHASTIC": True, **coded})
        yield Build(f"minmax_decode_{shape}", minmax.decode_kernel, {"LIVE": 2, **coded})
        yield Build(f"meansplit_leaves_{shape}", meansplit.leaves_kernel, split)
        yield Build(f"meansplit_decode_{shape}", meansplit.decode_kernel, {"DTYPE": 1, **split})
    yield Build("minmax_choose", minmax.choose_kernel, {"BITS": 2, "COLUMN": True, **real})
    tree = {"SUPPORT": True, **real}
    yield Build("meansplit_encode_run", meansplit.encode_run_kernel, {"BITS": 2, **tree})
    yield Build("meansplit_choose_root", meansplit.choose_root_kernel, tree)
    yield Build("meansplit_choose_level", meansplit.choose_level_kernel, {"LEVEL": 2, "BITS": 2, **tree})
    yield Build("meansplit_encode_column", meansplit.encode_column_kernel, {"BITS": 2, **tree})
    for name in ("average", "take", "add"):
        yield Build(f"dual_{name}", getattr(dual, f"{name}_kernel"), {"WIDTH": 8, **real})
    yield Build("int_encode", exact.int_encode_kernel, {"BITS": 12, **page}, "*i32")
    yield Build("int_decode", exact.int_decode_kernel, {"BITS": 12, **page}, "*i32")
    for name in ("mask_encode", "mask_decode"):
        yield Build(name, getattr(exact, f"{name}_kernel"), page)
    for name in ("bool_encode", "bool_decode", "raw_encode", "raw_decode", "tag", "tag_read"):
        yield Build(name, getattr(exact, f"{name}_kernel"), page, "*u8")
    for lanes, depth, shape in ((1, 1024, "run"), (32, 64, "column")):
        for name in ("parallel", "atomic", "hybrid"):
            kernel = getattr(reduce, f"{name}_kernel")
            yield Build(f"reduce_{name}_{shape}", kernel, {"KIND": 1, "LANES": lanes, "DEPTH": depth}, "*i32")
    yield Build("reduce_tree", reduce.tree_kernel, {"DEPTH": 256})


def main(arguments: list[str]) -> None:
    capability, folder = int(arguments[0]), pathlib.Path(arguments[1]) if len(arguments) > 1 else None
    for build in builds():
        ptx = build.ptx(capability)
        print(f"{build.name}.sm_{capability}.ptx {len(ptx)} bytes", flush=True)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{build.name}.sm_{capability}.ptx").write_text(ptx)


if __name__ == "__main__":
    main(sys.argv[1:])
