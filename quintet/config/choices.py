"""Doubtful automatic choices: a sentence with the numbers that show it, and the option that makes
another choice.

Nothing is doubted without evidence: each function returns a doubt, or None where the numbers do not
show one, or are too few.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from gymnasium import spaces as gym_spaces

from quintet.algorithms import registry
from quintet.envs.evidence import Evidence
from quintet.models.config import (
    ModelConfig,
    encoded_leaves,
    picture_leaves,
    picture_options,
    resolve_model,
)
from quintet.models.leaves import (
    SMALL,
    is_added,
    is_grid_with_mission,
    normalized_leaves,
    small_pictures,
)
from quintet.spaces import mask_sizes, observation_leaves
from quintet.types import ACTION_MASK, Spaces

_LEAST_ROWS = 256
_LEAST_EPISODES = 10
_LEAST_LONG, _LONG = 4, 100  # episodes, if all have so many steps
_BOARD = 2.0  # largest ratio of the sides of a board
_FLOAT_BOARD = 16  # least height and width of floats that may be a picture without channels
_LARGE = 100.0  # numbers of an observation
_LARGE_REWARD, _SMALL_REWARD = 1e3, 1e-3
_LEAST_REWARDS = 10
_SMALL_SHARE = 100.0  # rewards of a return that are scaled together
_WORTH = 0.01  # least worth of an episode's only reward at its begin; gamma is short below
_SHORT_HORIZON, _HORIZONS = 5.0, 10.0  # steps; times that it fits into an episode
_LEAST_LIMIT = 20  # steps: shorter tasks often have a fixed length that belongs to them
_SAME_FRAC = 0.9  # share of the episodes
_LEAST_CHOICES, _USED_FRAC = 20, 0.25
_OF_MASKS = re.compile("mask|legal|allowed|avail|valid")  # names of leaves
_TRIES = 100  # tries of each action in the whole budget


class Doubt(NamedTuple):
    """A doubtful choice.

    choice: name of the choice, for programs.
    said: a sentence with its evidence.
    option: the way to make another choice.
    """

    choice: str
    said: str
    option: str

    def __str__(self) -> str:
        return f"{self.said}: {self.option}"


@final
@dataclass(frozen=True)
class Learning:
    """The effect of a learner's options on the data.

    gamma: discount of a step.
    normalizes: whether floats in observations are normalised.
    scaling: the option that would scale rewards; "": they are scaled, or there is no such option.
    divisor: least number by which rewards that are scaled are divided; 0: none.
    scaling_of: learners that don't scale rewards, if it is not the one of the run.
    """

    gamma: float | None = None
    normalizes: bool = True
    scaling: str = ""
    divisor: float = 0.0
    scaling_of: str = ""

    @classmethod
    def of(cls, algo: str, options: Any) -> "Learning":
        """Reads the options of this learner."""
        gamma = getattr(options, "gamma", None)
        normalizes = getattr(options, "normalize_observations", False)
        record = registry.find(algo)
        scaling, divisor = record.reward_scaling(options), record.reward_divisor(options)
        return cls(gamma, normalizes, scaling, divisor)


def before(model: ModelConfig, spaces: Spaces, total_env_steps: int | None) -> list[Doubt]:
    """Doubts that the spaces show.

    model: as configured, not resolved.
    total_env_steps: budget of a policy; None: unknown.
    """
    found: Iterable[Doubt | None] = (
        *flat_pictures(model, spaces),
        *layouts(model, spaces),
        few_tries(spaces, total_env_steps),
        unnamed_mask(spaces),
    )
    return [each for each in found if each is not None]


def during(model: ModelConfig, spaces: Spaces, learning: Learning, seen: Evidence) -> list[Doubt]:
    """Doubts that the data show.

    model: resolved.
    """
    found = (
        scales(model, spaces, learning, seen),
        reward_scale(learning, seen),
        short_horizon(learning, seen) or discounted(learning, seen),
        time_limit(seen),
        unused_actions(seen),
    )
    return [each for each in found if each is not None]


def flat_pictures(model: ModelConfig, spaces: Spaces) -> Iterator[Doubt]:
    """Leaves that may be pictures, and are flattened because of their type, their size, their two
    dimensions, or other pictures."""
    leaves, resolved = encoded_leaves(spaces), resolve_model(model, spaces)
    if model.encoder != "auto" or resolved.encoder == "film_grid":
        return
    small = resolved.encoder == "small_cnn"
    layout = picture_options(resolved).layout if small else "auto"
    read = small_pictures(leaves, layout) if small else picture_leaves(resolved, spaces)
    for name, leaf in leaves.items():
        shape = leaf.shape or ()
        if not isinstance(leaf, gym_spaces.Box | gym_spaces.MultiBinary) or is_added(name):
            continue
        if name in read or (is_grid_with_mission(leaves) and name != "image"):
            continue
        floats = leaf.dtype is not None and leaf.dtype.kind == "f"
        # Tables of numbers have two dimensions too.
        board = len(shape) == 2 and min(shape) >= SMALL and max(shape) <= _BOARD * min(shape)
        if board and floats:  # a frame in grey
            board = min(shape) >= _FLOAT_BOARD and shape[0] == shape[1] and _is_bounded(leaf)
        volume = len(shape) == 3 and sorted(shape)[1] >= SMALL
        if not board and not volume:
            continue
        readable = bool(small_pictures({name: leaf}, layout))
        others = small_pictures({k: x for k, x in leaves.items() if k != name})
        # Beside pictures with channels small_cnn reads no others.
        beside = board and any(len(leaves[k].shape or ()) > 2 for k in others)
        if readable and not beside:
            way = "--model.encoder small_cnn reads it as one"
        elif readable:
            way = "give it as [H, W, C], and --model.encoder small_cnn reads it as one"
        else:
            form = " of [H, W, C]" if beside else ""
            way = f"give it as bool, uint8 or float32{form}, so that small_cnn reads it as one"
        yield Doubt(
            "encoder",
            f"observation {name!r} ({_times(shape)}, {leaf.dtype}) may be a picture, and is read "
            f"as {math.prod(shape):,} numbers without places by {resolved.encoder}",
            way,
        )


def _is_bounded(leaf: gym_spaces.Space[Any]) -> bool:
    return isinstance(leaf, gym_spaces.Box) and leaf.is_bounded()


def layouts(model: ModelConfig, spaces: Spaces) -> Iterator[Doubt]:
    """Pictures whose shape does not show their layout."""
    resolved = resolve_model(model, spaces)
    if resolved.encoder != "small_cnn" or picture_options(resolved).layout != "auto":
        return
    for name, picture in small_pictures(encoded_leaves(spaces)).items():
        if picture.doubtful:
            ways = [("height x width x channels", "hwc"), ("channels x height x width", "chw")]
            (read, _), (other, word) = ways if picture.channels_last else ways[::-1]
            shape = _times(encoded_leaves(spaces)[name].shape or ())
            yield Doubt(
                "layout",
                f"observation {name!r} of {shape} is read as {read}",
                f'if it is {other}, --model.encoder-kwargs \'{{"layout": "{word}"}}\'',
            )


def scales(model: ModelConfig, spaces: Spaces, learning: Learning, seen: Evidence) -> Doubt | None:
    """Numbers that reach the network unscaled and are large."""
    if seen.observed < _LEAST_ROWS or model.custom or model.encoder == "film_grid":
        return None
    leaves = encoded_leaves(spaces)
    normalized = normalized_leaves(spaces.observation) if learning.normalizes else {}
    small = model.encoder == "small_cnn"
    read = small_pictures(leaves, picture_options(model).layout) if small else {}
    sizes = {
        name: seen.sizes(name)
        for name in seen.squares
        if name not in normalized and not (name in read and leaves[name].dtype == np.uint8)
    }
    if not sizes:
        return None
    name = max(sizes, key=lambda name: float(sizes[name].max()))
    largest = float(sizes[name].max())
    if largest < _LARGE:
        return None
    others = np.concatenate([[1.0] * bool(normalized), *sizes.values()])
    least = float(others[others > 0.0].min())
    beside = f", others of size {least:.2g}" if least < largest / 10 else ""
    floats = leaves[name].dtype is not None and leaves[name].dtype.kind == "f"  # type: ignore[union-attr]
    way = "--normalize-observations true scales floats"
    if not floats:
        way = "give it as float32, which --normalize-observations true scales"
    return Doubt(
        "observation_scale",
        f"observation {name!r} reaches the network in numbers of size {_size(largest)}{beside} "
        f"(root mean squares over {seen.observed:,} steps)",
        way,
    )


def reward_scale(learning: Learning, seen: Evidence) -> Doubt | None:
    """Rewards that are not scaled and very large or very small, or so small that they stay small
    when normalised."""
    size = seen.reward_size
    if seen.rewards < _LEAST_REWARDS or not math.isfinite(size):
        return None
    if not learning.scaling:
        if size * _SMALL_SHARE >= learning.divisor:
            return None
        return Doubt(
            "reward_size",
            f"rewards have a size of {_size(size)} (root mean square of {seen.rewards:,} that were "
            f"not 0), and normalising divides them by no less than {_size(learning.divisor)}",
            f"multiply them by about {1 / max(size, 1e-30):.0e} in the environment",
        )
    if _SMALL_REWARD <= size <= _LARGE_REWARD:
        return None
    return Doubt(
        "reward_size",
        f"rewards have a size of {_size(size)} (root mean square of {seen.rewards:,} that were not "
        "0) and are not scaled" + (f" by {learning.scaling_of}" if learning.scaling_of else ""),
        learning.scaling,
    )


def short_horizon(learning: Learning, seen: Evidence) -> Doubt | None:
    """An episode's only reward, so late that gamma discounts it to next to nothing."""
    gamma, count = learning.gamma, len(seen.paid_lengths)
    if gamma is None or not 0.0 < gamma < 1.0 or _too_few(seen.paid_lengths):
        return None
    if seen.rewards > 1.1 * count or seen.paid_ends < 0.9 * count:
        return None
    length = sum(seen.paid_lengths) / count
    worth = gamma**length
    if worth >= _WORTH:
        return None
    better = 1.0 - 1.0 / length
    digits = 1 + math.ceil(math.log10(length))
    return Doubt(
        "gamma",
        f"the only reward of an episode comes at its end, after {length:,.0f} steps ({count} "
        f"episodes), and gamma={gamma:g} makes it worth {worth:.1g} at the beginning",
        f"--gamma {round(better, digits):g}",
    )


