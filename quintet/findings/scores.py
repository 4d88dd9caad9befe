"""Findings about a run's scores, its end, and its budget."""

import math
import re
import shlex
from statistics import mean, pstdev

from quintet.doctor.curves import Level, RunSeen, number, words
from quintet.findings.choices import weight_of
from quintet.findings.engine import Found, Rows, env_words, option_in
from quintet.findings.record import Finding
from quintet.observe.metrics import ENV
from quintet.observe.run_summary import RunSummary
from quintet.system.files import shown

_LONG_EPISODE = 2_000  # env_steps of a stream, within which most episodes end

EXPLAINS = {
    "reward-size": frozenset(
        {"observation-scale", "gradient-clipped", "gradient-spikes", "values-scale",
         "health-value-function"}),
    "observation-scale": frozenset(
        {"gradient-clipped", "gradient-spikes", "dead-units", "health-value-function"}),
}  # fmt: skip
"""Findings that doubtful choices explain: numbers of another size are one cause, whatever shows
it."""

finding = Rows("run", "run-unreadable")


@finding("run-failed")
def run_failed(seen: RunSeen) -> Found:
    yield from failed(seen.run, seen.scaled("learning_rate", 0.1))


def failed(run: RunSummary, slower: str = "") -> Found:
    """The run ended by an error, if only before its first report.

    slower: the words that lower the learning rate.
    """
    if run.state != "failed":
        return
    bad = re.search(r"\b(nan|(non-?)?finite|infinit\w*|inf)\b", run.error.lower()) is not None
    of_env = run.error.startswith("EnvironmentFault")
    advice = "a lower learning rate, or a mended environment" if bad else "mend the named fault"
    yield Finding(
        f"the run ended by an error: {run.error or 'it is in log.txt'}",
        {"env_steps": float(run.env_steps)},
        "mend the environment" if of_env else advice,
        slower if bad and not of_env else "",
        doctor_of_env(run) if of_env else "",
        weight=0.9,
        name="run-failed",
    )


@finding("no-episode")
def no_episode(seen: RunSeen) -> Found:
    steps, streams = seen.last("env_steps"), seen.option("env.num_streams") or 1.0
    long = steps >= _LONG_EPISODE * streams
    if not steps >= _LONG_EPISODE or seen.values("episode/return_mean"):
        return
    if long or seen.run.state == "finished":  # else the first episodes may still end
        yield Finding(
            f"no episode ended in {steps:,.0f} env_steps ({steps / streams:,.0f} of each stream), "
            "so there is no return",
            {"env_steps": steps, "streams": streams, "episodes": 0},
            "give the environment a time limit, or a larger budget",
            command=doctor_of_env(seen.run),
            weight=0.75 if long else 0.4,
        )


@finding("returns-equal", weight=0.8)
def returns_equal(seen: RunSeen) -> Found:
    found = seen.values("episode/return_mean")
    # The extremes are not rounded, unlike means.
    ends = seen.values("episode/return_min"), seen.values("episode/return_max")
    if len(found) >= 3 and all(ends) and min(ends[0]) == max(ends[1]):
        yield Finding(
            f"every episode had the same return, {found[0]:g}, so nothing tells good actions from "
            "bad",
            {"return": found[0], "reports": len(found)},
            "look at the environment's rewards and endings",
            command=doctor_of_env(seen.run),
        )


@finding("evaluation-differs")
def evaluation_differs(seen: RunSeen) -> Found:
    training, evaluated = seen.level(0.6, 1.0), seen.level(0.6, 1.0, "eval")
    if training is None or evaluated is None or training.count < 10:
        return
    gap = training.mean - evaluated.mean
    noise = math.hypot(training.error, evaluated.error)
    first = seen.first_level
    range_ = abs(training.mean - first.mean) if first else 0.0
    if gap < max(4 * noise, 0.3 * abs(training.mean), 0.3 * range_, training.std, 1e-9):
        return
    elsewhere = any(name.startswith("eval.env.") for name in seen.given)
    cut = seen.late("eval/cut_episodes")
    advice = "evaluate with sampled actions, or let the policy settle (a smaller entropy bonus, a "
    sampled = shlex.join(["quintet", "eval", str(shown(seen.run.folder)), "--stochastic"])
    yield Finding(
        "evaluations score far below training"
        + (", in another environment" if elsewhere else ": greedy actions are worse than sampled")
        + (", and eval.max_steps cut episodes that did not end" if cut > 0 else ""),
        {"training": training.mean, "evaluation": evaluated.mean, "noise": noise}
        | ({"episodes cut in an evaluation": cut} if cut > 0 else {}),
        "compare the two environments" if elsewhere else f"{advice}longer run)",
        command="" if elsewhere else sampled,
        weight=0.6 if elsewhere else 0.5,
    )


