"""Every codec, width, group shape and number of dropped planes: what comes back, and how far off it may be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from daf.kernels import Coder, HostPlanes, Spec, StashError, choose_bits, coder

Floats = npt.NDArray[np.float32]
WIDTHS = {"minmax": 8, "minmax-sr": 8, "meansplit": 4, "support": 4}
CASES = [(name, bits) for name, most in WIDTHS.items() for bits in range(1, most + 1)]
SHAPES = {"run": 0, "column": 24}


def encode(code: Coder, x: npt.NDArray[np.generic], seed: int = 1) -> HostPlanes:
    planes = HostPlanes(code.stream_bytes, page_bytes=512)
    code.encode(x.ctypes.data, planes.address, seed)
    return planes


def decode(code: Coder, planes: HostPlanes, like: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    out = np.full_like(like, 77)
    code.decode(out.ctypes.data, planes.address)
    return out


def normal(numel: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


def groups_of(x: Floats, cols: int) -> list[npt.NDArray[np.intp]]:
    """The indices of each group's elements."""
    index = np.arange(x.size)
    if not cols:
        return [index[i : i + 256] for i in range(0, x.size, 256)]
    table = index.reshape(-1, cols)
    return [table[r : r + 256, c] for r in range(0, len(table), 256) for c in range(cols)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "bits"), CASES)
def test_any_prefix_of_planes_decodes_within_its_bound(name: str, bits: int, shape: str) -> None:
    x = normal(24 * 300)
    if name == "support":
        x = np.maximum(x, 0)
    code = coder(Spec(name, bits, shape), "float32", x.size, SHAPES[shape])
    planes = encode(code, x)
    for dropped in range(bits + 1):
        back = decode(code, planes, x)
        for group in groups_of(x, SHAPES[shape]):
            spread = float(np.ptp(x[group])) * 1.01 + 2**-7
            steps = spread / (2**bits - 1)
            bound = {
                "minmax": steps * 2**dropped / 2 * 1.01,
                "minmax-sr": steps * (2**dropped + 1) / 2 * 1.01,
            }.get(name, spread)
            assert np.abs(back[group] - x[group]).max() <= bound
        if dropped < bits:
            planes.drop(1)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_a_mean_split_from_fewer_planes_is_the_tree_of_that_depth(bits: int) -> None:
    x = normal(256 * 20)
    deep, flat = coder(Spec("meansplit", 4), "float32", x.size), coder(Spec("meansplit", bits), "float32", x.size)
    planes = encode(deep, x)
    planes.drop(4 - bits)
    assert np.array_equal(decode(deep, planes, x), decode(flat, encode(flat, x), x))


def test_mean_split_has_the_error_that_the_design_states() -> None:
    x = normal(256 * 4000)
    code = coder(Spec("meansplit", 4), "float32", x.size)
    planes, errors = encode(code, x), []
    for _ in range(4):
        errors.append(float(np.mean((decode(code, planes, x) - x) ** 2)))
        planes.drop(1)
    errors.append(float(np.mean((decode(code, planes, x) - x) ** 2)))
    assert errors == pytest.approx([0.012, 0.040, 0.12, 0.36, 1.0], rel=0.1)
    sampled = code.distortion(x.ctypes.data, 500)
    assert sampled == pytest.approx(errors[::-1], rel=0.1)


def test_stochastic_rounding_is_unbiased_and_repeatable() -> None:
    x = np.tile(normal(256), 400)
    code = coder(Spec("minmax-sr", 2), "float32", x.size)
    first = decode(code, encode(code, x, seed=3), x)
    assert np.array_equal(first, decode(code, encode(code, x, seed=3), x))
    assert not np.array_equal(first, decode(code, encode(code, x, seed=4), x))
    step = np.ptp(x) / 3
    assert np.abs(first.reshape(400, 256).mean(0) - x[:256]).max() < 5 * step / 2 / 400**0.5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_support_keeps_zeros_zero_and_the_rest_non_zero(bits: int, shape: str) -> None:
    x = np.maximum(normal(24 * 256 * 3), 0)
    x[5:9] = [1e-40, -1e-40, 1e-30, 3.0]
    code = coder(Spec("support", bits, shape), "float32", x.size, SHAPES[shape])
    planes = encode(code, x)
    for _ in range(bits):
        assert np.array_equal(decode(code, planes, x) != 0, x != 0)
        planes.drop(1)
    assert np.array_equal(decode(code, planes, x) != 0, x != 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "bits"), CASES)
