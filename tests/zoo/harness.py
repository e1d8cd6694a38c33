"""Trains a member plain and under DAF, and says how far apart the two came out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import daf
from tests.zoo.member import Kind, Member

STEPS = 30
SEEDS = (0, 1, 2)
LAST = 5  # steps whose mean loss is the final loss
TOLERANCE = 0.02  # of plain's final loss, where plain's own spread over seeds is smaller
MAX_NORM_RATIO = 10.0
BUDGET = "4GiB"
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "lossless": {"bits": "lossless"},
    "ratio 8": {"ratio": 8},
    "ratio 16": {"ratio": 16},
}
EXACT_MODES = ("default", "lossless")


@dataclasses.dataclass(slots=True)
class Run:
    """What one training gave. The weights are those after the last step."""

    losses: list[float]
    norms: list[float]
    weights: list[Tensor]
    stats: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def final(self) -> float:
        return statistics.fmean(self.losses[-LAST:])

    @property
    def ratio(self) -> float:
        """What the last step's saved tensors would take without DAF, over what they took."""
        return float(
            self.stats.get("last_step_saved_raw_bytes", 0) / max(self.stats.get("last_step_saved_bytes", 0), 1)
        )

    def equals(self, other: Run) -> bool:
        """Whether both saw the same losses and end with the same weights, to the last bit."""
        pairs = zip(self.weights, other.weights, strict=True)
        return _bits(self.losses) == _bits(other.losses) and all(_same(a, b) for a, b in pairs)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One member in one mode, beside plain torch.

    norm_ratio  the worst of the gradient's norm over plain's at the same step
    fault       what is wrong, empty where nothing is
    """

    name: str
    family: str
    mode: str
    steps: int
    ratio: float
    raw_bytes: int
    plain_loss: float
    loss: float
    norm_ratio: float
    is_equal: bool
    failures: int
    fault: str


def train(kind: Kind, steps: int, seed: int = 0, settings: dict[str, Any] | None = None) -> Run:
    """Train `kind` for so many steps: under DAF with `settings`, or plain where they are None."""
    torch.manual_seed(seed)
    member = kind.build(seed)
    torch.manual_seed(seed + 1)
    run = Run([], [], [])
    with _one_thread(), _session(settings) as session:
        for number in range(steps):
            run.losses.append(member.step(number))
            run.norms.append(gradient_norm(member))
        if session is not None:
            run.stats = session.stats()
    run.weights = [parameter.detach().clone() for parameter in member.parameters()]
    return run


@contextlib.contextmanager
def _session(settings: dict[str, Any] | None) -> Iterator[daf.Session | None]:
    if settings is None:
        yield None
        return
    with daf.Session(cpu_allocator=False, **{"budget": BUDGET, **settings}) as session:
        yield session


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are added up in the same order each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)


def gradient_norm(member: Member) -> float:
    grads = [parameter.grad for parameter in member.parameters() if parameter.grad is not None]
    dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
    return math.sqrt(sum(float(grad.detach().abs().double().square().sum()) for grad in dense))


class Keeper:
    """Holds the plain runs of one member, so that every mode is compared with the same ones.

    Further plain runs are made only when a mode comes out otherwise and the question is whether plain torch would too.
    """

    def __init__(self, kind: Kind, steps: int) -> None:
        self.kind, self.steps = kind, steps
        self.plain = train(kind, steps, SEEDS[0])

    @functools.cached_property
    def is_deterministic(self) -> bool:
        return self.plain.equals(train(self.kind, self.steps, SEEDS[0]))

    @functools.cached_property
    def spread(self) -> float:
        """Plain's final losses over the seeds: the largest less the smallest."""
        finals = [self.plain.final] + [train(self.kind, self.steps, seed).final for seed in SEEDS[1:]]
        return max(finals) - min(finals)

    def judge(self, mode: str) -> Verdict:
        plain, settings = self.plain, MODES[mode]
        try:
            run = train(self.kind, self.steps, 0, settings)
        except Exception as error:
            return self._verdict(mode, Run([math.nan], [math.nan], []), f"{type(error).__name__}: {error}")
        fault = self._exact_fault(run) if mode in EXACT_MODES else ""
        return self._verdict(mode, run, fault or self._fault(run, plain))

    def _exact_fault(self, run: Run) -> str:
        if run.equals(self.plain) or not self.is_deterministic:
            return ""
        step = _first_difference(run.losses, self.plain.losses)
        return f"not equal to plain: losses part at step {step + 1}" if step >= 0 else "weights not equal to plain's"

    def _fault(self, run: Run, plain: Run) -> str:
        if not all(map(math.isfinite, run.losses)) and all(map(math.isfinite, plain.losses)):
            return f"loss not finite at step {_first_bad(run.losses) + 1}"
        worst, step = norm_ratio(run, plain)
        if worst > MAX_NORM_RATIO:
            return f"gradient norm {worst:.3g} times plain's at step {step + 1}"
        allowed, gap = TOLERANCE * abs(plain.final), abs(run.final - plain.final)
        if gap > allowed and gap > self.spread:
            return f"final loss off by {run.final - plain.final:+.3g}, allowed {max(allowed, self.spread):.3g}"
        if run.final > self.kind.goal and self.steps >= self.kind.long_steps > 0:
            return f"final loss {run.final:.4g} above {self.kind.goal:g}"
        failures = run.stats.get("failures_total", 0)
        return f"{failures} failures inside DAF" if failures else ""

    def _verdict(self, mode: str, run: Run, fault: str) -> Verdict:
        plain, has_run = self.plain, bool(run.weights)
        return Verdict(
            name=self.kind.name,
            family=self.kind.family,
            mode=mode,
            steps=self.steps,
            ratio=run.ratio,
            raw_bytes=int(run.stats.get("last_step_saved_raw_bytes", 0)),
            plain_loss=plain.final,
            loss=run.final,
            norm_ratio=norm_ratio(run, plain)[0] if has_run else math.nan,
            is_equal=has_run and run.equals(plain),
            failures=int(run.stats.get("failures_total", 0)),
            fault=fault,
        )


def norm_ratio(run: Run, plain: Run) -> tuple[float, int]:
    """Return the worst ratio of gradient norms and its step; where plain's own is zero or not finite none is told."""
    worst, at = 0.0, 0
    for step, (ours, theirs) in enumerate(zip(run.norms, plain.norms, strict=True)):
        if not math.isfinite(theirs) or theirs == 0:
            continue
        ratio = ours / theirs if math.isfinite(ours) else math.inf
        if ratio > worst:
            worst, at = ratio, step
    return worst, at


def _first_bad(losses: list[float]) -> int:
    return next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), -1)


def _first_difference(ours: list[float], theirs: list[float]) -> int:
    return next((n for n, (a, b) in enumerate(zip(_bits(ours), _bits(theirs), strict=True)) if a != b), -1)


def _bits(losses: list[float]) -> list[str]:
    """Numbers as text, so that one NaN equals another."""
    return [loss.hex() for loss in losses]


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())
