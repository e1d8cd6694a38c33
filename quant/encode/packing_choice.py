"""Choosing a way of packing by measurement: each way gets a few training steps in turn, the fastest stays."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from daf.quant.encode.packing import Encode, InlinePacker, Packer, Ticket, WorkerPacker

if TYPE_CHECKING:
    import torch

WAYS = ("auto", "inline", "worker", "device")
TRIAL_ROUNDS = 5
WARM_UP_STEPS = 2
MARGIN = 0.03  # a way must beat inline by this much: it holds raw tensors longer, and noise must not choose it


class AutoPacker:
    """Whatever way of packing makes the whole step fastest here.

    The step is the only honest measure: a worker's encode costs the forward nothing visible and yet takes memory
    bandwidth and, where all cores are busy, a core. So ways are tried on whole steps, in turn so that drift hits all.
    """

    def __init__(self, ways: dict[str, Packer], *, rounds: int = TRIAL_ROUNDS, warm_up: int = WARM_UP_STEPS) -> None:
        if "inline" not in ways:
            raise ValueError(f"the ways to choose from are {sorted(ways)}; inline must be one of them")
        self._ways = ways
        self._seconds: dict[str, list[float]] = {name: [] for name in ways}
        self._rounds = rounds
        self._warm_up = warm_up
        self._steps = 0
        self.way = "inline"
        self.is_settled = len(ways) == 1

    def submit(self, encode: Encode, tensor: torch.Tensor) -> Ticket:
        return self._ways[self.way].submit(encode, tensor)

    def step(self, seconds: float) -> None:
        if self.is_settled:
            return
        self._steps += 1
        if self._steps <= self._warm_up:
            return
        self._seconds[self.way].append(seconds)
        if min(map(len, self._seconds.values())) < self._rounds:
            self._use(self._next_way())
        else:
            self._use(self._fastest())
            self.is_settled = True

    def _next_way(self) -> str:
        return min(self._seconds, key=lambda name: len(self._seconds[name]))

    def _fastest(self) -> str:
        best = min(self.medians, key=self.medians.__getitem__)
        return best if self.medians[best] < (1 - MARGIN) * self.medians["inline"] else "inline"

    def _use(self, way: str) -> None:
        if way != self.way:
            self._ways[self.way].drain()  # the next step's time must not carry the last one's work
            self.way = way

    @property
    def medians(self) -> dict[str, float]:
        """Median step in seconds of each way tried so far."""
        return {name: statistics.median(seconds) for name, seconds in self._seconds.items() if seconds}

    def drain(self) -> None:
        for packer in self._ways.values():
            packer.drain()

    def close(self) -> None:
        for packer in self._ways.values():
            packer.close()


def make_packer(way: str = "inline", *, device: str = "cpu", shares_memory: bool = True) -> Packer:
    """Return the packer for tensors on `device`; `shares_memory` says whether the CPU can read them there."""
    if way not in WAYS:
        raise ValueError(f"packing is {way!r}; it is one of {', '.join(WAYS)}")
    if way == "worker" and not shares_memory:
        raise ValueError(f"packing='worker' needs memory that the CPU can read, and {device}'s is not; use 'device'")
    if way == "worker":
        return WorkerPacker()
    if way in ("inline", "device") or not shares_memory:  # on a device, inline only queues the kernels
        return InlinePacker()
    ways: dict[str, Packer] = {"inline": InlinePacker(), "worker": WorkerPacker()}
    if device != "cpu":
        ways["device"] = InlinePacker()
    return AutoPacker(ways)
