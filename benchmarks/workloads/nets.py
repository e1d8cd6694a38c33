"""Networks that are written here rather than taken from a library: ResNet-18 with the CIFAR stem, a small GPT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. [B, in, H, W] -> [B, out, H / stride, W / stride]."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 with the CIFAR stem: one 3x3 convolution, no pooling before the stages.

    `width` is the channel count of the first stage (64 in the paper). [B, 3, 32, 32] -> [B, num_classes].
    """

    def __init__(self, *, num_classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        in_channels = width
        for stage in range(4):
            out_channels = width << stage
            blocks.append(BasicBlock(in_channels, out_channels, 1 if stage == 0 else 2))
            blocks.append(BasicBlock(out_channels, out_channels, 1))
            in_channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class GPTBlock(nn.Module):
    """Pre-norm attention and MLP. [B, T, dim] -> [B, T, dim]."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, dim = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, steps, 3, self.num_heads, dim // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, steps, dim))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """A character-sized GPT with fused attention. Token ids [B, T] -> logits [B, T, vocab]."""

    def __init__(
        self, *, vocab: int = 65, max_steps: int = 256, dim: int = 256, num_layers: int = 6, num_heads: int = 8
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(max_steps, dim)
        self.blocks = nn.ModuleList(GPTBlock(dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.apply(_init_gpt)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _init_gpt(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
