"""Settings in files, and variables that are nearly right."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from daf.config import Config
from daf.setting_docs import SETTINGS
from daf.settings_file import find, layered, misspelt


def test_daf_toml_is_found_from_a_folder_below(tmp_path: pathlib.Path) -> None:
    (tmp_path / "daf.toml").write_text('budget = "2GiB"\ncpu_allocator = false\n')
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert layered({}, tmp_path / "a" / "b") == {"DAF_BUDGET": "2GiB", "DAF_CPU_ALLOCATOR": "off"}


def test_a_variable_wins_over_the_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.daf]\nratio = 8\nfloor = 2\n")
    words = layered({"DAF_RATIO": "20x", "HOME": "/"}, tmp_path)
    assert words == {"DAF_RATIO": "20x", "DAF_FLOOR": "2", "HOME": "/"}
    assert Config.from_environment(words).floor == 2


def test_a_pyproject_without_settings_is_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "daf.toml").write_text("floor = 3\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[project]\n")
    found = find(tmp_path / "inner")
    assert found is not None
    assert found[0] == tmp_path / "daf.toml"


def test_a_file_that_is_no_toml_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "daf.toml").write_text("budget: 2GiB")
    with pytest.raises(ValueError, match=r"daf\.toml: is no TOML"):
        find(tmp_path)


def test_a_misspelt_variable_is_named_with_the_right_one() -> None:
    environment = {"DAF_BUGDET": "1GiB", "DAF_BUDGET": "1GiB", "DAF_SOMETHING_ELSE": "1", "PATH": ""}
    assert misspelt(environment) == ["DAF_BUGDET is not read; did you mean DAF_BUDGET?"]


def test_every_setting_is_documented() -> None:
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Config)}
