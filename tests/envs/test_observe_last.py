"""The last action and reward as observations, against the actions and rewards themselves."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import Custom, Record, record
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from packing_helpers import pack_action
from scripted_helpers import Scripted

import quintet
from quintet.envs.public import make_vector_env
from quintet.envs.vector import VectorEnv, allocate_row
from quintet.errors import ConfigError, QuintetError
from quintet.models.leaves import normalized_leaves
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime.replay.replay import Replay, RowSpecs
from quintet.runtime.sampler import SerialSampling
from quintet.spaces import action_spec, observation_leaves
from quintet.types import ActOutput, Publication, TensorSpec

STREAMS, STEPS = 3, 60
OBS = spaces.Box(-1, 1, (2,), np.float32)
SMALL = {
    "env.num_streams": 4, "unroll_steps": 32, "minibatch_steps": 64, "model.policy_hidden": (16,),
    "report.progress": False, "report.sinks": [], "runtime.compile": "off",
}  # fmt: skip


def actions_of(env: VectorEnv, steps: int = STEPS) -> np.ndarray:
    """Random packed actions ``[T, B, ...]``."""
    env.spaces.action.seed(0)
    drawn = [[env.spaces.action.sample() for _ in range(env.num_streams)] for _ in range(steps)]
    return np.array([[pack_action(env.spaces.action, x) for x in row] for row in drawn])


def check(got: Record, actions: np.ndarray, nones: dict[str, tuple[slice, Any]]) -> None:
    """`nones`: of every leaf its places in a packed action and its value for "none yet"."""
    flat = actions.reshape(*actions.shape[:2], -1)
    resets = 0
    for stream in range(actions.shape[1]):
        for t in range(len(actions) + 1):
            first = t == 0 or not got.valid[t - 1, stream]
            resets += first
            reward = 0.0 if first else max(-1.0, min(1.0, got.raw_reward[t - 1, stream]))
            assert got.obs["last_reward"][t, stream] == np.float32(reward)
            for path, (places, none) in nones.items():
                seen = np.ravel(got.obs[path][t, stream]).tolist()
                if first:
                    assert seen == np.broadcast_to(none, len(seen)).tolist()
                else:
                    assert seen == flat[t - 1, stream, places].tolist()
    assert resets > actions.shape[1]


def wrapped(mode: AutoresetMode) -> VectorWrapper:
    return VectorWrapper(SyncVectorEnv([Scripted] * STREAMS, autoreset_mode=mode))


WAYS: dict[str, Any] = {
    "callable": lambda **kw: make_vector_env(Scripted, STREAMS, **kw),
    "next-step": lambda **kw: make_vector_env(wrapped(AutoresetMode.NEXT_STEP), **kw),
    "same-step": lambda **kw: make_vector_env(wrapped(AutoresetMode.SAME_STEP), **kw),
    "disabled": lambda **kw: make_vector_env(wrapped(AutoresetMode.DISABLED), **kw),
    "envpool": lambda **kw: make_vector_env("CartPole-v1", STREAMS, backend="envpool", **kw),
    "gymnasium": lambda **kw: make_vector_env("CartPole-v1", STREAMS, backend="gymnasium", **kw),
    "ale": lambda **kw: make_vector_env(
        "Pong-v5", STREAMS, backend="ale", kwargs={"max_episode_steps": 10, "noop_max": 1}, **kw
    ),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way == "ale")) for way in WAYS]
)
def test_leaves_are_the_last_action_and_reward(way: str) -> None:
    """Beside them everything is as without them: the true final observation, the reset rows."""
    if way in ("envpool", "ale"):
        pytest.importorskip({"envpool": "envpool", "ale": "ale_py"}[way])
    bare, env = WAYS[way](), WAYS[way](observe_last=True, reward_clip="soft_asymmetric")
    choices = int(env.spaces.action.n)
    assert list(env.spaces.observation.spaces) == ["obs", "last_action", "last_reward"]
    assert env.spaces.observation["obs"] == bare.spaces.observation
    assert env.spaces.observation["last_action"] == spaces.Discrete(choices + 1)
    assert env.spaces.observation["last_reward"] == spaces.Box(-1.0, 1.0, (), np.float32)
    for seeds in ([1, 2, 3], [4, 5, 6]):  # a restart forgets what came before
        actions = actions_of(env, 25 if way == "ale" else STEPS)
        plain, got = record(bare, seeds, actions), record(env, seeds, actions)
        check(got, actions, {"last_action": (slice(0, 1), choices)})
        np.testing.assert_array_equal(got.obs["obs"], plain.obs["obs"])
        np.testing.assert_array_equal(got.valid, plain.valid)
        np.testing.assert_array_equal(got.raw_reward, plain.raw_reward)
    bare.close()
    env.close()


NESTED = spaces.Dict(
    {
        "aim": spaces.Box(np.array([2.0, -9.0]), np.array([3.0, 9.0]), dtype=np.float64),
        "more": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
    }
)
ACTIONS: list[tuple[spaces.Space, dict[str, tuple[slice, Any]], dict[str, spaces.Space]]] = [
    (
        spaces.Box(-2.0, 2.0, (2, 2), np.float32),
        {"last_action": (slice(0, 4), 0)},
        {"last_action": spaces.Box(-2.0, 2.0, (2, 2), np.float32)},
    ),
    (
        spaces.MultiDiscrete([2, 5], start=[1, 0]),
        {"last_action": (slice(0, 2), [2, 5])},
        {"last_action": spaces.MultiDiscrete([3, 6])},
    ),
    (
        spaces.Box(1, np.array([2, 5]), (2,), np.int64),
        {"last_action": (slice(0, 2), [2, 5])},
        {"last_action": spaces.MultiDiscrete([3, 6])},
    ),
    (
        spaces.MultiBinary(3),
        {"last_action": (slice(0, 3), 0)},
        {"last_action": spaces.MultiBinary(3)},
    ),
    (
        NESTED,
        {
            "last_action/aim": (slice(0, 2), 0),
            "last_action/more/0": (slice(2, 3), 3),
            "last_action/more/1": (slice(3, 5), 0),
        },
        {  # 0 must be within the bounds
            "last_action/aim": spaces.Box(
                np.array([0, -9], np.float32), np.array([3, 9], np.float32)
            ),
            "last_action/more/0": spaces.Discrete(4),
            "last_action/more/1": spaces.MultiBinary(2),
        },
    ),
]


class Ending(Custom):
    """Ends every fourth step and pays 3, -3 and a half in turn."""

    def step(self, action):
        obs, *_ = super().step(action)
        return obs, (3.0, -3.0, 0.5)[self.count % 3], self.count == 4, False, {}


@pytest.mark.parametrize(("action", "nones", "leaves"), ACTIONS)
def test_every_kind_of_action(action: spaces.Space, nones: Any, leaves: Any) -> None:
    make = partial(Ending, OBS, np.zeros(2, np.float32), action)
    env = make_vector_env(make, STREAMS, observe_last=True)
    found = observation_leaves(env.spaces.observation)
    assert {path: leaf for path, leaf in found.items() if path.startswith("last_a")} == leaves
    actions = actions_of(env)
    assert actions.shape[2:] == action_spec(action).shape
    got = record(env, [1, 2, 3], actions)
    check(got, actions, nones)
    assert set(got.obs["last_reward"].ravel().tolist()) == {-1.0, 0.0, 0.5, 1.0}
    for path, leaf in leaves.items():
        assert all(value in leaf for value in got.obs[path].reshape(-1, *leaf.shape))


def test_the_last_action_is_the_one_received() -> None:
    action = spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32))
    received = []

    class Noting(Custom):
        def step(self, action):
            received.append(action.tolist())
            return super().step(action)

    env = make_vector_env(partial(Noting, OBS, np.zeros(2), action), 1, observe_last=True)
    got = record(env, [1], np.array([[[-3.0, 4.0]], [[5.0, -6.0]]], np.float32))
    assert received == [[0.0, 1.0], [5.0, -6.0]]
    assert got.obs["last_action"][1:, 0].tolist() == received


def test_it_stands_outside_of_the_frame_stack() -> None:
    action = spaces.Box(-2.0, 2.0, (1,), np.float32)
    make = partial(Ending, OBS, np.zeros(2, np.float32), action)
    env = make_vector_env(make, 2, frame_stack=3, observe_last=True)
    shapes = {name: leaf.shape for name, leaf in env.spaces.observation.spaces.items()}
    assert shapes == {"obs": (3, 2), "last_action": (1,), "last_reward": ()}
    actions = actions_of(env)
    check(record(env, [1, 2], actions), actions, {"last_action": (slice(0, 1), 0)})


def test_parts_of_a_dict_or_tuple_keep_their_names() -> None:
    parts = {"x": OBS, "deep": spaces.Dict({"y": OBS})}
    values = {"x": np.zeros(2, np.float32), "deep": {"y": np.ones(2, np.float32)}}
    env = make_vector_env(lambda: Custom(spaces.Dict(parts), values), 1, observe_last=True)
    got = record(env, [1], actions_of(env, 2))
    assert list(got.obs) == ["deep/y", "x", "last_action", "last_reward"]
    both = spaces.Tuple((OBS, spaces.Discrete(4)))
    env = make_vector_env(lambda: Custom(both, (values["x"], 2)), 1, observe_last=True)
    got = record(env, [1], actions_of(env, 2))
    assert list(got.obs) == ["0", "1", "last_action", "last_reward"]
    assert got.obs["1"].tolist() == [[2]] * 3


def test_leaves_of_these_names_are_refused() -> None:
    made = []

    def make() -> Custom:
        made.append(Custom(spaces.Dict({"last_action": OBS, "x": OBS}), {}))
        return made[-1]

    with pytest.raises(ConfigError, match=r"without \['last_action'\]; .* has \['last_action', 'x"):
        make_vector_env(make, 2, observe_last=True)
    assert all(env.closed for env in made)


class Alternate(gymnasium.Env):
    """Pays 1 for another action than the last one, for 10 steps; nothing can be seen."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        self.last, self.steps = 3, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward, self.last = float(action != self.last), int(action)
        return np.zeros(1, np.float32), reward, self.steps == 10, False, {}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> quintet.Policy:
    folder = tmp_path_factory.mktemp("last") / "run"
    config = {**SMALL, "env.observe_last": True, "learning_rate": 3e-3, "eval.episodes": 0}
    return quintet.train("ppo", Alternate, 5_000, run_dir=folder, config=config).policy


