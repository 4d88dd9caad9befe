"""Resolves the dtype in which float64 leaves are stored (``env.observation_dtype``)."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from quintet.envs.given import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import OFFSET, ObsArrays, coarse
from quintet.errors import QuintetError
from quintet.spaces import float64_leaves
from quintet.system.files import same_folder
from quintet.types import Spaces

_STEPS = 64
"""Number of steps of random actions, in which an observation shows how much it changes."""

_SEED = 0


def with_observation_dtype(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """The same with ``env.observation_dtype`` resolved, always in the same way: ``auto`` is float64
    where float32 would lose the differences of a leaf, as the first steps of one environment show,
    which is made for that.

    of: spaces of the environment.
    """
    if env.config.observation_dtype != "auto":
        return env
    asked = env.backend.in_python and can_be_made_again(env.source)
    asked = asked and bool(float64_leaves((of.own or of).observation))
    dtype = "float64" if asked and _loses(env) else "float32"
    return env.with_options({"observation_dtype": dtype})


def _loses(env: ResolvedEnv) -> bool:
    """Whether float32 loses the differences of a leaf in the first steps of one environment."""
    from quintet.envs.random_steps import play  # PyTorch

    wide = env.with_options({"observation_dtype": "float64", "frame_stack": 1})
    try:
        with _untouched(), closing(make_group_env(wide, env.streams_of(1))) as probe:
            names = float64_leaves(probe.spaces.observation)
            rows = play(probe, _STEPS, _SEED)
            low, high = _span(next(rows).row.obs, names)
            if all((np.abs(low[name]) < OFFSET).all() for name in names):
                return False  # as nearly all: no step is taken
            for each in rows:
                least, most = _span(each.row.obs, names)
                for name in names:
                    low[name] = np.minimum(low[name], least[name])
                    high[name] = np.maximum(high[name], most[name])
            return any(
                coarse(name, low[name], high[name], probe.spaces, normalized=False) is not None
                for name in names
            )
    except (QuintetError, OSError):  # which the run meets again, and says where
        return False


def _span(obs: ObsArrays, names: frozenset[str]) -> tuple[ObsArrays, ObsArrays]:
    """The least and the greatest values of leaves over the streams."""
    return {name: obs[name].min(0) for name in names}, {name: obs[name].max(0) for name in names}


@contextmanager
def _untouched() -> Iterator[None]:
    """Puts the working folder and the shared generators of random numbers back as they were, since
    the run begins with them.
    """
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        with same_folder():
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
