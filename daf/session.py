"""One stretch of training under DAF: an arena, torch's allocator on top of it, and the engine."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from daf import setting_docs
from daf.config import Config
from daf.ending import Ending
from daf.errors import DafError
from daf.sizes import format_bytes

OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
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

    def __init__(
        self,
        config: Config | None = None,
        *,
        budget: str | int | None = None,
        bits: str | int | None = None,
        ratio: str | float | None = None,
        max_error: str | float | None = None,
        max_slowdown: str | float | None = None,
        floor: int | None = None,
        spill: str | Path | None = None,
        page_bytes: str | int | None = None,
        cpu_allocator: str | bool | None = None,
        packing: str | None = None,
        rounding: str | None = None,
        sidecar: str | bool | None = None,
        name: str | None = None,
        trace: str | Path | None = None,
        profiling: str | bool | None = None,
        deterministic: str | bool | None = None,
        **unknown: object,
    ) -> None:
        settings: dict[str, object] = {
            "budget": budget,
            "bits": bits,
            "ratio": ratio,
            "max_error": max_error,
            "max_slowdown": max_slowdown,
            "floor": floor,
        }
        settings |= {"spill": spill, "page_bytes": page_bytes, "cpu_allocator": cpu_allocator, "packing": packing}
        settings |= {"rounding": rounding, "sidecar": sidecar, "name": name, "trace": trace, "profiling": profiling}
        settings |= {"deterministic": deterministic}
        given = {word: value for word, value in settings.items() if value is not None} | unknown
        if config is not None and given:
            raise ValueError(f"give a config or settings, not both: {', '.join(sorted(given))}")
        self.config = config or Config.read(given)
        self.arena: Any = None
        self.engine: Any = None
        self._final: dict[str, Any] = {}
        self._exporter: Any = None
        self._owner_pid = 0
        self._ending = Ending()
        self._kinds: Any = None
        self._forget_neighbours: Callable[[], None] = lambda: None
        self._from_environment = False
        self._profile: Any = None

    def start(self) -> Session:
        global _active
        with _lock:
            if _active is not None and _active is not self:
                if not _active._from_environment:
                    raise DafError("a daf.Session is open in this process already; close it first")
                _active._stop()
                _active._ending.forget()
            _active = self
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Switch DAF off. Tensors and stashes that live on keep their memory until they are freed."""
        self._leave()
        self._ending.forget()

    def _leave(self) -> None:
        """What `close` does, and what happens at exit: then how the process ends is still watched for its exit code."""
        global _active
        with _lock:
            if _active is self:
                _active = None
        self._stop()

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ending.tell(error)
        self.close()

    def stats(self) -> dict[str, Any]:
        """Return the numbers of the engine and of the arena that it keeps the budget of (the device's, on CUDA).

        They are those of now, and after the session was closed those of its end.
        """
        if self._final:
            return dict(self._final)
        if self.engine is None:
            raise DafError("the session is not open: use `with daf.Session(...)` or call start()")
        return {**self.engine.arena.stats(), **self.engine.stats()}

    @property
    def is_open(self) -> bool:
        return _active is self

    @property
    def has_stats(self) -> bool:
        return self.engine is not None

    def __repr__(self) -> str:
        from daf.session_view import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from daf.session_view import as_html

        return as_html(self)

    def set_budget(self, budget: str | int) -> Any:
        """Change the budget while training goes on; return the outcome: applied, pending or refused, and why."""
        if self.arena is None:
            raise DafError("the session is not open: use `with daf.Session(...)` or call start()")
        wanted, arena = Config.read({"budget": budget}).budget, self.engine.arena
        return arena.set_budget(wanted.resolve(share_bytes(os.environ) if arena is self.arena else _device_bytes()))

    def start_profiling(self) -> Any:
        """Sample from now on which lines and modules ask for memory; return the profile."""
        from daf.allocator.trace.profile import SUFFIX, Profile
        from daf.quant.measure.places import ModelPlaces

        if self.arena is None:
            raise DafError("the session is not open: use `with daf.Session(...)` or call start()")
        if self._profile is None:
            path = Path(self.arena.page_path).with_suffix(SUFFIX) if self.arena.page_path else None
            arena = self.arena
            profile = Profile(ModelPlaces(self.engine.scope), path, lambda: int(arena.num_profiles_asked))
            self._profile = profile.start()
        return self._profile

    def _heed(self) -> None:
        """What a watcher asked for since the last step: a profile."""
        if self._profile is None and self.arena.num_profiles_asked:
            self.start_profiling()

    def _start(self) -> None:
        from daf.allocator import Arena, install_cpu, maybe_install_cuda, start_trace
        from daf.quant import Engine, Wish
        from daf.quant.measure.kinds import Kinds

        config = self.config
        _question(config.budget.num_bytes)
        self._owner_pid = os.getpid()
        self.arena = Arena(
            budget_bytes=config.budget.resolve(share_bytes(os.environ)),
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
            wish=Wish(
                ratio=config.ratio,
                max_error=config.max_error,
                max_slowdown=None if config.deterministic else config.max_slowdown,  # measured seconds differ
            ),
            packing=config.packing,
            rounding=config.rounding,
            is_deterministic=config.deterministic,
        )
        self.engine.install()
        page = self.engine.arena.page_path
        self._kinds = Kinds(
            self.engine.arena, self.engine.scope.named_modules, Path(page).with_suffix(".modules") if page else None
        )
        self._kinds.install()
        if config.profiling:
            self.start_profiling()
        self._kinds.on_step = self._heed
        self._kinds.counts_steps = config.bits == "off"
        self._ending.watch(self.engine.arena.page_path)
        self._watch_neighbours()
        atexit.register(self._leave)
        self._final = {}
        if config.sidecar != "off":
            self._start_sidecar()
        self._start_exporter()

    def _start_sidecar(self) -> None:
        from daf.server import ensure_running, start_beside
        from daf.session_view import is_interactive

        try:
            if is_interactive() and self.config.sidecar == "on":  # nobody else says where it is
                print(f"DAF's dashboard: {ensure_running()}")
            else:
                start_beside(self.config.sidecar)
        except Exception as error:  # the run matters more than its page
            warnings.warn(f"DAF has no sidecar: {error}", RuntimeWarning, stacklevel=2)

    def _watch_neighbours(self) -> None:
        from daf.neighbours import maybe_watch

        try:
            self._forget_neighbours = maybe_watch(self.engine.arena.page_path)
        except DafError as error:  # the run matters more than who watches it
            warnings.warn(f"DAF's sidecars will not find each other: {error}", RuntimeWarning, stacklevel=2)

    def _start_exporter(self) -> None:
        if not any(os.environ.get(name) for name in OTLP_VARIABLES):
            return
        from daf.integrations import otlp

        try:
            self._exporter = otlp.start(self)
        except ImportError as error:
            advice = "pip install 'torch-daf[otel]'"
            warnings.warn(f"DAF sends no OpenTelemetry metrics: {error} ({advice})", RuntimeWarning, stacklevel=2)

    def _stop(self) -> None:
        if self._owner_pid != os.getpid():  # a forked child leaves its parent's session alone
            return
        atexit.unregister(self._leave)
        if self._exporter is not None:
            with contextlib.suppress(Exception):  # a collector that is gone must not hold up the end of a run
                self._exporter.shutdown(timeout_millis=5000)
            self._exporter = None
        if self._profile is not None:
            self._profile.stop()
            self._profile = None
        self._forget_neighbours()
        if self._kinds is not None:
            self._kinds.remove()
        if self.engine is not None:
            self.engine.remove()  # counts the last step
            self._final = self._final or self.stats()
        if self.arena is not None:
            self.arena.close()
        if self.config.trace:
            from daf.allocator import stop_trace

            stop_trace()


