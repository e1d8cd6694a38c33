"""What tests share: a runtime folder of their own, so that they never meet a real run's stats pages, one thread, and a
process in which Triton's interpreter is on."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.tools import require_package
from tests.triton_process import TritonProcess


@pytest.fixture(autouse=True)
def _own_runtime_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "daf-runtime"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are added up in the same order each time, and small tensors' threads do not wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def triton_process() -> Iterator[TritonProcess]:
    require_package("triton", extra="gpu")
    process = TritonProcess()
    yield process
    process.close()
