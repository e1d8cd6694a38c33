"""What the page is made of."""

from __future__ import annotations

import pathlib
import re
import runpy
import subprocess
import sys

import pytest

from daf.dashboards import assets


def test_every_file_that_the_page_names_is_served() -> None:
    files = assets.page_files()
    named = set()
    for path in files.values():
        if path.is_relative_to(assets.PAGE_DIR):
            named |= set(re.findall(r'(?:src|href)="page/([^"]+)"|from "\./([^"]+)"', path.read_text()))
    assert {name for pair in named for name in pair if name} <= set(files)
    assert "index.html" in files


def test_no_two_files_of_the_page_have_one_name() -> None:
    names = [path.name for path in assets.PAGE_DIR.rglob("*") if path.is_file()]
    assert sorted(names) == sorted(set(names))


def test_the_page_names_no_other_host() -> None:
    for name, path in assets.page_files().items():
        if path.is_relative_to(assets.PAGE_DIR):
            outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+/?[^\s\"']*", path.read_text())
            assert [url for url in outside if "www.w3.org/2000/svg" not in url] == [], name


@pytest.mark.parametrize("name", sorted(assets.page_files()))
def test_every_file_has_a_media_type(name: str) -> None:
    assert "/" in assets.media_type(name)


def test_the_chart_library_is_the_recorded_one() -> None:
    script = pathlib.Path(__file__).parents[3] / "scripts" / "chart-library"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_chart_library_of_another_content_is_refused(tmp_path: pathlib.Path) -> None:
    script = runpy.run_path(str(pathlib.Path(__file__).parents[3] / "scripts" / "chart-library"))
    with pytest.raises(ValueError, match="not the recorded one"):
        script["checked"](dict.fromkeys(script["FILES"], b"something else"))
    assert not script["is_there"](tmp_path)
