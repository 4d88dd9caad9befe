"""Replay's cost: a draw and a store beside a plain buffer of numpy arrays, and a whole step.

    python benchmarks/replay.py [--kind windows|sequences|frames] [--rounds 15] [--record FILE]

Plain is the buffer that other libraries have: preallocated arrays of observations, next
observations, actions, rewards and ends; a store writes the next row of each, a draw is
``rng.integers``, fancy indexing of each array and ``torch.from_numpy``.  Frames are kept whole by
it, stacks of four.  For sequences it has the starts of whole unrolls.

Ours is what the runtime calls: ``Replay.store`` with a fresh batch, and the one batch that
``Replay.draws`` owes for it.  Rows have 17 floats as observation and 6 as action (frames: 84 x 84
bytes, stacked by four); episodes end after 250 rows, at different times in different streams.

A step is one iteration of the training loop at unroll 1 with serial sampling, a toy environment of
numpy arrays and a learner that does nothing: with replay (a store and a draw of 64 windows), and
without.  All variants take turns in one process with one thread; printed are medians of the rounds,
in microseconds of processor time (what else runs on the machine still takes its share of the
caches).
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from quintet.envs.vector import EnvDescription, ObsArrays, StepRow
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime import loop
from quintet.runtime.replay.replay import Replay
from quintet.runtime.sampler import SerialSampling
from quintet.runtime.slots import RowSpecs
from quintet.types import ActOutput, Obs, Publication, Rollout, Spaces, State, TensorSpec

EPISODE, FLOATS, ACTIONS = 250, 17, 6
FRAME, STACK = (84, 84), 4
ACTION = TensorSpec((ACTIONS,), torch.float32)
FOLDER = TemporaryDirectory()  # of all replays


@dataclass(frozen=True)
class Kind:
    """What is stored and drawn.

    premade: different fresh batches, which are stored in turn.
    """

    plan: ReplayPlan
    unroll_steps: int
    observation: spaces.Box
    premade: int

    @property
    def frames(self) -> bool:
        return self.observation.dtype == np.uint8


VECTOR = spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32)
KINDS = {
    "windows": Kind(ReplayPlan("windows", 100_000, 1, 64, "owed", 1.0), 1, VECTOR, 2_000),
    "sequences": Kind(ReplayPlan("sequences", 100_000, 20, 16, "owed", 0.1), 20, VECTOR, 100),
    "frames": Kind(
        ReplayPlan("windows", 5_000, 1, 32, "owed", 1.0),
        1,
        spaces.Box(0, 255, (STACK, *FRAME), np.uint8),
        2_000,
    ),
}


def fresh_batches(kind: Kind, streams: int) -> list[Rollout]:
    """Batches of T rows that follow on each other, as the runtime gives them."""
    random, steps = np.random.default_rng(0), kind.unroll_steps
    total = steps * kind.premade
    if kind.frames:
        frames = random.integers(0, 256, (total + STACK, streams, *FRAME), np.uint8)
        rows = np.stack([frames[i : i + total + 1] for i in range(STACK)], 2)
    else:
        rows = random.normal(size=(total + 1, streams, FLOATS)).astype(np.float32)
    moment = np.arange(total + 1)[:, None] + 31 * np.arange(streams)
    step, episode = moment % EPISODE, moment // EPISODE
    action = random.normal(size=(total, streams, ACTIONS)).astype(np.float32)
    reward = random.normal(size=(total, streams)).astype(np.float32)
    none = np.zeros((total, streams), np.int64)

    def batch(t: int) -> Rollout:
        def part(x: Any, more: int = 0) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x[t : t + steps + more]))

        before = max(t - 1, 0)
        return Rollout(
            obs={"obs": part(rows, 1)},
            action=part(action),
            reward=part(reward),
            terminated=part(step == EPISODE - 2),
            truncated=part(step == -1),
            valid=part(step != EPISODE - 1),
            is_first=part(step == 0, 1),
            record={},
            version=part(none),
            policy_id=part(none),
            stream_id=torch.arange(streams),
            group_id=torch.zeros(streams, dtype=torch.int64),
            episode_id=torch.from_numpy(episode[t].copy()),
            last_action=torch.from_numpy(action[before].copy()),
            last_reward=torch.from_numpy(reward[before].copy()),
            state={},
        )

    return [batch(steps * i) for i in range(kind.premade)]


class Plain:
    """The usual buffer, one ring for all streams."""

    def __init__(self, kind: Kind):
        capacity = kind.plan.capacity_steps
        shape, dtype = kind.observation.shape, kind.observation.dtype
        self.obs = np.zeros((capacity, *shape), dtype)
        self.next_obs = np.zeros((capacity, *shape), dtype)
        self.action = np.zeros((capacity, ACTIONS), np.float32)
        self.reward = np.zeros(capacity, np.float32)
        self.done = np.zeros(capacity, np.bool_)
        self.random = np.random.default_rng(0)
        self.kind, self.capacity, self.head, self.size = kind, capacity, 0, 0

    def store(self, batch: Rollout) -> None:
        """Streams one after the other, each with its T rows."""
        obs = batch.obs["obs"].numpy()
        rows = (obs[:-1], obs[1:], batch.action, batch.reward, batch.terminated)
        count = batch.reward.numel()
        place = (self.head + np.arange(count)) % self.capacity
        arrays = (self.obs, self.next_obs, self.action, self.reward, self.done)
        for array, x in zip(arrays, rows, strict=True):
            values = np.asarray(x)
            array[place] = values.swapaxes(0, 1).reshape(count, *values.shape[2:])
        self.head = (self.head + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def draw(self) -> list[Tensor]:
        plan, steps = self.kind.plan, self.kind.unroll_steps
        index = self.random.integers(0, self.size // steps, plan.columns)
        if self.kind.plan.kind == "sequences":
            index = index * steps + np.arange(steps)[:, None]
        arrays = (self.obs, self.next_obs, self.action, self.reward, self.done)
        return [torch.from_numpy(array[index]) for array in arrays]


def timed(call: Callable[[], Any], count: int) -> float:
    """Microseconds of processor time per call."""
    begin = time.thread_time()
    for _ in range(count):
        call()
    return 1e6 * (time.thread_time() - begin) / count


class InTurn:
    """Stores batches that come in the same memory, as serial sampling gives them."""

    def __init__(self, batches: list[Rollout]):
        self.batches = cycle(batches)
        self.memory = copy.deepcopy(batches[0])

    def store(self, into: Callable[[Rollout], None]) -> Callable[[int], float]:
        """Microseconds of processor time per store, without the copies before it."""

        def timed_stores(count: int) -> float:
            passed = 0.0
            for _ in range(count):
                self.next()
                begin = time.thread_time()
                into(self.memory)
                passed += time.thread_time() - begin
            return 1e6 * passed / count

        return timed_stores

    def next(self) -> Rollout:
        """Brings the next batch."""
        batch = next(self.batches)
        self.memory.obs["obs"].copy_(batch.obs["obs"])
        for name, x in vars(batch).items():
            if isinstance(x, Tensor):
                getattr(self.memory, name).copy_(x)
        return self.memory


def in_turns(calls: dict[str, Callable[[int], float]], count: int, rounds: int) -> dict[str, float]:
    """Medians over the rounds of what `count` calls took on average."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(call(count))
    return {name: median(each) for name, each in found.items()}


