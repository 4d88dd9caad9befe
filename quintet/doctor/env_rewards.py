"""Findings about rewards."""

import numpy as np

from quintet.doctor import env_observations
from quintet.doctor.finding import Finding
from quintet.doctor.fits import Fits
from quintet.doctor.play import Play
from quintet.doctor.seen import Seen

_LEAST_EPISODES = 10
_GAIN = 0.15  # gain of the reward's score
_FAR = 0.5  # correlation of rewards with squared distances
_PART = 0.1  # share of the reward's variance
_SURE = 0.22  # half an interval of a score
_CLOCK = 0.1  # gain of a score, from which on a hidden clock is likely a cause
_LEAST_TRIES, _SELDOM = 50, 0.5  # tries of each action; share of steps in which the others pay
_WELL, _BADLY = 0.9, 0.5  # scores of the reward


def _rewards(played: Play) -> np.ndarray:
    return played.reward[played.valid]


def reward_never_seen(seen: Seen) -> Finding | None:
    """Random play meets no reward but 0."""
    played = seen.played
    if played is None or played.rows < 200 or _rewards(played).any():
        return None
    return Finding(
        "reward-never-seen",
        0.85,
        f"random play of {played.rows:,} steps met no reward other than 0, so nothing tells good "
        "actions from bad ones",
        {"steps": played.rows, "rewards": 0},
        "pay for steps on the way (reward shaping), begin nearer to the goal, or check "
        "whether the reward is returned at all",
        f"{seen.options.check} --steps 100000",
    )


def reward_rare(seen: Seen) -> Finding | None:
    """Nearly all rewards of random play are the same."""
    played = seen.played
    if played is None or played.rows < 2_000:
        return None
    rewards = _rewards(played)
    values, counts = np.unique(rewards, return_counts=True)
    usual, paid = float(values[counts.argmax()]), int(len(rewards) - counts.max())
    if not 0 < paid < 1e-3 * len(rewards):
        return None
    what = "a reward" if not usual else f"another reward than {usual:g}"
    return Finding(
        "reward-rare",
        0.22 if usual else 0.4,  # a cost of each step tells how soon episodes end
        f"random play met {what} in {paid} of {len(rewards):,} steps, so learning begins late",
        {"steps": len(rewards), "other rewards" if usual else "rewards": paid},
        "more streams and a larger budget, reward shaping, or episodes that begin nearer to the "
        "goal",
        f"{seen.options.train} --total-steps {10 * seen.options.total_env_steps}",
    )


def reward_constant(seen: Seen) -> Finding | None:
    """Every reward is the same, and no episode is terminated."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    rewards = _rewards(played)
    if rewards.min() != rewards.max() or not rewards[0] or played.terminated.any():
        return None
    return Finding(
        "reward-constant",
        0.6 if rewards[0] > 0 else 0.4,
        f"every reward of {played.rows:,} random steps was {rewards[0]:g} and no episode was "
        "terminated, so all returns are alike until a goal is reached by chance",
        {"steps": played.rows, "reward": float(rewards[0]), "terminated episodes": 0},
        "check whether the reward depends on the state; if only a goal ends the episodes, random "
        "actions must reach it now and then: shape the reward, or begin nearer to it",
        f"{seen.options.check} --steps 20000",
    )


def reward_sign(seen: Seen) -> Finding | None:
    """Rewards that pay for failing."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    rewards = _rewards(played)
    returns, lengths, terminated = played.returns(held=False)
    if len(returns) < _LEAST_EPISODES:
        return None
    numbers = {"mean return of random play": float(returns.mean())}
    advice = "compare the sign of the reward with what you want; the learner maximises it"
    if seen.threshold is not None and lengths.max() > 1:  # else ends_at_once says more
        numbers["return that counts as solved"] = seen.threshold
        above = float(returns.mean()) > seen.threshold
        if above or (seen.threshold > 0 and rewards.max() <= 0 and rewards.min() < 0):
            how = "random play is above it" if above else "no reward is above 0"
            return Finding(
                "reward-sign",
                0.6 if seen.wrapped else 0.85,
                f"the environment counts as solved at a return of {seen.threshold:g}, and {how}: "
                "the sign or the scale of the reward differs",
                numbers,
                advice,
                seen.options.check,
            )
    if rewards.max() > 0 or rewards.min() == 0:
        return None
    numbers["share of episodes terminated"] = float(terminated.mean())
    only_at_end = np.count_nonzero(rewards) <= 1.05 * len(returns) and terminated.mean() > 0.5
    together = np.corrcoef(returns, lengths)[0, 1] if returns.std() and lengths.std() else 0.0
    early = terminated.mean() > 0.9 and together < -0.9
    if not (early or only_at_end):
        return None
    how = (
        "no reward is above 0 and every step costs, so the best is to end the episode at once, "
        "which random play does"
        if early
        else "the only rewards are below 0 and come when an episode is terminated"
    )
    return Finding(
        "reward-sign", 0.45, f"{how}: is ending what you want?", numbers, advice,
        seen.options.check,
    )  # fmt: skip


