"""Running normalisers: population statistics, merged exactly, fixed while a batch is collected."""

from collections.abc import Callable, Mapping
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from quintet.system.transfer import places_of
from quintet.types import Obs, Rollout


@final
class RunningMoments(nn.Module):
    """Population mean and variance of a sequence of values, per element of `shape`, in float64.

    Batches merge in the parallel form of Chan et al. (1979), so the result equals that of the
    concatenated data up to rounding:

        delta = mean_b - mean
        mean += delta * n_b / (n + n_b)
        m2   += m2_b + delta^2 * n * n_b / (n + n_b)
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    newest: tuple[int, Tensor, Tensor] | None = None
    """Rows, mean and sum of squared deviations of the newest batch; not in checkpoints."""

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
        if x.dtype == torch.uint8:
            mean_b, m2_b = _moments_of_bytes(x)
        else:
            x = x.to(torch.float64)
            mean_b = x.mean(0)
            m2_b = (x - mean_b).square().sum(0)
        self.newest = n_b, mean_b, m2_b
        n = self.count + n_b
        delta = mean_b - self.mean
        self.m2 += m2_b + delta.square() * (self.count * n_b / n)
        self.mean += delta * (n_b / n)
        self.count.copy_(n)


_OF_A_CPU, _OF_A_GPU = (torch.float32, 256, 2**19), (torch.int32, 2**31, 2**25)
"""Dtype for sums of bytes, largest number of rows at once, and largest number of bytes at once."""


def _moments_of_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations of the rows of uint8 `x`, float64.

    All sums are exact sums of integers (in float32 of 256 squares, else in int64, of at most 11
    million rows), so they do not depend on the order, and nothing cancels.
    """
    count, rows = x.shape[0], x.reshape(x.shape[0], -1)
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=x.device)
    squares = torch.zeros_like(total)
    # Few enough rows at once that they stay in a processor's cache, or in 128 MB of a GPU.
    dtype, most, numbers = _OF_A_CPU if x.is_cpu else _OF_A_GPU
    for part in torch.split(rows, max(1, min(most, numbers // max(1, rows.shape[1])))):
        block = part.to(dtype)
        total += block.sum(0)
        squares += block.square_().sum(0)
    deviations = count * squares.long() - total.long().square()
    shape = x.shape[1:]
    return (total / count).view(shape), (deviations.to(torch.float64) / count).view(shape)


def scale_of(moments: RunningMoments, epsilon: float) -> Tensor:
    """``1 / sqrt(var + epsilon)`` in float32."""
    return (moments.variance + epsilon).rsqrt().to(torch.float32)


_FACTOR = 5.0
_LEAST_ROWS = 16  # a standard deviation of fewer says little
_LEAST_VARIANCE = 1e-12  # least variance of numbers that change at all


def _unlike(moments: RunningMoments) -> float | None:
    """`ObservationNormalizer.unlike` of one leaf."""
    if moments.newest is None:
        return None
    rows, mean, m2 = moments.newest
    if rows < _LEAST_ROWS:
        return None
    spread, known = m2 / rows + (mean - moments.mean).square(), moments.variance
    moves = torch.maximum(spread, known) > _LEAST_VARIANCE
    unlike = (spread > _FACTOR**2 * known) | (spread < known / _FACTOR**2)
    found = torch.stack((moments.count, moves.sum(), (unlike & moves).sum()))
    known_rows, count, unlike_count = found.tolist()
    return unlike_count / count if count and known_rows >= 4 * rows else None


@final
class ObservationNormalizer(nn.Module):
    """``clamp((x - mean) / sqrt(var + epsilon), -clip, clip)`` per element of some leaves.

    Pictures of uint8 are scaled to [0, 1] first; before any data they are only scaled.  Their
    statistics are in units of the picture.

    The statistics change when data are merged or loaded, not in `forward`: a learner merges at the
    end of an iteration, so that its transform equals the actors'; only the first batch is merged
    before it.
    """

    def __init__(
        self,
        leaves: Mapping[str, tuple[int, ...]],
        clip: float,
        epsilon: float,
        pictures: Mapping[str, tuple[int, ...]] | None = None,
        float64: frozenset[str] = frozenset(),
        white: Mapping[str, float] | None = None,
    ):
        """leaves: shapes of float leaves, by name; pictures: shapes of uint8 leaves; float64:
        leaves of this dtype, normalised or not; white: what the network sees as 1 in pictures in
        which that is not 255.
        """
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        self.units = dict.fromkeys(leaves, 1.0) | dict.fromkeys(pictures or {}, 255.0)
        self.units |= {name: x for name, x in (white or {}).items() if name in self.units}
        self.names = tuple(self.units)
        self._floats = frozenset(leaves)
        self._float64, self._others = float64, tuple(sorted(float64 - {*self.units}))
        # Ordered by name, since leaf paths may hold "/" and ".", which module names may not.
        shapes = {**leaves, **(pictures or {})}
        self.moments = nn.ModuleList(RunningMoments(shapes[name]) for name in self.names)
        self._affine: dict[str, tuple[Tensor, ...]] = {}
        self.register_load_state_dict_post_hook(lambda it, _: it._refresh())  # type: ignore[no-untyped-call]
        self._refresh()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Called by `to`: moves the transform with the statistics."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh()
        return self

    def leaf_moments(self, name: str) -> RunningMoments:
        moments = self.moments[self.names.index(name)]
        assert isinstance(moments, RunningMoments)
        return moments

    @property
    def empty(self) -> bool:
        """Whether a leaf has no statistics yet."""
        return any(bool(self.leaf_moments(name).count == 0) for name in self.names)

    def _refresh(self) -> None:
        """Recomputes the transform from the statistics, in the same memory, which graphs keep;
        before any data floats stay unchanged.
        """
        for name in self.names:
            new, old = self._transform(name), self._affine.get(name)
            if old is None or old[0].device != new[0].device:
                with torch.inference_mode(False):  # may be used in a graph later
                    self._affine[name] = tuple(x.clone() for x in new)
                continue
            for x, y in zip(old, new, strict=True):
                x.copy_(y)

    def _transform(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, scale and bounds ``[2]`` as tensors, since numbers are constants of a graph."""
        moments, unit = self.leaf_moments(name), self.units[name]
        some = moments.count > 0
        bound = torch.where(some, self.clip, torch.inf)
        # A single number has shape [1]: graphs take no float64 without dimensions.
        exact = name in self._float64
        mean = moments.mean if exact else moments.mean.float()
        mean = mean.reshape(1) if exact and not mean.shape else mean
        scale = torch.where(some, scale_of(moments, self.epsilon * unit**2), 1.0 / unit)
        return torch.where(some, mean, 0.0), scale, torch.stack((-bound, bound))

    def forward(self, obs: Obs) -> Obs:
        """`obs` with its leaves normalised, in float32; other float64 leaves are also converted to
        float32; leading dimensions are free.  Leaves may be missing, where only some are read.
        """
        out = dict(obs)
        for name, (mean, scale, bound) in self._affine.items():
            if name not in obs:
                continue
            x = obs[name]
            # Changed in place: new memory for pictures would take longer than the arithmetic.
            centred = x - mean if x.is_floating_point() else x.to(torch.float32).sub_(mean)
            # Float64 until here: float32 would round small differences of large numbers.
            centred = centred.to(torch.float32)
            out[name] = centred.mul_(scale).clamp_(bound[0], bound[1])
        for name in self._others:
            if name in obs:
                out[name] = obs[name].to(torch.float32)
        return out

    def unlike(self) -> float | None:
        """Fraction of the numbers of a float leaf whose standard deviation in the newest batch,
        about the running mean, is above 5 times or below a fifth of the running one; the largest
        such fraction of a leaf.  None if the statistics hold little more than that batch.
        """
        shares = [
            share
            for name in self.names
            if name in self._floats and (share := _unlike(self.leaf_moments(name))) is not None
        ]
        return max(shares, default=None)

    def clip_share(self, obs: Obs, use: Tensor, count: Tensor) -> Tensor:
        """Share of the elements of normalised leaves that are at the clip, over the rows to `use`
        ``[T, B]``; 0 before there are statistics, NaN where there is no element.

        obs: leaves ``[T * B, ...]``, normalised; later rows are not read.
        count: number of rows to use; with several ranks over all of them, so that each gives its
            share.
        """
        if not self.names:
            return torch.full((), torch.nan, device=use.device)
        rows, outside, elements = use.reshape(-1, 1), torch.zeros((), device=use.device), 0
        for name in self.names:
            x = obs[name][: len(rows)].reshape(len(rows), -1)
            low, high = self._affine[name][2].unbind()
            # Changed in place: new memory for pictures would take longer than the arithmetic.
            clipped = (x <= low).logical_or_(x >= high).logical_and_(rows)
            outside = outside + torch.count_nonzero(clipped)
            elements += x.shape[1]
        return outside / (count * elements)

    def merge(self, obs: Obs, valid: Tensor) -> None:
        """Adds the valid rows of `obs`, leaves ``[T, B, ...]`` with `valid` ``[T, B]``, for which
        the host does not wait if it is on the CPU.
        """
        rows: Tensor | None = None
        for name in self.names:
            x = obs[name].flatten(0, 1)
            rows = places_of(valid, x.device) if rows is None else rows
            # Indexing pictures by places is far faster than by a mask.
            self.leaf_moments(name).merge(x.index_select(0, rows))
        self._refresh()


@final
class RewardNormalizer(nn.Module):
    """``clamp(r / sqrt(var + epsilon), -clip, clip)``; subtracting the mean would change which
    policy is best.

    kind: the variance used: ``return_std``, of the running discounted return
        (`Rollout.return_carry`); ``step_std``, of the reward; ``none``: rewards stay unchanged.
    clip: None or <= 0: no clip.
    """

    def __init__(self, kind: str, clip: float | None, epsilon: float):
        super().__init__()
        self.kind, self.epsilon = kind, epsilon
        self.clip = clip if kind != "none" and clip is not None and clip > 0 else None
        self.moments = RunningMoments(())

    @property
    def empty(self) -> bool:
        """Whether it uses statistics and has no data yet."""
        return self.kind != "none" and bool(self.moments.count == 0)

    def forward(self, reward: Tensor) -> Tensor:
        """Normalised rewards of any shape; unchanged before any data."""
        if self.kind == "none":
            return reward
        scaled = reward * scale_of(self.moments, self.epsilon)
        scaled = scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)
        return torch.where(self.moments.count > 0, scaled, reward)  # no device is waited for

    def merge(self, batch: Rollout) -> None:
        """Adds the valid rows of a batch."""
        if self.kind == "none":
            return
        x = batch.return_carry if self.kind == "return_std" else batch.reward
        assert x is not None
        rows = places_of(batch.on_cpu("valid"), x.device)
        self.moments.merge(x.flatten().index_select(0, rows))
