"""The stats page and the command page: what a process publishes, another reads."""

from __future__ import annotations

import os
import pathlib
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from daf.allocator import Arena
from daf.allocator.stats import reader
from daf.allocator.stats.runtime_dir import make_identity, runtime_dir
from daf.errors import DafOutOfMemoryError

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(MIB, name="trial") as arena:
        yield arena


def page_of(arena: Arena) -> reader.StatsPage:
    arena.flush()
    return reader.StatsPage(arena.page_path)


def wait_for(condition: Callable[[], object]) -> object:
    deadline = time.monotonic() + 10
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@pytest.mark.usefixtures("arena")
def test_a_page_is_found_and_says_whose_it_is() -> None:
    (page,) = reader.discover()
    assert (page.identity.pid, page.identity.name) == (os.getpid(), "trial")
    assert page.state() == "live"


def test_files_are_for_their_owner_alone(arena: Arena) -> None:
    page = page_of(arena)
    assert stat.S_IMODE(runtime_dir().stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (page.path, page.command_path)} == {0o600}


def test_a_snapshot_has_the_arena_s_own_numbers(arena: Arena) -> None:
    stash = arena.reserve(arena.stash_spec([100, PAGE], [0, 1]), slot_id=7, raw_bytes=999)
    arena.slot(7, name="layer.0", op="MulBackward0", codec="minmax", bits=1, raw_bytes=999)
    snapshot = page_of(arena).snapshot()
    moving = {"process_resident_bytes", "faults_total"}
    assert {k: v for k, v in snapshot.values.items() if k not in moving} == {
        k: v for k, v in arena.stats().items() if k not in moving
    }
    (row,) = snapshot.slots
    assert (row.slot_id, row.name, row.op, row.codec, row.live_bytes) == (
        7,
        "layer.0",
        "MulBackward0",
        "minmax",
        2 * PAGE,
    )
    stash.release()


def test_fields_describe_themselves(arena: Arena) -> None:
    fields = {field.name: field for field in page_of(arena).fields}
    assert fields["resident_bytes"].kind == "gauge"
    assert fields["evictions_total"].kind == "counter"
    assert fields["step_seconds"].unit == "seconds"
    assert all(field.help for field in fields.values())


def test_events_come_in_order_and_lost_ones_are_counted(arena: Arena) -> None:
    page = page_of(arena)
    for i in range(5000):
        arena.event("note", value=i, text=f"number {i}")
    events, num_lost = page.events(0)
    assert [event.id for event in events] == list(range(905, 5001))
    assert num_lost == 904
    assert (events[-1].kind, events[-1].text) == ("note", "number 4999")
    assert page.events(5000) == ([], 0)


def test_evictions_of_one_request_are_one_event(arena: Arena) -> None:
    stashes = [arena.reserve(arena.stash_spec([PAGE] * 4, [0, 3, 2, 1])) for _ in range(64)]
    for stash in stashes:
        stash.unpin()
    arena.free(arena.alloc(10 * PAGE))
    (event,) = [event for event in page_of(arena).events()[0] if event.kind == "evict"]
    assert (event.num_bytes, event.value, event.text) == (10 * PAGE, 10, "tensor")


def test_the_map_shows_what_the_zones_hold(arena: Arena) -> None:
    block = arena.alloc(64 * PAGE)
    stash = arena.reserve(arena.stash_spec([64 * PAGE], [0]))
    arena.free(arena.alloc(64 * PAGE))
    cells = page_of(arena).map()
    in_use = sum(cell.live * cell.num_bytes for cell in cells if cell.zone == "tensor")
    cached = sum(cell.cached * cell.num_bytes for cell in cells if cell.zone == "tensor")
    planes = sum(cell.live * cell.num_bytes for cell in cells if cell.zone == "plane")
    assert (in_use, cached, planes) == (64 * PAGE, 64 * PAGE, 64 * PAGE)
    arena.free(block)
    stash.release()


