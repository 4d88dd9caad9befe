"""Unrolls of a group whose rows stay on a GPU: launched by one CUDA graph where that is possible,
checked and measured there, with one wait for what the host must know.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from quintet.envs.tensor import TensorVectorEnv
from quintet.errors import QuintetError
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime.batch import ColumnBlock, Lease, Unroll
from quintet.runtime.sampler import GroupSampler
from quintet.runtime.slots import UNDEFINED, Slot, episodes_of
from quintet.runtime.torch_settings import OwnTorch
from quintet.spaces import mask_sizes
from quintet.system.memory import memory_fault
from quintet.system.transfer import to_host
from quintet.system.user_code import first_line
from quintet.types import ACTION_MASK

_MOST_TOLD = 4_096
"""Ended episodes that are sent with the flags of an unroll, unless there are more streams; further
ones cost a second wait."""

_MOST_RECORDED = 512
"""Largest number of steps of an unroll that is one CUDA graph; each step launches some tens of
kernels."""


@final
class DeviceRows:
    """The unrolls of one group and its slot, which is on a GPU."""

    def __init__(
        self,
        group: GroupSampler,
        slot: Slot,
        timer: PhaseTimer,
        env: TensorVectorEnv,
        graph: bool,
    ):
        """env: the group's environments; graph: whether unrolls are CUDA graphs (`may_record`)."""
        self.group, self.slot, self.timer = group, slot, timer
        self.restarts, self._generators = env.restarts, env.generators if graph else None
        self._replay: Callable[[], None] | None = None
        self._collected = False
        whole = torch.zeros(slot.num_streams, dtype=torch.int64, device=slot.device)
        # Sums since the start of each stream's episode, and the version that acted first in it.
        self._return, self._length, self._version = whole.double(), whole, whole.clone()

    def restart(self) -> None:
        """Forgets the running episodes."""
        for x in (self._return, self._length, self._version):
            x.zero_()

    @OwnTorch()
    def collect(self, rows: Callable[[], None], whole: bool) -> Unroll:
        """Collects an unroll.

        rows: collects it row by row; whole: whether it will have all rows.
        """
        if whole and self._generators is not None and self._collected:
            self._repeat(self._generators)
        else:
            rows()
            self._collected = True
        return self._unroll()

    def _repeat(self, generators: Sequence[torch.Generator]) -> None:
        """Collects all rows by one launch."""
        group, slot = self.group, self.slot
        self.timer.switch("acting")
        group.begin(slot)
        self.timer.switch("stepping")
        if self._replay is None:
            self._state = {name: x.clone() for name, x in group.state.items()}
            self._noise = group.noise.clone()
            group.state, group.noise_rows = self._state, self._noise.unbind(0)
            self._replay = recorded(self._all_rows, slot.device, generators)
        else:
            for name, x in self._state.items():
                x.copy_(group.state[name])
            self._noise.copy_(group.noise)
        self._replay()
        group.state = self._state
        for x in slot.memory.values():  # a graph does not count these as written
            torch.autograd.graph.increment_version(x)
        group.end(slot.steps)

    def _all_rows(self) -> None:
        group, steps = self.group, self.slot.steps
        for row in range(steps):
            group.act(row)
            group.receive(row)
        group.complete(steps)
        for name, x in self._state.items():
            x.copy_(group.state[name])

    def _unroll(self) -> Unroll:
        """The unroll and what the host must know of it, for which it waits once."""
        group, slot, rollout = self.group, self.slot, self.slot.rollout
        ended = rollout.terminated | rollout.truncated
        self._measure(ended)
        numbers = ended.flatten().cumsum(0)  # ended episodes, counted from 1
        most = min(max(_MOST_TOLD, slot.num_streams), ended.numel())
        head = numbers[-1:], self._length.sum(0, keepdim=True), self._sound()
        figures = torch.cat([x.double() for x in (*head, self._ended(numbers, 0, most))])
        flags = rollout.valid.byte() + 2 * rollout.terminated + 4 * rollout.truncated
        summary, bits = to_host({0: figures, 1: flags}).values()
        count, running, sound = map(int, summary[:3].tolist())
        if not sound:
            obs = {name: x.numpy(force=True) for name, x in slot.obs.items()}
            group.check(obs, slot.raw_reward.numpy(force=True), slot.valid.numpy(force=True))
        found = summary[3:].view(-1, most)
        if count > most:
            others = self._ended(numbers, most, count - most).cpu()
            found = torch.cat((found, others.view(len(found), -1)), 1)
        places, *fields = found[:, :count].numpy()
        valid, terminated, truncated = ((bits & bit) != 0 for bit in (1, 2, 4))
        source = replace(
            rollout,
            valid=valid,
            terminated=terminated,
            truncated=truncated,
            version=torch.tensor(group.version).expand(valid.shape),
            stream_id=group.first_stream + torch.arange(slot.num_streams),
        )
        episodes = episodes_of(places, fields, slot.num_streams)
        block = ColumnBlock(replace(rollout, source=source), episodes, Lease(lambda: None))
        return Unroll(block, 0, int(valid.count_nonzero()), running)

    def _ended(self, numbers: Tensor, begin: int, count: int) -> Tensor:
        """Places and fields of `count` ended episodes from number `begin` on, one after another."""
        ordinals = torch.arange(begin + 1, begin + count + 1, device=numbers.device)
        places = torch.searchsorted(numbers, ordinals).clamp_max(len(numbers) - 1)
        return torch.cat([x.double() for x in (places, *self.slot.told_at(places))])

    def _measure(self, ended: Tensor) -> None:
        """Measures episodes as `GroupSampler` does on the CPU, but all at once."""
        memory, rollout = self.slot.memory, self.slot.rollout
        numbers = torch.arange(len(ended), device=ended.device).unsqueeze(1)
        # The last row of each kind up to each row, -1 where that was in an earlier unroll.
        ends = torch.where(ended, numbers, -1).cummax(0).values
        begins = torch.where(rollout.is_first[:-1], numbers, -1).cummax(0).values
        before = torch.cat((torch.full_like(ends[:1], -1), ends[:-1]))
        for name, totals, running in (
            ("episode_return", memory["raw_reward"].double().cumsum(0), self._return),
            ("episode_length", rollout.valid.cumsum(0), self._length),
        ):
            memory[name].copy_(totals - _rows_at(totals, before, -running))
            running.copy_(totals[-1] - _rows_at(totals, ends[-1:], -running)[0])
        memory["episode_version"].copy_(_rows_at(rollout.version, begins, self._version))
        self._version.copy_(memory["episode_version"][-1])
        if self.group.env.description.success is None:
            memory["episode_success"].fill_(UNDEFINED)
        else:
            memory["episode_success"].copy_(memory["success"])

    def _sound(self) -> Tensor:
        """Whether `GroupSampler.check` would find nothing, ``[1]``."""
        seen, invalid = self.slot.obs, ~self.slot.rollout.valid
        floats = [x for x in seen.values() if x.is_floating_point()]
        checks = [x.isfinite().all() for x in (*floats, self.slot.memory["raw_reward"])]
        if ACTION_MASK in seen:
            given = seen[ACTION_MASK][:-1]
            mask = given.bool()
            choices = torch.split(mask, mask_sizes(self.group.env.spaces.action), -1)
            plain = (given == mask.to(given.dtype)).all(-1)
            checks += [(x | invalid).all() for x in (plain, *(c.any(-1) for c in choices))]
        return torch.stack(checks).all(0, keepdim=True)


def _rows_at(totals: Tensor, rows: Tensor, earlier: Tensor) -> Tensor:
    """The values of these rows ``[R, B]``; `earlier` where a row is -1."""
    return torch.where(rows < 0, earlier, totals.gather(0, rows.clamp_min(0)))


def may_record(env: TensorVectorEnv, plan: DataPlan) -> bool:
    """Whether an unroll can be a CUDA graph: of few steps, which launch nothing but kernels."""
    return env.generators is not None and plan.unroll_steps <= _MOST_RECORDED


def recorded(
    run: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator]
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
