"""The live page before a real training run."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Serving, Tab, Training, wait_for

NewTab = Callable[..., Tab]
LAST_BUDGET = "import('/page/app.js').then(({page}) => page.memory.plot.data.at(-2).at(-1))"


@pytest.fixture
def run(trainings: list[Training]) -> Training:
    return trainings[1]


def watch(tab: Tab, url: str, run: Training) -> Page:
    page = tab.open(url)
    page.locator("#process").select_option(run.id)
    expect(page.locator("h1")).to_have_text("Training")
    return page


def values(serving: Serving, run: Training) -> dict[str, Any]:
    found: dict[str, Any] = serving.get("stats", process=run.id)["processes"][0]["values"]
    return found


def shown(page: Page, text: str) -> float:
    found = re.search(r"[\d.]+", page.locator(text).inner_text().replace(",", ""))
    assert found
    return float(found[0])


def test_the_numbers_move_and_agree_with_the_api(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.address, run)
    expect(page.locator("#run-name")).to_contain_text("browser-test")
    before = page.locator("#memory-legend").inner_text()
    wait_for(lambda: page.locator("#memory-legend").inner_text() != before)
    run.process.send_signal(signal.SIGSTOP)  # what stands still can be compared exactly
    try:
        expect(page.locator("h1")).to_have_text("Stalled", timeout=15_000)
        told = values(serving, run)
        mib = 1024 * 1024
        assert shown(page, "#of-budget") == told["budget_bytes"] / mib
        unit = 1024 if "KiB" in page.locator("#resident").inner_text() else mib
        assert shown(page, "#resident") == pytest.approx(told["resident_bytes"] / unit, rel=0.006)
        legend = page.locator("#memory-legend li", has_text="bit 1").inner_text()
        assert float(legend.split()[2]) == pytest.approx(
            told["plane_1_bytes"] / (1024 if "KiB" in legend else mib), rel=0.006
        )
    finally:
        run.process.send_signal(signal.SIGCONT)
    expect(page.locator("h1")).to_have_text("Training", timeout=15_000)


def test_the_fidelity_of_every_layer_is_measured_and_shown(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.address, run)
    wait_for(lambda: all(0 < slot["fidelity"] <= 1 for slot in serving.get("slots", process=run.id)["slots"]), 60)
    cells = page.locator("#slots tbody tr:not(.space) td:last-child")
    expect(cells.first).to_have_text(re.compile(r"^\d+(\.\d)?%$"), timeout=15_000)
    wait_for(lambda: all(text.endswith("%") for text in cells.all_inner_texts()))


def test_the_slider_changes_the_budget_and_the_chart_shows_it(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.new_link(), run)
    assert "code" not in page.url
    before = values(serving, run)["budget_bytes"]
    page.locator("#budget-slider").focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#preview")).to_contain_text("Nothing is evicted")
    page.locator("#budget-apply").click()
    expect(page.locator("#outcome")).to_contain_text("Applied")
    after = values(serving, run)["budget_bytes"]
    assert after > before
    wait_for(lambda: page.evaluate(LAST_BUDGET) == after)
    marks = "import('/page/app.js').then(({page}) => page.history.changes('budget_bytes').map(({change}) => change))"
    assert page.evaluate(marks)[-1] == after - before
    expect(page.locator("#events")).to_contain_text("budget")


def test_a_budget_can_be_typed_by_keyboard_alone(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.new_link(), run)
    expect(page.locator("#budget-text")).to_be_enabled()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "budget-text":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("72MiB")
    expect(page.locator("#preview")).not_to_be_empty()
    page.keyboard.press("Enter")
    expect(page.locator("#outcome")).to_contain_text("Applied")
    assert values(serving, run)["budget_bytes"] == 72 * 1024 * 1024


def test_a_refused_budget_says_why(serving: Serving, run: Training, new_tab: NewTab) -> None:
    tab = new_tab()
    tab.is_strict = False  # the browser itself logs every answer that is an error
    page = watch(tab, serving.new_link(), run)
    page.locator("#budget-text").fill("a lot")
    expect(page.locator("#preview .refused")).to_contain_text("a lot")
    expect(page.locator("#budget-apply")).to_be_disabled()
    page.locator("#budget-text").fill("1KiB")
    expect(page.locator("#preview")).to_contain_text("free")
    page.locator("#budget-apply").click()
    expect(page.locator("#outcome")).to_contain_text("Refused")
    assert len(page.locator("#outcome").inner_text()) > len("Refused: ")
    assert values(serving, run)["budget_bytes"] > 1024


def test_without_the_link_one_may_only_look(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.address, run)
    expect(page.locator("#outcome")).to_contain_text("Looking only")
    expect(page.locator("#budget-text")).to_be_disabled()


def test_pausing_the_stream_holds_the_numbers(serving: Serving, run: Training, new_tab: NewTab) -> None:
    page = watch(new_tab(), serving.address, run)
    expect(page.locator("h1")).to_have_text("Training")
    page.get_by_role("button", name="Freeze view", exact=True).click()
    before = page.locator("#memory-legend").inner_text()
    page.wait_for_timeout(2500)
    page.evaluate("import('/page/app.js').then(({ page }) => page.refresh())")  # as when other runs come and go
    assert page.locator("#memory-legend").inner_text() == before
    page.get_by_role("button", name="Unfreeze view", exact=True).click()
    wait_for(lambda: page.locator("#memory-legend").inner_text() != before)


def test_a_broken_stream_reconnects_by_itself(serving: Serving, run: Training, new_tab: NewTab) -> None:
    tab = new_tab()
    tab.is_strict = False  # the browser logs each refused connection
    page = watch(tab, serving.address, run)
    expect(page.locator("h1")).to_have_text("Training")
    serving.kill()
    expect(page.locator("#connection")).to_contain_text("Connection lost")
    expect(page.locator("h1")).to_have_text("Offline")
    expect(page.locator("#run-name")).to_contain_text("training when last seen")
    serving.start()
    expect(page.locator("#connection")).to_have_text("", timeout=15_000)
    before = page.locator("#memory-legend").inner_text()
    wait_for(lambda: page.locator("#memory-legend").inner_text() != before)
    expect(page.locator("h1")).to_have_text("Training")


def test_a_run_that_ends_stays_marked_as_ended(serving: Serving, trainings: list[Training], new_tab: NewTab) -> None:
    short = trainings[0]
    page = watch(new_tab(), serving.address, short)
    short.process.send_signal(signal.SIGUSR1)
    expect(page.locator("h1")).to_have_text("Finished", timeout=15_000)
    expect(page.locator("#memory .uplot")).to_be_visible()
    expect(page.locator("#run-name")).to_contain_text("ran")


def test_a_killed_run_turns_to_crashed_within_five_seconds(
    serving: Serving, trainings: list[Training], new_tab: NewTab
) -> None:
    doomed = trainings[1]
    page = watch(new_tab(), serving.address, doomed)
    doomed.process.kill()
    expect(page.locator("h1")).to_have_text("Crashed", timeout=5_000)
    expect(page.locator("#outcome")).to_contain_text("has ended")
    expect(page.locator("#resident")).not_to_have_text("–")
