"""What torch calls at the end of `import torch`: nothing at all unless the user asked for DAF.

This file runs in every process that imports torch where DAF is installed, so it imports next to nothing and lets
nothing out: whatever goes wrong becomes one warning, and training goes on without DAF.
"""

from __future__ import annotations

import os

VARIABLE = "PYTORCH_ALLOCATOR"


def autoload() -> None:
    """Switch DAF on if `PYTORCH_ALLOCATOR=daf`."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return
    try:
        if wanted.lower() != "daf":
            _warn(f"{VARIABLE}={wanted} is not known, so nothing was changed; DAF is switched on by {VARIABLE}=daf")
            return
        from daf import session

        session.start_from_environment(os.environ)
    except Exception as error:  # nothing may break `import torch`
        _warn(f"DAF stays off: {error}")


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, RuntimeWarning, stacklevel=2)
