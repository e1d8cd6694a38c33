"""The search for the largest batch; whether a batch fits is the test's to say."""

from __future__ import annotations

import pytest

from benchmarks.maxbatch import DOUBT, Search
from benchmarks.train.worker import Job


@pytest.mark.parametrize("largest", [0, 7, 8, 16, 23, 100, 1400])
@pytest.mark.parametrize("first", [16, 48, 5000])
def test_a_search_ends_near_the_largest_batch_wherever_it_begins(
    largest: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(Job("resnet18", "plain", limit_bytes=2**31), num_steps=1, granule=8)
    monkeypatch.setattr(search, "_first_guess", lambda: first)
    monkeypatch.setattr(search, "_fits", lambda batch: batch <= largest)
    found = search.run()
    assert found <= largest
    assert largest - found < max(8, DOUBT * largest) + 8
