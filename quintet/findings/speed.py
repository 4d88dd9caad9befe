"""The limit of a run's speed in one sentence, and ways to a faster run, by cause; no way that the
run goes already."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

from quintet.observe.pace import count
from quintet.observe.timing import Load, Phase, mean

if TYPE_CHECKING:  # imports PyTorch, which plots have no use for
    from quintet.protocols import UpdateAdvice

_BUSY = 0.9  # share of all cores from which on none counts as idle
# Others crowd a run when they take this share of all cores, and it has less than that of what it
# wants.
_CROWDED, _UNHINDERED = 0.2, 0.9
_LEAST_LOST = 0.1  # cores of each process; a run that mostly sleeps loses next to nothing
_BALANCED = 0.4  # below this share, halving the largest part makes the run at most 25% faster
_HARDLY = 0.1  # largest share of waiting of processes that are equally fast
_TURNS = 0.2  # smallest share of each of two processes that take turns

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


_When = Callable[[RunFacts], str | bool]
_Way = str | _When
"""A way to a faster run: a text, or a function that returns one; "" and False: no way."""


def _if(when: Callable[[RunFacts], object], words: str) -> _When:
    """A way under a condition; words: with facts `f` in braces."""
    return lambda f: bool(when(f)) and words.format(f=f)


def _on_cpu(f: RunFacts) -> bool:
    return f.device == "cpu"


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


def _gpu_server(f: RunFacts) -> str:
    if not f.large_network:
        return ""
    device = " --runtime.device cuda" * (f.device == "cpu")
    return f"the GPU (--runtime.inference server{device})" if f.gpu else "a GPU"


def _threads(f: RunFacts) -> str:
    most = f.cores // f.num_learners
    if f.num_workers:
        most = min(most, f.threads + f.idle_cores // f.num_learners)
    # Small networks are slower with a second thread.
    return (
        f"more threads (--runtime.threads {most})" if f.large_network and most > f.threads else ""
    )


def _pool_threads(f: RunFacts) -> str:
    if f.env_threads >= f.auto_env_threads:
        return ""
    return f"{f.auto_env_threads} threads a pool (leave --env.num-threads out)"


def _more_streams(f: RunFacts) -> str:
    if f.source == "vector environment":  # no option changes its size
        return f"more streams (a vector environment of {2 * f.num_streams})"
    return f"more streams (--env.num-streams {2 * f.num_streams})"


def _larger_groups(f: RunFacts) -> str:
    if f.num_groups <= f.num_workers:  # every worker keeps a group
        return _more_streams(f)
    return f"larger groups (--env.streams-per-group above {f.num_streams // f.num_groups})"


def _faster_env(f: RunFacts) -> str:
    """Advice on a faster environment, part of a sentence; "" if it is not stepped in Python."""
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
    if threads := _pool_threads(f):
        return threads
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


_IN_WORKERS = "acting in the workers (--runtime.inference local)"
_MAKING: tuple[_Way, ...] = (
    "a constructor and a first reset() that take less time",
    # Async runs restart no streams at checkpoints.
    _if(lambda f: f.kind != "async",
        "fewer exact checkpoints (a longer --checkpoint.interval-iterations)"),
)  # fmt: skip
_ONE_LEARNER = _if(  # an exchange of several takes longer than the update of a small network
    lambda f: f.num_learners > 1 and not f.large_network,
    "one learner (--runtime.num-learners 1)",
)
_WAITS = "limits the speed: the update waits {learner[waiting]:.0%} of its time"
_WAIT = _WAITS.replace("limits", "limit")
_UPDATE = (
    "The update limits the speed: {learner[learning]:.0%} of the time goes into learning on "
    "{f.device}{work}"
)

_CAUSES: Mapping[Cause, tuple[str, tuple[_Way, ...]]] = {
    "others": ("Other processes limit the speed: they take {by_others:.1f} of {cores}.", (
        "waiting until they end",
        # Threads that wait for each other at every layer lose more than the missing cores.
        _if(lambda f: f.threads > f.cores_left, "fewer threads (--runtime.threads {f.cores_left})"),
    )),
    "stepping": (
        "Environments limit the speed: {learner[stepping]:.0%} of the time goes into stepping "
        "{env}{steppers}).",
        (_at_once, _faster_env),
    ),
    "making": (
        "Making environments limits the speed: {learner[making]:.0%} of the time goes into "
        "constructors and first resets of {env}), which every restart of all streams calls.",
        _MAKING,
    ),
    "acting": (
        "Choosing actions limits the speed: {learner[acting]:.0%} of the time goes into acting, "
        "for {groups} of {streams}.",
        (_compiling, _threads,
         _if(lambda f: f.num_groups > 1, "one group (--env.streams-per-group {f.num_streams})"),
         _more_streams),
    ),
    "learning": (f"{_UPDATE}.", ()),
    "replay": (
        "Replay limits the speed: {learner[replay]:.0%} of the time goes into storing transitions "
        "and drawing batches of them.",
        (_if(lambda f: not f.update.less_work, "a faster disk"),),
    ),
    "waiting": (
        f"Sampling {_WAITS} for other processes.", ("a faster environment or more CPU cores",)),
    "evaluation": (
        "Evaluation limits the speed: it takes {learner[evaluation]:.0%} of the time.",
        ("a longer --eval.interval",
         _if(lambda f: f.eval_episodes > 1,
             "fewer episodes (--eval.episodes below {f.eval_episodes})")),
    ),
    "checkpoint": (
        "Checkpoints limit the speed: writing them takes {learner[checkpoint]:.0%} of the time.",
        ("a longer --checkpoint.interval-iterations or a faster disk",),
    ),
    "other": (
        "Reports limit the speed: what comes between updates takes {learner[other]:.0%} of the "
        "time.",
        (_if(lambda f: f.callback, "a quicker on_report"),
         _if(lambda f: f.report_interval_s < 1,
             "fewer reports (leave --report.interval-s out, it is {f.report_interval_s:g})"),
         _if(lambda f: f.sinks and not f.callback and f.report_interval_s >= 1,
             "fewer --report.sinks")),
    ),
    "update": (f"{_UPDATE}, while the workers wait {{workers[waiting]:.0%}} of theirs.", ()),
    "turns": (
        f"Taking turns {_WAITS} for the workers, which wait {{workers[waiting]:.0%}} of theirs for "
        "the update.",
        ("sampling during updates (--runtime.lag 1)",),
    ),
    "sampled": (
        f"Environments {_WAIT}, while the workers step {{env}}) for {{workers[stepping]:.0%}} of "
        "theirs.",
        (_faster_env, _pool_threads, _more_workers),
    ),
    "made": (
        f"Making environments {_WAITS}, while the workers make {{env}}) again for "
        "{workers[making]:.0%} of theirs.",
        _MAKING,
    ),
    "acted": (
        f"Choosing actions {_WAITS}, while the workers act for {{workers[acting]:.0%}} of theirs, "
        "for {streams}.",
        (_compiling, _larger_groups, _gpu_server, _more_workers),
    ),
    "server": (
        f"The inference server {_WAITS}, while the server acts for {{server[acting]:.0%}} of its "
        "own on {f.device}.",
        (lambda f: f.kind == "lockstep" and _compiling(f),  # needs one size of batch
         lambda f: f.kind == "lockstep" and _larger_groups(f),
         _if(lambda f: f.kind != "lockstep" and f.num_streams > f.inference_batch_max,
             "larger batches (--runtime.inference-batch-max {f.num_streams})"),
         _if(_on_cpu, _IN_WORKERS),
         _gpu,
         _if(lambda f: f.large_network and _on_cpu(f)
             and min(f.idle_cores, f.cores - f.actor_threads) > 0,
             "more threads for it (--runtime.actor-threads above {f.actor_threads})")),
    ),
    "answers": (
        f"The way to the inference server {_WAITS}, while the workers wait for actions for "
        "{workers[acting]:.0%} of theirs; the server acts for {server[acting]:.0%}.",
        (_if(lambda f: _on_cpu(f) or not f.large_network, _IN_WORKERS), _larger_groups),
    ),
    "even": (
        "{whole}: learner and workers hardly wait for each other.",
        (_compiling, _faster_env, "a faster machine"),
    ),
}  # fmt: skip
"""The sentence about each cause, and the ways to a faster run, each with its option; none where
only a faster machine helps."""


def advice(why: Cause, f: RunFacts) -> list[str]:
    """The ways to a faster run, with those of the learner's own options."""
    found = [way(f) if callable(way) else way for way in _CAUSES[why][1]]
    if why in ("learning", "update", "replay"):
        found += f.update.less_work
    if why in ("learning", "update"):
        found = [_compiling(f), _ONE_LEARNER(f), *found, _gpu(f)]
        found += [_threads(f)] * _on_cpu(f)
    # Large networks on the CPU spend their time on rows, so larger batches save none.
    if why == "update" and not (f.large_network and _on_cpu(f)):
        found += f.update.larger_batches
    return [*dict.fromkeys(way for way in found if isinstance(way, str) and way)]


