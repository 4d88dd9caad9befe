"""Scores of predictions on held-out rows."""

import numpy as np
import pytest
from seen_environments import played

from quintet.doctor.fits import fit
from quintet.doctor.predict import scores, share_of_groups

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2_000, 3))
GROUP = np.arange(2_000) // 20


def test_what_the_inputs_tell_is_predicted():
    y = np.stack([X[:, 0] * X[:, 1], np.sin(X[:, 2])], 1)
    assert all(each.low > 0.95 for each in scores(X, y, GROUP))


def test_noise_is_not_predicted():
    y = RANDOM.standard_normal((2_000, 1))
    (found,) = scores(X, y, GROUP)
    assert found.high < 0.05


def test_rows_of_a_group_are_held_out_together():
    own = RANDOM.standard_normal(100)[GROUP][:, None]
    x = np.concatenate([X, GROUP[:, None] / 100], 1)
    (found,) = scores(x, own, GROUP)
    assert found.mean < 0.2


def test_inputs_that_never_change_do_no_harm():
    (found,) = scores(np.concatenate([X, np.ones((2_000, 2))], 1), X[:, :1], GROUP)
    assert found.low > 0.99


@pytest.mark.parametrize(("strength", "low", "high"), [(0.0, 0.0, 0.05), (3.0, 0.8, 1.0)])
def test_share_of_groups(strength: float, low: float, high: float):
    x = RANDOM.standard_normal(2_000) + strength * RANDOM.standard_normal(100)[GROUP]
    assert low <= share_of_groups(x, GROUP) <= high


def test_a_reward_that_comes_late_is_told_by_its_lag():
    obs = RANDOM.standard_normal((1_001, 4, 2))
    reward = np.zeros((1_000, 4))
    reward[8:] = obs[:-9, :, 0]
    found = fit(played(obs=obs, reward=reward, every=100))
    assert found.reward is not None
    assert found.reward.high < 0.3
    assert max(found.reward_lags, key=lambda lag: found.reward_lags[lag].mean) == 8


def test_a_goal_of_an_episode_is_what_is_left_of_the_reward():
    play = played(every=25)
    goal = RANDOM.standard_normal(play.episode.max() + 1)[play.episode]
    found = fit(played(every=25, reward=goal))
    assert found.reward_by_episode > 0.8
    assert fit(played(every=25, reward=play.obs[1:, :, 0])).reward_by_episode < 0.1
