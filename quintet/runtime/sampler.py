"""Sampling in one process: groups of streams act and step; in the serial runtime all groups."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, final

import numpy as np
import torch

from quintet.envs.make import tell
from quintet.envs.masks import allows_none, possible, require_plain
from quintet.envs.own_state import States, keeper
from quintet.envs.vector import Array, ObsArrays, VectorEnv, check_finite
from quintet.envs.wrappers import ShapedRewards, tasks_of
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import Lease, Unroll
from quintet.runtime.delivery import Batch, Delivery, RestartsAfter, never, rows_for
from quintet.runtime.gpu_actor import actors_of
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.seed_tree import group_seeds
from quintet.runtime.slots import PLAYER, UNDEFINED, VERSION, RowSpecs, Slot, slot_specs, zeros
from quintet.runtime.torch_settings import OwnTorch, torch_threads
from quintet.runtime.turns import Turns
from quintet.system import forks
from quintet.system.transfer import to_host
from quintet.types import ACTION_MASK, REWARD_SHAPING, ActOutput, Publication


@final
class GroupSampler:
    """B streams that step and act together; `begin`, then T times `act` and `receive`, then
    `finish`.  The last unroll of a run may have fewer rows.

    slot: of the current unroll, or of the last one.
    """

    slot: Slot

    def __init__(
        self,
        env: VectorEnv,
        actor: Actor,
        plan: DataPlan,
        first_stream: int,
        assignment: Assignment = ONE_POLICY,
        group: int = 0,
    ):
        """actor: actor of the group's policies; if there are several, it records which one acted in
        each row.
        """
        self.env, self.actor, self.plan, self.first_stream = env, actor, plan, first_stream
        self.policies, self.num_learners = assignment.of(group), assignment.num_learners
        self.has_opponents = max(self.policies) >= self.num_learners  # their rows are not valid
        self.num_streams = env.num_streams
        self.turns = Turns(self.num_streams) if env.description.turns else None
        self.says_version = VERSION in actor.record_specs
        self.carry = torch.zeros(self.num_streams, dtype=torch.float64)
        # Reward weights by policy, if publications carry them.
        self.shaping: dict[int, np.ndarray[Any, Any]] = {}
        self.version = -1
        self.fresh = True
        self.has_tasks = tasks_of(env) is not None
        # Options, by stream, of episodes whose ends no unroll holds yet.
        self.ended_options: list[deque[Any]] = []
        self.rows = self.steps_before = 0  # rows of the last unroll, and since the restart

    def restart(self, env_seeds: list[int], noise_seed: int, slot: Slot) -> None:
        """Begins new episodes, whose first rows go to `slot`; what follows depends on the seeds."""
        self.slot = slot
        one_seed = self.env.description.one_seed
        self.env_seeds = env_seeds[:1] * self.num_streams if one_seed else env_seeds
        self.env.restart(env_seeds, slot.first_obs_arrays)
        slot.begin_anew()
        if self.turns is not None:
            self.turns.restart()
        self.generator = torch.Generator(slot.device).manual_seed(noise_seed)
        with OwnTorch():
            self.state = self.actor.initial_state(self.num_streams)
        self.carry = self.carry.to(slot.device).zero_()
        self.episode_return = np.zeros(self.num_streams)
        self.episode_length = np.zeros(self.num_streams, np.int64)
        self.episode_version = np.zeros(self.num_streams, np.int64)  # the same as in `Episode`
        self.steps_before = 0
        self.ended_options = [deque() for _ in range(self.num_streams)]
        self.fresh = True

    @OwnTorch()
    def publish(self, publication: Publication) -> None:
        """Loads the weights of a policy, if it acts here; called only between unrolls."""
        if publication.policy not in self.policies:
            return
        if (shaping := publication.tensors.get(REWARD_SHAPING)) is not None:
            self.shaping[publication.policy] = shaping.numpy().copy()
        self.actor.load(publication)
        self.version = publication.version

    @OwnTorch()
    def begin(self, slot: Slot) -> None:
        """Prepares a slot for the next unroll; after a restart it must be the restart's slot."""
        if self.fresh:
            self.fresh = False
            assert slot is self.slot
        else:
            slot.begin_after(self.slot, self.rows)
            if self.turns is not None:
                self.turns.begin(slot)
        self.slot = slot
        # Replaced weights may have left a NaN, which a recurrent network would keep: mend it in
        # place, where a server reads the state.  A mix of policies has that of each as K/name.
        recorded = self.actor.state_specs
        for name, x in self.state.items():
            if name not in recorded and name.partition("/")[2] not in recorded:
                continue
            if not x.is_cpu:  # a policy's own, in a mix on a GPU
                with torch.inference_mode():
                    x.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            elif not np.isfinite(values := x.numpy()).all():
                np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        if not self.says_version:
            self.slot.version.fill_(self.version)
        self.noise = self.actor.draw_noise(self.plan.unroll_steps, self.num_streams, self.generator)
        self.noise_rows = self.noise.unbind(0)

    def act(self, row: int) -> None:
        """Makes one forward for the group and starts the environments' step."""
        if self.turns is None:
            self.slot.store_state(row, self.state)
        else:
            self.turns.act(self.state, self.slot)
        out = self._forward(row)
        if self.shaping:
            self._shape_rewards(row, out)
        self.env.send(self.slot.as_array(out.env_action))
        self._record(row, out)
        self.state = out.state

    @OwnTorch()
    def _forward(self, row: int) -> ActOutput:
        slot = self.slot
        return self.actor.act(
            slot.obs_rows[row], self.state, slot.is_first_rows[row], self.noise_rows[row]
        )

    def _shape_rewards(self, row: int, out: ActOutput) -> None:
        """Sets the values of the playing policy in environments that begin an episode."""
        assert isinstance(self.env, ShapedRewards)
        players = out.record.get(PLAYER)
        for stream in np.flatnonzero(self.slot.is_first[row]):
            policy = self.policies[0] if players is None else int(players[stream])
            self.env.shaping[stream] = self.shaping[policy]

    def _record(self, row: int, out: ActOutput) -> None:
        self.slot.action_rows[row].copy_(out.action)
        for name, into in self.slot.record_rows[row].items():
            into.copy_(out.record[name])

    def receive(self, row: int) -> None:
        """Waits for the step of `row`."""
        slot = self.slot
        into = slot.step_rows[row]
        self.env.recv(into)
        if self.has_tasks:
            given = tasks_of(self.env).options
            for stream in np.flatnonzero(into.terminated | into.truncated).tolist():
                self.ended_options[stream].append(given.get(stream))
        if self.turns is not None:
            self.state = self.turns.receive(row, slot, self.state)
            return
        slot.logical_not(into.valid, out=slot.is_first_arrays[row + 1])
        if self.has_opponents:
            slot.valid[row] &= slot.policy_id[row] < self.num_learners

    def executed(self, rows: int) -> int:
        """Number of env_steps of the unroll if it ended after `rows` rows."""
        if self.turns is not None:
            return self.turns.executed(self.slot, rows)
        return int(self.slot.rollout.valid[:rows].count_nonzero())

    def finish(self, rows: int) -> None:
        """Ends the unroll after `rows` rows."""
        self.complete(rows)
        self.end(rows)

    def complete(self, rows: int) -> None:
        """Fills the rows that were not executed, and computes returns, without a wait for a GPU."""
        slot = self.slot
        if self.turns is not None:
            self.turns.gather(slot, rows, self.state)
            if self.has_opponents:
                slot.valid &= slot.policy_id < self.num_learners
        elif rows < slot.steps:
            self._fill_from(rows)
        else:
            slot.store_state(rows, self.state)
        # A row after one that is not valid begins an episode, unless the agent is still absent.
        slot.is_first[:rows] &= slot.valid[:rows]
        if self.plan.return_discount is not None:
            self._discounted_returns(rows, self.plan.return_discount)

    def end(self, rows: int) -> None:
        """Counts the rows, checks them and measures episodes; of rows on a GPU it only counts."""
        slot, self.rows = self.slot, rows
        self.steps_before += rows
        forks.require_files(self.env.description.id)
        if slot.on_cpu:
            self.check(slot.obs_arrays, slot.raw_reward, slot.valid)
            self._measure_episodes()
            if self.has_tasks:
                ended = np.argwhere(slot.terminated | slot.truncated).tolist()
                options = [(at, self.ended_options[at[1]].popleft()) for at in ended]
                slot.options = [own for (row, at), own in options if slot.valid[row, at]]

    def check(self, obs: ObsArrays, raw_reward: Array, valid: Array) -> None:
        """Refuses what is not finite in an unroll, a choice without an allowed action, and masks
        with numbers other than 0 and 1; a reset row's mask doesn't matter.
        """
        about, first_step = self.env.description, self.steps_before - self.rows
        # Clipping would hide an infinity.
        check_finite(obs, raw_reward, self.first_stream, self.env_seeds, about, first_step)
        if ACTION_MASK not in obs:
            return
        mask = obs[ACTION_MASK][:-1]
        require_plain(mask, valid, f"{about.id}, streams from {self.first_stream} on")
        wrong = ~possible(mask, self.env.spaces.action) & valid
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise allows_none(about.id, self.first_stream + column, first_step + row)

    def _fill_from(self, row: int) -> None:
        """Fills the rows that are not executed, with an action that is computed but not sent."""
        slot = self.slot
        # The next unroll begins with this state, and the act may write over the one it returned.
        self.state = {name: x.clone() for name, x in self.state.items()}
        for later in range(row, slot.steps + 1):
            slot.store_state(later, self.state)
        self._record(row, self._forward(row))
        slot.fill_from(row)

    def _discounted_returns(self, rows: int, gamma: float) -> None:
        """``G_t = r_t + gamma * G_(t-1)``, from 0 at the start of every episode."""
        slot, carry = self.slot, self.slot.as_array(self.carry)
        assert slot.return_carry is not None
        going_on = ~(slot.terminated | slot.truncated)
        turns = self.turns is not None
        with np.errstate(all="ignore"):  # `check` refuses infinity later
            for row in range(slot.steps if turns else rows):
                carry *= np.where(slot.valid[row], gamma, 1.0) if turns else gamma
                carry += slot.reward[row]
                slot.return_carry[row] = carry
                carry *= going_on[row]

    def _measure_episodes(self) -> None:
        """Writes return, length and success of every episode into the row in which it ended."""
        slot = self.slot
        returns = slot.raw_reward.cumsum(0, np.float64)
        lengths = slot.valid.cumsum(0, np.int64)
        # Added to the running sums, these make them count from the start of the episode.
        before_return, before_length = self.episode_return, self.episode_length
        defined = self.env.description.success is not None
        ended, version = slot.terminated | slot.truncated, slot.version.numpy()
        # The row in which the episode of each row began, -1 where that was in an earlier unroll.
        row_numbers = np.arange(len(version))[:, None]
        began = np.maximum.accumulate(np.where(slot.is_first[:-1], row_numbers, -1))
        for row, column in np.argwhere(ended).tolist() if ended.any() else ():
            slot.episode_return[row, column] = returns[row, column] + before_return[column]
            slot.episode_length[row, column] = lengths[row, column] + before_length[column]
            success = slot.success[row, column] if defined else UNDEFINED
            slot.episode_success[row, column] = success
            begin = began[row, column]
            acted = self.episode_version[column] if begin < 0 else version[begin, column]
            slot.episode_version[row, column] = acted
            before_return[column] = -returns[row, column]
            before_length[column] = -lengths[row, column]
        before_return += returns[-1]
        before_length += lengths[-1]
        slot.running_length[:] = before_length
        columns = np.flatnonzero(began[-1] >= 0)
        self.episode_version[columns] = version[began[-1, columns], columns]


