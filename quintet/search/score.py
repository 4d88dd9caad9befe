"""The score of an entry: the mean return of fresh episodes, with greedy or with sampled actions."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from quintet.observe.intervals import bootstrap_band
from quintet.observe.run_summary import number
from quintet.search.race_journal import Look


@final
class Score(NamedTuple):
    """Mean return of a policy with its 95% bootstrap interval.

    how: ``greedy`` or ``sampled`` actions; ``training`` where no episode was evaluated, with
        sampled actions then too.
    mean: None if too few episodes have ended.
    low, high: ends of the interval, if known.
    """

    how: str
    mean: float | None
    low: float | None = None
    high: float | None = None

    def known(self) -> "Score":
        """Without an interval where all returns are equal, which tells nothing of others."""
        return self._replace(low=None, high=None) if self.low == self.high else self

    def __str__(self) -> str:
        if self.mean is None:
            return "too few episodes ended"
        if self.how == "training":
            return f"{number(self.mean)} (of training)"
        if self.low is None:
            return f"{number(self.mean)} (no interval)"
        if self.low == self.high:
            return f"{number(self.mean)} (all equal, {self.how})"
        return f"{number(self.mean)} [{number(self.low)}, {number(self.high)}] ({self.how})"


def score(look: Look) -> Score:
    """The score of a look.

    Greedy actions say little of a policy that acts widely, and sampled ones have the noise of
    exploration.  So a policy is judged by those whose returns are surely higher: whose interval has
    the higher lower end.
    """
    found = [_of(how, x) for how, x in ways(look).items()]
    sure = [each for each in found if each.low is not None]
    if sure:
        return max(sure, key=lambda each: each.low or 0.0)
    return found[0] if found else Score("training", look.training)


def ways(look: Look) -> dict[str, Sequence[float]]:
    """Returns of evaluated episodes by the way to act; none where no episode was evaluated."""
    both = {"greedy": look.returns, "sampled": look.sampled}
    return {how: x for how, x in both.items() if x}


def _of(how: str, returns: Sequence[float]) -> Score:
    mean = sum(returns) / len(returns)
    if len(returns) < 2:
        return Score(how, mean)
    (low,), (high,) = bootstrap_band(np.array(returns, float)[:, None])
    return Score(how, mean, float(low), float(high))


def better_sampled(look: Look) -> str:
    """A sentence where sampled actions are better than greedy ones; else ""."""
    found, both = score(look), ways(look)
    if found.how != "sampled" or "greedy" not in both:
        return ""
    return (
        f"its sampled actions have higher returns than its greedy ones, {found} against "
        f"{_of('greedy', both['greedy'])}: use quintet eval --stochastic, or in Python "
        "act(obs, deterministic=False)"
    )
