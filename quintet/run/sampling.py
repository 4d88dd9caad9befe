"""Makes the runtime kind of a resolved configuration."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, final

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import PLAIN
from quintet.cluster.config import no_ray
from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.owners import made_for
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.settled import (
    KeysInInfo,
    keys_in_info,
    made_otherwise,
    settled,
    with_metrics,
)
from quintet.envs.tensors_as_arrays import tensors_of
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError
from quintet.observe.timing import PhaseTimer
from quintet.options.machine import host_needed, streams_per_group, tensors_device
from quintet.options.population import tuned_shaping
from quintet.options.run import RunConfig
from quintet.options.runtime import RuntimeConfig
from quintet.protocols import Actor, DataPlan
from quintet.run.device_envs import on_gpu, staying
from quintet.runtime import loop
from quintet.runtime.policies import Assignment
from quintet.runtime.sampler import SerialOptions, SerialSampling
from quintet.runtime.slots import RowSpecs, slot_specs
from quintet.runtime.spread import Spreading, make_streams, spread_envs
from quintet.runtime.torch_settings import OwnTorch
from quintet.system import memory
from quintet.system.files import same_folder
from quintet.system.signals import interrupts_for_us_alone
from quintet.system.user_code import slow_notice
from quintet.types import Publication, Spaces

if TYPE_CHECKING:
    from quintet.runtime.processes.messages import Place, ServerOptions, WorkerSpec
    from quintet.runtime.processes.pool import Pool


class Publisher(Protocol):
    """A policy in the form that sampling uses."""

    @property
    def plan(self) -> DataPlan: ...

    def publication(self) -> Publication: ...


@final
@dataclass(frozen=True)
class Source:
    """The environments of a run.

    envs: of all groups if this process steps them, else one, for its spaces.
    env: source of further environments.
    """

    envs: Sequence[VectorEnv]
    env: ResolvedEnv

    @property
    def spaces(self) -> Spaces:
        return self.envs[0].spaces

    def close(self) -> None:
        for env in self.envs:
            env.close()


def open_source(config: RunConfig, env: ResolvedEnv) -> Source:
    """The environments of a run, with its automatic options settled; raises ConfigError if they
    can't be made here, or by workers.
    """
    env = env.numbered(seed=config.seed)
    # Ctrl-C would end environments in processes of their own before there is a checkpoint.
    with (
        interrupts_for_us_alone(),
        slow_notice(f"{env.config.id} is made"),
        made_for("training"),
    ):
        timeout_s = config.runtime.worker_timeout_s
        keys = keys_in_info
        if config.runtime.kind != "serial" and env.backend.in_python:
            from quintet.run.repeat_check import keys_apart

            keys = partial(keys_apart, timeout_s)
        if env.kind != "group maker":  # else those made so far would be made again
            env = with_metrics(env, keys)
        if config.runtime.kind == "serial":
            return _settled(env, lambda env: _make_groups(config, env, timeout_s), keys)
        if not can_be_made_again(env.source):
            raise ConfigError(
                f"runtime.kind={config.runtime.kind} must have environments that worker processes "
                f"can make, got {env.source}; give an id or a function that makes it, or use "
                "--runtime.kind serial"
            )
        with same_folder():  # this one is not stepped
            return _settled(env, lambda env: [make_group_env(env, env.streams_of(1))], keys)


def _settled(
    env: ResolvedEnv,
    make: Callable[[ResolvedEnv], Sequence[VectorEnv]],
    keys: Callable[[ResolvedEnv], KeysInInfo] | None,
) -> Source:
    """The result of `make` for the environment with its automatic options settled."""
    with ExitStack() as unless_kept:
        source = Source(make(env), env)
        unless_kept.callback(source.close)
        if tensors_of(source.envs[0]) is not None:  # others may take a GPU, or there can be one
            keys = None
        resolved = with_metrics(settled(env, source.spaces), keys)
        if resolved == env or not made_otherwise(env, resolved):
            unless_kept.pop_all()
            return Source(source.envs, resolved)
    return Source(make(resolved), resolved)


def _make_groups(config: RunConfig, env: ResolvedEnv, timeout_s: float) -> list[VectorEnv]:
    """Makes the groups of streams; closes those made if a later one fails."""
    streams, size = env.config.num_streams, streams_per_group(config, env)
    if tuned_shaping(config):  # the sampler sets the values in environments of its own process
        env = env.with_options({"num_processes": 1})
    env = env.numbered(first=0)
    how = Spreading(num_groups=streams // size, timeout_s=timeout_s)
    if env.backend.on_device and not host_needed(config):
        how = how._replace(device=tensors_device(config.runtime))
    made: list[VectorEnv] = []
    with ExitStack() as on_failure:
        for first in range(0, streams, size):
            made.append(make_streams(env, size, how._replace(first_stream=first)))
            on_failure.callback(made[-1].close)
        on_failure.pop_all()
    return made


def slots_per_group(runtime: RuntimeConfig, plan: DataPlan, num_streams: int) -> int:
    """Unrolls that each group has memory for; refuses too few for a batch and an unroll."""
    if runtime.kind == "lockstep":
        return 1 + runtime.lag
    # Every stream needs memory to go on while a batch's columns wait for the last one.
    least = max(2, -(-(plan.columns_per_batch + num_streams) // num_streams))
    if runtime.slots is not None and runtime.slots < least:
        raise ConfigError(
            f"runtime.slots must be at least {least} for batches of {plan.columns_per_batch} "
            f"unrolls out of {num_streams} streams, got {runtime.slots}; raise it or leave it out"
        )
    return runtime.slots or least


@OwnTorch()
def row_specs(config: RunConfig, spaces: Spaces, metrics: int = 0) -> RowSpecs:
    """The fields of the rows that the learner's actors make, with this number of metrics."""
    actor = registry.find(config.algo).make_actor(config.learner, config.model, spaces, PLAIN)
    return RowSpecs.of(spaces, actor, metrics)


