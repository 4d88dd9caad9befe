"""Findings about observations."""

import numpy as np

from quintet.doctor.finding import Finding
from quintet.doctor.fits import MEMORY_GAIN, UNTOLD, Fits
from quintet.doctor.play import Large, Play
from quintet.doctor.seen import Seen

_LARGE = 100.0  # size of a number
_LARGER, _HUGE = 1e3, 1e4  # ratios of a number's size to the others'
_BEYOND = 0.1  # gain of a score by which memory must be better than the last actions
_OFTEN = 20  # rows in which a number differs from its median
_ALIKE = 1.0 - 1e-9  # correlation


def _numbers(played: Play, *, choices: bool = True) -> tuple[np.ndarray, list[str]]:
    """The numbers of the observations ``[N, n]`` that are no projections, and their names.

    choices: also those that say which of several values a Discrete has.
    """
    kept = [i for i, name in enumerate(played.numbers) if name and (choices or "=" not in name)]
    obs = played.obs[:-1][played.valid] if len(played.obs) > 1 else played.obs.reshape(0, 0)
    return obs[:, kept] if len(obs) else np.zeros((0, len(kept))), [played.numbers[i] for i in kept]


def observation_constant(seen: Seen) -> Finding | None:
    """Nothing that is observed ever changes."""
    played = seen.played
    if played is None or played.rows < 200 or not played.obs.shape[-1]:
        return None
    if not (played.obs == played.obs[0, 0]).all():
        return None
    return Finding(
        "observation-constant",
        0.6,
        "every observation is the same, so a policy can only act alike in every step",
        {"steps": played.rows},
        "return the state from reset() and step(), as a new array each time",
        seen.options.check,
    )


def observation_scale(seen: Seen) -> Finding | None:
    """A number that is many times larger than the others."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    size, names = _sizes(played)
    if not len(names):
        return None
    place = int(size.argmax())
    rest = np.delete(size, place)
    others = float(np.median(rest[rest > 0])) if (rest > 0).any() else 1.0
    if size[place] < max(_LARGE, _LARGER * others):
        return None
    far = size[place] >= _HUGE * min(1.0, others)
    several = bool((rest > 0).any())
    beside = f"the median of the others is {others:.3g}" if several else "all others are 0"
    return Finding(
        "observation-scale",
        0.45 if seen.options.normalizes else 0.75 if far else 0.55,
        f"observation {names[place]} is of size {size[place]:.3g}, {beside}",
        {"its size": float(size[place])} | ({"median size": others} if several else {}),
        "divide it by its usual size in the environment; the observation normaliser helps "
        "floats only, and learns rare values slowly",
        "" if seen.options.normalizes else f"{seen.options.train} --normalize-observations true",
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


def observation_duplicate(seen: Seen) -> Finding | None:
    """Two numbers that always agree."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    # Two values of one Discrete exclude each other.
    tables = [_numbers(played, choices=False)]
    tables += [(leaf.rows, _places(name, leaf)) for name, leaf in played.large.items()]
    same = [x for obs, names in tables if (x := _same(obs, names)) is not None]
    if not same:
        return None
    first, second, correlation = same[0]
    return Finding(
        "observation-duplicate",
        0.15,
        f"observations {first} and {second} always agree: was one meant to be something else?",
        {"correlation": correlation},
        "check whether one was written in place of another",
        seen.options.check,
    )


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