def new_folder() -> Path:
    return Path(mkdtemp(dir=FOLDER.name))


def drawing(kind: Kind, streams: int, rounds: int) -> dict[str, float]:
    """Draws and stores of a full replay and of a full buffer."""
    plan = DataPlan(kind.unroll_steps, streams, state_every=kind.unroll_steps, replay=kind.plan)
    specs = RowSpecs(Spaces(kind.observation, spaces.Box(-1, 1, (ACTIONS,))), ACTION, {}, {})
    replay, plain = Replay(plan, specs, streams, 0, new_folder()), Plain(kind)
    batches = InTurn(fresh_batches(kind, streams))
    for _ in range(kind.plan.capacity_steps // (streams * kind.unroll_steps) + kind.premade):
        batch = batches.next()
        replay.store(batch)
        plain.store(batch)
    iterations = count(1)
    owing = round(1 / kind.plan.rate)  # valid steps that owe one draw

    def draw() -> None:
        (_,) = replay.draws(owing, next(iterations))

    calls = {
        "draw": partial(timed, draw),
        "plain draw": partial(timed, plain.draw),
        "store": batches.store(replay.store),
        "plain store": batches.store(plain.store),
    }
    return in_turns(calls, 40 if kind.frames else 200, rounds)


class ToyEnv:
    """Streams of random walks that end after 250 steps, all in numpy."""

    description = EnvDescription("toy", "numpy")

    def __init__(self, streams: int):
        self.num_streams = streams
        self.spaces = Spaces(VECTOR, spaces.Box(-1, 1, (ACTIONS,), np.float32))
        self.place = np.zeros((streams, FLOATS), np.float32)
        self.step = np.zeros(streams, np.int64)

    def restart(self, seeds: Any, out: ObsArrays) -> None:  # noqa: ARG002
        self.step[:] = -31 * np.arange(self.num_streams)
        self.place[:] = 0
        out["obs"][:] = self.place

    def send(self, action: Any) -> None:
        self.place[:, :ACTIONS] += action
        self.step += 1

    def recv(self, out: StepRow) -> None:
        out.obs["obs"][:] = self.place
        over = self.step > EPISODE
        out.reward[:] = out.raw_reward[:] = self.place[:, 0]
        out.terminated[:] = self.step == EPISODE
        out.truncated[:] = out.success[:] = False
        np.logical_not(over, out=out.valid)
        self.step[over] = 0

    def render(self, stream: int) -> Any:
        raise NotImplementedError(stream)

    def close(self) -> None:
        """Nothing is open."""


class ToyActor:
    """The same action always."""

    action_spec = ACTION

    def __init__(self, streams: int):
        self.record_specs: dict[str, TensorSpec] = {}
        self.state_specs: dict[str, TensorSpec] = {}
        self.out = ActOutput(torch.ones(streams, ACTIONS), torch.ones(streams, ACTIONS), {}, {})

    def load(self, publication: Publication) -> None:
        """There are no weights."""

    def initial_state(self, num_streams: int) -> State:  # noqa: ARG002
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return torch.rand(steps, num_streams, generator=generator)

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:  # noqa: ARG002
        return self.out


class ToyLearner:
    """Does nothing; counts."""

    def __init__(self, plan: DataPlan):
        self.plan, self.updates = plan, 0

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:  # noqa: ARG002
        self.updates += 1
        return {}

    def publication(self) -> Publication:
        return Publication(self.updates, {})


def steps(streams: int, with_replay: bool) -> Callable[[int], float]:
    """Microseconds of processor time per iteration of the loop, which draws one batch in each."""
    replay_plan = ReplayPlan("windows", 100_000, 1, 64, "owed", 1 / streams)
    plan = DataPlan(1, streams, replay=replay_plan if with_replay else None)
    env, timer = ToyEnv(streams), PhaseTimer()
    learner: Any = ToyLearner(plan)
    sampling = SerialSampling([env], lambda: ToyActor(streams), plan, 0, timer)
    rows = RowSpecs.of(env.spaces, ToyActor(streams))
    replays = [Replay(plan, rows, streams, 0, new_folder())] if with_replay else []
    components, counters = loop.Components([learner], sampling, replays), loop.Counters()

    def run(count: int) -> float:
        last = counters.iteration + count
        hooks = loop.Hooks(lambda _: None, lambda *_: counters.iteration == last, lambda _: "")
        begin = time.thread_time()
        loop.TrainingLoop(components, counters, loop.Budget(1 << 60, 1 << 60), hooks, timer).run()
        return 1e6 * (time.thread_time() - begin) / count

    return run


def stepping(streams: int, rounds: int) -> dict[str, float]:
    """Whole steps of the loop."""
    calls = {"step": steps(streams, True), "step without replay": steps(streams, False)}
    return in_turns(calls, 1_000, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name, kind in KINDS.items():
        if args.kind in (None, name):
            for streams in (1, 8):
                found[f"{name}, {streams} streams"] = drawing(kind, streams, args.rounds)
    if args.kind in (None, "windows"):
        for streams in (1, 8):
            found[f"loop, {streams} streams"] = stepping(streams, args.rounds)
    for name, times in found.items():
        print(name)
        for what, value in times.items():
            plain = times.get(f"plain {what}")
            ratio = f"  {value / plain:5.2f} x plain" if plain else ""
            print(f"    {what:24} {value:9.1f} us{ratio}")
    if args.record:
        record = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "us": found}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
