"""Unrolls of environments whose tensors stay on their device: rows are written, checked and
measured there, and the host waits once per unroll, for what it must know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.envs.masks import allows_none, require_plain
from quintet.envs.tensor import TensorVectorEnv
from quintet.envs.tensors_as_arrays import NextStep
from quintet.envs.vector import check_finite
from quintet.errors import QuintetError
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import Episode
from quintet.runtime.slots import RowSpecs, rollout_of, slot_specs
from quintet.runtime.torch_settings import OwnTorch
from quintet.spaces import mask_sizes
from quintet.system.memory import memory_fault
from quintet.system.transfer import to_host
from quintet.system.user_code import first_line
from quintet.types import ACTION_MASK, State

_MOST_TOLD = 4_096
"""Ended episodes that are sent with the counts of an unroll, unless there are more streams; further
ones cost a second wait."""

_MOST_RECORDED = 512
"""Largest number of steps of an unroll that is one CUDA graph; each step launches some tens of
kernels."""


class Told(NamedTuple):
    """Facts of an unroll that the host learns.

    rows: rows of each column that were executed, or spent on a reset.
    valid, terminated, truncated: ``[T, B]``.
    running: env_steps so far in episodes that continue.
    """

    rows: int
    valid: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    running: int
    episodes: list[Episode]


@final
@dataclass
class _Sums:
    """Sums since the start of each stream's episode, ``[B]``, and the version that began it."""

    reward: Tensor
    length: Tensor
    version: Tensor

    @classmethod
    def zeros(cls, count: int, device: torch.device) -> "_Sums":
        whole = torch.zeros(count, dtype=torch.int64, device=device)
        return cls(whole.double(), whole, whole.clone())


