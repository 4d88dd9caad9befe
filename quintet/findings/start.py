"""Remarks on a run at its start: warnings, and notes, which have no weight."""

from dataclasses import dataclass
from typing import final

from quintet.algorithms import registry
from quintet.algorithms.parts.schedule import schedule_warnings
from quintet.envs.backends import BACKENDS
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import EnvDescription
from quintet.findings.engine import Found, Rows
from quintet.findings.record import POSSIBLE, Finding
from quintet.options.machine import has_compiler, worth_compiling
from quintet.options.resolve import FOR_CLUSTER, FOR_MANY, Loaded
from quintet.options.run import RunConfig
from quintet.system.compiler import compiler_fault
from quintet.types import Spaces


@final
@dataclass(frozen=True)
class Start:
    """Facts about a run that begins or goes on.

    loaded: as asked; config: resolved.
    env: the environment of training; made: a group of it.
    population: warnings about a population.
    host: the reason why the environment's tensors pass through the host; "": they don't.
    """

    loaded: Loaded
    config: RunConfig
    env: ResolvedEnv
    made: EnvDescription
    spaces: Spaces
    population: tuple[str, ...] = ()
    host: str = ""


finding = Rows("start")


@finding("warnings", weight=POSSIBLE)
def warnings(
    loaded: Loaded, config: RunConfig, env: ResolvedEnv, made: EnvDescription,
    population: tuple[str, ...],
) -> Found:  # fmt: skip
    """Warnings of the parts of the run, and about installed packages."""
    yield from map(Finding, (*env.warnings, *made.remarks))
    if loaded.eval_env is not None:
        yield from map(Finding, loaded.eval_env.warnings)
    yield from map(Finding, registry.find(config.algo).warnings(config.learner, config.model))
    yield from map(Finding, (*schedule_warnings(config.learner), *population))
    yield from map(Finding, (*registry.LEARNERS.faults(), *BACKENDS.faults()))


@finding("statistics", weight=POSSIBLE)
def statistics(loaded: Loaded, config: RunConfig, made: EnvDescription) -> Found:
    """Wrappers whose statistics the policy lacks, or which change returns."""
    observations = "the run normalises observations itself"
    if not getattr(config.learner, "normalize_observations", False):
        observations = "use --normalize-observations true"
    rewards = registry.find(config.algo).reward_scaling(config.learner)
    rewards = rewards.replace("them", "rewards") or "the run scales rewards itself"
    elsewhere = loaded.eval_env is not None and loaded.eval_env.config.id != loaded.env.config.id
    use = "evaluations play with its statistics of the first stream, frozen, and exported policies "
    if elsewhere or not config.eval.episodes:
        use = "exported policies, and evaluations in another environment, "
    in_place = {
        "NormalizeObservation": f"{use}lack them; leave it out: {observations}",
        "NormalizeReward": "returns, also of evaluations, are of its rewards, not of the "
        f"environment's; leave it out: {rewards}",
    }
    for name in made.statistics:
        yield Finding(f"{name}: {in_place[name]}")


@finding("environment")
def environment(made: EnvDescription) -> Found:
    yield from map(Finding, made.notes)


@finding("precision")
def precision(config: RunConfig) -> Found:
    runtime = config.runtime
    if runtime.actor_precision != runtime.precision:
        yield Finding(
            f"the learner computes in {runtime.precision} on {runtime.device}, actors in "
            f"{runtime.actor_precision} (runtime.actor_precision)"
        )


@finding("cluster")
def cluster(loaded: Loaded, config: RunConfig) -> Found:
    if loaded.sources["runtime.kind"] == FOR_CLUSTER:
        yield Finding(
            f"runtime.kind={config.runtime.kind} was chosen, since a cluster needs workers, which "
            "--runtime.kind async has too"
        )


@finding("host")
def through_host(host: str) -> Found:
    if host:
        yield Finding(
            f"the environment's tensors pass through the host at every step, because of {host}"
        )


@finding("compiler")
def uncompiled(loaded: Loaded, config: RunConfig, spaces: Spaces) -> Found:
    runtime = config.runtime
    if loaded.config.runtime.compile != "auto" or runtime.compile == "on":
        return
    if worth_compiling(config, config.model, spaces, runtime.device) and not has_compiler():
        yield Finding(
            f"acts and updates are not compiled, which makes them slower: {compiler_fault()}"
        )


@finding("streams")
def many_streams(loaded: Loaded) -> Found:
    flat = loaded.config.flat()
    chosen = [name for name, source in loaded.sources.items() if source == FOR_MANY]
    if chosen:
        yield Finding(
            f"{' and '.join(f'{name}={flat[name]}' for name in chosen)} were chosen for "
            f"{loaded.config.env.num_streams:,} streams; give either option to choose yourself"
        )


@finding("gpu")
def on_gpu(loaded: Loaded, config: RunConfig) -> Found:
    runtime = config.runtime
    if loaded.config.runtime.inference == "auto" and runtime.inference == "device":
        yield Finding(
            f"actions are computed on {runtime.device}, as updates are (runtime.inference=device); "
            "--runtime.inference local computes them on the CPU"
        )
