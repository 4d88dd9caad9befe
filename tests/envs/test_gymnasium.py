"""Python environments: spaces, actions, and what happens when they break their promises."""

import gc
import traceback
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
from envs_helpers import Custom, make_box_env, record
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode
from scripted_helpers import Scripted

from quintet.envs.config import EnvConfig
from quintet.envs.gymnasium import leaf_of, read_leaf
from quintet.envs.make import make_group_env
from quintet.envs.public import make_vector_env
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import (
    EnvDescription,
    allocate_obs,
    allocate_row,
    check_finite,
    observation_leaves,
)
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import as_choices, leaf_keys

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
ZEROS = np.zeros(3, np.float32)


def run(make_env, num_steps=4, num_streams=2, action=0):
    resolved = resolve_env(EnvConfig(id="mine"), make_env)
    env = make_group_env(resolved, num_streams, first_stream=6)
    return record(env, [100, 101], np.full((num_steps, num_streams), action))


def test_an_exception_is_told_with_stream_step_and_seed():
    made = iter([Custom(BOX, ZEROS), Custom(BOX, ZEROS, raise_at=3)])
    with pytest.raises(EnvironmentFault) as caught:
        run(lambda: next(made))
    text = str(caught.value)
    assert "mine (gymnasium), stream 7, step 3 of its episode, seed 101" in text
    assert "ValueError: the floor gave way" in text
    assert isinstance(caught.value.__cause__, ValueError)
    assert "raise ValueError" in "".join(traceback.format_exception(caught.value))


def test_steps_are_counted_from_the_start_of_the_episode():
    class Fragile(gymnasium.Wrapper):
        def step(self, action):
            if action == 4:
                raise ValueError("four")
            return super().step(action)

    env = make_vector_env(lambda: Fragile(Scripted((3,), ("terminate",))), 1)
    actions = np.array([0, 0, 0, 0, 0, 4])[:, None]
    with pytest.raises(EnvironmentFault, match="step 2 of its episode"):
        record(env, [1], actions)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(1, np.float32), np.zeros((1, 3), np.float32), np.float32(0), np.zeros(3, complex)],
)
def test_a_wrong_observation_is_refused_where_numpy_would_broadcast_it(wrong):
    with pytest.raises(EnvironmentFault, match=r"stream 6, step 2 .* gave shape"):
        run(lambda: Custom(BOX, ZEROS, wrong_at=2, wrong=wrong))


VALUES = [
    np.zeros(3, np.float32), np.ones(3), np.zeros(3, np.float16), np.zeros(3, np.int64),
    np.zeros((3, 1), np.float32), [0.0, 1.0, 2.0], np.array([0, 1, 2], np.int8),
    np.array([0, 1, -1], np.int8), np.array([0, 1, 1], np.int8), np.array([0, 1, 1], np.uint8),
    np.array([1, 2, 3]), np.array([0, 1, 2]), np.array([0, 1, 3]), np.array([-1, 0, 0]),
    np.zeros(3, np.bool_), np.array([0, 255, 7], np.uint8), np.array(["a"] * 3),
    0, 1, 4, 5, -1, 1.0, True, np.int64(3), np.int64(-3), np.int32(2), np.array(2), None, "x",
]  # fmt: skip
"""What environments may give, rightly and wrongly."""


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1.0, 1.0, (3,), np.float64),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(-1.0, 1.0, (), np.float32),
        spaces.Discrete(5),
        spaces.Discrete(5, start=-1),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([1, 2, 3]),
        spaces.MultiDiscrete([3, 3, 3], start=[1, 0, 0]),
    ],
    ids=str,
)
def test_the_short_way_of_an_observation_stores_what_the_long_one_does(space):
    """A value that needs no conversion is stored unread; all others are read and checked."""
    ((path, found),) = leaf_keys(space).items()
    leaf, short = leaf_of(path, *found), 0
    for value in VALUES:
        if not leaf.is_met(value):
            continue
        short += 1
        stored, read = np.zeros(leaf.shape, leaf.dtype), np.zeros(leaf.shape, leaf.dtype)
        stored[...], read[...] = value, read_leaf(value, leaf)  # which refuses what is wrong
        assert stored.tobytes() == read.tobytes(), value
    assert short > 0 or leaf.start is not None or leaf.shape == ()


