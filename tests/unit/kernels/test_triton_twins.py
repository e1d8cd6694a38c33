"""The Triton twins, run in Triton's interpreter, give the bytes of the C reference; compiled, they are exact PTX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools import require_package
from tests.triton_process import TritonProcess

REALS = ("float32", "bfloat16", "float16")
RUN: dict[str, Any] = {}
COLUMN = {"group": "column", "numel": 260 * 5, "cols": 5}


def case(codec: str, bits: int, **changes: Any) -> dict[str, Any]:
    base = {"codec": codec, "bits": bits, "group": "run", "dtype": "float32", "numel": 1300, "cols": 0, "rows": 0}
    return {"what": "codec", **base, "kind": "normal", "seed": 3, **changes}


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("shape", [RUN, COLUMN], ids=["run", "column"])
@pytest.mark.parametrize(("codec", "bits"), [("minmax", 2), ("minmax-sr", 3), ("minmax", 8)])
def test_minmax_twins_give_the_bytes_of_the_reference(
    triton_process: TritonProcess, codec: str, bits: int, shape: dict[str, Any], dtype: str
) -> None:
    assert triton_process.differences(**case(codec, bits, dtype=dtype, **shape)) == []


def column(rows: int, cols: int) -> dict[str, Any]:
    return {"group": "column", "numel": rows * cols, "cols": cols}


@pytest.mark.parametrize(
    ("codec", "bits", "changes"),
    [
        ("meansplit", 1, {}),
        ("meansplit", 2, {"dtype": "bfloat16"}),
        ("meansplit", 4, {"dtype": "float16", "numel": 600}),
        ("meansplit", 3, column(20, 5)),
        ("meansplit", 4, column(9, 70) | {"dtype": "bfloat16"}),
        ("meansplit", 1, column(258, 3) | {"dtype": "float16"}),
        ("support", 1, {"kind": "relu"}),
        ("support", 3, {"kind": "relu", "dtype": "float16", "numel": 600}),
        ("support", 2, column(30, 7) | {"kind": "relu", "dtype": "bfloat16"}),
    ],
)
def test_mean_split_twins_give_the_bytes_of_the_reference(
    triton_process: TritonProcess, codec: str, bits: int, changes: dict[str, Any]
) -> None:
    assert triton_process.differences(**case(codec, bits, **changes)) == []


@pytest.mark.parametrize(
    ("bits", "changes"),
    [
        (1, {"numel": 13 * 20, "cols": 20}),
        (2, {"numel": 3 * 9 * 17, "cols": 17, "rows": 9, "dtype": "bfloat16"}),
        (4, {"numel": 600, "cols": 30, "rows": 10, "dtype": "float16", "kind": "special"}),
        (3, column(70, 5)),
        (2, column(20, 9) | {"rows": 10, "kind": "relu", "dtype": "bfloat16"}),
        (2, {"numel": 0, "cols": 8}),
    ],
)
def test_dual_twins_give_the_bytes_of_the_reference(
    triton_process: TritonProcess, bits: int, changes: dict[str, Any]
) -> None:
    assert triton_process.differences(**case("dual", bits, **changes)) == []


@pytest.mark.parametrize(
    ("codec", "kind", "shape"),
    [
        ("minmax-sr", "dropout", {"numel": 600}),
        ("minmax", "flat", column(20, 3)),
        ("meansplit", "dropout", column(20, 3)),
        ("meansplit", "flat", {"numel": 600}),
        ("support", "flat", column(20, 3)),
        ("dual", "dropout", {"numel": 300, "cols": 5}),
    ],
)
def test_twins_treat_zeros_and_groups_of_one_value_alike(
    triton_process: TritonProcess, codec: str, kind: str, shape: dict[str, Any]
) -> None:
    assert triton_process.differences(**case(codec, 2, kind=kind, **shape)) == []


@pytest.mark.parametrize("codec", ["minmax", "minmax-sr", "meansplit", "support"])
@pytest.mark.parametrize("shape", [{"numel": 700}, column(20, 3)], ids=["run", "column"])
def test_groups_that_are_not_finite_escape_alike(
    triton_process: TritonProcess, codec: str, shape: dict[str, Any]
) -> None:
    assert triton_process.differences(**case(codec, 3, kind="special", **shape)) == []


@pytest.mark.parametrize(
    ("codec", "bits", "dtype", "numel"),
    [
        ("int", 9, "int64", 5000), ("int", 9, "int32", 4097), ("int", 9, "int16", 1), ("int", 8, "int8", 300),
        ("int", 64, "int64", 100), ("int", 8, "uint8", 300), ("bool", 1, "bool", 5000), ("bool", 1, "uint8", 257),
        ("raw", 1, "float32", 1300), ("raw", 1, "int64", 3), ("raw", 1, "bfloat16", 0), ("int", 1, "int64", 0),
    ],
)  # fmt: skip
def test_exact_twins_give_the_bytes_of_the_reference(
    triton_process: TritonProcess, codec: str, bits: int, dtype: str, numel: int
) -> None:
    assert triton_process.differences(**case(codec, bits, dtype=dtype, numel=numel)) == []


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", ["mask", "constant", "tiny mask"])
def test_mask_twins_give_the_bytes_of_the_reference(triton_process: TritonProcess, kind: str, dtype: str) -> None:
    for numel in (0, 1, 1300):
        assert triton_process.differences(**case("mask", 1, dtype=dtype, numel=numel, kind=kind)) == []


@st.composite
def any_case(draw: st.DrawFn) -> dict[str, Any]:
    cols = draw(st.integers(1, 40))
    return case(
        draw(st.sampled_from(["minmax", "minmax-sr", "meansplit", "support", "dual"])),
        draw(st.integers(1, 4)),
        dtype=draw(st.sampled_from(REALS)),
        numel=draw(st.integers(0, 20)) * cols,
        cols=cols,
        group=draw(st.sampled_from(["run", "column"])),
        kind=draw(st.sampled_from(["normal", "relu", "constant", "tiny", "special", "dropout", "flat"])),
        seed=draw(st.integers(0, 2**32)),
    )


@given(any_case=any_case())
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_coder_on_any_values_has_an_exact_twin(triton_process: TritonProcess, any_case: dict[str, Any]) -> None:
    assert triton_process.differences(**any_case) == []


@pytest.mark.parametrize("strategy", ["parallel", "atomic", "hybrid"])
@pytest.mark.parametrize("dtype", [*REALS, "int64", "int8", "uint8", "bool"])
def test_range_twins_find_what_the_reference_finds(triton_process: TritonProcess, dtype: str, strategy: str) -> None:
    for shape in ((1, 1, 1), (1, 1, 3000), (3, 7, 49), (130, 40, 1), (33, 5, 1)):
        found = triton_process.differences(
            what="ranges", shape=shape, dtype=dtype, kind="special", seed=5, strategy=strategy
        )
        assert found == [], shape


def test_twin_and_reference_unpack_what_the_other_packed_into_an_arena(triton_process: TritonProcess) -> None:
    assert triton_process.differences(what="stash") == []


def test_twins_refuse_what_the_reference_refuses(triton_process: TritonProcess) -> None:
    assert triton_process.differences(what="refusals") == []


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 87, 90])
def test_every_kernel_compiles_to_ptx_that_rounds_as_the_reference_does(capability: int, tmp_path: Any) -> None:
    require_package("triton", extra="gpu")
    command = [sys.executable, "-m", "daf.kernels.triton.ptx", str(capability), str(tmp_path)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(command, check=True, timeout=280, capture_output=True, env=environment)
    written = sorted(tmp_path.glob(f"*.sm_{capability}.ptx"))
    assert len(written) == 33
    for path in written:
        ptx = path.read_text()
        assert f".target sm_{capability}" in ptx, path.name
        # Fused, flushing or approximate arithmetic would give other bits than C.
        assert not re.findall(r"\bfma\.\S*f32|\.ftz|div\.full|div\.approx|rcp\.", ptx), path.name


def test_nothing_of_daf_needs_triton() -> None:
    modules = "torch, daf.kernels, daf.kernels.reduce.ranges, daf.quant.encode.packing"
    hide = f"import sys; sys.modules['triton'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", hide], check=True, timeout=120)
