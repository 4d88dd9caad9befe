"""Environments in Python: stepped by this process, or by several if that is faster.

Which is faster depends on the environments, on the machine and on what else it does, so both ways
are timed on the run's own first rows.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import numpy as np
import psutil

from quintet.envs.make import make_group_env, tell
from quintet.envs.own_state import Keeper, keeper, own_of
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
from quintet.envs.wrappers import tasks_of
from quintet.errors import EnvironmentFault, QuintetError
from quintet.jobs.silence import own_delay_s
from quintet.system import printing
from quintet.system.cpus import usable_cores
from quintet.system.memory import free_bytes
from quintet.types import Spaces

if TYPE_CHECKING:
    from quintet.runtime.processes.stepped import SteppedEnv

MOST_PROCESSES = 64
"""Most processes for environments that mostly wait, whatever the number of cores."""

_MESSAGES_S, _EACH_S = 110e-6, 65e-6
"""Seconds for the messages of a row, and additional seconds per process, on a quiet machine
(benchmarks/stepping.py)."""

_PROCESS_BYTES = 64 << 20
"""Memory of a process without its environments."""

_LEAST_GAIN = 0.1
"""Fraction of a row's time that processes must promise to save to be tried."""

_WORTH_S = 0.5
"""Seconds that they would have saved so far when they are tried: about what it costs to begin."""

_ROWS = 20
"""Rows after which environments stay if processes promise too little."""

_BLOCK_S, _MOST_S = 0.15, 8.0
"""Seconds of rows that are timed together; seconds after which the faster way so far is taken."""

_CERTAIN = 3.0
"""Times the speed at which a way is taken as soon as others have caught up."""

_LEAST_S = 1.0
"""Seconds in which others must be so much slower to be given up while they catch up."""

