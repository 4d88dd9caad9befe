"""The job of each trial, its share of the cores, and the nodes of a cluster."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quintet.cluster.config import no_ray
from quintet.errors import ConfigError
from quintet.jobs import user_state
from quintet.jobs.job import Job
from quintet.options.placing import Placing
from quintet.options.resolve import Loaded
from quintet.options.run import AUTOMATIC
from quintet.runtime.processes.process import pickled
from quintet.system import files
from quintet.system.cpus import usable_cores
from quintet.system.importing import Given

if TYPE_CHECKING:
    from quintet.jobs.cluster_place import ClusterPlace


def on_nodes(
    runs: Sequence[Loaded], placing: Placing, values: Mapping[str, Any], say: Callable[[str], None]
) -> "ClusterPlace":
    """The nodes of a cluster that have been checked for these runs; raises ConfigError.

    values: the configuration of one of them, resolved.
    """
    own, most = placing.cluster, placing.max_restarts
    try:
        from quintet.jobs.cluster_place import ClusterPlace, Demand
    except ImportError as error:
        raise no_ray(own.address, error) from error
    from quintet.run.node_check import questions

    most = runs[0].config.runtime.max_restarts if most is None else most
    gpus = values["runtime.num_learners"] if values["runtime.device"].startswith("cuda") else 0
    folders = sorted({x.config.run_dir.resolve().parent for x in runs if x.config.run_dir})
    exact = values["runtime.kind"] != "async"
    asked = questions(_sent(runs[0]), runs[0].env, exact, folders)
    return ClusterPlace(own.terms, asked, Demand(cores_of(values), gpus, most), say)


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


def job(name: str, train: str, loaded: Loaded, more: Mapping[str, Any] | None = None) -> Job:
    """The job of a process that trains by this configuration in its folder.

    train: ``module:function`` that `quintet.search.trial` calls; more: further entries of its
        payload.
    """
    folder = loaded.config.run_dir
    inode = files.inode(folder)
    payload = {"train": train, "run": _sent(loaded), "inode": inode, **(more or {})}
    state = user_state.capture()
    return Job(name, "quintet.search.trial", pickle.dumps(payload), folder, state=state)


def _sent(loaded: Loaded) -> bytes:
    """The configuration for another process; raises ConfigError if it can't be sent."""
    config = loaded.config
    code = [config.model.encoder, *(x for _, x in config.learner if isinstance(x, str))]
    code += [config.env.id] if loaded.env.source is None else []
    code += [config.eval_env.id] if config.eval_env.id else []
    if any(name.startswith("__main__:") and not isinstance(name, Given) for name in code):
        raise ConfigError(
            "seeds need environments, models and schedules that other processes can import, not "
            "in __main__: give it in Python, or move it to another module"
        )
    return pickled(
        replace(loaded, spaces=None, placing=None),  # both may hold what can't be sent
        "seeds must have an environment, a model and a schedule that can be sent to other "
        f"processes, got {config.env.id} and {config.model.encoder}",
        "give functions that make them and hold nothing of this process",
    )
