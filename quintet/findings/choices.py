"""Doubtful automatic choices: a sentence with the numbers that show it, and the option that makes
another choice.

Nothing is doubted without evidence: each row yields nothing where the numbers do not show a doubt,
or are too few.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from gymnasium import spaces as gym_spaces

from quintet.algorithms import registry
from quintet.envs.evidence import Evidence
from quintet.findings.engine import Found, Rows, option_in
from quintet.findings.record import Finding
from quintet.models.config import (
    ModelConfig,
    encoded_leaves,
    picture_leaves,
    picture_options,
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

_WEIGHT = 0.3
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


@final
@dataclass(frozen=True)
class Chosen:
    """Facts about choices of a run.

    asked: the network's options as they were given; model: resolved.
    budget: env_steps of a policy; None: unknown.
    evidence: of the rows so far; None: there are none.
    """

    asked: ModelConfig
    model: ModelConfig
    spaces: Spaces
    learning: Learning
    budget: int | None = None
    evidence: Evidence | None = None

    @property
    def rows(self) -> int:
        return 0 if self.evidence is None else self.evidence.rows


finding = Rows("choices")


def weight_of(choice: str) -> float:
    """The weight of a choice that a run has doubted, by its name there."""
    weights = {name: row.weight for row in finding.rows for name in row.names}
    return weights.get(choice.replace("_", "-"), _WEIGHT)


def as_choice(found: Finding) -> dict[str, Any]:
    """A doubtful choice as records of runs and ``quintet check-env --json`` have it."""
    return {"choice": found.name.replace("-", "_"), "said": found.said, "option": found.advice}


def _doubt(said: str, way: str) -> Finding:
    return Finding(said, {}, way, option_in(way))


@finding("encoder", weight=0.45)  # small boards are learned without places too
def flat_pictures(asked: ModelConfig, model: ModelConfig, spaces: Spaces) -> Found:
    """Leaves that may be pictures, and are flattened because of their type, their size, their two
    dimensions, or other pictures."""
    leaves = encoded_leaves(spaces)
    if asked.encoder != "auto" or model.encoder == "film_grid":
        return
    small = model.encoder == "small_cnn"
    layout = picture_options(model).layout if small else "auto"
    read = small_pictures(leaves, layout) if small else picture_leaves(model, spaces)
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
            bounded = isinstance(leaf, gym_spaces.Box) and leaf.is_bounded()
            board = min(shape) >= _FLOAT_BOARD and shape[0] == shape[1] and bounded
        volume = len(shape) == 3 and sorted(shape)[1] >= SMALL
        if not board and not volume:
            continue
        readable = bool(small_pictures({name: leaf}, layout))
        others = small_pictures({k: x for k, x in leaves.items() if k != name})
        # Beside pictures with channels small_cnn reads no others.
        beside = board and any(len(leaves[k].shape or ()) > 2 for k in others)
        if readable and not beside:
            way = "--model.encoder small_cnn reads it as a picture"
        elif readable:
            way = "give it as [H, W, C], which --model.encoder small_cnn reads as a picture"
        else:
            form = " of [H, W, C]" if beside else ""
            way = f"give it as bool, uint8 or float32{form}, which small_cnn reads as a picture"
        yield _doubt(
            f"observation {name!r} ({_times(shape)}, {leaf.dtype}) may be a picture, but "
            f"{model.encoder} reads {math.prod(shape):,} numbers without their positions",
            way,
        )


@finding("layout", weight=0.25)
def layouts(model: ModelConfig, spaces: Spaces) -> Found:
    """Pictures whose shape does not show their layout."""
    if model.encoder != "small_cnn" or picture_options(model).layout != "auto":
        return
    for name, picture in small_pictures(encoded_leaves(spaces)).items():
        if picture.doubtful:
            ways = [("height x width x channels", "hwc"), ("channels x height x width", "chw")]
            (read, _), (other, word) = ways if picture.channels_last else ways[::-1]
            shape = _times(encoded_leaves(spaces)[name].shape or ())
            yield _doubt(
                f"observation {name!r} of {shape} is read as {read}",
                f'if it is {other}, --model.encoder-kwargs \'{{"layout": "{word}"}}\'',
            )


@finding("actions", weight=0.4)
def few_tries(spaces: Spaces, budget: int) -> Found:
    """More actions than the budget can try; masks allow an unknown number."""
    most = max(mask_sizes(spaces.action), default=0)
    if most < _LEAST_CHOICES or budget >= _TRIES * most:
        return
    if ACTION_MASK not in observation_leaves(spaces.observation):
        yield _doubt(
            f"{budget:,} env_steps try each of {most:,} actions about {budget / most:,.0f} times",
            "a larger --total-steps, or a smaller action space (MultiDiscrete, or Box)",
        )


@finding("mask", weight=_WEIGHT)
def unnamed_mask(spaces: Spaces) -> Found:
    """A leaf that seems to say which actions are allowed, and is no mask by its name."""
    size = sum(mask_sizes(spaces.action))
    leaves = observation_leaves(spaces.observation)
    if size == 0 or ACTION_MASK in leaves:
        return
    for name, leaf in leaves.items():
        zero_one = isinstance(leaf, gym_spaces.MultiBinary) or (
            isinstance(leaf, gym_spaces.Box) and (leaf.low == 0).all() and (leaf.high == 1).all()
        )
        if zero_one and leaf.shape == (size,) and _OF_MASKS.search(name):
            yield _doubt(
                f"observation {name!r} has one number for each of {size} actions, from 0 to 1, and "
                "is read like any other observation",
                "if it says which actions are allowed, name it action_mask (in games and vector "
                "environments too)",
            )
            return


@finding("observation-scale", weight=0.6, rows=_LEAST_ROWS)
def scales(model: ModelConfig, spaces: Spaces, learning: Learning, evidence: Evidence) -> Found:
    if model.custom or model.encoder == "film_grid":
        return
    leaves = encoded_leaves(spaces)
    normalized = normalized_leaves(spaces.observation) if learning.normalizes else {}
    small = model.encoder == "small_cnn"
    read = small_pictures(leaves, picture_options(model).layout) if small else {}
    sizes = {
        name: evidence.sizes(name)
        for name in evidence.squares
        if name not in normalized and not (name in read and leaves[name].dtype == np.uint8)
    }
    if not sizes:
        return
    name = max(sizes, key=lambda name: float(sizes[name].max()))
    largest = float(sizes[name].max())
    if largest < _LARGE:
        return
    others = np.concatenate([[1.0] * bool(normalized), *sizes.values()])
    least = float(others[others > 0.0].min())
    comparison = f", others have size {least:.2g}" if least < largest / 10 else ""
    floats = leaves[name].dtype is not None and leaves[name].dtype.kind == "f"  # type: ignore[union-attr]
    yield _doubt(
        f"observation {name!r} reaches the network in numbers of size {_size(largest)}{comparison} "
        f"(root mean squares over {evidence.observed:,} steps)",
        "--normalize-observations true scales floats"
        if floats
        else "give it as float32, which --normalize-observations true scales",
    )


@finding("reward-size", weight=0.6)
def reward_scale(learning: Learning, evidence: Evidence) -> Found:
    """Rewards that are not scaled and very large or very small, or so small that they stay small
    when normalised."""
    size = evidence.reward_size
    if evidence.rewards < _LEAST_REWARDS or not math.isfinite(size):
        return
    text = f"rewards have a size of {_size(size)} (root mean square of the {evidence.rewards:,} "
    text += "rewards that were not 0)"
    if not learning.scaling and size * _SMALL_SHARE < learning.divisor:
        yield _doubt(
            f"{text}, and normalising divides them by no less than {_size(learning.divisor)}",
            f"multiply them by about {1 / max(size, 1e-30):.0e} in the environment",
        )
    elif learning.scaling and not _SMALL_REWARD <= size <= _LARGE_REWARD:
        by = f" by {learning.scaling_of}" if learning.scaling_of else ""
        yield _doubt(f"{text} and are not scaled{by}", learning.scaling)


@finding("gamma", weight=0.8)
def short_horizon(learning: Learning, evidence: Evidence) -> Found:
    """An episode's only reward, so late that gamma discounts it to next to nothing."""
    gamma, count = learning.gamma, len(evidence.paid_lengths)
    if gamma is None or not 0.0 < gamma < 1.0 or _too_few(evidence.paid_lengths):
        return
    if evidence.rewards > 1.1 * count or evidence.paid_ends < 0.9 * count:
        return
    length = sum(evidence.paid_lengths) / count
    worth = gamma**length
    if worth < _WORTH:
        digits = 1 + math.ceil(math.log10(length))
        yield _doubt(
            f"the only reward of an episode comes at its end, after {length:,.0f} steps ({count} "
            f"episodes), and gamma={gamma:g} makes it worth {worth:.1g} at the beginning",
            f"--gamma {round(1.0 - 1.0 / length, digits):g}",
        )


