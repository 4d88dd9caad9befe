"""Discrete families: `Categorical` and `Bernoulli`.

The interface is `quintet.ops.distributions.Family`.  Parameters are logits, normalised or not.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid

Logits = Float[Tensor, "*n {self.param_size}"]
Mask = Shaped[Tensor, "*n {self.mask_size}"]
Choice = Int64[Tensor, "*n"]
Bits = Int64[Tensor, "*n {self.size}"]
PerRow = Float[Tensor, "*n"]

MASKED_LOGIT = -1e9
"""A logit so low that exp gives exactly 0, but finite, so that 0 * log 0 is 0."""


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform float64 in the open interval (0, 1).

    Float64, because float32 is too coarse near 0: one draw in 2^24 would be its most extreme value
    and would select any action, however improbable.
    """
    u = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
    # rand is a multiple of 2^-53 below 1; only its 0 is out of reach of the logarithm.
    return u.clamp_(min=2.0**-54)


@dataclass(frozen=True)
class Categorical:
    """One of `num_actions` actions, by logits.  Sampled by Gumbel-max."""

    num_actions: int

    action_shape: ClassVar[tuple[int, ...]] = ()
    action_dtype: ClassVar[torch.dtype] = torch.int64

    @property
    def param_size(self) -> int:
        return self.num_actions

    @property
    def noise_size(self) -> int:
        return self.num_actions

    @property
    def mask_size(self) -> int:
        return self.num_actions

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard Gumbel noise."""
        u = _uniform((*shape, self.num_actions), generator)
        return u.log_().neg_().log_().neg_().to(torch.float32)

    def sample(self, params: Logits, noise: Logits) -> Choice:
        return (params + noise).argmax(dim=-1)

    def uniform(self, params: Logits, noise: Logits) -> Choice:
        return self.sample(torch.where(params > MASKED_LOGIT, 0.0, params), noise)

    def mode(self, params: Logits) -> Choice:
        return params.argmax(dim=-1)

    def log_prob(self, params: Logits, action: Choice) -> PerRow:
        return params.log_softmax(dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Logits) -> PerRow:
        log_p = params.log_softmax(dim=-1)
        return -(log_p.exp() * log_p).sum(dim=-1)

    def kl(self, params_p: Logits, params_q: Logits) -> PerRow:
        log_p = params_p.log_softmax(dim=-1)
        return (log_p.exp() * (log_p - params_q.log_softmax(dim=-1))).sum(dim=-1)

    def apply_mask(self, params: Logits, mask: Mask) -> Logits:
        """Sets forbidden logits to `MASKED_LOGIT`; a row without an allowed action is unchanged."""
        allowed = mask != 0
        # A row that an environment spends on resetting may allow nothing; its action is ignored.
        allowed = allowed | ~allowed.any(dim=-1, keepdim=True)
        return torch.where(allowed, params, MASKED_LOGIT)

    def to_env(self, action: Choice) -> Choice:
        return action


@dataclass(frozen=True)
class Bernoulli:
    """`size` independent bits, by the logits of 1.  Takes no mask."""

    size: int

    mask_size: ClassVar[int] = 0
    action_dtype: ClassVar[torch.dtype] = torch.int64

    @property
    def param_size(self) -> int:
        return self.size

    @property
    def noise_size(self) -> int:
        return self.size

    @property
    def action_shape(self) -> tuple[int, ...]:
        return (self.size,)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard logistic noise."""
        u = _uniform((*shape, self.size), generator)
        return (u.log() - (-u).log1p()).to(torch.float32)

    def sample(self, params: Logits, noise: Logits) -> Bits:
        return self.mode(params + noise)

    def uniform(self, params: Logits, noise: Logits) -> Bits:  # noqa: ARG002
        return self.mode(noise)

    def mode(self, params: Logits) -> Bits:
        return (params > 0).to(torch.int64)

    def log_prob(self, params: Logits, action: Bits) -> PerRow:
        return logsigmoid(torch.where(action != 0, params, -params)).sum(dim=-1)

    def entropy(self, params: Logits) -> PerRow:
        return self._expect(params, -logsigmoid(params), -logsigmoid(-params))

    def kl(self, params_p: Logits, params_q: Logits) -> PerRow:
        of_one = logsigmoid(params_p) - logsigmoid(params_q)
        of_zero = logsigmoid(-params_p) - logsigmoid(-params_q)
        return self._expect(params_p, of_one, of_zero)

    def _expect(self, params: Tensor, of_one: Tensor, of_zero: Tensor) -> Tensor:
        return (params.sigmoid() * of_one + (-params).sigmoid() * of_zero).sum(dim=-1)

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002
        raise ValueError("Bernoulli takes no action mask: remove it from the observation")

    def to_env(self, action: Bits) -> Bits:
        return action
