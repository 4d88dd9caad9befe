"""Scores of predictions on held-out rows."""

import numpy as np
import pytest
from seen_environments_helpers import played

from quintet.doctor import fits
from quintet.doctor.clock import hidden_clock
from quintet.doctor.fits import fit
from quintet.doctor.network import by_network
from quintet.doctor.predict import folds, nearest_score, scores, share_of_groups, tells

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2_000, 3))
GROUP = np.arange(2_000) // 20


@pytest.fixture
def no_network_for_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network tries to predict rewards alone: at random observations it fails, in seconds."""
    monkeypatch.setattr(fits, "_better", lambda _, __, found: (found[0], found[2]))


only_rewards = pytest.mark.usefixtures("no_network_for_observations")


def test_what_the_inputs_tell_is_predicted():
    y = np.stack([X[:, 0] * X[:, 1], np.sin(X[:, 2])], 1)
    assert all(each.low > 0.95 for each in scores(X, y, GROUP))


def test_noise_is_not_predicted():
    y = RANDOM.standard_normal((2_000, 1))
    (found,) = scores(X, y, GROUP)
    assert found.high < 0.05
    assert nearest_score(X, y[:, 0], GROUP).high < 0.0


def test_the_nearest_rows_tell_what_changes_sharply():
    x = np.concatenate([X[:, :2], np.ones((2_000, 1))], 1)
    y = np.sin(8 * x[:, 0])
    assert scores(x, y[:, None], GROUP)[0].high < 0.2
    assert nearest_score(x, y, GROUP).low > 0.6
    # Rows of the same group are no neighbours.
    own = RANDOM.standard_normal(100)[GROUP]
    assert nearest_score(np.concatenate([X, GROUP[:, None]], 1), own, GROUP).mean < 0.2


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


@only_rewards
def test_a_reward_that_comes_late_is_told_by_its_lag():
    obs = RANDOM.standard_normal((401, 4, 2))
    reward = np.zeros((400, 4))
    reward[8:] = obs[:-9, :, 0]
    found = fit(played(400, obs=obs, reward=reward, every=50))
    assert found.reward is not None
    assert found.reward.high < 0.3
    assert max(found.reward_lags, key=lambda lag: found.reward_lags[lag].mean) == 8


@only_rewards
def test_a_goal_of_an_episode_is_what_is_left_of_the_reward():
    play = played(400, every=25)
    goal = RANDOM.standard_normal(play.episode.max() + 1)[play.episode]
    found = fit(played(400, every=25, reward=goal))
    assert (found.reward_by_episode > 0.8, found.shown_by_episode) == (True, 0)
    whole = np.concatenate([goal, goal[-1:]])[:, :, None]
    shown = np.concatenate([play.obs, whole], -1)
    names = (*play.numbers, "goal")
    assert fit(played(400, every=25, obs=shown, names=names, reward=goal)).shown_by_episode == 1
    assert fit(played(400, every=25, reward=play.obs[1:, :, 0])).reward_by_episode < 0.1


@only_rewards
def test_few_rows_of_many_episodes_are_no_goal():
    """Of noise: rows that are dealt to episodes at random have as much between them."""
    noise = RANDOM.standard_normal((400, 4))
    assert fit(played(400, every=7, reward=noise)).reward_by_episode == 0.0
    short = played(600, every=4)
    goal = RANDOM.standard_normal(short.episode.max() + 1)[short.episode]
    assert fit(played(600, every=4, reward=goal)).reward_by_episode == 0.0  # 2 rows of an episode


@only_rewards
def test_what_an_end_pays_does_not_hide_what_the_steps_pay():
    play = played(500, every=10)
    reward = play.obs[1:, :, 0] - 100.0 * play.terminated * RANDOM.random((500, 4))
    found = fit(played(500, every=10, reward=reward))
    assert found.reward is not None
    assert found.reward.low > 0.95
    only_ends = fit(played(500, every=10, reward=0.0 - play.terminated))
    assert only_ends.reward is not None  # where nothing else is paid, the ends say what there is


@only_rewards
def test_a_reward_for_what_was_seen_before_is_told_by_the_step():
    obs = RANDOM.choice([-1.0, 1.0], (601, 4, 1))
    action = played(600, obs=obs).action[:, :, 0]
    reward = np.zeros((600, 4))
    reward[5:] = obs[:595, :, 0] * (action[5:] - 0.5)
    found = fit(played(600, every=50, obs=obs, names=("obs[0]",), reward=reward))
    assert found.reward is not None
    assert found.reward_memory is not None
    assert found.reward.high < 0.2
    assert found.reward_memory.low > 0.9
    assert found.memory_steps in (4, 5)  # the observation after one is that before the next


@pytest.mark.parametrize(("kept", "told"), [(0.0, True), (0.95, False)])
def test_what_the_last_actions_tell_is_a_delay(kept: float, told: bool):
    """A speed that forgets what was before is a delay, one that keeps it is hidden state."""
    action = played(600, obs=np.zeros((601, 4, 1))).action[:, :, 0] - 0.5
    place, speed = np.zeros((2, 601, 4))
    for t in range(600):
        place[t + 1] = 0.9 * place[t] + speed[t]
        speed[t + 1] = kept * speed[t] + action[t]
    shown = place[:, :, None]
    (found,) = fit(played(600, every=50, obs=shown, names=("obs[0]",))).next
    assert found.memory.low > 0.95
    assert found.gain > 0.2
    assert found.delay is not None
    assert (found.delay.low > 0.9) is told


def test_a_difference_or_a_cause_of_other_numbers_is_no_noise():
    """As in tables of prices, or a gust that is shown: what is next can't be predicted, but it is
    no noise."""
    prices = RANDOM.standard_normal((401, 4, 2))
    told = np.concatenate([prices, prices[:, :, :1] - prices[:, :, 1:]], -1)
    mixed = np.concatenate([prices, RANDOM.standard_normal((401, 4, 1))], -1)
    names = ("obs[0]", "obs[1]", "obs[2]")
    gust = RANDOM.standard_normal((401, 4))
    driven = np.stack([prices[..., 0], np.concatenate([gust[:1], gust[:-1]]), gust], -1)
    for obs, noise in ((told, False), (mixed, True), (driven, False)):
        *_, last = fit(played(400, obs=obs, names=names)).next
        assert last.value.high < 0.1
        assert last.noise is noise


@only_rewards
def test_a_reward_that_is_missed_is_looked_for_in_the_nearest_rows():
    obs = np.random.default_rng(1).standard_normal((501, 4, 2))
    square = (np.floor(2 * obs[:-1]).sum(-1) % 2).astype(float)  # of a chequerboard
    found = fit(played(500, obs=obs, reward=square))
    assert found.reward is not None
    assert found.reward_nearest is not None
    assert found.reward_nearest.low > found.reward.high + 0.05
    told = fit(played(500, obs=obs, reward=obs[:-1, :, 0]))
    assert told.reward_nearest is None


def test_a_network_predicts_what_features_miss_and_no_noise():
    y = np.stack([np.sign(X[:, 0] * X[:, 1]), RANDOM.standard_normal(2_000)], 1)
    left, (sharp, noise) = folds(X, y, GROUP, by_network)
    assert sharp.low > scores(X, y, GROUP)[0].high + 0.1
    assert abs(noise.mean) < 0.1
    assert left[:, 0].var() < 0.3 * y[:, 0].var()


def test_a_number_tells_by_its_products():
    own, noise = RANDOM.standard_normal((2, 2_000))
    y = (X[:, 0] + 0.2 * own * X[:, 1] + 0.5 * RANDOM.standard_normal(2_000))[:, None]
    assert tells(own, X, y, GROUP)
    assert not tells(noise, X, y, GROUP)
    assert not tells(X[:, 2], X, y, GROUP)


STEPS = np.arange(2_000) % 40
RULES = {
    "a reward of every seventh step": ((STEPS % 7 == 3) * 1.0, 7),
    "an action turned every second time": (X[:, 1] * np.where(STEPS % 4 < 2, 1, -1), 4),
    "a reward that is turned late": (np.where(STEPS > 25, X[:, 0], -X[:, 0]), 0),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_hidden_clock_is_found_with_its_period(rule: str):
    y, period = RULES[rule]
    y, group = (X[:, 2] + 2.0 * y)[:, None], np.arange(2_000) // 40
    found = hidden_clock(STEPS, X, y, group, of_reward=True)
    assert found is not None
    assert (found.period, found.of_reward) == (period, True)
    phase = (STEPS[:, None] % max(period, 40) == np.arange(max(period, 40))).astype(float)
    shown = np.concatenate([X, phase, phase * X[:, :1], phase * X[:, 1:2]], 1)
    assert hidden_clock(STEPS, shown, y, group) is None
    noise = RANDOM.standard_normal((2_000, 1))
    assert hidden_clock(STEPS, X, noise, group) is None
    own = RANDOM.standard_normal(50)[group][:, None]  # of the episode
    assert hidden_clock(STEPS, X, own, group) is None


def test_the_clock_counts_steps_of_episodes():
    rows = played(200, 3, every=9)
    own = [rows.steps_before[rows.episode == each] for each in np.unique(rows.episode)]
    valid = [rows.valid[rows.episode == each] for each in np.unique(rows.episode)]
    for steps, real in zip(own, valid, strict=True):
        assert steps[real].tolist() == list(range(real.sum()))


@only_rewards
@pytest.mark.parametrize("jumps", [False, True])
def test_a_shown_clock_is_not_hidden(jumps: bool):
    """In float32 its steps differ by rounding; one that begins again jumps."""
    rows = played(600, every=24, vary=False)
    steps = np.concatenate([rows.steps_before, rows.steps_before[-1:]])
    steps = steps if jumps else np.where(steps < 0, 24, steps)
    shown = (steps / 30).astype(np.float32).astype(float)
    obs = np.stack([rows.obs[..., 0], shown], -1)
    assert fit(played(600, every=24, vary=False, obs=obs)).clock is None


def test_what_an_episode_decides_is_no_clock():
    steps = np.concatenate([np.arange(n) for n in RANDOM.integers(5, 60, 80)])
    group = np.cumsum(steps == 0)
    x = RANDOM.standard_normal((len(steps), 2))
    turned = RANDOM.choice([-1.0, 1.0], 81)[group]
    for y in (turned, turned * x[:, 0], turned * (steps % 5 == RANDOM.integers(0, 5, 81)[group])):
        assert hidden_clock(steps, x, y[:, None], group) is None
