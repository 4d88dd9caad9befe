"""Users' functions that a run calls at certain moments."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import numpy as np

from quintet.errors import ConfigError
from quintet.policies.policy import Policy
from quintet.run.policy_run import PolicyRun
from quintet.system import forks
from quintet.system.signals import StopRequest
from quintet.system.user_code import argv_advice, no_exit

if TYPE_CHECKING:
    from quintet.policies.evaluation import Scores

OnReport = Callable[[dict[str, float]], object]
"""A function called with every report, at intervals of `report.interval_s`; returns True to stop
the run.
"""

OWN = "user/"
"""Prefix of metrics that callbacks log."""


@final
class LiveRun:
    """A run while it trains, as callbacks see it.

    run_dir: its folder.
    evaluated: index of the policy whose scores `Callbacks.evaluation` receives; 0 at other times.
    """

    def __init__(
        self,
        run_dir: Path,
        policies: Sequence[PolicyRun],
        env_steps: Callable[[], int],
        set_env: Callable[[str, Any], None] = lambda *_: None,
    ):
        self.run_dir, self.evaluated, self.may_set = run_dir, 0, True
        self._policies, self._env_steps, self._set_env = policies, env_steps, set_env
        self._logged: dict[str, float] = {}

    @property
    def env_steps(self) -> int:
        """env_steps trained so far, over all starts of the run."""
        return self._env_steps()

    def policy(self, index: int | None = None) -> Policy:
        """A copy of the current policy; index: in a run of several, by default `evaluated`."""
        return self._policies[self.evaluated if index is None else index].policy()

    def log(self, name: str, value: float) -> None:
        """Adds the metric ``user/NAME`` to the next report, in every sink; if logged twice, the
        later value counts.

        Raises:
            ConfigError: the name has other characters than ASCII letters, digits and ``_ - . /``,
                or more than 150, or the value is not a number.
        """
        # No longer, since prefixes are added to what files of reports may hold.
        form = r"(?=.{1,150}$)[\w.-]+(/[\w.-]+)*"
        if not isinstance(name, str) or not re.fullmatch(form, name, re.ASCII):
            raise ConfigError(
                f"log must have a name of at most 150 ASCII letters, digits and _ - . /, as in "
                f"'solved_frac', got {name!r}"
            )
        try:
            self._logged[OWN + name] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"log must have a number for {name!r}, got {value!r}") from error

    def set_env(self, name: str, value: Any) -> None:
        """Sets the attribute `name` of every training environment (of the first wrapper that has
        it) from its next unroll on.  If none has it, or the name is ``task``, it calls the method
        ``set_task(name, value)``, or ``set_task(value)``.  Checkpoints hold the value.

        Raises:
            ConfigError: the value can't be stored, no environment takes it, or the callback is
                `checkpoint` or `end`, after which a run that resumes would lack it.
        """
        if not self.may_set:
            raise ConfigError(
                "set_env must be called in the callbacks begin, evaluation or report, got a call "
                "after a checkpoint, which would lack the value: move it into one of these"
            )
        self._set_env(name, value)

    def take_logged(self) -> dict[str, float]:
        """Metrics logged since the last call, for the report."""
        logged, self._logged = self._logged, {}
        return logged


@final
@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls; each is optional.

    If one of them except `end` returns True, the run stops at the end of its iteration, as by
    Ctrl-C: with a checkpoint, and the same call resumes it.  An exception in one of them ends the
    run in the same way and then reaches the caller (from `begin` at once); sys.exit() is an error.
    They run in the learner's process, which waits for them, and are not called if the run was
    already finished.

    begin: ``(run)``, before a run begins, resumes, or begins anew to fit its `minutes`.
    evaluation: ``(run, scores)``, after every evaluation during training, for each policy.
    report: ``(run, report)``, before a report is written; it includes metrics that are logged here.
        Called at intervals of `report.interval_s`, which by default grow.
    checkpoint: ``(run, path)``, after a checkpoint was written.
    end: ``(run, status)``, after the run was "finished" or "stopped", with all of its files.
    """

    begin: Callable[[LiveRun], object] | None = None
    evaluation: "Callable[[LiveRun, Scores], object] | None" = None
    report: Callable[[LiveRun, dict[str, float]], object] | None = None
    checkpoint: Callable[[LiveRun, Path], object] | None = None
    end: Callable[[LiveRun, Literal["finished", "stopped"]], object] | None = None


class UserCode(NamedTuple):
    """All functions of the user that a run calls."""

    on_report: OnReport | None = None
    callbacks: Callbacks = Callbacks()


@final
class UserCalls:
    """Calls the user's functions.

    raised: an error of one of them, or of the run itself, which is kept until the run is saved.
    """

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self.raised: BaseException | None = None

    def ask(self, function: Callable[..., object] | None, *given: object) -> None:
        """Calls a function, unless one has raised an error; a True or an error stops the run."""
        if function is None or self.raised is not None:
            return
        try:
            with no_exit(), forks.kept_out("a callback"):
                answer = function(*given)
        except BaseException as error:  # Ctrl-C as well
            if isinstance(error, KeyboardInterrupt) and self._stop.made:
                raise  # the second Ctrl-C, which ends the run at once
            if advice := argv_advice(error):
                error.add_note(advice)
            self.raised = error
            self._stop.made = True
            return
        if isinstance(answer, (bool, np.bool_)) and answer:
            self._stop.made = True
