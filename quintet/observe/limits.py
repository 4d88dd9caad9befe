"""The limit of a run's speed in one sentence, with advice."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from quintet.observe.advice import Cause, RunFacts, advice
from quintet.observe.pace import count
from quintet.observe.timing import Load, Phase, mean

_BUSY = 0.9  # share of all cores from which on none counts as idle
# Others crowd a run when they take this share of all cores, and it has less than that of what it
# wants.
_CROWDED, _UNHINDERED = 0.2, 0.9
_LEAST_LOST = 0.1  # cores of each process; a run that mostly sleeps loses next to nothing
_BALANCED = 0.4  # below this share, halving the largest part makes the run at most 25% faster
_HARDLY = 0.1  # largest share of waiting of processes that are equally fast
_TURNS = 0.2  # smallest share of each of two processes that take turns


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
    begun = _of_start(why, shares, facts) if starting else ""
    said = begun or _sentence(why, load, facts)
    if crowded(load, facts):
        others = f"they take {by_others:.1f} of {count(facts.cores, 'core')}"
        return (
            f"Other processes limit the speed: {others}. {_help('others', facts)}. "
            f"Without them: {said[0].lower()}{said[1:]}"
        )
    most = " most" if _is_even(why, shares) else ""
    return begun or f"{said} {_help(why, facts)}{most}."


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
    begun = "processes are begun" if several else "files and libraries are opened"
    return f"Starting took most of the time so far ({shares[first]:.0%}): {begun}."


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
    wanted = min(used + waited_for, facts.cores)
    return waited_for >= _LEAST_LOST * processes and used < _UNHINDERED * wanted


def _is_even(why: Cause, shares: Mapping[Phase, float]) -> bool:
    """Whether the phase that takes most of a process's time takes little more than others."""
    return why in shares and max(shares.values()) < _BALANCED


def _sentence(why: Cause, load: Load, facts: RunFacts) -> str:
    """The sentence about the limit of the speed, apart from other programs on the machine."""
    if _is_even(why, load.learner):
        largest = sorted(load.learner.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{share:.0%} {phase}" for phase, share in largest)
        return f"No single part limits the speed: {parts}."
    learner = defaultdict(float, load.learner)
    workers = defaultdict(float, mean(load.workers) if load.workers else {})
    server, env = defaultdict(float, load.server), f"{facts.env} ({facts.backend}"
    steppers = f", in {facts.env_processes} processes" if facts.env_processes else ""
    work = f" ({facts.update.work})" if facts.update.work else ""
    groups = "one group" if facts.num_groups == 1 else f"{facts.num_groups} groups"
    streams = f"{count(facts.num_streams // facts.num_groups, 'stream')} at a time"
    waits = f"limits the speed: {learner['waiting']:.0%} of the time the update waits"
    update = (
        f"The update limits the speed: {learner['learning']:.0%} of the time goes into learning on "
        f"{facts.device}{work}"
    )
    whole = "All cores are busy" if _all_busy(load, facts) else "No single part limits the speed"
    return {
        "stepping": f"Environments limit the speed: {learner['stepping']:.0%} of the time goes "
        f"into stepping {env}{steppers}).",
        "making": f"Making environments limits the speed: {learner['making']:.0%} of the time goes "
        f"into constructors and first resets of {env}), which every restart of all streams calls.",
        "acting": f"Choosing actions limits the speed: {learner['acting']:.0%} of the time goes "
        f"into acting, for {groups} of {streams}.",
        "learning": f"{update}.",
        "replay": f"Replay limits the speed: {learner['replay']:.0%} of the time goes into storing "
        "transitions and drawing batches of them.",
        "waiting": f"Sampling {waits} for other processes.",
        "evaluation": f"Evaluation limits the speed: it takes {learner['evaluation']:.0%} of the "
        "time.",
        "checkpoint": "Checkpoints limit the speed: writing them takes "
        f"{learner['checkpoint']:.0%} of the time.",
        "other": "Reports limit the speed: what comes between updates takes "
        f"{learner['other']:.0%} of the time.",
        "update": f"{update}, while the workers wait {workers['waiting']:.0%} of theirs.",
        "turns": f"Taking turns {waits} for the workers, which wait {workers['waiting']:.0%} of "
        "theirs for the update.",
        "sampled": f"Environments {waits.replace('limits', 'limit')}, while the workers step "
        f"{env}) for {workers['stepping']:.0%} of theirs.",
        "made": f"Making environments {waits}, while the workers make {env}) again for "
        f"{workers['making']:.0%} of theirs.",
        "acted": f"Choosing actions {waits}, while the workers act for {workers['acting']:.0%} of "
        f"theirs, for {streams}.",
        "server": f"The inference server {waits}, while the server acts for "
        f"{server['acting']:.0%} of its own on {facts.device}.",
        "answers": f"The way to the inference server {waits}, while the workers wait for actions "
        f"for {workers['acting']:.0%} of theirs; the server acts for {server['acting']:.0%}.",
        "even": f"{whole}: learner and workers hardly wait for each other.",
    }[why]
