"""The engine on a real GPU: kernels as exact as C, gradients near the exact ones, memory really less.

Each script is a process: torch takes an allocator only before CUDA use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

from daf.kernels import Spec
from tests.tools import require_package

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

REALS = ("float32", "bfloat16", "float16")
SPECS = [
    *[(Spec(codec, bits, group), dtype) for group in ("run", "column") for dtype in REALS for codec, bits in (
        ("minmax", 4), ("minmax", 8), ("minmax-sr", 2), ("meansplit", 1), ("meansplit", 2), ("meansplit", 4),
        ("support", 0), ("support", 2))],
    *[(Spec("mask", 1), dtype) for dtype in REALS],
    *[(Spec("raw", 0), dtype) for dtype in ("float32", "float64", "int64")],
    (Spec("bool", 1), "bool"), (Spec("int", 9), "int64"), (Spec("int", 7), "int8"), (Spec("int", 33), "int64"),
]  # fmt: skip

PREAMBLE = """
import json, sys, warnings
import torch
import torch.nn.functional as F
import daf

class Block(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (8, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

def transformer():
    return torch.nn.Sequential(*[Block() for _ in range(4)]), torch.randn(8, 256, 512)

def convolutions():
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(4):
        layers += [torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)]
    return torch.nn.Sequential(*layers, torch.nn.MaxPool2d(2)), torch.randn(32, 3, 64, 64)

def gradient(make, steps=2, dtype=torch.float32):
    torch.manual_seed(0)
    model, x = make()
    model, x = model.cuda(), x.cuda()
    for _ in range(steps):
        model.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = model(x).float().square().mean()
        loss.backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])

def error(make, **settings):
    with daf.Session(bits="off", budget="4GiB"):
        want = gradient(make, dtype=settings.get("dtype", torch.float32))
    dtype = settings.pop("dtype", torch.float32)
    with daf.Session(budget="4GiB", **settings) as session:
        got = gradient(make, dtype=dtype)
        stats = session.stats()
    return float((got - want).norm() / want.norm()), stats
"""


def _run(script: str) -> Any:
    """Run it; return what it printed last, from JSON."""
    require_package("triton", extra="gpu")
    source = PREAMBLE + textwrap.dedent(script)
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize(("spec", "dtype"), SPECS, ids=str)
def test_a_codec_on_the_device_writes_and_reads_the_bytes_of_c(spec: Spec, dtype: str) -> None:
    require_package("triton", extra="gpu")
    from daf.kernels.triton.proof import matches_reference

    assert matches_reference(spec, dtype, torch.device("cuda"))


@pytest.mark.parametrize("model", ["transformer", "convolutions"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_at_eight_bits_are_close_to_exact_ones(model: str, dtype: str) -> None:
    error, stats = _run(f"print(json.dumps(error({model}, bits=8, dtype=torch.{dtype})))")
    assert error < 0.05
    assert stats["coded_total"] > 0
    assert stats["failures_total"] == stats.get("passed_kernel_total", 0) == 0


def test_gradients_are_the_same_in_every_run() -> None:
    script = """
        torch.use_deterministic_algorithms(True)
        with daf.Session(bits=2, budget="4GiB"):
            print(json.dumps(float(gradient(convolutions, steps=3).sum())))
    """
    assert len({_run(script) for _ in range(2)}) == 1


def test_two_bits_take_a_small_part_of_the_bytes_and_attention_does_not_explode() -> None:
    error, stats = _run("print(json.dumps(error(transformer, bits=2)))")
    assert error < 1.0
    assert stats["peak_raw_bytes"] > 6 * stats["peak_stored_bytes"]
    assert stats["plane_bytes"] == 0  # all given back, in the device's arena


def test_a_training_needs_less_memory_than_a_plain_one() -> None:
    script = """
        with daf.Session(bits={bits}, budget="4GiB"):
            gradient(convolutions, steps=3)
            print(json.dumps(daf.memory_stats("cuda:0")["allocated_bytes.all.peak"]))
    """
    assert _run(script.format(bits=2)) < 0.6 * _run(script.format(bits="'off'"))


def test_a_budget_that_is_too_small_costs_planes_and_not_the_run() -> None:
    stats = _run("""
        with daf.Session(bits=8, budget="256MiB") as session:
            gradient(convolutions, steps=3)
            print(json.dumps(session.stats()))
    """)
    assert stats["evictions_total"] > 0
    assert stats["peak_resident_bytes"] <= 256 << 20


def test_saves_on_another_stream_are_passed_through_and_those_of_the_home_stream_may_be_read_there() -> None:
    is_same, stats = _run("""
        with daf.Session(bits="lossless", budget="2GiB") as session:
            x = torch.randn(1 << 20, device="cuda", requires_grad=True)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = (x * 2).sigmoid()
            torch.cuda.current_stream().wait_stream(side)
            z = (y * 2).sigmoid()
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.current_stream())
                saved = z.grad_fn._saved_result.clone()
            torch.cuda.synchronize()
            print(json.dumps([torch.equal(saved, z), session.stats()]))
    """)
    assert is_same
    assert stats["passed_stream_total"] >= 1
    assert stats["coded_total"] >= 1


def test_a_session_that_came_too_late_compresses_nothing_and_says_so_once() -> None:
    told, stats = _run("""
        torch.zeros(1, device="cuda")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with daf.Session(bits=2) as session:
                gradient(convolutions)
                stats = session.stats()
        print(json.dumps([[str(one.message) for one in said], stats]))
    """)
    assert sum("open DAF before CUDA is used" in text for text in told) == 1
    assert stats["passed_no_arena_total"] > 0
    assert stats["coded_total"] == 0
