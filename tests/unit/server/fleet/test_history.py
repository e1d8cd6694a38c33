from __future__ import annotations

import errno
import os
import pathlib

import pytest

from daf.server.fleet.history import LEVELS, History
from daf.server.fleet.pages import clean
from daf.server.fleet.widths import Widths
from daf.server.settings import Settings
from tests.unit.server.fakes import FakePages, Running


def test_what_was_added_comes_back_in_order() -> None:
    history = History(["a", "b"])
    for second in range(100):
        history.add(1000.0 + second, {"a": second, "b": -second})
    found = history.series(1099.0, 50, 1000)
    assert found.times == [1049.0 + i for i in range(51)]
    assert found.columns["b"] == [-49.0 - i for i in range(51)]


def test_a_long_run_is_told_by_a_coarser_ring_in_constant_memory() -> None:
    history = History(["a"])
    for second in range(0, 10 * 3600, 1):
        history.add(float(second), {"a": second})
    now = 10 * 3600.0
    assert history.series(now, 600, 5000).step_seconds == 1.0
    assert history.series(now, 6 * 3600 - 60, 5000).step_seconds == 10.0
    whole = history.series(now, 24 * 3600, 5000)
    assert whole.step_seconds == 60.0
    assert whole.times[0] < 120
    assert whole.times[-1] == now - 1
    assert [len(ring) for ring in history.rings] == [900, 2160, 600]


def test_points_are_thinned_evenly_and_the_newest_stays() -> None:
    history = History(["a"])
    for second in range(900):
        history.add(float(second), {"a": second})
    found = history.series(899.0, 900, 100)
    assert len(found.times) <= 100
    assert found.times[-1] == 899.0
    assert len({b - a for a, b in zip(found.times, found.times[1:], strict=False)}) == 1


def test_a_history_survives_its_sidecar(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.history"
    first = History(["a"], path)
    first.add(1.0, {"a": 5})
    first.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = History(["a"], path)
    again.add(2.0, {"a": 6})
    assert again.series(2.0, 10, 10).columns["a"] == [5.0, 6.0]
    again.close(remove=True)
    assert not path.exists()


def test_a_history_of_other_fields_or_garbage_is_begun_anew(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.history"
    path.write_bytes(b"garbage")
    history = History(["a"], path)
    assert history.series(1.0, 10, 10).times == []
    history.add(1.0, {"a": 5})
    history.close()
    other = History(["a", "b"], path)
    assert other.series(1.0, 10, 10).times == []
    other.close()


def test_missing_values_are_zero_and_an_empty_history_is_empty() -> None:
    history = History(["a"])
    assert history.series(5.0, 10, 10).columns == {"a": []}
    history.add(5.0, {})
    assert history.series(5.0, 10, 10).columns == {"a": [0.0]}
    assert len(LEVELS) == 3


def test_widths_cover_the_whole_run_in_a_fixed_number_of_columns() -> None:
    widths = Widths(num_columns=8)
    for second in range(100):
        widths.add(float(second), {1: second / 20, 2: 3.0} if second >= 50 else {1: second / 20})
    shown = widths.show()
    assert shown["times"] == [0.0, 16.0, 32.0, 48.0, 64.0, 80.0, 96.0]
    assert shown["step_seconds"] == 16.0
    assert shown["slots"] == [1, 2]
    assert shown["runs"][1] == [4, None, 3, 3.0], "the second slot was not there at first"
    assert sum(shown["runs"][0][::2]) == 7


def test_widths_of_many_slots_are_thinned() -> None:
    widths = Widths(num_columns=480)
    for second in range(400):
        widths.add(float(second), dict.fromkeys(range(100), second % 2))
    shown = widths.show(max_cells=10_000)
    assert len(shown["times"]) == 100
    assert shown["step_seconds"] == 4.0
    assert shown["runs"] == [[100, 0.0]] * 100


def test_widths_are_kept_to_a_sixteenth_of_a_bit() -> None:
    widths = Widths()
    widths.add(0.0, {1: 2.5, 2: 99.0, 3: -1.0})
    assert widths.show()["runs"] == [[1, 2.5], [1, 15.875], [1, 0.0]]


def test_what_an_earlier_sidecar_kept_of_an_ended_run_is_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.history"
    first = History(["a", "only_while_live"], path)
    first.add(1.0, {"a": 5, "only_while_live": 7})
    first.close()
    found = History.left_at(path)
    assert found is not None
    assert found.series(1.0, 10, 10).columns == {"a": [5.0], "only_while_live": [7.0]}
    found.close()
    path.write_bytes(path.read_bytes()[:-8])
    assert History.left_at(path) is None
    assert path.exists()
    path.write_bytes(b"garbage")
    assert History.left_at(path) is None
    assert History.left_at(tmp_path / "none.history") is None


def test_a_full_disk_costs_the_file_and_not_the_history(
    running: Running, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    pages.add()
    assert len(running.get("/v1/history").json()["times"]) == 1
    assert list(running.sidecar.settings.runtime_dir.glob("*.history")) == []


def test_widths_are_written_down_and_go_on_from_there(tmp_path: pathlib.Path) -> None:
    path, widths = tmp_path / "1-1.widths", Widths(num_columns=8)
    for second in range(20):
        widths.add(float(second), {1: 4.5, 7: 2.0} if second > 5 else {1: 4.5})
    widths.write(path)
    found = Widths.left_at(path)
    assert found is not None
    assert found.show() == widths.show()
    found.add(24.0, {1: 3.0})
    assert found.show()["times"][-1] == 24.0
    assert [other.name for other in tmp_path.iterdir()] == ["1-1.widths"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b'["daf-widths-1", 1.0, [1.0], [1, 2]]\nx',
        b'["daf-widths-1", "a", null, 3]\n',
        b"[]\n",
        b"\xff",
    ],
)
def test_widths_that_nobody_of_ours_wrote_are_not_taken(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "1-1.widths"
    path.write_bytes(content)
    assert Widths.left_at(path) is None


def test_the_next_sidecar_knows_the_widths_of_a_run_that_ended(settings: Settings, pages: FakePages) -> None:
    page = pages.add()
    first = Running(settings, pages)
    first.tick()
    page.now_state = "crashed"
    before = first.get("/v1/widths").json()
    assert before["slots"] == [1, 2]
    assert Running(settings, pages).get("/v1/widths").json() == before


def test_what_a_killed_sidecar_left_half_written_is_cleaned_away(settings: Settings) -> None:
    for name in ("9-9.widths", ".9-9.widths", "9-9.history", "9-9.cmd"):
        (settings.runtime_dir / name).write_bytes(b"x")
    assert clean(settings.runtime_dir) == 0
    assert list(settings.runtime_dir.iterdir()) == []


@pytest.mark.parametrize("num_bytes", [0, 100, 20_000])
def test_a_file_that_is_cut_off_harms_nobody_and_is_written_again(tmp_path: pathlib.Path, num_bytes: int) -> None:
    path = tmp_path / "x.history"
    history = History(["a"], path)
    history.add(1.0, {"a": 5.0})
    os.truncate(path, num_bytes)
    assert history.series(2.0, 60, 10).columns["a"] == [5.0]
    history.add(2.0, {"a": 6.0})
    history.close()
    again = History.left_at(path)
    assert again is not None
    assert again.series(2.0, 60, 10).columns["a"] == [5.0, 6.0]
    again.close()


def test_a_file_that_is_gone_is_no_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.history"
    history = History(["a"], path)
    path.unlink()
    history.add(1.0, {"a": 5.0})
    assert history.series(2.0, 60, 10).columns["a"] == [5.0]
    history.close()
