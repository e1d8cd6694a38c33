"""Is the budget kept? A training at half of what it needs, sampled every millisecond, then at an impossible budget.

    python -m benchmarks.budget [--json FILE] [--scale 1.0]

A stack of layer norm, linear and GELU: two fifths of what plain training holds are parameters and their gradients that
nothing can shrink; the rest are saved activations. At scale 1 plain training needs 1.0 GiB of tensors and stashes.
Rows: plain (compression off, no limit), half (8 bits, half of plain's need: planes have to go), impossible (little
more than the parameters: torch's OutOfMemoryError, then a small batch in the same process).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

import daf
from daf.sizes import format_bytes

WIDTH = 256
NUM_BLOCKS = 14
NUM_TOKENS = 14336
NUM_WEIGHTS = 64
WEIGHT_NUMEL = 800_000
SMALL_BATCH = 1 / 64
SAMPLE_SECONDS = 0.001


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


class Sampler:
    """Looks at the arena from a thread of its own, as an observer that the run does not know of."""

    def __init__(self, session: daf.Session) -> None:
        self.peak_bytes = self.num_samples = 0
        self._session = session
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, int(self._session.stats()["resident_bytes"]))
            self.num_samples += 1

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    start = time.perf_counter()
    plain = run("plain", 1 << 36, "off", options.scale)
    need = plain.peak_held_bytes
    rows = [
        plain,
        run("half", need // 2, 8, options.scale),
        run("impossible", impossible_bytes(options.scale), 8, options.scale),
    ]
    print(f"{'run':<12}{'budget':>11}{'sampled peak':>14}{'samples':>9}{'evictions':>11}{'loss':>10}")
    for row in rows:
        print(
            f"{row.run:<12}{format_bytes(row.budget_bytes):>11}{format_bytes(row.sampled_peak_bytes):>14}"
            f"{row.num_samples:>9}{row.num_evictions:>11}{row.loss:>10.4f}"
        )
    print(f"impossible: {rows[-1].error}\n({time.perf_counter() - start:.0f} s)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
