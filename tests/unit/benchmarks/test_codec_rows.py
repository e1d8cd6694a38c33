"""What `benchmarks.codec` writes down of a codec and of a peer."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.codec.__main__ import WIDTHS, Bench, against_peers
from benchmarks.codec.others import Peer
from daf import kernels
from daf.kernels import Spec

KEYS = {
    "codec", "op", "bits", "dtype", "isa", "threads", "elements", "gb_per_s", "memcpy_gb_per_s", "ratio",
    "mse_normal", "mse_relu", "mse_real",
}  # fmt: skip


@pytest.fixture
def bench() -> Bench:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    return Bench(1 << 15, time.perf_counter, {"normal": [x], "relu": [x.relu()], "real": [x, x.relu()]})


@pytest.mark.parametrize("codec", WIDTHS)
def test_a_codec_gives_a_row_for_each_way(bench: Bench, codec: str) -> None:
    bench.codec(Spec(codec, max(WIDTHS[codec])))
    assert [row["op"] for row in bench.rows] == ["encode", "decode"]
    for row in bench.rows:
        assert row.keys() >= KEYS
        assert row["ratio"] == pytest.approx(row["gb_per_s"] / row["memcpy_gb_per_s"])


def test_more_planes_have_less_error(bench: Bench) -> None:
    for bits in (1, 2, 4):
        bench.codec(Spec("meansplit", bits))
    errors = [row["mse_real"] for row in bench.rows]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1] > 0


def test_a_peer_stands_beside_ours_of_the_same_width(bench: Bench) -> None:
    bench.codec(Spec("minmax", 8))
    bench.peer(Peer("copy", 8, torch.clone, torch.clone))
    beside = against_peers(bench.rows, kernels.isa())
    assert [(row["peer"], row["op"], row["codec"]) for row in beside] == [
        ("copy", "encode", "minmax"),
        ("copy", "decode", "minmax"),
    ]
    assert bench.rows[-1]["mse_real"] == 0
