"""Several processes at once: the members of a seed group start and end together.

A member is a `child`.  A member's lines are printed with its name in front, and its answer is one
JSON object.  A member stops by itself if its parent has ended.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

from quintet.system import entry
from quintet.system.child import Child
from quintet.system.signals import stop_on_signals

ORPHAN_GRACE_S = 60.0
"""Seconds that a member has for an orderly stop after its parent has ended."""

_POLL_S = 0.05
_READ_BYTES = 65_536


class Member(NamedTuple):
    """A process to start: the name in front of its lines, and its payload."""

    name: str
    payload: bytes


class Outcome(NamedTuple):
    """End of a member.

    status: negative for a signal; None: it was not started.  answer: None if it gave none.
    """

    status: int | None
    answer: dict[str, Any] | None


def run_members(
    module: str, members: Sequence[Member], jobs: int, say: Callable[[str], None]
) -> list[Outcome]:
    """Runs all members, `jobs` at the same time, and returns their outcomes in the same order.

    Ctrl-C and SIGTERM are passed on to the running members, which stop in an orderly way, and no
    others are started.  A second Ctrl-C kills them.  `say` receives every line that they print.
    """
    group = _Group(say)
    waiting = list(enumerate(members))
    running: dict[int, _Process] = {}
    outcomes = [Outcome(None, None)] * len(members)
    with stop_on_signals(group):
        try:
            while running or (waiting and not group.stop_requested):
                while waiting and len(running) < jobs and not group.stop_requested:
                    index, member = waiting.pop(0)
                    running[index] = _Process(module, member, say)
                if group.stop_requested:
                    for process in running.values():
                        process.ask_to_stop()
                for index in [i for i, process in running.items() if process.ended]:
                    outcomes[index] = running.pop(index).outcome()
                time.sleep(_POLL_S)
        finally:
            for process in running.values():
                process.kill()
    return outcomes


@final
class _Group:
    """Records whether the group was asked to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.stop_requested = False
        self._say = say

    def request_stop(self) -> None:
        self.stop_requested = True

    def tell_stopping(self) -> None:
        self._say("stopping: waits for the runs' checkpoints; a second Ctrl-C ends them at once")

    def abandon(self) -> None:
        """Does nothing: the members end with this process."""


@final
class _Process:
    """A running member, in the parent process."""

    def __init__(self, module: str, member: Member, say: Callable[[str], None]) -> None:
        self._asked, self._said = False, b""
        self._answer, theirs = os.pipe()
        os.set_blocking(self._answer, False)
        try:
            self._child = Child(
                member.name, module, lambda line: say(f"[{member.name}] {line}"), [theirs]
            )
        finally:
            os.close(theirs)
        self._child.give(member.payload)

    @property
    def ended(self) -> bool:
        self._read()  # a pipe that is full would keep the process from ending
        return self._child.ended

    def ask_to_stop(self) -> None:
        if not self._asked:
            self._asked = True
            self._child.terminate()

    def kill(self) -> None:
        self._child.kill()
        self.outcome()

    def outcome(self) -> Outcome:
        """Waits for the end of the process; returns its status and answer."""
        status = self._child.wait()
        self._read()
        os.close(self._answer)
        answer = None
        with suppress(ValueError):  # what a process that was killed had begun to say
            answer = json.loads(self._said)
        return Outcome(status, answer)

    def _read(self) -> None:
        """Reads the part of the answer that has arrived."""
        with suppress(BlockingIOError):
            while part := os.read(self._answer, _READ_BYTES):
                self._said += part


# The member's side


def attach() -> bytes:
    """Returns the payload of a member, which from then on ends with its parent.  SIGTERM and SIGINT
    end it at once, with status 130, until it handles them itself.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    return entry.receive(_end_in_good_order)


def answer(content: dict[str, Any]) -> None:
    """Sends the member's answer to the parent, at most once."""
    with open(int(sys.argv[1]), "w") as pipe:
        json.dump(content, pipe)


def _end_in_good_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(130)
