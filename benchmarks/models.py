"""The models of the benchmarks, each with its loss and a batch: `build("resnet18", batch_size=64)`.

| name | what it is | default batch |
|---|---|---|
| resnet18 | ResNet-18, CIFAR stem | 64 x 3 x 32 x 32 |
| gpt-small | a GPT of 6 layers, 256 wide, fused attention | 16 x 256 tokens |

`scale` shrinks width and depth (0.25: a quarter of both) of all but what has real weights.
Dropout is off unless asked for: attention dropout also turns fused attention off on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.nets import ResNet18, SmallGPT
from benchmarks.workload import Batch, Options, Workload


def build(name: str, options: Options | None = None, **overrides: Any) -> Workload:
    """Return the workload `name`, weights drawn from `seed`. Keywords are those of `Options`."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are {', '.join(MODELS)}")
    options = options or Options(**overrides)
    torch.manual_seed(options.seed)
    return MODELS[name](name, options)


def _scaled(size: int, scale: float, multiple: int = 1) -> int:
    return max(multiple, round(size * scale / multiple) * multiple)


def _resnet18(name: str, options: Options) -> Workload:
    model = ResNet18(width=_scaled(64, options.scale, 8))
    size = options.batch_size or 64

    def make_batch(seed: int) -> Batch:
        random = torch.Generator().manual_seed(seed)
        return {
            "x": torch.randn(size, 3, 32, 32, generator=random),
            "y": torch.randint(10, (size,), generator=random),
        }

    return Workload(name, model, make_batch, _image_loss, list(model.blocks))


def _image_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def _gpt_small(name: str, options: Options) -> Workload:
    steps = options.seq_len or 256
    dim = _scaled(256, options.scale, 32)
    model = SmallGPT(max_steps=steps, dim=dim, num_layers=_scaled(6, options.scale), num_heads=dim // 32)
    make_batch = _token_batches(options.batch_size or 16, steps, vocab=65)
    return Workload(name, model, make_batch, _next_token_loss, list(model.blocks))


def _token_batches(size: int, steps: int, vocab: int) -> Callable[[int], Batch]:
    def make_batch(seed: int) -> Batch:
        ids = torch.randint(vocab, (size, steps + 1), generator=torch.Generator().manual_seed(seed))
        return {"x": ids[:, :-1].contiguous(), "y": ids[:, 1:].contiguous()}

    return make_batch


def _next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["x"])
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.flatten(0, 1), batch["y"].flatten())


MODELS: dict[str, Callable[[str, Options], Workload]] = {
    "resnet18": _resnet18,
    "gpt-small": _gpt_small,
}
