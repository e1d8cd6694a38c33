"""The storages decoded last, so that an op which shares one with its neighbour does not decode it again."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from daf.quant.saved.handles import Stored

MAX_RECENT = 12  # what one block's backward asks for


class DecodedCache:
    """Holds a few values in order of decoding; the oldest goes first. Where memory is short it holds none."""

    def __init__(self) -> None:
        self.has_room = False  # until a step has shown it
        self._held: deque[weakref.ref[Stored]] = deque()

    def hold(self, stored: Stored, value: Tensor) -> None:
        if not self.has_room:
            return
        stored.decoded = value
        self._held.append(weakref.ref(stored))
        if len(self._held) > MAX_RECENT:
            self._let_go()

    def _let_go(self) -> None:
        """Of what nobody waits for any more, or else of the oldest."""
        waiting = [one for one in self._held if (stored := one()) is not None and stored.decoded is not None]
        for one in waiting[:-MAX_RECENT]:
            if (stored := one()) is not None:
                stored.decoded = None
        self._held = deque(waiting[-MAX_RECENT:])
