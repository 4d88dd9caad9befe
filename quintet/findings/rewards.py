"""Findings about actions and rewards of an environment."""

import numpy as np

from quintet.doctor.fits import Fits
from quintet.doctor.pairs import LEAST_COMPARED, Pairs
from quintet.doctor.play import Play
from quintet.doctor.seen import Options
from quintet.findings.engine import Found, Rows
from quintet.findings.environment import hides_state, no_memory, noise
from quintet.findings.record import Finding

_SHARE = 0.25  # share of the effect of actions that belongs to episodes
_REACHED = 0.3  # part of the range of actions
_LEAST_EPISODES = 10
_GAIN = 0.15  # gain of the reward's score
_FAR = 0.5  # correlation of rewards with squared distances
_PART = 0.1  # share of the reward's variance
_SURE = 0.22  # half an interval of a score
_CLOCK = 0.1  # gain of a score, from which on a hidden clock is likely a cause
_LEAST_TRIES, _SELDOM = 50, 0.5  # tries of each action; share of steps in which the others pay
_WELL, _BADLY = 0.9, 0.5  # scores of the reward
_SIGN = "compare the sign of the reward with what you want; the learner maximises it"

finding = Rows("environment", "reward-exploited")


@finding("action-ignored")
def action_ignored(pairs: Pairs) -> Found:
    if pairs.alike and not (pairs.changed or pairs.pays):
        yield Finding(
            f"actions change nothing in the first {pairs.looked} steps of an episode: with the "
            "same seed, other actions gave the same observations, rewards and endings",
            {"comparisons": pairs.compared, "in which anything changed": 0},
            "look at what step() does with its action, and at wrappers that replace it",
            weight=0.6 if pairs.cut else 0.97,
        )


@finding("reward-ignores-action", weight=0.75)
def reward_ignores_action(pairs: Pairs, played: Play) -> Found:
    if not pairs.alike or not pairs.changed or pairs.pays:
        return
    if pairs.varied < 3:
        return  # alike in all of these steps: nothing is known of later ones
    rewards = played.rewards
    if not len(rewards) or rewards.min() == rewards.max():
        return  # reward_constant says more
    _, lengths, terminated = played.returns(held=True)
    if not terminated.any() or lengths.min() == lengths.max():
        yield Finding(
            "no reward depends on the actions: with the same seed, entirely other actions gave "
            "the same rewards and endings",
            {"seeds": pairs.seeds, "with other rewards": 0},
            "compute the reward from the state that the action has led to",
        )


@finding("action-inconsistent")
def action_inconsistent(fits: Fits) -> Found:
    if fits.action_by_episode >= _SHARE and fits.clock is None:  # a clock explains it
        yield Finding(
            "the same action has a different effect in each episode, which no observation shows",
            {"share of its effect that differs between episodes": fits.action_by_episode},
            "give actions a fixed meaning, or show their present meaning in the observation",
            weight=min(0.95, 0.6 + fits.action_by_episode / 2),
        )


@finding("action-saturated", weight=0.7)
def action_saturated(pairs: Pairs) -> Found:
    if pairs.reached < _REACHED and pairs.changed and not pairs.unlike:
        yield Finding(
            f"actions beyond {pairs.reached or 0.1:.0%} of their bounds have the same effect as "
            "the bounds, and a policy whose actions are scaled to the bounds is mostly there",
            {"part of the range that matters": pairs.reached},
            "give the Box the bounds within which actions differ",
        )


