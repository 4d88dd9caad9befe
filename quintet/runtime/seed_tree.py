"""One tree of seeds: every random number of a run depends on (seed, role, index, iteration), never
on time, process id or order of events.
"""

from enum import IntEnum

import numpy as np


class Role(IntEnum):
    """The user of random numbers; the first key below the run's seed."""

    LEARNER = 0
    ENVIRONMENT = 1
    NOISE = 2
    REPLAY = 3
    POPULATION = 4
    OPPONENT = 5


def _node(seed: int, role: Role, index: int, iteration: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(role), index, iteration))


def generator_seed(seed: int, role: Role, index: int, iteration: int = 0) -> int:
    """A 63-bit seed for one generator."""
    return int(_node(seed, role, index, iteration).generate_state(1, np.uint64)[0]) >> 1


def group_seeds(seed: int, group: int, iteration: int, count: int) -> tuple[list[int], int]:
    """A 31-bit seed for each environment of a group that restarts at `iteration`, and the seed of
    its noise.
    """
    state = _node(seed, Role.ENVIRONMENT, group, iteration).generate_state(count, np.uint32)
    return [int(x) >> 1 for x in state], generator_seed(seed, Role.NOISE, group, iteration)