def unroll(
    groups: Sequence[GroupSampler],
    slots: Sequence[Slot],
    timer: PhaseTimer,
    on_row: Callable[[int], None] | None = None,
    more: Callable[[int], int] | None = None,
) -> None:
    """Collects one unroll of every group into its slot; one group acts while the others step.

    on_row: called with every row before its act.
    more: called with the number of finished rows; returns the number of further rows, at first at
        least one, 0 to end the unroll early.  No environment is stepping during this call.  None:
        all rows follow.
    """
    steps, row, begin = groups[0].plan.unroll_steps, 0, 0
    end = steps if more is None else min(more(0), steps)
    while row < end:
        for group, slot in zip(groups, slots, strict=True):
            if on_row is not None:
                on_row(row)
            if row > begin:
                timer.switch("stepping")
                group.receive(row - 1)
            timer.switch("acting")
            if row == 0:
                group.begin(slot)
            group.act(row)
        row += 1
        if row == end:
            timer.switch("stepping")
            for group in groups:
                group.receive(row - 1)
            if more is not None and row < steps:
                begin, end = row, min(row + more(row), steps)
    for group in groups:
        group.finish(row)


class Steppers(Protocol):
    """An environment that `num_processes` step; 1: this process does."""

    @property
    def num_processes(self) -> int: ...

    def kill(self) -> None: ...