def observation_dead(seen: Seen) -> Finding | None:
    """Some numbers never change."""
    played = seen.played
    if played is None or played.rows < 200:
        return None
    # A value of a Discrete that random actions never reach is no fault.
    obs, names = _numbers(played, choices=False)
    still = [name for i, name in enumerate(names) if (obs[:, i] == obs[0, i]).all()]
    count, whole = len(names), [name for name, leaf in played.large.items() if leaf.still.all()]
    for name, leaf in played.large.items():
        if len(leaf.rows):  # parts of pictures often stay the same
            still += [x for x, y in zip(_places(name, leaf), leaf.still, strict=True) if y]
            count += len(leaf.still)
    if observation_constant(seen) is not None or not (still or whole):
        return None
    if whole:
        said = f"observation {whole[0]!r} never changed"
        numbers = {"numbers that never changed": len(played.large[whole[0]].still)}
    else:
        said = f"{len(still)} of {count} numbers of the observation never changed, the first is "
        said += still[0]
        numbers = {"numbers": count, "that never changed": len(still)}
    return Finding(
        "observation-dead",
        0.25 if whole and not len(played.large[whole[0]].rows) else 0.1,  # a picture; not a text
        said,
        numbers,
        "check whether they were meant to change",
        seen.options.check,
    )


def observation_noise(seen: Seen) -> Finding | None:
    """A number that earlier steps don't predict, although they predict other numbers well."""
    fits = seen.fits
    if fits is None or len(fits.next) < 2:
        return None
    told = [each for each in fits.next if each.value.low > 0.5]
    noise = [each for each in fits.next if each.noise and each.name]
    if not told or not noise:
        return None
    worst = min(noise, key=lambda each: each.value.mean)
    # A task that draws some numbers anew may have others that matter too little to show.
    drawn = any(each.used and each.value.high < UNTOLD for each in fits.next)
    return Finding(
        "observation-noise",
        0.65 if len(told) >= len(noise) and not drawn else 0.4,
        f"observation {worst.name} can't be predicted and does not help to predict others or the "
        "reward: it is noise, or its places are mixed up",
        {"score of its next value": worst.value.mean, "such numbers": len(noise)},
        "look at how it is written into the observation",
        seen.options.check,
    )


def observation_memory(seen: Seen) -> Finding | None:
    """Earlier observations make the next one far more predictable."""
    fits = seen.fits
    if fits is None:
        return None
    if fits.clock is not None and not fits.clock.of_reward:  # hidden_clock says why
        return None
    worst = max(fits.next, key=lambda each: each.gain, default=None)
    if worst is None or worst.gain < MEMORY_GAIN or worst.now.mean > 0.85:
        return None
    options = seen.options
    told = worst.delay is not None and (
        worst.memory.low - worst.delay.high < _BEYOND
        and worst.delay.low - worst.now.high >= MEMORY_GAIN
    )
    known = options.memory or (told and options.shows_last)
    weight = 0.15 if known else _weight(fits, worst.gain)
    if observation_noise(seen) is not None:
        weight *= 0.6
    name = worst.name or "the picture"
    numbers = {"score from one": worst.now.mean, "score with those before": worst.memory.mean}
    advice = "show the missing part (velocities, what was chosen), or give the policy a memory"
    command = "" if options.memory else f"{options.train} {options.remember}"
    which = "the two steps before"
    if told and worst.delay is not None:
        which = "the two actions before"
        numbers["score with the actions before"] = worst.delay.mean
        if not known:
            advice = "show the last action in the observation; for longer delays, a memory"
            command = f"{options.train} --env.observe-last true"
    return Finding(
        "observation-memory",
        weight,
        f"the next observation is predicted far better with {which} ({name}): one observation does "
        "not show the state",
        numbers,
        advice,
        command,
    )


def hides_state(fits: Fits | None) -> bool:
    """Whether earlier observations tell what the last actions don't, as velocities do."""
    return fits is not None and any(
        each.gain >= MEMORY_GAIN
        and each.delay is not None
        and each.memory.low - each.delay.high >= _BEYOND
        for each in fits.next
    )


def _weight(fits: Fits, gain: float) -> float:
    weight = min(0.9, 0.5 + gain / 2)
    return 0.5 * weight if fits.projected else weight


FINDINGS = (
    observation_constant,
    observation_scale,
    observation_duplicate,
    observation_dead,
    observation_noise,
    observation_memory,
)
