"""Findings about episodes, seeds and time, and those of the check."""

import numpy as np

from quintet.config.choices import Doubt
from quintet.doctor.finding import Finding, option_in, weight_of
from quintet.doctor.seen import Seen

_SLOW_S = 0.01
_LONG_EPISODE = 2_000  # steps, within which most episodes end
_LEAST_STARTS = 5  # episodes of an environment


def doubts(seen: Seen) -> list[Finding]:
    """Doubtful choices, by the rows of random play."""
    return [_of_doubt(each, seen) for each in seen.doubts]


def _of_doubt(doubt: Doubt, seen: Seen) -> Finding:
    words = option_in(doubt.option)
    command = f"{seen.options.train} {words}" if words else ""
    name = doubt.choice.replace("_", "-")
    return Finding(name, weight_of(doubt.choice), doubt.said, {}, doubt.option, command)


def not_finite(seen: Seen) -> Finding | None:
    """NaN or infinity in an observation or a reward."""
    check, played = seen.check, seen.played
    said = played.bad if played is not None else ""
    fault = next((x for x in check.faults if "must be finite" in x), "") if check else ""
    if not (said or fault):
        return None
    return Finding(
        "not-finite",
        0.99,
        said or fault,
        {},
        "mend the environment: a run stops at such a number, or its network is spoiled",
        f"{seen.options.check} --steps 20000",
    )


def faults(seen: Seen) -> Finding | None:
    """Other faults of the layout, which the check names."""
    if seen.check is None:
        return None
    own = [
        each for each in seen.check.faults if "must be finite" not in each and "copies" not in each
    ]
    if not own:
        return None
    return Finding("check-fault", 0.8, own[0], {"faults": len(own)}, "mend it", seen.options.check)


def not_repeatable(seen: Seen) -> Finding | None:
    """The same seeds and actions give other rows."""
    check, pairs = seen.check, seen.pairs
    said = "" if check is None else check.same_seeds or check.same_again
    said = said or ("" if pairs is None else pairs.unlike)
    if not said:
        return None
    return Finding(
        "not-repeatable",
        0.45,
        f"the same seeds and actions give other rows ({said}): randomness does not come from the "
        "seed, or something outlives an environment",
        {},
        "draw from self.np_random only, which reset(seed=seed) makes, and keep nothing in classes, "
        "modules and files",
        seen.options.check,
    )


def remembers(seen: Seen) -> Finding | None:
    """A second episode with the same seed differs in the same environment."""
    kept = seen.remembers or (seen.check.keeps if seen.check is not None else "")
    if not kept or not_repeatable(seen) is not None:
        return None
    return Finding(
        "remembers",
        0.9,
        f"an episode depends on the one before: after a reset with the same seed and with the same "
        f"actions {kept} differs",
        {},
        "set everything again in reset()",
        seen.options.check,
    )


def same_start(seen: Seen) -> Finding | None:
    """Every episode begins alike, or alike in each environment."""
    played, pairs = seen.played, seen.pairs
    if played is None or not played.rows:
        return None
    begins = np.zeros_like(played.valid)
    begins[1:] = ~played.valid[:-1]
    begins[:1] = True
    first = [x[own] for x, own in zip(played.obs[:-1].swapaxes(0, 1), begins.T, strict=True)]
    several = [each for each in first if len(each) >= _LEAST_STARTS]
    if any((each != each[0]).any() for each in first):
        return None
    starts = len({each[0].tobytes() for each in first})
    count = sum(map(len, first))
    if starts > 1:
        game = seen.check is not None and len(seen.check.env.agents) > 1
        if len(several) < 2 or game:  # agents may begin in different places
            return None
        return Finding(
            "same-start",
            0.55,
            f"each of {len(first)} environments begins all of its episodes with the same "
            "observation, and each with another one",
            {"environments": len(first), "episodes": count, "different starts": starts},
            "reset() may take its first seed again, or draw its task only once: draw from "
            "self.np_random, and make it anew only from a seed that is given",
            seen.options.check,
        )
    if pairs is None or pairs.seeds < 3 or pairs.starts != 1:
        return None
    return Finding(
        "same-start",
        0.25,
        f"every episode begins with the same observation ({pairs.seeds} seeds, {count} "
        "episodes): a policy may learn one path by heart",
        {"seeds": pairs.seeds, "different starts": pairs.starts},
        "draw the start in reset() from self.np_random, if the task has several",
        seen.options.check,
    )


def never_ends(seen: Seen) -> Finding | None:
    """No episode ends, and no time limit is known."""
    check, played = seen.check, seen.played
    if check is None or played is None or check.env.max_steps is not None:
        return None
    longest = played.steps
    if check.lengths or played.ended or longest < 500:
        return None
    return Finding(
        "never-ends",
        0.7 if longest >= _LONG_EPISODE else 0.45,
        f"no episode ended in {longest:,} steps of each of {played.valid.shape[1]} streams, and "
        "no time limit is known: without an end no return is reported and every start is seen once",
        {"steps of a stream": longest, "episodes": 0},
        "return truncated=True after a number of steps (gymnasium.wrappers.TimeLimit)",
        seen.options.check,
    )


def ends_at_once(seen: Seen) -> Finding | None:
    """Every episode has one step."""
    played = seen.played
    if played is None:
        return None
    _, lengths, _ = played.returns(held=False)
    if len(lengths) < 20 or lengths.max() > 1:
        return None
    # An environment that pays for the only action may be a task of one decision.
    decides = seen.pairs is not None and seen.pairs.rewarded > 0
    return Finding(
        "ends-at-once",
        0.45 if decides else 0.6,
        f"all of {len(lengths)} episodes ended after one step",
        {"episodes": len(lengths), "longest": 1},
        "look at what ends an episode; a task of one decision (a bandit) needs no change",
        seen.options.check,
    )


def gamma_one(seen: Seen) -> Finding | None:
    """No discount where episodes are cut or never end."""
    played, gamma = seen.played, seen.options.gamma
    if played is None or gamma is None or gamma < 1.0 or played.terminated.any():
        return None
    if played.rows < 200:
        return None
    return Finding(
        "gamma-one",
        0.6,
        "gamma is 1 and no episode is terminated, so values have no bound",
        {"gamma": gamma, "terminated episodes": 0},
        "take a gamma below 1",
        f"{seen.options.train} --gamma 0.99",
    )


def slow_step(seen: Seen) -> Finding | None:
    """A step takes so long that the budget takes days."""
    check = seen.check
    if check is None or check.step_s < _SLOW_S:
        return None
    hours = check.step_s * seen.options.total_env_steps / 3600
    return Finding(
        "slow-step",
        min(0.6, 0.2 + 0.1 * np.log10(check.step_s / _SLOW_S) + (0.2 if hours > 12 else 0.0)),
        f"a step takes {1e3 * check.step_s:.3g} ms, so {seen.options.total_env_steps:,} env_steps "
        f"take {hours:,.1f} hours of a core",
        {"seconds of a step": check.step_s, "hours of the budget": hours},
        "make step() faster, or step environments in as many processes as there are cores",
        f"{seen.options.train} --runtime.kind lockstep",
    )


FINDINGS = (
    not_finite,
    faults,
    not_repeatable,
    remembers,
    same_start,
    never_ends,
    ends_at_once,
    gamma_one,
    slow_step,
)