def discounted(learning: Learning, seen: Evidence) -> Doubt | None:
    """A gamma by which next to nothing counts but the next steps of long episodes."""
    gamma, count = learning.gamma, len(seen.lengths)
    if gamma is None or not 0.0 <= gamma < 1.0 or _too_few(seen.lengths):
        return None
    horizon, length = 1.0 / (1.0 - gamma), sum(seen.lengths) / count
    if horizon >= _SHORT_HORIZON or length < _HORIZONS * horizon:
        return None
    return Doubt(
        "gamma",
        f"gamma={gamma:g} reaches about {horizon:.2g} steps ahead, and episodes have {length:,.0f} "
        f"steps ({count} episodes)",
        "--gamma 0.99",
    )


def _too_few(lengths: Sequence[int]) -> bool:
    """Whether there are too few episodes; of long ones, less are enough."""
    return len(lengths) < (_LEAST_LONG if min(lengths, default=0) >= _LONG else _LEAST_EPISODES)


def time_limit(seen: Evidence) -> Doubt | None:
    """Episodes that all end after the same number of steps, by termination, and no observation
    shows their end beforehand."""
    count = len(seen.lengths)
    if _too_few(seen.lengths) or seen.ends.shown:
        return None
    longest = max(seen.lengths)
    same = sum(
        terminated and length == longest
        for length, terminated in zip(seen.lengths, seen.terminated, strict=True)
    )
    if longest < _LEAST_LIMIT or same < _SAME_FRAC * count:
        return None
    return Doubt(
        "time_limit",
        f"{same} of {count} episodes were terminated after exactly {longest:,} steps, which no "
        "observation shows beforehand, so nothing that comes later counts",
        "if that is a time limit, the environment must return truncated=True there, not "
        "terminated=True; if it belongs to the task, show the steps left in the observation",
    )