Session.__doc__ = "\n".join([inspect.cleandoc(Session.__doc__ or ""), "", *setting_docs.lines_of_keywords()])


def active() -> Session | None:
    """Return the session that is open in this process, if any."""
    return _active


def start_from_environment(environment: Mapping[str, str]) -> None:
    """Open a session as the `DAF_*` variables say, and below them the nearest file with settings."""
    from daf import settings_file
    from daf.allocator.place import is_launcher

    if is_launcher(sys.orig_argv):
        return

    for sentence in settings_file.misspelt(environment):
        warnings.warn(f"DAF: {sentence}", RuntimeWarning, stacklevel=2)
    session = Session(settings_file.config(environment))
    session._from_environment = True
    if multiprocessing.current_process().name == "MainProcess":
        session.start()
    else:
        _start_at_first_save(session)


def _start_at_first_save(session: Session) -> None:
    """Open `session` when autograd first saves a tensor.

    A child process may be a data loader's worker, which is left alone whatever it does, or a rank of a spawned job.
    """
    from torch.utils.data import get_worker_info

    from daf.quant.torch_internals import pop_hooks, push_hooks

    def pack(tensor: Any) -> Any:
        pop_hooks()
        try:
            if get_worker_info() is None:
                session.start()
        except Exception as error:  # the run goes on without DAF
            warnings.warn(f"DAF stays off: {error}", RuntimeWarning, stacklevel=2)
        return tensor

    push_hooks(pack, lambda tensor: tensor)


def share_bytes(environment: Mapping[str, str]) -> int:
    """Return this process's share of the free memory: the ranks that one launcher starts on a host have equal ones."""
    from daf.allocator.place import find_place

    return free_bytes() // find_place(environment).local_world_size


def free_bytes() -> int:
    """Return the memory that this process could still take: the machine's, or its control groups' if that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in _group_files(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")):
        with contextlib.suppress(OSError, ValueError):  # no such group, or no limit ("max")
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def _question(budget_bytes: int) -> None:
    """Warn of a budget of more memory than there is: it can hold nothing back."""
    import psutil

    machine_bytes = int(psutil.virtual_memory().total)
    if budget_bytes > machine_bytes:
        warnings.warn(
            f"DAF_BUDGET={format_bytes(budget_bytes)} is more than the {format_bytes(machine_bytes)} of this machine: "
            "the system would kill the run before the budget held it back; auto takes a part of what is free",
            RuntimeWarning,
            stacklevel=2,
        )


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
