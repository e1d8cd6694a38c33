"""Memory by kind: what the resident bytes of a run are, worked out from its figures so that the parts add up.

    resident = parameters + gradients + optimizer + exact + compressed + temporaries + cached

What the training side counted (parameters, gradients, optimizer state, activations kept exact) is of the last look; the
rest of the tensors is temporaries. Where a part has gone since (gradients set to None), it is cut to what there is.
"""

from __future__ import annotations

from collections.abc import Mapping

KINDS: dict[str, str] = {
    "parameters": "Weights of the model",
    "gradients": "Gradients of the parameters",
    "optimizer": "State of the optimizer, such as Adam's moments",
    "exact": "Activations kept exact for backward",
    "compressed": "Activations stored as bit planes",
    "temporaries": "Other tensors: inputs, buffers, what an op needs while it runs",
    "cached": "Free memory that is kept for reuse",
}
_COUNTED = {
    "parameters": "parameter_bytes",
    "optimizer": "optimizer_bytes",
    "exact": "saved_kept_bytes",
    "gradients": "gradient_bytes",
}


def kinds(values: Mapping[str, float]) -> dict[str, int]:
    """Return the bytes of each kind; they add up to `resident_bytes`, but for rounding to blocks.

    `recomputed` and `outside` stand apart: the first takes no memory, the second is not DAF's.
    """
    left = int(values.get("tensor_bytes", 0))
    found = dict.fromkeys(KINDS, 0)
    for kind, field in _COUNTED.items():
        found[kind] = min(left, int(values.get(field, 0)))
        left -= found[kind]
    found["temporaries"] = left
    found["compressed"] = int(values.get("plane_bytes", 0))
    found["cached"] = int(values.get("cached_bytes", 0))
    return found


def plain_bytes(values: Mapping[str, float]) -> int:
    """Return what plain training would have needed at its peak: what DAF did not store, added to what was in use."""
    live = values.get("last_step_live_bytes") or values.get("peak_live_bytes", 0)
    which = "last_step" if values.get("last_step_saved_raw_bytes") else "peak"
    return int(live + max(0.0, values.get(f"{which}_saved_raw_bytes", 0) - values.get(f"{which}_saved_bytes", 0)))
