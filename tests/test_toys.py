"""Toys of several spaces are solved, from the command's level down; policies act in their form."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys_helpers import ChooseAndAim

import quintet
from quintet.envs.toy import DotToTarget, MaskedDoors, cartpole_without_velocities

SETTINGS = {
    "env.num_streams": 16,
    "unroll_steps": 64,
    "minibatch_steps": 128,
    "num_epochs": 6,
    "learning_rate": 3e-3,
    "gamma": 0.5,
    "model.policy_hidden": (32,),
    "runtime.compile": "off",
    "report.progress": False,
    "eval.episodes": 0,
}


def train_doors(folder, steps):
    env = "quintet.envs.toy:MaskedDoors"
    return quintet.train("ppo", env, steps, seed=1, run_dir=folder, config=SETTINGS)


def test_a_locked_door_is_an_error():
    env = MaskedDoors()
    obs, _ = env.reset(seed=0)
    locked = np.nonzero(obs["action_mask"] == 0)[0]
    with pytest.raises(ValueError, match=r"door \d is locked"):
        env.step(locked[0])


@pytest.mark.slow
def test_masked_doors_reach_the_optimum_and_no_locked_door_is_tried(tmp_path):
    """Any locked door, while learning or after, would have ended the run with an error."""
    doors = train_doors(tmp_path, 8192)
    assert doors.status == "finished"
    greedy = quintet.evaluate(doors.policy, episodes=50)
    assert greedy.returns.min() == 10.0
    sampled = quintet.evaluate(doors.policy, episodes=50, deterministic=False)
    assert 9.0 < sampled.mean <= 10.0


def test_a_policy_tries_no_locked_door_whatever_it_sees(tmp_path):
    """Every mask there is, beside observations that speak for every door."""
    doors = train_doors(tmp_path, 2048)
    masks = np.array([[m >> i & 1 for i in range(5)] for m in range(1, 32)], np.int8)
    for door, side, x in [(0, 0, 0.5), (1, 0, -0.5), (2, 0, 0.5), (0, 1, -0.5), (0, 1, 0.5)]:
        obs = {
            "x": np.full((31, 1), x, np.float32),
            "door": np.full(31, door),
            "side": np.full((31, 1), side, np.int8),
            "action_mask": masks,
        }
        for deterministic in (True, False):
            action, _ = doors.policy.act(obs, deterministic=deterministic)
            assert masks[np.arange(31), action].all()


@pytest.mark.slow
def test_choice_and_aim_are_learned_together(tmp_path):
    env = "toys_helpers:ChooseAndAim"
    aim = quintet.train("ppo", env, 12288, seed=1, run_dir=tmp_path, config=SETTINGS)
    scores = quintet.evaluate(aim.policy, episodes=50)
    assert scores.mean > 9.9


def test_actions_have_the_form_of_the_space(tmp_path):
    aim = quintet.train(
        "ppo", "toys_helpers:ChooseAndAim", 1024, run_dir=tmp_path / "run", config=SETTINGS
    )
    env = ChooseAndAim()
    obs, _ = env.reset(seed=3)
    for policy in (aim.policy, quintet.load(aim.policy.save(tmp_path / "saved"))):
        action, _ = policy.act(obs)
        assert env.action_space.contains(action)
        choice, shot = policy.act(np.stack([obs] * 7), deterministic=False)[0]
        assert choice.shape == (7,)
        assert shot.shape == (7, 1)
        assert all(env.action_space.contains(pair) for pair in zip(choice, shot, strict=True))
    env.step(action)


class Crane(gymnasium.Env):
    """A nested Dict of actions."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Dict(
        {
            "arm": spaces.Tuple([spaces.Box(-2.0, 2.0, (2, 2)), spaces.MultiBinary(2)]),
            "gear": spaces.MultiDiscrete([[2, 3]]),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return np.zeros(2, np.float32), 0.0, True, False, {}


def test_nested_dicts_of_actions(tmp_path):
    config = {**SETTINGS, "env.num_streams": 2, "unroll_steps": 64}
    policy = quintet.train("ppo", Crane, 128, run_dir=tmp_path / "run", config=config).policy
    one, _ = policy.act(np.zeros(2, np.float32))
    assert Crane.action_space.contains(one)
    many, _ = policy.act(np.zeros((3, 2), np.float32))
    assert list(many) == ["arm", "gear"]
    assert many["arm"][0].shape == (3, 2, 2)
    assert many["arm"][1].shape == (3, 2)
    assert many["gear"].shape == (3, 1, 2)
    np.testing.assert_array_equal(many["arm"][0][1], one["arm"][0])
    assert quintet.evaluate(policy, Crane, episodes=2).lengths.tolist() == [1, 1]


def test_cartpole_without_velocities_is_cartpole():
    env, whole = cartpole_without_velocities(), gymnasium.make("CartPole-v1")
    assert env.observation_space.shape == (2,)
    (obs, _), (full, _) = env.reset(seed=5), whole.reset(seed=5)
    over = False
    while not over:
        np.testing.assert_array_equal(obs, full[[0, 2]])
        assert env.observation_space.contains(obs)
        obs, reward, ended, cut, _ = env.step(1)
        full, *others, _ = whole.step(1)
        assert [reward, ended, cut] == others
        over = ended or cut
    vector = quintet.make_vector_env("quintet.envs.toy:cartpole_without_velocities", 2)
    assert vector.spaces.observation.shape == (2,)
    vector.close()


def place_of(picture: np.ndarray) -> np.ndarray:
    """Down and right, from -1 to 1, of the middle of what is not black."""
    weight = picture / picture.sum()
    middle = [(weight.sum(axis) * np.arange(36)).sum() for axis in (1, 0)]
    return (np.array(middle) - 17.5) / 15.0


def test_straight_to_the_target_is_the_optimum_and_what_is_seen_suffices_for_it():
    env, pictured = DotToTarget(dot="numbers"), DotToTarget()
    optima, found, idle = [], [], []
    for seed in range(30):
        obs, _ = env.reset(seed=seed)
        picture, _ = pictured.reset(seed=seed)
        optima.append(env.optimum)
        idle.append(-10 * np.abs(place_of(obs["picture"]) - obs["dot"]).mean())
        total, over = 0.0, False
        while not over:
            assert env.observation_space.contains(obs)
            assert pictured.observation_space.contains(picture)
            assert (picture >= obs["picture"]).all()
            bright = np.where(picture > 100, picture - 100, 0)
            np.testing.assert_allclose(place_of(bright), obs["dot"], atol=0.05)
            action = np.clip((place_of(obs["picture"]) - obs["dot"]) / 0.5, -1, 1)
            obs, reward, ended, over, _ = env.step(action)
            picture, *others, _ = pictured.step(action)
            assert [reward, ended, over] == others
            assert not ended
            total += reward
        found.append(total)
    np.testing.assert_allclose(found, optima, atol=0.02)
    assert np.all(np.array(found) <= np.array(optima) + 1e-9)
    assert np.mean(idle) < 5 * np.mean(optima)


def test_an_action_pays_by_what_follows_alone():
    """Nothing can be learned from rewards without the values of the next steps."""
    paid = []
    for action in (-1.0, 1.0):
        env = DotToTarget(length=2)
        env.reset(seed=1)
        paid.append([env.step(np.full(2, action, np.float32))[1] for _ in range(2)])
    assert paid[0][0] == paid[1][0]
    assert paid[0][1] != paid[1][1]


def test_the_dot_stays_in_the_square():
    env = DotToTarget(dot="numbers")
    env.reset(seed=0)
    for _ in range(10):
        obs = env.step(np.array([1.0, -1.0], np.float32))[0]
    np.testing.assert_array_equal(obs["dot"], [1.0, -1.0])
    assert env.observation_space.contains(obs)
    assert env.optimum == 0.0  # nothing is left of the episode
