"""Advice that would make a run faster, given what limits it; never what the run does already."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from quintet.observe.shares import Load
from quintet.observe.timing import Phase

if TYPE_CHECKING:  # imports PyTorch, which plots have no use for
    from quintet.protocols import UpdateAdvice

_BUSY = 0.9  # share of all cores from which on none counts as idle


@final
@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run's resolved configuration and its machine on which its speed depends.

    source: what makes the environments: an id; a maker of single ones; a maker of groups, which are
        vector environments; or a given vector environment, whose size is the run's.
    single_only: no vector environment will do, as for masks from info and for games.
    env_threads: of each pool of environments in C++; 1 where environments are stepped in Python.
    auto_env_threads: env_threads if the option were left out.
    env_processes: that step environments in Python for the run's own; reports say how many.
    env_processes_given: whether the user has said how many.
    in_python: whether Python steps the environments one after another.
    faster: what would step the same id faster; may be "".
    large_network: whether threads and a GPU are worth it (pictures).
    compiles: whether acts and updates are compiled.
    may_compile: whether compiling them would be worth it.
    compiler: whether a C++ compiler is no obstacle to it.
    gpu: whether PyTorch sees a GPU, or one for each learner.
    batch_steps: env_steps of a batch.
    update: the learner's own advice.
    num_workers: 0 in the serial runtime.
    num_learners: processes that share every batch; each has `threads`.
    actor_threads: threads where actions are computed, beside the learner's `threads`.
    sinks: whether reports are written anywhere.
    callback: whether reports go to the user's code.
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


def all_busy(load: Load, facts: RunFacts) -> bool:
    return (load.cores.used + load.cores.by_others) / facts.cores >= _BUSY


def wanted_cores(load: Load, facts: RunFacts) -> float:
    """Cores that the run's threads would keep busy; waiting processes want none.

    As the system counts it, else estimated from the number of threads.
    """
    if load.cores.waited_for is not None:
        return min(load.cores.used + load.cores.waited_for, facts.cores)
    if not facts.num_workers:
        threads = max(facts.threads, facts.env_threads * facts.num_groups, facts.env_processes)
        return min(threads + _of_other_learners(load, facts), facts.cores)
    serves, on_cpu = facts.inference == "server", facts.device == "cpu"
    pools = 1 if facts.in_python else -(-facts.num_groups // facts.num_workers)
    of_pools = facts.env_threads * pools
    of_worker = max(1 if serves else facts.actor_threads, of_pools)
    wanted: float = (1 - load.learner.get("waiting", 0.0)) * (facts.threads if on_cpu else 1)
    wanted += _of_other_learners(load, facts)
    for worker in load.workers or [{}] * facts.num_workers:
        away = worker.get("waiting", 0.0) + (worker.get("acting", 0.0) if serves else 0.0)
        wanted += (1 - away) * of_worker
    if serves:
        acts = 1 - load.server.get("waiting", 0.0)
        wanted += acts * (facts.actor_threads if on_cpu else 1)
    return min(wanted, facts.cores)


def _of_other_learners(load: Load, facts: RunFacts) -> float:
    """Cores that the learners beside the first keep busy."""
    threads = facts.threads if facts.device == "cpu" else 1
    return (facts.num_learners - 1) * load.learner.get("learning", 0.0) * threads


def idle_cores(load: Load, facts: RunFacts) -> int:
    """Cores that no process uses."""
    used = load.cores.used + load.cores.by_others
    if not load.cores.used:
        used = wanted_cores(load, facts)
    return max(0, math.floor(facts.cores - used + 0.25))  # a busy core is never quite busy


def _faster_environment(facts: RunFacts) -> list[str]:
    """Advice on an environment that is stepped in Python."""
    if not facts.in_python:
        return []
    if facts.single_only or facts.source in ("group maker", "vector environment"):
        return ["a faster step() of it"]
    if facts.source == "maker":
        return ["a faster step() of it, or a function that makes a vector environment of it,"]
    if facts.faster:
        return [facts.faster]
    return [f"a faster backend, if there is one (quintet envs {facts.env.split('-')[0]}),"]


def _stepping(facts: RunFacts) -> list[str]:
    if facts.in_python:
        return [*_side_by_side(facts), *_faster_environment(facts)]
    if facts.env_threads < facts.auto_env_threads:
        return [_unthrottled(facts)]
    if facts.num_groups > facts.auto_num_groups:
        fewer = groups(facts.auto_num_groups)
        return [f"{fewer} (leave --env.streams-per-group out)"]
    if facts.env_threads * facts.num_groups >= facts.cores > 1:
        return ["more CPU cores"]
    return [_more_streams(facts)]


def _side_by_side(facts: RunFacts) -> list[str]:
    """Advice on environments in Python of the serial runtime, which are stepped one after another,
    or by processes.
    """
    if facts.env_processes_given and facts.env_processes < facts.num_streams:
        return ["as many processes as suit it (leave --env.num-processes out)"]
    if facts.env_processes >= facts.num_streams:
        return [_more_streams(facts)]
    if facts.env_processes:
        return ["more CPU cores" if facts.env_processes >= facts.cores else "more memory"]
    if facts.cores > 1 and facts.num_streams > 1 and facts.source != "vector environment":
        return ["worker processes (--runtime.kind lockstep)"]
    return []


def _unthrottled(facts: RunFacts) -> str:
    return f"{facts.auto_env_threads} threads a pool (leave --env.num-threads out)"


def _acting(facts: RunFacts) -> list[str]:
    advice = [*_compiling(facts), *_threads(facts)]
    if facts.num_groups > 1:
        advice.append(f"one group (--env.streams-per-group {facts.num_streams})")
    return [*advice, _more_streams(facts)]


def _lighter_update(facts: RunFacts) -> list[str]:
    advice = _compiling(facts)
    if facts.num_learners > 1 and not facts.large_network:  # an exchange takes longer
        advice.append("one learner (--runtime.num-learners 1)")
    advice += facts.update.less_work
    if facts.large_network and facts.device == "cpu":
        advice.append("the GPU (--runtime.device cuda)" if facts.gpu else "a GPU")
    return advice


def _evaluation(facts: RunFacts) -> list[str]:
    fewer = [f"fewer episodes (--eval.episodes below {facts.eval_episodes})"]
    return ["a longer --eval.interval", *(fewer if facts.eval_episodes > 1 else [])]


def _other(facts: RunFacts) -> list[str]:
    advice = ["a quicker on_report"] if facts.callback else []
    if facts.report_interval_s < 1:
        now = f"{facts.report_interval_s:g}"
        advice.append(f"fewer reports (leave --report.interval-s out, it is {now})")
    return advice or (["fewer --report.sinks"] if facts.sinks else [])


def _making(facts: RunFacts) -> list[str]:
    """Restarts come with exact checkpoints; in async runs with the start and replaced workers."""
    advice = ["a constructor and a first reset() that take less time"]
    if facts.kind != "async":
        advice.append("fewer exact checkpoints (a longer --checkpoint.interval-iterations)")
    return advice


ADVICE: Mapping[Phase, Callable[[RunFacts], list[str]]] = {
    "stepping": _stepping,
    "making": _making,
    "acting": _acting,
    "learning": lambda facts: [*_lighter_update(facts), *_threads(facts, learning=True)],
    "replay": lambda facts: [*facts.update.less_work] or ["a faster disk"],
    "waiting": lambda _: ["a faster environment or more CPU cores"],
    "evaluation": _evaluation,
    "checkpoint": lambda _: ["a longer --checkpoint.interval-iterations or a faster disk"],
    "other": _other,
}
"""Advice for the serial runtime, by the phase that takes most of its time."""


def _learning_beside_workers(load: Load, facts: RunFacts) -> list[str]:
    advice = _lighter_update(facts)
    at_length = facts.device == "cpu" and facts.large_network
    learners = facts.num_learners
    more = min(facts.cores // learners, facts.threads + idle_cores(load, facts) // learners)
    if at_length and more > facts.threads:
        advice.append(f"more threads (--runtime.threads {more})")
    if not at_length:  # else its rows take the time
        advice += facts.update.larger_batches
    return advice or ["a faster machine"]


def _stepping_beside_learner(load: Load, facts: RunFacts) -> list[str]:
    advice = _faster_environment(facts)
    if facts.env_threads < facts.auto_env_threads:
        advice.append(_unthrottled(facts))
    return [*advice, *_more_at_once(load, facts)]


def _acting_beside_learner(load: Load, facts: RunFacts) -> list[str]:
    advice = [*_compiling(facts), _larger_groups(facts)]
    if facts.large_network:
        options = "--runtime.inference server"
        if facts.device == "cpu":
            options += " --runtime.device cuda"
        advice.append(f"the GPU ({options})" if facts.gpu else "a GPU")
    return [*advice, *(more for more in _more_at_once(load, facts) if more not in advice)]


def _serving(load: Load, facts: RunFacts) -> list[str]:
    exact = facts.kind == "lockstep"
    # Graphs are compiled for one size of batch, and the free server's differ.
    advice = [*_compiling(facts), _larger_groups(facts)] if exact else []
    if not exact and facts.num_streams > facts.inference_batch_max:
        advice.append(f"larger batches (--runtime.inference-batch-max {facts.num_streams})")
    if facts.device == "cpu":
        advice.append("acting in the workers (--runtime.inference local)")
        if facts.large_network:
            advice.append("the GPU (--runtime.device cuda)" if facts.gpu else "a GPU")
            more = min(facts.cores, facts.actor_threads + idle_cores(load, facts))
            if more > facts.actor_threads:
                advice.append(f"more threads for it (--runtime.actor-threads {more})")
    return advice or ["a faster machine"]


def _answering(_: Load, facts: RunFacts) -> list[str]:
    local = facts.device == "cpu" or not facts.large_network
    here = ["acting in the workers (--runtime.inference local)"] if local else []
    return [*here, _larger_groups(facts)]


BESIDE_WORKERS: Mapping[str, Callable[[Load, RunFacts], list[str]]] = {
    "learning": _learning_beside_workers,
    "stepping": _stepping_beside_learner,
    "making": lambda _, facts: _making(facts),
    "acting": _acting_beside_learner,
    "server": _serving,
    "answers": _answering,
    "turns": lambda *_: ["sampling during updates (--runtime.lag 1)"],
    "balance": lambda _, facts: [
        *_compiling(facts),
        *_faster_environment(facts),
        "a faster machine",
    ],
}
"""Advice where processes sample beside the learner, by what limits the speed."""


def _compiling(facts: RunFacts) -> list[str]:
    if not facts.may_compile or facts.compiles:
        return []
    if not facts.compiler:
        return ["a C++ compiler (g++), which --runtime.compile needs,"]
    return ["compiling it (--runtime.compile on)"]


def _threads(facts: RunFacts, learning: bool = False) -> list[str]:
    """More of PyTorch's threads, for large networks; small ones are slower with a second."""
    on_cpu = facts.device == "cpu" or not learning  # acting is always on the CPU
    most = facts.cores // facts.num_learners
    if on_cpu and facts.large_network and facts.threads < most:
        return [f"more threads (--runtime.threads {most})"]
    return []


