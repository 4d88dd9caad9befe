"""Groups of runs that differ in their seed, each in a process of its own."""

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from quintet.cluster.config import no_ray
from quintet.config.command import require_jobs
from quintet.config.group import Placing
from quintet.config.resolve import Loaded, resolved
from quintet.config.run import AUTOMATIC, RunConfig
from quintet.config.saved import Unusable
from quintet.errors import ConfigError, QuintetError
from quintet.jobs import group, user_state
from quintet.jobs.child import how_ended
from quintet.jobs.job import Job, Outcome, Place
from quintet.observe.report_files import read_metrics
from quintet.run import time_budget
from quintet.runtime.processes.process import pickled
from quintet.system import files, provenance
from quintet.system.cpus import usable_cores
from quintet.system.importing import Given
from quintet.system.printing import QuietStream

if TYPE_CHECKING:
    from quintet.jobs.cluster_place import ClusterPlace


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
        sound, jobs = [as_here(each, values) for each in sound], jobs or len(sound)
    elif jobs is None:
        jobs = max(1, usable_cores() // cores_of(values))
    else:
        sound = [sharing(each, values, min(jobs, len(sound))) for each in sound]
    say = QuietStream(sys.stdout).line
    with ExitStack() as ends:
        place: Place | None = None
        if placing is not None:
            place = ends.enter_context(on_nodes(sound, placing, values, say))
        if minutes is not None:
            trials = [_job(each, sound, minutes, measures=True) for each in sound[:jobs]]
            measure = partial(_answers, trials, jobs, say, place)
            sound = time_budget.timed_group(sound, minutes, measure, say)
        own = [_job(each, sound, minutes) for each in sound]
        ended = iter(group.run_all(own, jobs, say, place))
    return [
        SeedOutcome(each.seed, each.run_dir, "failed", {}, each.error)
        if isinstance(each, Unusable)
        else _seed_outcome(each.config, next(ended))
        for each in loaded
    ]


def _job(
    loaded: Loaded, runs: Sequence[Loaded], minutes: float | None, *, measures: bool = False
) -> Job:
    """The job of a run, named by its seed, or by its folder where others have that seed.

    minutes: time after which a new run ends.
    measures: whether it only measures the env_steps of that time, outside the run's folder.
    """
    timed = minutes is not None and not time_budget.has_begun(loaded)
    more = {"minutes": minutes, "measures": measures} if timed else None
    place, seed = loaded.config.run_dir, loaded.config.seed
    alone = sum(each.config.seed == seed for each in runs) == 1
    name = f"s{seed}" if alone or place is None else place.name
    own = job(name, "quintet.run.member", loaded, more)
    return own._replace(folder=None) if measures else own


def _answers(
    jobs: Sequence[Job], at_once: int, say: Callable[[str], None], place: Place | None
) -> list[dict[str, Any]]:
    """The answers of processes: its error for one that ended by itself without any, empty for one
    that the user stopped.
    """
    return [
        how.answer or ({} if how.by_signal else {"error": _ended(each.name, how.status)})
        for each, how in zip(jobs, group.run_all(jobs, at_once, say, place), strict=True)
    ]


def _ended(name: str, status: int | None) -> str:
    return f"the process of {name} {how_ended(status or 0)}, without an answer"


def on_nodes(
    runs: Sequence[Loaded], placing: Placing, values: Mapping[str, Any], say: Callable[[str], None]
) -> "ClusterPlace":
    """The nodes of a cluster that have been checked for these runs; raises ConfigError.

    values: the configuration of one of them, resolved.
    """
    own, most = placing.cluster, placing.max_restarts
    try:
        from quintet.jobs.cluster_place import ClusterPlace, Demand, Terms
    except ImportError as error:
        raise no_ray(own.address, error) from error
    from quintet.run.node_check import Check

    assert own.address is not None
    most = runs[0].config.runtime.max_restarts if most is None else most
    terms = Terms(own.address, own.nodes_min, own.nodes_max, own.wait_s, own.node_timeout_s, most)
    env = runs[0].env
    packages = env.backend.packages.items()
    simulators = {module: name for module, name in packages if module in sys.modules}
    learners = values["runtime.num_learners"]
    first = job("check", "quintet.run.node_check", runs[0])

    def check(folders: Sequence[tuple[Path, str]], who: str) -> Job:
        questions = Check(_sent(runs[0]), env.config.backend, simulators, folders, who)
        return first._replace(payload=pickle.dumps(questions), folder=None)

    demand = Demand(
        cores=cores_of(values),
        gpus=learners if values["runtime.device"].startswith("cuda") else 0,
        check=check,
        folders=sorted({x.config.run_dir.resolve().parent for x in runs if x.config.run_dir}),
        facts=provenance.system(env.config.backend, "cpu", simulators),
        exact=values["runtime.kind"] != "async",
        working_folder=os.getcwd(),
    )
    return ClusterPlace(terms, demand, say)


def as_here(loaded: Loaded, values: Mapping[str, Any]) -> Loaded:
    """The same, with the options that would follow from the machine of the run set as they resolve
    on this machine.

    values: the configuration resolved on this machine.
    """
    config = loaded.config
    left = {
        name: values[f"runtime.{name}"]
        for name in ("threads", "actor_threads", "num_workers", "device")
        if getattr(config.runtime, name) == AUTOMATIC[f"runtime.{name}"]
    }
    sources = {
        f"runtime.{name}": f"resolved ({loaded.sources[f'runtime.{name}']})"
        for name, value in left.items()
        if value is not None
    }
    config = config.changed("runtime", left)
    return replace(loaded, config=config, sources={**loaded.sources, **sources})


def cores_of(values: Mapping[str, Any]) -> int:
    """Number of cores that a run keeps busy, from its resolved options."""
    learning: int = values["runtime.threads"] * values["runtime.num_learners"]
    return learning + (values["runtime.num_workers"] or 0)


def sharing(loaded: Loaded, values: Mapping[str, Any], runs: int) -> Loaded:
    """The same with at most the threads of its share of the cores, unless it sets a number: two
    runs on two cores are a quarter as fast with two threads each as with one each.

    values: the configuration resolved for a single run.
    """
    most = {
        "threads": max(1, usable_cores() // (runs * values["runtime.num_learners"])),
        "actor_threads": max(1, usable_cores() // runs),
    }
    fewer = {
        name: count
        for name, count in most.items()
        if getattr(loaded.config.runtime, name) is None and values[f"runtime.{name}"] > count
    }
    if not fewer:
        return loaded
    sources = {f"runtime.{name}": f"resolved ({runs} runs share the cores)" for name in fewer}
    config = loaded.config.changed("runtime", fewer)
    return replace(loaded, config=config, sources={**loaded.sources, **sources})


def job(name: str, module: str, loaded: Loaded, more: Mapping[str, Any] | None = None) -> Job:
    """The job of a process that trains by this configuration in its folder.

    module: see `quintet.run.member.serve`; more: further entries of its payload.
    """
    folder = loaded.config.run_dir
    payload = {"run": _sent(loaded), "inode": files.inode(folder), **(more or {})}
    return Job(name, module, pickle.dumps(payload), folder, state=user_state.capture())


def _sent(loaded: Loaded) -> bytes:
    """The configuration for another process; raises ConfigError if it can't be sent."""
    config = loaded.config
    code = [config.model.encoder, *(x for _, x in config.learner if isinstance(x, str))]
    code += [config.env.id] if loaded.env.source is None else []
    code += [config.eval_env.id] if config.eval_env.id else []
    if any(name.startswith("__main__:") and not isinstance(name, Given) for name in code):
        raise ConfigError(
            "seeds must have environments, models and schedules that other processes can import, "
            "got one in __main__; give it in Python, or move it to another module"
        )
    return pickled(
        replace(loaded, spaces=None, placing=None),  # both may hold what can't be sent
        "seeds must have an environment, a model and a schedule that can be sent to other "
        f"processes, got {config.env.id} and {config.model.encoder}",
        "give functions that make them and hold nothing of this process",
    )


def _seed_outcome(config: RunConfig, how: Outcome) -> SeedOutcome:
    assert config.run_dir is not None
    said = how.answer or {}
    if "status" in said:
        metrics = _newest_scores(config.run_dir) | said["metrics"]
        return SeedOutcome(config.seed, config.run_dir, said["status"], metrics)
    error: str | None = said.get("error")
    # Ended by the group's own signal before the run began, or not started.
    if how.by_signal:
        return SeedOutcome(config.seed, config.run_dir, "waiting", {})
    if error is None:
        assert how.status is not None  # only a process that was not started has none
        error = f"its process {how_ended(how.status)}"
    return SeedOutcome(config.seed, config.run_dir, "failed", {}, error)


def _newest_scores(run_dir: Path) -> dict[str, float]:
    """Scores of training in the newest report that has some."""
    try:
        reports = read_metrics(run_dir, lambda _: None)
    except QuintetError:  # the run reports to neither file
        return {}
    scored = (report for report in reversed(reports) if "episode/return_mean" in report)
    return {k: x for k, x in next(scored, {}).items() if k.startswith("episode/")}
