"""Scores of predictions of numbers from others, on rows that were held out.

The predictor is a ridge regression on the inputs, their products and random features of them: it
takes a second where a network takes minutes, and has one solution.  It misses steps and fast
waves, which the rows with the nearest inputs may predict.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]
Features = Callable[[Floats], Floats]
Fitted = Callable[[Floats, Floats, Groups, Floats], Floats]
"""A predictor that is fitted to inputs and numbers of rows in groups: its numbers for others."""

_FOLDS = 4
_T = 3.18  # Student's distribution with 3 degrees of freedom, for 95%
_MOST_PRODUCTS = 24  # inputs whose products are taken
_MOST_RANDOM = 256
_RIDGE = 1e-4
_NEAREST, _AT_ONCE = 3, 500  # rows that are nearest; rows whose nearest ones are searched at once
_MOST_FACTORS = 48  # numbers that are multiplied with another
_SHUFFLED, _CLEARLY = 30, 1.45  # random orders, and the factor by which `x` must exceed them
_FAR = 6.0  # standard deviations at which inputs and random features are clipped


@final
class Score(NamedTuple):
    """Share of the variance that is predicted on held-out rows, and half its 95% interval."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def scores(x: Floats, y: Floats, group: Groups, fitted: Fitted | None = None) -> list[Score]:
    """Scores of each column of `y` ``[N, k]``, predicted from `x` ``[N, d]``.

    group: of each row; rows of one group are held out together.
    """
    return folds(x, y, group, fitted)[1]


def residuals(x: Floats, y: Floats, group: Groups, fitted: Fitted | None = None) -> Floats:
    """The unpredicted rest of `y` ``[N, k]`` on held-out rows."""
    return folds(x, y, group, fitted)[0]


def nearest_score(x: Floats, y: Floats, group: Groups) -> Score:
    """The score of `y` ``[N]``, predicted as the mean of the rows with the nearest inputs."""
    z = x[:, x.std(0) > 0.0]
    return scores((z - z.mean(0)) / z.std(0), y[:, None], group, _nearest)[0]


