"""Default numbers of groups and threads of environments that step in threads."""

from typing import Literal

from quintet.system.cpus import usable_cores

Cost = Literal["cheap", "simulator", "pictures"]
"""cheap: a step takes less than passing it to another thread. pictures: observations are pictures,
for which networks take threads too.
"""


def num_groups(cost: Cost) -> int:
    """Pools that take turns: one steps while the actions for the other are computed.

    Simulators get two.  Cheap environments get one, since passing a step to another thread costs
    more than the step.  So do pictures on fewer than four cores, where the threads of networks and
    pools hinder each other (measured: 370 us per env_step with one pool of Pong, 490 with two).
    """
    return 1 if cost == "cheap" or (cost == "pictures" and usable_cores() < 4) else 2


def num_threads(cost: Cost, num_streams: int, pools: int = 1, cores: int | None = None) -> int:
    """Threads of each of `pools` pools; the number does not change results.

    Cheap environments get one thread. Pools of simulators and pictures get the cores divided by
    `pools`, at most one thread per stream. On two cores with two pools of 4, 8 or 32 streams, one
    thread was faster than two, or as fast within the noise, for every family measured.
    """
    if cost == "cheap":
        return 1
    return max(1, min((cores or usable_cores()) // pools, num_streams))
