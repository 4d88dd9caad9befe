"""Running normalisers: population statistics, merged exactly, frozen while a batch is collected."""

from typing import final

import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn

from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, Obs, Rollout


@final
class RunningMoments(nn.Module):
    """Population mean and variance of a stream of values, per element of `shape`, in float64.

    Batches merge in the parallel form of Chan et al. (1979), so the result is that of the
    concatenated data up to rounding, in whatever portions it comes:

        delta = mean_b - mean
        mean += delta * n_b / (n + n_b)
        m2   += m2_b + delta^2 * n * n_b / (n + n_b)
    """

    count: Tensor
    mean: Tensor
    m2: Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))

    @property
    def variance(self) -> Tensor:
        """Population variance, float64; 0 before any data."""
        return self.m2 / self.count.clamp_min(1.0)

    @torch.no_grad()
    def merge(self, x: Tensor) -> None:
        """Adds the rows of `x` ``[N, *shape]``; N may be 0."""
        n_b = x.shape[0]
        if n_b == 0:
            return
        x = x.to(torch.float64)
        mean_b = x.mean(0)
        m2_b = (x - mean_b).square().sum(0)
        n = self.count + n_b
        delta = mean_b - self.mean
        self.m2 += m2_b + delta.square() * (self.count * n_b / n)
        self.mean += delta * (n_b / n)
        self.count.copy_(n)


def scale_of(moments: RunningMoments, epsilon: float) -> Tensor:
    """``1 / sqrt(var + epsilon)`` in float32."""
    return (moments.variance + epsilon).rsqrt().to(torch.float32)


def normalized_leaves(space: gym_spaces.Space) -> dict[str, tuple[int, ...]]:  # type: ignore[type-arg]
    """Shapes of the leaves that are normalised: floats.  Integers, booleans and masks never are;
    nor are the last action and reward, where 0 is to stay 0, and a rare reward over its small
    standard deviation would drown all else.
    """
    return {
        name: tuple(leaf.shape or ())
        for name, leaf in observation_leaves(space).items()
        if name != ACTION_MASK
        and name.split("/")[0] not in (LAST_ACTION, LAST_REWARD)
        and leaf.dtype is not None
        and leaf.dtype.kind == "f"
    }


@final
class ObservationNormalizer(nn.Module):
    """``clamp((x - mean) / sqrt(var + epsilon), -clip, clip)`` per float leaf.

    The statistics that `forward` uses are those of the last `refresh`, so merging data does not
    change the transform before the iteration ends.
    """

    def __init__(self, leaves: dict[str, tuple[int, ...]], clip: float, epsilon: float):
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        self.names = tuple(leaves)
        # Leaf paths may hold "/" and ".", which module names may not; the order of names stands for
        # them.
        self.moments = nn.ModuleList(RunningMoments(shape) for shape in leaves.values())
        self.refresh()

    def leaf_moments(self, name: str) -> RunningMoments:
        """The statistics of one leaf."""
        moments = self.moments[self.names.index(name)]
        assert isinstance(moments, RunningMoments)
        return moments

    def refresh(self) -> None:
        """Takes the merged statistics into use; before any data the transform is the identity."""
        self._affine = {name: self._transform(self.leaf_moments(name)) for name in self.names}

    def _transform(self, moments: RunningMoments) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, scale, bounds ``[2]``: always tensors, as a compiled graph freezes all else."""
        bound = moments.mean.new_tensor([-self.clip, self.clip], dtype=torch.float32)
        if moments.count > 0:
            return moments.mean.float(), scale_of(moments, self.epsilon), bound
        mean = moments.mean.float()
        return torch.zeros_like(mean), torch.ones_like(mean), bound * torch.inf

    def forward(self, obs: Obs) -> Obs:
        """`obs` with its float leaves normalised; leading dimensions are free."""
        out = dict(obs)
        for name, (mean, scale, bound) in self._affine.items():
            out[name] = ((obs[name] - mean) * scale).clamp_(bound[0], bound[1])
        return out

    def merge(self, obs: Obs, valid: Tensor) -> None:
        """Adds the valid rows of `obs`, leaves ``[T, B, ...]`` with `valid` ``[T, B]``."""
        for name in self.names:
            self.leaf_moments(name).merge(obs[name][valid])


def observation_normalizer(
    space: gym_spaces.Space,  # type: ignore[type-arg]
    *,
    on: bool,
    clip: float,
    epsilon: float,
) -> ObservationNormalizer:
    """For the float leaves of a space; off, it leaves every observation as it is."""
    return ObservationNormalizer(normalized_leaves(space) if on else {}, clip, epsilon)


@final
class RewardNormalizer(nn.Module):
    """``clamp(r / sqrt(var + epsilon), -clip, clip)``; the mean is never subtracted, as that would
    change which policy is best.

    kind: what the variance is of: ``return_std`` the running discounted return (`Rollout`'s return
    carry), ``step_std`` the reward itself, ``none``: rewards stay as they are.
    clip: None or <= 0: no clip.
    """

    def __init__(self, kind: str, clip: float | None, epsilon: float):
        super().__init__()
        self.kind, self.epsilon = kind, epsilon
        self.clip = clip if kind != "none" and clip is not None and clip > 0 else None
        self.moments = RunningMoments(())

    def forward(self, reward: Tensor) -> Tensor:
        """Rewards of any shape; before any data they stay as they are."""
        if self.kind == "none" or self.moments.count == 0:
            return reward
        scaled = reward * scale_of(self.moments, self.epsilon)
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)

    def merge(self, batch: Rollout) -> None:
        """Adds the valid rows of a batch."""
        if self.kind == "return_std":
            assert batch.return_carry is not None
            self.moments.merge(batch.return_carry[batch.valid])
        elif self.kind == "step_std":
            self.moments.merge(batch.reward[batch.valid])
