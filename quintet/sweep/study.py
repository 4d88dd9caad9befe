"""The study of a sweep: the one module that imports Optuna.

The journal holds what was drawn for each trial and how it ended.  Trials begin in batches of
`jobs`.  What is drawn for a trial follows from its number, the sweep's seed, and the trials of
earlier batches, so that an interrupted sweep draws the same.
"""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from quintet.config.saved import require_as_begun
from quintet.errors import ConfigError, FileFault
from quintet.sweep.space import Dimension
from quintet.system import files

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError as error:
    raise ConfigError(
        'a sweep needs Optuna, which is not installed: pip install "quintet-rl[sweep]"'
    ) from error

JOURNAL = "journal.log"
STEPS = 10
"""Steps at which trials are compared, evenly spaced over their env_steps."""

_NAME = "sweep"
_WARMUP_STEPS = STEPS // 3  # before which slow starters are not pruned
_LEAST_TRIALS = 4  # that pruning by the median, and importances, compare
_SAID = "sweep"  # key of what the user asked
_SPENT_S, _LONGEST_S = "spent_s", "longest_s"
_ERROR = "error"

Curve = Mapping[int, float]
"""Scores by step, of `STEPS`."""


class Trial(NamedTuple):
    """A trial of the journal; score: None if it has none; drawn: by key of the space."""

    number: int
    state: str
    score: float | None
    drawn: dict[str, Any]
    error: str


@final
class Study:
    """The journal of one sweep in its folder, which this process has locked."""

    def __init__(self, folder: Path, space: Sequence[Dimension]):
        """Raises FileFault if the journal is damaged."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = {one.key: _distribution(one) for one in space}
        self._path = path = folder / JOURNAL
        _mend(path)
        try:
            self._storage = JournalStorage(JournalFileBackend(str(path)))
            self._study = optuna.create_study(
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(),
                study_name=_NAME,
                direction="maximize",
                load_if_exists=True,
            )
            self._id = self._storage.get_study_id_from_name(_NAME)
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error

    def require_same(self, said: Mapping[str, Any]) -> None:
        """Stores the user's request in a new journal; raises ConfigError where an older one has
        other values, FileFault where its trials are not of that space.
        """
        now = json.loads(json.dumps(said, default=str))  # as JSON can hold it
        was = self._study.user_attrs.get(_SAID)
        if was is None:
            self._study.set_user_attr(_SAID, now)
        else:
            require_as_begun("sweep", self._path.parent, was, now, "another --run-dir")
        for each in self._frozen():
            if each.distributions != self._space:
                raise _damaged(self._path, f"trial {each.number} has another search space")

    @property
    def spent_s(self) -> float:
        """Seconds that trials have taken."""
        return float(self._study.user_attrs.get(_SPENT_S, 0.0))

    @property
    def longest_s(self) -> float:
        """Seconds of the longest batch of trials."""
        return float(self._study.user_attrs.get(_LONGEST_S, 0.0))

    def spend(self, seconds: float) -> None:
        """Adds the seconds of a batch."""
        self._study.set_user_attr(_LONGEST_S, max(self.longest_s, seconds))
        self._study.set_user_attr(_SPENT_S, self.spent_s + seconds)

    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        return [
            Trial(
                each.number,
                each.state.name.lower(),
                each.value if each.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
                dict(each.params),
                str(each.user_attrs.get(_ERROR, "")),
            )
            for each in self._frozen()
        ]

    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def begin(self, sampler: str, seed: int, jobs: int, first: Mapping[str, Any] | None) -> None:
        """Draws and stores the next trial; first: given values of trial 0."""
        before = self._frozen()
        number = len(before)
        if number == 0 and first is not None:
            drawn = dict(first)
        else:
            state = np.random.SeedSequence([seed, number]).generate_state(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of arguments that may change
                view = optuna.create_study(
                    direction="maximize", sampler=_sampler(sampler, int(state[0]))
                )
            view.add_trials(_as_seen(before, number - number % jobs))
            drawn = view.ask(self._space).params
        # One line of the journal, so that no kill leaves half of it.
        self._study.add_trial(
            create_trial(state=TrialState.RUNNING, params=drawn, distributions=self._space)
        )

    def others(self, number: int, jobs: int) -> list[dict[str, Any]]:
        """Facts about other trials that the pruning of a trial may use, as JSON can hold it."""
        return [
            {
                "state": each.state.name,
                "values": each.values,
                "curve": list(each.intermediate_values.items()),
                "attrs": each.system_attrs,
            }
            for each in _as_seen(self._frozen()[:number], number - number % jobs)
        ]

    def end(self, number: int, state: str, answer: Mapping[str, Any]) -> None:
        """Stores how a trial ended: complete, pruned or fail, with ``score``, ``curve``, ``attrs``
        and ``error`` of the answer.
        """
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        for step, value in answer.get("curve", ()):
            self._storage.set_trial_intermediate_value(trial, step, value)
        for name, value in answer.get("attrs", {}).items():
            self._storage.set_trial_system_attr(trial, name, value)
        if answer.get("error"):
            self._storage.set_trial_user_attr(trial, _ERROR, answer["error"])
        score = answer.get("score") if state == "complete" else None
        self._study.tell(number, score, TrialState[state.upper()])

    def importances(self) -> dict[str, float]:
        """Importance of each option for the score (PED-ANOVA), as fractions; empty if too few
        trials are complete.
        """
        complete = [each for each in self._frozen() if each.state == TrialState.COMPLETE]
        if len(complete) < _LEAST_TRIALS:
            return {}
        with suppress(ValueError, RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator())
            return {str(name): float(x) for name, x in found.items()}
        return {}


def judge(
    pruner: str, others: Sequence[Mapping[str, Any]]
) -> tuple[Callable[[int, float], bool], Callable[[], dict[str, Any]]]:
    """A function that receives a trial's score at a step and returns whether the trial should end,
    and one that returns what later trials must know of it.

    others: see `Study.others`.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    view = optuna.create_study(study_name=_NAME, direction="maximize", pruner=_pruner(pruner))
    view.add_trials(
        [
            create_trial(
                state=TrialState[each["state"]],
                values=each["values"],
                intermediate_values={int(step): x for step, x in each["curve"]},
                system_attrs=dict(each["attrs"]),
            )
            for each in others
        ]
    )
    trial = view.ask()

    def ends(step: int, value: float) -> bool:
        trial.report(value, step)
        return trial.should_prune()

    return ends, lambda: dict(view.get_trials(deepcopy=False)[-1].system_attrs)


