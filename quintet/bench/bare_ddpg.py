"""DDPG's networks and update in plain torch, for the speed that bare parts allow."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.bench.bare_adam import BareAdam
from quintet.bench.workloads import ReplayWork
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces

CPU = torch.device("cpu")

Data = tuple[Tensor, ...]
Named = Mapping[str, Tensor]


@final
class BareNetworks(nn.Module):
    """The workload's policy and critic in plain torch layers."""

    def __init__(self, work: ReplayWork, spaces: Spaces):
        super().__init__()
        activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[work.activation]
        (obs,), (actions,) = spaces.observation.shape or (0,), spaces.action.shape or (0,)

        def layers(size: int, outputs: int) -> list[nn.Module]:
            parts: list[nn.Module] = []
            for width in work.hidden:
                parts += [nn.Linear(size, width), activation()]
                size = width
            return [*parts, nn.Linear(size, outputs)]

        self.policy = nn.Sequential(*layers(obs, actions), nn.Tanh())
        self.critic = nn.Sequential(*layers(obs + actions, 1))

    def forward(self, obs: Tensor, action: Tensor | None) -> Tensor:
        """Values ``[N]`` of actions ``[N, A]``; without them, the policy's actions."""
        if action is None:
            found: Tensor = self.policy(obs)
            return found
        value: Tensor = self.critic(torch.cat((obs, action), -1))
        return value.squeeze(-1)


def batch(work: ReplayWork, spaces: Spaces) -> Data:
    """Observation, action, reward, next observation and end of random transitions."""
    rows, shape = work.minibatch, spaces.observation.shape or ()
    obs, next_obs = torch.randn(2, rows, *shape)
    action = 2.0 * torch.rand(rows, *(spaces.action.shape or ())) - 1.0
    return obs, action, torch.randn(rows), next_obs, torch.zeros(rows)


def losses(
    work: ReplayWork, network: nn.Module, precision: Precision, named: Named, target: Named,
    data: Data,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The critic's loss, and the policy's, in which the critic's weights are constants."""
    obs, action, reward, next_obs, end = data

    def call(parameters: Named, *inputs: Tensor | None) -> Tensor:
        found: Tensor = functional_call(network, dict(parameters), inputs)
        return found

    fixed = {name: x.detach() if name.startswith("critic") else x for name, x in named.items()}
    with autocast(precision, CPU):
        with torch.no_grad():
            v = call(target, next_obs, call(target, next_obs, None))
        q = call(named, obs, action)
        chosen = call(fixed, obs, call(named, obs, None))
    goal = reward + work.gamma * (1.0 - end) * v.float()
    return (q.float() - goal).square().mean(), -chosen.float().mean()


def eager_update(
    work: ReplayWork, network: BareNetworks, precision: Precision, data: Data
) -> Callable[[], None]:
    """Both losses, each with its own fused Adam, and the targets."""
    named = dict(network.named_parameters())
    target = {name: x.detach() for name, x in deepcopy(network).named_parameters()}
    adams = [
        torch.optim.Adam(part.parameters(), lr=work.learning_rate, eps=work.adam_eps, fused=True)
        for part in (network.critic, network.policy)
    ]

    def update() -> None:
        found = losses(work, network, precision, named, target, data)
        for adam in adams:
            adam.zero_grad()
        torch.autograd.backward(found)
        for adam in adams:
            adam.step()
        with torch.no_grad():
            torch._foreach_lerp_([*target.values()], [*named.values()], work.tau)

    return update


def compiled_update(
    work: ReplayWork, network: BareNetworks, precision: Precision, data: Data
) -> Callable[[], None]:
    """Gradients, Adam and the targets as one graph."""
    named = {name: p.detach().clone() for name, p in network.named_parameters()}
    target = {name: p.clone() for name, p in named.items()}
    adam = BareAdam(named, work.learning_rate, work.adam_eps)

    def loss(parameters: Named) -> Tensor:
        critic, policy = losses(work, network, precision, parameters, target, data)
        return critic + policy

    def update() -> None:
        adam.step(torch.func.grad(loss)(named))
        for name, x in target.items():
            x.lerp_(named[name], work.tau)

    torch._dynamo.reset()
    compiled: Callable[[], None] = torch.compile(update, fullgraph=True)
    return compiled
