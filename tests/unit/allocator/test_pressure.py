"""Relief in its order: cached memory, then whoever was asked, then planes, then OutOfMemory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator

import pytest

from daf.allocator import Arena
from daf.errors import DafOutOfMemoryError

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(MIB, publish=False) as arena:
        yield arena
        assert arena.why_invalid() == ""


def keep_blocks(arena: Arena, count: int, num_bytes: int = MIB // 8) -> list[int]:
    return [arena.alloc(num_bytes) for _ in range(count)]


def test_a_request_that_fits_asks_nobody(arena: Arena) -> None:
    asked: list[int] = []
    arena.set_pressure(lambda missing: bool(asked.append(missing)))
    block = arena.alloc(MIB)
    arena.free(block)
    arena.alloc(MIB // 2)  # cached memory does
    assert asked == []


def test_a_tensor_that_does_not_fit_asks_for_what_is_missing_and_gets_it(arena: Arena) -> None:
    kept, asked = keep_blocks(arena, 8), []

    def free_some(missing: int) -> bool:
        asked.append(missing)
        arena.free(kept.pop())
        return True

    arena.set_pressure(free_some)
    arena.alloc(MIB // 4)

    assert asked == [MIB // 4, MIB // 8]
    assert arena.stats()["pressure_calls_total"] == 2
    assert arena.stats()["pressure_freed_bytes_total"] == MIB // 4
    assert arena.stats()["resident_bytes"] <= MIB


def test_a_stash_asks_too(arena: Arena) -> None:
    kept = keep_blocks(arena, 8)
    arena.set_pressure(lambda _: bool(kept) and arena.free(kept.pop()) is None)
    stash = arena.reserve(arena.stash_spec([PAGE, 20 * PAGE], [0.0, 1.0]))
    assert len(kept) == 7
    stash.release()


def test_planes_stay_while_the_callback_finds_memory_and_go_when_it_does_not(arena: Arena) -> None:
    stash = arena.reserve(arena.stash_spec([PAGE, 32 * PAGE], [0.0, 1.0]))
    stash.unpin()
    kept = keep_blocks(arena, 6)

    def free_one(_: int) -> bool:
        if kept:
            arena.free(kept.pop())
        return bool(kept)

    arena.set_pressure(free_one)
    arena.alloc(MIB // 2)
    assert stash.num_streams == 2

    kept.clear()
    arena.alloc(40 * PAGE)
    assert stash.num_streams == 1


def test_nothing_freed_ends_in_out_of_memory_however_often_it_says_otherwise(arena: Arena) -> None:
    calls = 0

    def promise(_: int) -> bool:
        nonlocal calls
        calls += 1
        return True

    arena.set_pressure(promise)
    with pytest.raises(DafOutOfMemoryError):
        arena.alloc(2 * MIB)
    assert 1 < calls < 1000


def test_a_request_of_the_callback_asks_nobody_and_may_drop_planes(arena: Arena) -> None:
    stash = arena.reserve(arena.stash_spec([PAGE, 32 * PAGE], [0.0, 1.0]))
    stash.unpin()
    kept, depth = keep_blocks(arena, 6), 0

    def encode(_: int) -> bool:
        nonlocal depth
        depth += 1
        assert depth == 1
        block = arena.alloc(MIB // 8)
        arena.free(block)
        arena.free(kept.pop())
        depth -= 1
        return True

    arena.set_pressure(encode)
    arena.alloc(MIB // 8)
    assert stash.num_streams == 1


def test_an_exception_of_the_callback_is_said_once_and_planes_go_instead(arena: Arena) -> None:
    stash = arena.reserve(arena.stash_spec([PAGE, 64 * PAGE, 32 * PAGE], [0.0, 1.0, 0.0]))
    stash.unpin()
    keep_blocks(arena, 5)

    class OwnError(Exception):
        pass

    def fail(_: int) -> bool:
        raise OwnError("no idea")

    arena.set_pressure(fail)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        keep_blocks(arena, 2)
    assert [str(it.message) for it in said if "no idea" in str(it.message)][1:] == []
    assert len(said) == 1
    assert stash.num_streams == 1


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_during_the_callback_reaches_the_program_and_the_request_ends_first(arena: Arena) -> None:
    keep_blocks(arena, 8)

    def interrupted(_: int) -> bool:
        signal.raise_signal(signal.SIGINT)
        return False

    arena.set_pressure(interrupted)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with contextlib.suppress(DafOutOfMemoryError):
            arena.alloc(PAGE * 16)
        for _ in range(100):
            pass
    assert arena.stats()["oom_total"] == 1
    assert arena.is_valid()


def test_a_callback_that_was_taken_away_is_not_called(arena: Arena) -> None:
    arena.set_pressure(lambda _: pytest.fail("called"))
    arena.set_pressure(None)
    with pytest.raises(DafOutOfMemoryError):
        arena.alloc(2 * MIB)


def test_a_callback_may_close_its_arena() -> None:
    arena = Arena(MIB, publish=False)
    arena.set_pressure(lambda _: arena.close() is None)
    with pytest.raises(Exception, match="closed"):
        arena.alloc(2 * MIB)


def test_a_forked_child_asks_nobody(arena: Arena) -> None:
    asked = []
    arena.set_pressure(lambda missing: bool(asked.append(missing)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that other tests left
        child = os.fork()
    if child == 0:
        status = 1
        try:
            arena.alloc(2 * MIB)
        except DafOutOfMemoryError:
            status = 2 if asked else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_ask_at_once_and_none_waits_for_another(arena: Arena) -> None:
    lock, kept = threading.Lock(), keep_blocks(arena, 8)
    inside = threading.Barrier(4, timeout=60)  # opens only when four callbacks run at the same time
    failed: list[BaseException] = []

    def free_one(_: int) -> bool:
        inside.wait()
        with lock:
            arena.free(kept.pop())
        return True

    def ask() -> None:
        try:
            arena.alloc(MIB // 8)
        except BaseException as error:
            failed.append(error)

    arena.set_pressure(free_one)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []


def test_a_step_keeps_its_peaks_of_tensors_planes_and_both(arena: Arena) -> None:
    block = arena.alloc(MIB // 2)
    arena.free(block)
    stash = arena.reserve(arena.stash_spec([PAGE * 16], [0.0]))
    other = arena.alloc(MIB // 4)
    now = arena.stats()
    assert now["step_peak_tensor_bytes"] == MIB // 2
    assert now["step_peak_plane_bytes"] == 16 * PAGE
    assert now["step_peak_live_bytes"] == MIB // 2
    stash.release()
    arena.free(other)
    arena.step(0.1)
    after = arena.stats()
    assert (after["last_step_tensor_bytes"], after["last_step_plane_bytes"]) == (MIB // 2, 16 * PAGE)
    assert after["last_step_live_bytes"] == MIB // 2
    assert after["step_peak_live_bytes"] == after["step_peak_tensor_bytes"] == after["step_peak_plane_bytes"] == 0


def test_daemon_threads_that_ask_while_the_interpreter_ends_do_no_harm() -> None:
    script = """
        import faulthandler, threading, time
        from daf.allocator import Arena
        faulthandler.dump_traceback_later(50, exit=True)
        arena = Arena(1 << 20, publish=False)
        kept = [arena.alloc(1 << 17) for _ in range(7)]
        arena.set_pressure(lambda missing: time.sleep(0.001) is None)
        def ask():
            while True:
                try: arena.alloc(1 << 18)
                except Exception: pass
        for _ in range(4): threading.Thread(target=ask, daemon=True).start()
        time.sleep(0.3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