def _as_seen(trials: Sequence[FrozenTrial], batch: int) -> list[FrozenTrial]:
    """The trials as they were when the batch that begins with this number began, with the batch's
    own trials running."""
    return [
        create_trial(
            state=each.state if each.number < batch else TrialState.RUNNING,
            values=each.values if each.number < batch else None,
            params=each.params,
            distributions=each.distributions,
            intermediate_values=each.intermediate_values if each.number < batch else {},
            system_attrs=each.system_attrs if each.number < batch else {},
        )
        for each in trials
    ]


def _distribution(one: Dimension) -> BaseDistribution:
    if one.choices:
        return CategoricalDistribution(one.labels)
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _pruner(name: str) -> optuna.pruners.BasePruner:
    if name == "median":
        return optuna.pruners.MedianPruner(
            n_startup_trials=_LEAST_TRIALS, n_warmup_steps=_WARMUP_STEPS
        )
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=STEPS)
    return optuna.pruners.NopPruner()


def _damaged(path: Path, how: str) -> FileFault:
    return FileFault(
        f"{path} must be the journal of a sweep, got a damaged one ({how}): give another --run-dir"
    )


def _mend(path: Path) -> None:
    """Removes from a journal what a kill may leave: a lock, and a line without an end."""
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.lock")
    if not path.exists():
        return
    held = files.read_bytes(path)
    whole = held.rfind(b"\n") + 1
    if whole < len(held):
        os.truncate(path, whole)
