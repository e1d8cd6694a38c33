"""A process of its own for Triton's interpreter, which must be chosen before triton is imported.

Reads one case a line (JSON), runs the Triton twin and the C reference on it, answers with the list of differences.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from typing import Any

NOT_FINITE = (float("nan"), float("inf"), float("-inf"), 1e38)


class TritonProcess:
    """The parent's end."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.triton_process"]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def differences(self, **case: Any) -> list[str]:
        """Return where twin and reference differ; an error in the child is a difference, too."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(case) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        return list(json.loads(answer)) if answer else ["the child process died"]

    def close(self) -> None:
        self._child.communicate()


def values(numel: int, dtype: str, kind: str, seed: int) -> Any:
    import torch

    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 3
    if kind == "relu":
        x = x.relu()
    if kind == "constant":
        x = torch.full((numel,), -1.7)
    if kind in {"dropout", "flat"}:
        x = torch.where(x > 3, 0.0, x) if kind == "dropout" else x[: -(-numel // 300)].repeat_interleave(300)[:numel]
        x[numel // 2 :][:5] = 0
    if kind.endswith("mask"):
        x = torch.where(x > 0, -1e-4 if kind == "tiny mask" else 1.25, 0.0)
    if kind == "tiny":
        x = x * 1e-42
    if kind == "special" and numel:
        for i, value in enumerate(NOT_FINITE):
            x[(seed + 97 * i) % numel] = value
    if dtype == "bool":
        return x > 0
    target = getattr(torch, dtype)
    return x.to(target) if target.is_floating_point else (x.nan_to_num(0, 0, 0) * 20).to(target)


def compare_codec(codec: str, bits: int, group: str, *, numel: int, cols: int, rows: int, **data: Any) -> list[str]:
    import torch

    from daf.kernels import HostPlanes, Spec, coder
    from daf.kernels.triton import codec as twin

    x, seed = values(numel, **data), data["seed"]
    c = coder(Spec(codec, bits, group), data["dtype"], numel, cols, rows)
    ours, twins = HostPlanes(c.stream_bytes, 512), HostPlanes(c.stream_bytes, 512)
    for stream, size in enumerate(c.stream_bytes):
        ours.write(stream, b"\xff" * size)
        twins.write(stream, b"\xff" * size)
    c.encode(x.data_ptr(), ours.address, seed)
    twin.encode(c, x, twins.address, seed)
    found = [f"stream {s}" for s in range(len(c.stream_bytes)) if ours.stream(s) != twins.stream(s)]
    for live in reversed(range(ours.num_streams)):
        back, twin_back = torch.full_like(x, 1), torch.full_like(x, 1)
        c.decode(back.data_ptr(), ours.address)
        twin.decode(c, twin_back, ours.address)
        if not torch.equal(back.view(torch.uint8), twin_back.view(torch.uint8)):
            found.append(f"decoded from {live} planes")
        ours.drop(1 if live else 0)
    return found


def compare_ranges(shape: list[int], dtype: str, kind: str, seed: int, strategy: str) -> list[str]:
    from daf.kernels.reduce import ranges
    from daf.kernels.triton import reduce

    outer, channels, inner = shape
    x = values(outer * channels * inner, dtype, kind, seed)
    want = ranges.value_ranges(x.data_ptr(), dtype, (outer, channels, inner), strategy=strategy)
    lo, hi = reduce.value_ranges(x, (outer, channels, inner), strategy=strategy)
    return [name for name, a, b in (("lo", want.lo, lo), ("hi", want.hi, hi)) if list(a) != b.tolist()]


def share_a_stash() -> list[str]:
    """Twin and reference take turns on one stash of a real arena: either may pack, either may unpack."""
    import torch

    from daf.allocator import Arena
    from daf.kernels import Spec, coder
    from daf.kernels.triton import codec as twin

    x, found = values(5000, "float32", "normal", 1), []
    c = coder(Spec("meansplit", 2), "float32", 5000)
    with Arena(8 << 20, publish=False) as arena:
        stash = arena.reserve(arena.stash_spec(c.stream_bytes, [1.0] * len(c.stream_bytes)))
        by_c, by_twin = torch.empty_like(x), torch.empty_like(x)
        twin.encode(c, x, stash.planes)
        c.decode(by_c.data_ptr(), stash.planes)
        c.encode(x.data_ptr(), stash.planes)
        twin.decode(c, by_twin, stash.planes)
        if not torch.equal(by_c, by_twin) or not 0 < float((by_c - x).square().mean()) < 2.0:
            found.append("what one packed the other unpacked differently")
        stash.unpin()
    return found


def refusals() -> list[str]:
    """What must be refused, and was not."""
    import torch

    from daf.kernels import HostPlanes, Spec, StashError, coder
    from daf.kernels.triton import codec as twin

    found, x = [], torch.randn(600)
    c, other = coder(Spec("minmax", 2), "float32", 600), coder(Spec("minmax", 3), "float32", 600)
    narrow = coder(Spec("int", 3), "int32", 600)
    cases: list[tuple[str, type[Exception], Any]] = [
        ("a foreign stash", StashError, lambda p: twin.decode(c, x, p.address)),
        ("a tensor of another size", ValueError, lambda p: twin.encode(c, x[:5], p.address)),
        ("planes of fewer streams", StashError, lambda p: (p.drop(1), twin.encode(c, x, p.address))),
        ("integers too wide", ValueError, lambda p: twin.encode(narrow, torch.arange(600).int(), p.address)),
    ]
    for name, error, attempt in cases:
        planes = HostPlanes(max(c.stream_bytes, narrow.stream_bytes, other.stream_bytes, key=len), 4096)
        if name == "integers too wide":
            planes = HostPlanes(narrow.stream_bytes, 512)
        elif name != "a foreign stash":
            planes = HostPlanes(c.stream_bytes, 512)
        try:
            attempt(planes)
        except error:
            continue
        found.append(name)
    return found


def engine_case(name: str) -> list[str]:
    """A case of the engine on a device."""
    from tests.unit.quant.device_cases import CASES

    return CASES[name]()


def main() -> None:
    warnings.simplefilter("ignore")  # NumPy's, about the infinities that the interpreter divides and multiplies
    functions = {"codec": compare_codec, "ranges": compare_ranges, "refusals": refusals, "stash": share_a_stash}
    functions["engine"] = engine_case
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = functions[case.pop("what")](**case)
        except Exception as error:
            answer = [repr(error)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
