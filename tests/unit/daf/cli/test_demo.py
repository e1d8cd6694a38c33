from __future__ import annotations

from daf.cli.demo.command import tight_budget

MIB = 1 << 20


def test_the_demos_budget_step_leaves_room_for_tensors_and_half_of_the_planes() -> None:
    peaks = {"held": 100, "tensor": 110, "plane": 20, "live": 130}
    assert tight_budget({f"peak_{name}_bytes": size * MIB for name, size in peaks.items()}) == 120 * MIB


def test_planes_lose_bits_too_where_tensors_have_their_peak_at_another_time() -> None:
    peaks = {"held": 100, "tensor": 110, "plane": 20, "live": 115}
    assert tight_budget({f"peak_{name}_bytes": size * MIB for name, size in peaks.items()}) == 110 * MIB


def test_the_demos_budget_step_stays_above_what_cannot_be_dropped() -> None:
    peaks = {"held": 100, "tensor": 100, "plane": 4, "live": 101}
    assert tight_budget({f"peak_{name}_bytes": size * MIB for name, size in peaks.items()}) == int(106 * MIB)
