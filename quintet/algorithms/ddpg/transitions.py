"""A replayed batch in the form that DDPG's loss reads."""

from dataclasses import dataclass

from torch import Tensor

from quintet.algorithms.parts.windows import Windows


@dataclass(frozen=True)
class Transitions:
    """This learner's share of a batch.

    target: target of the values ``[B]``, if known already.
    spread: mean and standard deviation by which values are scaled, ``[2]``.
    """

    windows: Windows
    target: Tensor | None
    spread: Tensor
