"""A scripted world and a ledger of it: what every row that crosses the seam must hold.

Observations say which stream (by its seed), episode and step they are of, and which policy's actor
acted is recorded; so a learner can check each row that it receives against the script alone,
whatever runtime brought it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from folders_helpers import new_folder
from gymnasium import spaces
from torch import Tensor

from quintet.envs.public import make_vector_env
from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime import loop
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.delivery import Batch
from quintet.runtime.lockstep import LockstepSampling
from quintet.runtime.policies import Assignment
from quintet.runtime.processes.messages import Place, ServerOptions, WorkerSpec
from quintet.runtime.processes.workers import Workers
from quintet.runtime.replay.replay import Replay
from quintet.runtime.sampler import SerialOptions, SerialSampling
from quintet.runtime.seed_tree import group_seeds
from quintet.runtime.slots import RowSpecs
from quintet.types import (
    ACTION_MASK,
    ActOutput,
    LearnerState,
    Publication,
    Rollout,
    TensorSpec,
)

SEED = 5
LENGTHS = (3, 2, 7, 4, 1)
TERMINATES = (True, False, True, False, True)
ACTIONS = 5


def length_of(episode: int) -> int:
    return LENGTHS[episode % len(LENGTHS)]


def mask_at(episode: int, step: int) -> list[int]:
    """Two actions are forbidden, by (episode, step)."""
    return [int((a - episode - step) % ACTIONS > 1) for a in range(ACTIONS)]


def reward_of(episode: int, step: int, action: int) -> float:
    """What action `action` in `step` pays."""
    return 100.0 * episode + 10.0 * step + action


class ScriptedWorld(gymnasium.Env):
    """Episodes of scripted lengths; a forbidden action raises."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "where": spaces.Box(-1, 2**31, (3,), np.int64),
                ACTION_MASK: spaces.MultiBinary(ACTIONS),
            }
        )
        self.action_space = spaces.Discrete(ACTIONS)
        self.seed = self.step_ = 0
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.step_ = 0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not mask_at(self.episode, self.step_)[int(action)]:
            raise ValueError(f"action {action} is forbidden")
        reward = reward_of(self.episode, self.step_, int(action))
        self.step_ += 1
        over = self.step_ == length_of(self.episode)
        ends = TERMINATES[self.episode % len(TERMINATES)]
        return self.obs(), reward, over and ends, over and not ends, {}

    def obs(self) -> dict[str, Any]:
        return {
            "where": np.array([self.seed, self.episode, self.step_], np.int64),
            ACTION_MASK: np.array(mask_at(self.episode, self.step_), np.int8),
        }


