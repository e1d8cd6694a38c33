"""The models of the benchmarks, each with its loss and its batches: `build("resnet18", batch_size=64)`.

| name | what it is | default batch |
|---|---|---|
| resnet18 | ResNet-18, CIFAR stem | 64 x 3 x 32 x 32 |
| gpt-small | a GPT of 6 layers, 256 wide, fused attention | 16 x 256 characters |
| minilm, minilm-fused | MiniLM-L6 with real weights, eager or fused attention, two classes | 32 x 64 tokens |
| minilm-lora, minilm-fused-lora | the same with LoRA r8 | 32 x 64 |
| gpt2, gpt2-lora | GPT-2 124M from a config, random weights, fused attention | 8 x 128 |
| gpt2-chars | GPT-2 of 4 layers, 256 wide, 65 characters, dropout on attention too | 8 x 128 |
| gpt2-medium-lora | GPT-2 Medium with LoRA r4 | 4 x 128 |
| roberta, roberta-lora | RoBERTa-base from a config, random weights, eager attention, two classes | 8 x 128 |

`scale` shrinks width and depth (0.25: a quarter of both) of all but MiniLM, whose weights are real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.workloads import transformer
from benchmarks.workloads.nets import ResNet18, SmallGPT
from benchmarks.workloads.workload import (
    Options,
    Recipe,
    Workload,
    characters,
    class_loss,
    image_batches,
    next_token_loss,
    scaled,
    token_batches,
)


def recipe(name: str, options: Options) -> Recipe:
    """Return the recipe of the workload `name`: its data is loaded, its model not yet built."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name](name, options)


def build(name: str, options: Options | None = None, **overrides: Any) -> Workload:
    """Return the workload `name`, weights drawn from `seed`. Keywords are those of `Options`."""
    return recipe(name, options or Options(**overrides)).build()


def _resnet18(name: str, options: Options) -> Recipe:
    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        model = ResNet18(width=scaled(64, options.scale, 8))
        return model, list(model.blocks)

    make_batch = image_batches(options, options.batch_size or 64)
    return Recipe(name, make_model, make_batch, class_loss, options.seed)


def _gpt_small(name: str, options: Options) -> Recipe:
    steps = options.seq_len or 256
    dim = scaled(256, options.scale, 32)

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        model = SmallGPT(max_steps=steps, dim=dim, num_layers=scaled(6, options.scale), num_heads=dim // 32)
        return model, list(model.blocks)

    make_batch = token_batches(options.batch_size or 16, steps, vocab=65, corpus=characters(options))
    return Recipe(name, make_model, make_batch, next_token_loss, options.seed)


MODELS: dict[str, Callable[[str, Options], Recipe]] = {
    "resnet18": _resnet18,
    "gpt-small": _gpt_small,
    "minilm": transformer.minilm,
    "minilm-fused": transformer.minilm,
    "minilm-lora": transformer.minilm,
    "minilm-fused-lora": transformer.minilm,
    "gpt2": transformer.gpt2,
    "gpt2-lora": transformer.gpt2,
    "gpt2-chars": transformer.gpt2_chars,
    "gpt2-medium-lora": transformer.gpt2,
    "roberta": transformer.roberta,
    "roberta-lora": transformer.roberta,
}