@pytest.mark.slow
def test_a_feed_forward_policy_learns_what_it_could_not_see_else(policy: quintet.Policy) -> None:
    """Whoever sees nothing takes one action for ever: one reward at most."""
    assert quintet.evaluate(policy, Alternate, 4).mean == 10.0


def test_policy_acts_on_these_leaves(policy: quintet.Policy, tmp_path: Any) -> None:
    loaded = quintet.load(policy.save(tmp_path / "p"))
    assert loaded.env.observe_last
    for each in (policy, loaded):
        last, obs = 5, np.zeros(1, np.float32)  # 5: none yet
        for step in range(6):
            seen = {"obs": obs, "last_action": last, "last_reward": float(step > 0)}
            action, _ = each.act(seen)
            assert action == 3 + (step + 1) % 2
            last = action
    batch = {
        "obs": np.zeros((2, 1), np.float32), "last_action": np.array([3, 4]),
        "last_reward": np.ones(2, np.float32),
    }  # fmt: skip
    assert policy.act(batch)[0].tolist() == [4, 3]
    with pytest.raises(QuintetError, match=r"the leaves \['last_action', 'last_reward', 'obs'\]"):
        policy.act(obs)


def test_normalisers_leave_them_alone() -> None:
    two = spaces.Tuple((spaces.Box(-2.0, 2.0, (1,), np.float32), spaces.Discrete(2)))
    for action in (two, two[0]):
        env = make_vector_env(partial(Custom, OBS, np.zeros(2), action), 1, observe_last=True)
        assert normalized_leaves(env.spaces.observation) == {"obs": (2,)}


