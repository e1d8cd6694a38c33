"""What three trainings stash in one step: the streams of every saved activation, in the order forward saves them.

Shapes are those of the models; the streams are what the coders really write for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daf.kernels import Spec, coder

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved activation: its elements, its kind, and for matrices the length of a row."""

    numel: int
    kind: str = "dense"  # dense, relu or mask
    cols: int = 0

    @property
    def raw_bytes(self) -> int:
        return self.numel * (1 if self.kind == "mask" else FLOAT_BYTES)

    def stream_bytes(self, bits: int) -> tuple[int, ...]:
        """Return the bytes of each stream at so many bits."""
        if self.kind == "mask":
            return coder(Spec("bool", 1), "bool", self.numel).stream_bytes
        if self.kind == "relu":
            return coder(Spec("support", bits), "float32", self.numel).stream_bytes
        if self.cols:
            return coder(Spec("meansplit", bits, "column"), "float32", self.numel, self.cols).stream_bytes
        return coder(Spec("meansplit", bits), "float32", self.numel).stream_bytes


def resnet18(batch_size: int = 64) -> list[Saved]:
    """ResNet-18 with the CIFAR stem: each convolution's input, each batch norm's input."""
    saved = [Saved(batch_size * 3 * 32 * 32), Saved(batch_size * 64 * 32 * 32)]
    for width, size in ((64, 32), (128, 16), (256, 8), (512, 4)):
        per_map = batch_size * width * size * size
        for _ in range(4):
            saved += [Saved(per_map, "relu"), Saved(per_map)]
    return saved


def gpt2_lora(batch_size: int = 8) -> list[Saved]:
    """GPT-2 124M with LoRA on the attention projections, 128 tokens: twelve blocks."""
    tokens, width = batch_size * 128, 768
    hidden, inner = Saved(tokens * width, cols=width), Saved(tokens * 4 * width, cols=4 * width)
    attention = [hidden, hidden, hidden, Saved(tokens * width, "mask")]
    block = [hidden, hidden, *attention, hidden, Saved(tokens * width, "mask"), hidden, inner, inner]
    return block * 12


def mixed(batch_size: int = 16) -> list[Saved]:
    """Both one after the other: convolutions, then attention."""
    return resnet18(4 * batch_size) + gpt2_lora(max(1, batch_size // 2))


TRACES: dict[str, Callable[[int], list[Saved]]] = {"resnet18": resnet18, "gpt2-lora": gpt2_lora, "mixed": mixed}
BATCH_SIZES = {"resnet18": 64, "gpt2-lora": 8, "mixed": 16}
