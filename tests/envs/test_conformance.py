"""One script through every way in: what is learnt from it must not depend on the way.

Every target that `quintet.ops` computes from the collected rows must be the one that follows from
the script itself, by (stream, episode, step); so must what a recurrent policy carries along.
"""

import copy
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import record
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from scripted_helpers import Scripted

from quintet.envs.public import make_vector_env
from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.ops.returns import gae, lambda_return
from quintet.ops.vtrace import vtrace
from quintet.protocols import DataPlan
from quintet.runtime.sampler import GroupSampler, unroll
from quintet.runtime.slots import RowSpecs, Slot, slot_specs, zeros
from quintet.types import ActOutput, Obs, Publication, Rollout, State, TensorSpec

SEEDS = [3, 8, 14]
UNROLL, UNROLLS = 12, 20
GAMMA, LAMBDA = 0.9, 0.8
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED

Key = tuple[int, int, int]
"""(stream's seed, episode, step)."""


def length_of(seed: int, episode: int) -> int:
    """1 to 6 steps, in another rhythm for every stream."""
    return 1 + (7 * seed + 5 * episode + episode // 3) % 6


def terminates(seed: int, episode: int) -> bool:
    return (seed + episode) % 3 == 0


def reward_of(key: Key, action: int) -> float:
    return round(math.cos(key[0] + 0.7 * key[1] + 1.9 * key[2]) + 0.25 * action, 3)


def value_of(key: Key) -> float:
    return math.sin(0.3 * key[0] + 1.1 * key[1] + 0.6 * key[2])


def rho_of(key: Key) -> float:
    return math.exp(0.4 * math.sin(1.0 + key[0] + key[1] + key[2]))


class Script(gymnasium.Env):
    """Observes (seed, episode, step); the action of a step must be the one for its observation."""

    metadata: ClassVar = {}

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1000, (3,), np.int64)
        self.action_space = spaces.Discrete(4, start=2)
        self.key = (0, -1, 0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        seed, episode = (self.key[0], self.key[1]) if seed is None else (seed, -1)
        self.key = (seed, episode + 1, 0)
        return np.array(self.key), {}

    def step(self, action):
        assert action in self.action_space, action
        reward = reward_of(self.key, int(action) - 2)
        seed, episode, step = self.key
        self.key = (seed, episode, step + 1)
        over = step + 1 == length_of(seed, episode)
        ends = terminates(seed, episode)
        return np.array(self.key), reward, over and ends, over and not ends, {"lives": 3}


def action_of(key: Key) -> int:
    """Counted from 0."""
    return sum(key) % 4


def sync(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Script] * len(SEEDS), autoreset_mode=mode)


def wrapped(mode: AutoresetMode, num_envs: int = len(SEEDS)) -> VectorWrapper:
    """What is wrapped can't be taken apart."""
    return VectorWrapper(SyncVectorEnv([Script] * num_envs, autoreset_mode=mode))


class Native(gymnasium.vector.VectorEnv):
    """Same-step resets as a simulator of its own gives them: batches, without masks."""

    def __init__(self, num_envs: int) -> None:
        self.envs = [Script() for _ in range(num_envs)]
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": "SameStep"}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.ignores_mask = False

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        mask = mask | self.ignores_mask
        for i, env in enumerate(self.envs):
            if mask[i]:
                env.reset(seed=None if seed is None else seed[i])
        return np.stack([env.key for env in self.envs]), {}

    def step(self, actions):
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        final = np.stack([env.key for env in self.envs])
        terminated, truncated = (np.array([s[i] for s in steps]) for i in (2, 3))
        for env, over in zip(self.envs, terminated | truncated, strict=True):
            if over:
                env.reset()
        reward = np.array([s[1] for s in steps], np.float64)
        infos = {"final_obs": final} if (terminated | truncated).any() else {}
        return np.stack([env.key for env in self.envs]), reward, terminated, truncated, infos


WHOLE: dict[str, Callable[[], VectorEnv]] = {
    "callable": lambda: make_vector_env(Script, len(SEEDS)),
    "sync next-step": lambda: make_vector_env(sync(NEXT)),
    "sync same-step": lambda: make_vector_env(sync(SAME)),
    "sync disabled": lambda: make_vector_env(sync(DISABLED)),
    "wrapped next-step": lambda: make_vector_env(wrapped(NEXT)),
    "callable of groups": lambda: make_vector_env(partial(wrapped, NEXT), len(SEEDS)),
    "async next-step": lambda: make_vector_env(AsyncVectorEnv([Script] * len(SEEDS))),
}
"""Ways on which every episode is seen."""

