"""What EnvPool does that its adapter stands on or corrects."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from envs_helpers import record
from gymnasium import spaces

from quintet.envs import backends
from quintet.envs.backends import num_threads
from quintet.envs.envpool import BACKEND
from quintet.envs.public import make_vector_env
from quintet.envs.vector import allocate_row
from quintet.errors import ConfigError, EnvironmentFault


def test_a_synchronous_pool_gives_rows_in_the_order_of_its_environments():
    """The adapter never sorts rows by env_id; this is why it needn't."""
    import envpool

    pool = envpool.make(
        "LunarLander-v3", env_type="gymnasium", num_envs=8, num_threads=4, seed=list(range(8))
    )
    pool.reset()
    for t in range(200):
        pool.send(np.full(8, t % 4, np.int32))
        info = pool.recv()[4]
        np.testing.assert_array_equal(info["env_id"], np.arange(8))


def atari_actions(num_steps):
    return np.random.default_rng(0).integers(0, 4, (num_steps, 4))


@pytest.mark.parametrize(("name", "limit"), [("CliffWalking-v1", None), ("CartPole-v1", 500)])
def test_the_largest_number_is_no_time_limit(name, limit):
    env = make_vector_env(name, 1, backend="envpool")
    assert env.description.max_steps == limit
    env.close()


@pytest.mark.slow
def test_true_end_on_the_last_allowed_step_is_a_termination():
    """Breakout's stream 0 loses its last ball in step 225; a limit of 225 must not hide that."""
    seeds, actions = [1], atari_actions(240)[:, :1]
    plain = record(make_vector_env("Breakout-v5", 1), seeds, actions)
    end = int(np.argmax(plain.terminated[:, 0]))
    assert plain.terminated[end, 0]
    kwargs = {"max_episode_steps": end + 1}
    limited = record(make_vector_env("Breakout-v5", 1, kwargs=kwargs), seeds, actions)
    assert limited.terminated[end, 0]
    assert not limited.truncated[end, 0]
    kwargs = {"max_episode_steps": end}
    shorter = record(make_vector_env("Breakout-v5", 1, kwargs=kwargs), seeds, actions)
    assert shorter.truncated[end - 1, 0]
    assert not shorter.terminated[end - 1, 0]


@pytest.mark.slow  # tests/envs/test_atari.py has it of every backend
def test_a_lost_life_ends_only_with_episodic_life():
    seeds, actions = [1, 2, 3, 4], atari_actions(100)
    whole = record(make_vector_env("Breakout-v5", 4), seeds, actions)
    lives = record(
        make_vector_env("Breakout-v5", 4, kwargs={"episodic_life": True}), seeds, actions
    )
    assert not whole.terminated.any()
    assert lives.terminated.sum() >= 4
    assert not lives.truncated.any()


def test_raw_reward_of_atari_is_the_score():
    """Centipede scores in tens; EnvPool's own clipping must not reach raw_reward."""
    actions = np.random.default_rng(0).integers(0, 18, (150, 2))
    kwargs = {"reward_clip": True}
    got = record(make_vector_env("Centipede-v5", 2, kwargs=kwargs), [1, 2], actions)
    assert got.reward.max() == 1.0
    assert got.raw_reward.max() >= 10.0


def test_float64_observations_and_actions():
    env = make_vector_env("HalfCheetah-v4", 2)
    assert env.spaces.observation.dtype == np.float32
    assert env.spaces.action.dtype == np.float32
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2, 6)).astype(np.float32)
    got = record(env, [1, 2], actions)
    assert got.obs["obs"].dtype == np.float32
    import envpool

    pool = envpool.make("HalfCheetah-v4", env_type="gymnasium", num_envs=2, seed=[1, 2])
    pool.reset()
    for t in range(5):
        obs, reward = pool.step(actions[t].astype(np.float64))[:2]
        np.testing.assert_array_equal(got.obs["obs"][t + 1], obs.astype(np.float32))
        np.testing.assert_array_equal(got.reward[t], reward)


def test_dict_observations_and_discrete_ones():
    got = record(make_vector_env("BabyAI-GoToLocal-v0", 2), [1, 2], np.zeros((3, 2), np.int64))
    assert {k: (v.shape[2:], v.dtype.name) for k, v in got.obs.items()} == {
        "direction": ((), "int64"),
        "image": ((7, 7, 3), "uint8"),
        "mission": ((512,), "uint8"),
    }
    assert got.obs["mission"].any()
    lake = record(make_vector_env("FrozenLake-v1", 2), [1, 2], np.ones((3, 2), np.int64))
    assert lake.obs["obs"].shape == (4, 2)
    assert lake.obs["obs"].dtype == np.int64


def test_smallest_float_as_bound_is_read_as_infinity():
    space = make_vector_env("LunarLander-v3", 1, backend="envpool").spaces.observation
    assert (space.low == -np.inf).all()
    assert (space.high == np.inf).all()
    cart = make_vector_env("CartPole-v1", 1, backend="envpool").spaces.observation
    assert cart.high[0] == pytest.approx(4.8)


def test_action_start_is_added():
    """TSP's cities start elsewhere than 0; the space given to learners counts from 0."""
    import envpool

    if "TSP-v1" not in envpool.list_all_envs():
        pytest.skip("EnvPool 1.2.0 has no TSP-v1")
    pool = envpool.make_spec("TSP-v1").gymnasium_observation_space
    starts = [int(leaf.start) for leaf in pool.values() if hasattr(leaf, "start")]
    assert any(starts), "no start left to test with"
    got = record(make_vector_env("TSP-v1", 1), [1], np.zeros((1, 1), np.int64))
    for leaf in make_vector_env("TSP-v1", 1).spaces.observation.values():
        assert getattr(leaf, "start", 0) == 0
    raw = envpool.make("TSP-v1", env_type="gymnasium", num_envs=1, seed=[1])
    obs, _ = raw.reset()
    for name, leaf in pool.items():
        np.testing.assert_array_equal(
            got.obs[name][0], np.asarray(obs[name]) - getattr(leaf, "start", 0)
        )


