"""Codec subspace: as near as the best basis of that rank, and what is dropped, zero or not finite."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from daf.kernels.subspace import Basis, Frame, SubspaceCoder, allot, blocks_of, from_rows, to_rows


def decaying(rows: int, cols: int, power: float, seed: int = 0, turn: int = 0) -> torch.Tensor:
    """Rows whose variances fall off as k^-2 power, around a mean; the same directions for every seed."""
    directions = torch.linalg.qr(torch.randn(cols, cols, generator=torch.Generator().manual_seed(turn))).Q
    scales = torch.arange(1, cols + 1).float() ** -power
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, cols, generator=generator) * scales @ directions + directions[0] * 2


def best_error(x: torch.Tensor, rank: int) -> float:
    values = torch.linalg.svdvals(x - x.mean(0))
    return float(values[rank:].square().sum().sqrt())


def coded(
    x: torch.Tensor, basis: Basis, code: SubspaceCoder, *, dropped: int = 0, blocks: int | None = None
) -> torch.Tensor:
    planes = code.make_planes()
    frame = code.encode(x, basis, [one.address for one in planes])
    for one in planes:
        one.drop(dropped)
    return code.decode(frame, [one.address for one in planes][:blocks])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rank", [4, 24, 48])
def test_a_fitted_basis_is_within_a_fifth_of_the_best_one(rank: int, power: float, dtype: torch.dtype) -> None:
    x = decaying(512, 96, power).to(dtype)
    rows = to_rows(x)
    back = coded(x, Basis.fit(x, rank), SubspaceCoder(512, 96, blocks_of(rank, 8)))
    assert (back - rows).norm() <= 1.2 * best_error(rows, rank) + 0.01 * rows.norm()


def test_one_iteration_from_the_last_basis_follows_directions_that_turn() -> None:
    basis = Basis.fit(decaying(512, 64, 1.0, seed=1), 16)
    for seed in range(3):
        x = decaying(512, 64, 1.0, seed=seed, turn=1)
        basis.refresh(x)
    rows = x - x.mean(0)
    left = rows - rows @ basis.directions.T @ basis.directions
    assert left.norm() <= 1.2 * best_error(x, 16)


def test_a_basis_of_another_batch_does_nearly_as_well() -> None:
    basis = Basis.fit(decaying(1024, 64, 1.0, seed=1), 16)
    x = decaying(512, 64, 1.0, seed=2)
    back = coded(x, basis, SubspaceCoder(512, 64, blocks_of(16, 8)))
    assert (back - x).norm() <= 1.3 * best_error(x, 16)


def test_directions_are_orthonormal_and_ordered_by_variance() -> None:
    basis = Basis.fit(decaying(512, 64, 1.0), 20)
    assert torch.allclose(basis.directions @ basis.directions.T, torch.eye(20), atol=1e-5)
    assert (basis.variances.diff() <= 0).all()
    assert basis.num_bytes == 28 * 64 * 4 + 28 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_rows_of_channels(dtype: torch.dtype) -> None:
    x = decaying(4 * 8 * 8, 32, 2.0).reshape(4, 8, 8, 32).permute(0, 3, 1, 2).to(dtype)
    rows = to_rows(x)
    back = from_rows(coded(x, Basis.fit(x, 16), SubspaceCoder(256, 32, blocks_of(16, 8))), x)
    assert torch.equal(from_rows(rows, x), x)
    assert back.shape == x.shape
    assert back.dtype == dtype
    assert (to_rows(back) - rows).norm() < 0.03 * rows.norm()


def test_dropped_blocks_leave_the_subspace_of_what_is_left() -> None:
    x = decaying(512, 64, 1.0)
    basis, code = Basis.fit(x, 32), SubspaceCoder(512, 64, blocks_of(32, 8, num_blocks=4))
    for left in range(5):
        error = float((coded(x, basis, code, blocks=left) - x).norm())
        assert error <= 1.1 * best_error(x, 8 * left) + 0.01 * float(x.norm())


def test_each_dropped_plane_makes_it_coarser() -> None:
    x = decaying(512, 64, 1.0)
    basis, code = Basis.fit(x, 32), SubspaceCoder(512, 64, blocks_of(32, 6, num_blocks=2))
    errors = [float((coded(x, basis, code, dropped=dropped) - x).norm()) for dropped in range(6)]
    assert errors == sorted(errors)
    assert errors[-1] < float(x.norm())


def test_widths_follow_variances_and_do_better_than_one_width_for_all() -> None:
    x = decaying(1024, 64, 1.5)
    basis = Basis.fit(x, 32)
    blocks = allot(basis.variances, 1024, 64, bits=1.0)
    widths = [block.spec.bits for block in blocks]
    assert widths == sorted(widths, reverse=True)
    assert sum(block.rank * block.spec.bits for block in blocks) <= 64
    own = coded(x, basis, SubspaceCoder(1024, 64, blocks))
    even = coded(x, basis, SubspaceCoder(1024, 64, blocks_of(32, 2)))
    assert (own - x).norm() < 0.8 * (even - x).norm()


def test_the_weight_gradient_in_the_subspace_is_that_of_the_decoded_rows() -> None:
    x = decaying(300, 48, 1.0)
    x[7] = 0
    gradient = torch.randn(300, 20, generator=torch.Generator().manual_seed(1))
    basis, code = Basis.fit(x, 12), SubspaceCoder(300, 48, blocks_of(12, 4, num_blocks=2))
    planes = code.make_planes()
    frame = code.encode(x, basis, [one.address for one in planes])
    coefficients = code.coefficients([one.address for one in planes])
    expected = gradient.T @ frame.restore(coefficients)
    assert torch.allclose(frame.weight_gradient(gradient, coefficients), expected, atol=1e-4)


def test_a_save_outlives_a_refresh_of_the_basis() -> None:
    x = decaying(300, 48, 1.0)
    basis, code = Basis.fit(x, 12), SubspaceCoder(300, 48, blocks_of(12, 4))
    planes = code.make_planes()
    frame = code.encode(x, basis, [one.address for one in planes])
    before = code.decode(frame, [one.address for one in planes])
    basis.refresh(decaying(300, 48, 1.0, turn=5))
    assert torch.equal(code.decode(frame, [one.address for one in planes]), before)


def test_rows_of_zeros_come_back_as_zeros() -> None:
    x = decaying(300, 48, 1.0)
    x[[0, 299]] = 0
    back = coded(x, Basis.fit(x, 12), SubspaceCoder(300, 48, blocks_of(12, 1)), dropped=0)
    assert torch.equal(~back.any(1), ~x.any(1))


def test_what_is_not_finite_is_refused_and_does_not_spoil_the_basis() -> None:
    x = decaying(300, 48, 1.0)
    basis, code = Basis.fit(x, 12), SubspaceCoder(300, 48, blocks_of(12, 4))
    before = basis.directions.clone()
    x[5, 5] = torch.inf
    with pytest.raises(ValueError, match="keep it exact"):
        coded(x, basis, code)
    basis.refresh(x)
    assert torch.equal(basis.directions, before)


def test_what_does_not_go_together_is_refused() -> None:
    x = decaying(300, 48, 1.0)
    with pytest.raises(ValueError, match="rank is 49"):
        Basis.fit(x, 49)
    with pytest.raises(ValueError, match="have 1 to 48"):
        SubspaceCoder(300, 48, blocks_of(49, 2))
    with pytest.raises(ValueError, match="this coder takes"):
        SubspaceCoder(200, 48, blocks_of(8, 2)).project(x, Basis.fit(x, 8))
    with pytest.raises(ValueError, match="directions"):
        SubspaceCoder(300, 48, blocks_of(9, 2)).project(x, Basis.fit(x, 8))
    with pytest.raises(ValueError, match="no rows"):
        to_rows(x[0])


@hypothesis.given(
    rows=st.integers(1, 300),
    cols=st.integers(1, 40),
    rank=st.integers(1, 40),
    bits=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_any_rows_in_any_rank_come_back_no_larger_than_they_were(
    rows: int, cols: int, rank: int, bits: int, seed: int
) -> None:
    x = torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))
    rank = min(rank, cols)
    code = SubspaceCoder(rows, cols, blocks_of(rank, bits, num_blocks=3))
    planes = code.make_planes()
    frame: Frame = code.encode(x, Basis.fit(x, rank), [one.address for one in planes])
    back = code.decode(frame, [one.address for one in planes])
    assert back.isfinite().all()
    assert (back - x).norm() <= 2.5 * (x - x.mean(0)).norm() + 0.01 * x.norm()
