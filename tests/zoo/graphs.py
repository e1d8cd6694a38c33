"""Graph nets by index_add, scatter, softmax over neighbours and sparse products."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.member import Member, adam, kind, seeded

NODES, EDGES, WIDTH = 512, 2048, 64
Graph = tuple[Tensor, Tensor, Tensor, Tensor]


def graphs(seed: int) -> Callable[[int], Graph]:
    """Nodes [NODES, WIDTH], edges from and to, and a class that neighbours share."""

    def make(number: int) -> Graph:
        generator = seeded(seed, number)
        labels = torch.randint(0, 4, (NODES,), generator=generator)
        first = torch.randint(0, NODES, (EDGES,), generator=generator)
        second = (first + 4 * torch.randint(0, NODES // 4, (EDGES,), generator=generator)) % NODES
        x = torch.randn(NODES, WIDTH, generator=generator)
        x[:, 0] += labels
        return x, first, second, labels

    return make


def node_loss(model: nn.Module, graph: Graph) -> Tensor:
    x, first, second, labels = graph
    return F.cross_entropy(model(x, first, second), labels)


class MessagePassing(nn.Module):
    """Messages along edges, summed by index_add, over the root of the degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.updates = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        degree = torch.ones(NODES).index_add(0, second, torch.ones(EDGES)).sqrt()
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.relu(message(torch.cat([x[first], x[second]], -1)))
            x = update(torch.zeros_like(x).index_add(0, second, sent) / degree[:, None], x)
        return self.head(x)


@kind()
def message_passing(seed: int) -> Member:
    model = MessagePassing()
    return Member(model, node_loss, graphs(seed), adam(model, 5e-3))


class Attention(nn.Module):
    """GAT: a softmax over each node's neighbours by scatter_reduce (maximum) and scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 4 * WIDTH)
        self.score = nn.Parameter(0.1 * torch.randn(4, 2 * WIDTH))
        self.head = nn.Linear(4 * WIDTH, 4)

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        h = self.project(x).unflatten(-1, (4, WIDTH))
        pairs = torch.cat([h[first], h[second]], -1)
        scores = F.leaky_relu((pairs * self.score).sum(-1), 0.2)
        where = second[:, None].expand_as(scores)
        top = scores.new_full((NODES, 4), -1e9).scatter_reduce(0, where, scores, "amax")
        weights = (scores - top.detach()[second]).exp()
        total = weights.new_zeros(NODES, 4).scatter_add(0, where, weights) + 1e-9
        weights = weights / total[second]
        out = torch.zeros_like(h).index_add(0, second, h[first] * weights[..., None])
        return self.head(F.elu(out).flatten(1))


@kind()
def graph_attention(seed: int) -> Member:
    model = Attention()
    return Member(model, node_loss, graphs(seed), adam(model, 5e-3))


class Spectral(nn.Module):
    """GCN by a sparse matrix of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 128), nn.Linear(128, 4)

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        matrix = torch.sparse_coo_tensor(torch.stack([second, first]), torch.full((EDGES,), 0.2), (NODES, NODES))
        h = F.dropout(F.relu(torch.sparse.mm(matrix, self.first(x))), 0.2)
        return torch.sparse.mm(matrix, self.second(h)) + x[:, :4]


@kind()
def sparse_graph_convolution(seed: int) -> Member:
    model = Spectral()
    return Member(model, node_loss, graphs(seed), adam(model, 5e-3))


class PointCloud(nn.Module):
    """EdgeConv: k nearest neighbours by cdist, gathered, the maximum over them."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(8, largest=False).indices
        others = torch.gather(x[:, None].expand(-1, 64, -1, -1), 2, near[..., None].expand(-1, -1, -1, 3))
        here = x[:, :, None].expand_as(others)
        return self.head(self.edge(torch.cat([here, others - here], -1)).amax(2).amax(1))


@kind()
def point_cloud(seed: int) -> Member:
    model = PointCloud()

    def make(number: int) -> tuple[Tensor, Tensor]:
        generator = seeded(seed, number)
        labels = torch.randint(0, 2, (16,), generator=generator)
        x = torch.randn(16, 64, 3, generator=generator)
        return torch.where(labels[:, None, None] == 1, x / x.norm(dim=-1, keepdim=True), x), labels

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return Member(model, loss, make, adam(model, 3e-3))
