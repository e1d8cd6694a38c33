"""The first screen: state, memory by kind, quality, cost, and what to do next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Imagined, Tab
from tests.browser.synthetic import MIB, SyntheticPage

Imagine = Callable[..., Imagined]
NewTab = Callable[..., Tab]
SIZES = {"phone": (360, 740), "laptop": (1440, 900), "4K": (3840, 2160)}
SHOWN = ".kinds, .kinds .mark, .verdict, .figure, .figure b, .by-kind li, .glossary dd"
CUT_OFF = """(shown) => {
  const isOutside = ({ left, right }) => right > innerWidth + 1 || left < -1;
  return [...document.querySelectorAll(shown)]
    .filter((node) => node.offsetParent && isOutside(node.getBoundingClientRect()))
    .map((node) => node.textContent);
}"""


def ready(tab: Tab, imagined: Imagined) -> Page:
    page = tab.open(imagined.link)
    expect(page.locator("h1")).to_have_text("Training")
    expect(page.locator("#verdict")).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SIZES)
def test_all_of_it_is_seen_in_every_size_and_theme(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab, screen: str, scheme: str
) -> None:
    page = ready(new_tab(*SIZES[screen], scheme), imagine(one_run))
    expect(page.locator("#error")).to_contain_text("12%")
    expect(page.locator("#cost")).to_contain_text("of it for DAF")
    expect(page.locator("#kinds .mark.plain")).to_contain_text("plain would need 792 MiB")
    assert page.evaluate(CUT_OFF, SHOWN) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_the_bar_is_told_to_those_who_do_not_see_it(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    label = page.locator("#kinds").get_attribute("aria-label") or ""
    assert "parameters 60.0 MiB, gradients 60.0 MiB, optimizer state 60.0 MiB" in label
    assert "budget 512 MiB" in label


def test_the_verdicts_button_raises_the_budget(imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(one_run))
    expect(page.locator("#verdict-text")).to_contain_text("gradient error 12%")
    page.get_by_role("button", name="Raise to").click()
    expect(page.locator("#outcome")).to_contain_text("Applied")
    assert one_run[0].budget_bytes > 700 * MIB


def test_freezing_the_view_and_stopping_compression_are_two_things(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    page.get_by_role("button", name="Freeze view").click()
    expect(page.locator("#pause")).to_have_text("Unfreeze view")
    assert not one_run[0].is_paused
    page.get_by_role("button", name="Unfreeze view").click()
    page.get_by_role("button", name="Stop compressing").click()
    expect(page.locator("#compression")).to_have_text("Resume compressing")
    expect(page.locator("#run-name")).to_contain_text("not compressing")
    assert one_run[0].is_paused
    page.locator("#compression").click()
    expect(page.locator("#compression")).to_have_text("Stop compressing")


def test_a_link_names_its_run_and_ended_runs_stand_apart(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    past = SyntheticPage(one_run[0].path.with_name("77-1.stats"), name="yesterday", lives="finished")
    imagined = imagine([*one_run, past])
    page = new_tab().open(f"{imagined.address}/?run=77-1")
    expect(page.locator("#process")).to_have_value("77-1")
    expect(page.locator("#process optgroup[label=Ended] option")).to_contain_text("yesterday · pid 77")
    page.locator("#process").select_option("4242-1")
    expect(page.locator("h1")).to_have_text("Training")
    assert page.url.endswith("?run=4242-1")