@finding("gamma", weight=0.8, unless=("gamma",))
def discounted(learning: Learning, evidence: Evidence) -> Found:
    """A gamma by which next to nothing counts but the next steps of long episodes."""
    gamma, count = learning.gamma, len(evidence.lengths)
    if gamma is None or not 0.0 <= gamma < 1.0 or _too_few(evidence.lengths):
        return
    horizon, length = 1.0 / (1.0 - gamma), sum(evidence.lengths) / count
    if horizon < _SHORT_HORIZON and length >= _HORIZONS * horizon:
        yield _doubt(
            f"gamma={gamma:g} reaches about {horizon:.2g} steps ahead, and episodes have "
            f"{length:,.0f} steps ({count} episodes)",
            "--gamma 0.99",
        )


def _too_few(lengths: Sequence[int]) -> bool:
    """Whether there are too few episodes; of long ones, less are enough."""
    return len(lengths) < (_LEAST_LONG if min(lengths, default=0) >= _LONG else _LEAST_EPISODES)


@finding("time-limit", weight=0.65)
def time_limit(evidence: Evidence) -> Found:
    """Time limits as terminations: all episodes terminate after the same number of steps, and no
    observation shows their end beforehand."""
    count = len(evidence.lengths)
    if _too_few(evidence.lengths) or evidence.ends.shown:
        return
    longest = max(evidence.lengths)
    ended = zip(evidence.lengths, evidence.terminated, strict=True)
    same = sum(terminated and length == longest for length, terminated in ended)
    if longest >= _LEAST_LIMIT and same >= _SAME_FRAC * count:
        yield _doubt(
            f"{same} of {count} episodes were terminated after exactly {longest:,} steps, which no "
            "observation shows beforehand, so values leave out all later rewards",
            "if that is a time limit, the environment must return truncated=True there, not "
            "terminated=True; if it belongs to the task, show the steps left in the observation",
        )


@finding("action-mask", weight=0.25, rows=4 * _LEAST_ROWS)
def unused_actions(evidence: Evidence) -> Found:
    if evidence.allowed is None:
        return
    most, used = len(evidence.allowed), int(evidence.allowed.sum())
    if most >= _LEAST_CHOICES and used < _USED_FRAC * most:
        yield _doubt(
            f"the action mask allowed only {used:,} of {most:,} actions in {evidence.rows:,} steps",
            "use a smaller action space, which is learned faster",
        )


def _size(number: float) -> str:
    return f"{number:,.0f}" if 1e3 <= number < 1e7 else f"{number:.3g}"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
