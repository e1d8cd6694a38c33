"""One trial: a few steps of a script in a process of its own, under one budget, watched through its stats page."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Trial:
    """What a few steps at one budget came to. `fits` is False where they ended out of memory.

    live_bytes    the most that was in use at once
    plain_bytes   what plain training would have needed for it
    fixed_bytes   of that, parameters, gradients and optimizer state
    """

    budget_bytes: int
    fits: bool
    error: float
    step_seconds: float
    live_bytes: int
    plain_bytes: int
    fixed_bytes: int


@dataclass(frozen=True, slots=True)
class Trials:
    """How a script is tried: its command, how many steps it is to make, and the seconds that it has for them."""

    command: Sequence[str]
    steps: int
    seconds: float

    def run(self, settings: Mapping[str, str], command: Sequence[str] | None = None) -> Trial | None:
        """Run the command under DAF until its steps are made; None where it ended or stood still before that."""
        with tempfile.TemporaryDirectory(prefix="daf-fit-") as folder:
            environment = {**os.environ, "PYTORCH_ALLOCATOR": "daf", "DAF_SIDECAR": "off", **settings}
            environment["DAF_RUNTIME_DIR"] = folder
            child = subprocess.Popen(
                command or self.command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                values = self._watch(child, pathlib.Path(folder))
            finally:
                child.kill()
                child.wait()
        if values.get("steps_total", 0) < self.steps or values.get("oom_total"):
            return None
        return trial_of(values)

    def _watch(self, child: subprocess.Popen[bytes], folder: pathlib.Path) -> dict[str, float]:
        """Return the figures of the child when it has made its steps, has ended, or the time is up."""
        from daf.allocator.stats import reader

        deadline, values = time.monotonic() + self.seconds, {}
        while time.monotonic() < deadline:
            has_ended = child.poll() is not None
            for page in reader.discover(folder):
                values = dict(page.snapshot().values)
                page.close()
            if has_ended or values.get("steps_total", 0) >= self.steps:
                break
            time.sleep(POLL_SECONDS)
        return values


def trial_of(values: Mapping[str, float]) -> Trial:
    from daf.server.fleet.kinds import plain_bytes

    fixed = sum(values.get(f"{kind}_bytes", 0) for kind in ("parameter", "gradient", "optimizer"))
    return Trial(
        budget_bytes=int(values["budget_bytes"]),
        fits=True,
        error=values.get("measured_error_ratio") or values.get("expected_error_ratio", 0.0),
        step_seconds=values.get("step_seconds", 0.0),
        live_bytes=int(values.get("peak_live_bytes", 0)),
        plain_bytes=plain_bytes(values),
        fixed_bytes=int(fixed),
    )


def failed(budget_bytes: int) -> Trial:
    return Trial(budget_bytes, False, 0.0, 0.0, 0, 0, 0)
