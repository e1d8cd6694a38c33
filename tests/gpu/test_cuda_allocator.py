"""DAF's CUDA allocator on a real GPU. Each script is a process: torch takes an allocator only before CUDA use."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

PREAMBLE = """
import torch
from daf.allocator import cuda_arena, install_cuda, memory_stats, memory_summary
MIB = 1 << 20
arena = cuda_arena({budget} * MIB, publish=False)
assert install_cuda(arena)
"""


def _run(script: str, budget: int = 2048) -> str:
    source = PREAMBLE.format(budget=budget) + textwrap.dedent(script)
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_tensors_come_from_the_arena_and_go_back() -> None:
    _run("""
        x = torch.ones(4 * MIB, device="cuda")
        assert arena.owns(x.data_ptr()) and x.sum().item() == 4 * MIB
        del x
        assert memory_stats("cuda:0")["allocated_bytes.all.current"] < MIB
        assert arena.is_valid()
    """)


def test_several_streams_never_see_each_others_values() -> None:
    _run("""
        streams = [torch.cuda.Stream() for _ in range(4)]
        wrong = torch.zeros((), device="cuda")
        for round in range(200):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    x = torch.full((MIB + 1000 * (round % 7),), float(i), device="cuda")
                    for _ in range(4):
                        x = x * 1.0
                    bad = (x != i).sum()
                stream.synchronize() if round % 50 == 0 else None
                bad.record_stream(torch.cuda.current_stream())
                torch.cuda.current_stream().wait_stream(stream)
                wrong += bad
        torch.cuda.synchronize()
        assert wrong.item() == 0, wrong
        assert arena.is_valid()
    """)


def test_record_stream_keeps_memory_until_the_other_stream_is_done() -> None:
    _run("""
        side = torch.cuda.Stream()
        for _ in range(50):
            x = torch.ones(8 * MIB, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(2_000_000)
                total = x.sum()
            x.record_stream(side)
            del x
            torch.full((8 * MIB,), 7.0, device="cuda")
            side.synchronize()
            assert total.item() == 8 * MIB
    """)


def test_over_budget_is_torchs_own_error_and_a_smaller_request_then_works() -> None:
    _run(
        """
        try:
            torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "asked for" in str(error), error
        else:
            raise AssertionError("300 MiB fitted into 256")
        assert torch.ones(MIB, device="cuda").sum().item() == MIB
        """,
        budget=256,
    )


def test_empty_cache_gives_memory_back_to_the_device() -> None:
    _run("""
        free_before = torch.cuda.mem_get_info()[0]
        x = torch.ones(128 * MIB, device="cuda")
        del x
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] >= free_before - 64 * MIB
    """)


def test_a_small_training_runs_forward_and_backward() -> None:
    said = _run("""
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for _ in range(20):
            loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        print(memory_summary("cuda:0", abbreviated=True))
    """)
    assert "Allocated memory" in said
