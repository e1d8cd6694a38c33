"""The quick part of the zoo: every model for a few steps, in one mode each. `make zoo` is the whole."""

from __future__ import annotations

import math

import pytest

from tests.tools import require_package
from tests.zoo import table
from tests.zoo.faults import is_known
from tests.zoo.harness import EXACT_MODES, MAX_NORM_RATIO, MODES, Keeper, Run, Verdict, norm_ratio, train
from tests.zoo.member import FAMILIES, KINDS, Kind, load

STEPS = 4
# One of these for each model, in turn: a few steps say nothing of a final loss, but they show what explodes.
RATIO_MODES = ("ratio 8", "ratio 16")


def quick_modes() -> dict[str, list[str]]:
    """Every model with an exact mode and a ratio, in turn, but for what is known to be wrong."""
    turns = {name: (EXACT_MODES[n % 2], RATIO_MODES[n // 2 % 2]) for n, name in enumerate(load())}
    cases = {name: [mode for mode in modes if not is_known(name, mode)] for name, modes in turns.items()}
    return {name: modes for name, modes in cases.items() if modes}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", quick_modes())
def test_a_model_trains_under_daf_as_without(name: str) -> None:
    kind = KINDS[name]
    if kind.needs:
        require_package(kind.needs, extra="bench")
    plain = train(kind, STEPS)
    for mode in quick_modes()[name]:
        compare(mode, train(kind, STEPS, settings=MODES[mode]), plain, kind)


def compare(mode: str, ours: Run, plain: Run, kind: Kind) -> None:
    assert ours.stats["failures_total"] == 0, mode
    if mode in EXACT_MODES and not ours.equals(plain):
        assert not plain.equals(train(kind, STEPS)), f"plain torch comes out the same each time, {mode} otherwise"
    assert all(map(math.isfinite, ours.losses)) or not all(map(math.isfinite, plain.losses)), mode
    assert norm_ratio(ours, plain)[0] <= MAX_NORM_RATIO, mode


def test_every_family_has_members_and_there_are_enough() -> None:
    assert {kind.family for kind in load().values()} == set(FAMILIES)
    assert len(load()) >= 100
    assert sum(kind.long_steps > 0 for kind in load().values()) >= 6


def test_a_difference_in_the_last_bit_is_seen() -> None:
    kind = load()["mse_regression"]
    one, other = train(kind, 2), train(kind, 2)
    assert one.equals(other)
    other.weights[0].view(-1)[0] = math.nextafter(float(other.weights[0].view(-1)[0]), math.inf) + 1e-6
    assert not one.equals(other)


def test_a_loss_that_is_off_is_a_fault_and_one_within_the_spread_is_none() -> None:
    keeper = Keeper(load()["mse_regression"], 3)
    ours = train(keeper.kind, 3)
    assert keeper._fault(ours, keeper.plain) == ""
    ours.losses = [loss + 2 * keeper.spread + 0.1 for loss in ours.losses]
    assert "final loss off" in keeper._fault(ours, keeper.plain)
    ours.losses = [math.nan] * 3
    assert "not finite" in keeper._fault(ours, keeper.plain)


def test_the_table_has_a_row_for_every_verdict() -> None:
    verdict = Verdict("gpt2", "language", "ratio 8", 30, 7.9, 1 << 20, 2.0, 2.1, 1.5, False, 0, "")
    text = table.markdown([verdict])
    assert "| gpt2 | ratio 8 | 30 | 1.0 MiB | 7.9x | 2 | 2.1 | 1.50 | fine |" in text
    assert "ratio 8: 1 of 1" in text
