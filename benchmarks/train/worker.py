"""A process that trains one model by one method, on command: its memory is its own, its steps interleave with others'.

The parent writes one JSON request a line (`{"do": "step"}`), the worker answers each with one JSON line.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.tools.memory_limit import MemoryLimit


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker trains, and how.

    `plain_saved_bytes` is what a ratio of DAF's refers to; `limit_bytes` the limit that the process is under, if any.
    """

    model: str
    method: str
    data: str = ""
    batch_size: int = 0
    seq_len: int = 0
    scale: float = 1.0
    dropout: float = 0.1
    threads: int = 0
    plain_saved_bytes: int = 0
    limit_bytes: int = 0
    is_compiled: bool = False


class WorkerError(Exception):
    """The worker could not do what it was asked; the message is its own."""


class Worker:
    """The parent's side. Leaves no process behind: use it as a context."""

    def __init__(self, job: Job, limit: MemoryLimit | None = None) -> None:
        self.job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train.worker", json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if limit:
            limit.add(self._process.pid)
        try:
            self._read()  # ready
        except WorkerError:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer's absence says so
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        return self._read()

    def close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise WorkerError(f"{self.job.method} on {self.job.model} ended with status {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.job.method} on {self.job.model}: {answer['error']}")
        return answer["result"]


def serve(job: Job) -> None:
    """Answer requests until the parent closes the pipe. Whatever libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(work: Callable[[], Any]) -> None:
        try:
            reply = {"result": work()}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")

    training: list[Any] = []
    answer(lambda: training.append(_start(job)))
    for line in sys.stdin:
        request = json.loads(line)
        answer(functools.partial(getattr(training[0], request.pop("do")), **request))


def _start(job: Job) -> Any:
    from benchmarks.train.training import Training

    return Training(job)


if __name__ == "__main__":
    serve(Job(**json.loads(sys.argv[1])))
