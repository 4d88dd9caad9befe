"""Hidden clocks: rewards or observations that depend on the step's number, which is not shown."""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from quintet.doctor.network import by_network
from quintet.doctor.predict import Floats, residuals, scores

_LONGEST = 64  # period, in steps
_PARTS = 12  # parts of an episode, to find what changes once
_MOST_FACTORS = 24  # numbers with which the rest is multiplied
_SHARE, _TOLD = 0.05, 0.3  # least share, and least score, of the residuals
_GAIN = 0.03  # least gain of a score
_LEAST_EPISODES = 16


@final
class Clock(NamedTuple):
    """Part of the reward or of an observation that the number of the step tells.

    period: in steps, after which it begins again; 0: it does not.
    gain: of the score by the number of the step.
    of_reward: whether it is about the reward.
    """

    period: int
    gain: float
    of_reward: bool


def hidden_clock(
    steps: NDArray[np.int64],
    x: Floats,
    y: Floats,
    group: NDArray[np.int64],
    *,
    of_reward: bool = False,
) -> Clock | None:
    """Looks for a rule by which the step's number predicts `y` ``[N, k]`` better than observations
    and actions `x` ``[N, d]`` do; None: there is none.

    steps: number of the step in its episode ``[N]``; group: the episodes.
    """
    names = np.unique(group)
    if not y.shape[1] or len(names) < _LEAST_EPISODES:
        return None
    left = residuals(x, y, group)
    moving = x[:, x.std(0) > 1e-9][:, :_MOST_FACTORS]
    factors = np.concatenate([np.ones((len(x), 1)), (moving - moving.mean(0)) / moving.std(0)], 1)
    longest = int(steps.max()) + 1
    most_steps = min(_LONGEST, longest // 2)  # a longer period is seen only once
    parts = {period: steps % period for period in range(2, most_steps + 1)}
    if longest >= 2 * _PARTS:
        parts[0] = steps * _PARTS // longest
    if not parts:
        return None
    # The rule is chosen by half of the episodes and judged by the others: effects of chance, or of
    # the episode, fit some rule in one half, but not the same rule in the other.
    chosen = np.isin(group, np.random.default_rng(0).permutation(names)[::2])
    rest = (left[chosen, :, None] * factors[chosen, None, :]).reshape(chosen.sum(), -1)
    shares = {period: _shares(rest, part[chosen]) for period, part in parts.items()}
    most = max(float(each.max()) for each in shares.values())
    if most < _SHARE:
        return None
    # Multiples of a period tell as much.
    period = min(
        (p for p, each in shares.items() if each.max() >= 0.9 * most), key=lambda p: p or 99
    )
    place, number = divmod(int(shares[period].argmax()), factors.shape[1])
    shown = (parts[period][:, None] == np.unique(parts[period])).astype(np.float64)
    products = np.concatenate([shown * factors[:, [each]] for each in {0, number}], 1)
    y, left = y[:, [place]], left[:, [place]]

    def gained(left: Floats) -> float:
        score = scores(products[~chosen], left[~chosen], group[~chosen])[0]
        return score.low * float(left.var() / max(y.var(), 1e-18)) * (score.low >= _TOLD)

    gain = gained(left)
    if gain >= _GAIN:  # a network may tell it without a clock, such as an hour that jumps
        gain = min(gain, gained(residuals(x, y, group, by_network)))
    return Clock(period, gain, of_reward) if gain >= _GAIN else None


def _shares(columns: Floats, part: NDArray[np.int64]) -> Floats:
    """Share of the variance of each column ``[N, k]`` that lies between parts ``[N]``, beyond what
    chance gives."""
    order = np.argsort(part, kind="stable")
    first = np.flatnonzero(np.diff(part[order], prepend=-1))
    count = np.diff(first, append=len(part))[:, None]
    sums = np.add.reduceat(columns[order], first, 0)
    between = (np.square(sums) / count).sum(0) - np.square(columns.sum(0)) / len(part)
    whole = np.square(columns).sum(0) - np.square(columns.sum(0)) / len(part)
    share = between / np.maximum(whole, 1e-18)
    return np.asarray(share - (len(first) - 1) / len(part), np.float64)
