"""Is the budget kept? A training at half of what it needs, sampled every millisecond, then at an impossible budget.

    python -m benchmarks.budget [--json FILE] [--scale 1.0]
    python -m benchmarks.budget --falling [--models resnet18,minilm]

A stack of layer norm, linear and GELU: two fifths of what plain training holds are parameters and their gradients that
nothing can shrink; the rest are saved activations. At scale 1 plain training needs 1.0 GiB of tensors and stashes.
Every run begins with a small batch, whose backward shows what reads each saved tensor: until then all are exact.
Rows: plain (compression off, no limit), half (8 bits, half of plain's need: planes have to go), impossible (little
more than the parameters: torch's OutOfMemoryError, then a small batch in the same process), and the recorded traces,
each replayed under 1.02 times the most that it holds. `--falling` is told in benchmarks/budget/falling.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from typing import Any

import psutil
import torch
from torch import Tensor, nn

import daf
from benchmarks.budget import falling
from benchmarks.native.replay import Replay
from benchmarks.replay.__main__ import TRACES
from benchmarks.tools.report import write_json
from benchmarks.tools.sampling import Sampler
from daf.allocator import Arena
from daf.allocator.trace.recording import read_trace
from daf.sizes import format_bytes

WIDTH = 256
NUM_BLOCKS = 14
NUM_TOKENS = 14336
NUM_WEIGHTS = 64
WEIGHT_NUMEL = 800_000
SMALL_BATCH = 1 / 64
UNLIMITED_BYTES = int(psutil.virtual_memory().total)  # a session warns of more


class Stack(nn.Module):
    """Cheap to compute for what it saves: every block keeps its norm's, its linear layer's and its GELU's input.

    `weights` are many parameters that cost memory and no time: they and their gradients stay, whatever happens.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(int(WEIGHT_NUMEL * scale)) for _ in range(NUM_WEIGHTS))
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(NUM_BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = x + nn.functional.gelu(self.linear(norm(x)))
        return x.square().mean() + sum(weight.mean() for weight in self.weights)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    run: str
    budget_bytes: int
    sampled_peak_bytes: int  # highest resident_bytes of the arena, looked at every millisecond
    peak_held_bytes: int  # highest sum of what cannot be dropped
    num_samples: int
    num_evictions: int
    loss: float
    error: str


def impossible_bytes(scale: float) -> int:
    """Return what parameters and gradients take, and a tenth: too little for the activations of a full batch."""
    parameters = NUM_WEIGHTS * int(WEIGHT_NUMEL * scale) + WIDTH * WIDTH
    return int(2.2 * 4 * parameters) + (3 << 18)


class Trainer:
    """A model that is trained by the step; batches are fractions of the full one."""

    def __init__(self, scale: float) -> None:
        torch.manual_seed(0)
        self._num_tokens = NUM_TOKENS * scale
        self._model = Stack(scale)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-2)

    def step(self, fraction: float = 1.0) -> float:
        self._optimizer.zero_grad(set_to_none=False)  # gradients stay: they are part of what cannot shrink
        loss: Tensor = self._model(torch.randn(int(self._num_tokens * fraction), WIDTH))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()


def run(name: str, budget_bytes: int, bits: Any, scale: float, num_steps: int = 3) -> Row:
    """Train under a session of that budget; running out of memory is a result too, if a small batch then works."""
    error = ""
    with daf.Session(budget=budget_bytes, bits=bits) as session, Sampler(session) as sampler:
        trainer = Trainer(scale)
        trainer.step(SMALL_BATCH)  # what reads a saved tensor is seen in a backward; until then it is stored as it is
        try:
            loss = [trainer.step() for _ in range(num_steps)][-1]
        except torch.OutOfMemoryError as caught:
            error = str(caught)
        if error:
            loss = trainer.step(SMALL_BATCH)
        stats = session.stats()
    return Row(
        name,
        budget_bytes,
        sampler.peak_bytes,
        int(stats["peak_held_bytes"]),
        sampler.num_samples,
        int(stats["evictions_total"]),
        loss,
        error,
    )


def replay(path: pathlib.Path) -> Row:
    """Replay a recorded trace within two percent of what it cannot do without."""
    trace = Replay(read_trace(path))
    with Arena(UNLIMITED_BYTES, publish=False) as arena:
        trace.run(arena)
        budget_bytes = int(arena.stats()["peak_held_bytes"]) * 102 // 100
    with Arena(budget_bytes, publish=False) as arena, Sampler(arena) as sampler:
        trace.run(arena)
        stats = arena.stats()
    return Row(
        path.stem,
        budget_bytes,
        max(sampler.peak_bytes, int(stats["peak_resident_bytes"])),
        int(stats["peak_held_bytes"]),
        sampler.num_samples,
        int(stats["evictions_total"]),
        0.0,
        "",
    )


def show_falling(models: str, path: str | None) -> None:
    rows = []
    for model in models.split(","):
        of_model = falling.fall(model)
        falling.show(of_model)
        rows += of_model
    if path:
        write_json(path, map(dataclasses.asdict, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--falling", action="store_true")
    parser.add_argument("--models", default=",".join(falling.MODELS))
    options = parser.parse_args()
    if options.falling:
        show_falling(options.models, options.json)
        return
    start = time.perf_counter()
    plain = run("plain", UNLIMITED_BYTES, "off", options.scale)
    need = plain.peak_held_bytes
    rows = [
        plain,
        run("half", need // 2, 8, options.scale),
        run("impossible", impossible_bytes(options.scale), 8, options.scale),
    ]
    error = rows[-1].error
    rows += [replay(path) for path in sorted(TRACES.glob("*.csv"))]
    print(f"{'run':<12}{'budget':>11}{'sampled peak':>14}{'samples':>9}{'evictions':>11}{'loss':>10}")
    for row in rows:
        print(
            f"{row.run:<12}{format_bytes(row.budget_bytes):>11}{format_bytes(row.sampled_peak_bytes):>14}"
            f"{row.num_samples:>9}{row.num_evictions:>11}{row.loss:>10.4f}"
        )
    print(f"impossible: {error}\n({time.perf_counter() - start:.0f} s)")
    if options.json:
        write_json(options.json, map(dataclasses.asdict, rows))


if __name__ == "__main__":
    main()
