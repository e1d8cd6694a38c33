"""Kinds of memory add up to what is resident."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daf.server.fleet.kinds import KINDS, kinds, plain_bytes

MIB = 1 << 20
COUNTED = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "saved_kept_bytes")


@given(
    st.fixed_dictionaries(
        {name: st.integers(0, 1000) for name in (*COUNTED, "tensor_bytes", "plane_bytes", "cached_bytes")}
    )
)
def test_the_kinds_add_up_whatever_was_counted(values: dict[str, int]) -> None:
    found = kinds(values)
    assert set(found) == set(KINDS)
    assert min(found.values()) >= 0
    assert sum(found.values()) == values["tensor_bytes"] + values["plane_bytes"] + values["cached_bytes"]


def test_what_is_counted_is_shown_as_counted_while_it_is_there() -> None:
    values = {
        "tensor_bytes": 100,
        "parameter_bytes": 20,
        "gradient_bytes": 20,
        "optimizer_bytes": 40,
        "saved_kept_bytes": 5,
    }
    assert kinds(values)["temporaries"] == 15
    assert kinds({**values, "tensor_bytes": 70})["gradients"] == 5, "gradients go between steps"


def test_plain_training_would_need_what_was_not_stored_as_well() -> None:
    values = {"last_step_live_bytes": 100, "last_step_saved_raw_bytes": 300, "last_step_saved_bytes": 30}
    assert plain_bytes(values) == 370