_BEGIN_S = 60.0
"""Seconds of rows for which others may take to begin."""


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
        """The cost of one step of every stream, which were taken since `begin`, without the effect
        of other load.  Its memory is a bound: all of this process, in equal shares.
        """
        delayed_s, busy_s, wall_s = (now - then for now, then in zip(self, begin, strict=True))
        slept_s = max(0.0, wall_s - busy_s - delayed_s)
        memory_bytes = int(psutil.Process().memory_info().rss)
        each_s = (busy_s + slept_s) / num_streams
        return StepCost(each_s, busy_s > slept_s, memory_bytes // num_streams)


def best_num_processes(cost: StepCost, num_streams: int, cores: int, free: float) -> int:
    """Number of processes likely to step `num_streams` environments of this cost fastest; 1: only
    this process.

    One per core if steps compute, one per stream if they wait, up to MOST_PROCESSES and to half of
    the `free` bytes; 1 if they promise too little.
    """
    room = free / 2 / (_PROCESS_BYTES + cost.memory_bytes)
    count = max(1, int(min(num_streams, cores if cost.computes else MOST_PROCESSES, room)))
    promised_s = saved_s(cost, num_streams, count)
    return count if promised_s > _LEAST_GAIN * cost.seconds * num_streams else 1


def saved_s(cost: StepCost, num_streams: int, count: int) -> float:
    """Seconds that `count` processes save in a row, on a quiet machine."""
    spared = num_streams - -(-num_streams // count)
    return cost.seconds * spared - (_MESSAGES_S + _EACH_S * count)


def several_faster(alone_s: Sequence[float], several_s: Sequence[float]) -> bool | None:
    """Whether several processes are faster, from the seconds of blocks of equally many rows by
    either way; None: not clear yet.

    Clear is a difference far beyond its standard error, or one that is certainly small.
    """
    count = len(alone_s)
    if count < 3:
        return None
    alone, several = np.array(alone_s), np.array(several_s)
    gain = float((alone - several).mean())
    error = (3.0 + 12.0 / count) * float((alone - several).std(ddof=1)) / count**0.5
    small = 0.07 * float(min(alone.mean(), several.mean()))
    clear = abs(gain) > error or abs(gain) + error < small
    return gain > 0 if clear or alone.sum() + several.sum() > _MOST_S else None


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
    """B environments that this process has made and steps, until others do where that is faster.

    Others make the same environments and repeat all that has happened.  Then both ways step the
    run's rows in turns, block by block, with the policy's acts between, and who has not stepped a
    block repeats it.  What a way gives must be what was seen, byte for byte, else it is not used.
    So the number of processes is no part of a result, where an environment depends on its own seed
    and actions alone; and no state of an environment is lost, as both have lived through the same.
    """

    def __init__(self, env: ResolvedEnv, made: VectorEnv, how: Spreading):
        """made: the environments, in this process."""
        self.num_streams, self.num_processes = made.num_streams, 1
        self.spaces: Spaces = made.spaces
        self.description: EnvDescription = made.description
        self._source, self._env, self._how = env, made, how
        self._others: "_Others | None" = None  # processes that follow, or step
        self._judging = True
        # Once it is decided who steps, these are the methods of the environments that step.
        self.send: Callable[[Array], None] = self._send
        self.recv: Callable[[StepRow], None] = self._recv
        self._action: Array | None = None
        self._states: list[bytes] | None = None  # the environments before the first restart
        self._history: list[_Event] = []  # events that the way which does not step has not repeated
        self._rows, self._cost, self._waiting_s = 0, StepCost(0.0, True), 0.0
        self._cores = max(1, usable_cores() // how.num_groups)
        self._alone: VectorEnv = made
        self._alone_s: list[float] = []  # blocks of rows by the run's process
        self._several_s: list[float] = []  # blocks of as many rows by others
        self._block_rows, self._last_rows = 0, 0  # rows of this block and of the one before
        self._note: Callable[[str], None] = lambda _: None
        self._tell: tuple[Callable[[str], None], Callable[[str], None]] = printing.say, self._note

    def tell(
        self,
        say: Callable[[str], None],
        notice: Callable[[str], None],
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sets receivers, before the first restart: `say` receives other processes' output,
        `notice` the reason for a long wait, and `note` which processes step, and why.
        """
        self._note, self._tell = note, (say, notice)

    @property
    def own(self) -> Keeper | None:
        """Access to the state of the environments, whoever steps them."""
        return own_of(self._env)

    @property
    def tasks(self) -> Any:
        """Access to the options of resets, whoever makes them."""
        return tasks_of(self._env)

    def set_task(self, text: bytes) -> None:
        """Tells the environments something, see `quintet.envs.tasks`, whoever steps them."""
        self._do(lambda env: tell(env, text))
        if self._judging:
            self._history.append(_Event(text, b""))

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Restarts the streams; the first restart begins the processes that were asked for."""
        first = all(isinstance(each.given, bytes) for each in self._history)
        if self._judging and first and (own := keeper(self._env)) is not None:
            self._states = own.save()
        processes = self._source.config.num_processes
        if self._judging and processes is not None:
            count = min(processes // self._how.num_groups, self.num_streams)
            if count > 1:
                self._others = self._make_others(count)
                self._others.begin()
                for _ in _repeat(self._others.env, self._history):
                    pass
                self._take("--env.num-processes asks for them")
            else:
                self._decided()
        self._do(lambda env: env.restart(seeds, out))
        if self._judging:
            self._history.append(_Event(list(seeds), _digest(out)))

    def _send(self, action: Array) -> None:
        self._action = action.copy()

    def _recv(self, out: StepRow) -> None:
        """Receives a row, measures it, and compares it with that of the processes on trial."""
        action = self._action
        assert action is not None

        def step(env: VectorEnv) -> None:
            env.send(action)
            env.recv(out)

        begin = _Clocks.at_begin()
        self._do(step)
        took = _Clocks.at_end()
        if not self._judging:
            return
        seconds = took.wall_s - begin.wall_s
        self._history.append(_Event(action, _row_digest(out), seconds))
        self._rows, self._block_rows = self._rows + 1, self._block_rows + 1
        if self._others is None:
            self._consider(took.cost_since(begin, self.num_streams))
            return
        self._waiting_s += seconds
        if self._others.begun or self._others.env.can_begin:
            with self._unless_they_differ():
                (self._compare if self._others.begun else self._catch_up)(self._others)
        elif self._waiting_s > _BEGIN_S:
            self._stay(f"other processes were not ready after {_BEGIN_S:g} s of steps")

    def _do(self, call: Callable[[VectorEnv], None]) -> None:
        """Lets the environments that step do something; this process goes on if others fail."""
        try:
            call(self._env)
        except (QuintetError, OSError) as error:
            if self._env is self._alone or not self._judging:
                raise
            try:
                self._switch()
            except QuintetError:  # nobody can go on from what the run has seen
                raise error from None
            self._stay(str(error))
            call(self._env)

    def _consider(self, cost: StepCost) -> None:
        """Tries others once they would have saved what it costs to begin them."""
        if self._rows == 1:  # an environment may make what it needs in its first step
            return
        rows, streams, groups = self._rows - 1, self.num_streams, self._how.num_groups
        seconds = self._cost.seconds + (cost.seconds - self._cost.seconds) / rows
        self._cost = cost = cost._replace(seconds=seconds)
        count = best_num_processes(cost, streams, self._cores, math.inf)
        if count > 1:  # the free memory takes longer to read than a light step
            count = best_num_processes(cost, streams, self._cores, free_bytes() / groups)
        if count > 1 and rows == 1:
            from quintet.runtime.processes.process import prepare

            prepare()
        if count == 1 and rows >= _ROWS - 1:
            self._decided()
        elif count > 1 and rows * saved_s(cost, streams, count) > _WORTH_S:
            with self._unless_they_differ():
                self._others = self._make_others(count)
                self._others.env.launch()

    def _catch_up(self, others: "_Others") -> None:
        """Lets others repeat the rows so far.  Decides if one way takes a multiple of the time."""
        others.begin()
        alone_s = several_s = 0.0
        for alone, several in _repeat(others.env, self._history):
            alone_s, several_s = alone_s + alone, several_s + several
            if several_s > max(_LEAST_S, _CERTAIN * alone_s):
                break
        self._waiting_s, self._block_rows = 0.0, 0
        why = _same_rows(alone_s, several_s, others)
        if alone_s > _CERTAIN * several_s:
            self._take(why)
        elif several_s > max(_LEAST_S, _CERTAIN * alone_s):
            self._stay(why)

    def _compare(self, others: "_Others") -> None:
        """At the end of a block: decides if it is clear who is faster, else the other way steps."""
        alone = self._env is self._alone
        if self._waiting_s < _BLOCK_S if alone else self._block_rows < self._last_rows:
            return
        (self._alone_s if alone else self._several_s).append(self._waiting_s)
        self._waiting_s, self._block_rows, self._last_rows = 0.0, 0, self._block_rows
        faster = None if alone else several_faster(self._alone_s, self._several_s)
        why = _same_rows(sum(self._alone_s), sum(self._several_s), others)
        if faster:
            self._take(why)
            return
        self._switch()
        if faster is not None:
            self._stay(why)

    def _switch(self) -> None:
        """Lets the other way repeat what it has not lived through, and step from here on."""
        assert self._others is not None
        other = self._others.env if self._env is self._alone else self._alone
        for _ in _repeat(other, self._history):
            pass
        self._env = other

    def _decided(self) -> None:
        self._judging, self._history = False, []
        self.send, self.recv = self._env.send, self._env.recv

    def render(self, stream: int) -> Rendered:
        if self._judging and self._env is not self._alone:
            self._switch()
            self._waiting_s, self._block_rows = 0.0, 0
            self._alone_s.pop()  # the block of the others is cut
        return self._env.render(stream)

    def kill(self) -> None:
        """Ends the processes at once, from any thread; `close` does the rest."""
        if (others := self._others) is not None:
            others.env.kill()

    def close(self) -> None:
        if self._others is not None:
            self._others.env.close()
        self._alone.close()

    @contextmanager
    def _unless_they_differ(self) -> Iterator[None]:
        """Lets the way that steps go on if the other one fails, or sees something else."""
        try:
            yield
        except (QuintetError, OSError) as error:  # OSError: the system allows no more processes
            if self._env is self._alone:
                ms = 1000 * self._cost.seconds
                self._stay(f"a step takes {ms:.3g} ms, but others could not step: {error}")
            else:
                self._take(str(error))

    def _make_others(self, count: int) -> "_Others":
        """The `count` processes on trial, which are not begun yet."""
        from quintet.runtime.processes.stepped import SteppedEnv

        first_stream, timeout_s = self._how.first_stream, self._how.timeout_s
        stepped = SteppedEnv(
            self._source, self._env, count, first_stream=first_stream, timeout_s=timeout_s
        )
        stepped.tell(*self._tell)
        return _Others(stepped, self._states)

    def _take(self, why: str) -> None:
        """Lets others step from here on."""
        assert self._others is not None
        self._alone.close()
        self._env = self._alone = self._others.env
        self.num_processes = self._others.env.num_processes
        self._note(f"{self.num_processes} processes step the environments: {why}")
        self._decided()

    def _stay(self, why: str) -> None:
        others, self._others = self._others, None
        if others is not None:
            others.env.close()
        self._note(f"this process steps the environments one by one: {why}")
        self._decided()


class _Event(NamedTuple):
    """A restart with seeds, a row with its actions, or a text for `set_task`, and a digest of what
    was seen.
    """

    given: list[int] | Array | bytes
    seen: bytes
    seconds: float = 0.0


@final
class _Others:
    """The same environments in other processes."""

    def __init__(self, env: "SteppedEnv", states: Sequence[bytes] | None):
        """states: of the environments before the first restart."""
        self.env, self._states = env, states
        self.begun = False

    def begin(self) -> None:
        """Loads the states, if there are some, into the environments before their first restart."""
        self.begun = True
        if self._states is not None:
            self.env.own.load(self._states)
            self._states = None


def _repeat(env: VectorEnv, history: list[_Event]) -> Iterator[tuple[float, float]]:
    """Steps through `history` and empties it.  Yields the seconds of each row there and here.

    Raises EnvironmentFault if something else is seen.
    """
    obs = allocate_obs(env.spaces.observation, (env.num_streams,))
    row = allocate_row(env.spaces.observation, env.num_streams)
    for given, seen, seconds in history:
        begin_s = perf_counter()
        if isinstance(given, bytes):
            tell(env, given)
            found = seen
        elif isinstance(given, list):
            env.restart(given, obs)
            found = _digest(obs)
        else:
            env.send(given)
            env.recv(row)
            yield seconds, perf_counter() - begin_s
            found = _row_digest(row)
        if found != seen:
            raise EnvironmentFault("another process got other observations from the same seed")
    history.clear()


def _same_rows(alone_s: float, several_s: float, others: _Others) -> str:
    count = others.env.num_processes
    return f"equally many rows took {alone_s:.3g} s in one and {several_s:.3g} s in {count}"


def spread_envs(envs: Iterable[VectorEnv]) -> list[SpreadEnv]:
    """Selects the environments that other processes may step."""
    return [env for env in envs if isinstance(env, SpreadEnv)]


def _digest(obs: ObsArrays, *rest: Array) -> bytes:
    found = blake2b(digest_size=16)
    for x in (*(obs[name] for name in sorted(obs)), *rest):
        found.update(np.ascontiguousarray(x).data)
    return found.digest()


def _row_digest(row: StepRow) -> bytes:
    return _digest(row.obs, row.raw_reward, row.terminated, row.truncated, row.valid)
