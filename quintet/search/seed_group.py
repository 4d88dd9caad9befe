"""Groups of runs that differ in their seed, each in a process of its own."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

from quintet.errors import QuintetError
from quintet.jobs import group
from quintet.jobs.job import Job, Outcome, Place
from quintet.observe.report_files import read_metrics
from quintet.options.command import require_jobs
from quintet.options.resolve import Loaded, resolved
from quintet.options.run import RunConfig
from quintet.options.saved import Unusable
from quintet.search import minutes as times
from quintet.search import placement
from quintet.search.engine import fault_of
from quintet.system.cpus import usable_cores
from quintet.system.printing import QuietStream


@final
@dataclass(frozen=True)
class SeedOutcome:
    """End of one run of a seed group; waiting: the group was stopped before it began.

    metrics: the run's last report, with the newest scores of training; empty without one.
    """

    seed: int
    run_dir: Path
    status: Literal["finished", "stopped", "waiting", "failed"]
    metrics: dict[str, float]
    error: str | None = None


def run_seeds(
    loaded: Sequence[Loaded | Unusable], jobs: int | None = None, minutes: float | None = None
) -> list[SeedOutcome]:
    """Trains by several configurations that differ in their seed or in other options, each in a
    separate process, on this machine or on the nodes of a cluster.

    A failed run does not stop the others.  Ctrl-C and SIGTERM stop all of them with a checkpoint.

    jobs: number of runs at the same time; None: cores divided by ``runtime.threads`` and workers,
        at least 1, on a cluster as many as its nodes have cores for. If it is given, runs on this
        machine without a given number of threads share the cores.
    minutes: time of each run; all get the number of env_steps that fits the slowest of `jobs` runs,
        measured at the same time, or the number of a run of the group that has begun.

    Raises ConfigError for a fault that all runs share, or an environment that can't be sent.
    """
    require_jobs(jobs)
    sound = [each for each in loaded if isinstance(each, Loaded)]
    values = resolved(sound[0])[0]
    placing = sound[0].placing
    if placing is not None:
        sound = [placement.as_here(each, values) for each in sound]
        jobs = jobs or len(sound)
    elif jobs is None:
        jobs = max(1, usable_cores() // placement.cores_of(values))
    else:
        sound = [placement.sharing(each, values, min(jobs, len(sound))) for each in sound]
    say = QuietStream(sys.stdout).line
    with ExitStack() as ends:
        place: Place | None = None
        if placing is not None:
            place = ends.enter_context(placement.on_nodes(sound, placing, values, say))
        if minutes is not None:
            own = [_job(each, sound, minutes, "measure") for each in sound[:jobs]]
            measured = [each._replace(folder=None) for each in own]
            measure = partial(_totals, measured, jobs, say, place)
            sound = times.timed_group(sound, minutes, measure, say)
        own = [_job(each, sound, minutes, "train") for each in sound]
        ended = iter(group.run_all(own, jobs, say, place))
    return [
        SeedOutcome(each.seed, each.run_dir, "failed", {}, each.error)
        if isinstance(each, Unusable)
        else _seed_outcome(each.config, next(ended))
        for each in loaded
    ]


def _job(loaded: Loaded, runs: Sequence[Loaded], minutes: float | None, what: str) -> Job:
    """The job of a run, named by its seed, or by its folder where others have that seed.

    minutes: time after which a new run ends; what: ``train``, or ``measure`` its env_steps.
    """
    place, seed = loaded.config.run_dir, loaded.config.seed
    alone = sum(each.config.seed == seed for each in runs) == 1
    name = f"s{seed}" if alone or place is None else place.name
    more = {} if minutes is None or times.has_begun(loaded) else {"minutes": minutes}
    return placement.job(name, f"quintet.search.minutes:{what}_trial", loaded, more)


def _totals(
    jobs: Sequence[Job], at_once: int, say: Callable[[str], None], place: Place | None
) -> list[int]:
    """The numbers of env_steps that jobs measure.

    Raises QuintetError with the first fault, KeyboardInterrupt where the user stopped one.
    """
    ended = group.run_all(jobs, at_once, say, place)
    for job, how in zip(jobs, ended, strict=True):
        if fault := fault_of(how):
            message = f"measuring the speed of {job.name} failed: {fault}"
            raise QuintetError(message if how.answer is None else fault)
    answers = [how.answer or {} for how in ended]
    if any("total" not in answer for answer in answers):
        raise KeyboardInterrupt
    return [answer["total"] for answer in answers]


def _seed_outcome(config: RunConfig, how: Outcome) -> SeedOutcome:
    """The result of a seed's run, whose job ended so."""
    assert config.run_dir is not None
    if fault := fault_of(how):
        return SeedOutcome(config.seed, config.run_dir, "failed", {}, fault)
    answer: dict[str, Any] = how.answer or {}
    if "status" not in answer:  # ended by the group's own signal before the run began
        return SeedOutcome(config.seed, config.run_dir, "waiting", {})
    metrics = _newest_scores(config.run_dir) | answer["metrics"]
    return SeedOutcome(config.seed, config.run_dir, answer["status"], metrics)


def _newest_scores(run_dir: Path) -> dict[str, float]:
    """Scores of training in the newest report that has some."""
    try:
        reports = read_metrics(run_dir, lambda _: None)
    except QuintetError:  # the run reports to neither file
        return {}
    scored = (report for report in reversed(reports) if "episode/return_mean" in report)
    return {k: x for k, x in next(scored, {}).items() if k.startswith("episode/")}
