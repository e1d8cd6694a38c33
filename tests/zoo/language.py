"""Language models written by hand: attention in its several spellings, norms written out, a copy task."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import data
from tests.zoo.member import Member, adam, kind, seeded

VOCAB = 96


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class RMSNorm(nn.Module):
    """As models of the Llama kind write it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores written out, the future set to minus infinity."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    mask = torch.full(scores.shape[-2:], float("-inf")).triu(1)
    weights = torch.exp(torch.log_softmax(scores + mask, -1))
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention by running sums over time."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    states = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
    total = torch.cumsum(k, dim=2)
    return torch.einsum("bhtd,bhtde->bhte", q, states) / (q * total).sum(-1, keepdim=True)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions by complex numbers, as Llama's first code has it: [batch, heads, time, width]."""
    frequency = 1.0 / 100 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = torch.outer(torch.arange(x.shape[-2]).float(), frequency)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


class Block(nn.Module):
    def __init__(
        self, width: int, attend: Callable[..., Tensor], norm: Callable[[int], nn.Module], *, is_rotary: bool = False
    ) -> None:
        super().__init__()
        self.attend, self.is_rotary = attend, is_rotary
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.is_rotary:
            q, k = rotate(q), rotate(k)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, attend: Callable[..., Tensor], norm: Callable[[int], nn.Module], **options: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.position = nn.Parameter(0.02 * torch.randn(64, 64))
        self.blocks = nn.Sequential(*(Block(64, attend, norm, **options) for _ in range(2)))
        self.norm = norm(64)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position[: ids.shape[1]]
        return self.norm(self.blocks(x)) @ self.embed.weight.t() / 8


def decoder(seed: int, attend: Callable[..., Tensor], norm: Callable[[int], nn.Module], **options: bool) -> Member:
    model = Decoder(attend, norm, **options)
    return Member(model, next_token_loss, data.tokens(seed, batch=8, length=49, vocab=VOCAB), adam(model, 3e-3))


@kind(long_steps=300)
def rms_transformer(seed: int) -> Member:
    return decoder(seed, fused, RMSNorm, is_rotary=True)


@kind()
def eager_attention_with_infinities(seed: int) -> Member:
    return decoder(seed, eager, nn.LayerNorm)


@kind()
def einsum_attention(seed: int) -> Member:
    return decoder(seed, by_einsum, nn.RMSNorm)


@kind()
def linear_attention(seed: int) -> Member:
    return decoder(seed, linear, nn.LayerNorm)


class CopyTransformer(nn.Module):
    """torch's own encoder layers over tokens; the answer at each place is the token itself."""

    def __init__(self, vocab: int = 32, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.position = nn.Parameter(0.02 * torch.randn(200, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position[: ids.shape[1]]
        return self.head(self.encoder(x, src_key_padding_mask=ids == 0))


def copy_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=0)


@kind(long_steps=900, goal=0.006)
def copy_transformer(seed: int) -> Member:
    model = CopyTransformer()

    def make(number: int) -> Tensor:
        generator = seeded(seed, number)
        length = int(torch.randint(100, 201, (), generator=generator))
        ids = torch.randint(1, 32, (4, length), generator=generator)
        ends = torch.randint(length // 2, length + 1, (4, 1), generator=generator)
        return ids.masked_fill(torch.arange(length) >= ends, 0)

    return Member(model, copy_loss, make, adam(model, 1e-3))


class Mixer(nn.Module):
    """gMLP: no attention, a gate over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 128)
        self.up, self.down = nn.Linear(128, 256), nn.Linear(128, 128)
        self.norm = nn.LayerNorm(128)
        self.over_time = nn.Parameter(0.02 * torch.randn(48, 48))
        self.head = nn.Linear(128, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        u, v = F.gelu(self.up(self.embed(ids))).chunk(2, -1)
        v = torch.einsum("ts,bsc->btc", self.over_time.tril(), self.norm(v)) + 1
        return self.head(self.down(u * v))


@kind()
def gated_mlp(seed: int) -> Member:
    model = Mixer()
    return Member(model, next_token_loss, data.tokens(seed, batch=16, length=49, vocab=VOCAB), adam(model, 3e-3))


class Experts(nn.Module):
    """Top-2 of 4 experts by index_add, with a balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
        self.head = nn.Linear(64, VOCAB)
        self.balance = torch.zeros(())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).flatten(0, 1)
        share = self.router(x).softmax(-1)
        weights, chosen = share.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, ranks, None])
        load = F.one_hot(chosen, 4).float().mean((0, 1))
        self.balance = 4 * (load * share.mean(0)).sum()
        return self.head(x + out).unflatten(0, ids.shape)


@kind()
def mixture_of_experts(seed: int) -> Member:
    model = Experts()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return next_token_loss(model, batch) + 0.01 * model.balance

    return Member(model, loss, data.tokens(seed, batch=16, length=49, vocab=VOCAB), adam(model, 3e-3))
