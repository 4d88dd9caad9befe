"""Several processes at once: the members of a seed group start and end together.

A member is a `child`.  A member's lines are printed with its name in front, and its answer is one
JSON object.  A member stops by itself if its parent has ended.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from quintet.system import entry
from quintet.system.child import Child
from quintet.system.files import advice, reason
from quintet.system.inside import ORPHAN_GRACE_S
from quintet.system.signals import Ended, StopRequest, stop_on_signals

_POLL_S = 0.05


BLAMELESS = "blameless"
"""Key of an answer with an error that is no fault of the member: a full disk, a process or node
that there is not."""


class Member(NamedTuple):
    """A process to start: the name in front of its lines, its payload, the folder in which it
    trains, and the seconds after which it is killed.
    """

    name: str
    payload: bytes
    folder: Path | None = None
    most_s: float = inf


class Outcome(NamedTuple):
    """End of a member.

    status: negative for a signal; None: it was not started.  answer: None if it gave none.
    late: whether it was killed since its time was over.
    """

    status: int | None
    answer: dict[str, Any] | None
    late: bool = False

    @property
    def by_signal(self) -> bool:
        """Whether the user's signal ended the process, or it was not started."""
        stopped = (self.answer or {}).get("status") == "stopped"
        return stopped or (self.answer is None and self.status in (None, 130, -signal.SIGTERM))


def run_members(
    module: str,
    members: Sequence[Member],
    jobs: int,
    say: Callable[[str], None],
    preload: Sequence[str] = (),
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Runs all members, `jobs` at the same time, and returns their outcomes in the same order.

    Ctrl-C and SIGTERM are passed on to the running members, which stop in an orderly way, and no
    others are started.  A second Ctrl-C kills them.  `say` receives every line that they print.
    `preload`: see `Child`.  `stop`: tells a caller whether the user stopped the group, also where
    all members had ended by then; None: one that `say` receives.
    """
    stop = stop_request(say) if stop is None else stop
    waiting = list(enumerate(members))
    running: dict[int, Child] = {}
    ends_at: dict[int, float] = {}
    late = set[int]()
    outcomes = [Outcome(None, None)] * len(members)
    asked = False
    with ExitStack() as ends, stop_on_signals(stop):
        answers = [ends.enter_context(TemporaryFile()) for _ in members]
        try:
            while running or (waiting and not stop.made):
                while waiting and len(running) < jobs and not stop.made:
                    index, member = waiting.pop(0)
                    file = answers[index].fileno()
                    try:
                        running[index] = begun(module, member, file, say, preload)
                    except OSError as fault:  # the others go on
                        outcomes[index] = cannot_begin(fault)
                        continue
                    ends_at[index] = time.monotonic() + member.most_s
                if stop.made and not asked:
                    asked = True
                    for child in running.values():
                        child.terminate()
                for index, child in running.items():
                    if time.monotonic() > ends_at[index]:
                        child.kill()
                        late.add(index)
                for index in [i for i, child in running.items() if child.ended]:
                    status, said = running.pop(index).wait(), answer_in(answers[index])
                    outcomes[index] = Outcome(status, said, index in late)
                time.sleep(_POLL_S)
        finally:
            for child in running.values():
                child.kill()
                child.wait()
    return outcomes


def stop_request(say: Callable[[str], None]) -> StopRequest:
    """The request to stop a group."""
    return StopRequest(
        lambda: say("stopping: waits for the runs' checkpoints; a second Ctrl-C ends them at once")
    )


def begun(
    module: str,
    member: Member,
    answer: int,
    say: Callable[[str], None],
    preload: Sequence[str] = (),
) -> Child:
    """The process of a member, which writes its answer to `answer`; preload: see `Child`."""
    tell = partial(_told, say, member.name)
    if preload:
        child = Child(member.name, module, tell, [answer], preload=preload)
    else:
        child = Child(member.name, module, tell, [answer])
    child.give(member.payload)
    return child


def cannot_begin(fault: OSError) -> Outcome:
    """The end of a member whose process the system refused to start."""
    said = f"its process can't be started: {reason(fault)}; {advice(fault)}"
    return Outcome(1, {"error": said, BLAMELESS: True})


def _told(say: Callable[[str], None], name: str, line: str) -> None:
    say(f"[{name}] {line}")


def answer_in(file: IO[bytes]) -> dict[str, Any] | None:
    """A member's answer; None if it gave none, or was killed while it wrote."""
    file.seek(0)
    with suppress(ValueError):
        answer: dict[str, Any] = json.load(file)
        return answer
    return None


# The member's side


def attach() -> bytes:
    """Returns the payload of a member, which from then on ends with its parent.  SIGTERM and SIGINT
    end it at once, with status 130, until it handles them itself.
    """

    def end(*_: object) -> None:
        raise Ended(130)  # and no plain exit, which would be taken for one of users' code

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return entry.receive(_end_in_good_order)


def answer(file: int, content: dict[str, Any]) -> None:
    """Sends the member's answer to the parent, at most once; `file` is its first argument."""
    with open(file, "w") as opened:
        json.dump(content, opened)


def _end_in_good_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(130)
