"""Recurrent nets: fused layers, cells in a loop, both directions, packed sequences, states carried on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.zoo import data
from tests.zoo.language import VOCAB, next_token_loss
from tests.zoo.member import Member, adam, kind, seeded


class RecurrentModel(nn.Module):
    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN], width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layer = layer(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(ids))[0])


def recurrent(seed: int, layer: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN], lr: float = 5e-3) -> Member:
    model = RecurrentModel(layer)
    return Member(model, next_token_loss, data.tokens(seed, batch=16, length=49, vocab=VOCAB), adam(model, lr))


@kind(long_steps=200)
def lstm_language_model(seed: int) -> Member:
    return recurrent(seed, nn.LSTM)


@kind()
def gru_language_model(seed: int) -> Member:
    return recurrent(seed, nn.GRU)


@kind()
def tanh_rnn(seed: int) -> Member:
    return recurrent(seed, nn.RNN, lr=2e-3)


class Tagger(nn.Module):
    """Both directions over sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64, padding_idx=0)
        self.layer = nn.LSTM(64, 64, bidirectional=True, batch_first=True)
        self.head = nn.Linear(128, 8)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=ids.shape[1])[0])


@kind()
def bidirectional_lstm_packed(seed: int) -> Member:
    model = Tagger()
    plain = data.tokens(seed, batch=16, length=40, vocab=VOCAB)

    def make(number: int) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(10, 41, (16,), generator=seeded(seed + 5, number))
        return plain(number).masked_fill(torch.arange(40) >= lengths[:, None], 0), lengths

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, lengths = batch
        tags = (ids % 8).masked_fill(ids == 0, -1)
        return F.cross_entropy(model(ids, lengths).flatten(0, 1), tags.flatten(), ignore_index=-1)

    return Member(model, loss, make, adam(model, 5e-3))


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.cell, self.norm, self.head = nn.LSTMCell(64, 64), nn.LayerNorm(64), nn.Linear(64, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        h = c = x.new_zeros(len(ids), 64)
        out = []
        for step in range(ids.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
            out.append(self.norm(h))
        return self.head(torch.stack(out, 1))


@kind()
def lstm_cells_in_a_loop(seed: int) -> Member:
    model = CellLoop()
    return Member(model, next_token_loss, data.tokens(seed, batch=64, length=17, vocab=VOCAB), adam(model, 5e-3))


class Carried(nn.Module):
    """Truncated backpropagation: the state of a batch is the next one's first, detached."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(VOCAB, 64), nn.GRU(64, 64), nn.Linear(64, VOCAB)
        self.state: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        out, state = self.layer(self.embed(ids.t()), self.state)
        self.state = state.detach()
        return self.head(out.transpose(0, 1))


@kind()
def gru_with_carried_state(seed: int) -> Member:
    model = Carried()
    return Member(model, next_token_loss, data.tokens(seed, batch=32, length=25, vocab=VOCAB), adam(model, 5e-3))


class PointerNet(nn.Module):
    """Sorts numbers by pointing at them: additive attention by an LSTM cell, the chosen ones masked out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.LSTM(1, 64, batch_first=True), nn.LSTMCell(64, 64)
        self.keys, self.query, self.score = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        memory, (h, c) = self.encoder(x[..., None])
        state, keys = (h[0], c[0]), self.keys(memory)
        taken = torch.zeros_like(x, dtype=torch.bool)
        inputs, steps = memory.mean(1), []
        for step in range(x.shape[1]):
            state = self.cell(inputs, state)
            scores = self.score(torch.tanh(keys + self.query(state[0])[:, None]))[..., 0]
            steps.append(scores.masked_fill(taken, float("-inf")).log_softmax(-1))
            taken = taken.scatter(1, order[:, step : step + 1], True)
            inputs = memory[torch.arange(len(x)), order[:, step]]
        return torch.stack(steps, 1)


@kind()
def pointer_net(seed: int) -> Member:
    model = PointerNet()

    def make(number: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(64, 8, generator=seeded(seed, number))
        return x, x.argsort(1)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.nll_loss(model(*batch).flatten(0, 1), batch[1].flatten())

    return Member(model, loss, make, adam(model, 5e-3))