@final
class DeviceRows:
    """The rows of one unroll of all streams, on the environments' device.

    Memory has the form of a `Slot`'s.  All that a row changes is written in place, so a whole
    unroll can be a CUDA graph, which one launch repeats.

    rollout: the unroll as views of this memory, which the next one overwrites.
    """

    def __init__(
        self,
        rows: NextStep,
        actor: Actor,
        plan: DataPlan,
        timer: PhaseTimer,
        graph: bool = False,
    ):
        """graph: whether unrolls are CUDA graphs, see `may_record`."""
        self.rows, self.actor, self.plan, self.timer = rows, actor, plan, timer
        env = rows.env
        self._graph = graph
        self._replay: Callable[[], None] | None = None
        self._collected = False
        self.num_streams, device = env.num_streams, env.device
        specs = slot_specs(RowSpecs.of(rows.spaces, actor), plan, self.num_streams)
        unused = {"header", "running_length", *(n for n in specs if n.startswith("episode_"))}
        held = [name for name in specs if name not in unused - {"episode_id"}]
        memory = {
            name: torch.zeros(specs[name].shape, dtype=specs[name].dtype, device=device)
            for name in held
        }
        self._memory = memory
        memory["stream_id"].copy_(torch.arange(self.num_streams))
        self.rollout = rollout_of(memory)
        self.generator = torch.Generator(device)
        self._first = torch.zeros(self.num_streams, dtype=torch.bool, device=device)
        self._carry = torch.zeros(self.num_streams, dtype=torch.float64, device=device)
        self._most = min(max(_MOST_TOLD, self.num_streams), plan.unroll_steps * self.num_streams)
        self._rows_before, self._seed = 0, 0  # rows since the last restart, and its seed
        self._last = 0  # rows of the last unroll
        self._state: State = {}
        self._noise: Tensor | None = None

    def restart(self, env_seed: int, noise_seed: int) -> None:
        """Begins new episodes of all streams; what follows depends on the seeds."""
        self.rows.restart(env_seed)
        self._seed, self._rows_before, self._last = env_seed, 0, 0
        self.generator.manual_seed(noise_seed)
        begun = self.actor.initial_state(self.num_streams)
        if not self._state:
            self._state = {name: x.clone() for name, x in begun.items()}
        self._keep_state(begun)
        self._first.fill_(True)
        self._carry.zero_()
        self._sums = _Sums.zeros(self.num_streams, self.rows.env.device)
        for name in ("episode_id", "last_action", "last_reward"):
            self._memory[name].zero_()

    @OwnTorch()
    @torch.no_grad()
    def collect(self, version: int, more: Callable[[int], int]) -> Told:
        """Collects an unroll of weights of this version.

        more: as for `quintet.runtime.sampler.unroll`.
        """
        self._begin(version)
        row, steps = 0, self.plan.unroll_steps
        end = min(more(0), steps)
        if end == steps and self._graph and self._collected:
            if self._replay is None:
                generators = self.rows.env.generators or ()
                self._replay = recorded(self._all_rows, self.rows.env.device, generators)
            self.timer.switch("stepping")
            self._replay()
            for x in self._memory.values():  # a graph does not count these as written
                torch.autograd.graph.increment_version(x)
            row = steps
        self._collected = True
        while row < end:
            self._step(row)
            row += 1
            if row == end and row < steps:
                end = min(row + more(row), steps)
        return self._finish(row, version)

    def executed(self, rows: int) -> int:
        """Number of env_steps in the first `rows` rows; waits for the device."""
        return int(self.rollout.valid[:rows].sum())

    def _begin(self, version: int) -> None:
        rollout, last = self.rollout, self._last
        if last:
            rollout.episode_id.add_(rollout.is_first[1 : last + 1].sum(0))
            rollout.last_action.copy_(rollout.action[last - 1])
            rollout.last_reward.copy_(rollout.reward[last - 1])
        rollout.version.fill_(version)
        # Weights that were replaced may have left a NaN, which a recurrent network would keep.
        for name in self._state.keys() & self.actor.state_specs.keys():
            self._state[name].nan_to_num_(0.0, 0.0, 0.0)
        noise = self.actor.draw_noise(self.plan.unroll_steps, self.num_streams, self.generator)
        self._noise = noise if self._noise is None else self._noise.copy_(noise)

    def _all_rows(self) -> None:
        for row in range(self.plan.unroll_steps):
            self._step(row)

    def _keep_state(self, state: State) -> None:
        for name, x in self._state.items():
            x.copy_(state[name])

    def _step(self, row: int) -> None:
        """Acts, steps and writes a row."""
        self._store_state(row)
        self.timer.switch("acting")
        rollout, rows = self.rollout, self.rows
        for name, x in rows.obs.items():
            rollout.obs[name][row] = x
        rollout.is_first[row] = self._first
        assert self._noise is not None
        out = self.actor.act(rows.obs, self._state, self._first, self._noise[row])
        rollout.action[row] = out.action
        for name, into in rollout.record.items():
            into[row] = out.record[name]
        self._keep_state(out.state)
        self.timer.switch("stepping")
        # A copy, since what inference mode made can't be changed by the environment's own code.
        step = rows.step(out.env_action.clone())
        for name, x in step._asdict().items():
            self._memory[name][row] = x
        torch.logical_not(step.valid, out=self._first)
        if rollout.return_carry is not None:
            assert self.plan.return_discount is not None
            self._carry.mul_(self.plan.return_discount).add_(step.reward)
            rollout.return_carry[row] = self._carry
            self._carry.masked_fill_(step.terminated | step.truncated, 0.0)

    def _store_state(self, row: int) -> None:
        every = self.plan.state_every
        if row % every == 0:
            for name, x in self.rollout.state.items():
                x[row // every] = self._state[name]

    def _finish(self, rows: int, version: int) -> Told:
        """Ends the unroll after `rows` rows."""
        rollout, steps = self.rollout, self.plan.unroll_steps
        for name, x in self.rows.obs.items():
            rollout.obs[name][rows:] = x
        rollout.is_first[rows] = self._first
        if rows < steps:
            self._fill_from(rows)
        else:
            self._store_state(rows)
        told = self._told(rows, version)
        self._last = rows
        self._rows_before += rows
        return told

    def _fill_from(self, row: int) -> None:
        """Fills the rows that are not executed, with an action that is computed but not sent."""
        rollout = self.rollout
        for later in range(row, self.plan.unroll_steps + 1):
            self._store_state(later)
        assert self._noise is not None
        out = self.actor.act(self.rows.obs, self._state, self._first, self._noise[row])
        rollout.action[row:] = out.action
        for name, into in rollout.record.items():
            into[row:] = out.record[name]
        rollout.is_first[row + 1 :] = False
        for name in ("reward", "raw_reward", "terminated", "truncated", "valid", "success"):
            self._memory[name][row:] = 0
        if rollout.return_carry is not None:
            rollout.return_carry[row:] = 0.0

    # Facts for the host

    def _told(self, rows: int, version: int) -> Told:
        """Checks and measures the unroll; waits for the device once."""
        rollout = self.rollout
        ended = rollout.terminated | rollout.truncated
        numbers = ended.flatten().cumsum(0)  # ended episodes, counted from 1
        fields = self._episodes(ended, version)
        head = numbers[-1:], self._sums.length.sum(0, keepdim=True), self._finite(rows)
        found = self._ended(numbers, fields, 0, self._most)
        figures = torch.cat([x.double() for x in (*head, self._choices(), found)])
        flags = rollout.valid.byte() + 2 * rollout.terminated + 4 * rollout.truncated
        told, bits = (x.numpy() for x in to_host({0: figures, 1: flags}).values())
        (count, running, finite, allowed), columns = told[:4], told[4:]
        if not (finite and allowed):
            self._refuse()
        columns = columns.reshape(len(fields) + 1, -1)
        if count > self._most:
            others = self._ended(numbers, fields, self._most, int(count) - self._most)
            others_told = others.numpy(force=True).reshape(len(fields) + 1, -1)
            columns = np.concatenate((columns, others_told), 1)
        valid, terminated, truncated = ((bits & bit) != 0 for bit in (1, 2, 4))
        episodes = self._read(columns[:, : int(count)])
        return Told(rows, valid, terminated, truncated, int(running), episodes)

    def _ended(self, numbers: Tensor, fields: tuple[Tensor, ...], begin: int, count: int) -> Tensor:
        """Places and fields of `count` ended episodes from number `begin` on, one after another."""
        wanted = torch.arange(begin + 1, begin + count + 1, device=numbers.device)
        places = torch.searchsorted(numbers, wanted).clamp_max(len(numbers) - 1)
        parts = [places, *(x.flatten()[places] for x in fields)]
        return torch.cat([x.double() for x in parts])

    def _episodes(self, ended: Tensor, version: int) -> tuple[Tensor, ...]:
        """Return, length, version and success of the episodes that ended, ``[T, B]``, meaningful
        there; updates the running sums.
        """
        rollout, sums = self.rollout, self._sums
        numbers = torch.arange(len(ended), device=ended.device).unsqueeze(1)
        none = torch.full_like(rollout.version, -1)
        ends = torch.where(ended, numbers, none).cummax(0).values
        before = torch.cat((none[:1], ends[:-1]))  # the row of the last ending before each row
        began = torch.where(rollout.is_first[:-1], numbers, none).cummax(0).values

        def since(totals: Tensor, earlier: Tensor, rows: Tensor) -> Tensor:
            return totals.gather(0, rows.clamp_min(0)) * (rows >= 0) - earlier * (rows < 0)

        rewards = self._memory["raw_reward"].double().cumsum(0)
        lengths = rollout.valid.cumsum(0)
        return_ = rewards - since(rewards, sums.reward, before)
        length = lengths - since(lengths, sums.length, before)
        acted = torch.where(began >= 0, version, sums.version)
        sums.reward = rewards[-1] - since(rewards, sums.reward, ends[-1:])[0]
        sums.length = lengths[-1] - since(lengths, sums.length, ends[-1:])[0]
        sums.version = acted[-1]
        return return_, length, acted, self._memory["success"]

    def _finite(self, rows: int) -> Tensor:
        """Whether all observations and rewards are finite, ``[1]``."""
        seen = [x[: rows + 1] for x in self.rollout.obs.values() if x.is_floating_point()]
        checks = [x.isfinite().all() for x in (*seen, self._memory["raw_reward"])]
        return torch.stack(checks).all(0, keepdim=True)

    def _possible(self) -> Tensor:
        """Whether the mask is of 0 and 1 and allows an action in each choice, ``[T, B]``."""
        given = self.rollout.obs[ACTION_MASK][:-1]
        mask = given.bool()
        choices = torch.split(mask, mask_sizes(self.rows.env.spaces.action), -1)
        plain = (given == mask.to(given.dtype)).all(-1)
        return torch.stack([plain, *(choice.any(-1) for choice in choices)]).all(0)

    def _choices(self) -> Tensor:
        """Whether the mask always allows a choice, ``[1]``; a reset row's mask doesn't matter."""
        valid = self.rollout.valid
        if ACTION_MASK not in self.rollout.obs:
            return torch.ones(1, dtype=torch.bool, device=valid.device)
        return (self._possible() | ~valid).all().unsqueeze(0)

    def _refuse(self) -> None:
        """Raises EnvironmentFault for what is not finite, or not allowed, in this unroll."""
        env = self.rows.env
        check_finite(
            {name: x.numpy(force=True) for name, x in self.rollout.obs.items()},
            self._memory["raw_reward"].numpy(force=True),
            0,
            [self._seed] * self.num_streams,
            env.description,
            self._rows_before,
        )
        valid = self.rollout.valid.numpy(force=True)
        mask = self.rollout.obs[ACTION_MASK][:-1].numpy(force=True)
        require_plain(mask, valid, env.description.id)
        wrong = (~self._possible() & self.rollout.valid).nonzero()
        row, column = (int(i) for i in wrong[0])
        raise allows_none(env.description.id, column, self._rows_before + row)

    def _read(self, columns: NDArray[np.float64]) -> list[Episode]:
        places, returns, lengths, versions, successes = columns.tolist()
        defined = self.rows.success is not None
        return [
            Episode(
                *divmod(int(place), self.num_streams),
                return_,
                int(length),
                bool(success) if defined else None,
                int(version),
            )
            for place, return_, length, version, success in zip(
                places, returns, lengths, versions, successes, strict=True
            )
        ]


def may_record(env: TensorVectorEnv, plan: DataPlan) -> bool:
    """Whether an unroll can be a CUDA graph: of few steps, which launch nothing but kernels."""
    able = env.device.type == "cuda" and env.generators is not None
    return able and plan.unroll_steps <= _MOST_RECORDED


def recorded(
    run: Callable[[], None], device: torch.device, generators: tuple[torch.Generator, ...]
) -> Callable[[], None]:
    """Captures what `run` launches, without computing it; returns a function that repeats it by one
    launch.

    generators: generators from which `run` draws; each repetition continues their sequences.
    """
    graph = torch.cuda.CUDAGraph()
    for each in generators:
        graph.register_generator_state(each)
    try:
        # Other threads may use the GPU meanwhile.
        with torch.cuda.device(device):
            # PyTorch's own stream for captures is of the GPU of the first one.
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                run()
    except Exception as error:
        if memory_fault(error) is not None:
            raise
        # The end of the recording raises again, in words that name no cause.
        cause = first_line(error.__context__ or error)
        raise QuintetError(
            "an environment with generators must only launch kernels in its steps, so that a CUDA "
            f"graph can hold them, got {cause}: mend it, or use --runtime.compile off"
        ) from error
    replay: Callable[[], None] = graph.replay
    return replay
