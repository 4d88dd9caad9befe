"""Bounds of numeric options.

Every number has a least and a greatest value: a value far beyond any use is a typing error, and
would end in an overflow, a crash of a library, or an endless computation. Whether values within the
bounds fit into this machine's memory is checked before the allocation
(`quintet.system.memory.require`).
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

MOST_STEPS = 10**15
"""Largest number of env_steps and versions, which are exact in the float64 of reports."""

MOST_ROWS = 10**9
"""Largest number of rows of a batch or a minibatch."""

MOST_UNROLL = 100_000
"""Most steps of an unroll; each step has its own views, made at the start."""

MOST_STREAMS = 10**6
"""Most environments that step at the same time."""

MOST_THREADS = 256
"""Most threads of one process."""

MOST_TASKS = 1024
"""Most processes of a run, and policies of a population."""

MOST_UNITS = 10**6
"""Width of a layer."""

MOST_LAYERS = 1000
"""Layers of a network."""

MOST_COUNT = 10**6
"""Largest value of other counts."""

MOST_SECONDS = 10**6
"""Longest wait in seconds; the system counts its milliseconds in 32 bits."""

LARGEST = 1e30
"""Largest number that is converted to float32, which holds numbers up to 3.4e38."""

Bounded = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
"""A number that float32 can hold."""

Positive = Annotated[float, Gt(0), Le(LARGEST)]
NotNegative = Annotated[float, Ge(0), Le(LARGEST)]
Fraction = Annotated[float, Ge(0), Le(1)]
Below1 = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Le(1)]
Factor = Annotated[float, Ge(1), Le(LARGEST)]
Seconds = Annotated[float, Gt(0), Le(MOST_SECONDS)]
LongWait = Annotated[float, Ge(1), Le(MOST_SECONDS)]

StepsFrom0 = Annotated[int, Ge(0), Le(MOST_STEPS)]
CountFrom0 = Annotated[int, Ge(0), Le(MOST_COUNT)]
Steps = Annotated[int, Ge(1), Le(MOST_STEPS)]
Rows = Annotated[int, Ge(1), Le(MOST_ROWS)]
EpisodeSteps = Annotated[int, Ge(1), Le(10**9)]
Unroll = Annotated[int, Ge(1), Le(MOST_UNROLL)]
Count = Annotated[int, Ge(1), Le(MOST_COUNT)]
Streams = Annotated[int, Ge(1), Le(MOST_STREAMS)]
Threads = Annotated[int, Ge(1), Le(MOST_THREADS)]
Tasks = Annotated[int, Ge(1), Le(MOST_TASKS)]
Layers = Annotated[int, Ge(1), Le(MOST_LAYERS)]
Width = Annotated[int, Ge(1), Le(MOST_UNITS)]
"""Whole numbers, from 1 on unless a name says otherwise."""
