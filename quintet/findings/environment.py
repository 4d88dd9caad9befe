"""Findings about observations, episodes, seeds and time of an environment."""

import numpy as np

from quintet.doctor.fits import MEMORY_GAIN, UNTOLD, Fits, Next
from quintet.doctor.pairs import Pairs
from quintet.doctor.play import Large, Play
from quintet.doctor.seen import Options
from quintet.envs.check import EnvCheck
from quintet.findings.engine import Found, Rows
from quintet.findings.record import Finding

_LARGE = 100.0  # size of a number
_LARGER, _HUGE = 1e3, 1e4  # ratios of a number's size to the others'
_BEYOND = 0.1  # gain of a score by which memory must be better than the last actions
_OFTEN = 20  # rows in which a number differs from its median
_ALIKE = 1.0 - 1e-9  # correlation
_SLOW_S = 0.01
_LONG_EPISODE = 2_000  # steps, within which most episodes end
_LEAST_STARTS = 5  # episodes of an environment

finding = Rows("environment", "raises", "hangs", "dies")


def _numbers(played: Play, *, choices: bool = True) -> tuple[np.ndarray, list[str]]:
    """The numbers of the observations ``[N, n]`` that are no projections, and their names.

    choices: also those that say which of several values a Discrete has.
    """
    kept = [i for i, name in enumerate(played.numbers) if name and (choices or "=" not in name)]
    obs = played.obs[:-1][played.valid] if len(played.obs) > 1 else played.obs.reshape(0, 0)
    return obs[:, kept] if len(obs) else np.zeros((0, len(kept))), [played.numbers[i] for i in kept]


@finding("observation-constant", weight=0.6, rows=200)
def observation_constant(played: Play) -> Found:
    if played.obs.shape[-1] and (played.obs == played.obs[0, 0]).all():
        yield Finding(
            "every observation is the same, so a policy can only act the same way in every step",
            {"steps": played.rows},
            "return the state from reset() and step(), as a new array each time",
        )


@finding("observation-scale", rows=200)
def observation_scale(played: Play, options: Options) -> Found:
    """A number that is many times larger than the others."""
    size, names = _sizes(played)
    if not len(names):
        return
    place = int(size.argmax())
    rest = np.delete(size, place)
    several = bool((rest > 0).any())
    others = float(np.median(rest[rest > 0])) if several else 1.0
    if size[place] < max(_LARGE, _LARGER * others):
        return
    far = size[place] >= _HUGE * min(1.0, others)
    comparison = f"the median of the others is {others:.3g}" if several else "all others are 0"
    yield Finding(
        f"observation {names[place]} is of size {size[place]:.3g}, {comparison}",
        {"its size": float(size[place])} | ({"median size": others} if several else {}),
        "divide it by its usual size in the environment; the observation normaliser helps "
        "floats only, and learns rare values slowly",
        "" if options.normalizes else "--normalize-observations true",
        weight=0.45 if options.normalizes else 0.75 if far else 0.55,
    )


def _sizes(played: Play) -> tuple[np.ndarray, list[str]]:
    """The root mean squares of the numbers of observations, and their names."""
    obs, names = _numbers(played)
    sizes = [np.sqrt(np.square(obs).mean(0))] if len(obs) else []
    evidence = played.evidence
    for name, leaf in played.large.items():
        if evidence is not None and name in evidence.squares:  # pictures of bytes are scaled
            sizes.append(evidence.sizes(name))
            names += _places(name, leaf)
    return (np.concatenate(sizes) if sizes else np.zeros(0)), names


def _places(name: str, leaf: Large) -> list[str]:
    return [f"{name}[{place}]" for place in range(len(leaf.still))]


@finding("observation-duplicate", weight=0.15, rows=200)
def observation_duplicate(played: Play) -> Found:
    """Two numbers that always agree."""
    # One-hot values of a Discrete depend on each other by construction.
    tables = [_numbers(played, choices=False)]
    tables += [(leaf.rows, _places(name, leaf)) for name, leaf in played.large.items()]
    for obs, names in tables:
        if (same := _same(obs, names)) is not None:
            first, second, correlation = same
            yield Finding(
                f"observations {first} and {second} always agree: should one of them differ?",
                {"correlation": correlation},
                "check whether one was written in place of another",
            )
            return


def _same(obs: np.ndarray, names: list[str]) -> tuple[str, str, float] | None:
    """The names of two columns that always agree, and their correlation; None without any."""
    if not len(obs):
        return None
    # Flags that are set in a row or two agree by chance.
    often = (obs != np.median(obs, 0)).sum(0) >= _OFTEN
    moving = np.flatnonzero((obs.std(0) > 1e-9) & often)
    if len(moving) < 2:
        return None
    table = np.corrcoef(obs[:, moving].T)
    table[np.tril_indices(len(table))] = 0.0
    a, b = np.unravel_index(int(np.nan_to_num(table).argmax()), table.shape)
    if not table[a, b] >= _ALIKE:
        return None
    return names[moving[a]], names[moving[b]], float(table[a, b])


