from __future__ import annotations

import pytest

from daf.config import Budget, Config


def test_settings_read_alike_from_the_environment_and_from_keywords() -> None:
    by_variable = Config.from_environment({"DAF_BUDGET": "2GiB", "DAF_BITS": "2", "DAF_FLOOR": "0", "PATH": "/bin"})
    by_keyword = Config.read({"budget": "2GiB", "bits": 2, "floor": 0})
    assert by_variable == by_keyword
    assert by_variable.budget.num_bytes == 2 << 30


def test_a_budget_in_percent_is_of_what_is_free() -> None:
    assert Config.read({"budget": "50%"}).budget.resolve(1000) == 500


def test_a_ratio_may_end_in_x() -> None:
    assert Config.read({"ratio": "20x"}).ratio == Config.read({"ratio": 20}).ratio == 20


def test_an_error_may_be_a_percentage() -> None:
    assert Config.read({"max_error": "10%"}).max_error == Config.read({"max_error": 0.1}).max_error == 0.1


def test_a_number_is_a_budget_in_bytes() -> None:
    assert Config.read({"budget": 1 << 20}).budget == Budget(num_bytes=1 << 20)


@pytest.mark.parametrize(
    ("name", "word", "right"),
    [
        ("budget", "banana", "2GiB"),
        ("budget", "0", "2GiB"),
        ("budget", "150%", "50%"),
        ("bits", "9", "1 to 8"),
        ("bits", "many", "auto"),
        ("ratio", "0.5", "16 or 20x"),
        ("ratio", "much", "16 or 20x"),
        ("max_error", "150%", "10%"),
        ("max_slowdown", "0.5", "1.3"),
        ("max_error", "nan", "0.1"),
        ("floor", "-1", "0 to 8"),
        ("spill", "/no/such/folder", "a folder that exists"),
        ("page_bytes", "1000", "power of two"),
        ("page_bytes", "64", "512"),
        ("cpu_allocator", "maybe", "on or off"),
        ("sidecar", "somewhere", "127.0.0.1:8787"),
        ("sidecar", "localhost:99999", "127.0.0.1:8787"),
    ],
)
def test_an_unreadable_setting_is_quoted_with_what_would_be_right(name: str, word: str, right: str) -> None:
    with pytest.raises(ValueError, match="cannot be read") as caught:
        Config.from_environment({f"DAF_{name.upper()}": word})
    assert f"DAF_{name.upper()}={word}" in str(caught.value)
    assert right in str(caught.value)


def test_a_misspelt_keyword_is_told_with_the_settings_there_are() -> None:
    with pytest.raises(ValueError, match="no setting 'budgets'") as caught:
        Config.read({"budgets": "2GiB"})
    assert "page_bytes" in str(caught.value)
