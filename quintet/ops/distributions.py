"""Families of action distributions over a flat parameter tensor ``[..., param_size]``.

A family is a frozen record of static sizes; parameters, noise and actions are passed in, so one
object serves actor and learner, and its calls depend on nothing but their inputs.  Maths is done in
the dtype of the parameters.  `draw_noise` makes all the randomness of many steps in one call and
`sample` is then deterministic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from quintet.ops.discrete import Categorical

Params = Float[Tensor, "*n {self.param_size}"]
Noise = Float[Tensor, "*n {self.noise_size}"]
Mask = Shaped[Tensor, "*n {self.mask_size}"]
Packed = Shaped[Tensor, "*n {sum(self.widths)}"]
PerRow = Float[Tensor, "*n"]

LARGEST_EXACT = 2**24
"""Largest integer up to which float32 is exact."""


@runtime_checkable
class Family(Protocol):
    """Interface of a family. ``[...]`` stands for the same leading dimensions everywhere."""

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
        """Width of the action mask; 0 if the family takes none."""
        ...

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: () or ``(n,)``."""
        ...

    @property
    def action_dtype(self) -> torch.dtype:
        """int64 or float32."""
        ...

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Base noise ``[*shape, noise_size]``, float32, finite, on the generator's device."""
        ...

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The action ``[..., *action_shape]`` for this noise.

        Differentiable in `params` if actions are floats.
        """
        ...

    def uniform(self, params: Tensor, noise: Tensor) -> Tensor:
        """The uniform policy's action for this noise: every choice that the mask in `params` allows
        is equally probable, and so is every number within the bounds of a float.
        """
        ...

    def mode(self, params: Tensor) -> Tensor:
        """The action that a greedy policy takes."""
        ...

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-probability or log-density ``[...]`` of one action, in nats."""
        ...

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy ``[...]`` in nats."""
        ...

    def kl(self, params_p: Tensor, params_q: Tensor) -> Tensor:
        """Exact ``KL(p || q)`` ``[...]`` in nats."""
        ...

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Parameters of the policy restricted to choices where ``mask[..., mask_size]`` is not 0.

        Raises ValueError if the family takes no mask.
        """
        ...

    def to_env(self, action: Tensor) -> Tensor:
        """Action in the environment's form."""
        ...


@dataclass(frozen=True)
class TupleFamily:
    """Several independent families, whose actions are packed in one tensor.

    Parameters, noise, masks and actions are those of the child families, concatenated in order
    along the last dimension (an action of shape () takes one place); the mask has a part for every
    child that takes a mask.  Log-probabilities, entropies and KLs are sums.  A packed action is
    int64 if all children's are, else float32, also for integers.

    widths: number of places of each family's action in a packed action.

    Raises ValueError without families, or if float32 can't hold a child's integers exactly.
    """

    families: tuple[Family, ...]
    widths: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        widths = tuple(math.prod(family.action_shape) for family in self.families)
        object.__setattr__(self, "widths", widths)
        if not self.families:
            raise ValueError("TupleFamily needs at least one family, got none")
        if not self.action_dtype.is_floating_point:
            return
        for family in leaf_families(self):
            # A family has at least as many parameters as its integers have values.
            integers = not family.action_dtype.is_floating_point
            if integers and family.param_size > LARGEST_EXACT:
                raise ValueError(
                    f"next to float actions, integer actions must stay within {LARGEST_EXACT} "
                    f"values, which float32 holds exactly; got {family}; split it in two"
                )

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
    def action_shape(self) -> tuple[int, ...]:
        return (sum(self.widths),)

    @property
    def action_dtype(self) -> torch.dtype:
        dtypes = {family.action_dtype for family in self.families}
        return torch.int64 if dtypes == {torch.int64} else torch.float32

    def pack(self, actions: Sequence[Tensor]) -> Packed:
        """The children's actions in order, as one tensor, of floats if any of them is."""
        flat = [
            action if family.action_shape else action.unsqueeze(-1)
            for family, action in zip(self.families, actions, strict=True)
        ]
        return torch.cat(flat, dim=-1)  # promotes to the widest dtype among them

    def unpack(self, action: Packed) -> tuple[Tensor, ...]:
        """The children's actions, in order, each in its own shape and kind of dtype."""
        parts = torch.split(action, list(self.widths), dim=-1)
        return tuple(
            (part if family.action_shape else part.squeeze(-1)).to(
                part.dtype if family.action_dtype.is_floating_point else family.action_dtype
            )
            for family, part in zip(self.families, parts, strict=True)
        )

    def split_params(self, params: Tensor) -> tuple[Tensor, ...]:
        """The children's parameters, in order."""
        return torch.split(params, [family.param_size for family in self.families], dim=-1)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([family.draw_noise(shape, generator) for family in self.families], dim=-1)

    def sample(self, params: Params, noise: Noise) -> Packed:
        parts = zip(self.families, self.split_params(params), self._noises(noise), strict=True)
        return self.pack([family.sample(p, z) for family, p, z in parts])

    def uniform(self, params: Params, noise: Noise) -> Packed:
        parts = zip(self.families, self.split_params(params), self._noises(noise), strict=True)
        return self.pack([family.uniform(p, z) for family, p, z in parts])

    def _noises(self, noise: Tensor) -> tuple[Tensor, ...]:
        """The children's noise, in order."""
        return torch.split(noise, [family.noise_size for family in self.families], dim=-1)

    def mode(self, params: Params) -> Packed:
        parts = zip(self.families, self.split_params(params), strict=True)
        return self.pack([family.mode(p) for family, p in parts])

    def log_prob(self, params: Params, action: Packed) -> PerRow:
        parts = zip(self.families, self.split_params(params), self.unpack(action), strict=True)
        return torch.stack([family.log_prob(p, a) for family, p, a in parts]).sum(dim=0)

    def entropy(self, params: Params) -> PerRow:
        parts = zip(self.families, self.split_params(params), strict=True)
        return torch.stack([family.entropy(p) for family, p in parts]).sum(dim=0)

    def kl(self, params_p: Params, params_q: Params) -> PerRow:
        parts = zip(
            self.families, self.split_params(params_p), self.split_params(params_q), strict=True
        )
        return torch.stack([family.kl(p, q) for family, p, q in parts]).sum(dim=0)

    def apply_mask(self, params: Params, mask: Mask) -> Params:
        if self.mask_size == 0:
            raise ValueError("TupleFamily takes no action mask: none of its families does")
        masks = torch.split(mask, [family.mask_size for family in self.families], dim=-1)
        masked = [
            family.apply_mask(p, m) if family.mask_size else p
            for family, p, m in zip(self.families, self.split_params(params), masks, strict=True)
        ]
        return torch.cat(masked, dim=-1)

    def to_env(self, action: Packed) -> Packed:
        parts = zip(self.families, self.unpack(action), strict=True)
        return self.pack([family.to_env(a) for family, a in parts])


def leaf_families(family: Family) -> tuple[Family, ...]:
    """The innermost families, in order; a plain family is its own."""
    if not isinstance(family, TupleFamily):
        return (family,)
    return tuple(leaf for child in family.families for leaf in leaf_families(child))


def multi_categorical(nvec: Sequence[int]) -> TupleFamily:
    """Independent categoricals with these numbers of actions."""
    return TupleFamily(tuple(Categorical(n) for n in nvec))
