"""The study of a sweep: the one module that imports Optuna.

Trials begin in batches of `jobs`.  What is drawn for a trial follows from its number, the sweep's
seed, and the trials of earlier batches, so that an interrupted sweep draws the same.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np

from quintet.errors import ConfigError
from quintet.options.saved import require_as_begun
from quintet.search import sweep_journal as journal
from quintet.search.journal import as_read
from quintet.search.space import Dimension
from quintet.search.sweep_journal import Journal, State, Trial
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

OF_OPTUNA = "journal.log"
"""Optuna's journal, which its dashboard reads and quintet does not."""

STEPS = 10
"""Steps at which trials are compared, evenly spaced over their env_steps."""

LEAST_TRIALS = 4
"""Trials that pruning by the median, and importances, compare."""

_NAME = "sweep"
_WARMUP_STEPS = STEPS // 3  # slow starters are not pruned before

Curve = Mapping[int, float]
"""Scores by step, of `STEPS`."""


@final
class Study:
    """The trials of one sweep, whose folder this process has locked."""

    def __init__(self, folder: Path, space: Sequence[Dimension], stored: Journal | None = None):
        """stored: the journal of earlier starts."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._folder, self._space = folder, {one.key: _distribution(one) for one in space}
        self._journal = Journal() if stored is None else stored

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Stores the user's request in a new journal; raises ConfigError where an older one has
        other values.
        """
        if self._journal.asked:
            now, instead = as_read(settings), "another --run-dir"
            require_as_begun("sweep", self._folder, self._journal.asked, now, instead)
        else:
            self._keep(asked=as_read(settings))

    def _keep(self, **changes: Any) -> None:
        self._journal = self._journal.model_copy(update=changes)
        journal.write(self._folder, self._journal)

    @property
    def spent_s(self) -> float:
        """Seconds that trials have taken."""
        return self._journal.spent_s

    @property
    def longest_s(self) -> float:
        """Seconds of the longest batch of trials."""
        return self._journal.longest_s

    def spend(self, seconds: float) -> None:
        """Adds the seconds of a batch."""
        self._keep(longest_s=max(self.longest_s, seconds), spent_s=self.spent_s + seconds)

    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        return list(self._journal.trials)

    def add(self, drawn: Mapping[str, Any]) -> None:
        """Stores the next trial, for which this was drawn."""
        trials = self._journal.trials
        self._keep(trials=[*trials, Trial(number=len(trials), drawn=dict(drawn))])

    def begin(self, sampler: str, seed: int, jobs: int, first: Mapping[str, Any] | None) -> None:
        """Draws and stores the next trial; first: given values of trial 0."""
        number = len(self._journal.trials)
        if number == 0 and first is not None:
            return self.add(first)
        state = np.random.SeedSequence([seed, number]).generate_state(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of arguments that may change
            view = optuna.create_study(
                direction="maximize", sampler=_sampler(sampler, int(state[0]))
            )
        view.add_trials(self._as_seen(number, jobs))
        return self.add(view.ask(self._space).params)

    def _as_seen(self, number: int, jobs: int) -> list[FrozenTrial]:
        """The trials before this one as they were when its batch began, with those of the batch
        itself running.
        """
        batch = number - number % jobs
        before = self._journal.trials[:number]
        running = [Trial(number=each.number, drawn=each.drawn) for each in before[batch:]]
        return [self._frozen(each) for each in [*before[:batch], *running]]

    def _frozen(self, trial: Trial) -> FrozenTrial:
        """A trial in Optuna's form; only a complete or pruned one has a score."""
        score = trial.score if trial.state in ("complete", "pruned") else None
        return create_trial(
            state=TrialState[trial.state.upper()],
            values=None if score is None else [score],
            params=trial.drawn,
            distributions=self._space,
            intermediate_values={int(step): x for step, x in trial.curve},
            system_attrs=trial.attrs,
        )

    def facts_for_pruning(self, number: int, jobs: int) -> list[dict[str, Any]]:
        """Facts about other trials, see `_as_seen`, that the pruning of one may use, as JSON."""
        return [
            {
                "state": each.state.name,
                "values": each.values,
                "curve": list(each.intermediate_values.items()),
                "attrs": each.system_attrs,
            }
            for each in self._as_seen(number, jobs)
        ]

    def end(self, number: int, state: State, answer: Mapping[str, Any]) -> None:
        """Stores how a trial ended, with ``score``, ``curve``, ``attrs`` and ``error`` of the
        answer.  The score of a pruned trial is its newest.
        """
        curve = [[step, x] for step, x in answer.get("curve", ())]
        score = answer.get("score") if state == "complete" else None
        if state == "pruned" and curve:
            _, score = max(curve)
        ended = Trial(
            number=number,
            state=state,
            score=score,
            drawn=self._journal.trials[number].drawn,
            curve=curve,
            attrs=answer.get("attrs", {}),
            error=str(answer.get("error") or "")[:2_000],
        )
        trials = self.trials()
        trials[number] = ended
        self._keep(trials=trials)

    def importances(self) -> tuple[dict[str, float], str]:
        """Importance of each option for the score (PED-ANOVA), as fractions; where there is none,
        the reason.
        """
        complete = [each for each in self._journal.trials if each.state == "complete"]
        if len(complete) < LEAST_TRIALS:
            return {}, f"importances need {LEAST_TRIALS} complete trials, got {len(complete)}"
        study = optuna.create_study(direction="maximize")
        study.add_trials([self._frozen(each) for each in complete])
        with suppress(ValueError, RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
            return {str(name): float(x) for name, x in found.items()}, ""
        return {}, "the scores do not tell the options apart"

    def write_for_optuna(self) -> None:
        """Writes the trials that have ended for Optuna's dashboard."""
        path = self._folder / f"{files.TEMPORARY}{OF_OPTUNA}"
        for each in (path, path.with_name(f"{path.name}.lock")):  # left by a kill
            each.unlink(missing_ok=True)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=_NAME,
            direction="maximize",
        )
        ended = [each for each in self._journal.trials if each.state != "running"]
        study.add_trials([self._frozen(each) for each in ended])
        path.replace(self._folder / OF_OPTUNA)


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
            n_startup_trials=LEAST_TRIALS, n_warmup_steps=_WARMUP_STEPS
        )
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=STEPS)
    return optuna.pruners.NopPruner()