def test_a_wrong_first_observation_is_refused():
    with pytest.raises(EnvironmentFault, match=r"stream 6, reset, seed 100"):
        run(lambda: Custom(BOX, np.zeros(2, np.float32)))


def test_float_values_in_a_byte_space_are_refused():
    space = spaces.Box(0, 255, (3,), np.uint8)
    with pytest.raises(EnvironmentFault, match="dtype float32"):
        run(lambda: Custom(space, np.full(3, 0.5, np.float32)))


def test_a_discrete_observation_outside_its_space_is_refused():
    with pytest.raises(EnvironmentFault, match=r"within Discrete\(4"):
        run(lambda: Custom(spaces.Discrete(4), 1, wrong_at=2, wrong=4))


@pytest.mark.parametrize(
    ("reward", "says"),
    [(None, "gave None"), ("much", "gave 'much'"), (np.zeros(2), "gave a ndarray of shape")],
)
def test_a_reward_that_is_no_number_is_refused(reward, says):
    with pytest.raises(EnvironmentFault, match=f"step 1 of its episode.*({says})"):
        run(lambda: Custom(BOX, ZEROS, reward=reward))


def test_lists_and_float64_are_taken():
    got = run(lambda: Custom(BOX, [0.25, 0.5, 0.75]))
    np.testing.assert_array_equal(got.obs["obs"][0, 0], [0.25, 0.5, 0.75])
    assert got.obs["obs"].dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_check_finite_names_stream_and_step(value):
    description = EnvDescription("mine", "gymnasium")
    obs = {"a": np.zeros((6, 3, 2), np.float32), "b": np.zeros((6, 3), np.int64)}
    reward = np.zeros((5, 3), np.float32)
    check_finite(obs, reward, 10, [5, 6, 7], description, 1000)
    reward[4, 0] = value
    with pytest.raises(
        EnvironmentFault, match=r"stream 10, step 1004 after its reset with seed 5: reward is"
    ):
        check_finite(obs, reward, 10, [5, 6, 7], description, 1000)
    obs["a"][5, 2, 0] = value  # later than the reward: the earliest fault is told
    with pytest.raises(
        EnvironmentFault, match=r"stream 10, step 1004 after its reset with seed 5: reward is"
    ):
        check_finite(obs, reward, 10, [5, 6, 7], description, 1000)
    obs["a"][2, 1, 1] = value
    with pytest.raises(
        EnvironmentFault,
        match=r"stream 11, step 1002 after its reset with seed 6: observation 'a'\[1\] is",
    ):
        check_finite(obs, reward, 10, [5, 6, 7], description, 1000)


def test_dict_and_tuple_observations_become_leaves():
    space = spaces.Dict(
        {
            "a": spaces.Box(-1.0, 1.0, (2,), np.float64),
            "deep": spaces.Dict({"b": spaces.MultiBinary(3), "c": spaces.Discrete(5, start=2)}),
            "pair": spaces.Tuple([spaces.MultiDiscrete([3, 4], start=[1, 2]), spaces.Discrete(2)]),
        }
    )
    value = {
        "a": np.array([0.5, -0.5]),
        "deep": {"b": np.array([1, 0, 1], np.int8), "c": np.int64(4)},
        "pair": (np.array([2, 5]), 1),
    }
    env = make_vector_env(lambda: Custom(space, value), 2)
    got = record(env, [1, 2], np.zeros((1, 2), np.int64))
    assert list(got.obs) == ["a", "deep/b", "deep/c", "pair/0", "pair/1"]
    expected = ([0.5, -0.5], [1, 0, 1], 2, [1, 3], 1)
    for leaf, values in zip(got.obs.values(), expected, strict=True):
        np.testing.assert_array_equal(leaf[1, 1], values)
    dtypes = [leaf.dtype.name for leaf in got.obs.values()]
    assert dtypes == ["float32", "int8", "int64", "int64", "int64"]
    assert env.spaces.observation["deep"]["c"] == spaces.Discrete(5)
    assert env.spaces.observation["pair"][0] == spaces.MultiDiscrete([3, 4])
    assert list(observation_leaves(spaces.Tuple([BOX, BOX]))) == ["0", "1"]
    assert list(observation_leaves(BOX)) == ["obs"]


