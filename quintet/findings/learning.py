"""Findings about a learner: what it reports of its health, entropy, gradients, replay and lag, and
options that are far from those of the preset."""

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from quintet.algorithms.parts.suspects import HARMLESS, HARMLESS_WAYS, SYMPTOMS, WORDS
from quintet.doctor.curves import Report, RunSeen, as_word, number, words
from quintet.findings.engine import Found, Rows
from quintet.findings.health import counts, is_ripe
from quintet.findings.record import Finding
from quintet.options.declaration import about
from quintet.options.layers import options as fields
from quintet.protocols import Evidence, Part

_LEAST_REPORTS = 4
_BOUNDS = "model.action_bounds"
_NORM = re.compile(r"optim/(\w+_)?grad_norm")  # norms of the whole network, or of a part

finding = Rows("run", "dead-units", factor="doubt")

_OWN_NAMES = ("policy", "value_function", "normalizers")


def health_name(part: str) -> str:
    """The name of the finding about a part of the learner."""
    return f"health-{part.replace('_', '-') if part in _OWN_NAMES else 'part'}"


@finding(*map(health_name, (*_OWN_NAMES, "part")))
def health(seen: RunSeen) -> Found:
    """Parts of the learner whose evidence was mostly outside of its bounds."""
    # No more than a quarter is left out: an early failure looks calm when nothing moves.
    reports = seen.part(0.25, 1.0)
    for part in seen.parts:
        found = (_beyond(each, reports) for each in part.evidence)
        worst = max(found, key=lambda each: each[0], default=None)
        if worst is not None and worst[0] >= 0.3:
            yield _of_part(seen, part, *worst)


def _beyond(each: Evidence, reports: list[Report]) -> tuple[float, Evidence, list[float], float]:
    """The degree of evidence against a part, its values that are not sound, and their share."""
    judged = [x[each.metric] for x in reports if counts(each, x) and is_ripe(each, x)]
    if len(judged) < 2:
        return 0.0, each, [], 0.0
    odd = sorted(x for x in judged if not each.sound.holds(x))
    beyond, share = (
        sum(not bounds.holds(x) for x in judged) / len(judged)
        for bounds in (each.possible, each.sound)
    )
    return max(beyond, 0.6 * share), each, odd, share


