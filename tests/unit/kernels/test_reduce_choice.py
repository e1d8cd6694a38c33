"""The strategy is learned from measured calls, or read from a profile that fits the machine."""

from __future__ import annotations

import pathlib

import pytest

from daf.errors import DafError
from daf.kernels.reduce.choice import (
    RETRY_EVERY,
    STRATEGIES,
    TRIALS,
    Case,
    Chooser,
    Profile,
    machine_name,
    stored_profile,
)

CASE = Case.of(numel=1 << 20, channels=64, num_threads=2)


def run(chooser: Chooser, seconds: dict[str, float], calls: int, case: Case = CASE) -> list[str]:
    used = []
    for _ in range(calls):
        used.append(chooser.choose(case))
        chooser.learn(case, used[-1], seconds[used[-1]])
    return used


@pytest.mark.parametrize("fastest", STRATEGIES)
def test_after_its_trials_a_chooser_stays_with_the_fastest(fastest: str) -> None:
    seconds = {name: 1.0 if name == fastest else 2.0 for name in STRATEGIES}
    used = run(Chooser(), seconds, 100)
    assert sorted(used[: 3 * TRIALS]) == sorted([*STRATEGIES] * TRIALS)
    assert set(used[3 * TRIALS :]) == {fastest}


def test_one_slow_call_does_not_change_the_choice() -> None:
    chooser = Chooser()
    run(chooser, {"parallel": 1.0, "atomic": 2.0, "hybrid": 3.0}, 20)
    chooser.learn(CASE, "parallel", 100.0)
    assert chooser.choose(CASE) == "parallel"


def test_the_choice_follows_a_machine_whose_load_changed() -> None:
    chooser = Chooser()
    run(chooser, {"parallel": 1.0, "atomic": 2.0, "hybrid": 3.0}, 50)
    used = run(chooser, {"parallel": 9.0, "atomic": 2.0, "hybrid": 3.0}, 3 * RETRY_EVERY)
    assert used[-1] == "atomic"


def test_sizes_and_threads_are_learned_apart() -> None:
    chooser, other = Chooser(), Case.of(numel=1 << 10, channels=1, num_threads=2)
    run(chooser, {"parallel": 1.0, "atomic": 2.0, "hybrid": 3.0}, 20)
    run(chooser, {"parallel": 3.0, "atomic": 1.0, "hybrid": 2.0}, 20, other)
    assert chooser.choose(CASE) == "parallel"
    assert chooser.choose(other) == "atomic"


def profile(machine: str) -> Profile:
    return Profile(
        machine,
        {
            Case(21, 7, 2): {"parallel": 2.0, "atomic": 3.0, "hybrid": 1.0},
            Case(11, 1, 2): {"parallel": 2.0, "atomic": 1.0, "hybrid": 3.0},
        },
    )


def test_a_profile_answers_with_its_nearest_case_and_only_for_its_number_of_threads() -> None:
    fixed = profile("here")
    assert fixed.strategy(Case(20, 7, 2)) == "hybrid"
    assert fixed.strategy(Case(9, 1, 2)) == "atomic"
    assert fixed.strategy(Case(20, 7, 1)) is None
    assert set(run(Chooser(fixed), dict.fromkeys(STRATEGIES, 1.0), 20)) == {"hybrid"}


def test_a_stored_profile_is_used_on_its_own_machine_only(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache" / "profile.json"
    monkeypatch.setenv("DAF_PROFILE", str(path))
    assert stored_profile() is None
    profile(machine_name()).save(path)
    assert stored_profile() == profile(machine_name())
    profile("another machine").save(path)
    assert stored_profile() is None
    monkeypatch.setenv("DAF_PROFILE", "off")
    assert stored_profile() is None


def test_a_file_that_is_no_profile_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"version": 1, "machine": "x", "reduce": [{}]}')
    monkeypatch.setenv("DAF_PROFILE", str(path))
    with pytest.raises(DafError, match=r"profile.json is not a profile that `daf tune` wrote"):
        stored_profile()