def limit(load: Load, facts: RunFacts, *, starting: bool = False) -> str:
    """A sentence about where most of the time goes, and one with advice.

    starting: whether the shares include the first acts and the first update, which compile.
    """
    shares, by_others = load.learner, load.cores.by_others
    if not shares:
        return ""
    facts = replace(
        facts,
        env_processes=load.env_processes,
        # a busy core is never quite busy
        idle_cores=max(0, math.floor(facts.cores - load.cores.used - by_others + 0.25)),
        cores_left=max(1, round((facts.cores - by_others) / facts.num_learners)),
    )
    why = cause(load, facts, alone=True)
    start = _of_start(why, shares, facts) if starting else ""
    sentence = start or _sentence(why, load, facts)
    if crowded(load, facts):
        others = f"{_sentence('others', load, facts)} {_help('others', facts)}."
        return f"{others} Without them: {sentence[0].lower()}{sentence[1:]}"
    most = " most" if _is_even(why, shares) else ""
    return start or f"{sentence} {_help(why, facts)}{most}."


def _help(why: Cause, facts: RunFacts) -> str:
    """``One way, another or a third would help``."""
    *ways, last = advice(why, facts) or ["a faster machine"]
    joined = " or ".join(filter(None, [", ".join(ways), last])).replace(",,", ",")
    return f"{joined[0].upper()}{joined[1:]} would help"