@finding("best-long-ago", weight=0.6, rows=8)
def best_long_ago(seen: RunSeen, first_level: Level) -> Found:
    """The best score was long before the end, which is far below."""
    levels = [
        (begin / 32, x)
        for begin in range(29)
        if (x := seen.level(begin / 32, (begin + 4) / 32)) is not None
    ]
    if len(levels) < 4:
        return
    place, best = max(levels, key=lambda each: each[1].mean)
    end = levels[-1][1]
    rise, fall = best.mean - first_level.mean, best.mean - end.mean
    noise = math.hypot(best.error, end.error)
    if place <= 0.7 and rise > 0 and fall >= max(5 * noise, 0.4 * rise, 0.5 * best.std):
        yield Finding(
            f"the best returns were at {place:.0%} of the run; since then "
            f"{fall / rise:.0%} of the rise was lost",
            {"best": best.mean, "last": end.mean, "first": first_level.mean},
            "a lower learning rate, or one that falls to 0; `best` holds the best policy",
            seen.scaled("learning_rate", 0.3),
        )


@finding("budget-short")
def budget_short(seen: RunSeen) -> Found:
    """The budget is far below the usual, or returns still rise at its end."""
    total, usual = seen.run.total_env_steps, seen.usual.get("total_env_steps")
    if number(total) is None or total is None or seen.run.state != "finished":
        return
    known = "total_env_steps" in seen.tuned  # else it is the same for every environment
    small = isinstance(usual, int) and total < usual / (5 if known else 50)
    rising = _still_rises(seen)
    if not (small or rising):
        return
    weight = 0.3 + 0.15 * rising + (0.25 if known else 0.1) * small
    if small and known and isinstance(usual, int) and total < usual / 40:
        weight += 0.1
    rates = {name for x in seen.reports for name in x if name.endswith("learning_rate")}
    fell = any(x and x[-1] < 0.9 * x[0] for x in map(seen.values, rates))
    what = "the returns were still rising at the end" if rising else "the budget is short"
    yield Finding(
        f"{what}: {total:,} env_steps" + (f", where {usual:,} are usual" if small else ""),
        {"env_steps": float(total), "usual": float(usual) if isinstance(usual, int) else math.nan},
        "a larger budget" + ("; its learning rates fell, so a new run is needed" if fell else ""),
        words({"total_env_steps": usual if small else 4 * total}),
        weight=min(weight, 0.8) * (1.0 if not seen.learns else 0.7),
    )


def _still_rises(seen: RunSeen) -> bool:
    before, end, first = seen.level(0.5, 0.75), seen.last_level, seen.first_level
    if before is None or end is None or first is None:
        return False
    gain, whole = end.mean - before.mean, end.mean - first.mean
    return whole > 0 and gain > max(2.5 * math.hypot(before.error, end.error), 0.2 * whole)


@finding("seeds-differ", weight=0.45)
def seeds_differ(seen: RunSeen, last_level: Level) -> Found:
    levels, first = [last_level, *seen.others], seen.first_level
    means = [each.mean for each in levels]
    rise = max(means) - (first.mean if first else min(means))
    gap, error = max(means) - min(means), max(each.error for each in levels)
    if seen.others and rise > 0 and gap >= max(0.5 * rise, 6 * error):
        yield Finding(
            f"{len(means)} seeds of the same options ended between {min(means):.4g} and "
            f"{max(means):.4g}: some learned and some did not",
            {"mean": mean(means), "standard deviation": pstdev(means)},
            "more exploration, more streams, or a lower learning rate",
            seen.scaled("ent_coef", 3.0) or seen.scaled("learning_rate", 0.3),
        )


@finding("not-learning")
def not_learning(seen: RunSeen, rise: float, first_level: Level, last_level: Level) -> Found:
    fell = rise < -1.0
    if rise <= 1.0:
        yield Finding(
            "the returns fell" if fell else "the returns did not rise beyond their noise",
            {"first": first_level.mean, "last": last_level.mean,
             "standard deviation": first_level.std},
            "examine the environment",
            command=doctor_of_env(seen.run),
            weight=0.45 if fell else 0.35,
        )  # fmt: skip


@finding("plateau", weight=0.15)
def plateau(seen: RunSeen, first_level: Level, last_level: Level) -> Found:
    middle, third = seen.level(0.25, 0.5), seen.level(0.5, 0.75)
    if not seen.learns or middle is None or third is None:
        return
    least = 0.05 * (last_level.mean - first_level.mean)
    gap, error = abs(last_level.mean - middle.mean), math.hypot(middle.error, last_level.error)
    if gap > least or error > least or abs(third.mean - middle.mean) > 2.0 * least:
        return
    numbers = {
        "first": first_level.mean, "second quarter": middle.mean, "last quarter": last_level.mean
    }  # fmt: skip
    entropy = seen.values("policy/entropy")
    if entropy and not seen.continuous:
        numbers |= {"entropy at first": entropy[0], "entropy at last": entropy[-1]}
    sweep = ["quintet", "sweep", seen.run.learner, "--env", seen.run.environment, "--minutes", "60"]
    of_env = {k.removeprefix("env."): x for k, x in seen.run.options.items()}
    yield Finding(
        "the returns have not risen since the second quarter of the run: "
        f"{first_level.mean:.4g} at first, {middle.mean:.4g} in that quarter and "
        f"{last_level.mean:.4g} in the last",
        numbers,
        "find out with a simple rule whether more is possible; if it is, examine the environment, "
        "and search for other options",
        command=shlex.join(sweep) + env_words(of_env),
    )