class RowsOnGpu(Protocol):
    """A group whose rows stay on a GPU; restarts: whether its streams restart."""

    restarts: bool

    def restart(self) -> None:
        """Called after each restart of the group."""
        ...

    def collect(self, rows: Callable[[], None], whole: bool) -> Unroll:
        """Collects an unroll; `rows` does so row by row, and `whole` says that none is missing."""
        ...


@dataclass(frozen=True)
class SerialOptions:
    """Options of sampling in this process.

    threads: number of PyTorch's threads while actions are computed; None: unchanged.
    may_lag: whether some versions are not published.
    steppers: the environments that other processes may step.
    act_on: device of the actors.
    on_gpu: makes the only group's, if rows stay on that device.
    """

    assignment: Assignment = ONE_POLICY
    threads: int | None = None
    may_lag: bool = False
    steppers: Sequence[Steppers] = ()
    act_on: str = "cpu"
    on_gpu: Callable[[GroupSampler, Slot, PhaseTimer], RowsOnGpu] | None = None


_DEFAULT = SerialOptions()


@final
class SerialSampling:
    """All groups in this process; one steps while actions are computed for the others.

    restarts: whether streams restart at exact checkpoints.
    """

    def __init__(
        self,
        envs: Sequence[VectorEnv],
        make_actor: Callable[[], Actor],
        plan: DataPlan,
        seed: int,
        timer: PhaseTimer,
        options: SerialOptions = _DEFAULT,
    ):
        self.groups: list[GroupSampler] = []
        self.slots: list[Slot] = []
        first_stream, assignment = 0, options.assignment
        self.act_on, rows_on_gpu = options.act_on, options.on_gpu is not None
        device, copies_to = (self.act_on, "cpu") if rows_on_gpu else ("cpu", self.act_on)
        actors = actors_of(partial(assignment.make_actor, make_actor), copies_to)
        for index, env in enumerate(envs):
            actor = actors(assignment.of(index))
            rows = RowSpecs.of(env.spaces, actor, len(env.description.metrics))
            memory = zeros(slot_specs(rows, plan, env.num_streams), copies_to != "cpu", device)
            slot = Slot(memory, rows, plan)
            slot.belongs_to(index, first_stream, assignment.of(index)[0])
            self.slots.append(slot)
            self.groups.append(GroupSampler(env, actor, plan, first_stream, assignment, index))
            first_stream += env.num_streams
        self.seed, self.timer, self.threads = seed, timer, options.threads
        self.steppers = options.steppers
        self.on_row: Callable[[int], None] | None = None
        self.delivery = Delivery(plan, first_stream, assignment, options.may_lag)
        self.on_gpu = options.on_gpu and options.on_gpu(self.groups[0], self.slots[0], timer)
        self.restarts = self.on_gpu is None or self.on_gpu.restarts

    def publish(self, publication: Publication) -> None:
        """Loads the weights with which a policy acts from each group's next unroll on."""
        self.delivery.publish(publication)
        if self.act_on == "cpu":
            publication = replace(publication, tensors=to_host(publication.tensors))  # one for all
        for group in self.groups:
            group.publish(publication)

    def restart(self, iteration: int) -> None:
        """Seeds every stream by (seed, group, iteration); running episodes are abandoned."""
        self.timer.switch("making")
        self.delivery.restart(iteration)
        for index, (group, slot) in enumerate(zip(self.groups, self.slots, strict=True)):
            group.restart(*group_seeds(self.seed, index, iteration, group.num_streams), slot)
        if self.on_gpu is not None:
            self.on_gpu.restart()

    def collect(self, env_steps_left: int, restarts_after: RestartsAfter = never) -> Batch:
        """The next batch.  While no policy has enough columns, it samples, but no more rows than
        the budget needs.
        """
        while (taken := self.delivery.take(env_steps_left)) is None:
            self.delivery.keep()
            self.delivery.put_round(self._unroll(env_steps_left - self.delivery.waiting))
        return self.delivery.batch(*taken, env_steps_left, restarts_after)

    def _unroll(self, needed: int) -> list[Unroll]:
        """Collects one unroll of every group, which ends once `needed` env_steps were executed."""

        def more(rows: int) -> int:
            executed = sum(group.executed(rows) for group in self.groups) if rows else 0
            return rows_for(needed - executed, self.delivery.num_streams)

        with torch_threads(self.threads):
            rows = partial(unroll, self.groups, self.slots, self.timer, self.on_row, more)
            if self.on_gpu is not None:
                return [self.on_gpu.collect(rows, more(0) >= self.slots[0].steps)]
            rows()
        # The lease frees nothing: what still waits is copied before the next round's writes.
        return [slot.unroll(Lease(lambda: None)) for slot in self.slots]

    def report(self) -> dict[str, float]:
        count = sum(each.num_processes for each in self.steppers if each.num_processes > 1)
        processes = {"data/env_processes": float(count)} if count else {}
        return self.delivery.report() | processes

    def save_environments(self) -> States:
        """The state that environments offer."""
        owns = [keeper(group.env) for group in self.groups]
        return {index: own.save() for index, own in enumerate(owns) if own is not None}

    def set_task(self, text: bytes) -> None:
        """Tells environments something, see `quintet.envs.tasks`; between two unrolls."""
        for group in self.groups:
            tell(group.env, text)

    def load_environments(self, states: States) -> None:
        for index, group in enumerate(self.groups):
            own = keeper(group.env)
            if own is not None and index in states:
                own.load(states[index])

    def kill(self) -> None:
        """Ends processes that step environments at once, before `close`."""
        for each in self.steppers:
            each.kill()

    def close(self) -> None:
        for group in self.groups:
            group.env.close()