def _of_start(why: Cause, shares: Mapping[Phase, float], facts: RunFacts) -> str:
    """Work that is done once at every start and took most of the time so far; else ""."""
    first = max(shares, key=lambda phase: shares[phase])
    if facts.compiles:
        elsewhere = why == "acted"
        compiling = shares.get("waiting" if elsewhere else "acting", 0.0)
        compiling += shares.get("learning", 0.0)
        if compiling >= shares[first]:
            what = "waiting for acts" if elsewhere else "acting"
            return (
                f"Compiling took most of the time so far ({compiling:.0%} {what} and learning): "
                "once at every start, so that all later acts and updates are faster."
            )
    if first != "other":
        return ""
    several = facts.num_workers or facts.num_learners > 1
    activity = "processes are begun" if several else "files and libraries are opened"
    return f"Starting took most of the time so far ({shares[first]:.0%}): {activity}."


def cause(load: Load, facts: RunFacts, *, alone: bool = False) -> Cause:
    """Limit of the speed; alone: whether to ignore other programs."""
    if not alone and crowded(load, facts):
        return "others"
    learner = load.learner
    first = max(learner, key=lambda phase: learner[phase])
    if not load.workers or first not in ("learning", "waiting"):
        return first
    waits, learns = learner.get("waiting", 0.0), learner.get("learning", 0.0)
    # A round ends with the slowest worker, for which the others wait as well.
    idle = min(worker.get("waiting", 0.0) for worker in load.workers)
    in_turn = facts.kind == "lockstep" and facts.lag == 0
    if in_turn and min(waits, learns) >= _TURNS and not _all_busy(load, facts):
        return "turns"
    if max(waits, idle) < _HARDLY:
        return "even"
    if idle >= waits:
        return "update"
    workers, server = defaultdict(float, mean(load.workers)), load.server
    if workers["making"] >= max(workers["stepping"], workers["acting"]):
        return "made"
    if workers["stepping"] >= workers["acting"]:
        return "sampled"
    if not server:
        return "acted"
    return "server" if server.get("acting", 0.0) >= server.get("waiting", 0.0) else "answers"


def _all_busy(load: Load, facts: RunFacts) -> bool:
    return (load.cores.used + load.cores.by_others) / facts.cores >= _BUSY


def crowded(load: Load, facts: RunFacts) -> bool:
    """Whether other programs use cores that the run waits for, if the system reports it."""
    used, by_others, waited_for = load.cores
    if waited_for is None or by_others / facts.cores < _CROWDED or not _all_busy(load, facts):
        return False
    processes = facts.num_learners + facts.num_workers + load.env_processes
    needed = min(used + waited_for, facts.cores)
    return waited_for >= _LEAST_LOST * processes and used < _UNHINDERED * needed


def _is_even(why: Cause, shares: Mapping[Phase, float]) -> bool:
    """Whether the phase that takes most of a process's time takes little more than others."""
    return why in shares and max(shares.values()) < _BALANCED


def _sentence(why: Cause, load: Load, facts: RunFacts) -> str:
    """The sentence about the limit of the speed."""
    if _is_even(why, load.learner):
        largest = sorted(load.learner.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{share:.0%} {phase}" for phase, share in largest)
        return f"No single part limits the speed: {parts}."
    return _CAUSES[why][0].format(
        f=facts,
        learner=defaultdict(float, load.learner),
        workers=defaultdict(float, mean(load.workers) if load.workers else {}),
        server=defaultdict(float, load.server),
        env=f"{facts.env} ({facts.backend}",
        steppers=f", in {facts.env_processes} processes" if facts.env_processes else "",
        work=f" ({facts.update.work})" if facts.update.work else "",
        groups="one group" if facts.num_groups == 1 else f"{facts.num_groups} groups",
        streams=f"{count(facts.num_streams // facts.num_groups, 'stream')} at a time",
        by_others=load.cores.by_others,
        cores=count(facts.cores, "core"),
        whole="All cores are busy" if _all_busy(load, facts) else "No single part limits the speed",
    )