class SeamActor:
    """Plays an allowed action that its noise and its policy pick.

    Its recurrent state is (rows of the episode, that times its policy's number + 1), both added up
    from row to row; privately it counts its acts since the restart.
    """

    record_specs = {
        "seen": TensorSpec((3,), torch.int64),
        "actor": TensorSpec((), torch.int64),
        "loaded": TensorSpec((), torch.int64),
        "after": TensorSpec((2,), torch.int64),
        "acts": TensorSpec((), torch.int64),
    }
    action_spec = TensorSpec((), torch.int64)
    state_specs = {"rows_and_sum": TensorSpec((2,), torch.int64)}

    def __init__(self) -> None:
        self.policy = self.version = -1

    def load(self, publication: Publication) -> None:
        self.policy = int(publication.tensors["policy"])
        self.version = publication.version

    def initial_state(self, num_streams: int) -> dict[str, Tensor]:
        return {
            "rows_and_sum": torch.zeros(num_streams, 2, dtype=torch.int64),
            "private": torch.zeros(num_streams, dtype=torch.int64),
        }

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return torch.rand(steps, num_streams, 1, generator=generator)

    def act(self, obs: Any, state: Any, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        assert noise is not None
        allowed = obs[ACTION_MASK]
        place = ((noise + 0.4 * self.policy) % 1.0 * allowed.sum(-1, keepdim=True)).floor()
        action = (allowed.cumsum(-1) > place).int().argmax(-1)
        before = torch.where(is_first.unsqueeze(-1), 0, state["rows_and_sum"])
        after = before + torch.tensor([1, self.policy + 1])
        rows, acts = after[:, 0], state["private"] + 1
        record = {
            "seen": obs["where"].clone(),
            "actor": torch.full_like(rows, self.policy),
            "loaded": torch.full_like(rows, self.version),
            "after": after,
            "acts": acts,
        }
        new = {"rows_and_sum": after, "private": acts}
        return ActOutput(action, action, record, new)


@dataclass
class Ledger:
    """Checks rows against the script and counts how often each (policy's learner) row came."""

    streams: int
    group_size: int
    state_every: int
    restarts: dict[int, tuple[int, int]] = field(default_factory=dict)
    fresh: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    replayed: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    past_budget: set[tuple[int, int, int]] = field(default_factory=set)
    endings: int = 0
    fillers: int = 0
    discount: float | None = None

    def restarted(self, iteration: int) -> None:
        """Learns the seeds that the streams have after a restart."""
        groups = self.streams // self.group_size
        for group in range(groups):
            for i, seed in enumerate(group_seeds(SEED, group, iteration, self.group_size)[0]):
                self.restarts[seed] = (group, group * self.group_size + i)

    def check(self, r: Rollout, learner: int) -> None:
        """Every row of every column; rows of other policies must be masked, all else whole."""
        steps, columns = r.valid.shape
        counts = self.replayed if r.replayed else self.fresh
        if not r.replayed:
            self.endings += int(((r.terminated | r.truncated) & r.valid).sum())
            assert set(r.state) == {"rows_and_sum"}
            assert (r.return_carry is None) == (self.discount is None)
        for b in range(columns):
            if not r.replayed and not r.valid[:, b].any():
                continue  # it makes the last batch whole
            for t in range(steps):
                if self.filler(r, t, b):
                    continue
                self.row(r, t, b, learner)
                if r.valid[t, b]:
                    seed, episode, step = r.obs["where"][t, b].tolist()
                    counts[seed, episode, step] += 1
                elif r.trace_cut is not None and not r.replayed:
                    seed, episode, step = r.obs["where"][t, b].tolist()
                    own = int(r.policy_id[t, b]) == learner
                    if own and step < length_of(episode):
                        self.past_budget.add((seed, episode, step))
            self.column(r, b)

    def filler(self, r: Rollout, t: int, b: int) -> bool:
        """Whether the row was not executed, as the unroll ended early: nothing happens in it."""
        window = r.replayed and not r.state
        if window or not torch.equal(r.obs["where"][t, b], r.obs["where"][t + 1, b]):
            return False
        assert not r.valid[t:, b].any()
        assert not (r.terminated | r.truncated)[t:, b].any()
        assert not r.reward[t:, b].any()
        assert (r.obs["where"][t:, b] == r.obs["where"][t, b]).all()
        assert (r.obs[ACTION_MASK][t:, b] == r.obs[ACTION_MASK][t, b]).all()
        assert not r.is_first[t + 1 :, b].any()
        assert r.obs[ACTION_MASK][t, b, int(r.action[t, b])]
        self.fillers += 1
        return True

    def row(self, r: Rollout, t: int, b: int, learner: int) -> None:
        seed, episode, step = r.obs["where"][t, b].tolist()
        assert self.restarts[seed] == (int(r.group_id[b]), int(r.stream_id[b]))
        if r.replayed and not r.state and not r.valid[t, b]:
            return  # behind a window's cut: masked, and of no further promise
        assert r.obs[ACTION_MASK][t, b].tolist() == mask_at(episode, step)
        assert bool(r.is_first[t, b]) == (step == 0)
        executed = step < length_of(episode)
        own = int(r.policy_id[t, b]) == learner
        if r.valid[t, b]:
            assert executed
            assert own
        assert r.record["seen"][t, b].tolist() == [seed, episode, step]
        assert r.record["after"][t, b].tolist() == [
            step + 1,
            (step + 1) * (int(r.policy_id[t, b]) + 1),
        ]
        assert int(r.record["actor"][t, b]) == int(r.policy_id[t, b])
        assert int(r.record["loaded"][t, b]) == int(r.version[t, b])
        action = int(r.action[t, b])
        over = executed and step + 1 == length_of(episode)
        ends = TERMINATES[episode % len(TERMINATES)]
        assert bool(r.terminated[t, b]) == (over and ends)
        assert bool(r.truncated[t, b]) == (over and not ends)
        assert float(r.reward[t, b]) == (reward_of(episode, step, action) if executed else 0.0)
        # the next row: the true final observation, or the first of the next episode
        after = [seed, episode, step + 1] if executed else [seed, episode + 1, 0]
        if r.trace_cut is None or not r.trace_cut[t, b] or r.replayed:
            assert r.obs["where"][t + 1, b].tolist() == after

    def column(self, r: Rollout, b: int) -> None:
        """What stands once per column, and the states."""
        _, episode, step = r.obs["where"][0, b].tolist()
        assert int(r.episode_id[b]) == episode
        if (episode, step) == (0, 0):
            assert float(r.last_reward[b]) == 0.0
        elif step > 0:
            last = reward_of(episode, step - 1, int(r.last_action[b]))
            assert float(r.last_reward[b]) == last
            assert mask_at(episode, step - 1)[int(r.last_action[b])]
        else:
            assert float(r.last_reward[b]) == 0.0  # the row that was spent on resetting
        still = (r.obs["where"][1:, b] == r.obs["where"][:-1, b]).all(-1)
        rows = len(still) - int(still.sum())
        if not r.replayed:
            acts = r.record["acts"][:rows, b]
            assert torch.equal(acts[1:], acts[:-1] + 1)
        if self.discount is not None and r.return_carry is not None:
            ended = (r.terminated | r.truncated)[: rows - 1, b]
            before_it = r.return_carry[: rows - 1, b].masked_fill(ended, 0.0)
            carry = r.reward[1:rows, b] + self.discount * before_it
            torch.testing.assert_close(r.return_carry[1:rows, b], carry)
        for i, state in enumerate(r.state.get("rows_and_sum", torch.empty(0, 0))):
            _seed, episode, step = r.obs["where"][i * self.state_every, b].tolist()
            if step > 0:
                row = min(i * self.state_every, len(r.policy_id) - 1)
                assert state[b].tolist() == [step, step * (int(r.policy_id[row, b]) + 1)]
            else:  # as it was before the reset
                before = length_of(episode - 1) + 1 if episode else 0
                assert int(state[b][0]) == before


class SeamLearner:
    """A learner that checks and publishes; `on_update` is what its kind asks for beyond that."""

    def __init__(
        self, plan: DataPlan, ledger: Ledger, policy: int = 0,
        on_update: Callable[["SeamLearner", Rollout], None] | None = None,
    ):  # fmt: skip
        self.plan, self.ledger, self.policy, self.on_update = plan, ledger, policy, on_update
        self.updates = self.version = 0
        self.kinds: list[str] = []
        self.env_steps: list[int] = []

    def update(self, batch: Rollout, env_steps: int) -> None:
        self.ledger.check(batch, self.policy)
        if not batch.replayed:
            lag = self.version - batch.version[batch.valid]
            assert (lag >= 0).all()
            if self.plan.max_policy_lag is not None:
                assert (lag <= self.plan.max_policy_lag).all()
            order = batch.stream_id.tolist()
            assert order == sorted(order)
            assert batch.valid.shape == (self.plan.unroll_steps, self.plan.columns_per_batch)
        self.kinds.append("replayed" if batch.replayed else "fresh")
        self.env_steps.append(env_steps)
        if self.on_update is not None:
            self.on_update(self, batch)
        self.updates += 1
        self.version += 1

    def publication(self) -> Publication:
        return Publication(self.version, {"policy": torch.tensor(self.policy)})

    def save(self) -> LearnerState:
        return LearnerState({}, {"updates": self.updates, "version": self.version})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class World:
    """How many streams there are, in how many groups, and when they begin anew."""

    groups: int
    group_size: int
    total_env_steps: int
    checkpoint_iterations: int = 10**9
    mixed: bool = True

    def assignment(self, policies: int) -> Assignment:
        return Assignment(policies, mixed=self.mixed and policies > 1)


def make_group(place: Place) -> VectorEnv:
    return make_vector_env(ScriptedWorld, place.num_streams)


def make_sampling(
    kind: str, world: World, learners: list[SeamLearner], rows: RowSpecs
) -> loop.Sampling:
    """serial; or lockstep0, lockstep1, async, with a digit behind: that many workers."""
    plan, assignment = learners[0].plan, world.assignment(len(learners))
    places = tuple(
        Place(group, group * world.group_size, world.group_size) for group in range(world.groups)
    )
    if kind == "serial":
        envs = [make_group(place) for place in places]
        options = SerialOptions(assignment)
        return SerialSampling(envs, SeamActor, plan, SEED, PhaseTimer(), options)
    kind, lag, num_workers, served = re.fullmatch(
        r"(lockstep|async)(\d?)x(\d)(server)?", kind
    ).groups()
    streams = world.groups * world.group_size
    slots = 1 + int(lag) if lag else 2 + plan.columns_per_batch // streams
    options = ServerOptions(SeamActor, exact=bool(lag)) if served else None
    spec = WorkerSpec(
        make_group, SeamActor, rows.spaces, plan, SEED, places, int(num_workers), slots, assignment,
        server=options,
    )  # fmt: skip
    workers = Workers(spec, [learner.publication() for learner in learners])
    if kind == "lockstep":
        return LockstepSampling(workers, PhaseTimer(), int(lag))
    return AsyncSampling(workers, PhaseTimer())


def drive(
    kind: str, world: World, learners: list[SeamLearner]
) -> tuple[Any, loop.Counters, list[dict[str, float]]]:
    """Runs the learners on a kind of runtime until the budget is spent."""
    plan, ledger = learners[0].plan, learners[0].ledger
    env = make_vector_env(ScriptedWorld, 1)
    actor = world.assignment(len(learners)).make_actor(SeamActor)
    rows = RowSpecs.of(env.spaces, actor)
    sampling = make_sampling(kind, world, learners, rows)
    kept = learners if plan.replay is not None else []
    replays = [
        Replay(plan, rows, ledger.streams, SEED + i, new_folder()) for i, _ in enumerate(kept)
    ]
    counters = loop.Counters()
    reports: list[dict[str, float]] = []
    played: list[Any] = []

    def after(batch: Batch) -> bool:
        reports.append(sampling.report())
        played.extend(batch.episodes)
        # the next restart is due right after this
        ledger.restarted(counters.iteration)
        return False

    ledger.restarted(0)
    try:
        loop.TrainingLoop(
            loop.Components(learners, sampling, replays),
            counters,
            loop.Budget(world.total_env_steps, world.checkpoint_iterations, max_cut_frac=1.0),
            loop.Hooks(lambda exact: None, after, lambda batch, policy: ""),
            PhaseTimer(),
        ).run()
    finally:
        sampling.close()
    # every episode that ended in a delivered row is told of, once
    assert sum(episode.row >= 0 for episode in played) == ledger.endings
    # no row of an environment is executed in vain, but for the last one
    assert counters.env_steps == world.total_env_steps
    if plan.max_policy_lag is None:
        assert len(ledger.past_budget) < ledger.streams
    assert counters.executed_env_steps == (
        counters.env_steps + counters.discarded_env_steps + counters.waiting_env_steps
    )
    assert {episode.length for episode in played} <= set(LENGTHS)
    return sampling, counters, reports
