"""Findings about a run's scores, its end, and its budget."""

import math
import re
import shlex
from statistics import mean, pstdev

from quintet.doctor.curves import RunSeen
from quintet.doctor.finding import EXPLAINS, Finding, env_words, option_in, weight_of
from quintet.doctor.run_options import change, number, scaled
from quintet.observe.run_summary import RunSummary
from quintet.system.files import shown

_LONG_EPISODE = 2_000  # env_steps of a stream, within which most episodes end


def choices(seen: RunSeen) -> list[Finding]:
    """The doubtful choices that the run has named."""
    found = []
    for each in seen.run.choices:
        way = option_in(each.option)
        found.append(
            Finding(
                each.choice.replace("_", "-"),
                weight_of(each.choice) * seen.doubt,
                each.said,
                {"said at env_steps": float(each.env_steps)},
                each.option,
                f"{seen.train} {way}" if way else "",
                explains=EXPLAINS.get(each.choice.replace("_", "-"), frozenset()),
            )
        )
    return found


def run_failed(seen: RunSeen) -> Finding | None:
    """The run ended by an error."""
    return failed(seen.run, scaled(seen, "learning_rate", 0.1))


def failed(run: RunSummary, slower: str = "") -> Finding | None:
    """The run ended by an error, if only before its first report.

    slower: the command with a lower learning rate.
    """
    if run.state != "failed":
        return None
    bad = re.search(r"\b(nan|(non-?)?finite|infinit\w*|inf)\b", run.error.lower()) is not None
    of_env = run.error.startswith("EnvironmentFault")
    advice = "a lower learning rate, or a mended environment" if bad else "mend what it names"
    return Finding(
        "run-failed",
        0.9,
        f"the run ended by an error: {run.error or 'it is in log.txt'}",
        {"env_steps": float(run.env_steps)},
        "mend the environment" if of_env else advice,
        doctor_of_env(run) if of_env else slower if bad else "",
    )


def no_episode(seen: RunSeen) -> Finding | None:
    """No episode ended in the whole run."""
    steps = seen.last("env_steps") or 0.0
    streams = number(seen.run.options.get("env.num_streams")) or 1.0
    long = steps >= _LONG_EPISODE * streams
    if steps < _LONG_EPISODE or seen.values("episode/return_mean"):
        return None
    if not long and seen.run.state != "finished":  # the first episodes may still end
        return None
    return Finding(
        "no-episode",
        0.75 if long else 0.4,
        f"no episode ended in {steps:,.0f} env_steps, {steps / streams:,.0f} of each stream, so "
        "there is no return",
        {"env_steps": steps, "streams": streams, "episodes": 0},
        "give the environment a time limit, or a larger budget",
        doctor_of_env(seen.run),
    )


def returns_equal(seen: RunSeen) -> Finding | None:
    """All returns are the same."""
    found = seen.values("episode/return_mean")
    # The extremes are not rounded, unlike means.
    ends = seen.values("episode/return_min"), seen.values("episode/return_max")
    if len(found) < 3 or not all(ends) or min(ends[0]) != max(ends[1]):
        return None
    return Finding(
        "returns-equal",
        0.8,
        f"every episode had the same return, {found[0]:g}, so nothing tells good actions from bad",
        {"return": found[0], "reports": len(found)},
        "look at the environment's rewards and endings",
        doctor_of_env(seen.run),
    )


def evaluation_differs(seen: RunSeen) -> Finding | None:
    """Evaluations score far below training."""
    training, evaluated = seen.level(0.6, 1.0), seen.level(0.6, 1.0, "eval")
    if training is None or evaluated is None or training.count < 10:
        return None
    gap = training.mean - evaluated.mean
    noise = math.hypot(training.error, evaluated.error)
    first = seen.first_level
    range_ = abs(training.mean - first.mean) if first else 0.0
    if gap < max(4 * noise, 0.3 * abs(training.mean), 0.3 * range_, training.std, 1e-9):
        return None
    elsewhere = any(name.startswith("eval.env.") for name in seen.given)
    cut = seen.late("eval/cut_episodes") or 0.0
    return Finding(
        "evaluation-differs",
        0.6 if elsewhere else 0.5,
        "evaluations score far below training"
        + (", in another environment" if elsewhere else ": greedy actions are worse than sampled")
        + (", and eval.max_steps cut episodes that did not end" if cut else ""),
        {"training": training.mean, "evaluation": evaluated.mean, "noise": noise}
        | ({"episodes cut in an evaluation": cut} if cut else {}),
        "compare the two environments"
        if elsewhere
        else "evaluate with sampled actions, or let "
        "the policy settle (a smaller entropy bonus, a longer run)",
        ""
        if elsewhere
        else shlex.join(["quintet", "eval", str(shown(seen.run.folder)), "--stochastic"]),
    )


