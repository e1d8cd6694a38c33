"""What `benchmarks.accuracy` trains: real data, a recipe of optimisation, and the number that says how well it went.

| task | model | metric |
|---|---|---|
| cifar10 | ResNet-18 (CIFAR stem) with a quarter of the channels, 10,000 images, crops and flips | accuracy, % |
| sst2 | MiniLM with LoRA, padded to the longest of the batch | accuracy, % |
| stsb | MiniLM with LoRA, cosine of two sentences against their score | Spearman x 100 |
| charlm | a GPT of 4 layers, 128 wide, on Shakespeare | loss, nats a character |
| e2e | the same on meaning representation -> sentence; only the sentence counts | loss, nats a character |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import transformer
from benchmarks.workloads.data import DataFolder
from benchmarks.workloads.nets import ResNet18, SmallGPT
from benchmarks.workloads.workload import Batch, Recipe, class_loss, masked_class_loss, next_token_loss, token_batches


@dataclass(frozen=True, slots=True)
class Task:
    """A recipe and how it is trained and judged. `is_better` is the sign of an improvement of the metric."""

    recipe: Recipe
    metric: str
    is_better: int
    num_steps: int
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    evaluate: Callable[[nn.Module], float]


def cifar10(data: DataFolder, seed: int, *, is_quick: bool) -> Task:
    train, test = data.cifar10()
    size = 100

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        model = ResNet18(width=16)
        return model, list(model.blocks)

    def make_batch(number: int) -> Batch:
        random = torch.Generator().manual_seed(1000 * seed + number)
        batch = train.batch(_shuffled(len(train.y), size, number, seed))
        return {"x": _augmented(batch["x"], random), "y": batch["y"]}

    def evaluate(model: nn.Module) -> float:
        parts = [test.batch(chosen) for chosen in torch.arange(len(test.y)).split(250)]
        right = sum(int((model(part["x"]).argmax(1) == part["y"]).sum()) for part in parts)
        return 100 * right / len(test.y)

    recipe = Recipe("cifar10", make_model, make_batch, class_loss, seed)
    return Task(recipe, "accuracy, %", 1, (2 if is_quick else 8) * len(train.y) // size, _sgd(0.1), evaluate)


def _augmented(x: Tensor, random: torch.Generator) -> Tensor:
    """Flip half of the images; shift all by up to four pixels each way. [B, 3, 32, 32] -> the same."""
    flips = torch.rand(len(x), 1, 1, 1, generator=random) < 0.5
    padded = F.pad(torch.where(flips, x.flip(3), x), (4, 4, 4, 4))
    top, left = (int(torch.randint(9, (1,), generator=random)) for _ in range(2))
    return padded[:, :, top : top + 32, left : left + 32].contiguous()


def _shuffled(num_items: int, size: int, number: int, seed: int) -> Tensor:
    """Return the items of batch `number` when each epoch is a shuffle of its own."""
    per_epoch = num_items // size
    epoch, place = divmod(number, per_epoch)
    order = torch.randperm(num_items, generator=torch.Generator().manual_seed(7919 * seed + epoch))
    return order[place * size : (place + 1) * size]


def sst2(data: DataFolder, seed: int, *, is_quick: bool) -> Task:
    train, dev = data.sst2("train"), data.sst2("dev")
    encode = transformer.sentence_encoder(64)

    def batch_of(rows: list[tuple[str, int]]) -> Batch:
        ids, mask = _trimmed(*encode([sentence for sentence, _ in rows]))
        return {"x": ids, "mask": mask, "y": torch.tensor([label for _, label in rows])}

    def make_batch(number: int) -> Batch:
        return batch_of([train[i] for i in _shuffled(len(train), 32, number, seed).tolist()])

    def evaluate(model: nn.Module) -> float:
        batches = [batch_of(dev[start : start + 109]) for start in range(0, len(dev), 109)]
        right = sum(int((model(b["x"], attention_mask=b["mask"]).argmax(1) == b["y"]).sum()) for b in batches)
        return 100 * right / len(dev)

    recipe = Recipe("sst2", _minilm_classifier, make_batch, masked_class_loss, seed)
    return Task(recipe, "accuracy, %", 1, 60 if is_quick else 200, _adam(1e-3), evaluate)


def _minilm_classifier() -> tuple[nn.Module, list[nn.Module]]:
    encoder = transformer.MiniLM(lora_rank=8)
    return transformer.MiniLMClassifier(encoder), encoder.layers


def _trimmed(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Cut padding that all rows share, to a multiple of 8 tokens."""
    longest = -(-int(mask.sum(1).max()) // 8) * 8
    return ids[:, :longest].contiguous(), mask[:, :longest].contiguous()


def stsb(data: DataFolder, seed: int, *, is_quick: bool) -> Task:
    train, test = data.stsb("train"), data.stsb("test")
    encode = transformer.sentence_encoder(64)

    def batch_of(rows: list[tuple[str, str, float]]) -> Batch:
        ids, mask = _trimmed(*encode([row[0] for row in rows] + [row[1] for row in rows]))
        return {"x": ids, "mask": mask, "y": torch.tensor([row[2] / 5 for row in rows])}

    def make_batch(number: int) -> Batch:
        return batch_of([train[i] for i in _shuffled(len(train), 32, number, seed).tolist()])

    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        model = transformer.MiniLM(lora_rank=8)
        return model, model.layers

    def evaluate(model: nn.Module) -> float:
        batches = [batch_of(test[start : start + 100]) for start in range(0, len(test), 100)]
        predicted = torch.cat([_similarity(model, batch) for batch in batches])
        return 100 * spearman(predicted, torch.cat([batch["y"] for batch in batches]))

    recipe = Recipe("stsb", make_model, make_batch, _similarity_loss, seed)
    return Task(recipe, "Spearman x 100", 1, 40 if is_quick else 150, _adam(5e-4), evaluate)


def _similarity(model: nn.Module, batch: Batch) -> Tensor:
    """Cosine of the two halves of a batch of sentences. -> [B / 2]."""
    first, second = model(batch["x"], attention_mask=batch["mask"]).chunk(2)
    return F.cosine_similarity(first, second)


def _similarity_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(_similarity(model, batch), batch["y"])


def spearman(x: Tensor, y: Tensor) -> float:
    """Return the correlation of the ranks of `x` [N] and `y` [N]; ties share their mean rank."""
    ranks = torch.stack([_ranks(x), _ranks(y)])
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(x: Tensor) -> Tensor:
    _, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[inverse]


def charlm(data: DataFolder, seed: int, *, is_quick: bool) -> Task:
    train, held_out, alphabet = data.charlm()
    make_batch = _with_seed(token_batches(32, 128, len(alphabet), corpus=train), seed)
    windows = held_out[: len(held_out) // 129 * 129].view(-1, 129)[:256]

    def evaluate(model: nn.Module) -> float:
        losses = [next_token_loss(model, {"x": w[:, :-1], "y": w[:, 1:]}) for w in windows.split(32)]
        return float(torch.stack(losses).mean())

    recipe = Recipe("charlm", _gpt_of(len(alphabet), 128), make_batch, next_token_loss, seed)
    return Task(recipe, "loss, nats", -1, 100 if is_quick else 600, _adam(2e-3), evaluate)


def _gpt_of(vocab: int, max_steps: int) -> Callable[[], tuple[nn.Module, list[nn.Module]]]:
    def make_model() -> tuple[nn.Module, list[nn.Module]]:
        model = SmallGPT(vocab=vocab, max_steps=max_steps, dim=128, num_layers=4, num_heads=4)
        return model, list(model.blocks)

    return make_model


def _with_seed(make_batch: Callable[[int], Batch], seed: int) -> Callable[[int], Batch]:
    return lambda number: make_batch(1_000_000 * seed + number)


def e2e(data: DataFolder, seed: int, *, is_quick: bool) -> Task:
    train, dev = data.e2e("train"), data.e2e("dev")
    max_steps = 320

    def batch_of(rows: list[tuple[str, str]]) -> Batch:
        coded = [_coded(mr, sentence, max_steps + 1) for mr, sentence in rows]
        longest = max(len(ids) for ids, _ in coded)
        ids = torch.stack([F.pad(ids, (0, longest - len(ids))) for ids, _ in coded])
        wanted = torch.stack([F.pad(wanted, (0, longest - len(wanted)), value=-100) for _, wanted in coded])
        return {"x": ids[:, :-1].contiguous(), "y": wanted[:, 1:].contiguous()}

    def make_batch(number: int) -> Batch:
        return batch_of([train[i] for i in _shuffled(len(train), 16, number, seed).tolist()])

    def evaluate(model: nn.Module) -> float:
        losses = [next_token_loss(model, batch_of(dev[start : start + 32])) for start in range(0, 512, 32)]
        return float(torch.stack(losses).mean())

    recipe = Recipe("e2e", _gpt_of(256, max_steps), make_batch, next_token_loss, seed)
    return Task(recipe, "loss, nats", -1, 80 if is_quick else 400, _adam(2e-3), evaluate)


def _coded(meaning: str, sentence: str, max_bytes: int) -> tuple[Tensor, Tensor]:
    """Bytes of `meaning`, a line end, `sentence`; and the same with what needs no prediction as -100."""
    head = (meaning + "\n").encode()
    ids = torch.tensor(list((head + (sentence + "\n").encode())[:max_bytes]))
    wanted = ids.clone()
    wanted[: len(head)] = -100
    return ids, wanted


def _sgd(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)


def _adam(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)


TASKS: dict[str, Callable[..., Task]] = {
    "cifar10": cifar10,
    "sst2": sst2,
    "stsb": stsb,
    "charlm": charlm,
    "e2e": e2e,
}