@finding("observation-late")
def observation_late(pairs: Pairs, options: Options, fits: Fits | None = None) -> Found:
    if pairs.unlike or len(pairs.first) < LEAST_COMPARED:
        return
    late = sum(each > 1 for each in pairs.first) / len(pairs.first)
    if late < 0.9:
        return
    usual = sorted(pairs.first)[len(pairs.first) // 2]
    known = options.memory or options.shows_last
    weight = 0.3 if known else 0.91 if late > 0.98 else 0.6
    if hides_state(fits):
        weight *= 0.5  # positions without velocities follow an action late too
    yield Finding(
        f"an action changes only the observation {usual} steps later, not the next one",
        {"share of the actions with a late effect": late, "steps until the effect": usual},
        "return from step() the observation after the action; if the delay belongs to the task, "
        "the policy needs a memory, or its last actions in the observation",
        options.by_memory,
        weight=weight,
    )


@finding("hidden-clock")
def hidden_clock(fits: Fits, options: Options) -> Found:
    """Rewards or observations that depend on the number of the step, which no observation shows."""
    if (clock := fits.clock) is None:
        return
    how = f"repeats every {clock.period} steps" if clock.period else "changes during an episode"
    likely = min(0.9, 0.55 + clock.gain / 2) if clock.gain >= _CLOCK else 0.4
    yield Finding(
        ("the reward" if clock.of_reward else "the next observation")
        + f" depends on the number of the step, which no observation shows: a rule {how}",
        {"gain of the score by the number of the step": clock.gain}
        | ({"period in steps": clock.period} if clock.period else {}),
        "show the number of the step, or its place in the period, in the observation; or give the "
        "policy a memory",
        options.by_memory,
        weight=0.15 if options.memory else likely,
    )


@finding("action-pays", weight=0.3, rows=2_000)
def action_pays(played: Play) -> Found:
    """One action that pays at every step, while others seldom do."""
    rewards, action = played.rewards, played.action[played.valid]
    own = [rewards[action[:, place] > 0.5] for place in range(action.shape[1])]
    if not played.one_choice or min(map(len, own)) < _LEAST_TRIES:
        return
    paid = [float((each > 0).mean()) for each in own]
    best = int(np.argmax(paid))
    others = np.delete(paid, best)
    if len(others) and paid[best] == 1.0 and others.max() <= _SELDOM:
        yield Finding(
            f"action {best} got a reward above 0 in each of {len(own[best]):,} steps, whatever was "
            "observed, and other actions seldom did: a policy may learn only this action",
            {"steps with it": len(own[best]), "share of the best other": float(others.max())},
            "check that you want it in every step; else reward what it is meant to reach",
        )


@finding("reward-never-seen", weight=0.85, rows=200)
def reward_never_seen(played: Play, options: Options) -> Found:
    if not played.rewards.any():
        yield Finding(
            f"random play of {played.rows:,} steps met no reward other than 0, so nothing tells "
            "good actions from bad ones",
            {"steps": played.rows, "rewards": 0},
            "reward steps on the way to the goal (reward shaping), begin nearer to it, or check "
            "whether the reward is returned at all",
            command=f"{options.again.look} --steps 100000",
        )


@finding("reward-rare", rows=2_000)
def reward_rare(played: Play, options: Options) -> Found:
    rewards = played.rewards
    values, counts = np.unique(rewards, return_counts=True)
    usual, paid = float(values[counts.argmax()]), int(len(rewards) - counts.max())
    what = "a reward" if not usual else f"another reward than {usual:g}"
    if 0 < paid < 1e-3 * len(rewards):
        yield Finding(
            f"random play met {what} in {paid} of {len(rewards):,} steps, so learning begins late",
            {"steps": len(rewards), "other rewards" if usual else "rewards": paid},
            "more streams and a larger budget, reward shaping, or episodes that begin nearer to "
            "the goal",
            f"--total-steps {10 * options.total_env_steps}",
            weight=0.22 if usual else 0.4,  # a cost of each step tells how soon episodes end
        )


@finding("reward-constant", rows=200)
def reward_constant(played: Play, options: Options) -> Found:
    rewards = played.rewards
    if rewards.min() == rewards.max() and rewards[0] and not played.terminated.any():
        yield Finding(
            f"every reward of {played.rows:,} random steps was {rewards[0]:g} and no episode was "
            "terminated, so all returns are alike until a goal is reached by chance",
            {"steps": played.rows, "reward": float(rewards[0]), "terminated episodes": 0},
            "check whether the reward depends on the state; if only a goal ends the episodes, "
            "random actions must reach it now and then: shape the reward, or begin nearer to it",
            command=f"{options.again.look} --steps 20000",
            weight=0.6 if rewards[0] > 0 else 0.4,
        )


@finding("reward-sign", rows=200)
def reward_beside_threshold(played: Play, threshold: float, wrapped: bool) -> Found:
    """Returns of random play that lie beyond, or rewards that can't reach, the return that counts
    as solved."""
    rewards, (returns, lengths, _) = played.rewards, played.returns(held=False)
    if len(returns) < _LEAST_EPISODES or lengths.max() == 1:  # ends_at_once says more
        return
    above = float(returns.mean()) > threshold
    if above or (threshold > 0 and rewards.max() <= 0 and rewards.min() < 0):
        how = "random play is above it" if above else "no reward is above 0"
        yield Finding(
            f"the environment counts as solved at a return of {threshold:g}, and {how}: the "
            "reward has another sign or scale",
            {"mean return of random play": float(returns.mean()),
             "return that counts as solved": threshold},
            _SIGN,
            weight=0.6 if wrapped else 0.85,
        )  # fmt: skip


@finding("reward-sign", weight=0.45, rows=200, unless=("reward-sign",))
def reward_sign(played: Play, threshold: float | None = None) -> Found:
    """Rewards that pay for failing."""
    rewards, (returns, lengths, terminated) = played.rewards, played.returns(held=False)
    if len(returns) < _LEAST_EPISODES or rewards.max() > 0 or rewards.min() == 0:
        return
    numbers = {"mean return of random play": float(returns.mean())}
    if threshold is not None and lengths.max() > 1:
        numbers["return that counts as solved"] = threshold
    numbers["share of episodes terminated"] = float(terminated.mean())
    only_at_end = np.count_nonzero(rewards) <= 1.05 * len(returns) and terminated.mean() > 0.5
    together = np.corrcoef(returns, lengths)[0, 1] if returns.std() and lengths.std() else 0.0
    early = terminated.mean() > 0.9 and together < -0.9
    how = (
        "no reward is above 0 and every step costs, so the best is to end the episode at once, "
        "which random play does"
        if early
        else "the only rewards are below 0 and come when an episode is terminated"
    )
    if early or only_at_end:
        yield Finding(f"{how}: is ending what you want?", numbers, _SIGN)


@finding("reward-sign", weight=0.5, rows=200)
def reward_pays_far(played: Play) -> Found:
    """Rewards that are never negative and grow with the distance of a number from its middle."""
    rewards = played.rewards
    after = played.obs[1:][played.valid]
    moving = after[:, after.std(0) > 1e-9]
    if rewards.min() < 0 or rewards.std() < 1e-9 or not moving.shape[1]:
        return
    z = (moving - moving.mean(0)) / moving.std(0)
    squares = (z**2).T
    # A number with two values in balance has squares that are all 1.
    even = np.array([np.corrcoef(x, rewards)[0, 1] if x.std() > 1e-9 else -1.0 for x in squares])
    best = int(even.argmax())
    odd = abs(float(np.corrcoef(z[:, best], rewards)[0, 1]))
    if even[best] >= _FAR and odd <= 0.5 * even[best]:
        yield Finding(
            "rewards are never negative and grow with the distance of an observation from its "
            "middle: should this distance be small instead?",
            {"correlation with the squared distance": float(even[best])},
            _SIGN,
        )


def _explained(fits: Fits) -> bool:
    """Whether the observations around a step predict its reward, or a clock says why not."""
    if fits.reward is None or fits.reward.high >= _WELL:
        return True
    return fits.clock is not None and fits.clock.of_reward


def _doubtful(fits: Fits, weight: float) -> float:
    """The weight, lowered for pictures that are seen through projections, and for observations that
    lack something that may explain the reward too."""
    if noise(fits) or no_memory(fits):
        weight *= 0.6
    return 0.5 * weight if fits.projected else weight


def _best_lag(fits: Fits) -> tuple[int, float]:
    """The lag with the best score, and its gain."""
    assert fits.reward is not None
    lag = max(fits.reward_lags, key=lambda each: fits.reward_lags[each].mean, default=0)
    return lag, (fits.reward_lags[lag].low - fits.reward.high) if lag else 0.0


@finding("reward-late")
def reward_late(fits: Fits, options: Options) -> Found:
    if _explained(fits) or fits.reward is None:
        return
    lag, gain = _best_lag(fits)
    if gain < _GAIN:
        return
    longer = max(0.99, 1.0 - 1.0 / (10 * lag))
    better = options.gamma is not None and options.gamma < longer
    yield Finding(
        f"the reward is predicted by observation and action about {lag} steps before it, not "
        "by the step that gets it",
        {"score now": fits.reward.mean, f"score {lag} steps before": fits.reward_lags[lag].mean},
        "give the reward when it is earned; else show in the observation what is still to be "
        "given, and choose gamma and unrolls that reach so far",
        f"--gamma {longer:g}" if better else None,
        weight=_doubtful(fits, min(0.95, 0.6 + gain / 2)),
    )


@finding("reward-hidden")
def reward_hidden(fits: Fits, options: Options) -> Found:
    """The reward depends on something that stays the same in an episode and is not observed."""
    share = fits.reward_by_episode
    if _explained(fits) or fits.reward is None or share < 0.15 or _best_lag(fits)[1] >= _GAIN:
        return
    weight = min(0.95, 0.55 + share / 2)
    if share * (1.0 - fits.reward.mean) < _PART or fits.shown_by_episode:
        weight *= 0.6  # little, or perhaps of a goal that is shown and that the predictor misses
    yield Finding(
        "the reward depends on something that differs between episodes and is not in the "
        "observation, such as a hidden goal",
        {
            "score of the reward": fits.reward.mean,
            "share of the rest that lies between episodes": share,
        },
        "put it (the goal, the variant of the task) into the observation; where it can be learned "
        "from earlier steps, a memory helps",
        options.by_memory,
        weight=_doubtful(fits, weight),
    )


@finding("reward-memory")
def reward_memory(fits: Fits, options: Options) -> Found:
    """The reward depends on earlier observations."""
    if _explained(fits) or fits.reward is None or fits.reward_memory is None:
        return
    gain = fits.reward_memory.low - fits.reward.high
    if gain < _GAIN or _best_lag(fits)[1] > 0.8 * gain:  # then reward-late explains it better
        return
    steps = fits.memory_steps
    inputs = "the two steps" if steps == 2 else f"what was {steps} steps"
    yield Finding(
        f"the reward is predicted far better with {inputs} before",
        {"score": fits.reward.mean, "score with memory": fits.reward_memory.mean},
        "show it in the observation, or give the policy a memory",
        options.by_memory,
        weight=_doubtful(fits, 0.15 if options.memory else min(0.9, 0.5 + gain / 2)),
    )


@finding("reward-noise", unless=("reward-late", "reward-hidden", "reward-memory"))
def reward_noise(fits: Fits, options: Options) -> Found:
    if _explained(fits) or fits.reward is None:
        return
    best = max(filter(None, (fits.reward, fits.reward_nearest)), key=lambda each: each.mean)
    if best.high >= _BADLY or fits.reward.half > _SURE:  # then the predictor fails
        return
    share = 1.0 - max(0.0, best.mean)
    if fits.reward_varies >= 0.02 * fits.rows:
        yield Finding(
            f"{share:.0%} of the reward's variance can't be predicted from what was observed: it "
            "is noise, or depends on what is hidden",
            {"score of the reward": best.mean, "half its interval": best.half},
            "take the noise out of the reward; else average it by larger batches, more steps and "
            "a lower learning rate",
            f"--total-steps {10 * options.total_env_steps}",
            weight=_doubtful(fits, 0.3 + 0.5 * share),
        )