def _nearest(x: Floats, y: Floats, _: Groups, queries: Floats) -> Floats:
    size = np.square(x).sum(1)
    found = [
        np.argpartition(size - 2.0 * some @ x.T, _NEAREST - 1, 1)[:, :_NEAREST]
        for some in np.array_split(queries, -(-len(queries) // _AT_ONCE))
    ]
    return np.asarray(y[np.concatenate(found)].mean(1), np.float64)


def fold_of(group: Groups) -> NDArray[np.int64]:
    """The fold ``[N]`` in which each row is held out."""
    place = np.unique(group, return_inverse=True)[1]
    if place.max(initial=0) + 1 < 2 * _FOLDS:  # blocks of time in place of groups
        place = np.arange(len(group)) * 2 * _FOLDS // max(len(group), 1)
    fold = np.random.default_rng(0).permutation(place.max(initial=0) + 1)[place] % _FOLDS
    return np.asarray(fold, np.int64)


def score_of(folds: Floats) -> Score:
    spread = float(folds.std(ddof=1)) if len(folds) > 1 else 0.0
    return Score(float(folds.mean()), _T * spread / len(folds) ** 0.5)


def folds(
    x: Floats, y: Floats, group: Groups, fitted: Fitted | None = None
) -> tuple[Floats, list[Score]]:
    """Residuals ``[N, k]`` on held-out rows, and the score of each column of `y` ``[N, k]``.

    fitted: the predictor; None: the regression.
    """
    fold = fold_of(group)
    left, shares = np.zeros_like(y), list[Floats]()
    for number in range(_FOLDS):
        out = fold == number
        if not out.any() or out.all():
            continue
        left[out] = y[out] - (fitted or _regression)(x[~out], y[~out], group[~out], x[out])
        whole = np.square(y[out] - y[~out].mean(0)).mean(0)
        missed = np.square(left[out]).mean(0)
        shares.append(np.where(whole > 1e-18, 1.0 - missed / np.maximum(whole, 1e-18), 0.0))
    table = np.array(shares) if shares else np.zeros((1, y.shape[1]))
    return left, [score_of(each) for each in table.T]


def _regression(x: Floats, y: Floats, _: Groups, queries: Floats) -> Floats:
    features, mean = _features(x), y.mean(0)
    learned = _ridge(features(x), y - mean)
    # Errors beyond what was ever seen say more about the predictor than about the data.
    predicted = np.clip(features(queries) @ learned + mean, y.min(0), y.max(0))
    return np.asarray(predicted, np.float64)


def _features(x: Floats) -> Features:
    """The features, scaled by these inputs."""
    mean, std = x.mean(0), x.std(0)
    used = std > 1e-12 * np.maximum(1.0, np.abs(mean))
    rows, count = len(x), int(used.sum())
    generator = np.random.default_rng(count)
    first, second = np.triu_indices(count if count <= _MOST_PRODUCTS else 0)
    if len(first) > rows // 8:
        first = second = first[:0]
    size = min(_MOST_RANDOM, rows // 16) if count else 0
    weight = generator.normal(0.0, 1.0, (count, size)) * generator.uniform(0.3, 1.5, size)
    weight /= max(count, 1) ** 0.5
    bias = generator.uniform(-2.0, 2.0, size)

    def features(given: Floats) -> Floats:
        z = np.clip((given[:, used] - mean[used]) / std[used], -_FAR, _FAR)
        parts = [np.ones((len(z), 1)), z, z[:, first] * z[:, second], np.tanh(z @ weight + bias)]
        return np.concatenate(parts, -1)

    return features


def _ridge(x: Floats, y: Floats) -> Floats:
    square = x.T @ x
    square[np.diag_indices(len(square))] += _RIDGE * len(x)
    return np.asarray(np.linalg.solve(square, x.T @ y), np.float64)


def tells(x: Floats, others: Floats, y: Floats, group: Groups) -> bool:
    """Whether `x` ``[N]`` predicts a part of `y` ``[N, k]`` that `others` ``[N, d]`` can't predict:
    `x`, its square or its products with them correlate with the rest more than in a random order.
    """
    left = residuals(others, y, group)
    left = (left - left.mean(0)) / np.maximum(left.std(0), 1e-12)
    z = (x - x.mean()) / max(x.std(), 1e-12)
    known = others[:, others.std(0) > 1e-12][:, :_MOST_FACTORS]
    known = (known - known.mean(0)) / known.std(0)

    def together(z: Floats) -> Floats:
        features = np.concatenate([z[:, None], np.square(z)[:, None] - 1.0, z[:, None] * known], 1)
        return np.asarray(np.abs(features.T @ left), np.float64)

    random = np.random.default_rng(0)
    by_chance = np.stack([together(random.permutation(z)) for _ in range(_SHUFFLED)])
    # Each is compared with itself, so that one of few large rows decides nothing for the others.
    scale = np.maximum(np.sqrt(np.square(by_chance).mean(0)), 1e-12)
    return bool((together(z) / scale).max(initial=0.0) > _CLEARLY * (by_chance / scale).max())


def share_of_groups(x: Floats, group: Groups) -> float:
    """Share of the variance of `x` ``[N]`` that lies between groups, beyond what chance gives."""
    names, place, count = np.unique(group, return_inverse=True, return_counts=True)
    rows = len(x)
    if len(names) < 2 or rows <= len(names):
        return 0.0
    means = np.bincount(place, x) / count
    within = float(np.square(x - means[place]).sum()) / (rows - len(names))
    whole = float(np.square(x - x.mean()).sum()) / (rows - 1)
    return 0.0 if whole <= 1e-18 else max(0.0, 1.0 - within / whole)
