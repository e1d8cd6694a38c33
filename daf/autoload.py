"""What torch calls at the end of `import torch`: nothing at all unless the user asked for DAF."""

from __future__ import annotations

import os


def autoload() -> None:
    """Switch DAF on if `PYTORCH_ALLOCATOR=daf`."""
    if not os.environ.get("PYTORCH_ALLOCATOR"):
        return
