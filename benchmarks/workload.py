"""What a benchmark trains: a model, how a batch for it is made, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Options:
    """What every model can be asked for. A zero size means the model's own default."""

    batch_size: int = 0
    seq_len: int = 0
    scale: float = 1.0
    dropout: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, how a batch for it is made, and its loss. `blocks` are what checkpointing wraps."""

    name: str
    model: nn.Module
    make_batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    blocks: list[nn.Module] = field(default_factory=list)

    def trainable(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def optimizer(self) -> torch.optim.Optimizer:
        """SGD without momentum: no state of its own, so memory is the model's and its activations'."""
        return torch.optim.SGD(self.trainable(), lr=1e-3)
