"""Measurements of an environment as findings get them, with numbers of one's own."""

from typing import Any

import numpy as np

from quintet.doctor.fits import Fits, Next
from quintet.doctor.pairs import Pairs
from quintet.doctor.play import Play
from quintet.doctor.predict import Score
from quintet.doctor.seen import Options, Seen


def played(
    rows: int = 1_000,
    streams: int = 4,
    *,
    reward: Any = 1.0,
    every: int = 20,
    terminated: bool = True,
    obs: Any = None,
    names: tuple[str, ...] = ("obs[0]", "obs[1]"),
    bad: str = "",
    vary: bool = True,
) -> Play:
    """Random play whose episodes end about every `every` steps; 0: never."""
    shape = (rows, streams)
    over = np.zeros(shape, np.bool_)
    valid = np.ones(shape, np.bool_)
    if every:
        for b in range(streams):
            place = every - 1
            while place < rows:
                over[place, b] = True
                if place + 1 < rows:
                    valid[place + 1, b] = False
                # Streams and episodes of other lengths.
                place += every + 1 + ((place + b) % 5 if vary else 0)
    random = np.random.default_rng(0)
    if obs is None:
        obs = random.standard_normal((rows + 1, streams, len(names)))
    rewards = np.broadcast_to(np.asarray(reward, float), shape).copy()
    rewards[~valid] = 0.0
    none = np.zeros(shape, np.bool_)
    held = np.arange(streams) >= streams // 2
    action = random.integers(0, 2, (rows, streams, 1)).astype(float)
    flags = (over, none) if terminated else (none, over)
    return Play(obs, names, action, rewards, *flags, valid, held, bad, bool(over.any()), rows)


def pairs(**own: Any) -> Pairs:
    """Comparisons in which everything depends on actions."""
    usual: dict[str, Any] = {
        "compared": 100,
        "changed": 100,
        "rewarded": 50,
        "ended": 10,
        "first": [1] * 100,
        "seeds": 8,
        "returns_differ": 8,
        "varied": 8,
        "starts": 8,
        "reached": 1.0,
    }
    return Pairs(**(usual | own))


def near(mean: float) -> Score:
    return Score(mean, 0.02)


def number(
    now: float = 0.99,
    memory: float = 0.99,
    value: float = 0.99,
    loss: float = 0.3,
    delay: float | None = None,
) -> Next:
    told = None if delay is None else near(delay)
    return Next("obs[0]", near(now), near(memory), near(value), told, loss)


def fits(**own: Any) -> Fits:
    """Fits of an environment that is told well."""
    usual: dict[str, Any] = {
        "rows": 5_000,
        "next": (number(), number()),
        "reward": near(0.98),
        "reward_memory": near(0.98),
        "reward_varies": 2_000,
    }
    return Fits(**(usual | own))


def seen(**own: Any) -> Seen:
    options = own.pop("options", Options())
    return Seen(options, **own)
