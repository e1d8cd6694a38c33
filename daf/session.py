"""One stretch of training under DAF: an arena, torch's allocator on top of it, and the engine."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from daf.config import Config
from daf.errors import DafError

_lock = threading.Lock()
_active: Session | None = None


class Session:
    """DAF, switched on for as long as the session is open.

    >>> with daf.Session(budget="2GiB") as session:   # doctest: +SKIP
    ...     train()
    ...     print(session.stats()["resident_bytes"])

    The settings are those of the `DAF_*` variables, in lower case and without the prefix. One session is open at a
    time in a process; one that the environment opened gives way to one that the script opens.
    """

    def __init__(self, config: Config | None = None, **settings: object) -> None:
        if config is not None and settings:
            raise ValueError(f"give a config or settings, not both: {', '.join(sorted(settings))}")
        self.config = config or Config.read(settings)
        self.arena: Any = None
        self.engine: Any = None
        self._owner_pid = 0
        self._from_environment = False

    def start(self) -> Session:
        global _active
        with _lock:
            if _active is not None and _active is not self:
                if not _active._from_environment:
                    raise DafError("a daf.Session is open in this process already; close it first")
                _active._stop()
            _active = self
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Switch DAF off. Tensors and stashes that live on keep their memory until they are freed."""
        global _active
        with _lock:
            if _active is self:
                _active = None
        self._stop()

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """Return the numbers now of the engine and of the arena that it keeps the budget of: the device's, on CUDA."""
        if self.arena is None:
            raise DafError("the session is not open: use `with daf.Session(...)` or call start()")
        return {**self.engine.arena.stats(), **self.engine.stats()}

    def set_budget(self, budget: str | int) -> Any:
        """Change the budget while training goes on; return the outcome: applied, pending or refused, and why."""
        if self.arena is None:
            raise DafError("the session is not open: use `with daf.Session(...)` or call start()")
        wanted, arena = Config.read({"budget": budget}).budget, self.engine.arena
        return arena.set_budget(wanted.resolve(free_bytes() if arena is self.arena else _device_bytes()))

    def _start(self) -> None:
        from daf.allocator import Arena, install_cpu, maybe_install_cuda, start_trace
        from daf.quant import Engine, Wish

        config = self.config
        self._owner_pid = os.getpid()
        self.arena = Arena(
            budget_bytes=config.budget.resolve(free_bytes()),
            page_bytes=config.page_bytes,
            name=config.name,
            spill_dir=config.spill or None,
        )
        if config.trace:
            start_trace(config.trace)
        if config.cpu_allocator:
            install_cpu(self.arena)
        maybe_install_cuda(config.budget.num_bytes, config.page_bytes, name=config.name)
        self.engine = Engine(
            self.arena,
            bits=config.bits,
            floor=config.floor,
            wish=Wish(ratio=config.ratio, max_error=config.max_error),
            packing=config.packing,
            rounding=config.rounding,
        )
        self.engine.install()
        atexit.register(self.close)
        if config.sidecar != "off":
            self._start_sidecar()

    def _start_sidecar(self) -> None:
        from daf.server import start_beside

        try:
            start_beside(self.config.sidecar)
        except Exception as error:  # the run matters more than its page
            warnings.warn(f"DAF has no sidecar: {error}", RuntimeWarning, stacklevel=2)

    def _stop(self) -> None:
        if self._owner_pid != os.getpid():  # a forked child leaves its parent's session alone
            return
        atexit.unregister(self.close)
        if self.engine is not None:
            self.engine.remove()
        if self.arena is not None:
            self.arena.close()
        if self.config.trace:
            from daf.allocator import stop_trace

            stop_trace()


def active() -> Session | None:
    """Return the session that is open in this process, if any."""
    return _active


def start_from_environment(environment: Mapping[str, str]) -> None:
    """Open a session as the `DAF_*` variables say."""
    session = Session(Config.from_environment(environment))
    session._from_environment = True
    if multiprocessing.current_process().name == "MainProcess":
        session.start()
    else:
        _start_at_first_save(session)


def _start_at_first_save(session: Session) -> None:
    """Open `session` when autograd first saves a tensor.

    A child process may be a data loader's worker, which is left alone whatever it does, or a rank of a spawned job.
    """
    from torch._C import _autograd
    from torch.utils.data import get_worker_info

    def pack(tensor: Any) -> Any:
        _autograd._pop_saved_tensors_default_hooks()
        try:
            if get_worker_info() is None:
                session.start()
        except Exception as error:  # the run goes on without DAF
            warnings.warn(f"DAF stays off: {error}", RuntimeWarning, stacklevel=2)
        return tensor

    _autograd._push_saved_tensors_default_hooks(pack, lambda tensor: tensor)


def free_bytes() -> int:
    """Return the memory that this process could still take: the machine's, or its control groups' if that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in _group_files(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")):
        with contextlib.suppress(OSError, ValueError):  # no such group, or no limit ("max")
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def _device_bytes() -> int:
    """Return the memory of the current CUDA device: nearly all of it is DAF's already."""
    import torch

    return int(torch.cuda.mem_get_info()[1])


def _group_files(membership: Path, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files with limit and use of the process's memory groups, its own first, then those around it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder / limit, folder / used
            if folder == top:
                break
