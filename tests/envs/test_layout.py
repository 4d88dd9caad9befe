"""Next-step layout: exact rows, both backends, time limits, seeds."""

import gymnasium
import numpy as np
import pytest
from envs_helpers import Custom, record
from scripted_helpers import Scripted

from quintet.envs.public import make_vector_env
from quintet.envs.vector import allocate_row
from quintet.errors import ConfigError

BENCHMARK_IDS = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "LunarLander-v3",
    "HalfCheetah-v4",
    "Hopper-v4",
    "Walker2d-v4",
    "Pong-v5",
)


def test_scripted_rows_exactly():
    """Episodes of 3 (terminates) and 2 (truncates) steps; the row after an ending resets."""
    env = make_vector_env(Scripted, 2)
    actions = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 1], [1, 2], [2, 3]])
    got = record(env, [11, 22], actions)
    episode = [0, 0, 0, 0, 1, 1, 1, 2, 2]
    step = [0, 1, 2, 3, 0, 1, 2, 0, 1]
    last = [-1, 0, 1, 2, -1, 4, 0, -1, 2]
    first = np.stack([np.full(9, 11), episode, step, last], 1)
    np.testing.assert_array_equal(got.obs["obs"][:, 0], first)
    np.testing.assert_array_equal(got.obs["obs"][:, 1, 0], np.full(9, 22))
    np.testing.assert_array_equal(got.obs["obs"][:, 1, 3], [-1, 1, 2, 3, -1, 0, 1, -1, 3])
    for stream in (0, 1):
        np.testing.assert_array_equal(got.reward[:, stream], [1, 2, 3, 0, 101, 102, 0, 201])
        np.testing.assert_array_equal(got.terminated[:, stream], [0, 0, 1, 0, 0, 0, 0, 0])
        np.testing.assert_array_equal(got.truncated[:, stream], [0, 0, 0, 0, 0, 1, 0, 0])
        np.testing.assert_array_equal(got.valid[:, stream], [1, 1, 1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(got.raw_reward, got.reward)


def test_streams_of_different_rhythm_do_not_disturb_each_other():
    lengths = iter([(2,), (3,)])
    env = make_vector_env(lambda: Scripted(next(lengths), ("terminate",)), 2)
    got = record(env, [1, 2], np.zeros((7, 2), np.int64))
    np.testing.assert_array_equal(got.valid[:, 0], [1, 1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(got.valid[:, 1], [1, 1, 1, 0, 1, 1, 1])


def test_termination_wins_over_truncation():
    env = make_vector_env(
        lambda: Custom(gymnasium.spaces.Discrete(2), 0, terminated=True, truncated=True), 1
    )
    got = record(env, [0], np.zeros((3, 1), np.int64))
    np.testing.assert_array_equal(got.terminated[:, 0], [1, 0, 1])
    np.testing.assert_array_equal(got.truncated[:, 0], [0, 0, 0])


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_an_invalid_row_follows_every_ending_and_nothing_else(backend):
    env = make_vector_env("CartPole-v1", 4, backend=backend)
    got = record(env, [1, 2, 3, 4], np.random.default_rng(0).integers(0, 2, (200, 4)))
    ended = got.terminated | got.truncated
    assert ended.sum() > 10
    np.testing.assert_array_equal(got.valid[0], True)
    np.testing.assert_array_equal(got.valid[1:], ~ended[:-1])
    np.testing.assert_array_equal(got.reward, got.valid.astype(np.float32))
    assert not (ended & ~got.valid).any()
    final = got.obs["obs"][1:][got.terminated]
    assert ((np.abs(final[:, 0]) > 2.4) | (np.abs(final[:, 2]) > 0.2094)).all()
    fresh = got.obs["obs"][1:][~got.valid]
    assert (np.abs(fresh) <= 0.05).all()


def test_envpool_cartpole_equals_gymnasium_from_the_same_states():
    """The physics agree: from each EnvPool observation one Gymnasium step leads to its next."""
    env = make_vector_env("CartPole-v1", 3, backend="envpool")
    actions = np.random.default_rng(1).integers(0, 2, (60, 3))
    got = record(env, [5, 6, 7], actions)
    plain = gymnasium.make("CartPole-v1").unwrapped
    plain.reset(seed=0)
    for t, b in np.argwhere(got.valid):
        plain.state = tuple(got.obs["obs"][t, b].astype(np.float64))
        plain.steps_beyond_terminated = None
        obs, reward, terminated, _, _ = plain.step(int(actions[t, b]))
        np.testing.assert_allclose(got.obs["obs"][t + 1, b], obs, rtol=0, atol=5e-7)
        assert got.reward[t, b] == reward
        assert got.terminated[t, b] == terminated


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_time_limit_truncates_with_the_true_final_observation(backend):
    env = make_vector_env("Pendulum-v1", 2, backend=backend)
    got = record(env, [1, 2], np.zeros((405, 2, 1), np.float32))
    np.testing.assert_array_equal(np.argwhere(got.truncated[:, 0])[:, 0], [199, 400])
    np.testing.assert_array_equal(np.argwhere(~got.valid[:, 0])[:, 0], [200, 401])
    assert not got.terminated.any()
    # The final state follows by the pendulum's own step from the one before; a fresh one would not.
    cos, sin, speed = got.obs["obs"][199:202, 0].T
    theta = np.arctan2(sin, cos)
    acceleration = 15.0 * np.sin(theta[0])
    assert speed[1] == pytest.approx(np.clip(speed[0] + 0.05 * acceleration, -8, 8), abs=5e-7)
    assert np.abs(speed[2] - speed[1] - 0.05 * 15.0 * np.sin(theta[1])) > 1e-3


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_max_episode_steps_is_handed_to_the_maker(backend):
    env = make_vector_env("CartPole-v1", 2, backend=backend, kwargs={"max_episode_steps": 5})
    got = record(env, [1, 2], np.tile([[0, 1], [1, 0]], (6, 1)))
    np.testing.assert_array_equal(np.argwhere(got.truncated[:, 0])[:, 0], [4, 10])
    assert not got.terminated.any()


@pytest.mark.parametrize(
    ("env_id", "backend"),
    [
        ("CartPole-v1", "envpool"),
        ("CartPole-v1", "gymnasium"),
        ("Hopper-v4", "envpool"),
        ("quintet.envs.toy:Target", "auto"),
    ],
)
def test_restart_gives_the_same_bytes_for_the_same_seeds(env_id, backend):
    env = make_vector_env(env_id, 3, backend=backend)
    space = env.spaces.action
    space.seed(0)
    actions = np.stack([[space.sample() for _ in range(3)] for _ in range(60)])
    first = record(env, [1, 2, 3], actions)
    other = record(env, [4, 5, 6], actions)
    again = record(env, [1, 2, 3], actions)
    assert first.as_bytes() == again.as_bytes()
    assert first.as_bytes() != other.as_bytes()
    # Every stream follows its own seed, wherever it stands.
    moved = record(env, [2, 1, 3], actions[:, [1, 0, 2]])
    np.testing.assert_array_equal(moved.obs["obs"][:, 0], first.obs["obs"][:, 1])


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_restart_right_after_an_ending_forgets_it(backend):
    env = make_vector_env("CartPole-v1", 2, backend=backend, kwargs={"max_episode_steps": 3})
    for _ in range(2):
        got = record(env, [1, 2], np.tile([0, 1], (3, 1)))
        assert got.valid.all()
        assert got.truncated[-1].all()


def test_restart_between_send_and_recv_begins_anew():
    for backend in ("envpool", "gymnasium"):
        env = make_vector_env("CartPole-v1", 2, backend=backend)
        actions = np.zeros((3, 2), np.int64)
        first = record(env, [1, 2], actions)
        env.send(actions[0])
        assert record(env, [1, 2], actions).as_bytes() == first.as_bytes()
        env.send(actions[0])
        env.close()
        env.close()


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3], [1, -2], [1, 2**31]])
@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_seeds_must_be_one_31_bit_number_per_stream(backend, seeds):
    env = make_vector_env("CartPole-v1", 2, backend=backend)
    row = allocate_row(env.spaces.observation, 2)
    with pytest.raises(ConfigError, match="restart needs 2 seeds"):
        env.restart(seeds, row.obs)


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_groups_that_take_turns_do_what_they_do_alone(backend):
    rng = np.random.default_rng(3)
    actions = rng.integers(0, 2, (3, 50, 4))
    seeds = [[10 * g + i for i in range(4)] for g in range(3)]
    alone = []
    for g in range(3):
        env = make_vector_env("CartPole-v1", 4, backend=backend)
        alone.append(record(env, seeds[g], actions[g]).obs["obs"][1:])
    envs = [make_vector_env("CartPole-v1", 4, backend=backend, num_threads=2) for _ in range(3)]
    rows = [allocate_row(env.spaces.observation, 4) for env in envs]
    for env, row, seed in zip(envs, rows, seeds, strict=True):
        env.restart(seed, row.obs)
    for t in range(50):
        for g, env in enumerate(envs):
            env.send(actions[g, t])
        for g in (2, 0, 1):  # in any order
            envs[g].recv(rows[g])
            np.testing.assert_array_equal(rows[g].obs["obs"], alone[g][t])


@pytest.mark.parametrize("env_id", BENCHMARK_IDS)
def test_every_environment_of_the_benchmarks_runs(env_id):
    env = make_vector_env(env_id, 2, backend="envpool")
    assert env.description.backend == "envpool"
    assert env.description.action_repeat == (4 if env_id == "Pong-v5" else 1)
    space = env.spaces.action
    actions = np.stack([[space.sample() for _ in range(2)] for _ in range(3)])
    got = record(env, [1, 2], actions)
    for path, leaf in got.obs.items():
        assert leaf.dtype != np.float64, path
        assert np.isfinite(leaf).all()
        assert (leaf != 77).any()
    assert got.valid.all()
