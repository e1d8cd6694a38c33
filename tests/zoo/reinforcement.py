"""Reinforcement learning on a small world whose moves are drawn at random; replay from a buffer, no environment."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Normal

from tests.zoo.generative import mlp
from tests.zoo.member import Member, adam, kind, seeded

STATES, ACTIONS, BATCH = 32, 4, 1024


def moves(seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """State, action, reward and next state; the action adds a fixed vector, the reward likes the origin."""
    push = torch.randn(ACTIONS, STATES, generator=seeded(seed, -1))

    def make(number: int) -> tuple[Tensor, ...]:
        generator = seeded(seed, number)
        state = torch.randn(BATCH, STATES, generator=generator)
        action = torch.randint(0, ACTIONS, (BATCH,), generator=generator)
        following = 0.9 * state + 0.5 * push[action]
        return state, action, -following.square().mean(-1), following

    return make


@kind()
def dqn(seed: int) -> Member:
    """Two copies of the net; the slower one gives the targets."""
    model = mlp(STATES, 256, 256, ACTIONS)
    target = copy.deepcopy(model).requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        state, action, reward, following = batch
        value = model(state).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            goal = reward + 0.9 * target(following).amax(-1)
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return F.smooth_l1_loss(value, goal)

    return Member(model, loss, moves(seed), adam(model))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = mlp(STATES, 256, 256), nn.Linear(256, ACTIONS), nn.Linear(256, 1)

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        h = torch.tanh(self.trunk(state))
        return Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


@kind()
def actor_critic(seed: int) -> Member:
    """PPO's clipped ratio, a value loss, an entropy."""
    model = ActorCritic()

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        state, action, reward, _ = batch
        policy, value = model(state)
        advantage = (reward - value).detach()
        ratio = (policy.log_prob(action) + torch.log(torch.tensor(float(ACTIONS)))).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return F.mse_loss(value, reward) - gain.mean() - 0.01 * policy.entropy().mean()

    return Member(model, loss, moves(seed), adam(model))


class SoftActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(STATES, 256, 2 * ACTIONS), mlp(STATES + ACTIONS, 256, 1)
        self.log_temperature = nn.Parameter(torch.zeros(()))


@kind()
def soft_actor_critic(seed: int) -> Member:
    """Tanh of a normal by reparametrization; log of one minus its square."""
    model = SoftActor()

    def loss(model: SoftActor, batch: tuple[Tensor, ...]) -> Tensor:
        state, action, reward, _ = batch
        mean, log_std = model.actor(state).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        move = torch.tanh(raw)
        log_prob = (normal.log_prob(raw) - torch.log(1 - move.square() + 1e-6)).sum(-1)
        seen = model.critic(torch.cat([state, F.one_hot(action, ACTIONS).float()], -1))[:, 0]
        wanted = model.critic(torch.cat([state, move], -1))[:, 0]
        heat = model.log_temperature.exp()
        return (
            F.mse_loss(seen, reward)
            + (heat.detach() * log_prob - wanted).mean()
            - heat * (log_prob.detach() + 4).mean()
        )

    return Member(model, loss, moves(seed), adam(model))


@kind()
def beta_policy_gradient(seed: int) -> Member:
    model = mlp(STATES, 256, 2)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        state, _, reward, _ = batch
        a, b = (F.softplus(model(state)) + 1).unbind(-1)
        action = torch.sigmoid(state[:, 0]).clamp(0.01, 0.99)
        weight = (reward - reward.mean()) / reward.std()
        return -(Beta(a, b).log_prob(action) * weight.exp()).mean()

    return Member(model, loss, moves(seed), adam(model))


@kind()
def reward_model_and_preference(seed: int) -> Member:
    """Bradley-Terry on pairs, and a DPO-like margin of log-probabilities against a frozen copy."""
    model = ActorCritic()
    frozen = copy.deepcopy(model).requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        state, action, reward, following = batch
        policy, value = model(state)
        margin = policy.log_prob(action) - frozen(state)[0].log_prob(action)
        is_better = (reward > reward.flip(0)).float()
        preference = F.binary_cross_entropy_with_logits(value - value.flip(0), is_better)
        return (
            preference
            - F.logsigmoid(0.5 * margin * (2 * is_better - 1)).mean()
            + 0.01 * model(following)[1].square().mean()
        )

    return Member(model, loss, moves(seed), adam(model))