def test_a_budget_command_is_applied_by_the_heartbeat(arena: Arena) -> None:
    page = page_of(arena)
    generation = page.request_budget(2 * MIB)
    outcome = wait_for(lambda: page.outcome(generation))
    assert isinstance(outcome, reader.Outcome)
    assert outcome.state == "applied"
    assert arena.stats()["budget_bytes"] == 2 * MIB


def test_a_pending_budget_command_is_applied_once_memory_is_freed(arena: Arena) -> None:
    page, block = page_of(arena), arena.alloc(MIB // 2)
    generation = page.request_budget(MIB // 4)
    arena.flush()
    assert page.outcome(generation) == reader.Outcome(
        "pending", MIB // 2, f"{MIB // 4} bytes in use cannot be dropped; they go as they are freed"
    )
    arena.free(block)
    arena.flush()
    outcome = page.outcome(generation)
    assert outcome is not None
    assert outcome.state == "applied"


def test_an_impossible_budget_command_is_refused_with_the_least_that_would_do(arena: Arena) -> None:
    arena.free(arena.alloc(MIB // 2))
    arena.step(0.5)
    page = page_of(arena)
    generation = page.request_budget(MIB // 4)
    arena.flush()
    outcome = page.outcome(generation)
    assert outcome is not None
    assert (outcome.state, outcome.least_bytes) == ("refused", MIB // 2)


def test_a_budget_lowered_from_outside_gives_way_to_what_the_run_cannot_do_without(arena: Arena) -> None:
    page = reader.StatsPage(arena.page_path)
    generation = page.request_budget(MIB // 4)
    assert wait_for(lambda: page.outcome(generation)).state == "applied"  # type: ignore[attr-defined]
    block = arena.alloc(MIB // 2)
    stats = arena.stats()
    assert MIB // 2 <= stats["budget_bytes"] < MIB
    assert stats["resident_bytes"] <= stats["budget_bytes"]
    assert stats["budget_raises_total"] == 1
    with pytest.raises(DafOutOfMemoryError):  # what was never granted is still not given
        arena.alloc(MIB)
    arena.free(block)
    assert arena.set_budget(MIB // 4).state == "applied"  # the owner's own word is kept
    with pytest.raises(DafOutOfMemoryError):
        arena.alloc(MIB // 2)
    assert arena.is_valid()


def test_a_pending_budget_that_gave_way_is_refused(arena: Arena) -> None:
    block = arena.alloc(MIB // 2)
    page = reader.StatsPage(arena.page_path)
    generation = page.request_budget(MIB // 4)
    assert wait_for(lambda: page.outcome(generation)).state == "pending"  # type: ignore[attr-defined]
    other = arena.alloc(MIB // 4)
    assert wait_for(lambda: page.outcome(generation).state == "refused")  # type: ignore[union-attr]
    arena.free(block)
    arena.free(other)


def test_pause_and_resume_reach_the_arena(arena: Arena) -> None:
    page = page_of(arena)
    page.request_pause(True)
    assert wait_for(lambda: arena.paused)
    page.request_pause(False)
    assert wait_for(lambda: not arena.paused)


def test_a_closed_arena_s_page_is_finished_and_still_tells_its_story() -> None:
    with Arena(MIB) as arena:
        arena.step(0.25)
    (page,) = reader.discover()
    assert page.state() == "finished"
    assert page.values()["steps_total"] == 1
    with pytest.raises(ProcessLookupError):
        page.request_budget(MIB)


@pytest.mark.usefixtures("arena")
def test_two_arenas_of_one_process_have_two_pages() -> None:
    with Arena(MIB, name="second"):
        assert [page.identity.name for page in reader.discover()] == ["trial", "second"]


def test_a_killed_process_is_recognised_and_cleaned() -> None:
    script = """
import time
from daf.allocator import Arena
arena = Arena(1 << 20)
arena.step(1.0)
print("up", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (page,) = reader.discover()
        assert page.state() == "live"
        process.send_signal(signal.SIGKILL)
    assert page.state() == "crashed"
    assert page.values()["steps_total"] == 1
    assert reader.clean_stale() == 0  # young: it is kept to tell its story
    assert reader.clean_stale(kept_pages=0) == 1
    assert reader.discover() == []


def test_a_forked_child_never_touches_its_parent_s_page(arena: Arena) -> None:
    page = page_of(arena)
    before = page.last_event_id()
    child = os.fork()
    if child == 0:
        arena.event("note")
        arena.step(1.0)
        arena.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert page.state() == "live"
    assert page.last_event_id() == before
    assert wait_for(lambda: page.heartbeat_age_seconds < 0.5)


def test_what_is_no_page_is_left_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / "1-1.stats").write_bytes(b"")
    (tmp_path / "2-2.stats").write_bytes(b"x" * 8192)
    assert reader.discover(tmp_path) == []
    with pytest.raises(reader.PageError, match="not a stats page"):
        reader.StatsPage(tmp_path / "2-2.stats")


def test_an_unwritable_folder_costs_the_page_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", "/proc/daf")
    with pytest.warns(RuntimeWarning, match="without a stats page"):
        arena = Arena(MIB)
    with arena:
        assert arena.page_path == ""
        arena.free(arena.alloc(100))


def test_ranks_come_from_torchrun() -> None:
    environ = {
        "TORCHELASTIC_RUN_ID": "job-1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "DAF_NAME": "night run",
    }
    text = make_identity(environ=environ)
    for part in ('"job_id": "job-1"', '"rank": 3', '"local_rank": 1', '"world_size": 4', '"name": "night run"'):
        assert part in text


def test_readers_never_see_a_torn_group() -> None:
    script = """
import os, random, time
from daf.allocator import Arena
arena, rng, blocks = Arena(64 << 20), random.Random(1), []
print(arena.page_path, flush=True)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    blocks.append(arena.alloc(rng.randrange(1, 1 << 18)))
    if len(blocks) > 100: arena.free(blocks.pop(rng.randrange(100)))
    arena.flush()
os._exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page = reader.StatsPage(process.stdout.readline().strip())
        seen = set()
        while len(seen) < 200 and process.poll() is None:
            values = page.values()
            assert values["resident_bytes"] == values["tensor_bytes"] + values["plane_bytes"] + values["cached_bytes"]
            seen.add(values["allocs_total"])
        process.kill()
    assert len(seen) > 20


def test_files_that_another_process_cuts_off_are_written_again_and_harm_nobody(arena: Arena) -> None:
    page = page_of(arena)
    arena.slot(3, name="layer", op="mm", codec="minmax", bits=2.0)
    arena.event("note", text="before")
    for suffix in (".stats", ".cmd"):
        for num_bytes in (0, 100, 4096):
            os.truncate(pathlib.Path(arena.page_path).with_suffix(suffix), num_bytes)
            arena.event("note", text="after")
            arena.step(0.1)
            arena.flush()
            assert page.state() == "live"

    generation = page.request_budget(2 * MIB)
    arena.flush()

    outcome = page.outcome(generation)
    assert outcome is not None
    assert outcome.state == "applied"
    assert [row.name for row in page.slots()] == ["layer"]
    assert [event.text for event in page.events()[0] if event.kind == "note"] == ["before"] + ["after"] * 6
    assert page.values()["steps_total"] == 6


def test_a_reader_of_a_file_that_is_cut_off_gets_an_error_of_its_own(tmp_path: pathlib.Path, arena: Arena) -> None:
    copy = tmp_path / "1-1.stats"
    copy.write_bytes(page_of(arena).path.read_bytes())
    page = reader.StatsPage(copy)
    os.truncate(copy, 5000)
    for read in (page.values, page.slots, page.map):
        with pytest.raises(reader.PageError, match="cut off"):
            read()
