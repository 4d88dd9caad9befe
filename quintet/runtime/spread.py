"""Environments in Python: stepped by this process, or by several if that is faster."""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter, process_time
from typing import TYPE_CHECKING, NamedTuple, Self, final

import psutil

from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import (
    Array,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    VectorEnv,
    allocate_obs,
    allocate_row,
)
from quintet.errors import QuintetError
from quintet.system.core_time import own_delay_s
from quintet.system.cpus import usable_cores
from quintet.system.memory import free_bytes
from quintet.types import Spaces

if TYPE_CHECKING:
    from quintet.runtime.processes.stepped import SteppedEnv

MOST_PROCESSES = 64
"""Most processes for environments that mostly wait, whatever the number of cores."""

_MESSAGES_S, _EACH_S = 150e-6, 110e-6
"""Seconds for the messages of a row, and additional seconds per process
(benchmarks/stepping.py)."""

_PROCESS_BYTES = 64 << 20
"""Memory of a process without its environments."""

_ROWS = 2  # that are measured, as what an environment needs may be made in its first step


class StepCost(NamedTuple):
    """Cost of a step of one environment.

    computes: whether the process computes for most of that time instead of waiting.
    memory_bytes: memory of the environment.
    """

    seconds: float
    computes: bool
    memory_bytes: int = 0


