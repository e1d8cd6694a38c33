"""Statistics in torch's keys: what torch's own table asks for is there, and counts do what torch's do."""

from __future__ import annotations

import pytest

from daf.allocator import memory_stats, memory_summary

METRICS = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "active",
    "active_bytes",
    "reserved_bytes",
    "segment",
    "inactive_split",
    "inactive_split_bytes",
)


@pytest.mark.parametrize("device", ["cpu", "cuda:0", 0, None])
def test_every_key_that_torchs_table_reads_is_there(device: str | int | None) -> None:
    stats = memory_stats(device)
    for metric in METRICS:
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak", "allocated", "freed"):
                assert stats[f"{metric}.{pool}.{kind}"] >= 0
    for key in ("num_ooms", "num_alloc_retries", "oversize_segments.peak", "max_split_size", "num_device_alloc"):
        assert key in stats


def test_the_summary_is_a_table_of_one_width() -> None:
    lines = memory_summary("cpu").splitlines()
    assert len({len(line) for line in lines}) == 1
    assert any("Allocated memory" in line for line in lines)
    sizes = [line for line in lines if "Allocated memory" in line]
    assert all(line.rstrip("|").rstrip().endswith("B") for line in sizes), "no cell is cut"
    assert len(memory_summary("cpu", abbreviated=True).splitlines()) < len(lines)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "mps:0"])
def test_an_unknown_device_is_quoted(device: str) -> None:
    with pytest.raises(ValueError, match=device):
        memory_stats(device)