@finding("observation-dead", rows=200, unless=("observation-constant",))
def observation_dead(played: Play) -> Found:
    """Some numbers never change."""
    # A value of a Discrete that random actions never reach is no fault.
    obs, names = _numbers(played, choices=False)
    unchanged = [name for i, name in enumerate(names) if (obs[:, i] == obs[0, i]).all()]
    count, whole = len(names), [name for name, leaf in played.large.items() if leaf.still.all()]
    for name, leaf in played.large.items():
        if len(leaf.rows):  # parts of pictures often stay the same
            unchanged += [x for x, y in zip(_places(name, leaf), leaf.still, strict=True) if y]
            count += len(leaf.still)
    if not (unchanged or whole):
        return
    if whole:
        text = f"observation {whole[0]!r} never changed"
        numbers = {"numbers that never changed": len(played.large[whole[0]].still)}
    else:
        text = f"{len(unchanged)} of {count} numbers of the observation never changed (first: "
        text += f"{unchanged[0]})"
        numbers = {"numbers": count, "that never changed": len(unchanged)}
    picture = bool(whole) and not len(played.large[whole[0]].rows)  # not a text
    advice = "check whether they were meant to change"
    yield Finding(text, numbers, advice, weight=0.25 if picture else 0.1)


def noise(fits: Fits) -> Next | None:
    """The number that earlier steps predict worst, although they predict other numbers well."""
    noisy = [each for each in fits.next if each.noise and each.name]
    if len(fits.next) < 2 or not noisy or not any(each.value.low > 0.5 for each in fits.next):
        return None
    return min(noisy, key=lambda each: each.value.mean)


@finding("observation-noise")
def observation_noise(fits: Fits) -> Found:
    """A number that earlier steps don't predict, although they predict other numbers well."""
    if (worst := noise(fits)) is None:
        return
    well = sum(each.value.low > 0.5 for each in fits.next)
    badly = sum(each.noise and bool(each.name) for each in fits.next)
    # A task that draws some numbers anew may have others that matter too little to show.
    drawn = any(each.used and each.value.high < UNTOLD for each in fits.next)
    yield Finding(
        f"observation {worst.name} can't be predicted and does not help to predict others or the "
        "reward: it is noise, or its numbers change places",
        {"score of its next value": worst.value.mean, "such numbers": badly},
        "look at the code that writes it into the observation",
        weight=0.65 if well >= badly and not drawn else 0.4,
    )


def no_memory(fits: Fits) -> Next | None:
    """The number that a memory tells best, if it tells much more than one observation."""
    if fits.clock is not None and not fits.clock.of_reward:  # hidden_clock says why
        return None
    best = max(fits.next, key=lambda each: each.gain, default=None)
    return best if best and best.gain >= MEMORY_GAIN and best.now.mean <= 0.85 else None


@finding("observation-memory")
def observation_memory(fits: Fits, options: Options) -> Found:
    """The next observation depends on earlier ones."""
    if (worst := no_memory(fits)) is None:
        return
    by_actions = worst.delay is not None and (
        worst.memory.low - worst.delay.high < _BEYOND
        and worst.delay.low - worst.now.high >= MEMORY_GAIN
    )
    known = options.memory or (by_actions and options.shows_last)
    weight = 0.15 if known else min(0.9, 0.5 + worst.gain / 2) * (0.5 if fits.projected else 1.0)
    if noise(fits) is not None:
        weight *= 0.6
    numbers = {"score from one": worst.now.mean, "score with those before": worst.memory.mean}
    advice = "show the missing part (velocities, past actions), or give the policy a memory"
    option, steps = options.by_memory, "the two steps before"
    if by_actions and worst.delay is not None:
        steps = "the two actions before"
        numbers["score with the actions before"] = worst.delay.mean
        if not known:
            advice = "show the last action in the observation; for longer delays, a memory"
            option = "--env.observe-last true"
    yield Finding(
        f"the next observation is predicted far better with {steps} ({worst.name or 'the picture'})"
        ": one observation does not show the state",
        numbers,
        advice,
        option,
        weight=weight,
    )


def hides_state(fits: Fits | None) -> bool:
    """Whether earlier observations predict what the last actions can't, such as velocities."""
    return fits is not None and any(
        each.gain >= MEMORY_GAIN
        and each.delay is not None
        and each.memory.low - each.delay.high >= _BEYOND
        for each in fits.next
    )


@finding("not-finite", weight=0.99)
def not_finite(
    options: Options, check: EnvCheck | None = None, played: Play | None = None
) -> Found:
    fault = "" if check is None else _fault(check, "not-finite")
    if reason := (played.bad if played is not None else "") or fault:
        yield Finding(
            reason,
            {},
            "mend the environment: such a number stops a run, or spoils its network",
            command=f"{options.again.look} --steps 20000",
        )


@finding("check-fault", weight=0.8)
def faults(check: EnvCheck) -> Found:
    """Other faults of the layout, which the check names."""
    if reason := _fault(check, "check-fault"):
        count = sum(each.name == "check-fault" for each in check.findings)
        yield Finding(reason, {"faults": count}, "mend it")


