"""One suite over every path: each instruction set, any number of threads and other processors give the same bytes."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from daf import kernels
from tests.tools import require_tool
from tests.unit.kernels.codec_cases import FLOATS, KINDS, WIDTHS, Case, cases, exact_cases

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _restored_isa() -> Iterator[None]:
    before = kernels.isa()
    yield
    kernels.set_isa(before)


def reference(case: Case) -> bytes:
    kernels.set_isa("scalar")
    return case.run()


@pytest.mark.parametrize("isa", [name for name in kernels.available_isas() if name != "scalar"])
@hypothesis.given(case=cases() | exact_cases())
@hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_every_instruction_set_gives_the_reference_bytes(isa: str, case: Case) -> None:
    expected = reference(case)
    kernels.set_isa(isa)
    assert case.run() == expected


@pytest.mark.parametrize("isa", [name for name in kernels.available_isas() if name != "scalar"])
@pytest.mark.parametrize("page_bytes", [512, 65536])
@pytest.mark.parametrize(
    "spec",
    [kernels.Spec("minmax", 5), kernels.Spec("minmax-sr", 8), kernels.Spec("meansplit", 4), kernels.Spec("support", 2),
     kernels.Spec("dual", 1), kernels.Spec("minmax-sr", 3, "column"), kernels.Spec("support", 3, "column")],
    ids=str,
)  # fmt: skip
def test_tensors_too_big_for_the_caches_have_the_reference_bytes(isa: str, page_bytes: int, spec: kernels.Spec) -> None:
    case = Case(spec, "float32", 192 * 5500, 192, 0, "wild", 3, page_bytes)
    expected = reference(case)
    kernels.set_isa(isa)
    assert case.run() == expected


@pytest.mark.parametrize("isa", [name for name in kernels.available_isas() if name != "scalar"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "spec",
    [*(kernels.Spec("minmax", bits, "column") for bits in range(1, 9)),
     kernels.Spec("minmax-sr", 3, "column"),
     *(kernels.Spec(codec, bits, "column") for codec in ("meansplit", "support") for bits in range(1, 5))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["normal", "wild"])
def test_strips_of_64_columns_have_the_reference_bytes(isa: str, dtype: str, spec: kernels.Spec, kind: str) -> None:
    for cols, rows in ((64, 257), (192, 299), (128 + 40, 255), (32, 520), (16, 1030)):
        case = Case(spec, dtype, rows * cols, cols, 0, kind, spec.bits, 512)
        expected = reference(case)
        kernels.set_isa(isa)
        assert case.run() == expected


@pytest.mark.parametrize("group", ["run", "column"])
@pytest.mark.parametrize("codec", ["minmax-sr", "meansplit", "support", "dual"])
def test_any_number_of_threads_gives_the_same_bytes(codec: str, group: str) -> None:
    check_threads(Case(kernels.Spec(codec, 3, group), "float32", 3000 * 112, 112, 0, "wild", 7, 512))


@pytest.mark.parametrize(("spec", "dtype"), [(kernels.Spec("int", 9), "int32"), (kernels.Spec("bool", 1), "uint8")])
def test_any_number_of_threads_gives_the_same_integers(spec: kernels.Spec, dtype: str) -> None:
    check_threads(Case(spec, dtype, 300_001, 0, 0, "", 7, 512))


def check_threads(case: Case) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = case.run()
        for count in (2, 3, 5):
            torch.set_num_threads(count)
            assert case.run() == expected
    finally:
        torch.set_num_threads(before)


def fixed_cases(count: int) -> list[Case]:
    """The same mix on every run: all codecs and widths, then all kinds at random."""
    drawn: list[Case] = []
    rng = random.Random(1)

    @hypothesis.given(case=cases() | exact_cases())
    @hypothesis.settings(max_examples=count, derandomize=True, database=None, deadline=None)
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    widths = [(name, bits) for name, most in WIDTHS.items() for bits in range(1, most + 1)]
    for (name, bits), dtype, (group, cols) in itertools.product(widths, FLOATS, (("run", 32), ("column", 32))):
        spec = kernels.Spec(name, bits, group)
        drawn.append(Case(spec, dtype, 32 * 520, cols, 0, rng.choice(KINDS), bits, 512))
    return drawn


def run_tool(command: list[str], batch: list[Case], isa: str) -> bytes:
    records = b"".join(case.record(isa) for case in batch)
    return subprocess.run(command, input=records, capture_output=True, check=True, timeout=250).stdout


def compile_tool(compiler: str, target: pathlib.Path, *flags: str) -> pathlib.Path:
    sources = [str(path) for path in sorted((ROOT / "kernels").rglob("*.c")) if path.name != "_native.c"]
    options = ["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'kernels'}"]
    command = [compiler, *options, *flags, str(ROOT / "tests/native/codec_tool.c"), *sources, "-o", str(target), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def test_neon_gives_the_reference_bytes(tmp_path: pathlib.Path) -> None:
    compiler, emulator = require_tool("aarch64-linux-gnu-gcc"), require_tool("qemu-aarch64-static", "qemu-aarch64")
    tool = compile_tool(compiler, tmp_path / "tool", "-O1", "-static")
    # logprob has no NEON path, and leaves the ends of its last pages unwritten: its bytes are compared elsewhere.
    batch = [case for case in fixed_cases(120) if case.spec.codec != "logprob"]
    expected = b"".join(reference(case) for case in batch)
    assert run_tool([emulator, str(tool)], batch, "neon") == expected


@pytest.mark.parametrize(("wish", "answer"), [("scalar", "scalar"), ("avx9", kernels.available_isas()[0])])
def test_the_environment_chooses_the_instruction_set_and_is_told_where_it_cannot(wish: str, answer: str) -> None:
    code = "from daf import kernels; kernels.coder(kernels.Spec('minmax', 2), 'float32', 9); print(kernels.isa())"
    child = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "DAF_ISA": wish}, capture_output=True, text=True, check=True
    )
    assert child.stdout == f"{answer}\n"
    assert ("DAF_ISA='avx9' is not an instruction set of this processor" in child.stderr) == (wish == "avx9")
