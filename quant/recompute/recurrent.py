"""LSTM layers of oneDNN: run once more in backward, instead of storing their workspace.

A layer of T steps saves its input, its output, and a workspace some fifteen times as large as the output, which only
oneDNN can read. All but the input come out again, to the last bit, when the layer runs again over the same input. The
workspace has no history: it is known by its node's number, which the output saved just before it has too.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from daf.quant.recompute.rules import source
from daf.quant.recompute.shared_run import SharedRun
from daf.quant.saved.handles import Recomputed
from daf.quant.saved.layout import layout_of
from daf.quant.torch_internals import next_number, number_of, setting

_INPUTS = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
_SETTINGS = (
    *("reverse", "batch_sizes", "mode", "hidden_size", "num_layers"),
    *("has_biases", "bidirectional", "batch_first", "train"),
)
_OUTPUTS = ("out", "hy", "cy", "workspace")


class Layers(threading.local):
    """The layer that this thread has saved the output of last."""

    def __init__(self) -> None:
        self._number = -1
        self._run: SharedRun | None = None

    def recompute_output(self, out: Tensor, node: Any) -> Recomputed | None:
        """The content of one of a layer's outputs; the workspace, if it is saved next, can be recomputed too."""
        self._number, self._run = number_of(node), _run_again(node)
        return None if self._run is None else _member(self._run, _OUTPUTS[out.output_nr], out)

    def recompute_workspace(self, tensor: Tensor) -> Recomputed | None:
        """The content of the workspace, if `tensor` is one: bytes without history, saved right after the output."""
        if self._run is None or tensor.dtype is not torch.uint8 or tensor.dim() != 1:
            return None
        run, self._run = self._run, None
        return _member(run, "workspace", tensor) if next_number() - 1 == self._number else None


def _run_again(node: Any) -> SharedRun | None:
    inputs = [source(node, name) for name in _INPUTS]
    if any(recipe is None for recipe in inputs):
        return None
    settings = [setting(node, name) for name in _SETTINGS]

    def run() -> dict[Hashable, Tensor]:
        tensors = [recipe().detach() for recipe in inputs if recipe]
        with torch.enable_grad():  # without, there is no workspace
            values = torch.ops.aten.mkldnn_rnn_layer(*tensors, *settings)
        return dict(zip(_OUTPUTS, values, strict=True))

    x = inputs[0]
    return None if x is None else SharedRun(run, x.sources)


def _member(run: SharedRun, name: str, tensor: Tensor) -> Recomputed:
    return run.member(name, layout_of(tensor.shape, tensor.stride()), tensor.dtype)
