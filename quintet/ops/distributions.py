"""Families of action distributions over a flat parameter tensor ``[..., param_size]``.

A family is a frozen record of static sizes; parameters, noise and actions are passed in, so one
object serves actor and learner, and its calls depend on nothing but their inputs.  Maths is done in
the dtype of the parameters.  `draw_noise` makes all the randomness of many steps in one call and
`sample` is then deterministic.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from quintet.ops.discrete import Bernoulli, Categorical, MultiCategorical
from quintet.ops.gaussian import DiagGaussian, TanhGaussian

__all__ = [
    "Action",
    "Bernoulli",
    "Categorical",
    "DiagGaussian",
    "Family",
    "MultiCategorical",
    "TanhGaussian",
    "TupleFamily",
]

Action: TypeAlias = Any
"""A tensor ``[..., *action_shape]``; for `TupleFamily` a tuple of its children's actions."""


@runtime_checkable
class Family(Protocol):
    """What every family offers.  ``[...]`` stands for the same leading dimensions everywhere."""

    @property
    def param_size(self) -> int:
        """Number of parameters per distribution."""
        ...

    @property
    def noise_size(self) -> int:
        """Number of base noise values per sample."""
        ...

    @property
    def mask_size(self) -> int:
        """Width of the action mask; 0 when no mask is taken."""
        ...

    @property
    def action_shape(self) -> tuple[Any, ...]:
        """Shape of one action; for `TupleFamily` the tuple of its children's shapes."""
        ...

    @property
    def action_dtype(self) -> Any:
        """torch.dtype of an action; for `TupleFamily` the tuple of its children's."""
        ...

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Base noise ``[*shape, noise_size]``, float32, finite, on the generator's device."""
        ...

    def sample(self, params: Tensor, noise: Tensor) -> Action:
        """The action that this noise selects; differentiable in `params` if actions are floats."""
        ...

    def mode(self, params: Tensor) -> Action:
        """The action that a greedy policy takes."""
        ...

    def log_prob(self, params: Tensor, action: Action) -> Tensor:
        """Log-probability or log-density ``[...]`` of one action, in nats."""
        ...

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy ``[...]`` in nats."""
        ...

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """Exact ``KL(p || q)`` ``[...]`` in nats."""
        ...

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Parameters of the policy restricted to where ``mask[..., mask_size]`` is not 0.

        Raises ValueError when the family takes no mask.
        """
        ...

    def to_env(self, action: Action) -> Action:
        """What the environment receives for an action."""
        ...


@dataclass(frozen=True)
class TupleFamily:
    """Independent families side by side.

    Parameters, noise and masks are the children's, concatenated in order along the last dimension;
    the action is a tuple of the children's actions; log-probabilities, entropies and KLs are sums.
    """

    families: tuple[Family, ...]

    @property
    def param_size(self) -> int:
        return sum(family.param_size for family in self.families)

    @property
    def noise_size(self) -> int:
        return sum(family.noise_size for family in self.families)

    @property
    def mask_size(self) -> int:
        return sum(family.mask_size for family in self.families)

    @property
    def action_shape(self) -> tuple[Any, ...]:
        return tuple(family.action_shape for family in self.families)

    @property
    def action_dtype(self) -> tuple[Any, ...]:
        return tuple(family.action_dtype for family in self.families)

    def _params(self, params: Tensor) -> tuple[Tensor, ...]:
        return torch.split(params, [family.param_size for family in self.families], dim=-1)

    def draw_noise(
        self, shape: tuple[int, ...], generator: torch.Generator
    ) -> Float32[Tensor, "..."]:
        return torch.cat([family.draw_noise(shape, generator) for family in self.families], dim=-1)

    def sample(
        self,
        params: Float[Tensor, "*n {self.param_size}"],
        noise: Float[Tensor, "*n {self.noise_size}"],
    ) -> tuple[Action, ...]:
        noises = torch.split(noise, [family.noise_size for family in self.families], dim=-1)
        return tuple(
            family.sample(p, z)
            for family, p, z in zip(self.families, self._params(params), noises, strict=True)
        )

    def mode(self, params: Float[Tensor, "*n {self.param_size}"]) -> tuple[Action, ...]:
        return tuple(
            family.mode(p) for family, p in zip(self.families, self._params(params), strict=True)
        )

    def log_prob(
        self, params: Float[Tensor, "*n {self.param_size}"], action: tuple[Action, ...]
    ) -> Float[Tensor, "*n"]:
        leaves = [
            family.log_prob(p, a)
            for family, p, a in zip(self.families, self._params(params), action, strict=True)
        ]
        return torch.stack(leaves).sum(dim=0)

    def entropy(self, params: Float[Tensor, "*n {self.param_size}"]) -> Float[Tensor, "*n"]:
        leaves = [
            family.entropy(p) for family, p in zip(self.families, self._params(params), strict=True)
        ]
        return torch.stack(leaves).sum(dim=0)

    def kl(
        self,
        params_p: Float[Tensor, "*n {self.param_size}"],
        params_q: Float[Tensor, "*n {self.param_size}"],
    ) -> Float[Tensor, "*n"]:
        leaves = [
            family.kl(p, q)
            for family, p, q in zip(
                self.families, self._params(params_p), self._params(params_q), strict=True
            )
        ]
        return torch.stack(leaves).sum(dim=0)

    def apply_mask(
        self,
        params: Float[Tensor, "*n {self.param_size}"],
        mask: Shaped[Tensor, "*n {self.mask_size}"],
    ) -> Float[Tensor, "*n {self.param_size}"]:
        if self.mask_size == 0:
            raise ValueError("TupleFamily takes no action mask: none of its families does")
        masks = torch.split(mask, [family.mask_size for family in self.families], dim=-1)
        masked = [
            family.apply_mask(p, m) if family.mask_size else p
            for family, p, m in zip(self.families, self._params(params), masks, strict=True)
        ]
        return torch.cat(masked, dim=-1)

    def to_env(self, action: tuple[Action, ...]) -> tuple[Action, ...]:
        return tuple(
            family.to_env(leaf) for family, leaf in zip(self.families, action, strict=True)
        )
