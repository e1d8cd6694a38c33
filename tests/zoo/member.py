"""What a member of the zoo is, and the list of all of them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = (
    "language",
    "pretrained_kinds",
    "vision",
    "recurrent",
    "generative",
    "graphs",
    "reinforcement",
    "losses",
    "science",
    "embeddings",
    "structure",
    "autograd_uses",
    "training_tricks",
)


@dataclasses.dataclass(slots=True)
class Member:
    """A model ready to train.

    batches  makes the batch of a step's number, the same whenever it is asked
    update   one whole step: gradients cleared and made, weights moved; returns the loss
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    batches: Callable[[int], Any]
    optimizer: torch.optim.Optimizer
    update: Callable[[Member, Any], Tensor] | None = None

    def step(self, number: int) -> float:
        return float((self.update or update_once)(self, self.batches(number)))

    def parameters(self) -> list[Tensor]:
        return list(self.model.parameters())


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A member that can be built, as often as wanted.

    needs       a package that it stands on, if any
    long_steps  steps to convergence; 0 where the short run is all
    goal        the highest loss that the long run may end with; infinite where plain torch's own loss is the measure
    """

    name: str
    family: str
    build: Callable[[int], Member]
    needs: str = ""
    long_steps: int = 0
    goal: float = float("inf")


KINDS: dict[str, Kind] = {}


def kind(
    *, needs: str = "", long_steps: int = 0, goal: float = float("inf")
) -> Callable[[Callable[[int], Member]], Callable[[int], Member]]:
    """Enter a factory `build(seed)` under the name of the function; torch is seeded with `seed` before it is called."""

    def enter(build: Callable[[int], Member]) -> Callable[[int], Member]:
        name, family = build.__name__, build.__module__.rpartition(".")[2]
        if name in KINDS and KINDS[name].family != family:
            raise ValueError(f"{name} is in {KINDS[name].family} and in {family}")
        KINDS[name] = Kind(name, family, build, needs, long_steps, goal)
        return build

    return enter


def load() -> dict[str, Kind]:
    """Import every family and return all kinds by name."""
    for family in FAMILIES:
        importlib.import_module(f"tests.zoo.{family}")
    return KINDS


def update_once(member: Member, batch: Any) -> Tensor:
    member.optimizer.zero_grad(set_to_none=True)
    loss = member.loss(member.model, batch)
    loss.backward()
    member.optimizer.step()
    return loss.detach()


def seeded(seed: int, number: int) -> torch.Generator:
    """Return the source of random numbers of one batch, apart from the one that models draw from."""
    return torch.Generator().manual_seed(1_000_003 * seed + number)


def adam(model: nn.Module | Iterable[Tensor], lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters() if isinstance(model, nn.Module) else model, lr=lr)


def sgd(model: nn.Module | Iterable[Tensor], lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters() if isinstance(model, nn.Module) else model, lr=lr, momentum=0.9)
