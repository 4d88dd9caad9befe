"""Networks, observations and Adam in plain torch, for the speed that bare parts allow."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from quintet.models.encoders import ACTIVATIONS, layers
from quintet.types import Spaces

if TYPE_CHECKING:
    from fixed_work.work import Work

CPU = torch.device("cpu")

Named = dict[str, Tensor]
"""Weights or gradients by name."""


def in_channels_last(network: "BareActorCritic") -> "BareActorCritic":
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def observations(work: "Work", spaces: Spaces, rows: int) -> Tensor:
    shape = spaces.observation.shape or ()
    if work.obs == "vector":
        return torch.randn(rows, *shape)
    pictures = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
    return pictures.contiguous(memory_format=torch.channels_last)


def action_size(spaces: Spaces) -> int:
    space: Any = spaces.action
    return int(space.shape[0] if space.shape else space.n)


def transitions(rows: int, spaces: Spaces) -> tuple[Tensor, ...]:
    """Observation, action, reward, next observation and end of random transitions."""
    obs, next_obs = torch.randn(2, rows, *(spaces.observation.shape or ()))
    action = 2.0 * torch.rand(rows, *(spaces.action.shape or ())) - 1.0
    return obs, action, torch.randn(rows), next_obs, torch.zeros(rows)


@final
class BareActorCritic(nn.Module):
    """The workload's network in plain torch layers.

    action_values: whether its critic values all actions instead of states.
    """

    def __init__(
        self, work: "Work", spaces: Spaces, shared_torso: bool, action_values: bool = False
    ):
        super().__init__()
        activation = ACTIVATIONS[work.activation]
        shape, outputs = spaces.observation.shape or (), action_size(spaces)

        def torso(size: int) -> nn.Sequential:
            return layers((size, *work.hidden), work.activation, layer_norm=False)

        convolutions: list[nn.Module] = []
        size = shape[0]
        for channels, kernel, stride in work.conv or []:
            convolutions += [nn.Conv2d(size, channels, kernel, stride), activation()]
            size = channels
        if work.obs == "image":
            convolutions.append(nn.Flatten())
            size = nn.Sequential(*convolutions)(torch.zeros(1, *shape)).shape[1]
        self.shared = nn.Sequential(*convolutions, *(torso(size) if shared_torso else []))
        size = work.hidden[-1] if shared_torso else size
        own = [] if shared_torso else [torso(size), torso(size)]
        values = outputs if action_values else 1
        self.policy, self.value = (
            nn.Sequential(*(own[k] if own else []), nn.Linear(work.hidden[-1], n))
            for k, n in enumerate((outputs, values))
        )
        self.log_std = nn.Parameter(torch.zeros(outputs)) if spaces.action.shape else None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits or means, and values; pictures are bytes, or floats from 0 to 1."""
        features = self._features(obs)
        return self.policy(features), self.value(features).squeeze(-1)

    def act(self, obs: Tensor) -> Tensor:
        """The policy alone."""
        found: Tensor = self.policy(self._features(obs))
        return found

    def _features(self, obs: Tensor) -> Tensor:
        found: Tensor = self.shared(obs.float() / 255 if obs.dtype == torch.uint8 else obs)
        return found


def update_of(
    network: nn.Module,
    loss: Callable[[Named], Tensor],
    rule: Callable[[Named], Callable[[Named], object]],
    compiled: bool,
    max_norm: float = math.inf,
) -> Callable[[], object]:
    """One step on a network's weights by name: the gradient of the loss, clipped to `max_norm`,
    then what `rule` makes of the weights, a function of gradients.  Compiled it is one graph.
    """
    named = {name: p.detach() if compiled else p for name, p in network.named_parameters()}
    step = rule(named)

    def update() -> None:
        if compiled:
            grads = torch.func.grad(loss)(named)
        else:
            network.zero_grad()
            torch.autograd.backward(loss(named))
            grads = {name: p.grad for name, p in named.items() if p.grad is not None}
        with torch.no_grad():
            if max_norm < math.inf:
                each = [*grads.values()]
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(each)))
                scale = (max_norm / (norm + 1e-6)).clamp_max(1.0)
                grads = dict(zip(grads, torch._foreach_mul(each, scale), strict=True))
            step(grads)

    if not compiled:
        return update
    torch._dynamo.reset()
    graph: Callable[[], object] = torch.compile(update, fullgraph=True)
    return graph


def adam(named: Named, rate: float, epsilon: float) -> Callable[[Named], object]:
    """Steps of Adam on weights by name, in place: PyTorch's fused ones, or those of a graph."""
    if all(p.requires_grad for p in named.values()):
        fused = torch.optim.Adam(named.values(), lr=rate, eps=epsilon, fused=True)

        def step(grads: Named) -> None:
            for name, parameter in named.items():
                parameter.grad = grads[name]
            fused.step()

        return step
    return BareAdam(named, rate, epsilon).step


@final
class BareAdam:
    """Kingma and Ba, arXiv 1412.6980, algorithm 1, in plain operations."""

    def __init__(self, parameters: Named, rate: float, epsilon: float):
        self.parameters, self.rate, self.epsilon = parameters, rate, epsilon
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.steps = torch.zeros(())

    def step(self, grads: Named) -> None:
        self.steps.add_(1)
        for name, parameter in self.parameters.items():
            grad, first, second = grads[name], self.first[name], self.second[name]
            first.lerp_(grad, 0.1)
            second.mul_(0.999).addcmul_(grad, grad, value=0.001)
            root = (second / (1 - 0.999**self.steps)).sqrt() + self.epsilon
            parameter.sub_(self.rate * (first / (1 - 0.9**self.steps)) / root)
