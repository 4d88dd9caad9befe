"""Findings about what the learner reports: its health, entropy, gradients, replay, lag."""

import math
import re
from statistics import median

from quintet.doctor.curves import RunSeen
from quintet.doctor.finding import Finding
from quintet.doctor.run_options import change, number, scaled
from quintet.protocols import Evidence, Part

_LEAST_REPORTS = 4
_BOUNDS = "model.action_bounds"
_NORM = re.compile(r"optim/(\w+_)?grad_norm")  # norms of the whole network, or of a part


def health(seen: RunSeen) -> list[Finding]:
    """A finding for every part whose evidence was mostly outside of its bounds."""
    return [x for part in seen.parts if (x := _of_part(seen, part)) is not None]


def _of_part(seen: RunSeen, part: Part) -> Finding | None:
    worst: tuple[float, Evidence, float, float] | None = None  # degree, which, median, share
    for each in part.evidence:
        # No more than a quarter is left out: an early failure looks calm when nothing moves.
        judged = [
            report[each.metric]
            for report in seen.part(0.25, 1.0)
            if each.metric in report
            and report.get("updates", 0.0) >= each.after_updates
            and (
                each.given is None
                or (each.given[0] in report and each.given[1].holds(report[each.given[0]]))
            )
        ]
        if len(judged) < 2:
            continue
        beyond = sum(not each.possible.holds(x) for x in judged) / len(judged)
        unsound = sum(not each.sound.holds(x) for x in judged) / len(judged)
        degree = max(beyond, 0.6 * unsound)
        if degree >= 0.3 and (worst is None or degree > worst[0]):
            odd = [x for x in judged if not each.sound.holds(x)]
            worst = degree, each, sorted(odd)[len(odd) // 2], unsound
    if worst is None:
        return None
    degree, each, value, unsound = worst
    low = value < each.sound.low
    bound, meaning = (each.sound.low, each.below) if low else (each.sound.high, each.above)
    way = "below" if low else "above"
    command = ""
    if part.name == "policy":
        command = scaled(seen, "learning_rate", 3.0 if low else 0.2)
    return Finding(
        health_name(part.name),
        (0.15 + 0.5 * degree) * seen.doubt,
        f"{part.name.replace('_', ' ')}: {each.name} was {way} {bound:.2g}: {meaning}",
        {each.name: value, "bound": bound, "share of the reports": unsound},
        "a lower learning rate, or fewer passes" if command and not low else
        "a higher learning rate" if command else "look at the options that it depends on",
        command,
        "" if part.name in PARTS else part.name,
    )  # fmt: skip


PARTS = ("policy", "value_function", "normalizers")


def health_name(part: str) -> str:
    """The name of the finding about a part of the learner."""
    return f"health-{part.replace('_', '-') if part in PARTS else 'part'}"


def entropy_gone(seen: RunSeen) -> Finding | None:
    """The policy stopped trying other actions early, and the returns did not rise."""
    metric, what = "policy/entropy", "entropy"
    if seen.continuous:  # the entropy of a density has no least value
        metric, what = "policy/std_mean", "standard deviation"
    found, until = seen.values(metric), seen.values(metric, 0.0, 1 / 3)
    known = len(found) >= _LEAST_REPORTS and until and seen.rise is not None
    if not known or seen.learns:
        return None
    first, early = max(found[:2]), until[-1]
    if first <= 0.05 or early > 0.1 * first:
        return None
    return Finding(
        "entropy-gone",
        0.7 * seen.doubt,
        "the policy had settled on its actions before a third of the run and tried no others",
        {f"{what} at first": first, f"{what} at a third": early},
        "a larger entropy bonus keeps it trying; a lower learning rate settles later",
        _entropy(seen, 0.01) or scaled(seen, "learning_rate", 0.2),
    )


def _entropy(seen: RunSeen, least: float) -> str:
    names = seen.roles.get("ent_coef", ())
    now = [number(seen.run.options.get(name)) for name in names]
    known = [x for x in now if x is not None]
    if not names or len(known) < len(names):
        return ""
    return change(seen, {name: max(least, 5 * x) for name, x in zip(names, known, strict=True)})


def entropy_stuck(seen: RunSeen) -> Finding | None:
    """The policy stayed as random as at first."""
    found, spread = seen.values("policy/entropy"), seen.values("policy/std_mean")
    known = len(found) >= _LEAST_REPORTS and seen.rise is not None
    if not known or seen.learns or (seen.continuous and not spread):
        return None
    first, last = found[0], found[-1]
    stuck = min(found) >= first - 0.02 * abs(first)
    if spread:
        stuck = min(spread) > 0.97 * spread[0]
    if not stuck:
        return None
    weights = (number(seen.run.options.get(x)) for x in seen.roles.get("ent_coef", ()))
    high = any(x is not None and x >= 0.05 for x in weights)
    return Finding(
        "entropy-stuck",
        0.55 if high else 0.4,
        "the policy stayed as random as at first: "
        + ("the entropy bonus outweighs the rewards" if high else "no reward guided it"),
        {"entropy at first": first, "entropy at last": last},
        "a smaller entropy bonus" if high else "a higher learning rate; look at the rewards",
        scaled(seen, "ent_coef", 0.05) if high else scaled(seen, "learning_rate", 3.0),
    )


def policy_still(seen: RunSeen) -> Finding | None:
    """Policy and value function hardly changed from update to update."""
    kl, rate = seen.late("policy/kl"), seen.values("optim/learning_rate")
    if kl is None or len(seen.reports) < _LEAST_REPORTS:
        return None
    early = seen.values("policy/kl", 0.0, 0.5)
    if not early or max(early) > 1e-4 or seen.learns or seen.rise is None:
        return None
    return Finding(
        "policy-still",
        0.6,
        "the policy hardly moved: the KL of an update never reached 1e-4 in the first half",
        {"largest KL": max(early), "learning rate": rate[0] if rate else math.nan},
        "a higher learning rate, a wider clip, a larger bound of the gradient",
        scaled(seen, "learning_rate", 10.0),
    )


def actions_saturated(seen: RunSeen) -> Finding | None:
    """The policy's likeliest actions are at their bounds."""
    share, bounds = seen.late("policy/mode_saturation_frac"), seen.run.options.get(_BOUNDS)
    if share is None or share < 0.8 or seen.learns or seen.rise is None:
        return None
    return Finding(
        "actions-saturated",
        0.35,
        f"{share:.0%} of the likeliest actions were at their bounds, where a change of the policy "
        "changes next to nothing",
        {"share at a bound": share},
        "a lower learning rate, "
        + (f"bounds by a tanh ({_BOUNDS}), " if bounds == "clip" else "")
        + "or a Box of the range that matters",
        scaled(seen, "learning_rate", 0.2),
    )


def gradient_clipped(seen: RunSeen) -> Finding | None:
    """Next to nothing of the gradient is left after clipping."""
    given = [number(seen.run.options.get(name)) for name in seen.roles.get("grad_clip", ())]
    bounds = [x for x in given if x is not None and x > 0]
    norm, share = seen.late("optim/grad_norm"), seen.late("optim/grad_clip_frac")
    if not bounds or norm is None or share is None or share < 0.95 or norm < 20 * bounds[0]:
        return None
    return Finding(
        "gradient-clipped",
        min(0.7, 0.3 + 0.1 * math.log10(norm / bounds[0])) * seen.doubt,
        f"nearly every gradient was clipped, by a factor of {norm / bounds[0]:,.0f}",
        {"gradient norm": norm, "bound": bounds[0], "share clipped": share},
        "a larger bound; if rewards are large, scale them",
        scaled(seen, "grad_clip", 10.0),
    )


def gradient_spikes(seen: RunSeen) -> Finding | None:
    """Single gradients are far larger than the others."""
    names = {name for report in seen.reports for name in report if _NORM.fullmatch(name)}
    found: list[tuple[float, float, float]] = []  # ratio, largest, usual
    for name in names:
        norms = seen.values(name, 0.1)
        usual = median(norms) if len(norms) >= 8 else 0.0
        if usual > 0 and max(norms) >= 50 * usual:
            found.append((max(norms) / usual, max(norms), usual))
    if not found:
        return None
    ratio, largest, usual = max(found)
    return Finding(
        "gradient-spikes",
        0.4 * seen.doubt,
        f"the largest gradient of a report was {ratio:,.0f} times the usual one",
        {"largest norm": largest, "median norm": usual},
        "a bound of the gradient, a lower learning rate, clipped rewards",
        scaled(seen, "learning_rate", 0.3),
    )


def few_updates(seen: RunSeen) -> Finding | None:
    """Hardly any optimizer steps were made."""
    updates, steps = seen.last("updates"), seen.last("env_steps")
    if updates is None or steps is None or updates >= 150 or seen.run.state != "finished":
        return None
    return Finding(
        "few-updates",
        (0.75 if updates < 50 else 0.5) * seen.doubt,
        f"the whole run made {updates:,.0f} optimizer steps",
        {"updates": updates, "env_steps": steps},
        "a larger budget, smaller minibatches, shorter unrolls, or an earlier start of the updates",
        scaled(seen, "total_timesteps", 10),
    )


def replay_small(seen: RunSeen) -> Finding | None:
    """Replay soon forgets what was seen."""
    size, steps = seen.last("replay/size"), seen.last("env_steps")
    streams = number(seen.run.options.get("env.num_streams")) or 1.0
    names = seen.roles.get("buffer_size", ())
    parts = {name: streams if name.endswith("_per_stream") else 1.0 for name in names}
    given = {name: number(seen.run.options.get(name)) for name in names}
    capacity = [x * parts[name] for name, x in given.items() if x is not None and x > 0]
    if size is None or steps is None or not capacity or capacity[0] > 2_000:
        return None
    if steps < 5 * capacity[0]:
        return None
    return Finding(
        "replay-small",
        0.7 * seen.doubt,
        f"replay holds only the last {capacity[0]:,.0f} of {steps:,.0f} env_steps, so every update "
        "sees nearly the same few episodes",
        {"transitions in replay": size, "env_steps": steps},
        "a larger replay",
        change(seen, {name: math.ceil(100_000 / part) for name, part in parts.items()}),
    )


def replay_overused(seen: RunSeen) -> Finding | None:
    """Each transition is trained on very often, or hardly ever."""
    draws = seen.last("replay/draws_per_env_step")
    if not draws or 0.5 <= draws <= 2_000:  # 0: it has not begun, or trains on fresh data only
        return None
    often = draws > 1
    return Finding(
        "replay-use",
        0.4 * seen.doubt,
        f"replay gave {draws:,.3g} transitions for every env_step: "
        + ("it learns the same ones by heart" if often else "most are never learned from"),
        {"transitions per env_step": draws},
        "fewer updates for each env_step" if often else "more updates for each env_step",
        scaled(seen, "gradient_steps", 0.1 if often else 10.0),
    )


def data_discarded(seen: RunSeen) -> Finding | None:
    """Much of what environments made was never learned from."""
    made, lost = seen.last("data/executed_env_steps"), seen.last("data/discarded_env_steps")
    if not made or lost is None or lost < 0.3 * made or made < 1_000:
        return None
    return Finding(
        "data-discarded",
        0.4 * seen.doubt,
        f"{lost / made:.0%} of the executed env_steps were never learned from",
        {"executed env_steps": made, "discarded": lost},
        "fewer streams or workers, or a larger bound of the lag",
    )


def lag_high(seen: RunSeen) -> Finding | None:
    """The weights that acted were many updates old."""
    lag, kl = seen.late("policy_lag/mean"), seen.late("policy/kl")
    kl = seen.late("policy/approx_kl") if kl is None else kl
    if lag is None or lag < 10 or kl is None or kl < 0.03:
        return None
    return Finding(
        "lag-high",
        0.5 * seen.doubt,
        f"the weights that acted were {lag:,.0f} updates old, and the policy had moved away from "
        "them",
        {"mean age in updates": lag, "KL to the policy that acted": kl},
        "fewer streams or workers, larger batches, or a bound of the lag",
        scaled(seen, "learning_rate", 0.3),
    )


def values_scale(seen: RunSeen) -> Finding | None:
    """Predicted values are many times larger or smaller than their targets."""
    value, target = seen.late("value/prediction_mean"), seen.late("value/target_mean")
    if value is None or target is None or abs(target) < 1e-6:
        return None
    if (seen.last("updates") or 0.0) < 200:
        return None
    ratio = abs(value) / abs(target)
    spread = seen.late("advantage/std")
    if spread is not None and abs(target) < spread:  # a mean near 0 says nothing of the scale
        return None
    if 0.05 <= ratio <= 20:
        return None
    return Finding(
        "values-scale",
        0.5 * seen.doubt,
        f"values are {ratio:.2g} times the size of their targets",
        {"mean value": value, "mean target": target},
        "a larger weight of the value's loss, or normalised rewards",
        scaled(seen, "vf_coef", 10.0),
    )


FINDINGS = (
    entropy_gone,
    entropy_stuck,
    policy_still,
    actions_saturated,
    gradient_clipped,
    gradient_spikes,
    few_updates,
    replay_small,
    replay_overused,
    data_discarded,
    lag_high,
    values_scale,
)
