"""The scores of a trial while it trains, and when it is pruned."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from quintet.checkpoints import checkpoint
from quintet.errors import CheckpointError, QuintetError
from quintet.observe.metrics import highest, newest
from quintet.observe.report_files import read_metrics
from quintet.options.resolve import Loaded
from quintet.policies.folders import POLICIES
from quintet.run import launch
from quintet.search import study
from quintet.system.files import is_number
from quintet.system.printing import say


def last_score(run_dir: Path, metric: str) -> float | None:
    """The newest value of the metric in a run's reports."""
    with suppress(QuintetError):
        return newest(read_metrics(run_dir, lambda _: None), metric)
    return None


@final
class Watch:
    """Receives the reports of a trial; the first one of each step decides whether the trial
    continues.

    curve: scores by step; score: the newest.
    """

    def __init__(
        self, metric: str, total: int, pruner: str, others: Sequence[Mapping[str, Any]]
    ) -> None:
        """total: env_steps of the trial; others: see `Study.others`."""
        self._metric, self._total = metric, total
        self._ends, self.attrs = study.judge(pruner, others)
        self.curve: dict[int, float] = {}
        self.score: float | None = None
        self.pruned = False

    def reread(self, run_dir: Path) -> bool:
        """Receives the reports of an earlier start; returns whether they ended the trial."""
        with suppress(QuintetError):  # nothing was reported
            return any(self.hear(each) for each in read_metrics(run_dir, lambda _: None))
        return False

    def hear(self, report: Mapping[str, float]) -> bool:
        """Returns whether the trial should end."""
        score = highest(report, self._metric)
        if score is None or not is_number(score):
            return False
        self.score = float(score)
        steps = report["env_steps"]
        step = int(steps * study.STEPS // self._total)
        if step > 0 and step not in self.curve:
            self.curve[step] = self.score
            self.pruned = self._ends(step, self.score) and steps < self._total
        return self.pruned

    def answer(self, status: str) -> dict[str, Any]:
        """The end of the trial, as `Study.end` takes it."""
        return {
            "status": status,
            "score": self.score,
            "curve": list(self.curve.items()),
            "attrs": self.attrs(),
        }


def train_trial(loaded: Loaded, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trains a run of a sweep to its end, or until comparison with other trials prunes it; `watch`
    in the payload describes them.  See `quintet.search.trial`.
    """
    loaded = resuming_or_anew(loaded)
    if "watch" not in payload:  # a best one again
        return {"status": launch.run(loaded).status}
    watch = Watch(**payload["watch"])
    assert loaded.config.run_dir is not None
    if not loaded.overwrite and watch.reread(loaded.config.run_dir):
        return watch.answer("pruned")
    result = launch.run(loaded, watch.hear)
    if watch.pruned and result.status == "stopped":
        say("ends here: others were better at this point")
        return watch.answer("pruned")
    return watch.answer(result.status)


def resuming_or_anew(loaded: Loaded) -> Loaded:
    """The configuration, which begins again if it should resume with the same bytes and can't.

    It is decided here since a run that lost its node has another folder than at its first start.
    """
    assert loaded.config.run_dir is not None
    if loaded.config.resume != "exact" or resumes_exactly(loaded.config.run_dir / "checkpoints"):
        return loaded
    config = loaded.config.model_copy(update={"resume": "latest"})
    return replace(loaded, config=config, overwrite=True)


def resumes_exactly(checkpoints: Path) -> bool:
    """Whether a run has no checkpoints, or goes on from one of them with the same bytes.

    Replay has the rows that the newest checkpoint needs, but may have none for an older one.
    """
    try:
        if not checkpoint.any_of_run(checkpoints):
            return True
        newest, exact = (checkpoint.find(checkpoints, exact_only=x)[0] for x in (False, True))
    except CheckpointError:
        return False
    if newest is None or exact is None:
        return False
    parts = exact.meta.get(POLICIES) or [exact.meta]
    return newest.path == exact.path or all(part.get("replay") is None for part in parts)