def _fault(check: EnvCheck, name: str) -> str:
    """The first fault of a check with a name; "" without any."""
    return next((each.said for each in check.findings if each.name == name), "")


@finding("not-repeatable", weight=0.45)
def not_repeatable(check: EnvCheck | None = None, pairs: Pairs | None = None) -> Found:
    reason = "" if check is None else check.same_seeds or check.same_again
    if reason := reason or ("" if pairs is None else pairs.unlike):
        yield Finding(
            f"the same seeds and actions give different rows ({reason}): some randomness does not "
            "come from the seed, or an environment leaves something for later ones",
            {},
            "draw from self.np_random only, which reset(seed=seed) makes, and keep nothing in "
            "classes, modules and files",
        )


@finding("remembers", weight=0.9, unless=("not-repeatable",))
def remembers(remembers: str | None = None, check: EnvCheck | None = None) -> Found:
    if kept := remembers or (check.keeps if check is not None else ""):
        yield Finding(
            "an episode depends on the one before: with the same seed and actions, "
            f"{kept} differs after a reset",
            {},
            "set every variable again in reset()",
        )


@finding("same-start")
def same_start(played: Play, check: EnvCheck | None = None, pairs: Pairs | None = None) -> Found:
    """Every episode begins alike, or alike in each environment."""
    if not played.rows:
        return
    begins = np.zeros_like(played.valid)
    begins[1:] = ~played.valid[:-1]
    begins[:1] = True
    first = [x[own] for x, own in zip(played.obs[:-1].swapaxes(0, 1), begins.T, strict=True)]
    several = [each for each in first if len(each) >= _LEAST_STARTS]
    if any((each != each[0]).any() for each in first):
        return
    starts, count = len({each[0].tobytes() for each in first}), sum(map(len, first))
    if starts == 1 and pairs is not None and pairs.seeds >= 3 and pairs.starts == 1:
        yield Finding(
            f"every episode begins with the same observation ({pairs.seeds} seeds, {count} "
            "episodes): a policy may learn one path by heart",
            {"seeds": pairs.seeds, "different starts": pairs.starts},
            "draw the start in reset() from self.np_random, if the task has several",
            weight=0.25,
        )
    game = check is not None and len(check.env.agents) > 1
    if starts > 1 and len(several) >= 2 and not game:  # agents may begin in different places
        yield Finding(
            f"each of {len(first)} environments begins all of its episodes with one observation, "
            "which differs between environments",
            {"environments": len(first), "episodes": count, "different starts": starts},
            "reset() may use its first seed every time, or draw its task only once: draw from "
            "self.np_random, which only a reset with a seed may make anew",
            weight=0.55,
        )


@finding("never-ends")
def never_ends(check: EnvCheck, played: Play) -> Found:
    longest, ended = played.steps, bool(check.lengths or played.ended)
    if check.env.max_steps is None and not ended and longest >= 500:
        yield Finding(
            f"no episode ended in {longest:,} steps of each of {played.valid.shape[1]} streams, and"
            " no time limit is known: without an end no return is reported and every start is seen "
            "once",
            {"steps of a stream": longest, "episodes": 0},
            "return truncated=True after a number of steps (gymnasium.wrappers.TimeLimit)",
            weight=0.7 if longest >= _LONG_EPISODE else 0.45,
        )


@finding("ends-at-once")
def ends_at_once(played: Play, pairs: Pairs | None = None) -> Found:
    _, lengths, _ = played.returns(held=False)
    # An environment that pays for the only action may be a task of one decision.
    decides = pairs is not None and pairs.rewarded > 0
    if len(lengths) >= 20 and lengths.max() <= 1:
        yield Finding(
            f"all of {len(lengths)} episodes ended after one step",
            {"episodes": len(lengths), "longest": 1},
            "look at what ends an episode; a task of one decision (a bandit) needs no change",
            weight=0.45 if decides else 0.6,
        )


@finding("gamma-one", weight=0.6, rows=200)
def gamma_one(played: Play, options: Options) -> Found:
    if options.gamma is not None and options.gamma >= 1.0 and not played.terminated.any():
        yield Finding(
            "gamma is 1 and no episode is terminated, so values have no bound",
            {"gamma": options.gamma, "terminated episodes": 0},
            "take a gamma below 1",
            "--gamma 0.99",
        )


@finding("slow-step")
def slow_step(check: EnvCheck, options: Options) -> Found:
    steps, hours = options.total_env_steps, check.step_s * options.total_env_steps / 3600
    if check.step_s >= _SLOW_S:
        yield Finding(
            f"a step takes {1e3 * check.step_s:.3g} ms, so {steps:,} env_steps take {hours:,.1f} "
            "hours of a core",
            {"seconds of a step": check.step_s, "hours of the budget": hours},
            "make step() faster, or step environments in as many processes as there are cores",
            "--runtime.kind lockstep",
            weight=min(
                0.6, 0.2 + 0.1 * np.log10(check.step_s / _SLOW_S) + (0.2 if hours > 12 else 0.0)
            ),
        )