def test_actions_of_whole_numbers_are_choices():
    import envpool

    if "RubiksCube-v0" not in envpool.list_all_envs():
        pytest.skip("EnvPool 1.2.0 has no RubiksCube-v0")
    env = make_vector_env("RubiksCube-v0", 1)
    assert env.spaces.action == spaces.MultiDiscrete([6, 1, 3])
    turns = np.array([[5, 0, 2], [0, 0, 0], [3, 0, 1]])
    got = record(env, [1], turns[:, None])
    pool = envpool.make("RubiksCube-v0", env_type="gymnasium", num_envs=1, seed=[1])
    np.testing.assert_array_equal(got.obs["cube"][0], pool.reset()[0]["cube"])
    for step, turn in enumerate(turns):
        obs, *_ = pool.step(turn[None].astype(np.int32))
        np.testing.assert_array_equal(got.obs["cube"][step + 1], obs["cube"])


VIZDOOM = """
import envpool
from gymnasium.spaces import Discrete
from quintet.envs import envpool as adapter
from quintet.envs.check import check_env
from quintet.envs.config import EnvConfig
from quintet.envs.public import make_vector_env
from quintet.envs.resolved import resolve_env

# Actions are combinations of buttons.
pool = make_vector_env("Basic-v1", 2, backend="envpool")
assert pool.spaces.action == Discrete(6)
one_by_one = {"use_combined_action": False}
pool = make_vector_env("Basic-v1", 2, backend="envpool", kwargs=one_by_one)
assert pool.spaces.action.shape == (3,)

# A given pool keeps its own.
for combined, kwargs in ((True, {}), (False, one_by_one)):
    pool = envpool.make_gymnasium("Basic-v1", num_envs=2, use_combined_action=combined)
    assert adapter.describe_pool(pool)[:2] == ("Basic-v1", kwargs)
    pool.close()

# What is lost is told.
def of(env_id, **kwargs):
    return resolve_env(EnvConfig(id=env_id, kwargs=kwargs))

(lost,) = of("Basic-v1").warnings
assert "gives no reward for the frames of an episode's last action" in lost
assert lost in check_env(of("Basic-v1"), 1).remarks
assert of("Basic-v1", frame_skip=1).warnings == of("CartPole-v1").warnings == []
"""


@pytest.mark.slow
def test_vizdoom(tmp_path):
    """In a process of its own, and in another one where a signal ends it: EnvPool 1.2.5 has died by
    a segmentation fault while it made a pool of ViZDoom, once in many runs.  The games that it had
    started live on: they are ended here, and hold only a file open, since nobody waits for its end.
    """
    told = tmp_path / "told.txt"
    for _ in range(3):
        with told.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", VIZDOOM],
                cwd=tmp_path,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        status = process.wait(120)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if status >= 0:
            break
    assert status == 0, told.read_text()


def test_a_wrong_shape_from_the_pool_is_refused(monkeypatch):
    env: Any = make_vector_env("CartPole-v1", 2, backend="envpool")
    row = allocate_row(env.spaces.observation, 2)
    env.restart([1, 2], row.obs)
    pool = env._arrays

    def shrunk():
        return [x[:1] if place == pool.at.obs else x for place, x in enumerate(give())]

    give = pool.recv
    monkeypatch.setattr(pool, "recv", shrunk)
    env.send(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFault, match=r"declared shape \(2, 4\), got \(1, 4\)"):
        env.recv(row)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"max_episode_step": 3}, "did you mean .'max_episode_steps'"),
        ({"num_envs": 3}, "must leave .'num_envs'. to quintet"),
        ({"max_episode_steps": "many"}, "answered TypeError"),
    ],
)
def test_wrong_kwargs_are_told(kwargs, says):
    with pytest.raises(ConfigError, match=says):
        make_vector_env("CartPole-v1", 2, backend="envpool", kwargs=kwargs)


def test_several_players_are_refused():
    import envpool

    if "Go9x9-v1" not in envpool.list_all_envs():
        pytest.skip("EnvPool 1.2.0 has no Go9x9-v1")
    with pytest.raises(ConfigError, match="must have one agent; Go9x9-v1 has up to 2"):
        make_vector_env("Go9x9-v1", 2)


def test_stacking_twice_is_refused():
    with pytest.raises(ConfigError, match="already stacks 4 frames"):
        make_vector_env("Pong-v5", 2, frame_stack=4)


def test_threads_follow_a_fixed_rule(monkeypatch):
    assert BACKEND.cost is not None
    assert BACKEND.cost("classic_control") == "cheap"
    assert num_threads("cheap", 64, cores=16) == 1
    assert num_threads("pictures", 8, cores=2) == 2
    assert num_threads("simulator", 8, pools=2, cores=2) == 1
    assert num_threads("simulator", 8, pools=4, cores=2) == 1
    assert num_threads("pictures", 8, pools=2, cores=8) == 4
    assert num_threads("simulator", 4, cores=64) == 4
    monkeypatch.setattr(backends, "usable_cores", lambda: 8)
    for env_id, asked, threads in (
        ("Pong-v5", None, 8), ("Pong-v5", 3, 3), ("CartPole-v1", None, 1),
    ):  # fmt: skip
        made = make_vector_env(env_id, 16, backend="envpool", num_threads=asked)
        assert made.num_threads == threads
