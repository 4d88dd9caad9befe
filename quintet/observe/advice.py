"""Advice that would make a run faster, by the cause that limits it; nothing that the run already
does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from quintet.observe.timing import Phase

if TYPE_CHECKING:  # imports PyTorch, which plots have no use for
    from quintet.protocols import UpdateAdvice

Cause = (
    Phase
    | Literal["others", "turns", "update", "sampled", "made", "acted", "server", "answers", "even"]
)
"""Limit of the speed: the phase that takes most of the learner's time; other processes of the
machine.  With workers: taking turns; the update, for which they wait; their stepping, making or
acting, for which it waits; the inference server; the messages to it; none of them.
"""


@final
@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run's resolved configuration and its machine on which its speed depends.

    source: source of the environments: an id; a maker of single environments; a maker of groups
        (vector environments); or a given vector environment, whose size is the run's.
    single_only: whether vector environments can't be used, as for masks from info and for games.
    env_threads: threads of each pool of environments in C++; 1 if environments are stepped in
        Python.
    auto_env_threads: env_threads without the option.
    env_processes: number of processes that step Python environments, from reports.
    env_processes_given: whether the user gave this number.
    in_python: whether Python steps the environments one after another.
    faster: advice on stepping the same id faster; may be "".
    large_network: whether threads and a GPU pay off (pictures).
    compiles: whether acts and updates are compiled.
    may_compile: whether compiling them would pay off.
    compiler: whether a C++ compiler exists, if one is needed.
    gpu: whether PyTorch sees a GPU, or one per learner.
    batch_steps: env_steps of a batch.
    update: the learner's own advice.
    num_workers: 0 in the serial runtime.
    num_learners: processes that share every batch; each has `threads`.
    actor_threads: threads where actions are computed, in addition to the learner's `threads`.
    sinks: whether reports are written.
    callback: whether reports go to the user's code.
    idle_cores, cores_left: cores that no process uses, and cores left to a learner by other
        programs, in the last half minute.
    """

    env: str
    source: Literal["id", "maker", "group maker", "vector environment"] = "id"
    single_only: bool = False
    backend: str
    in_python: bool
    faster: str = ""
    num_streams: int
    num_groups: int
    auto_num_groups: int
    env_threads: int
    auto_env_threads: int
    env_processes: int = 0
    env_processes_given: bool = False
    large_network: bool
    device: str
    threads: int
    cores: int
    gpu: bool
    compiles: bool
    may_compile: bool
    compiler: bool
    batch_steps: int
    update: "UpdateAdvice"
    kind: Literal["serial", "lockstep", "async"] = "serial"
    num_workers: int = 0
    num_learners: int = 1
    lag: int = 0
    inference: Literal["local", "server"] = "local"
    inference_batch_max: int = 512
    actor_threads: int = 1
    eval_episodes: int = 0
    report_interval_s: float = 1.0
    sinks: bool = False
    callback: bool = False
    idle_cores: int = 0
    cores_left: int = 1


_Ways = Mapping[Cause, tuple[str | bool, ...]]


def advice(cause: Cause, facts: RunFacts) -> list[str]:
    """The ways to a faster run, each with its option; empty where only a faster machine helps."""
    ways = {**_of_one_process(facts), **_with_workers(facts)}[cause]
    return list(dict.fromkeys(way for way in ways if isinstance(way, str) and way))


def _of_one_process(f: RunFacts) -> _Ways:
    making = (
        "a constructor and a first reset() that take less time",
        f.kind != "async"  # async runs restart no streams at checkpoints
        and "fewer exact checkpoints (a longer --checkpoint.interval-iterations)",
    )
    return {
        "others": (
            "waiting until they end",
            # Threads that wait for each other at every layer lose more than the missing cores.
            f.threads > f.cores_left and f"fewer threads (--runtime.threads {f.cores_left})",
        ),
        "stepping": (_pool_threads(f) or _at_once(f), _faster_env(f)),
        "making": making,
        "made": making,
        "acting": (
            _compiling(f),
            _threads(f),
            f.num_groups > 1 and f"one group (--env.streams-per-group {f.num_streams})",
            _more_streams(f),
        ),
        "learning": _less_work(f),
        "replay": f.update.less_work or ("a faster disk",),
        "waiting": ("a faster environment or more CPU cores",),
        "evaluation": (
            "a longer --eval.interval",
            f.eval_episodes > 1 and f"fewer episodes (--eval.episodes below {f.eval_episodes})",
        ),
        "checkpoint": ("a longer --checkpoint.interval-iterations or a faster disk",),
        "other": (
            f.callback and "a quicker on_report",
            f.report_interval_s < 1
            and f"fewer reports (leave --report.interval-s out, it is {f.report_interval_s:g})",
            f.sinks and not f.callback and f.report_interval_s >= 1 and "fewer --report.sinks",
        ),
    }