def require_rows(config: RunConfig, rows: RowSpecs, plan: DataPlan) -> None:
    """Raises ConfigError if the slots of all groups, or a batch, can't fit into memory."""
    size = config.env.streams_per_group
    assert size is not None
    specs = slot_specs(rows, plan, size).values()
    of_slot = sum(spec.nbytes for spec in specs)
    serial = config.runtime.kind == "serial"
    slots = 1 if serial else slots_per_group(config.runtime, plan, config.env.num_streams)
    memory.require(
        of_slot * slots * config.env.num_groups,
        f"unrolls of {plan.unroll_steps} steps in {config.env.num_streams} streams",
        "lower env.num_streams, shorten unrolls, or give smaller observations",
    )
    batch = f"a batch of {plan.columns_per_batch} unrolls of {plan.unroll_steps} steps"
    nbytes = of_slot // size * plan.columns_per_batch
    memory.require(nbytes, batch, "lower what the learner takes for a batch")
    if plan.replay is not None:
        drawn = plan.replay.columns * (plan.replay.steps + 1)
        nbytes = drawn * (of_slot // (plan.unroll_steps * size))
        way_out = "lower its size or the length of its rows"
        memory.require(nbytes, "a batch that is drawn from replay", way_out)


@OwnTorch()
def make_sampling(
    config: RunConfig,
    source: Source,
    learners: Sequence[Publisher],
    timer: PhaseTimer,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    notice: Callable[[str], None],
) -> loop.Sampling:
    """The sampling of a resolved configuration; its processes start at the first restart.

    learners: one per policy, with equal plans.
    say: receives what workers print; warn: receives how a worker ended that is replaced; notice:
        receives the reasons for long waits.

    Raises ConfigError if workers can't be sent their work, or there is too little memory.
    """
    runtime, algorithm = config.runtime, registry.find(config.algo)
    assert runtime.actor_threads is not None
    plan = learners[0].plan
    if runtime.max_policy_lag is not None:
        plan = replace(plan, max_policy_lag=runtime.max_policy_lag)
    tensors, compute, make_rows = staying(config, source.envs[0], plan), runtime.actor_compute, None
    if tensors is not None and tensors.device.type != "cpu":
        compute, make_rows = on_gpu(tensors, plan, compute)
    make_actor: Callable[[], Actor] = partial(
        algorithm.make_actor, config.learner, config.model, source.spaces, compute
    )
    _require_fresh_rows(runtime, plan)
    assignment = assignment_of(config, source.env, plan, len(learners))
    if source.envs[0].description.turns and runtime.inference != "local":
        raise ConfigError(
            f"runtime.inference={runtime.inference} must have agents that act at the same time; "
            f"those of {config.env.id} act in turn: use --runtime.inference local"
        )
    if runtime.kind == "serial":
        steppers = spread_envs(source.envs)
        return SerialSampling(
            source.envs,
            make_actor,
            plan,
            config.seed,
            timer,
            SerialOptions(
                assignment=assignment,
                threads=runtime.actor_threads,
                may_lag=runtime.publish_interval_iterations > 1,
                steppers=steppers,
                act_on=compute.act_on,
                on_gpu=make_rows,
            ),
        )
    spec = _worker_spec(config, source, make_actor, plan, assignment)
    first = [learner.publication() for learner in learners]
    opponents = assignment.num_policies - len(learners)  # weights have the same form
    publications = first + first[:1] * opponents
    workers: "Pool"
    if config.cluster.address is None:
        from quintet.runtime.processes.workers import Workers

        workers = Workers(spec, publications, say, notice)
    else:
        workers = _nodes(config, source, spec, publications, say, notice)
    if runtime.kind == "lockstep":
        from quintet.runtime.lockstep import LockstepSampling

        may_lag = runtime.publish_interval_iterations > 1
        return LockstepSampling(workers, timer, runtime.lag, may_lag)
    from quintet.runtime.asynchronous import AsyncSampling

    # Several learners take batches from shared memory, which is not page-locked.
    pin = runtime.device.startswith("cuda") and runtime.num_learners == 1
    limits = runtime.prefetch_batches, runtime.max_restarts
    return AsyncSampling(workers, timer, *limits, pin, warn)


def _worker_spec(
    config: RunConfig,
    source: Source,
    make_actor: Callable[[], Actor],
    plan: DataPlan,
    assignment: Assignment,
) -> "WorkerSpec":
    """Work that all workers are given."""
    from quintet.runtime.processes.messages import Place, WorkerSpec

    runtime, streams = config.runtime, config.env.num_streams
    size = config.env.streams_per_group
    assert size is not None
    assert runtime.num_workers is not None
    assert runtime.actor_threads is not None
    server = _server(config, source.spaces) if runtime.inference == "server" else None
    return WorkerSpec(
        make_env=partial(_make_place, source.env),
        make_actor=make_actor,
        spaces=source.spaces,
        plan=plan,
        seed=config.seed,
        places=tuple(Place(g, g * size, size) for g in range(streams // size)),
        num_workers=runtime.num_workers,
        num_slots=slots_per_group(runtime, plan, streams),
        assignment=assignment,
        timeout_s=runtime.worker_timeout_s,
        threads=1 if server else runtime.actor_threads,
        server=server,
        num_metrics=len(source.env.terms),
    )


def _nodes(
    config: RunConfig,
    source: Source,
    spec: "WorkerSpec",
    publications: Sequence[Publication],
    say: Callable[[str], None],
    notice: Callable[[str], None],
) -> "Pool":
    """The workers on the nodes of a cluster; raises ConfigError if Ray is not installed."""
    try:
        from quintet.cluster.nodes import Nodes
    except ImportError as error:
        raise no_ray(config.cluster.address, error) from error
    from quintet.run.node_check import Part, questions
    from quintet.runtime.processes.workers import sendable

    asked = questions(sendable(Part(source.env, spec)), source.env, config.runtime.exact)
    return Nodes(spec, publications, config.cluster.terms, asked, say, notice)


def assignment_of(
    config: RunConfig, env: ResolvedEnv, plan: DataPlan, num_learners: int
) -> Assignment:
    """Assignment of policies to streams; refuses one that the learner's replay does not allow."""
    agents, past_frac = env.num_agents, config.self_play.past_frac
    streams, groups = config.env.num_streams, config.env.num_groups
    if past_frac:
        found = Assignment(num_learners + 1, True, agents, past_frac=past_frac)
    elif num_learners > 1 and config.population.assignment == "agent":
        found = Assignment(num_learners, True, agents, by_agent=True)
    else:
        found = Assignment.of_groups(num_learners, groups, agents)
    replay = plan.replay
    if replay is not None and replay.column_source == "per_stream":
        for policy in range(num_learners):
            own = len(found.streams_of(policy, streams, groups))
            if replay.columns % own:
                raise ConfigError(
                    f"a batch of {replay.columns} unrolls from replay must be a multiple of the "
                    f"{own} streams that policy {policy} plays; change env.num_streams, or set the "
                    "learner's option so that replay draws from any stream"
                )
    return found


def _require_fresh_rows(runtime: RuntimeConfig, plan: DataPlan) -> None:
    """Refuses a run that would wait for ever, as every row would be too old for an update."""
    most, interval = plan.max_policy_lag, runtime.publish_interval_iterations
    lag = runtime.lag if runtime.kind == "lockstep" else 0
    if most is not None and plan.replay is not None and interval > 1:
        raise ConfigError(
            f"runtime.publish_interval_iterations must be 1 with replay and a bound of {most} "
            "updates on the age of a row's policy, since every draw is an update, got "
            f"{interval}; leave out this option, or runtime.max_policy_lag"
        )
    versions = plan.versions_per_batch
    if most is not None and (interval - 1 + lag) * versions > most:
        batches = most // versions + 1 - lag
        way = f"must be at most {batches}" if batches > 0 else "can't be low enough"
        cure = "lower it" if batches > 0 else "lower runtime.lag"
        each = f" ({versions} in a batch)" if versions > 1 else ""
        cure += " or raise runtime.max_policy_lag" if runtime.kind == "async" else ""
        raise ConfigError(
            f"runtime.publish_interval_iterations {way}, got {interval}, since rows are dropped if "
            f"their weights are more than {most} updates{each} old; {cure}"
        )


def _server(config: RunConfig, spaces: Spaces) -> "ServerOptions":
    """The inference server's options; raises ConfigError if its batches are too small."""
    from quintet.runtime.processes.messages import ServerOptions

    runtime = config.runtime
    assert runtime.actor_threads is not None
    exact = runtime.kind == "lockstep"
    # A graph is compiled for one size of batch, and the free server's differ.
    compute = replace(
        runtime.actor_compute,
        compile=runtime.actor_compute.compile and exact,
        act_on=runtime.device,
        graph=runtime.compute.graph,
    )
    make_actor = registry.find(config.algo).make_actor
    assert config.env.streams_per_group is not None
    least = max(runtime.inference_batch_min, config.env.streams_per_group)
    if runtime.inference_batch_max < least and not exact:
        raise ConfigError(
            f"runtime.inference_batch_max must be at least {least}, the larger of "
            "inference_batch_min and the streams of a group, got "
            f"{runtime.inference_batch_max}; raise it, or lower env.streams_per_group"
        )
    return ServerOptions(
        make_actor=partial(make_actor, config.learner, config.model, spaces, compute),
        device=runtime.device,
        threads=runtime.actor_threads,
        exact=exact,
        batch_min=runtime.inference_batch_min,
        batch_max=runtime.inference_batch_max,
        batch_timeout_s=runtime.inference_timeout_ms / 1_000,
        gpu=runtime.gpu_math,
    )


def _make_place(env: ResolvedEnv, place: "Place") -> VectorEnv:
    with made_for("training in a worker process"):
        env = env.numbered(first=0, worker=place.worker)
        return make_group_env(env, place.num_streams, first_stream=place.first_stream)