def reward_pays_far(seen: Seen) -> Finding | None:
    """Rewards that are never negative and grow with the distance of a number from its middle."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    rewards = _rewards(played)
    if rewards.min() < 0 or rewards.std() < 1e-9:
        return None
    after = played.obs[1:][played.valid]
    moving = after[:, after.std(0) > 1e-9]
    if not moving.shape[1]:
        return None
    z = (moving - moving.mean(0)) / moving.std(0)
    squares = (z**2).T
    # A number with two values in balance has squares that are all 1.
    even = np.array([np.corrcoef(x, rewards)[0, 1] if x.std() > 1e-9 else -1.0 for x in squares])
    best = int(even.argmax())
    odd = abs(float(np.corrcoef(z[:, best], rewards)[0, 1]))
    if even[best] < _FAR or odd > 0.5 * even[best]:
        return None
    return Finding(
        "reward-sign",
        0.5,
        "rewards are never negative and grow with the distance of what is observed from its "
        "middle: is a distance rewarded that should cost?",
        {"correlation with the squared distance": float(even[best])},
        "compare the sign of the reward with what you want; the learner maximises it",
        seen.options.check,
    )


def _unexplained(seen: Seen) -> Fits | None:
    """The fits, if the observations around a step don't predict its reward."""
    fits = seen.fits
    if fits is None or fits.reward is None or fits.reward.high >= _WELL:
        return None
    if fits.clock is not None and fits.clock.of_reward:  # hidden_clock says why
        return None
    return fits


def _doubtful(seen: Seen, fits: Fits, weight: float) -> float:
    """The weight, lowered for pictures that are seen through projections, and for observations that
    lack something that may explain the reward too."""
    if env_observations.observation_noise(seen) or env_observations.observation_memory(seen):
        weight *= 0.6
    return 0.5 * weight if fits.projected else weight


def _best_lag(fits: Fits) -> tuple[int, float]:
    """The lag with the best score, and its gain."""
    assert fits.reward is not None
    lag = max(fits.reward_lags, key=lambda each: fits.reward_lags[each].mean, default=0)
    return lag, (fits.reward_lags[lag].low - fits.reward.high) if lag else 0.0


def reward_late(seen: Seen) -> Finding | None:
    """The reward belongs to an action many steps before."""
    fits = _unexplained(seen)
    if fits is None or fits.reward is None:
        return None
    lag, gain = _best_lag(fits)
    if gain < _GAIN:
        return None
    gamma = seen.options.gamma
    longer = max(0.99, 1.0 - 1.0 / (10 * lag))
    better = gamma is not None and gamma < longer
    return Finding(
        "reward-late",
        _doubtful(seen, fits, min(0.95, 0.6 + gain / 2)),
        f"the reward is predicted by observation and action about {lag} steps before it, not "
        "by the step that gets it",
        {"score now": fits.reward.mean, f"score {lag} steps before": fits.reward_lags[lag].mean},
        "pay the reward when it is earned; else show in the observation what is still to be "
        "paid, and choose gamma and unrolls that reach so far",
        f"{seen.options.train} --gamma {longer:g}" if better else seen.options.check,
    )


def reward_hidden(seen: Seen) -> Finding | None:
    """The reward depends on something that stays the same in an episode and is not observed."""
    fits = _unexplained(seen)
    if fits is None or fits.reward is None or fits.reward_by_episode < 0.15:
        return None
    if _best_lag(fits)[1] >= _GAIN:
        return None
    share = fits.reward_by_episode
    weight = min(0.95, 0.55 + share / 2)
    if share * (1.0 - fits.reward.mean) < _PART or fits.shown_by_episode:
        weight *= 0.6  # little, or perhaps of a goal that is shown and that the predictor misses
    return Finding(
        "reward-hidden",
        _doubtful(seen, fits, weight),
        "the reward depends on something that differs between episodes and is not in the "
        "observation, as a hidden goal",
        {
            "score of the reward": fits.reward.mean,
            "share of the rest that lies between episodes": share,
        },
        "put it (the goal, the variant of the task) into the observation; where it can be learned "
        "from earlier steps, a memory helps",
        "" if seen.options.memory else f"{seen.options.train} {seen.options.remember}",
    )