_COST = re.compile(
    r"(^|[/._])(costs?|violations?|collisions?|crash(es|ed)?|damages?)($|[/._])", re.IGNORECASE
)


@finding("cost-rises", weight=0.15, rows=8)
def cost_rises(seen: RunSeen) -> Found:
    """A number of the environment that is named as a cost rises while the returns do."""
    if not seen.learns:
        return
    for name in sorted({name for each in seen.reports for name in each if name.startswith(ENV)}):
        first, last = seen.values(name, 0.0, 0.25), seen.values(name, 0.75, 1.0)
        if not _COST.search(name.removeprefix(ENV)) or min(len(first), len(last)) < 2:
            continue
        rise = mean(last) - mean(first)
        error = math.hypot(pstdev(first) / len(first) ** 0.5, pstdev(last) / len(last) ** 0.5)
        if mean(first) >= 0 and rise > max(4.0 * error, 0.3 * mean(first), 1e-9):
            yield Finding(
                f"{name} rose from {mean(first):.4g} to {mean(last):.4g} while the returns rose",
                {"first": mean(first), "last": mean(last)},
                "if less of it is better, let the reward count it, or keep the best policy by "
                f"checkpoint.best_by=-{name}",
                "",
                subject=name,
            )


@finding("reward-term", weight=0.3, needs="rise", rows=3)
def reward_term(seen: RunSeen) -> Found:
    """One of the reward's terms, whose sum is the return, has nearly all of its size."""
    if seen.learns:
        return
    from quintet.envs.info_metrics import read_terms  # few runs have metrics of their own

    try:
        terms = read_terms(str(seen.run.options.get("env.metrics", "none")))
    except ValueError:  # a file of somebody else
        return
    sums = [f"{ENV}{term.name}" for term in terms if term.how == "sum"]
    for names in (sums, [name for name in sums if "rew" in name.lower()]):
        rows = [x for x in seen.reports if {"episode/return_mean", *names} <= x.keys()]
        sizes = {name: math.fsum(abs(x[name]) for x in rows) for name in names}
        whole = math.fsum(sizes.values())
        rest = math.fsum(
            abs(math.fsum(x[name] for name in names) - x["episode/return_mean"]) for x in rows
        )
        if len(names) > 1 and len(rows) >= 3 and rest <= 0.01 * whole and whole > 0:
            most = max(names, key=lambda name: sizes[name])
            if sizes[most] >= 0.95 * whole:
                yield Finding(
                    f"{most} is {sizes[most] / whole:.0%} of the reward's size, so that the other "
                    "terms hardly count",
                    {name: size / len(rows) for name, size in sizes.items()},
                    "give the terms sizes by which each of them matters, or leave some out",
                    command=doctor_of_env(seen.run),
                )
            return


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

_BETWEEN = "work between the measured parts, such as reports"
_RARER = {
    "evaluation": "eval.interval",
    "checkpoint": "checkpoint.interval_s",
    "other": "report.interval_s",
}


@finding("slow", weight=0.1)
def slow(seen: RunSeen) -> Found:
    """Something else than learning takes most of the time."""
    shares = {name: seen.share(f"time/{name}_frac") for name in _FASTER}
    name = max(shares, key=lambda each: shares[each])
    share = shares[name]
    rarer = _RARER.get(name, "")
    now = seen.option(rarer)
    if share >= 0.6:
        yield Finding(
            f"{share:.0%} of the run's time went into {_BETWEEN if name == 'other' else name}",
            {"share of the time": share,
             "env_steps per second": seen.late("throughput/env_steps_per_s") or math.nan},
            f"{_FASTER[name]}; docs/performance.md says more",
            words({rarer: 5 * now if rarer.endswith("_s") else int(5 * now)}) if now else "",
        )  # fmt: skip


def doctor_of_env(run: RunSummary) -> str:
    """The command that examines the run's environment."""
    config = f"{shown(run.folder)}/config.yaml"
    given = run.environment, "--algo", run.learner, "--config", config
    return shlex.join(["quintet", "doctor", *given])


@finding()
def choices(seen: RunSeen) -> Found:
    """The doubtful choices that the run has named."""
    for each in seen.run.choices:
        name = each.choice.replace("_", "-")
        yield Finding(
            each.said,
            {"said at env_steps": float(each.env_steps)},
            each.option,
            option_in(each.option),
            weight=weight_of(each.choice) * seen.doubt,
            name=name,
            explains=EXPLAINS.get(name, frozenset()),
        )
