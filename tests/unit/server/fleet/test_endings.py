"""What a process says of its end is read with care."""

from __future__ import annotations

import json
import pathlib

import pytest

from daf.server.fleet.endings import Ending, read_ending, write_killed


def left(folder: pathlib.Path, content: str | bytes) -> pathlib.Path:
    page = folder / "100-7.stats"
    page.with_suffix(".end").write_bytes(content if isinstance(content, bytes) else content.encode())
    return page


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"how": "finished", "code": 0}, "finished"),
        ({"how": "failed", "code": 3}, "failed: exit code 3"),
        ({"how": "failed", "exception": "KeyError", "message": "'x'\nmore"}, "failed: KeyError: 'x'"),
        ({"how": "terminated", "signal": 15}, "terminated: SIGTERM"),
        ({"how": "killed", "signal": 9}, "killed: SIGKILL"),
        ({"how": "interrupted"}, "interrupted"),
    ],
)
def test_an_end_is_told_in_a_few_words(tmp_path: pathlib.Path, said: dict[str, object], text: str) -> None:
    assert str(read_ending(left(tmp_path, json.dumps(said)), is_closed=True)) == text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "banana",
        "[]",
        '{"how": "bananas"}',
        '{"how": {}}',
        b"\xff\xfe",
        "[" * 9000,
        '{"how": "failed"' + " " * 99999,
    ],
)
def test_what_makes_no_sense_is_not_believed(tmp_path: pathlib.Path, content: str | bytes) -> None:
    page = left(tmp_path, content)
    assert read_ending(page, is_closed=True) == Ending("finished")
    assert read_ending(page, is_closed=False) == Ending("killed")


def test_a_link_is_not_followed(tmp_path: pathlib.Path) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.write_text('{"how": "interrupted"}')
    page = tmp_path / "100-7.stats"
    page.with_suffix(".end").symlink_to(elsewhere)
    assert read_ending(page, is_closed=False).how == "killed"


def test_a_parent_adds_the_signal_but_does_not_overrule_the_process(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "100-7.stats"
    write_killed(page, 11)
    assert str(read_ending(page, is_closed=False)) == "killed: SIGSEGV"
    page = left(tmp_path, '{"how": "interrupted"}')
    write_killed(page, 2)
    assert read_ending(page, is_closed=False).how == "interrupted"
