"""The engine on a device: the Triton twins in Triton's interpreter, bit for bit as with C; and what happens without."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from daf.quant.encode import backends
from daf.quant.encode.backends import Backends, NotHereError
from tests.triton_process import TritonProcess
from tests.unit.quant.host_arena import HostArena

CASES = (
    "conv_net", "transformer_block", "half_precision", "stochastic_rounding", "lossless", "evicted_within_a_step",
    "over_the_drivers_double", "planned", "integer_widths", "integers_that_grow_wider", "a_mask_that_is_none",
    "an_infinity_that_comes_later",
    "a_tensor_held_in_doubt_is_let_go", "attention_that_cannot_be_run_again", "a_kernel_that_does_not_compile",
    "a_kernel_that_miscodes", "planes_wanted_on_another_stream",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_engine_on_a_device(triton_process: TritonProcess, name: str) -> None:
    assert triton_process.differences(what="engine", name=name) == []


def cuda_tensor(index: int = 0) -> Any:
    return types.SimpleNamespace(is_cuda=True, device=torch.device("cuda", index))


class FakeCuda:
    """A device whose current stream is what the test says."""

    def __init__(self, *, is_home: bool = True, is_capturing: bool = False) -> None:
        self._answers = (is_home, is_capturing)

    def is_home(self) -> bool:
        return self._answers[0]

    def is_capturing(self) -> bool:
        return self._answers[1]


def why_not(tensor: Any, opened: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(backends, "_open", lambda _device: opened)
    all_places = Backends(HostArena())
    try:
        assert all_places.on_device(tensor) is opened
    except NotHereError as error:
        return error.reason
    return ""


def test_a_tensor_on_the_home_stream_is_coded_and_any_other_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(cuda_tensor(), FakeCuda(), monkeypatch) == ""
    assert why_not(cuda_tensor(), FakeCuda(is_home=False), monkeypatch) == "stream"
    assert why_not(cuda_tensor(), FakeCuda(is_capturing=True), monkeypatch) == "stream"
    assert why_not(torch.empty(1, device="meta"), FakeCuda(), monkeypatch) == "unsupported"


def test_a_device_that_cannot_be_used_is_asked_once_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(device: torch.device) -> tuple[str, str]:
        asked.append(device)
        return "no_triton", "saved tensors on cuda:1 need Triton"

    monkeypatch.setattr(backends, "_open", refuse)
    all_places = Backends(HostArena())
    for _ in range(3):
        with pytest.raises(NotHereError, match="need Triton"):
            all_places.on_device(cuda_tensor(1))
    assert asked == [torch.device("cuda", 1)]


def test_without_an_arena_or_without_triton_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    assert backends._open(device)[0] == "no_arena"  # type: ignore[index]
    monkeypatch.setattr("daf.allocator.device_arena", lambda _index: HostArena())
    monkeypatch.setattr("daf.allocator.home_stream", lambda _index: 0)
    monkeypatch.setitem(__import__("sys").modules, "daf.kernels.triton.codec", None)
    reason, text = backends._open(device)  # type: ignore[misc]
    assert reason == "no_triton"
    assert "pip install triton" in text


def test_saves_on_an_unusable_device_are_kept_counted_by_reason_and_told_once() -> None:
    """With the CPU in the part of the device: `is_cpu` is what the engine asks first."""
    from daf.quant import Engine

    with Engine(HostArena(), bits=2) as engine:
        engine.backends.host = Refusing()  # type: ignore[assignment]
        x = torch.randn(64, 256, requires_grad=True)
        with pytest.warns(UserWarning, match="no such kernel") as said:
            got = torch.autograd.grad((x * 2).sigmoid().tanh().sum(), x)[0]
        stats = engine.stats()
    want = torch.autograd.grad((x * 2).sigmoid().tanh().sum(), x)[0]
    assert torch.equal(got, want)
    assert len(said) == 1
    assert stats["passed_kernel_total"] == 2
    assert stats["failures_total"] == 0


class Refusing(backends.Host):
    def __init__(self) -> None:
        super().__init__(HostArena())

    def check(self, _spec: object, _dtype: str) -> None:
        raise NotHereError("kernel", "no such kernel")