def test_observations_without_a_shape_are_refused_and_environments_closed():
    made = []

    def make():
        space = spaces.Dict({"words": spaces.Graph(BOX, None)})
        made.append(Custom(space, {"words": ()}))
        return made[-1]

    with pytest.raises(ConfigError, match=r"leaf 'words' must be .*arrays of a fixed shape"):
        make_vector_env(make, 2)
    assert [env.closed for env in made] == [True, True]


def test_paths_that_collide_are_refused():
    space = spaces.Dict({"a": spaces.Dict({"b": BOX}), "a/b": BOX})
    with pytest.raises(ConfigError, match="'a/b' twice"):
        observation_leaves(space)


def test_discrete_start_is_added_to_actions():
    made = []

    def make():
        made.append(Custom(BOX, ZEROS, spaces.Discrete(3, start=-1)))
        return made[-1]

    env = make_vector_env(make, 2)
    assert env.spaces.action == spaces.Discrete(3)
    record(env, [1, 2], np.array([[0, 2], [1, 0]]))
    assert [int(a) for a in made[0].actions] == [-1, 0]
    assert [int(a) for a in made[1].actions] == [1, -1]
    assert all(made[0].action_space.contains(a) for a in made[0].actions)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float64), np.array([0.5, -0.5], np.float32)),
        (spaces.MultiDiscrete([3, 4], start=[5, 6]), np.array([2, 3])),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8)),
        (spaces.Box(-1.0, 1.0, (2, 2)), np.array([0.5, -0.5, 1.0, 0.0], np.float32)),
        (spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[1, 2], [3, 4]]), np.array([2, 3, 4, 5])),
        (spaces.MultiBinary((2, 1)), np.array([1, 0], np.int8)),
        (spaces.Box(-1, 3, (2,), np.int16), np.array([0, 4])),
    ],
)
def test_actions_are_what_the_space_would_sample(space, action):
    made = []

    def make():
        made.append(Custom(BOX, ZEROS, space))
        return made[-1]

    env = make_vector_env(make, 1)
    kept = action[None].copy()
    record(env, [1], kept[None])
    (got,) = made[0].actions
    assert space.contains(got)
    assert got.dtype == space.dtype
    start = getattr(as_choices(space), "start", 0)
    np.testing.assert_array_equal((got - start).ravel(), action)
    got[:] = 0  # the environment may do this
    np.testing.assert_array_equal(kept[0], action)


def test_actions_of_several_parts_are_unpacked():
    made = []
    inner = spaces.Dict(
        OrderedDict(z=spaces.Box(-1.0, 1.0, (1, 2), np.float64), a=spaces.MultiBinary(1))
    )
    space = spaces.Tuple([spaces.Discrete(3, start=5), inner])

    def make():
        made.append(Custom(BOX, ZEROS, space))
        return made[-1]

    env = make_vector_env(make, 2)
    packed = np.array([[[2.0, 0.25, -0.5, 1.0], [0.0, 1.0, -1.0, 0.0]]], np.float32)
    record(env, [1, 2], packed)
    first, second = made[0].actions[0], made[1].actions[0]
    assert space.contains(first)
    assert space.contains(second)
    assert first[0] == 7
    assert first[1]["z"].tolist() == [[0.25, -0.5]]
    assert first[1]["a"].tolist() == [1]
    assert second[0] == 5
    assert second[1]["z"].tolist() == [[1.0, -1.0]]
    first[1]["z"][:] = 9.0  # the environment may do this
    assert second[1]["z"].tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
        spaces.Tuple([]),
        spaces.Box(-1.0, 1.0, (0,)),
    ],
)
def test_other_actions_are_refused(space: spaces.Space):
    with pytest.raises(ConfigError, match="the action space must be"):
        make_vector_env(lambda: Custom(BOX, ZEROS, space), 2)