def test_what_is_not_finite_stays_so_and_spares_other_groups(name: str, bits: int, shape: str) -> None:
    x = normal(24 * 256 * 2)
    clean = coder(Spec(name, bits, shape), "float32", x.size, SHAPES[shape])
    before = decode(clean, encode(clean, x), x)
    bad = x.copy()
    bad[[7, 31]], bad[55] = [np.nan, -np.inf], np.inf
    planes = encode(clean, bad)
    touched = np.concatenate([g for g in groups_of(x, SHAPES[shape]) if not np.isfinite(bad[g]).all()])
    untouched = np.setdiff1d(np.arange(x.size), touched)
    for live in range(bits, -1, -1):
        back = decode(clean, planes, bad)
        assert not np.isfinite(back[[7, 31, 55]]).any()
        if live:
            assert np.isfinite(np.delete(back, [7, 31, 55])).all()
            planes.drop(1)
        if live >= 3:
            assert np.isnan(back[7])
            assert (back[31], back[55]) == (-np.inf, np.inf)
        if live == bits:
            assert np.array_equal(back[untouched], before[untouched])


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -3e7, 1e-45, 1e-39, 3e35])
def test_constant_groups_come_back_as_their_value(name: str, value: float) -> None:
    x = np.full(300, value, dtype=np.float32)
    code = coder(Spec(name, 2), "float32", x.size)
    assert decode(code, encode(code, x), x) == pytest.approx(x, rel=2**-7, abs=2**-99)


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("numel", [0, 1, 2, 255, 256, 257, 4095, 4097])
def test_any_length_decodes_and_nothing_is_written_beyond(name: str, numel: int) -> None:
    x = normal(numel + 8)
    code = coder(Spec(name, 2), "float32", numel)
    planes = encode(code, x)
    out = np.full(numel + 8, 5, dtype=np.float32)
    code.decode(out.ctypes.data, planes.address)
    assert (out[numel:] == 5).all()
    assert numel == 0 or float(np.mean((out[:numel] - x[:numel]) ** 2)) < 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", WIDTHS)
def test_source_and_destination_may_have_any_alignment(name: str, dtype: str) -> None:
    x = normal(1000).astype(dtype)
    code = coder(Spec(name, 2), dtype, 1000)
    expected = decode(code, encode(code, x), x)
    raw = np.zeros(x.nbytes + 1, dtype=np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    planes = HostPlanes(code.stream_bytes)
    code.encode(raw.ctypes.data + 1, planes.address, 1)
    out = np.zeros_like(raw)
    code.decode(out.ctypes.data + 1, planes.address)
    assert out[1:].tobytes() == expected.tobytes()


def test_half_precision_never_overflows_to_infinity() -> None:
    x = np.linspace(-65504, 65504, 512).astype(np.float16)
    for name in WIDTHS:
        code = coder(Spec(name, 3), "float16", x.size)
        assert np.isfinite(decode(code, encode(code, x), x)).all()


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_come_back_exactly_in_the_planes_they_need(dtype: str) -> None:
    x = np.random.default_rng(0).integers(3, 103, 10_000).astype(dtype)
    bits = choose_bits(dtype, x.size, x.ctypes.data)
    code = coder(Spec("int", bits), dtype, x.size)
    assert bits == 7
    assert np.array_equal(decode(code, encode(code, x), x), x)


def test_integers_at_the_ends_of_their_type_come_back() -> None:
    x = np.array([np.iinfo(np.int64).min, -1, 0, np.iinfo(np.int64).max])
    code = coder(Spec("int", choose_bits("int64", 4, x.ctypes.data)), "int64", 4)
    assert np.array_equal(decode(code, encode(code, x), x), x)


def test_integers_that_do_not_fit_are_refused_and_leave_no_stash() -> None:
    x = np.array([0, 9])
    code = coder(Spec("int", 3), "int64", 2)
    planes = HostPlanes(code.stream_bytes)
    with pytest.raises(ValueError, match="choose_bits"):
        code.encode(x.ctypes.data, planes.address)
    with pytest.raises(StashError):
        code.decode(x.ctypes.data, planes.address)


def test_booleans_and_raw_bytes_come_back_exactly() -> None:
    flags = np.random.default_rng(0).random(1001) < 0.3
    code = coder(Spec("bool", 1), "bool", flags.size)
    assert np.array_equal(decode(code, encode(code, flags), flags), flags)
    doubles = np.random.default_rng(0).random(1001)
    code = coder(Spec("raw", 0), "float64", doubles.size)
    assert np.array_equal(decode(code, encode(code, doubles), doubles), doubles)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [1 / 0.9, -np.inf, np.nan, 0.0])
