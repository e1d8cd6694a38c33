"""What is known to be wrong, by model and mode, with its cause: the quick tests leave it out, `make zoo` shows it."""

from __future__ import annotations

CHECKPOINT = "a tensor that checkpoint holds is unpacked a second time: CheckpointError"
KNOWN: dict[str, dict[str, str]] = {
    "checkpoint_not_reentrant": {"ratio 8": CHECKPOINT, "ratio 16": CHECKPOINT},
}


def is_known(name: str, mode: str) -> bool:
    return mode in KNOWN.get(name, {})
