"""The whole step of small models: plain and under DAF in turn, in blocks as long as from one look to the next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import daf
from benchmarks.tools.report import Row
from daf.cli.demo.train import NUM_CHARACTERS, SmallGPT
from daf.quant.rest import LOOK_EVERY

Loss = Callable[[], Tensor]


def mlp() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y = torch.randn(128, 256), torch.randint(10, (128,))
    return model, lambda: F.cross_entropy(model(x), y)


def tiny_cnn() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )
    x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    return model, lambda: F.cross_entropy(model(x), y)


def lstm() -> tuple[nn.Module, Loss]:
    layers, head = nn.LSTM(32, 128, 2, batch_first=True), nn.Linear(128, 10)
    x, y = torch.randn(16, 32, 32), torch.randint(10, (16,))
    return nn.ModuleList([layers, head]), lambda: F.cross_entropy(head(layers(x)[0][:, -1]), y)


def actor_critic() -> tuple[nn.Module, Loss]:
    trunk, actor, critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh()), nn.Linear(64, 4), nn.Linear(64, 1)
    states, actions, returns = torch.randn(32, 8), torch.randint(4, (32,)), torch.randn(32)

    def loss() -> Tensor:
        hidden = trunk(states)
        policy, value = torch.distributions.Categorical(logits=actor(hidden)), critic(hidden).squeeze(-1)
        advantage = returns - value
        gain = (policy.log_prob(actions) * advantage.detach()).mean() + 0.01 * policy.entropy().mean()
        return advantage.square().mean() - gain

    return nn.ModuleList([trunk, actor, critic]), loss


def demo_gpt() -> tuple[nn.Module, Loss]:
    model = SmallGPT(192, 6, 4, 256)
    tokens = torch.randint(NUM_CHARACTERS, (8, 257))
    return model, lambda: F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


MODELS = {"mlp": mlp, "cnn": tiny_cnn, "lstm": lstm, "actor-critic": actor_critic, "demo-gpt": demo_gpt}
SETTINGS: dict[str, dict[str, float]] = {"default": {}, "ratio 16": {"ratio": 16}}
WARM_UP = 20  # steps, which hold the first samples


def run(loss: Loss, optimizer: torch.optim.Optimizer, num_steps: int) -> float:
    """Return the milliseconds of processor time of a step."""
    began = time.process_time()
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return (time.process_time() - began) / num_steps * 1e3


def measure(name: str, setting: str, repeats: int) -> Row:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    pairs = []
    with daf.Session(budget="2GiB", **SETTINGS[setting]) as session:
        run(loss, optimizer, WARM_UP)
        for _ in range(repeats):
            session.engine.remove()
            plain = run(loss, optimizer, LOOK_EVERY)
            session.engine.install()
            pairs.append((plain, run(loss, optimizer, LOOK_EVERY)))
    ratios = sorted(ours / plain for plain, ours in pairs)
    return {
        "model": name,
        "setting": setting,
        "plain_ms": statistics.median(plain for plain, _ in pairs),
        "daf_ms": statistics.median(ours for _, ours in pairs),
        "of_plain": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
    }