def _more_streams(facts: RunFacts) -> str:
    """More streams, which share the fixed cost of a call."""
    streams = 2 * facts.num_streams
    if facts.source == "vector environment":  # whose size no option changes
        return f"more streams (a vector environment of {streams})"
    return f"more streams (--env.num-streams {streams})"


def _more_at_once(load: Load, facts: RunFacts) -> list[str]:
    """One more worker for every idle core, as far as streams can be shared evenly."""
    idle, streams = idle_cores(load, facts), facts.num_streams
    if idle == 0:
        return ["more CPU cores"]
    now, most = facts.num_workers, facts.num_workers + idle
    even = next((n for n in range(min(most, streams), now, -1) if streams % n == 0), None)
    if even is None:
        if facts.source == "vector environment":
            return [_more_streams(facts)]
        size = streams // facts.num_groups
        streams = most * size * -(-facts.num_groups // now)
        return [f"more workers (--runtime.num-workers {most} --env.num-streams {streams})"]
    options = f"--runtime.num-workers {even}"
    if facts.num_groups % even:
        options += f" --env.streams-per-group {streams // even}"
    return [f"more workers ({options})"]


def _larger_groups(facts: RunFacts) -> str:
    """Larger groups and so fewer acts, as long as every worker keeps a group."""
    streams = facts.num_streams  # of as many groups, or a few more, of the same size
    size = streams // next(n for n in range(facts.num_workers, streams + 1) if streams % n == 0)
    if size > facts.num_streams // facts.num_groups:
        return f"larger groups (--env.streams-per-group {size})"
    return _more_streams(facts)


def groups(number: int) -> str:
    return "one group" if number == 1 else f"{number} groups"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_of(advice: list[str]) -> str:
    joined = " or ".join(filter(None, [", ".join(advice[:-1]), advice[-1]])).replace(",,", ",")
    return joined[0].upper() + joined[1:]