GIVES_UP: dict[str, Callable[[], VectorEnv]] = {
    "wrapped same-step": lambda: make_vector_env(wrapped(SAME)),
    "wrapped disabled": lambda: make_vector_env(wrapped(DISABLED)),
    "native same-step": lambda: make_vector_env(Native(len(SEEDS))),
    "async same-step": lambda: make_vector_env(
        AsyncVectorEnv([Script] * len(SEEDS), autoreset_mode=SAME)
    ),
}
"""Ways on which an episode is given up at each ending, unless all streams end together."""


class Recurrent:
    """An actor whose value is a running sum over the episode, ``h = h / 2 + value_of(key)``."""

    action_spec = TensorSpec((), torch.int64)
    record_specs: ClassVar = {"value": TensorSpec((), torch.float64)}
    state_specs: ClassVar = {"h": TensorSpec((), torch.float64)}

    def load(self, publication: Publication) -> None:
        raise AssertionError("nothing is published here")

    def initial_state(self, num_streams: int) -> State:
        return {"h": torch.full((num_streams,), 99.0, dtype=torch.float64)}  # must not be used

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> torch.Tensor:
        return torch.zeros(steps, num_streams)

    def act(
        self, obs: Obs, state: State, is_first: torch.Tensor, noise: torch.Tensor | None
    ) -> ActOutput:
        keys = obs["obs"].tolist()
        action = torch.tensor([action_of(tuple(key)) for key in keys])
        h = torch.where(is_first, 0.0, state["h"]) / 2 + torch.tensor([value_of(k) for k in keys])
        return ActOutput(action, action, {"value": h}, {"h": h})


def play(env: VectorEnv) -> list[Rollout]:
    """Unrolls of `env` as the runtime collects them, each of its own memory."""
    actor = Recurrent()
    plan = DataPlan(UNROLL, env.num_streams, state_every=UNROLL)
    rows = RowSpecs.of(env.spaces, actor)
    slot = Slot(zeros(slot_specs(rows, plan, env.num_streams)), rows, plan)
    sampler = GroupSampler(env, actor, plan, 0)
    sampler.restart(SEEDS[: env.num_streams], 0, slot)
    unrolls = []
    for _ in range(UNROLLS):
        unroll([sampler], [slot], PhaseTimer())
        unrolls.append(copy.deepcopy(slot.rollout))
    env.close()
    return unrolls


def as_bytes(unrolls: list[Rollout]) -> bytes:
    return b"".join(
        x.numpy().tobytes()
        for u in unrolls
        for x in (u.obs["obs"], u.reward, u.terminated, u.truncated, u.valid, u.is_first,
                  u.episode_id, u.last_action, u.last_reward, u.record["value"], u.state["h"])
    )  # fmt: skip


def by_key(unroll: Rollout) -> dict[str, dict[Key, float]]:
    """What learners compute from an unroll by (stream, episode, step), where the episode ends in
    it; the value of row T is that of an act from the state before it.
    """
    last = Recurrent().act(
        {"obs": unroll.obs["obs"][-1]}, {"h": unroll.state["h"][-1]}, unroll.is_first[-1], None
    )
    v = torch.cat([unroll.record["value"], last.record["value"][None]])
    keys = [[tuple(key) for key in row] for row in unroll.obs["obs"].tolist()]
    rho = torch.tensor([[rho_of(key) for key in row] for row in keys[:-1]], dtype=torch.float64)
    r, not_cut = unroll.reward.double(), unroll.not_cut_t.double()
    discount = GAMMA * (~unroll.terminated).double()
    advantage, target = gae(r, discount, not_cut, v[:-1], v[1:], lambda_=LAMBDA)
    vs, pg = vtrace(
        v[:-1], v[1:], r, discount, not_cut, rho,
        rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, lambda_=LAMBDA,
    )  # fmt: skip
    returns = lambda_return(r, discount, not_cut, v[1:], lambda_=LAMBDA)
    made = {"value": v[:-1], "advantage": advantage, "target": target}
    made |= {"vs": vs, "pg": pg, "lambda": returns}
    ends_later = (1 - not_cut).flip(0).cumsum(0).flip(0) > 0
    rows = torch.argwhere(unroll.valid & ends_later).tolist()
    return {name: {keys[t][b]: float(x[t, b]) for t, b in rows} for name, x in made.items()}


