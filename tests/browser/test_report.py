"""The report: one file, opened from disk, with nothing else at hand."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

import httpx
from playwright.sync_api import expect

from daf.dashboards.report import render
from tests.browser.conftest import Imagined, Tab, wait_for
from tests.browser.synthetic import SyntheticPage

TABLE = {
    "title": "Plain and DAF",
    "columns": ["", "plain", "DAF"],
    "rows": [["peak memory", "618 MiB", "<b>482</b> MiB"]],
}


def report(imagined: Imagined, folder: pathlib.Path) -> pathlib.Path:
    document = httpx.get(f"{imagined.address}/v1/report").json()
    path = folder / "report.html"
    path.write_text(render({**document, "tables": [TABLE]}))
    return path


def test_the_report_opens_from_disk_and_shows_the_run(
    imagine: Callable[..., Imagined], one_run: list[SyntheticPage], new_tab: Callable[..., Tab], tmp_path: pathlib.Path
) -> None:
    imagined = imagine(one_run)
    one_run[0].lives = "finished"
    wait_for(lambda: httpx.get(f"{imagined.address}/v1/report").json()["process"]["state"] == "finished")
    page = new_tab().open(report(imagined, tmp_path).as_uri())
    expect(page.locator("h1")).to_have_text("Finished")
    expect(page.locator("#memory .uplot")).to_be_visible()
    expect(page.locator("#slots-count")).to_have_text("40 layers")
    expect(page.locator("#tables")).to_contain_text("618 MiB")
    expect(page.locator("#tables")).to_contain_text("<b>482</b> MiB")
    expect(page.locator("#budget-form")).to_be_hidden()
    expect(page.locator("#pause")).to_be_hidden()
    expect(page.locator("#connection")).to_have_text("")


def test_the_report_is_one_small_file_that_loads_nothing(
    imagine: Callable[..., Imagined], one_run: list[SyntheticPage], tmp_path: pathlib.Path
) -> None:
    one_run[0].num_slots = 2
    text = report(imagine(one_run), tmp_path).read_text()
    assert len(text) < 1_000_000
    assert re.findall(r'(?:src|href)="(?!#|data:|v1/stats)[^"]*"', text) == []


def test_a_name_cannot_break_out_of_the_report(
    imagine: Callable[..., Imagined], one_run: list[SyntheticPage], new_tab: Callable[..., Tab], tmp_path: pathlib.Path
) -> None:
    imagined = imagine(one_run)
    document = httpx.get(f"{imagined.address}/v1/report").json()
    document["process"]["name"] = "</script><script>document.title = 'broken'</script><img src=x>"
    path = tmp_path / "report.html"
    path.write_text(render(document))
    page = new_tab().open(path.as_uri())
    expect(page.locator("#run-name")).to_contain_text("</script><script>")
    assert page.title() != "broken"