def best_long_ago(seen: RunSeen) -> Finding | None:
    """The best score was long before the end, which is far below."""
    if len(seen.reports) < 8:
        return None
    levels = [
        (begin / 32, x)
        for begin in range(29)
        if (x := seen.level(begin / 32, (begin + 4) / 32)) is not None
    ]
    first = seen.first_level
    if len(levels) < 4 or first is None:
        return None
    place, best = max(levels, key=lambda each: each[1].mean)
    end = levels[-1][1]
    rise = best.mean - first.mean
    fall = best.mean - end.mean
    noise = math.hypot(best.error, end.error)
    if place > 0.7 or rise <= 0 or fall < max(5 * noise, 0.4 * rise, 0.5 * best.std):
        return None
    return Finding(
        "best-long-ago",
        0.6,
        f"the best returns were at {place:.0%} of the run; since then "
        f"{fall / rise:.0%} of the rise was lost",
        {"best": best.mean, "last": end.mean, "first": first.mean},
        "a lower learning rate, or one that falls to 0; `best` holds the best policy",
        scaled(seen, "learning_rate", 0.3),
    )


def budget_short(seen: RunSeen) -> Finding | None:
    """The returns were still rising when the budget ended, or the budget is far below usual."""
    total = seen.run.total_env_steps
    usual, steps = seen.usual.get("total_env_steps"), seen.last("env_steps")
    if number(total) is None or total is None or steps is None or seen.run.state != "finished":
        return None
    known = "total_env_steps" in seen.tuned  # else it is the same for every environment
    small = isinstance(usual, int) and total < usual / (5 if known else 50)
    before, end, first = seen.level(0.5, 0.75), seen.level(0.75, 1.0), seen.first_level
    rising = False
    if before is not None and end is not None and first is not None:
        gain, whole = end.mean - before.mean, end.mean - first.mean
        noise = math.hypot(before.error, end.error)
        rising = gain > max(2.5 * noise, 0.2 * whole) and whole > 0
    if not (small or rising):
        return None
    weight = 0.3 + 0.15 * rising + (0.25 if known else 0.1) * small
    if small and known and isinstance(usual, int) and total < usual / 40:
        weight += 0.1
    rates = {name for x in seen.reports for name in x if name.endswith("learning_rate")}
    fell = any(x and x[-1] < 0.9 * x[0] for x in map(seen.values, rates))
    what = "the returns were still rising at the end" if rising else "the budget is short"
    return Finding(
        "budget-short",
        min(weight, 0.8) * (1.0 if not seen.learns else 0.7),
        f"{what}: {total:,} env_steps" + (f", where {usual:,} are usual" if small else ""),
        {"env_steps": float(total), "usual": float(usual) if isinstance(usual, int) else math.nan},
        "a larger budget" + ("; its learning rates fell, so a new run is needed" if fell else ""),
        change(seen, {"total_env_steps": usual if small else 4 * total}),
    )


def plateau(seen: RunSeen) -> Finding | None:
    """The returns rose, and have not risen any more for half of the run."""
    first, middle, end = seen.first_level, seen.level(0.25, 0.5), seen.level(0.75, 1.0)
    if not seen.learns or first is None or middle is None or end is None:
        return None
    least = 0.05 * (end.mean - first.mean)
    if abs(end.mean - middle.mean) > least or math.hypot(middle.error, end.error) > least:
        return None
    third = seen.level(0.5, 0.75)
    if third is None or abs(third.mean - middle.mean) > 2.0 * least:
        return None
    numbers = {"first": first.mean, "second quarter": middle.mean, "last quarter": end.mean}
    entropy = seen.values("policy/entropy")
    if entropy and not seen.continuous:
        numbers |= {"entropy at first": entropy[0], "entropy at last": entropy[-1]}
    return Finding(
        "plateau",
        0.15,
        f"the returns have not risen since the second quarter of the run: {first.mean:.4g} at "
        f"first, {middle.mean:.4g} in that quarter and {end.mean:.4g} in the last",
        numbers,
        "if more is possible, compare with a rule of thumb, examine the environment, and search "
        "for other options",
        shlex.join(
            ["quintet", "sweep", seen.run.learner, "--env", seen.run.environment, "--minutes", "60"]
        )
        + env_words({k.removeprefix("env."): x for k, x in seen.run.options.items()}),
    )