@final
class _Clocks(NamedTuple):
    """This thread's time in the run queue, CPU time of this process, and wall time, in seconds."""

    delayed_s: float
    busy_s: float
    wall_s: float

    @classmethod
    def at_begin(cls) -> Self:
        """Reads what is subtracted first: if the thread loses its core between two readings, the
        step seems to have slept for less, and not for more."""
        return cls(own_delay_s(), process_time(), perf_counter())

    @classmethod
    def at_end(cls) -> Self:
        wall_s, busy_s = perf_counter(), process_time()
        return cls(own_delay_s(), busy_s, wall_s)

    def cost_since(self, begin: "_Clocks", num_streams: int) -> StepCost:
        """The cost of a step of each stream since `begin`, without the effect of other load.

        Its memory is at most this process's.
        """
        delayed_s, busy_s, wall_s = (now - then for now, then in zip(self, begin, strict=True))
        slept_s = max(0.0, wall_s - busy_s - delayed_s)
        memory_bytes = int(psutil.Process().memory_info().rss)
        each_s = (busy_s + slept_s) / num_streams
        return StepCost(each_s, busy_s > slept_s, memory_bytes // num_streams)


def best_num_processes(cost: StepCost, num_streams: int, cores: int, free: float) -> int:
    """Number of processes that step `num_streams` such environments fastest; 1: only this process.

    One per core if steps compute, one per stream if they wait, up to MOST_PROCESSES and to half of
    the `free` bytes; 1 if the processes' messages would cost half of the gain.
    """
    room = int(free / 2 / (_PROCESS_BYTES + cost.memory_bytes))
    count = max(1, min(num_streams, cores if cost.computes else MOST_PROCESSES, room))
    saved_s = cost.seconds * (num_streams - -(-num_streams // count))
    return count if saved_s > 2 * (_MESSAGES_S + _EACH_S * count) else 1


class Spreading(NamedTuple):
    """Options for stepping a group of environments.

    first_stream: number of its first environment in the run.
    num_groups: number of groups that share the cores and the configured processes.
    timeout_s: longest time of a step of one stream in another process.
    device: device of tensors, for environments that have some.
    """

    first_stream: int = 0
    num_groups: int = 1
    timeout_s: float = 60.0
    device: str = "cpu"


def make_streams(env: ResolvedEnv, num_streams: int, how: Spreading) -> VectorEnv:
    """Makes the environments of one group, which other processes may step."""
    made = make_group_env(env, num_streams, first_stream=how.first_stream, device=how.device)
    if num_streams == 1 or env.config.num_processes == 1 or not env.can_be_spread:
        return made
    return SpreadEnv(env, made, how)


@final
class SpreadEnv:
    """B environments that this process has made and, where that is faster, others step from the
    third row on.

    The others take the same seeds and first actions; what they give must be what was seen before,
    byte for byte, else they are not used.  So the number of processes is no part of a result, where
    an environment depends on its own seed and actions alone.
    """

    def __init__(self, env: ResolvedEnv, made: VectorEnv, how: Spreading):
        """made: the environments, in this process."""
        self.num_streams, self.num_processes = made.num_streams, 1
        self.spaces: Spaces = made.spaces
        self.description: EnvDescription = made.description
        self._source, self._env, self._how = env, made, how
        self._stepped: "SteppedEnv | None" = None  # in other processes; perhaps they don't step yet
        self._judging = True
        # Once it is decided who steps, these are the methods of the environments that step.
        self.send: Callable[[Array], None] = self._send
        self.recv: Callable[[StepRow], None] = self._recv
        self._seeds: Sequence[int] = ()
        self._actions: list[Array] = []
        self._seen: list[list[bytes]] = []  # of the first observations, and of rows
        self._say: Callable[[str], None] = lambda _: None
        self._tell: tuple[Callable[[str], None], Callable[[str], None]] = print, self._say

    def tell(
        self,
        say: Callable[[str], None],
        notice: Callable[[str], None],
        who: Callable[[str], None] | None = None,
    ) -> None:
        """Sets receivers, before the first restart: `say` receives other processes' output,
        `notice` the reason for a long wait, and `who` (None: `say`) which processes step.
        """
        self._say, self._tell = who or say, (say, notice)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        wanted = self._source.config.num_processes
        if self._judging and wanted is not None:
            count = min(wanted // self._how.num_groups, self.num_streams)
            if count > 1:
                self._take(self._others(count), "--env.num-processes asks for them")
            self._decided()
        self._env.restart(seeds, out)
        if self._judging:
            self._seeds, self._actions, self._seen = list(seeds), [], [_bytes(out)]

    def _send(self, action: Array) -> None:
        self._actions.append(action.copy())
        self._env.send(action)

    def _recv(self, out: StepRow) -> None:
        begin = _Clocks.at_begin()
        self._env.recv(out)
        took = _Clocks.at_end()
        self._seen.append(_row_bytes(out))
        cost = took.cost_since(begin, self.num_streams)
        groups = self._how.num_groups
        count = best_num_processes(
            cost, self.num_streams, max(1, usable_cores() // groups), free_bytes() / groups
        )
        if count > 1 and len(self._actions) < _ROWS:
            from quintet.runtime.processes.process import prepare

            prepare()
            return
        if count > 1:
            self._move(count, f"a step takes {1000 * cost.seconds:.3g} ms")
        self._decided()

    def _decided(self) -> None:
        self._judging, self._actions, self._seen = False, [], []
        self.send, self.recv = self._env.send, self._env.recv

    def render(self, stream: int) -> Rendered:
        return self._env.render(stream)

    def kill(self) -> None:
        """Ends the processes at once, from any thread; `close` does the rest."""
        if self._stepped is not None:
            self._stepped.kill()

    def close(self) -> None:
        self._env.close()

    def _move(self, count: int, why: str) -> None:
        """Lets `count` processes step from here on, if they reproduce the rows so far."""
        fault = "in another process the same seed gives other observations"
        try:
            self._stepped = self._others(count)
            if self._sees_the_same(self._stepped):
                self._take(self._stepped, why)
                return
        except (QuintetError, OSError) as error:  # OSError: the system allows no more processes
            fault = str(error)
        finally:
            if self._stepped is not None and self._env is not self._stepped:
                self._stepped.close()
                self._stepped = None
        self._say(f"this process steps the environments one by one, though {why}: {fault}")

    def _others(self, count: int) -> "SteppedEnv":
        from quintet.runtime.processes.stepped import SteppedEnv

        first_stream, timeout_s = self._how.first_stream, self._how.timeout_s
        stepped = SteppedEnv(
            self._source, self._env, count, first_stream=first_stream, timeout_s=timeout_s
        )
        stepped.tell(*self._tell)
        return stepped

    def _take(self, stepped: "SteppedEnv", why: str) -> None:
        self._env.close()
        self._env = self._stepped = stepped
        self.num_processes = stepped.num_processes
        self._say(f"{self.num_processes} processes step the environments: {why}")

    def _sees_the_same(self, stepped: "SteppedEnv") -> bool:
        """Lets processes repeat the rows so far, and compares."""
        obs = allocate_obs(self.spaces.observation, (self.num_streams,))
        row = allocate_row(self.spaces.observation, self.num_streams)
        stepped.restart(self._seeds, obs)
        same = _bytes(obs) == self._seen[0]
        for action, seen in zip(self._actions, self._seen[1:], strict=True):
            stepped.send(action)
            stepped.recv(row)
            same = same and _row_bytes(row) == seen
        return same


def spread_envs(envs: Iterable[VectorEnv]) -> list[SpreadEnv]:
    """Selects the environments that other processes may step."""
    return [env for env in envs if isinstance(env, SpreadEnv)]


def _bytes(obs: ObsArrays, *rest: Array) -> list[bytes]:
    return [x.tobytes() for x in (*(obs[name] for name in sorted(obs)), *rest)]


def _row_bytes(row: StepRow) -> list[bytes]:
    return _bytes(row.obs, row.raw_reward, row.terminated, row.truncated, row.valid)
