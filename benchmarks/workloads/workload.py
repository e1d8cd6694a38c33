"""What a benchmark trains: a model, how a batch for it is made, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.data import DataFolder, MissingDataError

Batch = dict[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What every model can be asked for. A zero size means the model's own default.

    Dropout is the transformers' (0.1 is the library's default), on attention too where that is eager: the CPU has no
    fused attention with dropout. Without `data`, or where its file is missing, batches are random.
    """

    batch_size: int = 0
    seq_len: int = 0
    scale: float = 1.0
    dropout: float = 0.1
    seed: int = 0
    data: DataFolder | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, how the batch number n is made for it, and its loss. `blocks` are what checkpointing wraps."""

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


@dataclass(frozen=True, slots=True)
class Recipe:
    """A workload whose data is loaded and whose model is yet to be built, as often as wanted."""

    name: str
    make_model: Callable[[], tuple[nn.Module, list[nn.Module]]]  # the model and its blocks
    make_batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    seed: int = 0

    def build(self) -> Workload:
        torch.manual_seed(self.seed)
        model, blocks = self.make_model()
        model.train()  # what comes with real weights arrives in eval mode
        return Workload(self.name, model, self.make_batch, self.loss, blocks)


def scaled(size: int, scale: float, multiple: int = 1) -> int:
    """Return `size * scale`, rounded to a multiple and at least one of it."""
    return max(multiple, round(size * scale / multiple) * multiple)


def class_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Logits [B, classes] against classes [B]."""
    return F.cross_entropy(model(batch["x"]), batch["y"])


def masked_class_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The same for padded sentences: token ids [B, T] with their mask [B, T]."""
    logits = model(batch["x"], attention_mask=batch["mask"])
    return F.cross_entropy(getattr(logits, "logits", logits), batch["y"])


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Logits [B, T, vocab] against the tokens that follow [B, T]; computed outside the model, as many scripts do."""
    logits = model(batch["x"])
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())


def image_batches(options: Options, size: int) -> Callable[[int], Batch]:
    """Batches of `size` images of CIFAR-10, or of noise."""
    images = _unless_missing(options.data and options.data.cifar10)

    def make_batch(number: int) -> Batch:
        random = torch.Generator().manual_seed(number)
        if images is None:
            x = torch.randn(size, 3, 32, 32, generator=random)
            return {"x": x, "y": torch.randint(10, (size,), generator=random)}
        chosen = torch.randint(len(images[0].y), (size,), generator=random)
        return images[0].batch(chosen)

    return make_batch


def characters(options: Options) -> Tensor | None:
    """Return the text of charlm as ids, or None where there is no such file."""
    parts = _unless_missing(options.data and options.data.charlm)
    return parts[0] if parts else None


def _unless_missing(read: Callable[[], T] | None) -> T | None:
    try:
        return read() if read else None
    except MissingDataError:
        return None


def token_batches(size: int, steps: int, vocab: int, corpus: Tensor | None = None) -> Callable[[int], Batch]:
    """Batches of `size` windows of `steps` tokens and the tokens that follow, from `corpus` or random."""

    def make_batch(number: int) -> Batch:
        random = torch.Generator().manual_seed(number)
        if corpus is None:
            ids = torch.randint(vocab, (size, steps + 1), generator=random)
        else:
            starts = torch.randint(len(corpus) - steps - 1, (size, 1), generator=random)
            ids = corpus[starts + torch.arange(steps + 1)]
        return {"x": ids[:, :-1].contiguous(), "y": ids[:, 1:].contiguous()}

    return make_batch