def by_script(seed: int, episode: int) -> dict[str, dict[Key, float]]:
    """The same of one episode from the definitions, without any row of any environment."""
    n = length_of(seed, episode)
    keys = [(seed, episode, step) for step in range(n + 1)]
    v = list(itertools.accumulate(map(value_of, keys), lambda h, value: h / 2 + value))
    if terminates(seed, episode):
        v[n] = 0.0
    r = [float(np.float32(reward_of(key, action_of(key)))) for key in keys[:n]]
    names = ("value", "advantage", "target", "vs", "pg", "lambda")
    out: dict[str, dict[Key, float]] = {name: {} for name in names}
    trace = correction = 0.0
    following, next_vs = v[n], v[n]
    for k in reversed(range(n)):
        delta = r[k] + GAMMA * v[k + 1] - v[k]
        trace = delta + GAMMA * LAMBDA * trace
        clipped = min(1.0, rho_of(keys[k]))
        correction = clipped * delta + GAMMA * LAMBDA * clipped * correction
        following = r[k] + GAMMA * ((1 - LAMBDA) * v[k + 1] + LAMBDA * following)
        # At the last step there is nothing to correct: the target of what follows is its value.
        after = v[n] if k == n - 1 else next_vs
        out["value"][keys[k]] = v[k]
        out["advantage"][keys[k]] = trace
        out["target"][keys[k]] = trace + v[k]
        out["lambda"][keys[k]] = following
        out["vs"][keys[k]] = next_vs = v[k] + correction
        out["pg"][keys[k]] = clipped * (r[k] + GAMMA * after - v[k])
    return out


@pytest.mark.parametrize("way", [*WHOLE, *GIVES_UP])
def test_targets_are_those_of_the_script(way):
    seen: set[Key] = set()
    truncated_at_last_row = 0
    for part in play({**WHOLE, **GIVES_UP}[way]()):
        made = by_key(part)
        truncated_at_last_row += int(part.truncated[-1].sum())
        for key in made["value"]:
            # The part may have begun within the episode, which does not change its targets.
            # The actor's values are float32 numbers, added up in float64.
            for name, wanted in by_script(key[0], key[1]).items():
                assert made[name][key] == pytest.approx(wanted[key], abs=2e-7), (name, key)
        seen |= made["value"].keys()
    assert truncated_at_last_row > 0
    assert len(seen) > UNROLL * UNROLLS
    assert {terminates(seed, episode) for seed, episode, _ in seen} == {True, False}


@pytest.mark.parametrize("way", list(WHOLE))
def test_ways_without_loss_give_the_same_bytes(way):
    assert as_bytes(play(WHOLE[way]())) == as_bytes(play(WHOLE["callable"]()))


@pytest.mark.parametrize("way", [*WHOLE, *GIVES_UP])
def test_rows_keep_the_promises_of_the_layout(way):
    unrolls = play({**WHOLE, **GIVES_UP}[way]())
    keys = torch.cat([u.obs["obs"][:-1] for u in unrolls] + [unrolls[-1].obs["obs"][-1:]]).tolist()
    reward, terminated, truncated, valid = (
        torch.cat([getattr(u, name) for u in unrolls]).tolist()
        for name in ("reward", "terminated", "truncated", "valid")
    )
    for b, seed in enumerate(SEEDS):
        assert keys[0][b] == [seed, 0, 0]
        for t in range(UNROLL * UNROLLS):
            now, then = tuple(keys[t][b]), tuple(keys[t + 1][b])
            told = reward[t][b], terminated[t][b], truncated[t][b]
            over = now[2] == length_of(seed, now[1])
            assert valid[t][b] == (not over)
            if over:  # the final observation was seen; the next episode begins at its start
                assert then[1] == now[1] + 1 or (way in GIVES_UP and then[1] > now[1])
                assert then == (seed, then[1], 0)
                assert told == (0, False, False)
            else:
                assert then == (seed, now[1], now[2] + 1)
                ends = then[2] == length_of(seed, now[1])
                how = terminates(seed, now[1])
                paid = np.float32(reward_of(now, action_of(now)))
                assert told == (paid, ends and how, ends and not how)


@pytest.mark.parametrize("mode", [SAME, DISABLED])
def test_streams_that_end_together_lose_nothing(mode):
    """So a single stream never does."""
    one = make_vector_env(partial(wrapped, mode), 1)
    assert as_bytes(play(one)) == as_bytes(play(make_vector_env(Script, 1)))
    steps = np.zeros((30, 2), np.int64)
    together = make_vector_env(partial(wrapped, mode), 2)
    alone = make_vector_env(Script, 2)
    assert record(together, [3, 3], steps).as_bytes() == record(alone, [3, 3], steps).as_bytes()


@pytest.mark.parametrize("way", ["wrapped same-step", "wrapped disabled", "native same-step",
                                 "async same-step", "wrapped next-step"])  # fmt: skip
def test_restart_begins_anew_wherever_the_streams_stand(way):
    env = {**WHOLE, **GIVES_UP}[way]()
    actions = np.zeros((40, 3), np.int64)
    first = record(env, SEEDS, actions)
    for steps in range(1, 8):
        record(env, [5, 6, 7], actions[:steps])
        env.send(actions[0])  # one is under way
        assert record(env, SEEDS, actions).as_bytes() == first.as_bytes()
    env.close()


