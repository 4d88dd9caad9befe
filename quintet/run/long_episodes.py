"""Notices about episodes that are long for a run's budget."""

from collections.abc import Callable
from typing import final

from quintet.runtime.loop import Counters

_WITHOUT_END = 10
"""Part of the budget after which a notice says that no episode has ended: one in this many."""


@final
class LongEpisodes:
    """Notices, each given once per process."""

    def __init__(
        self,
        total_env_steps: int,
        interval: int,
        max_cut_frac: float | None,
        replay_holds: Callable[[int], bool] = lambda _: True,
    ):
        """interval: iterations from one exact checkpoint to the next.
        max_cut_frac: see `loop.Budget`.
        replay_holds: whether replay has the rows that a checkpoint of so many iterations ago needs.
        """
        self.total_env_steps, self.interval = total_env_steps, interval
        self.max_cut_frac, self._replay_holds = max_cut_frac, replay_holds
        self._endless = self._inexact = self._out_of_reach = False

    def goes_back_exactly(self, counters: Counters) -> bool:
        """Whether a run can go on from the last exact checkpoint."""
        since = counters.iteration - counters.exact_iteration
        return counters.exact_iteration > 0 and self._replay_holds(since)

    def notices(self, counters: Counters) -> list[str]:
        found = []
        if not self._endless and counters.env_steps * _WITHOUT_END >= self.total_env_steps:
            self._endless = True
            if counters.ended_episodes == 0:
                found.append(
                    f"no episode has ended in the first {counters.env_steps:,} env_steps of "
                    f"{self.total_env_steps:,}, so there is no return to report yet; if they take "
                    "longer than that, raise --total-steps or lower --env.num-streams; if they "
                    "never end, give the environment a time limit"
                )
        if not self._inexact and counters.iteration >= self.interval:
            self._inexact = True
            if self.max_cut_frac is not None and counters.exact_iteration == 0:
                most = int(self.max_cut_frac * self.total_env_steps)
                if counters.running_env_steps > most:
                    found.append(
                        "this run can be resumed, but so far not with the same bytes: an exact "
                        "checkpoint would cut all running episodes, which have "
                        f"{counters.running_env_steps:,} env_steps, and "
                        f"checkpoint.max_cut_frac={self.max_cut_frac:g} allows {most:,} of "
                        f"{self.total_env_steps:,}"
                    )
        past = counters.exact_iteration > 0 and not self.goes_back_exactly(counters)
        if past and not self._out_of_reach:
            self._out_of_reach = True
            since = counters.iteration - counters.exact_iteration
            found.append(
                f"the last exact checkpoint is {since:,} iterations old: replay no longer holds "
                "its rows, and until the next one --resume exact is refused"
            )
        return found
