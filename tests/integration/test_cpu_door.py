"""torch's CPU tensors in the arena: everything that people do with tensors still works."""

from __future__ import annotations

import gc
import io
import multiprocessing
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from daf.allocator import Arena, cpu_arena, install_cpu, uninstall_cpu
from daf.allocator.torch import memory_stats as stats
from daf.allocator.torch import shim
from tests.tools import require_tool

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    require_tool("c++", "g++", "clang++")
    arena = Arena(256 * MIB, publish=False)
    assert install_cpu(arena)
    yield arena
    uninstall_cpu()
    gc.collect()
    assert arena.is_valid()
    arena.close()


def test_tensors_live_in_the_arena_while_it_is_installed(arena: Arena) -> None:
    before = arena.stats()["tensor_bytes"]
    tensor = torch.ones(MIB)
    assert arena.stats()["tensor_bytes"] >= before + 4 * MIB
    assert arena.owns(tensor.data_ptr())
    assert tensor.data_ptr() % 64 == 0
    assert tensor.sum() == MIB
    del tensor
    assert arena.stats()["tensor_bytes"] == before


def test_a_tensor_made_before_goes_back_to_the_old_allocator() -> None:
    require_tool("c++", "g++", "clang++")
    tensor = torch.ones(MIB)
    arena = Arena(64 * MIB, publish=False)
    install_cpu(arena)
    assert not arena.owns(tensor.data_ptr())
    del tensor
    assert arena.is_valid()
    uninstall_cpu()
    arena.close()


def test_a_tensor_outlives_the_arena_that_made_it(arena: Arena) -> None:
    first = Arena(64 * MIB, publish=False)
    install_cpu(first)
    tensor = torch.arange(MIB)
    uninstall_cpu()
    first.close()
    assert tensor[-1] == MIB - 1
    tensor += 1
    assert tensor[0] == 1
    install_cpu(arena)
    later = torch.zeros(8)
    assert arena.owns(later.data_ptr())
    del tensor
    assert later.sum() == 0


def test_closing_the_arena_in_service_gives_torch_its_own_allocator_back() -> None:
    require_tool("c++", "g++", "clang++")
    arena = Arena(64 * MIB, publish=False)
    install_cpu(arena)
    held = torch.ones(1000)
    arena.close()
    assert cpu_arena() is None
    assert torch.ones(MIB).sum() == MIB
    assert held.sum() == 1000


def test_a_tensor_that_outlives_daf_can_be_resized(arena: Arena) -> None:
    tensor = torch.ones(16)
    uninstall_cpu()
    tensor.resize_(MIB)
    assert not arena.owns(tensor.data_ptr())
    assert tensor[:16].sum() == 16


@pytest.mark.usefixtures("arena")
def test_over_budget_is_torchs_own_error_with_the_report_and_the_next_smaller_request_works() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="budget") as caught:
        torch.empty(512 * MIB, dtype=torch.uint8)
    assert "512.0 MiB asked for" in str(caught.value)
    assert torch.ones(MIB).sum() == MIB
    assert stats.memory_stats("cpu")["num_ooms"] >= 1


@pytest.mark.usefixtures("arena")
def test_numpy_shares_memory_both_ways() -> None:
    array = np.arange(1000.0)
    tensor = torch.from_numpy(array)
    tensor += 1
    assert array[0] == 1
    view = torch.arange(1000).numpy()
    gc.collect()
    assert view[999] == 999  # the tensor is gone, its memory is not


@pytest.mark.usefixtures("arena")
def test_saving_and_loading_give_the_same_tensors() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.arange(100_000), "b": torch.ones(3, 4)}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded["a"], torch.arange(100_000))


def test_a_tensor_moves_to_shared_memory(arena: Arena) -> None:
    tensor = torch.arange(10_000)
    before = arena.stats()["tensor_bytes"]
    tensor.share_memory_()
    assert tensor.is_shared()
    assert arena.stats()["tensor_bytes"] < before
    assert tensor[-1] == 9_999


