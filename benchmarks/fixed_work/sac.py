"""The fixed work of SAC, and its networks and update in plain torch."""

from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fixed_work.bare import CPU, Named, action_size, adam, transitions, update_of
from fixed_work.work import ReplayWork
from quintet.models.encoders import layers
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces


@final
class SACWork(ReplayWork):
    """Work of SAC."""

    algo: Literal["sac"]

    def options(self) -> dict[str, Any]:
        return super().options() | {"temperature_lr": self.learning_rate}

    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        return BareNetworks(self, spaces)

    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        network, data = BareNetworks(self, spaces), transitions(self.minibatch, spaces)
        target = {name: x.detach().clone() for name, x in network.named_parameters()}

        def loss(named: Named) -> Tensor:
            with autocast(precision, CPU):
                return network.loss(named, target, data, self.gamma)

        def rule(named: Named) -> Callable[[Named], None]:
            adam_step = adam(named, self.learning_rate, self.adam_eps)
            critics = [name for name in named if name.startswith("critics.")]

            def step(grads: Named) -> None:
                adam_step(grads)
                moved, online = ([x[name] for name in critics] for x in (target, named))
                torch._foreach_lerp_(moved, online, self.tau)

            return step

        return update_of(network, loss, rule, compiled)


@final
class BareNetworks(nn.Module):
    """The workload's policy, critics and temperature in plain torch layers."""

    def __init__(self, work: SACWork, spaces: Spaces):
        super().__init__()
        obs, actions = (spaces.observation.shape or (0,))[0], action_size(spaces)

        def network(inputs: int, outputs: int) -> nn.Sequential:
            hidden = layers((inputs, *work.hidden), work.activation, layer_norm=False)
            return nn.Sequential(*hidden, nn.Linear(work.hidden[-1], outputs))

        self.policy = network(obs, 2 * actions)
        self.critics = nn.ModuleList([network(obs + actions, 1) for _ in range(2)])
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> Tensor:
        """Values of an action ``[N, 2]``; without it, the policy's parameters ``[N, 2 A]``."""
        if action is None:
            params: Tensor = self.policy(obs).float()
            return params
        inputs = torch.cat((obs, action), -1)
        return torch.cat([critic(inputs) for critic in self.critics], -1).float()

    def loss(self, named: Named, target: Named, data: tuple[Tensor, ...], gamma: float) -> Tensor:
        """The critics' errors, the policy's loss and the temperature's."""
        obs, action, reward, next_obs, end = data

        def drawn(obs: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = functional_call(self, named, (obs,)).chunk(2, -1)
            z = torch.randn_like(mean)
            action = (mean + log_std.clamp(-20.0, 2.0).exp() * z).tanh()
            log_p = -0.5 * z**2 - log_std - 0.9189385 - (1.0 - action**2 + 1e-6).log()
            return action, log_p.sum(-1)

        alpha = named["log_alpha"].exp()
        with torch.no_grad():
            next_action, next_log_p = drawn(next_obs)
            v = functional_call(self, target, (next_obs, next_action)).amin(-1)
            goal = reward + gamma * (1.0 - end) * (v - alpha * next_log_p)
        error = functional_call(self, named, (obs, action)) - goal.unsqueeze(-1)
        chosen, log_p = drawn(obs)
        fixed = {name: x.detach() for name, x in named.items()}
        value = functional_call(self, fixed, (obs, chosen)).amin(-1)
        policy = (alpha.detach() * log_p - value).mean()
        temperature = alpha * (log_p.detach() - chosen.shape[-1]).mean()
        total: Tensor = 0.5 * error.square().mean(0).sum() + policy - temperature
        return total
