"""Log-probabilities: p - y keeps its digits however sure a classifier is, and what is impossible stays so."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from daf.kernels import HostPlanes, Spec, coder


def coded(x: torch.Tensor, bits: int, dropped: int = 0) -> torch.Tensor:
    code = coder(Spec("logprob", bits), str(x.dtype).removeprefix("torch."), x.numel(), x.shape[1])
    planes = HostPlanes(code.stream_bytes, 512)
    code.encode(x.data_ptr(), planes.address)
    planes.drop(dropped)
    back = torch.full_like(x, 5)
    code.decode(back.data_ptr(), planes.address)
    return back


def log_probabilities(rows: int, classes: int, surety: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of log-softmax outputs, and their targets, which mostly are the likeliest."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator) * 2
    sure = torch.where(torch.rand(rows, generator=generator) < 0.1, (target + 1) % classes, target)
    logits[torch.arange(rows), sure] += surety
    return logits.log_softmax(1), target


def gradient(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    grad = x.float().exp()
    grad[torch.arange(len(x)), target] -= 1
    return grad


@pytest.mark.parametrize("surety", [0.0, 5.0, 12.0, 25.0])
@pytest.mark.parametrize("classes", [10, 1000])
@pytest.mark.parametrize(("bits", "bound"), [(3, 0.1), (4, 0.05), (6, 0.012)])
def test_the_gradient_is_right_to_a_few_per_cent_of_itself(
    bits: int, bound: float, classes: int, surety: float
) -> None:
    x, target = log_probabilities(200, classes, surety)
    true = gradient(x, target)
    error = gradient(coded(x, bits), target) - true
    sure = x.argmax(1) == target
    for rows in (sure, ~sure):
        if rows.any():
            assert error[rows].norm() <= bound * true[rows].norm()


def test_the_likeliest_and_the_second_of_each_row_are_exact() -> None:
    x, _ = log_probabilities(300, 50, 3.0)
    back, first = coded(x, 4), x.topk(2).indices
    assert torch.equal(back.gather(1, first), x.gather(1, first))


@pytest.mark.parametrize("bits", range(2, 9))
def test_dropped_planes_leave_the_likeliest_exact_and_the_others_coarser(bits: int) -> None:
    x, target = log_probabilities(200, 100, 4.0)
    true, errors = gradient(x, target), []
    for dropped in range(bits + 1):
        back = coded(x, bits, dropped)
        assert torch.equal(back.max(1).values, x.max(1).values)
        errors.append(float((gradient(back, target) - true).norm() / true.norm()))
    assert errors[0] == min(errors)
    assert errors[-1] < 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_log_probabilities_are_coded_as_well(dtype: torch.dtype) -> None:
    x, target = log_probabilities(200, 100, 4.0)
    x = x.to(dtype)
    back = coded(x, 5)
    assert torch.equal(back.max(1).values, x.max(1).values)
    assert (gradient(back, target) - gradient(x, target)).norm() < 0.03 * gradient(x, target).norm()


@pytest.mark.parametrize("bits", range(2, 9))
def test_what_is_impossible_stays_impossible_and_nothing_else_becomes_so(bits: int) -> None:
    x, _ = log_probabilities(100, 40, 4.0)
    masked = torch.rand(100, 40, generator=torch.Generator().manual_seed(1)) < 0.3
    masked[:, 7] = False
    masked[3], masked[3, 5] = True, False
    x = x.masked_fill(masked, -torch.inf).log_softmax(1)
    assert torch.equal(coded(x, bits) == -torch.inf, masked)


def test_rows_that_are_not_log_probabilities_become_nan_and_no_others() -> None:
    x, _ = log_probabilities(30, 40, 4.0)
    x[4, 3], x[9, 1] = torch.nan, torch.inf
    back = coded(x, 4)
    assert back[[4, 9]].isnan().all()
    assert back.isnan().sum() == 80


@hypothesis.given(
    rows=st.integers(0, 40),
    classes=st.integers(1, 300),
    bits=st.integers(2, 8),
    spread=st.floats(0, 60),
    seed=st.integers(0, 2**32),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_probability_is_within_its_cell(rows: int, classes: int, bits: int, spread: float, seed: int) -> None:
    logits = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)) * spread
    x = logits.log_softmax(1)
    back = coded(x, bits)
    if not rows:
        return
    second = x.topk(min(2, classes)).values[:, -1:]
    below = (second - x).clamp(0, 16)
    depth = below.max(1, keepdim=True).values
    root = (below / depth.clamp(min=1e-30)).sqrt() * (2**bits - 1)
    cell = depth * ((root + 1) ** 2 - (root - 1).clamp(min=0) ** 2) / (2**bits - 1) ** 2
    within = (back - x.clamp(min=second - 16)).abs() <= cell + 1e-4 * (1 + x.abs())
    assert (within | (back == x)).all()


def test_rows_and_classes_must_go_together() -> None:
    with pytest.raises(ValueError, match="do not go together"):
        coder(Spec("logprob", 4), "float32", 10, 3)
    with pytest.raises(ValueError, match="do not go together"):
        coder(Spec("logprob", 4, "column"), "float32", 12, 3)