class RandomActor:
    """Takes what its noise names."""

    record_specs: dict[str, TensorSpec] = {}
    action_spec = TensorSpec((), torch.int64)
    state_specs: dict[str, TensorSpec] = {}

    def load(self, publication: Publication) -> None: ...

    def initial_state(self, num_streams: int) -> dict[str, torch.Tensor]:
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: Any) -> torch.Tensor:
        return torch.randint(0, 5, (steps, num_streams, 1), generator=generator)

    def act(self, obs, state, is_first, noise) -> ActOutput:
        return ActOutput(noise[:, 0], noise[:, 0], {}, {})


def test_rollouts_and_replay_hold_the_leaves_of_their_rows(tmp_path: Any) -> None:
    """Scripted says what it was told: -1 at a reset."""
    plan = DataPlan(
        7, STREAMS, replay=ReplayPlan("windows", 90, steps=3, columns=16, draws="owed", rate=2.0)
    )
    env = make_vector_env(Scripted, STREAMS, observe_last=True)
    rows = RowSpecs(env.spaces, RandomActor.action_spec, {}, {})
    sampling = SerialSampling([env], RandomActor, plan, 1, PhaseTimer())
    replay = Replay(plan, rows, STREAMS, 1, tmp_path / "replay", slack_steps=7)
    sampling.publish(Publication(0, {}))
    sampling.restart(0)
    seen = 0
    for iteration in range(12):
        fresh = sampling.collect(10**9).rollout
        replay.store(fresh)
        for batch in (fresh, *replay.draws(1, iteration)):
            told, leaf = batch.obs["obs"][..., 3], batch.obs["last_action"]
            for t, b in batch.valid.nonzero().tolist():
                for row in (t, t + 1):
                    want = int(told[row, b]) if int(told[row, b]) >= 0 else 5
                    assert int(leaf[row, b]) == want
                reward = float(batch.reward[t, b])
                assert float(batch.obs["last_reward"][t + 1, b]) == min(1.0, reward)
                seen += batch.replayed
    assert seen > 500


def test_a_row_that_is_handed_in_is_all_that_is_written(policy: quintet.Policy) -> None:
    """Rows belong to the caller: what was written into the one before stays."""
    env = make_vector_env(Scripted, 2, observe_last=True)
    rows = [allocate_row(env.spaces.observation, 2) for _ in range(3)]
    env.restart([1, 2], rows[0].obs)
    for number, row in enumerate(rows):
        action = np.array([number, 4 - number])
        env.send(action)
        env.recv(row)
        action[:] = 0
    assert [row.obs["last_action"].tolist() for row in rows] == [[0, 4], [1, 3], [2, 2]]
