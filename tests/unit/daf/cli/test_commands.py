"""What the terminal commands say to wrong words, and what outlives a sidecar."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from click.testing import CliRunner, Result

from daf.cli import command, main
from daf.server.client import Client, Events
from tests.unit.daf.cli.test_top import AppTransport
from tests.unit.server.fakes import FakePages, Running


def daf(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture(autouse=True)
def _nothing_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAF_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["budget", "banana"], "'banana' is not a size such as 2GiB"),
        (["budget", "2GiB"], "`daf ps` lists what there is"),
        (["budget", "2GiB", "--pid", "4711"], "No live process matches process '4711'"),
        (["budget", "2GiB", "--pid", "-1"], "'--pid'"),
        (["budget", "2GiB", "--wait", "99"], "'--wait'"),
        (["budget", "--job", "nope"], "No process matches job 'nope'"),
        (["events", "-n", "-1"], "'--last'"),
        (["top", "--interval", "0"], "'--interval'"),
        (["export", "banana"], "'banana' is not one of"),
        (["export", "json"], "No process matches any process"),
        (["report", "--pid", "4711"], "No process matches process '4711'"),
        (["serve", "--port", "99999"], "'--port'"),
        (["topp"], "did you mean daf top?"),
        (["train.py"], "did you mean daf run train.py?"),
        (["nonsense"], "the commands are run, serve"),
        (["run", "nosuch"], "there is no script or command 'nosuch'"),
        (["run", "--budget", "banana", "x.py"], "banana"),
        (["completion", "pwsh"], "'bash', 'zsh', 'fish'"),
    ],
)
def test_wrong_words_are_answered_in_one_line(words: list[str], said: str) -> None:
    result = daf(*words)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_where_nothing_runs_the_commands_say_so() -> None:
    assert "daf run train.py" in daf("ps").output
    assert json.loads(daf("ps", "--json").output) == {"processes": [], "jobs": []}
    assert daf("events").output == ""
    assert daf("clean").output == "forgot 0 ended runs\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_reads(shell: str) -> None:
    result = daf("completion", shell)
    assert result.exit_code == 0
    assert f"_DAF_COMPLETE={shell}_complete" in result.output


def test_an_error_names_the_runs_there_are(running: Running, pages: FakePages, monkeypatch: pytest.MonkeyPatch) -> None:
    pages.add(pid=11, name="first")
    pages.add(pid=12, name="second")
    running.tick()
    client = Client(transport=AppTransport(running))
    monkeypatch.setattr(command, "find_client", lambda: client)
    monkeypatch.setattr("daf.cli.runs.budget.find_client", lambda: client)
    said = daf("budget", "2GiB", "--pid", "4711999").output
    assert "--pid 11 (first" in said
    assert "--pid 12 (second" in said


class Restarting:
    """A sidecar that answers with the events of one life, and then of another."""

    def __init__(self, *lives: tuple[str, list[float]]) -> None:
        self.lives = list(lives)

    def request(self, _method: str, target: str, _body: bytes | None) -> tuple[int, bytes]:
        epoch, times = self.lives[0]
        since = int(target.partition("since=")[2].partition("&")[0])
        events: list[dict[str, Any]] = [{"id": i, "time": time} for i, time in enumerate(times, 1) if i >= since]
        answer = {"events": events, "next": max(since, len(times) + 1), "epoch": epoch, "lost": 0}
        return 200, json.dumps(answer).encode()


def test_events_are_followed_over_a_restart_of_the_sidecar() -> None:
    sidecar = Restarting(("one", [1.0, 2.0, 3.0]), ("two", [1.0, 3.0, 4.0]))
    events = Events(Client(transport=sidecar))
    assert [event["time"] for event in events.new()] == [1.0, 2.0, 3.0]
    assert events.new() == []
    del sidecar.lives[0]
    assert [event["time"] for event in events.new()] == [4.0], "what was told before is not told again"
    assert events.new() == []
