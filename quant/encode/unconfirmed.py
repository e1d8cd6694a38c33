"""What was coded on a device on trust, before the device could say whether the trust was deserved.

Integers get as many planes as the slot's needed so far; a slot of masks is taken to hold masks; what was finite, to be
finite. On the CPU one looks first. On a device looking means waiting for all that is queued there, so the kernels raise
a flag instead, the flag is copied to the host when they have run, and until it has come the tensor itself is held. If
the trust was misplaced the tensor stays held, and the slot is looked at anew: nothing inexact is ever handed out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from daf.quant.saved.handles import modified_in_place

if TYPE_CHECKING:
    from daf.quant.saved.slots import Slot


class Answer:
    """A number [1] on its way from a device to the host, behind what is queued there now."""

    __slots__ = ("_event", "_value")

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._event: torch.cuda.Event | None = None
        if value.is_cuda:
            self._value = torch.empty(1, dtype=value.dtype, device="cpu", pin_memory=True).copy_(
                value, non_blocking=True
            )
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> bool:
        """Whether it is not zero."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._value)


class Unconfirmed:
    """One save, coded on trust in the fact `trust` of its slot, which becomes False should that be misplaced.

    table   where it was coded to
    flag    int32 [1] on the device; not zero: misplaced
    """

    __slots__ = ("_answer", "_raw", "_slot", "_trust", "_version", "flag", "is_broken", "table")

    def __init__(self, raw: Tensor, slot: Slot, trust: str, flag: Tensor | None = None) -> None:
        self.flag = torch.zeros(1, dtype=torch.int32, device=raw.device) if flag is None else flag
        self.table: Tensor | None = None
        self.is_broken = False
        self._raw: Tensor | None = raw
        self._version = raw._version
        self._slot = slot
        self._trust = trust
        self._answer: Answer | None = None

    def ask(self, table: Tensor) -> None:
        """The kernels that raise the flag are queued."""
        self.table = table
        self._answer = Answer(self.flag)

    def is_answered(self) -> bool:
        return self._answer is not None and self._answer.is_there()

    def settle(self) -> None:
        """Waits for the answer; lets go of the tensor, or of the trust. May be called again, from any thread."""
        if self._raw is None or self.is_broken:
            return
        assert self._answer is not None
        if self._answer.wait():
            self.is_broken = True
            setattr(self._slot.facts, self._trust, False)
        else:
            self._raw = None

    def restore(self) -> Tensor:
        """The tensor itself, where the trust was misplaced."""
        assert self._raw is not None
        if self._raw._version != self._version:
            raise RuntimeError(modified_in_place(self._raw, self._version))
        return self._raw
