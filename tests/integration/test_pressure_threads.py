"""torch asks for memory from threads that hold the interpreter's lock and from threads that do not: tensors kept in a
list are freed for both, and nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.tools import require_tool

PREFACE = """
    import faulthandler, gc, threading
    import torch
    from daf.allocator import Arena, install_cpu, uninstall_cpu
    faulthandler.dump_traceback_later(100, exit=True)
    MIB = 1 << 20
    arena = Arena(192 * MIB, publish=False)
    assert install_cpu(arena)
    lock, kept = threading.Lock(), []

    def free_some(missing):
        with lock:
            while missing > 0 and kept:
                missing -= kept.pop(0).nbytes
        return missing <= 0

    def keep(tensor):
        with lock:
            kept.append(tensor)

    arena.set_pressure(free_some)
"""


def run(script: str) -> str:
    require_tool("c++", "g++", "clang++")
    text = textwrap.dedent(PREFACE) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_thread_in_python_and_a_thread_in_an_op_are_both_given_what_is_kept() -> None:
    out = run("""
        failed = []

        def in_python():
            for i in range(300):
                keep(torch.empty(MIB // 4 * (1 + i % 5)))  # made with the lock of the interpreter

        def in_ops():
            x = torch.ones(9 * MIB)  # 36 MiB: the op runs without it, and asks from there
            for _ in range(30):
                keep(x * 2.0)

        def guarded(work):
            try:
                work()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (in_python, in_ops, in_python, in_ops)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not failed, failed
        stats = arena.stats()
        assert stats["pressure_calls_total"] > 10 and stats["oom_total"] == 0
        assert stats["peak_resident_bytes"] <= 192 * MIB
        assert arena.why_invalid() == ""
        print("done")
    """)
    assert out == "done\n"


def test_ops_of_several_threads_within_the_callback_work() -> None:
    out = run("""
        torch.set_num_threads(2)

        def free_by_computing(missing):
            small = torch.ones(100_000)
            (small @ small + torch.nn.functional.gelu(small).sum()).item()  # as an encoder would
            return free_some(missing)

        arena.set_pressure(free_by_computing)
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
        for step in range(8):
            loss = model(torch.randn(1024 * (1 + step), 512)).square().mean()
            loss.backward()
            keep(torch.empty(12 * MIB))
        assert arena.stats()["pressure_calls_total"] > 0
        assert arena.why_invalid() == ""
        print("done")
    """)
    assert out == "done\n"


def test_a_callback_that_takes_the_arena_out_of_service_leaves_torch_its_own_allocator() -> None:
    out = run("""
        def give_up(missing):
            arena.set_pressure(None)
            uninstall_cpu()
            return True

        arena.set_pressure(give_up)
        first = torch.ones(30 * MIB)
        second = torch.ones(40 * MIB)
        assert not arena.owns(second.data_ptr()) and arena.owns(first.data_ptr())
        del first, second
        gc.collect()
        assert arena.why_invalid() == ""
        print("done")
    """)
    assert out == "done\n"
