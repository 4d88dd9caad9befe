"""Scores by which the policies of a population are ranked: means over equal spans of env_steps."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, final

from quintet.observe.metrics import ENV

if TYPE_CHECKING:  # imports PyTorch, which options have no use for
    from quintet.runtime.batch import Episode

MOST_WINDOWS = 10
"""Number of windows after which a policy's episodes are dropped; no span is longer."""


@dataclass(frozen=True)
class _Sums:
    """Sums over the episodes that ended in a batch.

    env_steps: the policy's env_steps after the batch.
    judged: number of episodes in which success is defined.
    own: sum and count of each of the environment's own numbers, one after another.
    """

    env_steps: int
    episodes: int
    returns: float
    lengths: int
    judged: int
    won: int
    own: tuple[float, ...] = ()


OF_EPISODES = ("episode/", ENV)
"""Prefixes of the names of objectives of episodes."""

_Parts = Callable[[_Sums], tuple[float, int]]

MEANS: Mapping[str, _Parts] = {
    "episode/return_mean": lambda sums: (sums.returns, sums.episodes),
    "episode/length_mean": lambda sums: (float(sums.lengths), sums.episodes),
    "episode/success_rate": lambda sums: (float(sums.won), sums.judged),
}
"""Objectives of episodes by name: the sum and the count of a mean."""


@final
class Record:
    """The newest episodes of one policy, by its env_steps.

    env_steps: the policy's env_steps so far.
    since: its env_steps when it last took over other weights.
    """

    def __init__(self, longest: int, names: Sequence[str] = ()):
        """longest: env_steps of the policy after which episodes are dropped; names: of the
        environment's own numbers.
        """
        self.names = names
        self.longest, self.env_steps, self.since = longest, 0, 0
        self._sums: deque[_Sums] = deque()

    def add(self, env_steps: int, episodes: Sequence["Episode"]) -> None:
        """Adds episodes that its own weights began; env_steps: of the policy, after them."""
        self.env_steps = env_steps
        if episodes:
            judged = [each.success for each in episodes if each.success is not None]
            returns = sum(each.return_ for each in episodes)
            lengths = sum(each.length for each in episodes)
            sums = (env_steps, len(episodes), returns, lengths, len(judged), sum(judged))
            own: list[float] = []
            for numbers in zip(*(each.metrics for each in episodes), strict=True):
                known = [x for x in numbers if x == x]
                own += [sum(known), float(len(known))]
            self._sums.append(_Sums(*sums, tuple(own)))
        while self._sums and self._sums[0].env_steps <= env_steps - self.longest:
            self._sums.popleft()

    def begin_anew(self) -> None:
        """Drops all episodes, as the policy now has other weights."""
        self.since = self.env_steps
        self._sums.clear()

    def span(self, name: str, episodes: int) -> int | None:
        """The number of newest env_steps with this many episodes; None if there are too few."""
        counted = 0
        for sums in reversed(self._sums):
            counted += self._parts(name, sums)[1]
            if counted >= episodes:
                return self.env_steps - sums.env_steps + 1
        return None

    def mean(self, name: str, span: int) -> float:
        """Mean over the episodes that ended in the newest `span` env_steps, at least one."""
        begin = self.env_steps - span
        parts = [self._parts(name, sums) for sums in self._sums if sums.env_steps > begin]
        return sum(total for total, _ in parts) / sum(count for _, count in parts)

    def _parts(self, name: str, sums: _Sums) -> tuple[float, int]:
        if name in MEANS:
            return MEANS[name](sums)
        place = 2 * self.names.index(name.removeprefix(ENV))
        total, count = sums.own[place : place + 2]
        return total, int(count)

    def save(self) -> dict[str, Any]:
        """JSON-able."""
        sums = [[*astuple(each)[:-1], *each.own] for each in self._sums]
        return {"env_steps": self.env_steps, "since": self.since, "sums": sums}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of `save`."""
        self.env_steps, self.since = saved["env_steps"], saved["since"]
        self._sums = deque(_Sums(*(*each[:6], tuple(each[6:]))) for each in saved["sums"])


def compared(records: Sequence[Record], name: str, window: int, least: int) -> list[float | None]:
    """The mean of each policy over its newest env_steps, with the same span for all.

    The span is the window, or longer if a policy has fewer than `least` episodes in the window.
    None: fewer than `least` episodes ended in MOST_WINDOWS windows, or since the policy took
        another one's weights, or it took them less than a span ago.
    """
    spans = [record.span(name, least) for record in records]
    span = max([window, *(each for each in spans if each is not None)])
    return [
        None if own is None or record.env_steps - record.since < span else record.mean(name, span)
        for record, own in zip(records, spans, strict=True)
    ]
