"""The page in every size and theme, by keyboard and for screen readers, over a synthetic run."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Imagined, Tab, wait_for
from tests.browser.synthetic import SyntheticPage

Imagine = Callable[..., Imagined]
NewTab = Callable[..., Tab]
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll(".bar > *, .who, .figure, .panel")]
    .filter((node) => node.offsetParent && node.textContent)
    .map((node) => [node.className, node.getBoundingClientRect()]);
  const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
  return boxes.flatMap(([name, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => meet(a, b)).map(([other]) => `${name} over ${other}`));
}"""
CUT_OFF = """() => {
  const isCut = (node) => node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline";
  const isOutside = (node) => node.getBoundingClientRect().right > innerWidth + 1;
  return [...document.querySelectorAll("h1, h2, .figure, .figure b, button, label, .legend li, .hint")]
    .filter((node) => node.offsetParent && !node.closest(".scroll") && (isCut(node) || isOutside(node)))
    .map((node) => node.textContent);
}"""
SIZES = {"phone": (360, 740), "laptop": (1280, 900), "4K": (3840, 2160)}


def ready(tab: Tab, imagined: Imagined) -> Page:
    page = tab.open(imagined.link)
    expect(page.locator("h1")).to_have_text("Training")
    expect(page.locator("#slots tbody th").first).to_be_visible()
    expect(page.locator("#memory .uplot")).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SIZES)
def test_nothing_overlaps_or_is_cut_off(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab, screen: str, scheme: str
) -> None:
    page = ready(new_tab(*SIZES[screen], scheme), imagine(one_run))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab, scheme: str
) -> None:
    page = ready(new_tab(scheme=scheme), imagine(one_run))
    page.locator("#budget-text").fill("200MiB")
    expect(page.locator("#preview li").first).to_be_visible()
    found = Axe().run(page).response["violations"]
    serious = [
        (v["id"], [node["target"] for node in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_everything_can_be_reached_by_keyboard(imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(one_run))
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    wanted = {
        "process",
        "pause",
        "theme",
        "memory",
        "15 min",
        "budget-text",
        "budget-slider",
        "slots",
        "slots-search",
        "Bits",
        "events",
    }
    assert wanted <= reached


def test_the_chart_is_read_and_zoomed_by_keyboard(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    page.locator("#memory").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#memory-said")).to_contain_text("tensors")
    span = "import('/page/app.js').then(({page}) => page.memory.plot.scales.x.max - page.memory.plot.scales.x.min)"
    whole = page.evaluate(span)
    page.keyboard.press("+")
    assert page.evaluate(span) == pytest.approx(whole / 2, rel=0.05)
    page.wait_for_timeout(1500)
    assert page.evaluate(span) == pytest.approx(whole / 2, rel=0.05), "new figures must not undo the zoom"
    page.keyboard.press("Escape")
    assert page.evaluate(span) == pytest.approx(whole, rel=0.05)


def test_dragging_zooms_and_a_double_click_goes_back(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    box = page.locator("#memory .u-over").bounding_box()
    assert box
    span = "import('/page/app.js').then(({page}) => page.memory.plot.scales.x.max - page.memory.plot.scales.x.min)"
    whole, middle = page.evaluate(span), box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=4)
    page.mouse.up()
    assert page.evaluate(span) == pytest.approx(whole / 2, rel=0.1)
    page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
    assert page.evaluate(span) == pytest.approx(whole, rel=0.05)


def test_layers_are_sorted_and_searched(imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(one_run))
    page.get_by_role("button", name="Bits", exact=True).press("Enter")
    header = page.locator("#slots th", has_text="Bits")
    assert header.get_attribute("aria-sort") == "descending"
    column = (
        "[...document.querySelectorAll('#slots tbody tr:not(.space) td:nth-child(4)')].map((cell) => +cell.textContent)"
    )
    shown = page.evaluate(column)
    assert shown == sorted(shown, reverse=True)
    page.locator("#slots-search").fill("h.2 gelu")
    expect(page.locator("#slots-count")).to_contain_text("2 of 40 layers")
    assert page.locator("#slots tbody tr:not(.space)").count() == 2


def test_of_thousands_of_layers_only_those_in_view_are_drawn(
    imagine: Imagine, tmp_path: pathlib.Path, new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine([SyntheticPage(tmp_path / "4242-1.stats", num_slots=2000)], seconds=6 * 3600))
    expect(page.locator("#slots-count")).to_contain_text("2,000 layers")
    page.locator("#slots").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    last = page.locator("#slots tbody tr[aria-rowindex='2001']")
    expect(last).to_be_visible()
    assert page.locator("#slots tbody tr").count() < 60
    page.get_by_role("button", name="6 h").click()
    span = "import('/page/app.js').then(({page}) => page.history.times.at(-1) - page.history.times[0])"
    wait_for(lambda: page.evaluate(span) > 5.9 * 3600)
    assert page.evaluate("import('/page/app.js').then(({page}) => page.history.times.length)") <= 1200


def test_with_nothing_running_the_page_says_how_to_start(
    imagine: Imagine, tmp_path: pathlib.Path, new_tab: NewTab
) -> None:
    pages: list[SyntheticPage] = []
    page = new_tab().open(imagine(pages).address)
    expect(page.locator("h1")).to_have_text("Nothing runs")
    expect(page.locator("#empty")).to_contain_text("daf run --budget 2GiB train.py")
    pages.append(SyntheticPage(tmp_path / "77-1.stats"))
    expect(page.locator("h1")).to_have_text("Training", timeout=10_000)


def test_where_reading_needs_a_right_the_page_says_how_to_get_it(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    exposed = imagine(one_run, host="0.0.0.0")
    tab = new_tab()
    tab.is_strict = False  # the browser itself logs every answer that is an error
    page = tab.open(exposed.address)
    expect(page.locator("h1")).to_have_text("No access")
    expect(page.locator("#run-name")).to_contain_text("daf page")
    expect(page.locator("#panels")).to_be_hidden()
    ready(new_tab(), exposed)


def test_the_ranks_of_a_job_stand_side_by_side_and_share_a_budget(
    imagine: Imagine, tmp_path: pathlib.Path, new_tab: NewTab
) -> None:
    ranks = [SyntheticPage(tmp_path / f"{40 + i}-1.stats", job_id="job", rank=i, world_size=2) for i in range(2)]
    page = ready(new_tab(), imagine(ranks))
    expect(page.locator("#run-name")).to_contain_text("rank 0 of 2")
    page.get_by_role("button", name="rank 1").click()
    expect(page.locator("#run-name")).to_contain_text("rank 1 of 2")
    page.get_by_label("all ranks of this job").check()
    page.locator("#budget-text").fill("600MiB")
    page.locator("#budget-apply").click()
    expect(page.locator("#outcome")).to_contain_text("Applied")
    assert [rank.budget_bytes for rank in ranks] == [600 * 1024 * 1024] * 2


def test_a_run_that_ended_stays_until_a_newer_one_starts(
    imagine: Imagine, one_run: list[SyntheticPage], tmp_path: pathlib.Path, new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    one_run[0].lives = "crashed"
    expect(page.locator("h1")).to_have_text("Crashed")
    one_run.append(SyntheticPage(tmp_path / "77-1.stats", name="next-run", started_at=time.time() + 1))
    expect(page.locator("#run-name")).to_contain_text("next-run")


def test_the_theme_can_be_chosen_and_is_kept(imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(one_run))
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(ground) == dark
