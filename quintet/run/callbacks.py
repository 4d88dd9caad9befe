"""Functions of the user's that a run calls at its moments."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final

from quintet.errors import ConfigError
from quintet.evaluation import Scores
from quintet.policy import Policy
from quintet.run.policy_run import PolicyRun

OnReport = Callable[[dict[str, float]], object]
"""Called with every report, as often as `report.interval_s` says; returns True to ask for a stop.
"""

OWN = "user/"
"""Prefix of metrics that callbacks log."""


@final
class LiveRun:
    """A run while it trains, as callbacks see it; `run_dir` is its folder."""

    def __init__(self, run_dir: Path, policies: Sequence[PolicyRun], env_steps: Callable[[], int]):
        self.run_dir = run_dir
        self._policies, self._env_steps = policies, env_steps
        self._logged: dict[str, float] = {}

    @property
    def env_steps(self) -> int:
        """env_steps trained so far, over all starts of the run."""
        return self._env_steps()

    def policy(self, index: int = 0) -> Policy:
        """A copy of the policy as it is now; index: of a run of several policies."""
        return self._policies[index].policy()

    def log(self, name: str, value: float) -> None:
        """Adds the metric ``user/NAME`` to the next report, in every sink; logged twice, the later
        value counts.

        Raises:
            ConfigError: the name has other characters than letters, digits and ``_ - . /``, or the
                value is no number.
        """
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", name):
            raise ConfigError(
                f"log requires a name of letters, digits and _ - . /, as in 'solved_frac', got "
                f"{name!r}"
            )
        try:
            self._logged[OWN + name] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"log requires a number for {name!r}, got {value!r}") from error

    def take_logged(self) -> dict[str, float]:
        """Metrics logged since the last call, for the report."""
        logged, self._logged = self._logged, {}
        return logged


@final
@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls; each may be left out.

    What any of them but `end` returns may be True, which stops the run at the end of its iteration,
    as Ctrl-C does: with a checkpoint, and the same call goes on.  What any of them raises ends the
    run in the same way and then reaches the caller (of `begin` at once); sys.exit() is an error.
    They run in the learner's process, which waits for them, and not at all where the run was
    finished before.

    begin: ``(run)``, before a run begins or goes on.
    evaluation: ``(run, scores)``, after every evaluation while training.
    report: ``(run, report)``, before a report is written: what `run.log` is told here is in it.  As
        often as `report.interval_s` says, by default ever more rarely.
    checkpoint: ``(run, path)``, after a checkpoint was written.
    end: ``(run, status)``, after the run was "finished" or "stopped", with all of its files.
    """

    begin: Callable[[LiveRun], object] | None = None
    evaluation: Callable[[LiveRun, Scores], object] | None = None
    report: Callable[[LiveRun, dict[str, float]], object] | None = None
    checkpoint: Callable[[LiveRun, Path], object] | None = None
    end: Callable[[LiveRun, Literal["finished", "stopped"]], object] | None = None


class UserCode(NamedTuple):
    """All functions that a run calls for its caller."""

    on_report: OnReport | None = None
    callbacks: Callbacks = Callbacks()