def _of_part(
    seen: RunSeen, part: Part, degree: float, each: Evidence, odd: list[float], share: float
) -> Finding:
    """The finding about a part of the learner, with the median of its odd values."""
    value = odd[len(odd) // 2]
    low = value < each.sound.low
    bound, meaning = (each.sound.low, each.below) if low else (each.sound.high, each.above)
    way = "below" if low else "above"
    option = seen.scaled("learning_rate", 3.0 if low else 0.2) if part.name == "policy" else ""
    rate = "a higher learning rate" if low else "a lower learning rate, or fewer passes"
    return Finding(
        f"{part.name.replace('_', ' ')}: {each.name} was {way} {bound:.2g}: {meaning}",
        {each.name: value, "bound": bound, "share of the reports": share},
        rate if option else "look at the options on which it depends",
        option,
        weight=0.15 + 0.5 * degree,
        name=health_name(part.name),
        subject="" if part.name in _OWN_NAMES else part.name,
    )


@finding("entropy-gone", weight=0.7, needs="rise")
def entropy_gone(seen: RunSeen) -> Found:
    metric, what = "policy/entropy", "entropy"
    if seen.continuous:  # the entropy of a density has no least value
        metric, what = "policy/std_mean", "standard deviation"
    found, until = seen.values(metric), seen.values(metric, 0.0, 1 / 3)
    if len(found) < _LEAST_REPORTS or not until or seen.learns:
        return
    first, early = max(found[:2]), until[-1]
    if first > 0.05 and early <= 0.1 * first:
        yield Finding(
            "the policy had settled on its actions before a third of the run and tried no others",
            {f"{what} at first": first, f"{what} at a third": early},
            "a larger entropy bonus, for more exploration, or a lower learning rate",
            _more_entropy(seen, 0.01) or seen.scaled("learning_rate", 0.2),
        )


def _more_entropy(seen: RunSeen, least: float) -> str:
    now = {name: seen.option(name) for name in seen.roles.get("ent_coef", ())}
    known = {name: max(least, 5 * x) for name, x in now.items() if x is not None}
    return words(known) if len(known) == len(now) else ""


@finding("entropy-stuck", needs="rise")
def entropy_stuck(seen: RunSeen) -> Found:
    found, spread = seen.values("policy/entropy"), seen.values("policy/std_mean")
    if len(found) < _LEAST_REPORTS or seen.learns or (seen.continuous and not spread):
        return
    first, last = found[0], found[-1]
    stuck = min(found) >= first - 0.02 * abs(first)
    if spread:
        stuck = min(spread) > 0.97 * spread[0]
    high = any((seen.option(x) or 0.0) >= 0.05 for x in seen.roles.get("ent_coef", ()))
    if stuck:
        yield Finding(
            "the policy stayed as random as at first: "
            + ("the entropy bonus outweighs the rewards" if high else "no reward guided it"),
            {"entropy at first": first, "entropy at last": last},
            "a smaller entropy bonus" if high else "a higher learning rate; look at the rewards",
            seen.scaled("ent_coef", 0.05) if high else seen.scaled("learning_rate", 3.0),
            weight=0.55 if high else 0.4,
        )


@finding("policy-still", weight=0.6, needs="rise", rows=_LEAST_REPORTS)
def policy_still(seen: RunSeen) -> Found:
    """Policy and value function hardly changed from update to update."""
    early, rates = seen.values("policy/kl", 0.0, 0.5), seen.values("optim/learning_rate")
    known = bool(early) and bool(seen.values("policy/kl", 0.5))
    if known and max(early) <= 1e-4 and not seen.learns:
        yield Finding(
            "the policy hardly moved: the KL of an update never reached 1e-4 in the first half",
            {"largest KL": max(early), "learning rate": rates[0] if rates else math.nan},
            "a higher learning rate, a wider clip, a larger bound of the gradient",
            seen.scaled("learning_rate", 10.0),
        )


@finding("actions-saturated", weight=0.35, needs="rise")
def actions_saturated(seen: RunSeen) -> Found:
    share = seen.late("policy/mode_saturation_frac")
    clips = seen.run.options.get(_BOUNDS) == "clip"
    if share >= 0.8 and not seen.learns:
        yield Finding(
            f"{share:.0%} of the likeliest actions were at their bounds, where a change of the "
            "policy changes next to nothing",
            {"share at a bound": share},
            f"a lower learning rate, {f'bounds by a tanh ({_BOUNDS}), ' if clips else ''}or a Box "
            "of the range that matters",
            seen.scaled("learning_rate", 0.2),
        )


@finding("gradient-clipped")
def gradient_clipped(seen: RunSeen) -> Found:
    bounds = [x for name in seen.roles.get("grad_clip", ()) if (x := seen.option(name) or 0.0) > 0]
    norm, share = seen.late("optim/grad_norm"), seen.late("optim/grad_clip_frac")
    if bounds and share >= 0.95 and norm >= 20 * bounds[0]:
        yield Finding(
            f"nearly every gradient was clipped, by a factor of {norm / bounds[0]:,.0f}",
            {"gradient norm": norm, "bound": bounds[0], "share clipped": share},
            "a larger bound; if rewards are large, scale them",
            seen.scaled("grad_clip", 10.0),
            weight=min(0.7, 0.3 + 0.1 * math.log10(norm / bounds[0])),
        )


@finding("gradient-spikes", weight=0.4)
def gradient_spikes(seen: RunSeen) -> Found:
    """Single gradients are far larger than the others."""
    names = {name for report in seen.reports for name in report if _NORM.fullmatch(name)}
    found: list[tuple[float, float, float]] = []  # ratio, largest, usual
    for norms in (seen.values(name, 0.1) for name in names):
        usual = median(norms) if len(norms) >= 8 else 0.0
        if usual > 0 and max(norms) >= 50 * usual:
            found.append((max(norms) / usual, max(norms), usual))
    if found:
        ratio, largest, usual = max(found)
        yield Finding(
            f"the largest gradient of a report was {ratio:,.0f} times the usual one",
            {"largest norm": largest, "median norm": usual},
            "a bound of the gradient, a lower learning rate, clipped rewards",
            seen.scaled("learning_rate", 0.3),
        )


@finding("few-updates")
def few_updates(seen: RunSeen) -> Found:
    updates, steps = seen.last("updates"), seen.last("env_steps")
    if updates < 150 and seen.run.state == "finished":
        yield Finding(
            f"the whole run made {updates:,.0f} optimizer steps",
            {"updates": updates, "env_steps": steps},
            "a larger budget, smaller minibatches, shorter unrolls, or an earlier start of the "
            "updates",
            seen.scaled("total_timesteps", 10),
            weight=0.75 if updates < 50 else 0.5,
        )


@finding("replay-small", weight=0.7)
def replay_small(seen: RunSeen) -> Found:
    size, steps = seen.last("replay/size"), seen.last("env_steps")
    streams = seen.option("env.num_streams") or 1.0
    names = seen.roles.get("buffer_size", ())
    parts = {name: streams if name.endswith("_per_stream") else 1.0 for name in names}
    capacity = [x * parts[name] for name in names if (x := seen.option(name) or 0.0) > 0]
    if capacity and capacity[0] <= 2_000 and steps >= 5 * capacity[0] and not math.isnan(size):
        yield Finding(
            f"replay holds only the last {capacity[0]:,.0f} of {steps:,.0f} env_steps, so every "
            "update sees nearly the same few episodes",
            {"transitions in replay": size, "env_steps": steps},
            "a larger replay",
            words({name: math.ceil(100_000 / part) for name, part in parts.items()}),
        )


@finding("replay-use", weight=0.4)
def replay_overused(seen: RunSeen) -> Found:
    draws = seen.last("replay/draws_per_env_step")
    often = draws > 1
    if 0 < draws < 0.5 or draws > 2_000:  # 0: it has not begun, or trains on fresh data only
        yield Finding(
            f"replay gave {draws:,.3g} transitions for every env_step: "
            + ("updates use the same ones too often" if often else "most are never learned from"),
            {"transitions per env_step": draws},
            "fewer updates for each env_step" if often else "more updates for each env_step",
            seen.scaled("gradient_steps", 0.1 if often else 10.0),
        )


@finding("data-discarded", weight=0.4)
def data_discarded(seen: RunSeen) -> Found:
    made, discarded = seen.last("data/executed_env_steps"), seen.last("data/discarded_env_steps")
    if made >= 1_000 and discarded >= 0.3 * made:
        yield Finding(
            f"{discarded / made:.0%} of the executed env_steps were never learned from",
            {"executed env_steps": made, "discarded": discarded},
            "fewer streams or workers, or a larger bound of the lag",
        )


@finding("lag-high", weight=0.5)
def lag_high(seen: RunSeen) -> Found:
    lag, kl = seen.late("policy_lag/mean"), seen.late("policy/kl", "policy/approx_kl")
    if lag >= 10 and kl >= 0.03:
        yield Finding(
            f"the weights that acted were {lag:,.0f} updates old, and the policy had moved away "
            "from them",
            {"mean age in updates": lag, "KL to the policy that acted": kl},
            "fewer streams or workers, larger batches, or a bound of the lag",
            seen.scaled("learning_rate", 0.3),
        )


@finding("values-scale", weight=0.5)
def values_scale(seen: RunSeen) -> Found:
    """Predicted values are many times larger or smaller than their targets."""
    value, target = seen.late("value/prediction_mean"), seen.late("value/target_mean")
    # A mean near 0 says nothing of the scale.
    if abs(target) < 1e-6 or abs(target) < seen.late("advantage/std"):
        return
    ratio = abs(value) / abs(target)
    if seen.last("updates") >= 200 and (ratio < 0.05 or ratio > 20):
        yield Finding(
            f"values are {ratio:.2g} times the size of their targets",
            {"mean value": value, "mean target": target},
            "a larger weight of the value's loss, or normalised rewards",
            seen.scaled("vf_coef", 10.0),
        )


_FAR = 0.65  # decades
_PARTS = ("model.", "env.reward_clip", "env.frame_stack")
_OF_RUN = {
    "algo", "seed", "preset", "resume", "init_from", "init_from_keys", "run_dir",
    "total_env_steps",
}  # fmt: skip

option = Rows("options", factor="doubt")


@option("option-far", "option-other")
def options(seen: RunSeen, symptoms: Sequence[Finding]) -> Found:
    """Given options that differ from the preset."""
    if seen.well:  # nothing is wrong with what differs
        return
    names = {each.name for each in symptoms if each.weight >= 0.2 * seen.doubt}
    for name in sorted(seen.given):
        if name in _OF_RUN or ("." in name and not name.startswith(_PARTS)):
            continue
        if name not in seen.usual or name.startswith(HARMLESS):
            continue
        value, usual = seen.run.options.get(name), seen.usual[name]
        if value != usual:
            yield _far(seen, name, value, usual, names) or _other(seen, name, value, usual)


def decades(name: str, value: Any, usual: Any, near_1: bool) -> float | None:
    """Signed distance of two numbers in powers of ten; None: it is not defined."""
    if isinstance(value, list | tuple) and isinstance(usual, list | tuple) and usual:
        value, usual = _size(value), _size(usual)
    x, y = number(value), number(usual)
    if x is None or y is None:
        return None
    if near_1:
        x, y = 1.0 - y, 1.0 - x
        return math.log10(max(x, 1e-4) / max(y, 1e-4)) if min(x, y) >= 0 else None
    if x == y:
        return 0.0
    if y == 0 and name.endswith("_coef"):
        return max(0.0, math.log10(x / 0.01)) if x > 0 else None
    return math.log10(x) - math.log10(y) if x > 0 and y > 0 else None


def _size(layers: Sequence[Any]) -> float:
    sizes = [number(x) or 1.0 for x in layers]
    return math.exp(sum(math.log(max(x, 1.0)) for x in sizes))


def _far(seen: RunSeen, name: str, value: Any, usual: Any, symptoms: set[str]) -> Finding | None:
    """The finding about an option that is a factor away from the usual; None: it is not."""
    info = fields(seen.run.learner).get(name)
    tune = None if info is None else about(info).tune
    distance = decades(name, value, usual, tune is not None and tune.by == "distance_to_1")
    if distance is None or abs(distance) < _FAR:
        return None
    way = "above" if distance > 0 else "below"
    ways = [(role, way) for role, names in seen.roles.items() if name in names]
    shown = symptoms & {x for each in ways for x in SYMPTOMS.get(each, ())}
    weight = min(0.97, 0.55 + 0.1 * min(abs(distance), 2.5) + 0.1 * bool(shown))
    if not HARMLESS_WAYS.isdisjoint(ways):
        weight = 0.2
    text = f"{name}={as_word(value)} is far {way} what is usual here ({_usual(seen, name, usual)})"
    if shown:
        text += f", which may explain {', '.join(sorted(shown))}"
    return Finding(
        text,
        {"its distance in powers of ten": distance},
        f"begin with {name}={as_word(usual)}",
        words({name: usual}),
        weight=weight,
        name="option-far",
        subject=name,
        explains=frozenset(shown),
    )


def _usual(seen: RunSeen, name: str, usual: Any) -> str:
    """An option's usual value, with the layer that it is from."""
    return f"{'the preset' if name in seen.tuned else 'the default'} has {as_word(usual)}"


def _other(seen: RunSeen, name: str, value: Any, usual: Any) -> Finding:
    """The finding about an option with another value than the usual."""
    weight = WORDS.get(name, 0.3)
    distance = decades(name, value, usual, False)
    if distance is not None:  # the value is not far
        weight = min(0.3, 0.4 * abs(distance))
    tiny = isinstance(value, list) and all(isinstance(x, int) and x <= 8 for x in value)
    if name.endswith("_hidden") and value and tiny:
        weight = 0.65
    return Finding(
        f"{name}={as_word(value)}, while {_usual(seen, name, usual)}",
        {k: x for k, v in (("given", value), ("usual", usual)) if (x := number(v)) is not None},
        f"begin with {name}={as_word(usual)}",
        words({name: usual}),
        weight=weight,
        name="option-other",
        subject=name,
    )
