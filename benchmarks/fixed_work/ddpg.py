"""The fixed work of DDPG, and its networks and update in plain torch."""

from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fixed_work.bare import CPU, Named, adam, transitions, update_of
from fixed_work.work import ReplayWork
from quintet.models.encoders import layers
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces

Data = tuple[Tensor, ...]


@final
class DDPGWork(ReplayWork):
    """Work of DDPG.

    noise_std: standard deviation of Gaussian action noise.
    """

    algo: Literal["ddpg"]
    noise_std: float

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "model.layer_norm": False,
            "warmup_policy": "uniform",
            "exploration": f"normal_{self.noise_std:g}",
            "action_layer": 1,
            "critic_l2_coef": 0.0,
        }

    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        return BareNetworks(self, spaces).policy

    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        return update(
            self,
            BareNetworks(self, spaces),
            precision,
            transitions(self.minibatch, spaces),
            compiled,
        )


@final
class BareNetworks(nn.Module):
    """The workload's policy and critic in plain torch layers."""

    def __init__(self, work: DDPGWork, spaces: Spaces):
        super().__init__()
        (obs,), (actions,) = spaces.observation.shape or (0,), spaces.action.shape or (0,)
        hidden, activation = work.hidden, work.activation
        policy, critic = (
            layers((size, *hidden), activation, layer_norm=False) for size in (obs, obs + actions)
        )
        self.policy = nn.Sequential(*policy, nn.Linear(hidden[-1], actions), nn.Tanh())
        self.critic = nn.Sequential(*critic, nn.Linear(hidden[-1], 1))

    def forward(self, obs: Tensor, action: Tensor | None) -> Tensor:
        """Values ``[N]`` of actions ``[N, A]``; without them, the policy's actions."""
        if action is None:
            found: Tensor = self.policy(obs)
            return found
        value: Tensor = self.critic(torch.cat((obs, action), -1))
        return value.squeeze(-1)


def losses(
    work: DDPGWork, network: nn.Module, precision: Precision, named: Named, target: Named,
    data: Data,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The critic's loss, and the policy's, in which the critic's weights are constants."""
    obs, action, reward, next_obs, end = data

    def call(parameters: Named, *inputs: Tensor | None) -> Tensor:
        found: Tensor = functional_call(network, parameters, inputs)
        return found

    fixed = {name: x.detach() if name.startswith("critic") else x for name, x in named.items()}
    with autocast(precision, CPU):
        with torch.no_grad():
            v = call(target, next_obs, call(target, next_obs, None))
        q = call(named, obs, action)
        chosen = call(fixed, obs, call(named, obs, None))
    goal = reward + work.gamma * (1.0 - end) * v.float()
    return (q.float() - goal).square().mean(), -chosen.float().mean()


def update(
    work: DDPGWork, network: BareNetworks, precision: Precision, data: Data, compiled: bool
) -> Callable[[], object]:
    """Both losses, Adam, and the targets."""
    target = {name: x.detach().clone() for name, x in network.named_parameters()}

    def loss(named: Named) -> Tensor:
        critic, policy = losses(work, network, precision, named, target, data)
        return critic + policy

    def rule(named: Named) -> Callable[[Named], None]:
        adam_step = adam(named, work.learning_rate, work.adam_eps)

        def step(grads: Named) -> None:
            adam_step(grads)
            torch._foreach_lerp_([*target.values()], [*named.values()], work.tau)

        return step

    return update_of(network, loss, rule, compiled)
