"""Tables that are looked up: bags, sparse gradients, factorizations, hashing, word vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.generative import mlp
from tests.zoo.member import Member, adam, kind, seeded


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.most = nn.EmbeddingBag(500, 64, mode="mean"), nn.EmbeddingBag(500, 64, mode="max")
        self.sum = nn.EmbeddingBag(500, 64, mode="sum")
        self.head = mlp(192, 128, 5)

    def forward(self, ids: Tensor) -> Tensor:
        weights = torch.ones(ids.shape) / ids.shape[1]
        bags = [self.mean(ids), self.most(ids), self.sum(ids, per_sample_weights=weights)]
        return self.head(torch.cat(bags, -1))


@kind()
def embedding_bags(seed: int) -> Member:
    model = Bags()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids), ids.sum(1) % 5)

    def make(number: int) -> Tensor:
        return torch.randint(0, 500, (1024, 8), generator=seeded(seed, number))

    return Member(model, loss, make, adam(model, 5e-3))


@kind()
def sparse_embedding(seed: int) -> Member:
    """Sparse gradients, by SparseAdam; the rest of the net has an optimizer of its own."""
    model = nn.ModuleDict({"table": nn.Embedding(2000, 64, sparse=True), "net": mlp(256, 128, 1)})
    sparse = torch.optim.SparseAdam(list(model["table"].parameters()), lr=1e-2)
    dense = adam(model["net"], 2e-3)

    def make(number: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 2000, (1024, 4), generator=seeded(seed, number))
        return ids, (ids % 2).float().mean(1)

    def loss(model: nn.ModuleDict, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model["net"](model["table"](batch[0]).flatten(1))[:, 0], batch[1])

    def update(_member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        sparse.zero_grad()
        dense.zero_grad()
        value = loss(model, batch)
        value.backward()
        sparse.step()
        dense.step()
        return value.detach()

    return Member(model, loss, make, dense, update)


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(1000, 32), nn.Embedding(1000, 32)
        self.user_bias, self.item_bias = nn.Embedding(1000, 1), nn.Embedding(1000, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = (self.users(users) * self.items(items)).sum(-1)
        return product + self.user_bias(users)[:, 0] + self.item_bias(items)[:, 0]


@kind()
def matrix_factorization(seed: int) -> Member:
    """Also with BPR's pairwise loss on random negatives."""
    model = Factors()

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        users, items = torch.randint(0, 1000, (2, 2048), generator=generator)
        return users, items

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        users, items = batch
        rating = torch.cos(users / 100.0) * torch.cos(items / 100.0)
        ours = model(users, items)
        margin = (ours - model(users, items.roll(1))) * torch.sign(rating - rating.roll(1))
        return F.mse_loss(ours, rating) - 0.1 * F.logsigmoid(margin).mean()

    return Member(model, loss, make, adam(model, 2e-2))


class Skipgram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centre, self.context = nn.Embedding(1000, 64), nn.Embedding(1000, 64)

    def forward(self, words: Tensor, near: Tensor, far: Tensor) -> Tensor:
        x = self.centre(words)
        good = (x * self.context(near)).sum(-1)
        bad = torch.bmm(self.context(far), x[:, :, None])[..., 0]
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


@kind()
def word2vec(seed: int) -> Member:
    model = Skipgram()

    def make(number: int) -> tuple[Tensor, ...]:
        generator = seeded(seed, number)
        words = torch.randint(0, 1000, (1024,), generator=generator)
        return words, (words + 1) % 1000, torch.randint(0, 1000, (1024, 5), generator=generator)

    return Member(model, lambda model, batch: model(*batch), make, adam(model, 1e-2))


class Factorized(nn.Module):
    """DeepFM and DLRM: pairwise products of fields, by the square of the sum and by bmm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(800, 16), mlp(128, 128, 1)

    def forward(self, ids: Tensor) -> Tensor:
        fields = self.table(ids + 100 * torch.arange(8))
        second = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(-1)
        pairs = torch.bmm(fields, fields.transpose(1, 2))[:, *torch.triu_indices(8, 8, 1)].sum(-1)
        return second + 0.1 * pairs + self.deep(fields.flatten(1))[:, 0]


@kind()
def factorization_machine(seed: int) -> Member:
    model = Factorized()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(ids) / 10, ((ids[:, 0] + ids[:, 1]) % 3 == 0).float())

    def make(number: int) -> Tensor:
        return torch.randint(0, 100, (2048, 8), generator=seeded(seed, number))

    return Member(model, loss, make, adam(model, 5e-3))