def test_makers_must_give_new_equal_single_environments():
    shared = make_box_env()
    with pytest.raises(ConfigError, match="the same object twice"):
        make_vector_env(lambda: shared, 2)
    with pytest.raises(ConfigError, match="the same object twice"):
        make_vector_env(lambda: gymnasium.wrappers.TimeLimit(shared, 5), 2)
    sizes = iter([2, 3])
    with pytest.raises(ConfigError, match="equal spaces"):
        make_vector_env(lambda: make_box_env(next(sizes)), 2)
    with pytest.raises(ConfigError, match=r"must make one gymnasium\.Env"):
        make_vector_env(lambda: object(), 2)


def test_an_environment_that_others_step_is_refused_and_stays_open():
    shared = make_box_env()
    closed = []
    shared.close = lambda: closed.append(True)
    first = make_vector_env(lambda: gymnasium.wrappers.TimeLimit(shared, 5), 1)
    with pytest.raises(ConfigError, match="other streams use"):
        make_vector_env(lambda: shared, 1)
    vector = gymnasium.vector.SyncVectorEnv([lambda: shared])  # closes what it has when it is freed
    with pytest.raises(ConfigError, match="other streams use"):
        make_vector_env(vector)
    assert not closed
    first.close()
    again = make_vector_env(lambda: shared, 1)
    out = allocate_obs(again.spaces.observation, (1,))
    again.restart([1], out)
    again.restart([1], out)  # which asks its maker for others


def test_a_vector_environment_that_others_step_is_refused():
    closed = []

    class Watched(CartPoleVectorEnv):
        def close_extras(self, **_):
            closed.append(True)

    shared = Watched(2)
    shared.metadata = {**shared.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
    first = make_vector_env(lambda num_envs: shared, 2)
    with pytest.raises(ConfigError, match="other streams use"):
        make_vector_env(lambda num_envs: shared, 2)
    assert not closed
    first.close()
    second = make_vector_env(lambda num_envs: shared, 2)
    out = allocate_obs(second.spaces.observation, (2,))
    second.restart([1, 2], out)
    second.restart([1, 2], out)  # which asks its maker
    with pytest.raises(ConfigError, match="other streams use"):
        make_vector_env(lambda num_envs: shared, 2)


def test_streams_that_are_gone_use_nothing():
    shared = make_box_env()
    make_vector_env(lambda: shared, 1)  # and is forgotten
    gc.collect()
    make_vector_env(lambda: shared, 1)


def test_a_restart_wants_new_environments_too():
    made = [make_box_env() for _ in range(3)]
    ready = iter([*made[:2], made[2], made[2]])
    config = EnvConfig(id="given", backend="gymnasium", fresh_at_checkpoints=True)
    env = make_group_env(resolve_env(config, lambda: next(ready)), 2)
    out = allocate_obs(env.spaces.observation, (2,))
    env.restart([1, 2], out)
    with pytest.raises(ConfigError, match="the same object twice"):
        env.restart([1, 2], out)


def test_environments_are_closed_also_when_one_refuses():
    made = []

    def make():
        made.append(make_box_env())
        return made[-1]

    env = make_vector_env(make, 3)

    def refuse():
        raise RuntimeError("no")

    made[1].close = refuse
    with pytest.warns(RuntimeWarning, match="raised in close"):
        env.close()
    assert made[0].closed
    assert made[2].closed
    env.close()


def test_send_and_recv_take_turns():
    for backend in ("envpool", "gymnasium"):
        env = make_vector_env("CartPole-v1", 2, backend=backend)
        row = allocate_row(env.spaces.observation, 2)
        env.restart([1, 2], row.obs)
        with pytest.raises(AssertionError, match="send before recv"):
            env.recv(row)
        with pytest.raises(AssertionError, match=r"\(2, 1\), \(2,\)"):
            env.send(np.zeros((2, 1), np.int64))
        env.send(np.zeros(2, np.int64))
        with pytest.raises(AssertionError, match="recv before the next send"):
            env.send(np.zeros(2, np.int64))
