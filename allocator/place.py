"""Which job a process belongs to and where in it it stands, by what its launcher put into the environment.

Launchers differ in names alone, so each is one row of a table; the first whose rank is set is believed. A job is known
by the first of its names that is set, from what the user said to what two processes that meet have in common.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_CHARS = 80  # of a job, a host, a pod: they become labels
MAX_NUMBER_CHARS = 9
_PODS = "KUBERNETES_SERVICE_HOST"  # set in every container of a pod
_REPEATED = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """`job` is empty for a process on its own. `pod` and `namespace` are those of Kubernetes."""

    job: str
    host: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = ""
    pod: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables of a launcher. `needs`: one without which the others say nothing of this process."""

    name: str
    rank: str
    local_rank: str
    world_size: str
    local_world_size: str
    needs: str = ""


# The batch script of a Slurm job has a rank as well; only what `srun` starts is a task of a step.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    _Launcher(
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "mpi", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    _Launcher(
        "slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
        needs="SLURM_STEP_NUM_TASKS",
    ),
    _Launcher("mpi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Launcher("kubernetes", "JOB_COMPLETION_INDEX", "", "", "", needs=_PODS),
)  # fmt: skip


def find_place(environ: Mapping[str, str] | None = None) -> Place:
    """Return where the process with this environment stands."""
    environ = os.environ if environ is None else environ
    known = (
        it for it in _LAUNCHERS if _number(environ.get(it.rank)) is not None and (not it.needs or environ.get(it.needs))
    )
    row = next(known, None)
    rank = _read(environ, row.rank, 0) if row else 0
    world_size = max(_read(environ, row.world_size, 1) if row else 1, rank + 1)
    in_pod = _PODS in environ
    return Place(
        job=_bounded(_job(environ, world_size)).replace("/", "_"),  # it is a part of addresses
        host=_bounded(_host(environ)),
        rank=rank,
        local_rank=_read(environ, row.local_rank, 0) if row else 0,
        world_size=world_size,
        local_world_size=max(1, _local_world_size(environ, row)) if row else 1,
        launcher=row.name if row else "",
        pod=_bounded(environ.get("POD_NAME", "")) if in_pod else "",
        namespace=_bounded(environ.get("POD_NAMESPACE", "")) if in_pod else "",
    )


def is_launcher(words: Sequence[str]) -> bool:
    """Return whether a command line (`sys.orig_argv`) only starts ranks, each of which has a session of its own.

    >>> is_launcher(["python", "-m", "torch.distributed.run", "train.py"])
    True
    >>> is_launcher(["python", "/opt/bin/accelerate", "launch", "train.py"])
    True
    >>> is_launcher(["python", "train.py", "torchrun"])
    False
    """
    program, arguments = _program(words)
    if program in {"accelerate", "accelerate.commands.accelerate_cli", "fabric", "ray", "horovodrun"}:
        return program in {"ray", "horovodrun"} or arguments[:1] in (["launch"], ["run"])
    return program in _LAUNCHER_PROGRAMS


_LAUNCHER_PROGRAMS = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.agent",
        "accelerate.commands.launch", "accelerate-launch", "deepspeed", "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)  # fmt: skip
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of Python that take the next word


def _program(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the module or script that Python runs, by its last name, and its arguments."""
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return (rest.pop(0) if rest else ""), rest
        if word == "-c":
            return "", rest
        if word in _WITH_VALUE:
            del rest[:1]
        elif not word.startswith("-"):
            return pathlib.PurePath(word).name.removesuffix(".py"), rest
    return "", []


def _job(environ: Mapping[str, str], world_size: int) -> str:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "")
    if run_id == "none":  # what torchrun calls every job without an id
        run_id = ""
    in_pod = _PODS in environ
    named = (
        environ.get("DAF_JOB", ""),
        run_id,
        _slurm_job(environ),
        (environ.get("JOBSET_NAME", "") or environ.get("JOB_NAME", "")) if in_pod else "",
        environ.get("PMIX_NAMESPACE", ""),
        environ.get("RAY_JOB_ID", "") if world_size > 1 else "",
        _meeting_point(environ) if world_size > 1 else "",
    )
    return next(filter(None, named), "")


def _slurm_job(environ: Mapping[str, str]) -> str:
    """The job, and of further steps that run beside its first one the step."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    return f"{job}.{step}" if job and step != "0" else job


def _meeting_point(environ: Mapping[str, str]) -> str:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if address or port else ""


def _host(environ: Mapping[str, str]) -> str:
    in_pod = environ.get("NODE_NAME", "") if _PODS in environ else ""
    return environ.get("DAF_HOST", "") or environ.get("SLURMD_NODENAME", "") or in_pod or platform.node()


def _local_world_size(environ: Mapping[str, str], row: _Launcher) -> int:
    text = environ.get(row.local_world_size, "")
    if row.name != "slurm":
        return _read(environ, row.local_world_size, 1)
    counts: list[int] = []  # 2(x3),1: two tasks on each of three nodes, one on the fourth
    for part in text.split(",")[:4096]:
        found = _REPEATED.fullmatch(part)
        if found and len(counts) < 65536:
            counts += [int(found[1])] * min(65536, int(found[2] or 1))
    node = _read(environ, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else 1


def _read(environ: Mapping[str, str], name: str, default: int) -> int:
    number = _number(environ.get(name)) if name else None
    return default if number is None else number


def _number(text: str | None) -> int | None:
    """Read ASCII digits: `int` takes those of every script."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER_CHARS
    return int(text) if is_number and text else None


def _bounded(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:MAX_CHARS]
