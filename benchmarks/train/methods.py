"""The ways to train that are measured, by name: `plain`, `checkpoint`, `gact-2`, `division`, `daf-4`, `daf-auto-20x`"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.peers.division import Division
from benchmarks.peers.gact import Gact
from benchmarks.peers.hooks import HookMethod
from benchmarks.peers.method import Checkpoint, Method, StorageMeter
from benchmarks.train.worker import Job
from benchmarks.workloads.workload import Batch, Workload

STANDARD = (
    "plain", "checkpoint", "gact-2", "gact-4", "division",
    "daf-8", "daf-4", "daf-2", "daf-auto-14x", "daf-auto-20x", "daf-auto-24x",
)  # fmt: skip
# Of what a limit leaves after the imports. The rest is for scratch memory that libraries take past torch's allocator.
LIMIT_SHARE = 0.96


@dataclass(frozen=True, slots=True)
class DafSetting:
    """What a name such as `daf-2` or `daf-auto-20x` asks of a session. A ratio is against what plain saves."""

    bits: str
    ratio: float = 0.0


def daf_setting(name: str) -> DafSetting | None:
    """Return what `name` asks of DAF, or None where it names a peer."""
    match = re.fullmatch(r"daf-(?:([1-8]|lossless|off|auto)|auto-(\d+(?:\.\d+)?)x)", name)
    if match is None:
        return None
    return DafSetting(bits=match[1]) if match[1] else DafSetting(bits="auto", ratio=float(match[2]))


def peer(name: str, workload: Workload) -> Method:
    """Return the method `name` that is not DAF."""
    if name == "plain":
        return Method(workload)
    if name == "checkpoint":
        return Checkpoint(workload)
    if name == "division":
        return HookMethod(workload, Division())
    match = re.fullmatch(r"gact-([1248])", name)
    if match is None:
        raise ValueError(f"no method {name!r}; there are {', '.join(STANDARD)}")
    return HookMethod(workload, Gact(int(match[1])))


class Daf(Method):
    """Training under an open `daf.Session`."""

    def __init__(self, workload: Workload, session: Any) -> None:
        super().__init__(workload)
        self.session = session

    def exact(self) -> AbstractContextManager[Any]:
        return _Removed(self.session.engine)

    def saved_bytes(self, batch: Batch) -> int:
        # Counted apart from the engine's own books: what it passes through by unique storages, as for the peers, once
        # the forward is over (a tensor may be let go later, when what it follows from was stored); what it encodes by
        # the pages that the arena then holds.
        from daf.quant.saved.handles import Kept

        engine, kept, beside = self.session.engine, [], {}

        def pack(tensor: Tensor) -> Any:
            handle = engine.pack(tensor)
            if isinstance(handle, Kept):
                kept.append(handle)
            else:
                beside[id(handle.stored)] = handle.stored
            return handle

        before_bytes = self.session.stats()["plane_bytes"]
        with saved_tensors_hooks(pack, engine.unpack):
            loss = self.forward(batch)
        plane_bytes = self.session.stats()["plane_bytes"] - before_bytes
        meter = StorageMeter(self.workload.model)
        for handle in kept:
            meter.add(handle.tensor)
        for tensor in _kept_beside(beside.values()):
            meter.add(tensor)
        del loss
        return int(plane_bytes) + meter.total_bytes

    def stats(self) -> dict[str, Any]:
        return dict(self.session.stats())


def _kept_beside(contents: Iterable[Any]) -> Iterator[Tensor]:
    """What is kept beside planes: mean and scale of rows, and masks that ways through layers need."""
    for stored in contents:
        rows = getattr(stored, "rows", None)
        if rows is not None:
            yield from (rows.mean, rows.scale)
        for weight in getattr(stored, "weights", ()):
            yield weight.tensor
        if getattr(stored, "tensor", None) is not None:
            yield stored.tensor


class _Removed:
    """While entered, the engine's hooks are away; its arena stays."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.remove()

    def __exit__(self, *_exception: object) -> None:
        self._engine.install()


def open_session(job: Job, baseline_bytes: int) -> Any:
    """Open the session that the job's method asks for; None for a peer. The baseline is what the imports took."""
    setting = daf_setting(job.method)
    if setting is None:
        return None
    import daf

    if setting.ratio:
        is_deterministic = os.environ.get("DAF_DETERMINISTIC", "off")
        return daf.Session(bits=setting.bits, ratio=setting.ratio, deterministic=is_deterministic).start()
    if job.limit_bytes:
        return daf.Session(bits=setting.bits, budget=_budget_under(job.limit_bytes, baseline_bytes)).start()
    return daf.Session(bits=setting.bits).start()


def _budget_under(limit_bytes: int, baseline_bytes: int) -> int:
    """Return what a limit leaves. A control group tells; it does not count the libraries' pages, which are shared."""
    from daf.session import free_bytes

    left_bytes = free_bytes()
    if left_bytes > limit_bytes:  # no group: the watcher counts every resident page
        left_bytes = limit_bytes - baseline_bytes
    return int(left_bytes * LIMIT_SHARE)


def make(name: str, workload: Workload, session: Any = None) -> Method:
    """Return the method `name` for `workload`; `session` is what `open_session` gave for it."""
    return Daf(workload, session) if session is not None else peer(name, workload)
