"""Values that carry structure come back exactly from every codec: zeros, rows of zeros, groups of one value."""

from __future__ import annotations

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from daf import kernels
from daf.kernels import HostPlanes, Spec, coder
from tests.unit.kernels.codec_cases import WIDTHS

Floats = npt.NDArray[np.generic]
GROUPS = ("run", "column")
SPECS = [Spec(name, bits, group) for name, most in WIDTHS.items() for bits in range(1, most + 1) for group in GROUPS]
COLS = 24


def decoded(spec: Spec, x: Floats, cols: int = COLS) -> list[Floats]:
    """What comes back with all planes, with one less, ... with one."""
    code = coder(spec, x.dtype.name, x.size, cols)
    planes, back = HostPlanes(code.stream_bytes, 512), []
    code.encode(x.ctypes.data, planes.address, seed=5)
    for _ in range(spec.bits):
        out = np.full_like(x, 77)
        code.decode(out.ctypes.data, planes.address)
        back.append(out)
        planes.drop(1)
    return back


def normal(rows: int, cols: int = COLS, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_zeros_come_back_as_zeros_whatever_planes_are_dropped(spec: Spec) -> None:
    for share in (0.001, 0.1, 0.6):
        x = normal(300)
        x[np.random.default_rng(1).random(x.shape) < share] = 0
        for back in decoded(spec, x):
            assert (back[x == 0] == 0).all()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_rows_of_zeros_among_loud_rows_come_back_as_zeros(spec: Spec) -> None:
    x = normal(300) * 100 + 7
    x[[0, 17, 255, 299]] = 0
    for back in decoded(spec, x):
        assert not back[[0, 17, 255, 299]].any()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_groups_of_one_value_come_back_exactly_with_any_plane(spec: Spec) -> None:
    tiny = [] if spec.codec == "support" else [-1e-39, 1e-45]  # support holds no subnormal numbers
    for value in (0.1, -7.3e-3, 1 / 3, 3e35, 2.0, 0.0, *tiny):
        x = np.full((258, COLS), value, np.float32)
        for back in decoded(spec, x):
            assert np.array_equal(back, x)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.group == "column"], ids=str)
def test_columns_of_one_value_come_back_exactly_beside_others(spec: Spec, dtype: str) -> None:
    x = normal(256).astype(dtype)
    x[:, 3], x[:, 11] = 0.1, -np.pi
    for back in decoded(spec, x):
        if spec.codec != "dual":  # whose groups are runs: they mix the columns
            assert np.array_equal(back[:, [3, 11]], x[:, [3, 11]])


@pytest.mark.parametrize("name", WIDTHS)
def test_zeros_beside_what_is_not_finite_come_back_as_zeros(name: str) -> None:
    x = normal(300)
    x[5], x[7, 1], x[9, 2] = 0, np.nan, np.inf
    for back in decoded(Spec(name, 3), x):
        assert not back[5].any()


@hypothesis.given(
    spec=st.sampled_from(SPECS),
    isa=st.sampled_from(kernels.available_isas()),
    shape=st.tuples(st.integers(1, 520), st.sampled_from([1, 5, 16, 64, 80])),
    scale=st.tuples(st.integers(-44, 30), st.sampled_from([0.0, 1.0, -100.0])),
    seed=st.integers(0, 2**32),
)
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_zeros_come_back_on_every_instruction_set(
    spec: Spec, isa: str, shape: tuple[int, int], scale: tuple[int, float], seed: int
) -> None:
    (rows, cols), (exponent, offset) = shape, scale
    x = (normal(rows, cols, seed) + np.float32(offset)) * np.float32(10.0**exponent)
    rng = np.random.default_rng(seed)
    x[rng.random(x.shape) < rng.choice([0.0, 0.01, 0.5])] = 0
    x[rng.random(rows) < 0.1] = 0
    before = kernels.isa()
    kernels.set_isa(isa)
    try:
        for back in decoded(spec, x, cols):
            assert (back[x == 0] == 0).all()
    finally:
        kernels.set_isa(before)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("name", ["minmax", "minmax-sr"])
def test_zeros_cost_min_max_no_precision(name: str, bits: int) -> None:
    x = normal(256 * 40, 1)
    with_zero = x.copy()
    with_zero[::256] = 0
    errors = [float(np.mean((decoded(Spec(name, bits), data, 1)[0] - data) ** 2)) for data in (x, with_zero)]
    assert errors[1] < 1.1 * errors[0]
