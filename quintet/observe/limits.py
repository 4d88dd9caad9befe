"""The limit of a run's speed in one sentence, with advice."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from quintet.observe.advice import (
    ADVICE,
    BESIDE_WORKERS,
    RunFacts,
    all_busy,
    count,
    groups,
    one_of,
    wanted_cores,
)
from quintet.observe.shares import Load, mean
from quintet.observe.timing import Phase

# Others crowd a run when they take this share of all cores, and it has less than that of what it
# wants.
_CROWDED, _UNHINDERED = 0.2, 0.9
_LEAST_LOST = 0.1  # cores of each process; a run that mostly sleeps loses next to nothing
_BALANCED = 0.4  # below this share, halving the largest part makes the run at most 25% faster
_HARDLY = 0.1  # largest share of waiting of processes that are equally fast
_AT_WORK: tuple[Phase, ...] = ("stepping", "acting")  # of workers
_TURNS = 0.2  # smallest share of each of two processes that take turns

Cause = Phase | Literal["others", "turns", "server", "answers", "balance"]
"""Limit of the speed: a phase of a process; other processes of the machine; taking turns; the
inference server; the messages to it; no single part.
"""


def limit(load: Load, facts: RunFacts, *, starting: bool = False) -> str:
    """A sentence that says where most of the time goes, and one with advice.

    starting: whether the shares include the first acts and the first update, which compile.
    """
    shares = load.learner
    if not shares:
        return ""
    facts = replace(facts, env_processes=load.env_processes)
    why = cause(load, facts)
    first = max(shares, key=lambda phase: shares[phase])
    alone = cause(load, facts, alone=True)
    begun = _told_of_start(alone, shares, facts) if starting else ""
    if why == "others":
        behind = begun or _told_of(alone, load, facts)
        return f"{_told_of_others(load, facts)} Behind them: {behind[0].lower()}{behind[1:]}"
    if begun:
        return begun
    if load.workers and first in ("learning", "waiting"):
        advice = BESIDE_WORKERS[why](load, facts)
        return f"{_told_of(why, load, facts)} {one_of(advice)} would help."
    advice = ADVICE[first](facts)
    help_ = f"{one_of(advice) if advice else 'A faster machine'} would help"
    most = " most" if shares[first] < _BALANCED else ""
    return f"{_told_of(why, load, facts)} {help_}{most}."


def _told_of_start(why: Cause, shares: Mapping[Phase, float], facts: RunFacts) -> str:
    """Work that comes once at every start and took the time so far; else ""."""
    first = max(shares, key=lambda phase: shares[phase])
    if facts.compiles:
        elsewhere = why == "acting" and facts.num_workers > 0
        acting = shares.get("waiting" if elsewhere else "acting", 0.0)
        compiling = acting + shares.get("learning", 0.0)
        if compiling >= shares[first]:
            what = "waiting for acts" if elsewhere else "acting"
            return (
                f"Compiling took most of the time so far ({_percent(compiling)} {what} and "
                "learning): once at every start, so that all later acts and updates are faster."
            )
    if first != "other":
        return ""
    several = facts.num_workers or facts.num_learners > 1
    begun = "processes are begun" if several else "files and libraries are opened"
    return f"Starting took most of the time so far ({_percent(shares[first])}): {begun}."


def cause(load: Load, facts: RunFacts, *, alone: bool = False) -> Cause:
    """Limit of the speed; in the serial runtime the phase that takes most time.

    alone: whether other processes are left out.
    """
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
    if in_turn and min(waits, learns) >= _TURNS and not all_busy(load, facts):
        return "turns"
    if max(waits, idle) < _HARDLY:
        return "balance"
    if idle >= waits:
        return "learning"
    workers, server = mean(load.workers), load.server
    if workers.get("making", 0.0) >= max(workers.get(x, 0.0) for x in _AT_WORK):
        return "making"
    if workers.get("stepping", 0.0) >= workers.get("acting", 0.0):
        return "stepping"
    if not server:
        return "acting"
    return "server" if server.get("acting", 0.0) >= server.get("waiting", 0.0) else "answers"


def crowded(load: Load, facts: RunFacts) -> bool:
    """Whether other processes take cores that the run wants."""
    used, by_others, waited_for = load.cores
    if not all_busy(load, facts) or by_others / facts.cores < _CROWDED:
        return False
    processes = facts.num_learners + facts.num_workers + load.env_processes
    if waited_for is not None and waited_for < _LEAST_LOST * processes:
        return False
    return used < _UNHINDERED * wanted_cores(load, facts)


def _told_of_others(load: Load, facts: RunFacts) -> str:
    by_others = load.cores.by_others
    advice = ["waiting until they end"]
    # Threads that wait for each other at every layer lose more than the missing cores.
    left = max(1, round((facts.cores - by_others) / facts.num_learners))
    if facts.threads > left:
        advice.append(f"fewer threads (--runtime.threads {left})")
    return (
        f"Other processes limit the speed: they take {by_others:.1f} of "
        f"{count(facts.cores, 'core')}. {one_of(advice)} would help."
    )


def _told_of(why: Cause, load: Load, facts: RunFacts) -> str:
    """The sentence on what limits the speed, other processes of the machine aside."""
    shares = load.learner
    first = max(shares, key=lambda phase: shares[phase])
    if load.workers and first in ("learning", "waiting"):
        return _told_of_processes(why, load, facts)
    if shares[first] < _BALANCED:
        largest = sorted(shares, key=lambda phase: -shares[phase])[:3]
        parts = ", ".join(f"{_percent(shares[phase])} {phase}" for phase in largest)
        return f"No single part limits the speed: {parts}."
    return _told(first, _percent(shares[first]), facts)


def _told(phase: Phase, percent: str, facts: RunFacts) -> str:
    size = facts.num_streams // facts.num_groups
    work = f" ({facts.update.work})" if facts.update.work else ""
    steppers = f", in {facts.env_processes} processes" if facts.env_processes else ""
    return {
        "stepping": f"Environments limit the speed: {percent} of the time goes into stepping "
        f"{facts.env} ({facts.backend}{steppers}).",
        "making": f"Making environments limits the speed: {percent} of the time goes into "
        f"constructors and first resets of {facts.env} ({facts.backend}), which every restart of "
        "all streams calls.",
        "acting": f"Choosing actions limits the speed: {percent} of the time goes into acting, for "
        f"{groups(facts.num_groups)} of {count(size, 'stream')} at a time.",
        "learning": f"The update limits the speed: {percent} of the time goes into learning on "
        f"{facts.device}{work}.",
        "replay": f"Replay limits the speed: {percent} of the time goes into storing transitions "
        "and drawing batches of them.",
        "waiting": f"Sampling limits the speed: {percent} of the time the update waits for other "
        "processes.",
        "evaluation": f"Evaluation limits the speed: it takes {percent} of the time.",
        "checkpoint": f"Checkpoints limit the speed: writing them takes {percent} of the time.",
        "other": f"Reports limit the speed: what comes between updates takes {percent} of the "
        "time.",
    }[phase]


def _told_of_processes(why: Cause, load: Load, facts: RunFacts) -> str:
    """The sentence on which processes wait, and what the other ones do meanwhile."""
    learner, workers = load.learner, mean(load.workers)
    waits = f"{_percent(learner.get('waiting', 0.0))} of the time the update waits"
    idle = f"wait {_percent(workers.get('waiting', 0.0))} of theirs"
    stepping, acting = (workers.get(phase, 0.0) for phase in ("stepping", "acting"))
    serving = _percent(load.server.get("acting", 0.0))
    learning = _told("learning", _percent(learner.get("learning", 0.0)), facts)
    streams = count(facts.num_streams // facts.num_groups, "stream")
    busy = all_busy(load, facts)
    whole = "All cores are busy" if busy else "No single part limits the speed"
    return {
        "learning": f"{learning.removesuffix('.')}, while the workers {idle}.",
        "turns": f"Taking turns limits the speed: {waits} for the workers, which {idle} for the "
        "update.",
        "stepping": f"Environments limit the speed: {waits}, while the workers step {facts.env} "
        f"({facts.backend}) for {_percent(stepping)} of theirs.",
        "making": f"Making environments limits the speed: {waits}, while the workers make "
        f"{facts.env} ({facts.backend}) anew for {_percent(workers.get('making', 0.0))} of theirs.",
        "acting": f"Choosing actions limits the speed: {waits}, while the workers act for "
        f"{_percent(acting)} of theirs, for {streams} at a time.",
        "server": f"The inference server limits the speed: {waits}, while the server acts for "
        f"{serving} of its own on {facts.device}.",
        "answers": f"The way to the inference server limits the speed: {waits}, while the workers "
        f"wait for actions for {_percent(acting)} of theirs; the server acts for {serving}.",
        "balance": f"{whole}: learner and workers hardly wait for each other.",
    }[why]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
