"""A policy's value function, and its act in the manner of Stable-Baselines3."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet.errors import QuintetError

FEW = {"report.progress": False, "eval.episodes": 0, "runtime.kind": "serial"}


class Paid(gymnasium.Env):
    """Two steps: the first pays what the observation says, the second 1."""

    observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def _show(self):
        return np.array([self.first, self.left - 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.first = 2, float(self.np_random.integers(2))
        return self._show(), {}

    def step(self, action):
        reward = self.first if self.left == 2 else 1.0
        self.left -= 1
        return self._show(), reward, self.left == 0, False, {}


OBSERVATIONS = np.array([[0, 1], [1, 1], [0, 0], [1, 0]], np.float32)
RETURNS = [0.5, 1.5, 1.0, 1.0]
"""Discounted by a half."""


def test_the_value_is_the_discounted_sum_of_rewards(tmp_path):
    config = {"reward_normalizer": "none", "unroll_steps": 32, "minibatch_steps": 64}
    config |= {**FEW, "gamma": 0.5, "entropy_coef": 0.0, "preset": "none"}
    config |= {"model.policy_hidden": [32], "learning_rate": 3e-3}
    policy = quintet.train("ppo", Paid, 2_500, run_dir=tmp_path / "run", config=config).policy
    values = policy.value(OBSERVATIONS)
    assert values.dtype == np.float32
    assert values == pytest.approx(RETURNS, abs=0.15)
    one = policy.value(OBSERVATIONS[1])
    assert one.shape == ()
    assert one == pytest.approx(values[1], abs=1e-5)
    again = quintet.load(tmp_path / "run")
    assert (again.value(OBSERVATIONS) == values).all()
    with pytest.raises(QuintetError, match="leaf 'obs' must be of shape"):
        policy.value(np.zeros(3))


def test_the_state_of_a_recurrent_policy_counts_and_is_not_changed(tmp_path):
    config = {**FEW, "model.core": "lstm", "unroll_steps": 32, "minibatch_steps": 64}
    policy = quintet.train("ppo", Paid, 256, run_dir=tmp_path / "run", config=config).policy
    first, second = OBSERVATIONS[1], OBSERVATIONS[3]
    _, state = policy.act(first)
    kept = {name: x.clone() for name, x in state.items()}
    after = policy.value(second, state)
    assert all((state[name] == x).all() for name, x in kept.items())
    assert after != policy.value(second)
    assert policy.value(second, state, is_first=True) == policy.value(second)
    # The network's own way to the value of two rows in turn.
    network, normalized = policy.actor.network, policy.actor.normalizer
    rows = normalized(policy._observe(np.stack([first, second]))[0])
    is_first = policy._is_first([True, False], None, rows)
    wanted = network.value(rows, network.initial_state(1), is_first)  # flat, of one column
    assert after == pytest.approx(wanted[1].item(), abs=1e-6)


def test_a_learner_whose_actors_do_not_record_the_value(tmp_path):
    policy = quintet.train("impala", Paid, 640, run_dir=tmp_path / "run", config=FEW).policy
    assert "value" not in policy.actor.record_specs
    rows = policy.actor.normalizer(policy._observe(OBSERVATIONS)[0])
    wanted = policy.actor.network.value(rows).detach().numpy()
    assert policy.value(OBSERVATIONS) == pytest.approx(wanted, abs=1e-6)


def test_a_policy_without_a_value_function_says_so(tmp_path):
    config = {**FEW, "replay_start_steps": 64, "updates_per_env_step": 0.1, "batch_size": 32}
    policy = quintet.train("ddpg", "Pendulum-v1", 128, run_dir=tmp_path / "run", config=config)
    with pytest.raises(QuintetError, match="got one of ddpg, which has none"):
        policy.policy.value(np.zeros(3, np.float32))


def test_predict_is_act_with_other_defaults(tmp_path):
    config = {**FEW, "unroll_steps": 8}
    policy = quintet.train("ppo", Paid, 64, run_dir=tmp_path / "run", config=config).policy
    policy.generator.manual_seed(3)
    sampled = [policy.predict(OBSERVATIONS)[0].tolist() for _ in range(5)]
    policy.generator.manual_seed(3)
    assert sampled == [policy.act(OBSERVATIONS, None, False)[0].tolist() for _ in range(5)]
    assert len({tuple(each) for each in sampled}) > 1
    start = np.ones(4, bool)
    action, state = policy.predict(OBSERVATIONS, None, episode_start=start, deterministic=True)
    assert action.tolist() == policy.act(OBSERVATIONS)[0].tolist()
    action, _ = policy.predict(OBSERVATIONS[0], state=state)
    assert action.shape == ()


def test_dir_is_whole_before_the_first_use():
    program = "import quintet, sys; print(*dir(quintet)); print('torch' in sys.modules)"
    names, torch = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {*quintet.__all__} <= {*names.split()}
    assert torch == "False"
