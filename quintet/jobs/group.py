"""Several jobs at once, which start and end together, and single ones."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from quintet.jobs.job import Handle, Job, Outcome, Place
from quintet.jobs.local import LocalPlace, cannot_begin
from quintet.system.signals import StopRequest, stop_on_signals

_POLL_S = 0.05
_POLL_ONE_S = 0.01


def run_all(
    jobs: Sequence[Job],
    at_once: int,
    say: Callable[[str], None],
    place: Place | None = None,
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Runs all jobs, `at_once` at the same time, and returns their outcomes in the same order.

    Ctrl-C and SIGTERM are passed on to the running jobs, which stop in an orderly way, and no
    others are started.  A second Ctrl-C kills them.

    say: receives every line that they print, with the name of the job in front.
    place: where they run; None: in processes of this machine.
    stop: tells a caller whether the user stopped the group, also where all jobs had ended by then;
        None: one that `say` receives.
    """
    place = LocalPlace() if place is None else place
    stop = stop_request(say) if stop is None else stop
    waiting = list(enumerate(jobs))
    running: dict[int, Handle] = {}
    outcomes = [Outcome(None, None)] * len(jobs)
    passed_on = False
    with stop_on_signals(stop):
        try:
            while running or (waiting and not stop.made):
                while waiting and len(running) < at_once and not stop.made:
                    index, job = waiting.pop(0)
                    try:
                        running[index] = place.start(job, partial(_named, say, job.name))
                    except OSError as fault:  # the others go on
                        outcomes[index] = cannot_begin(fault)
                if stop.made and not passed_on:
                    passed_on = True
                    for each in running.values():
                        each.stop()
                for index, each in list(running.items()):
                    outcome = each.outcome()
                    if outcome is not None:
                        outcomes[index] = outcome
                        del running[index]
                time.sleep(_POLL_S)
        finally:
            for each in running.values():
                each.kill()
    return outcomes


def run_one(job: Job, say: Callable[[str], None]) -> Outcome:
    """Runs a job in a process of this machine; an exception in this thread, such as Ctrl-C, kills
    it.

    say: receives every line that it prints.
    """
    handle = LocalPlace().start(job, say)
    try:
        while (outcome := handle.outcome()) is None:
            time.sleep(_POLL_ONE_S)
    finally:
        handle.kill()
    return outcome


def stop_request(say: Callable[[str], None]) -> StopRequest:
    """The request to stop a group."""
    return StopRequest(
        lambda: say("stopping: waits for the runs' checkpoints; a second Ctrl-C ends them at once")
    )


def _named(say: Callable[[str], None], name: str, line: str) -> None:
    say(f"[{name}] {line}")
