"""Adam in plain torch, inside a graph."""

from collections.abc import Mapping

import torch
from torch import Tensor


class BareAdam:
    """Steps of Adam on named tensors, in place; Kingma and Ba, arXiv 1412.6980, algorithm 1."""

    def __init__(self, parameters: Mapping[str, Tensor], rate: float, epsilon: float):
        self.parameters, self.rate, self.epsilon = parameters, rate, epsilon
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.steps = torch.zeros(())

    def step(self, grads: Mapping[str, Tensor], scale: Tensor | float = 1.0) -> None:
        """One step against the gradients times `scale`."""
        self.steps.add_(1)
        for name, parameter in self.parameters.items():
            grad, first, second = grads[name] * scale, self.first[name], self.second[name]
            first.lerp_(grad, 0.1)
            second.mul_(0.999).addcmul_(grad, grad, value=0.001)
            root = (second / (1 - 0.999**self.steps)).sqrt() + self.epsilon
            parameter.sub_(self.rate * (first / (1 - 0.9**self.steps)) / root)