def reward_memory(seen: Seen) -> Finding | None:
    """Earlier steps make the reward far more predictable."""
    fits = _unexplained(seen)
    if fits is None or fits.reward is None or fits.reward_memory is None:
        return None
    gain = fits.reward_memory.low - fits.reward.high
    if gain < _GAIN or _best_lag(fits)[1] > 0.8 * gain:
        return None
    options, steps = seen.options, fits.memory_steps
    which = "the two steps" if steps == 2 else f"what was {steps} steps"
    return Finding(
        "reward-memory",
        _doubtful(seen, fits, 0.15 if options.memory else min(0.9, 0.5 + gain / 2)),
        f"the reward is predicted far better with {which} before",
        {"score": fits.reward.mean, "score with memory": fits.reward_memory.mean},
        "show it in the observation, or give the policy a memory",
        "" if options.memory else f"{options.train} {options.remember}",
    )


def reward_noise(seen: Seen) -> Finding | None:
    """Observations don't predict the reward."""
    fits = _unexplained(seen)
    if fits is None or fits.reward is None:
        return None
    best = max(filter(None, (fits.reward, fits.reward_nearest)), key=lambda each: each.mean)
    if best.high >= _BADLY or fits.reward.half > _SURE:  # then the predictor fails
        return None
    others = (reward_late(seen), reward_hidden(seen), reward_memory(seen))
    if any(others) or fits.reward_varies < 0.02 * fits.rows:
        return None
    noise = 1.0 - max(0.0, best.mean)
    return Finding(
        "reward-noise",
        _doubtful(seen, fits, 0.3 + 0.5 * noise),
        f"{noise:.0%} of the reward's variance can't be predicted from what was observed: it "
        "is noise, or depends on what is hidden",
        {"score of the reward": best.mean, "half its interval": best.half},
        "take the noise out of the reward; else larger batches, more steps and a lower learning "
        "rate average it",
        f"{seen.options.train} --total-steps {10 * seen.options.total_env_steps}",
    )


def hidden_clock(seen: Seen) -> Finding | None:
    """Rewards or observations that depend on the number of the step, which no observation shows."""
    clock = None if seen.fits is None else seen.fits.clock
    if clock is None:
        return None
    how = f"repeats every {clock.period} steps" if clock.period else "changes during an episode"
    known = seen.options.memory
    return Finding(
        "hidden-clock",
        0.15 if known else min(0.9, 0.55 + clock.gain / 2) if clock.gain >= _CLOCK else 0.4,
        ("the reward" if clock.of_reward else "the next observation")
        + f" depends on the number of the step, which no observation shows: a rule {how}",
        {"gain of the score by the number of the step": clock.gain}
        | ({"period in steps": clock.period} if clock.period else {}),
        "show the number of the step, or its place in the period, in the observation; or give the "
        "policy a memory",
        "" if known else f"{seen.options.train} {seen.options.remember}",
    )


def action_pays(seen: Seen) -> Finding | None:
    """One action that pays at every step, while others seldom do."""
    played = seen.played
    if played is None or played.rows < 2_000 or not played.one_choice:
        return None
    rewards, action = _rewards(played), played.action[played.valid]
    own = [rewards[action[:, place] > 0.5] for place in range(action.shape[1])]
    if min(map(len, own)) < _LEAST_TRIES:
        return None
    paid = [float((each > 0).mean()) for each in own]
    best = int(np.argmax(paid))
    others = np.delete(paid, best)
    if len(others) < 1 or paid[best] < 1.0 or others.max() > _SELDOM:
        return None
    return Finding(
        "action-pays",
        0.3,
        f"action {best} got a reward above 0 in each of {len(own[best]):,} steps, whatever was "
        "observed, and no other action often: a policy may learn nothing else",
        {"steps with it": len(own[best]), "share of the best other": float(others.max())},
        "check that doing it always is what you want; else pay for what it is meant to reach",
        seen.options.check,
    )


FINDINGS = (
    hidden_clock,
    action_pays,
    reward_never_seen,
    reward_rare,
    reward_constant,
    reward_sign,
    reward_pays_far,
    reward_late,
    reward_hidden,
    reward_memory,
    reward_noise,
)