_FASTER = {
    "stepping": "make step() faster, or step environments in more processes or on more cores",
    "making": "make the constructor and the first reset() of the environment faster",
    "acting": "more streams in a group, so that an act chooses more actions at once",
    "replay": "smaller observations, or fewer updates for each env_step",
    "waiting": "more workers, or faster steps of the environment",
    "evaluation": "rarer evaluations, or fewer episodes of them",
    "checkpoint": "rarer checkpoints",
    "other": "rarer reports",
}
"""Ways to make a run faster, by the part that takes most of its time."""

_RARER = {
    "evaluation": "eval.interval",
    "checkpoint": "checkpoint.interval_s",
    "other": "report.interval_s",
}


def seeds_differ(seen: RunSeen) -> Finding | None:
    """Seeds of the same options end far from each other."""
    own = seen.level(0.75, 1.0)
    if own is None or len(seen.others) < 1:
        return None
    levels = [own, *seen.others]
    means = [each.mean for each in levels]
    first = seen.first_level
    rise = max(means) - (first.mean if first else min(means))
    error = max(each.error for each in levels)
    gap = max(means) - min(means)
    if rise <= 0 or gap < max(0.5 * rise, 6 * error):
        return None
    return Finding(
        "seeds-differ",
        0.45,
        f"{len(means)} seeds of the same options ended between {min(means):.4g} and "
        f"{max(means):.4g}: some learned and some did not",
        {"mean": mean(means), "standard deviation": pstdev(means)},
        "more exploration, more streams, or a lower learning rate",
        scaled(seen, "ent_coef", 3.0) or scaled(seen, "learning_rate", 0.3),
    )


def not_learning(seen: RunSeen) -> Finding | None:
    """The returns did not rise beyond their noise."""
    rise = seen.rise
    if rise is None or rise > 1.0:
        return None
    begin, end = seen.first_level, seen.level(0.75, 1.0)
    assert begin is not None
    assert end is not None
    fell = rise < -1.0
    return Finding(
        "not-learning",
        0.45 if fell else 0.35,
        "the returns fell" if fell else "the returns did not rise beyond their noise",
        {"first": begin.mean, "last": end.mean, "standard deviation": begin.std},
        "examine the environment",
        doctor_of_env(seen.run),
    )


def slow(seen: RunSeen) -> Finding | None:
    """Something else than learning takes most of the time."""
    shares = {name: x for name in _FASTER if (x := seen.share(f"time/{name}_frac")) is not None}
    if not shares:
        return None
    name = max(shares, key=lambda each: shares[each])
    if shares[name] < 0.6:
        return None
    speed = seen.late("throughput/env_steps_per_s")
    rarer = _RARER.get(name, "")
    now = number(seen.run.options.get(rarer))
    return Finding(
        "slow",
        0.1,
        f"{shares[name]:.0%} of the run's time went into "
        + ("what lies between the measured parts, such as reports" if name == "other" else name),
        {"share of the time": shares[name], "env_steps per second": speed or math.nan},
        f"{_FASTER[name]}; docs/performance.md says more",
        change(seen, {rarer: 5 * now if rarer.endswith("_s") else int(5 * now)}) if now else "",
    )


def doctor_of_env(run: RunSummary) -> str:
    """The command that examines the run's environment."""
    config = f"{shown(run.folder)}/config.yaml"
    words = run.environment, "--algo", run.learner, "--config", config
    return shlex.join(["quintet", "doctor", *words])


FINDINGS = (
    run_failed,
    no_episode,
    returns_equal,
    evaluation_differs,
    best_long_ago,
    budget_short,
    seeds_differ,
    not_learning,
    plateau,
    slow,
)
