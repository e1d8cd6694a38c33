from __future__ import annotations

import os

import pytest

from benchmarks.sidecar.chaos import chaos


@pytest.mark.parametrize("seed", [1])
def test_whatever_is_killed_the_rest_goes_on_and_the_story_is_told(seed: int) -> None:
    os.makedirs(os.environ["DAF_RUNTIME_DIR"], mode=0o700)
    found = chaos(num_kills=6, seed=seed, num_trainings=2)
    assert found["rest_went_on"] == found["story_served"] == 6
    assert found["left_over"] == []
    assert not found["lock_held_after"]