def test_targets_from_envpool_are_those_of_gymnasium():
    """Gymnasium replays each of EnvPool's episodes, from its first observation by its actions."""
    limit, rows = 12, 120
    env = make_vector_env("CartPole-v1", 2, backend="envpool", kwargs={"max_episode_steps": limit})
    # The same action falls over before the limit, alternating ones do not.
    actions = np.stack([np.zeros(rows, np.int64), np.arange(rows) % 2], 1)
    got = record(env, [1, 2], actions)
    assert got.terminated[:, 0].any()
    assert got.truncated[:, 1].any()
    v = torch.from_numpy(np.sin(got.obs["obs"].astype(np.float64).sum(-1)))
    cut = torch.from_numpy(got.terminated | got.truncated).double()
    discount = GAMMA * (1 - torch.from_numpy(got.terminated).double())
    reward = torch.from_numpy(got.reward).double()
    made = gae(reward, discount, 1 - cut, v[:-1], v[1:], lambda_=LAMBDA).advantage_tm1.numpy()
    plain = gymnasium.make("CartPole-v1").unwrapped
    for b in range(2):
        firsts = [0, *(np.nonzero(~got.valid[:, b])[0] + 1)]
        for first in firsts[:-1]:
            plain.reset(seed=0)
            plain.state = tuple(got.obs["obs"][first, b].astype(np.float64))
            obs, over, k = [plain.state], False, 0
            while not over and k < limit:
                state, _, over, _, _ = plain.step(int(actions[first + k, b]))
                obs.append(state)
                k += 1
            assert got.terminated[first + k - 1, b] == over
            assert got.truncated[first + k - 1, b] == (not over)
            values = [math.sin(sum(float(x) for x in each)) for each in obs]
            trace = 0.0
            for i in reversed(range(k)):
                after = 0.0 if over and i == k - 1 else values[i + 1]
                trace = 1.0 + GAMMA * after - values[i] + GAMMA * LAMBDA * trace
                # Observations are float32: sums of size 3 are off by 6e-8.
                assert made[first + i, b] == pytest.approx(trace, abs=2e-7)


@pytest.mark.parametrize(("mode", "lengths"), [(SAME, (3, 1, 1)), (DISABLED, (3, 1))])
def test_what_happens_in_a_step_that_is_given_up_is_not_told(mode, lengths):
    """What is given up pays and ends with its first step, in SAME_STEP twice."""
    makers = [partial(Scripted, lengths, ("terminate",)), partial(Scripted, (99,))]
    env = make_vector_env(VectorWrapper(SyncVectorEnv(makers, autoreset_mode=mode)))
    got = record(env, [1, 2], np.zeros((24, 2), np.int64))
    np.testing.assert_array_equal(got.terminated[:, 0], np.arange(24) % 4 == 2)
    np.testing.assert_array_equal(got.valid[:, 0], np.arange(24) % 4 != 3)
    assert not got.truncated.any()
    assert not got.reward[~got.valid].any()


class Nested(gymnasium.Env):
    """Observations and actions in parts; the step is seen in each, and acts by each."""

    def __init__(self) -> None:
        parts = {"a": spaces.Discrete(9, start=5), "b": spaces.Tuple([spaces.Box(0, 99, (2,))])}
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Dict({"x": spaces.Discrete(3, start=1), "y": spaces.Box(0, 1)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.limit = 0, int(self.np_random.integers(2, 6))
        return self.obs(), {}

    def obs(self):
        return {"a": 5 + self.count, "b": (np.full(2, self.count, np.float32),)}

    def step(self, action):
        self.count += 1
        reward = int(action["x"]) + float(action["y"][0])
        return self.obs(), reward, False, self.count == self.limit, {}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nested_spaces(mode):
    env = make_vector_env(VectorWrapper(SyncVectorEnv([Nested] * 2, autoreset_mode=mode)))
    own = make_vector_env(Nested, 2)
    assert env.spaces == own.spaces
    actions = np.tile(np.array([[2, 0.25], [1, 0.5]], np.float32), (30, 1, 1))
    got = record(env, [1, 2], actions)
    np.testing.assert_array_equal(got.reward[got.valid[:, 0], 0], 3.25)
    np.testing.assert_array_equal(got.reward[got.valid[:, 1], 1], 2.5)
    count = np.zeros(2)
    for t in range(30):
        count = np.where(got.valid[t], count + 1, 0)
        np.testing.assert_array_equal(got.obs["a"][t + 1], count)
        np.testing.assert_array_equal(got.obs["b/0"][t + 1, :, 1], count)
    if mode == NEXT:
        assert got.as_bytes() == record(own, [1, 2], actions).as_bytes()