def test_a_mask_of_one_value_besides_zero_comes_back_exactly(dtype: str, value: float) -> None:
    mask = np.where(np.random.default_rng(0).random(70_001) < 0.9, value, 0.0).astype(dtype)
    code = coder(Spec("mask", 1), dtype, mask.size)
    assert np.array_equal(decode(code, encode(code, mask), mask), mask, equal_nan=True)


def test_a_third_value_in_a_mask_is_refused() -> None:
    mask = np.zeros(70_001, np.float32)
    mask[5], mask[-1] = 1.0, np.nextafter(np.float32(1.0), np.float32(2.0))
    code = coder(Spec("mask", 1), "float32", mask.size)
    with pytest.raises(ValueError, match="one value besides zero"):
        encode(code, mask)


@pytest.mark.parametrize(
    ("spec", "dtype", "numel", "cols"),
    [
        (Spec("minmax", 9), "float32", 10, 0),
        (Spec("meansplit", 0), "float32", 10, 0),
        (Spec("meansplit", 2, "column"), "float32", 10, 3),
        (Spec("meansplit", 2), "int64", 10, 0),
        (Spec("int", 4), "float32", 10, 0),
        (Spec("bool", 1), "int64", 10, 0),
        (Spec("raw", 0), "float32", 2**60, 0),
    ],
)
def test_what_does_not_go_together_is_refused(spec: Spec, dtype: str, numel: int, cols: int) -> None:
    with pytest.raises(ValueError, match="do not go together"):
        coder(spec, dtype, numel, cols)


def test_unknown_names_are_refused_with_those_that_would_be_right() -> None:
    with pytest.raises(ValueError, match="meansplit"):
        Spec("zip", 2)
    with pytest.raises(ValueError, match="column"):
        Spec("minmax", 2, "diagonal")
    with pytest.raises(ValueError, match="bfloat16"):
        coder(Spec("minmax", 2), "float8", 10)


def test_a_foreign_or_malformed_stash_is_refused() -> None:
    x = normal(1000)
    code, other = coder(Spec("minmax", 2), "float32", 1000), coder(Spec("minmax", 2), "float32", 999)
    planes = encode(code, x)
    with pytest.raises(StashError, match="another coder"):
        other.decode(x.ctypes.data, planes.address)
    with pytest.raises(StashError, match="number of streams"):
        coder(Spec("minmax", 1), "float32", 1000).decode(x.ctypes.data, planes.address)
    with pytest.raises(StashError):
        code.decode(x.ctypes.data, HostPlanes(code.stream_bytes[:1]).address)
    with pytest.raises(StashError):
        code.encode(x.ctypes.data, HostPlanes(code.stream_bytes[:2]).address)


@pytest.mark.parametrize("group", ["run", "column"])
@pytest.mark.parametrize(("maps", "rows", "cols"), [(2, 16, 24), (3, 13, 7), (1, 300, 33), (5, 1, 9)])
def test_dual_keeps_block_averages_when_every_plane_is_dropped(maps: int, rows: int, cols: int, group: str) -> None:
    smooth = np.add.outer(np.arange(maps) * 50.0, np.add.outer(np.arange(rows) * 0.5, np.arange(cols) * 0.25))
    x = (smooth.ravel() + normal(maps * rows * cols) * 0.1).astype(np.float32)
    code = coder(Spec("dual", 2, group), "float32", x.size, cols, rows)
    planes = encode(code, x)
    errors = [float(np.mean((decode(code, planes, x) - x) ** 2))]
    for _ in range(2):
        planes.drop(1)
        errors.append(float(np.mean((decode(code, planes, x) - x) ** 2)))
    assert errors == sorted(errors)
    assert errors[-1] < 4
    assert code.distortion(x.ctypes.data, 10_000) == pytest.approx(errors[::-1], rel=0.2, abs=1e-3)


def test_dual_keeps_what_is_not_finite() -> None:
    x = normal(64 * 64)
    x[100], x[200] = np.nan, np.inf
    code = coder(Spec("dual", 3), "float32", x.size, 64, 64)
    back = decode(code, encode(code, x), x)
    assert not np.isfinite(back[[100, 200]]).any()
    assert np.isfinite(np.delete(back, [100, 200])).all()
