"""What training loops add: accumulation, mixed precision, scalers, adapters, averages, several tasks and optimizers."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.zoo import data
from tests.zoo.generative import mlp
from tests.zoo.language import VOCAB, Decoder, RMSNorm, fused, next_token_loss
from tests.zoo.member import Member, adam, kind, sgd

CLASSES = 8


def class_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def classifier(seed: int, model: nn.Module, update: Any, *, batch: int = 1024) -> Member:
    batches = data.labelled(seed, batch=batch, inputs=64, classes=CLASSES)
    return Member(model, class_loss, batches, adam(model, 2e-3), update)


@kind()
def gradient_accumulation(seed: int) -> Member:
    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        member.optimizer.zero_grad()
        total = torch.zeros(())
        for x, labels in zip(batch[0].chunk(4), batch[1].chunk(4), strict=True):
            loss = F.cross_entropy(member.model(x), labels) / 4
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(member.model.parameters(), 1.0)
        member.optimizer.step()
        return total

    return classifier(seed, mlp(64, 256, 256, CLASSES), update, batch=4096)


@kind()
def bfloat16_autocast(seed: int) -> Member:
    model = Decoder(fused, RMSNorm)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return next_token_loss(model, batch)

    return Member(model, loss, data.tokens(seed, batch=16, length=49, vocab=VOCAB), adam(model, 3e-3))


@kind()
def bfloat16_weights(seed: int) -> Member:
    model = mlp(64, 256, 256, CLASSES, activation=nn.GELU).bfloat16()
    plain = data.labelled(seed, batch=2048, inputs=64, classes=CLASSES)

    def make(number: int) -> tuple[Tensor, Tensor]:
        x, labels = plain(number)
        return x.bfloat16(), labels

    return Member(model, class_loss, make, adam(model, 2e-3))


@kind()
def float16_with_overflows(seed: int) -> Member:
    """A GradScaler that begins far too high: the first steps overflow and are left out."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, CLASSES))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=8)

    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        member.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(batch[0])
        loss = F.cross_entropy(scores.float(), batch[1])
        scaler.scale(loss).backward()
        scaler.unscale_(member.optimizer)
        scaler.step(member.optimizer)
        scaler.update()
        return loss.detach()

    return classifier(seed, model, update, batch=768)


@kind(needs="peft")
def lora(seed: int) -> Member:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    model: Any = get_peft_model(base, LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)).train()

    def loss(model: Any, batch: Tensor) -> Tensor:
        return model(input_ids=batch, labels=batch).loss  # type: ignore[no-any-return]

    optimizer = adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    return Member(model, loss, data.tokens(seed, batch=8, length=48, vocab=VOCAB), optimizer)


@kind()
def mean_teacher(seed: int) -> Member:
    """A slow average of the weights makes the targets of unlabelled data."""
    model = mlp(64, 256, 256, CLASSES)
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        noisy = batch[0] + 0.2 * torch.randn_like(batch[0])
        with torch.no_grad():
            target = teacher(batch[0]).softmax(-1)
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        scores = model(noisy)
        return F.cross_entropy(scores[:512], batch[1][:512]) + F.mse_loss(scores.softmax(-1), target)

    return Member(model, loss, data.labelled(seed, batch=1024, inputs=64, classes=CLASSES), adam(model, 2e-3))


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.kind, self.size = nn.Linear(256, CLASSES), nn.Linear(256, 1)
        self.log_variance = nn.Parameter(torch.zeros(2))


@kind()
def several_tasks(seed: int) -> Member:
    """One trunk, two heads, weights of the losses learned."""
    model = Tasks()

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        h = model.trunk(batch[0])
        losses = torch.stack(
            [F.cross_entropy(model.kind(h), batch[1]), F.mse_loss(model.size(h)[:, 0], batch[0].norm(dim=-1) / 8)]
        )
        return (losses * torch.exp(-model.log_variance) + 0.5 * model.log_variance).sum()

    return Member(model, loss, data.labelled(seed, batch=1024, inputs=64, classes=CLASSES), adam(model, 2e-3))


