"""Recording, reading and replaying what is asked of an allocator."""

from __future__ import annotations

import os
import pathlib
import pickle

import pytest

from benchmarks.native.replay import Replay
from daf.allocator import Arena
from daf.allocator.trace.recording import Record, numbered, read_trace, start_trace, stop_trace, write_trace
from daf.errors import DafError

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "trace.csv"


def test_stashes_and_steps_are_recorded(path: pathlib.Path) -> None:
    with Arena(MIB, publish=False) as arena:
        start_trace(path)
        stash = arena.reserve(arena.stash_spec([100, 5000], [0.0, 1.0]))
        arena.step(0.1)
        stash.release()
        stop_trace()
    assert [record.action for record in read_trace(path)] == ["stash", "step", "release"]
    assert read_trace(path)[0].num_bytes == 5100
    assert read_trace(path)[0].num_streams == 2


def test_a_second_recording_and_a_folder_that_is_not_there_are_refused(path: pathlib.Path) -> None:
    start_trace(path)
    with pytest.raises(DafError, match="recorded already"):
        start_trace(path)
    stop_trace()
    with pytest.raises(DafError, match="No such file or directory"):
        start_trace(path.parent / "nowhere" / "trace.csv")
    stop_trace()


def test_a_forked_child_writes_nothing_to_its_parents_trace(path: pathlib.Path) -> None:
    with Arena(MIB, publish=False) as arena:
        start_trace(path)
        arena.step(0.1)
        pid = os.fork()
        if pid == 0:
            arena.step(0.1)
            stop_trace()
            os._exit(0)
        os.waitpid(pid, 0)
        stop_trace()
    assert [record.action for record in read_trace(path)] == ["step"]


HEAD = "Thread,Time,Action,Pointer,Size,Stream\n"


def test_a_log_of_rmm_is_read(path: pathlib.Path) -> None:
    path.write_text(
        f"{HEAD}"
        "1,10:00:00:000001,allocate,0x10,4096,0\n"
        "1,10:00:00:000002,allocate failure,(nil),99,0\n"
        "1,10:00:00:000003,free,0x99,1,0\n"
        "1,10:00:00:000004,free,0x10,4096,0\n"
    )
    assert read_trace(path) == [Record("allocate", 0x10, 4096), Record("free", 0x10, 4096)]


def test_a_pytorch_snapshot_is_read(path: pathlib.Path) -> None:
    events = [
        {"action": "segment_alloc", "addr": 0, "size": 2 * MIB, "stream": 0},
        {"action": "alloc", "addr": 64, "size": 512, "stream": 0},
        {"action": "free_requested", "addr": 64, "size": 512, "stream": 0},
        {"action": "free_completed", "addr": 64, "size": 512, "stream": 0},
    ]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}, protocol=4))
    assert read_trace(path) == [Record("allocate", 64, 512), Record("free", 64, 512)]


def test_devices_that_use_the_same_addresses_do_not_get_in_each_others_way(path: pathlib.Path) -> None:
    devices = [[{"action": "alloc", "addr": addr, "size": size} for addr in (64, 128)] for size in (10, 20)]
    path.write_bytes(pickle.dumps({"device_traces": devices}, protocol=4))
    outcome = Replay(read_trace(path)).run()
    assert (outcome.num_failed, outcome.peak_allocated_bytes) == (0, 40)


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo never",)


def test_a_snapshot_cannot_run_anything(path: pathlib.Path) -> None:
    path.write_bytes(pickle.dumps({"device_traces": _Trap()}, protocol=4))
    with pytest.raises(ValueError, match="no business naming"):
        read_trace(path)


@pytest.mark.parametrize(
    "content",
    [b"a,b\n1,2\n", b"", pickle.dumps({"x": 1}), pickle.dumps({"device_traces": [[]]}), b"\x80\x04cut", HEAD.encode(),
     f"{HEAD}1,0,allocate,0x10,many,0\n".encode(), f"{HEAD}1,0,allocate\n".encode()],
)  # fmt: skip
def test_what_is_no_trace_is_refused(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="trace"):
        read_trace(path)


def test_a_written_trace_is_read_back_with_small_numbers(path: pathlib.Path) -> None:
    records = [
        Record("allocate", 7000, 10),
        Record("stash", 8000, 20, 3),
        Record("free", 7000, 0),
        Record("allocate", 9000, 30),
        Record("step", 0, 0),
        Record("release", 8000, 0),
    ]
    write_trace(path, records)
    again = read_trace(path)
    assert [record.action for record in again] == [record.action for record in records]
    assert [number for _, number in numbered(records)] == [0, 1, 0, 0, 0, 1]
    assert again[1].num_streams == 3


def _some_life(num_blocks: int) -> list[Record]:
    """Blocks and stashes that come and go, most of them large enough to matter."""
    records = []
    for i in range(num_blocks):
        records.append(Record("stash" if i % 3 == 0 else "allocate", i, (i * 7919) % (200 * KIB) + 1, 4))
        if i >= 20:
            records.append(Record("release" if (i - 20) % 3 == 0 else "free", i - 20, 0))
        if i % 50 == 0:
            records.append(Record("step", 0, 0))
    return records


def test_a_replay_gives_everything_back_to_the_arena() -> None:
    replay = Replay(_some_life(500))
    with Arena(64 * MIB, publish=False) as arena:
        outcome = replay.run(arena)
        assert outcome.num_failed == 0
        assert outcome.live_bytes > 0
        assert arena.stats()["tensor_bytes"] == 0
        assert arena.stats()["stashes"] == 0
        assert arena.is_valid()
    assert outcome.peak_allocated_bytes == Replay(_some_life(500)).run().peak_allocated_bytes


def test_a_replay_under_a_tight_budget_evicts_and_stays_within_it() -> None:
    replay = Replay(_some_life(500))
    with Arena(64 * MIB, publish=False) as arena:
        need = replay.run(arena).peak_allocated_bytes
    with Arena(need * 9 // 10, publish=False) as arena:
        outcome = replay.run(arena)
        stats = arena.stats()
    assert outcome.num_failed == 0
    assert stats["evictions_total"] > 0
    assert stats["peak_resident_bytes"] <= need * 9 // 10
