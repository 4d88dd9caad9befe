"""Messages between the learner and a node.

The first message to a node is its `Work`; its answer is None, or a text that says why it can't do
the work.  `Stop` ends a node.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from quintet.runtime.processes.messages import Failed

TOKEN_BYTES = 32
"""A node sends first the token that it got through Ray; before it nothing is unpickled."""


class Of(NamedTuple):
    """A message to a worker of a node (`Start`, `Fill`, `More`, `Restart`, `Stop`) or from it
    (`Ready`, `Full`, whose slots' bytes follow, `Paused`, `Ended`).
    """

    worker: int
    message: tuple[Any, ...]


class Start(NamedTuple):
    """Starts a worker."""


class Ended(NamedTuple):
    """A worker ended, having executed this many env_steps in its unfinished unrolls."""

    failed: Failed
    executed: int


class Published(NamedTuple):
    """A publication, whose tensors follow."""

    policy: int
    version: int


class Said(NamedTuple):
    """A line that a worker printed."""

    line: str


class Beat(NamedTuple):
    """A sign of life: rows of workers and their activities, and shares of their time since the last
    one, by name.
    """

    rows: Mapping[str, tuple[int, str]]
    shares: Mapping[str, float]
