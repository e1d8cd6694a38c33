from __future__ import annotations

from typing import Any

from rich.console import Console

from daf.cli.render.screen import Top
from daf.server.client import Client
from tests.unit.server.fakes import RIGHT, FakePages, Running


class AppTransport:
    """The requests of a client, answered by the application under test."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def request(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        self._running.tick()
        headers = {**RIGHT, "Content-Type": "application/json"}
        answer = self._running.client.request(method, target, content=body, headers=headers)
        return answer.status_code, answer.content


def top_of(running: Running) -> Top:
    top = Top(Client(transport=AppTransport(running)))
    top.update()
    return top


def screen(top: Top, **size: Any) -> str:
    console = Console(width=size.get("width", 140), record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(top.render(size.get("lines", 40), size.get("width", 140)))
        return console.export_text()


def press(top: Top, *keys: str) -> None:
    for key in keys:
        top.press(key)


def test_the_screen_shows_each_run_and_the_slots_of_the_chosen_one(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, name="first")
    pages.add(pid=2, name="second").slots[0].name = "deep.layer"
    top = top_of(running)
    assert "saved by first" in screen(top)
    press(top, "down")
    top.update()
    text = screen(top)
    assert "saved by second" in text
    assert "deep.layer" in text
    assert "1.00 GiB" in text


def test_typing_a_budget_sends_it_to_the_chosen_run(running: Running, pages: FakePages) -> None:
    first, second = pages.add(pid=1), pages.add(pid=2)
    top = top_of(running)
    press(top, "down", "b", *"5x", "\x7f", *"12MiB", "\r")
    assert first.commands == []
    assert second.commands == [("budget", 512 << 20)]
    assert "applied" in top.message


def test_a_refused_budget_says_why(running: Running, pages: FakePages) -> None:
    pages.add()
    top = top_of(running)
    press(top, "b", *"1KiB", "\r")
    assert "tensors alone" in top.message
    press(top, "b", *"banana", "\r")
    assert "banana" in top.message or "budget" in top.message


def test_escape_takes_the_budget_back_and_q_is_then_a_key_again(running: Running, pages: FakePages) -> None:
    page = pages.add()
    top = top_of(running)
    press(top, "b", *"5q", "\x1b")
    assert not top.done
    assert page.commands == []
    press(top, "q")
    assert top.done


def test_pausing_and_resuming_are_one_key_each(running: Running, pages: FakePages) -> None:
    page = pages.add()
    top = top_of(running)
    press(top, "p", "r")
    assert page.commands == [("pause", 1), ("pause", 0)]
    page.values["is_paused"] = 1
    top.update()
    assert "live, paused" in screen(top)


def test_without_a_run_it_says_how_to_start_one(running: Running) -> None:
    top = top_of(running)
    press(top, "b", "up", "down")
    assert "daf run" in screen(top)
    assert top.typed is None


def test_it_fits_a_small_terminal(running: Running, pages: FakePages) -> None:
    page = pages.add()
    page.slots *= 50
    text = screen(top_of(running), width=80, lines=24)
    assert len(text.splitlines()) <= 26
    assert max(map(len, text.splitlines())) <= 80


def test_a_narrow_terminal_shows_what_matters_and_wraps_nothing(running: Running, pages: FakePages) -> None:
    pages.add(pid=1, name="a-run-with-a-long-name-that-goes-on").slots[
        0
    ].name = "transformer.h.11.attention.output.dense"
    text = screen(top_of(running), width=80, lines=24)
    header = next(line for line in text.splitlines() if "NAME" in line)
    assert {"PID", "STATE", "BUDGET", "RESIDENT", "STEP"} <= set(header.split())
    assert "FRAG" not in header
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "600 MiB of 1.00 GiB" in text
    assert len(text.splitlines()) <= 24


def test_a_question_mark_explains_the_words(running: Running, pages: FakePages) -> None:
    pages.add()
    top = top_of(running)
    press(top, "?")
    assert "share of free tensor memory" in screen(top)
    press(top, "x")
    assert "saved by" in screen(top)
