"""The fixed work of ACER, and its update in plain torch: discrete actions, rows that are all valid,
no statistics.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal, NamedTuple, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fixed_work.bare import (
    CPU,
    BareActorCritic,
    Named,
    action_size,
    in_channels_last,
    observations,
    update_of,
)
from fixed_work.work import Count, Work
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces


@final
class ACERWork(Work):
    """Work of ACER, whose batches have one unroll of every environment, fresh or replayed.

    rollout: env_steps of each environment per unroll.
    replay_ratio: mean number of updates from replay after each fresh one.
    value_coef: weight of half the squared error.
    trust_region: whether the average policy bounds updates; tau: rate at which it moves.
    rmsprop_decay, rmsprop_eps: of TensorFlow's form, whose mean of squares begins with 1.
    buffer_size: transitions kept, of all environments.
    """

    algo: Literal["acer"]
    optimizer: Literal["rmsprop"]
    rmsprop_decay: float
    rmsprop_eps: float
    rollout: Count
    replay_ratio: float = Field(gt=0)
    shared_torso: bool
    value_coef: float
    entropy_coef: float
    importance_clip: float
    trust_region: bool
    trust_region_delta: float
    tau: float
    max_grad_norm: float
    buffer_size: Count
    learning_starts: Count

    @property
    def update_rows(self) -> int:
        return self.rollout * self.num_envs

    def options(self) -> dict[str, Any]:
        """The run options of this workload, with a constant learning rate."""
        region = {"trust_region_delta": self.trust_region_delta, "tau": self.tau}
        return super().options() | {
            "model.shared_torso": self.shared_torso,
            "unroll_steps": self.rollout,
            "replay_ratio": self.replay_ratio,
            "replay_capacity_steps_per_stream": self.buffer_size // self.num_envs,
            "replay_start_steps_per_stream": self.learning_starts // self.num_envs,
            "value_coef": self.value_coef,
            "entropy_coef": self.entropy_coef,
            "importance_clip": self.importance_clip,
            "trust_region": self.trust_region,
            "learning_rate": self.learning_rate,
            "lr_schedule": "constant",
            "rmsprop_decay": self.rmsprop_decay,
            "rmsprop_epsilon": self.rmsprop_eps,
            "max_grad_norm": self.max_grad_norm,
            **(region if self.trust_region else {}),
        }

    def network(self, spaces: Spaces) -> BareActorCritic:
        return in_channels_last(
            BareActorCritic(self, spaces, self.shared_torso, action_values=True)
        )

    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        return self.network(spaces).act

    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        return update(self, self.network(spaces), precision, batch(self, spaces), compiled)


class Batch(NamedTuple):
    """An unroll of every environment, ``[T, B]``; obs of rows 0 to T, flat ``[(T + 1) * B, ...]``.

    discount: factor of everything after the row, 0 at an ending.
    log_mu: log-probabilities of all actions under the policy that acted, ``[T, B, A]``.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    log_mu: Tensor


def batch(work: ACERWork, spaces: Spaces) -> Batch:
    """Random rows, of which one in thirty ends an episode."""
    size, shape = action_size(spaces), (work.rollout, work.num_envs)
    return Batch(
        obs=observations(work, spaces, (work.rollout + 1) * work.num_envs),
        action=torch.randint(0, size, shape),
        reward=torch.randn(shape),
        discount=work.gamma * (torch.rand(shape) > 1 / 30).float(),
        log_mu=torch.randn(*shape, size).log_softmax(-1),
    )


def loss(
    work: ACERWork, forward: Callable[[Tensor], tuple[Tensor, Tensor]],
    average: Callable[[Tensor], Tensor], precision: Precision, data: Batch,
) -> Tensor:  # fmt: skip
    """The critic's squared error, and the policy's gradient at its probabilities f, times f.

    forward: returns logits and action values; average: returns the average policy's logits.
    """
    shape, used = (work.rollout + 1, work.num_envs, -1), work.rollout * work.num_envs
    obs = data.obs.float().mul_(1 / 255) if work.obs == "image" else data.obs
    with autocast(precision, CPU):
        logits, values = forward(obs)
        with torch.no_grad():
            bound = average(obs[:used]).float() if work.trust_region else None
    probabilities, values = logits.float().softmax(-1).view(shape), values.float().view(shape)
    q = values[:-1].gather(-1, data.action[..., None]).squeeze(-1)
    with torch.no_grad():
        f = probabilities[:-1]
        v = (probabilities * values).sum(-1)
        log_f = logits.float().log_softmax(-1).view(shape)[:-1]
        rho_all = (log_f - data.log_mu).exp()
        rho = rho_all.gather(-1, data.action[..., None]).squeeze(-1)
        target = retrace(data, q, v[1:], rho)
        weight = rho.clamp(max=work.importance_clip) * (target - v[:-1])
        taken = nn.functional.one_hot(data.action, f.shape[-1])
        g = taken * weight[..., None] / f
        g += (1 - work.importance_clip / rho_all).clamp_min(0) * (values[:-1] - v[:-1, :, None])
        g -= work.entropy_coef * (log_f + 1)
        if bound is not None:
            k = -bound.softmax(-1).view(f.shape) / f
            excess = (k * g).sum(-1, keepdim=True) - work.trust_region_delta
            g -= (excess / k.square().sum(-1, keepdim=True)).clamp_min(0) * k
    error = (q - target).square().mean()
    return 0.5 * work.value_coef * error - (g * probabilities[:-1]).sum(-1).mean()


def retrace(data: Batch, q: Tensor, v_next: Tensor, rho: Tensor) -> Tensor:
    """Munos et al., arXiv 1606.02647, equation 4, by doubling: each round doubles the number of
    errors in the sum.
    """
    error = data.reward + data.discount * v_next - q
    gain = data.discount[:-1] * rho[1:].clamp(max=1)
    far = 1
    while far < len(error):
        error = torch.cat((error[:-far] + gain * error[far:], error[-far:]))
        gain = gain[:-far] * gain[far:]
        far *= 2
    return q + error


def update(
    work: ACERWork, network: BareActorCritic, precision: Precision, data: Batch, compiled: bool
) -> Callable[[], object]:
    """One backward, clipping, RMSProp in TensorFlow's form, and the average."""
    average = deepcopy(network).requires_grad_(False)
    slow: list[Tensor] = [*average.parameters()]

    def of(parameters: Named) -> Tensor:
        def forward(obs: Tensor) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = functional_call(network, parameters, (obs,))
            return found

        return loss(work, forward, average.act, precision, data)

    def rule(named: Named) -> Callable[[Named], None]:
        theta = [*named.values()]
        squares = [torch.ones_like(p) for p in theta]

        def step(grads: Named) -> None:
            each = [*grads.values()]
            torch._foreach_mul_(squares, work.rmsprop_decay)
            torch._foreach_addcmul_(squares, each, each, 1 - work.rmsprop_decay)
            root = torch._foreach_add(squares, work.rmsprop_eps)
            torch._foreach_sqrt_(root)
            torch._foreach_addcdiv_(theta, each, root, -work.learning_rate)
            if work.trust_region:
                torch._foreach_lerp_(slow, theta, work.tau)

        return step

    return update_of(network, of, rule, compiled, work.max_grad_norm)
