"""What the page is made of."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from daf.dashboards import assets


def test_every_file_that_the_page_names_is_served() -> None:
    files = assets.page_files()
    named = set()
    for path in files.values():
        if path.parent == assets.PAGE_DIR:
            named |= set(re.findall(r'(?:src|href)="page/([^"]+)"|from "\./([^"]+)"', path.read_text()))
    assert {name for pair in named for name in pair if name} <= set(files)
    assert "index.html" in files


def test_the_page_names_no_other_host() -> None:
    for name, path in assets.page_files().items():
        if path.parent == assets.PAGE_DIR:
            outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+/?[^\s\"']*", path.read_text())
            assert [url for url in outside if "www.w3.org/2000/svg" not in url] == [], name


@pytest.mark.parametrize("name", sorted(assets.page_files()))
def test_every_file_has_a_media_type(name: str) -> None:
    assert "/" in assets.media_type(name)


def test_finding_the_library_does_not_import_its_package() -> None:
    code = """
import sys
from daf.dashboards import assets
assets.page_files()
print("IPython" in sys.modules, "uplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
