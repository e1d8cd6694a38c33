"""Where memory goes: an icicle by module and by line, entered by mouse and by keys, seen in every size and theme."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Imagined, Tab
from tests.browser.synthetic import MIB, SyntheticPage

Imagine = Callable[..., Imagined]
NewTab = Callable[..., Tab]
SCREENS = {"phone": (360, 740, "dark"), "laptop": (1440, 900, "light"), "4K": (3840, 2160, "dark")}
STACK = {"frames": [["/me/train.py", 9, "main"], ["/me/train.py", 41, "loss"]], "module": "", "op": ""}
MODULES = {
    f"transformer.h.{i}.mlp": {"parameters": MIB, "gradients": MIB, "optimizer": 2 * MIB} for i in range(200)
}  # a deep model
PROFILE = {
    "time": 1.0, "peak_bytes": 300 * MIB, "stacks": {"1": STACK, "2": {**STACK, "module": "transformer.h.0"}},
    "peak": [[1, 200 * MIB, 1], [2, 100 * MIB, 9]], "blocks": [], "ring": [],
}  # fmt: skip


@pytest.fixture
def profiled(one_run: list[SyntheticPage]) -> list[SyntheticPage]:
    path = one_run[0].path
    path.touch()  # else the sidecar clears away what lies beside it
    path.with_suffix(".modules").write_text(json.dumps(MODULES))
    path.with_suffix(".profile").write_text(json.dumps(PROFILE))
    return one_run


def ready(tab: Tab, imagined: Imagined) -> Page:
    page = tab.open(imagined.link)
    expect(page.locator("#parts button").first).to_be_visible()
    return page


@pytest.mark.parametrize("screen", SCREENS)
def test_both_views_are_seen_in_every_size(
    imagine: Imagine, profiled: list[SyntheticPage], new_tab: NewTab, screen: str
) -> None:
    page = ready(new_tab(*SCREENS[screen]), imagine(profiled))
    expect(page.locator("#parts button").first).to_contain_text("model")
    page.get_by_role("button", name="By line, at the peak").click()
    expect(page.locator("#parts-lines li").first).to_contain_text("train.py:41 loss")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_a_part_is_entered_and_left_by_keys(imagine: Imagine, profiled: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(profiled))
    page.locator("#parts button").first.focus()
    page.keyboard.press("ArrowDown")
    focused = page.locator("#parts button:focus")
    expect(focused).to_contain_text("transformer")
    page.keyboard.press("Enter")
    expect(page.locator("#parts-trail b")).to_have_text("transformer")
    page.keyboard.press("Escape")
    expect(page.locator("#parts-trail b")).to_have_text("model")
    page.get_by_title("transformer:").click()
    page.locator("#parts-trail button").click()
    expect(page.locator("#parts-trail b")).to_have_text("model")


def test_many_parts_are_few_boxes(imagine: Imagine, profiled: list[SyntheticPage], new_tab: NewTab) -> None:
    page = ready(new_tab(), imagine(profiled))
    assert page.locator("#parts button").count() < 1500


def test_without_a_profile_there_is_nothing_to_turn_to(
    imagine: Imagine, one_run: list[SyntheticPage], new_tab: NewTab
) -> None:
    page = ready(new_tab(), imagine(one_run))
    expect(page.get_by_role("button", name="By line, at the peak")).to_be_disabled()