def _with_workers(f: RunFacts) -> _Ways:
    on_cpu, large, exact = f.device == "cpu", f.large_network, f.kind == "lockstep"
    server = "--runtime.inference server" + " --runtime.device cuda" * on_cpu
    act_in_workers = "acting in the workers (--runtime.inference local)"
    size = f.num_streams // f.num_groups
    larger_groups = f"larger groups (--env.streams-per-group above {size})"
    if f.num_groups <= f.num_workers:  # every worker keeps a group
        larger_groups = _more_streams(f)
    return {
        # Large networks on the CPU spend their time on rows, so larger batches save none.
        "update": (*_less_work(f), *(() if large and on_cpu else f.update.larger_batches)),
        "turns": ("sampling during updates (--runtime.lag 1)",),
        "sampled": (_faster_env(f), _pool_threads(f), _more_workers(f)),
        "acted": (
            _compiling(f),
            larger_groups,
            large and (f"the GPU ({server})" if f.gpu else "a GPU"),
            _more_workers(f),
        ),
        "server": (
            exact and _compiling(f),  # needs one size of batch, which differs in async runs
            exact and larger_groups,
            not exact
            and f.num_streams > f.inference_batch_max
            and f"larger batches (--runtime.inference-batch-max {f.num_streams})",
            on_cpu and act_in_workers,
            _gpu(f),
            large
            and on_cpu
            and min(f.idle_cores, f.cores - f.actor_threads) > 0
            and f"more threads for it (--runtime.actor-threads above {f.actor_threads})",
        ),
        "answers": ((on_cpu or not large) and act_in_workers, larger_groups),
        "even": (_compiling(f), _faster_env(f), "a faster machine"),
    }


def _compiling(f: RunFacts) -> str:
    if not f.may_compile or f.compiles:
        return ""
    if not f.compiler:
        return "PyTorch 2.13 and a C++ compiler (g++), which --runtime.compile needs,"
    return "compiling it (--runtime.compile on)"


def _gpu(f: RunFacts) -> str:
    if not f.large_network or f.device != "cpu":
        return ""
    return "the GPU (--runtime.device cuda)" if f.gpu else "a GPU"


def _threads(f: RunFacts) -> str:
    most = f.cores // f.num_learners
    if f.num_workers:
        most = min(most, f.threads + f.idle_cores // f.num_learners)
    # Small networks are slower with a second thread.
    return (
        f"more threads (--runtime.threads {most})" if f.large_network and most > f.threads else ""
    )


def _less_work(f: RunFacts) -> tuple[str | bool, ...]:
    # An exchange of several learners takes longer than the update of a small network.
    one = f.num_learners > 1 and not f.large_network and "one learner (--runtime.num-learners 1)"
    return _compiling(f), one, *f.update.less_work, _gpu(f), f.device == "cpu" and _threads(f)


def _pool_threads(f: RunFacts) -> str:
    if f.env_threads >= f.auto_env_threads:
        return ""
    return f"{f.auto_env_threads} threads a pool (leave --env.num-threads out)"


def _more_streams(f: RunFacts) -> str:
    if f.source == "vector environment":  # no option changes its size
        return f"more streams (a vector environment of {2 * f.num_streams})"
    return f"more streams (--env.num-streams {2 * f.num_streams})"


def _faster_env(f: RunFacts) -> str:
    if not f.in_python:
        return ""
    if f.single_only or f.source in ("group maker", "vector environment"):
        return "a faster step() of it"
    if f.source == "maker":
        return "a faster step() of it, or a function that makes a vector environment of it,"
    family = f.env.split("-")[0]
    return f.faster or f"a faster backend, if there is one (quintet envs {family}),"


def _at_once(f: RunFacts) -> str | bool:
    """More environments that step at the same time in the serial runtime."""
    if not f.in_python:
        if f.num_groups > f.auto_num_groups:
            return "fewer groups (leave --env.streams-per-group out)"
        return "more CPU cores" if f.env_threads * f.num_groups >= f.cores > 1 else _more_streams(f)
    if f.env_processes_given and f.env_processes < f.num_streams:
        return "as many processes as suit it (leave --env.num-processes out)"
    if f.env_processes >= f.num_streams:
        return _more_streams(f)
    if f.env_processes:
        return "more CPU cores" if f.env_processes >= f.cores else "more memory"
    several = f.cores > 1 and f.num_streams > 1 and f.source != "vector environment"
    return several and "worker processes (--runtime.kind lockstep)"


def _more_workers(f: RunFacts) -> str:
    if not f.idle_cores:
        return "more CPU cores"
    if f.num_workers < f.num_streams:
        return f"more workers (--runtime.num-workers above {f.num_workers})"
    if f.source == "vector environment":
        return _more_streams(f)
    return "more workers, each with a stream (--runtime.num-workers, --env.num-streams)"