@kind()
def gradient_reversal(seed: int) -> Member:
    """Domain-adversarial: a hook turns the gradient round; two optimizers."""
    model = nn.ModuleDict({"trunk": mlp(64, 256, 256), "kind": nn.Linear(256, CLASSES), "domain": mlp(256, 64, 1)})
    both = adam([*model["trunk"].parameters(), *model["kind"].parameters()], 2e-3), sgd(model["domain"], 0.02)

    def update(_member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        for optimizer in both:
            optimizer.zero_grad()
        h = torch.tanh(model["trunk"](batch[0]))
        turned = h * 1
        turned.register_hook(lambda grad: -0.1 * grad)
        domain = (torch.arange(len(h)) % 2).float()
        loss = F.cross_entropy(model["kind"](h), batch[1])
        (loss + F.binary_cross_entropy_with_logits(model["domain"](turned)[:, 0], domain)).backward()
        for optimizer in both:
            optimizer.step()
        return loss.detach()

    return Member(
        model,
        lambda *_: torch.zeros(()),
        data.labelled(seed, batch=1024, inputs=64, classes=CLASSES),
        both[0],
        update,
    )


@kind()
def weight_norm(seed: int) -> Member:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(64, 256)),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(256, 256)),
        nn.ReLU(),
        nn.Linear(256, CLASSES),
    )
    return Member(model, class_loss, data.labelled(seed, batch=1024, inputs=64, classes=CLASSES), adam(model, 2e-3))


@kind()
def spectral_norm(seed: int) -> Member:
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 16, 3, padding=1)),
        nn.LeakyReLU(0.2),
        parametrizations.spectral_norm(nn.Conv2d(16, 32, 3, 2, 1)),
        nn.LeakyReLU(0.2),
        parametrizations.orthogonal(nn.Conv2d(32, 32, 1)),
        nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    return Member(model, class_loss, data.images(seed, batch=64, size=16), adam(model, 2e-3))


@kind()
def mixup_with_sam(seed: int) -> Member:
    """Mixed inputs; sharpness-aware: two backwards a step, weights moved in between."""
    model = mlp(64, 256, 256, CLASSES, activation=nn.SiLU)

    def update(member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = 0.7 * batch[0] + 0.3 * batch[0].flip(0)
        weights = list(model.parameters())
        moved: list[Tensor] = []
        for is_second in (False, True):
            member.optimizer.zero_grad()
            scores = model(x)
            loss = 0.7 * F.cross_entropy(scores, batch[1]) + 0.3 * F.cross_entropy(scores, batch[1].flip(0))
            loss.backward()
            with torch.no_grad():
                for weight, step in zip(weights, moved, strict=True) if is_second else ():
                    weight.sub_(step)
                if not is_second:
                    norm = torch.stack([w.grad.norm() for w in weights if w.grad is not None]).norm()
                    moved = [0.05 * w.grad / norm for w in weights if w.grad is not None]
                    for weight, step in zip(weights, moved, strict=True):
                        weight.add_(step)
        member.optimizer.step()
        return loss.detach()

    return classifier(seed, model, update)


@kind()
def lbfgs(seed: int) -> Member:
    """An optimizer that calls the model several times a step."""
    model = mlp(16, 256, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3, history_size=5)
    batches = data.points(seed, batch=512, inputs=16)

    def update(_member: Member, batch: tuple[Tensor, Tensor]) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return Member(model, lambda *_: torch.zeros(()), lambda _: batches(0), optimizer, update)


@kind()
def frozen_trunk(seed: int) -> Member:
    """Only the head and the norms are trained."""
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 256), nn.GELU())
    for layer in model:
        layer.requires_grad_(isinstance(layer, nn.LayerNorm))
    model.append(nn.Linear(256, CLASSES))
    optimizer = adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    return Member(model, class_loss, data.labelled(seed, batch=1024, inputs=64, classes=CLASSES), optimizer)