def test_many_threads_allocate_and_free_at_once(arena: Arena) -> None:
    errors: list[Exception] = []

    def work(seed: int) -> None:
        try:
            random = np.random.default_rng(seed)
            held: list[torch.Tensor] = []
            for size in random.integers(1, 40_000, 300):
                held.append(torch.full((int(size),), seed, dtype=torch.uint8))
                if len(held) > 10:
                    assert bool((held.pop(int(random.integers(0, 10))) == seed).all())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert arena.is_valid()


class _Squares(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((1000,), float(i)) ** 2


@pytest.mark.usefixtures("arena")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers_hand_over_their_batches(method: str) -> None:
    context = multiprocessing.get_context(method)
    loader = torch.utils.data.DataLoader(_Squares(), batch_size=8, num_workers=2, multiprocessing_context=context)
    total = sum(batch.sum().item() for batch in loader)
    assert total == 1000 * sum(i * i for i in range(64))


def _run(script: str, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_a_process_forked_while_threads_allocate_goes_on_by_itself() -> None:
    require_tool("c++", "g++", "clang++")
    script = """
        import os, sys, threading, torch
        from daf.allocator import Arena, install_cpu
        torch.set_num_threads(1)
        arena = Arena(1 << 28)
        install_cpu(arena)
        stop = threading.Event()
        def churn():
            while not stop.is_set():
                torch.empty(30_000)
        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads: thread.start()
        kept = torch.arange(100_000)
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                good = all(torch.full((50_000,), i).sum() == 50_000 * i for i in range(20)) and kept[-1] == 99_999
                kept += 1
                os._exit(0 if good else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join()
        assert kept[0] == 0 and arena.is_valid()
        print("fine")
    """
    result = _run(script, "-W", "ignore")
    assert result.stdout == "fine\n", result.stderr
    assert result.stderr == ""


def test_without_a_compiler_one_warning_says_what_to_install_and_training_goes_on() -> None:
    script = """
        import warnings, torch
        from daf.allocator import Arena, install_cpu
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert install_cpu(Arena(1 << 26, publish=False)) is False
        assert len(caught) == 1, caught
        assert torch.ones(1000).sum() == 1000
        print(caught[0].message)
    """
    env = {"PATH": "/nowhere", "DAF_CACHE_DIR": "/nowhere/cache"}
    result = _run(script, env=env)
    assert "no C++ compiler" in result.stdout, result.stderr
    assert "apt install g++" in result.stdout


def test_the_shim_is_built_once_per_torch_and_source() -> None:
    require_tool("c++", "g++", "clang++")
    path = shim.build()
    made_at = path.stat().st_mtime_ns
    assert shim.build() == path
    assert path.stat().st_mtime_ns == made_at
    assert torch.__version__ in path.name


@pytest.mark.usefixtures("arena")
def test_the_profiler_sees_cpu_memory() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        torch.ones(MIB)
    assert any(event.cpu_memory_usage >= 4 * MIB for event in seen.events())


@pytest.mark.usefixtures("arena")
def test_statistics_come_in_torchs_own_keys() -> None:
    stats.reset_peak_memory_stats("cpu")
    stats.reset_accumulated_memory_stats("cpu")
    before = stats.memory_stats("cpu")
    tensor = torch.ones(2 * MIB)
    during = stats.memory_stats("cpu")
    del tensor
    after = stats.memory_stats("cpu")
    size = 8 * MIB
    assert during["allocated_bytes.large_pool.current"] - before["allocated_bytes.large_pool.current"] == size
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert after["allocated_bytes.all.peak"] >= before["allocated_bytes.all.current"] + size
    assert after["allocated_bytes.all.freed"] >= size
    assert during["reserved_bytes.all.current"] >= during["allocated_bytes.all.current"]
    assert "allocation.small_pool.current" in after
    assert "num_alloc_retries" in after
