"""How rows are found in memory."""

from __future__ import annotations

import pytest
import torch

from daf.quant.layout import layout_of


@pytest.mark.parametrize(
    ("tensor", "cols"),
    [
        pytest.param(torch.empty(8, 64, 384), 384, id="features"),
        pytest.param(torch.empty(8, 64, 12, 32).transpose(1, 2), 384, id="heads_are_features"),
        pytest.param(torch.empty(8, 64, 12, 32).permute(0, 2, 3, 1), 384, id="heads_of_transposed_keys_too"),
        pytest.param(torch.empty(8, 64, 2304)[..., :768].unflatten(2, (12, 64)).transpose(1, 2), 768, id="a_slice"),
        pytest.param(torch.empty(2, 64, 12, 32).transpose(1, 2), 64, id="too_few_tokens_for_groups_of_all_heads"),
        pytest.param(torch.empty(96, 64, 32), 64, id="two_short_rows_are_one"),
        pytest.param(torch.empty(4096, 8), 64, id="eight_short_rows_are_one"),
        pytest.param(torch.empty(63, 33, 32), 32, id="rows_that_do_not_pair_stay_short"),
        pytest.param(torch.empty(64, 96, 8, 8).to(memory_format=torch.channels_last), 96, id="channels"),
        pytest.param(torch.empty(()), 1, id="a_number"),
    ],
)
def test_a_row_is_what_has_a_scale_of_its_own(tensor: torch.Tensor, cols: int) -> None:
    assert layout_of(tensor.shape, tensor.stride()).cols == cols
