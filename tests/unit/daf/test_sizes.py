from __future__ import annotations

import pytest

from daf.sizes import format_bytes, parse_bytes, parse_percent


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2GiB", 2 << 30),
        ("512MB", 512_000_000),
        ("1.5 KiB", 1536),
        ("4096", 4096),
        ("1g", 10**9),
        (".5k", 500),
    ],
)
def test_sizes_that_people_write_are_read(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["banana", "", "GiB", "-1", "2 GiBs", "1e9", "0x10", "nan"])
def test_an_unreadable_size_is_quoted_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as 2GiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_a_percentage_is_told_from_a_size() -> None:
    assert parse_percent("50%") == 0.5
    assert parse_percent("50") is None


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (123 << 20, "123 MiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (1010 << 10, "0.99 MiB"),
        (3 << 40, "3.00 TiB"),
        (2000 << 40, "2000 TiB"),
    ],
)
def test_sizes_are_shown_in_units_one_can_read(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text
