"""Why a saved tensor is kept exact whatever the plan says: one word, counted in stats() as kept_<word>_total."""

from __future__ import annotations

import sys
from types import FrameType

from torch import Tensor
from torch.nn import Parameter

from daf.quant.encode.choice import producer
from daf.quant.encode.encoder import DTYPES
from daf.quant.ops import is_attention
from daf.quant.saved.layout import Layout, is_in_memory
from daf.quant.saved.scope import Frame
from daf.quant.saved.weights import is_from_parameters, is_of_users_leaf, is_statistic, is_weight_copy
from daf.quant.torch_internals import is_compiled

_PAIR = "daf.quant.compiled.pair"  # its hooks hand on to the engine's


def why_unreadable(tensor: Tensor, min_bytes: int) -> str:
    """What can be said of a tensor without looking at where it came from; "" where nothing is in the way."""
    if type(tensor) is not Tensor:
        return "parameter" if isinstance(tensor, Parameter) else "subclass"
    if not is_in_memory(tensor):
        return "unsupported"
    if tensor.nbytes < min_bytes and (tensor.dim() < 3 or not is_attention(producer(tensor))):
        return "small"  # attention's output, however small, goes on: what it came from may be large
    if tensor.dtype not in DTYPES:
        return "unsupported"
    return ""


def why_kept(tensor: Tensor, layout: Layout, frame: Frame, min_bytes: int) -> str:
    """Whether it is a weight, a user's leaf, a statistic, or too small without its expanded axes; "" if none."""
    if layout.is_expanded and layout.numel * tensor.element_size() < min_bytes:
        return "small"
    if is_from_parameters(tensor) or is_weight_copy(tensor, frame.module):
        return "parameter"
    if is_of_users_leaf(tensor):
        return "leaf"
    return "statistic" if is_statistic(tensor) else ""


def is_saved_by_compiled_graph(depth: int) -> bool:
    """Whether the hook `depth` frames above the caller was called by a compiled graph. Its tensors have no history, so
    what they are for, and what must stay consistent with what (attention's log-sum-exp), cannot be told."""
    caller: FrameType | None = sys._getframe(depth + 1)
    while caller is not None and caller.f_globals.get("__name__") == _PAIR:
        caller = caller.f_back
    return caller is not None and is_compiled(caller)