def unused_actions(seen: Evidence) -> Doubt | None:
    """Actions that the mask never allows."""
    if seen.allowed is None or seen.rows < 4 * _LEAST_ROWS:
        return None
    most, used = len(seen.allowed), int(seen.allowed.sum())
    if most < _LEAST_CHOICES or used >= _USED_FRAC * most:
        return None
    return Doubt(
        "action_mask",
        f"the action mask allowed only {used:,} of {most:,} actions in {seen.rows:,} steps",
        "a smaller action space is learned faster",
    )


def unnamed_mask(spaces: Spaces) -> Doubt | None:
    """A leaf that seems to say which actions are allowed, and is no mask by its name."""
    size = sum(mask_sizes(spaces.action))
    leaves = observation_leaves(spaces.observation)
    if size == 0 or ACTION_MASK in leaves:
        return None
    for name, leaf in leaves.items():
        zero_one = isinstance(leaf, gym_spaces.MultiBinary) or (
            isinstance(leaf, gym_spaces.Box) and (leaf.low == 0).all() and (leaf.high == 1).all()
        )
        if zero_one and leaf.shape == (size,) and _OF_MASKS.search(name):
            return Doubt(
                "mask",
                f"observation {name!r} has one number for each of {size} actions, from 0 to 1, and "
                "is read as any other",
                "if it says which actions are allowed, name it action_mask (in games and vector "
                "environments too)",
            )
    return None


def few_tries(spaces: Spaces, total_env_steps: int | None) -> Doubt | None:
    """More actions than the budget can try; masks allow an unknown number."""
    if ACTION_MASK in observation_leaves(spaces.observation):
        return None
    most = max(mask_sizes(spaces.action), default=0)
    if total_env_steps is None or most < _LEAST_CHOICES or total_env_steps >= _TRIES * most:
        return None
    return Doubt(
        "actions",
        f"{total_env_steps:,} env_steps try each of {most:,} actions about "
        f"{total_env_steps / most:,.0f} times",
        "a larger --total-steps, or a smaller action space (MultiDiscrete, or Box)",
    )


def _size(number: float) -> str:
    return f"{number:,.0f}" if 1e3 <= number < 1e7 else f"{number:.3g}"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
