"""Resolves the dtype in which float64 leaves are stored (``env.observation_dtype``)."""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np

from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import OFFSET, ObsArrays, coarse
from quintet.errors import QuintetError
from quintet.spaces import float64_leaves
from quintet.system.files import same_folder
from quintet.types import Spaces

_STEPS, _SEED = 64, 0
"""Number of random actions that show how much an observation changes, and their seed."""


def with_observation_dtype(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """The same with ``env.observation_dtype`` resolved: ``auto`` is float64 where float32 would
    lose the differences of a leaf in the first steps of one environment, which is made for that.

    of: the environment's spaces.
    """
    if env.config.observation_dtype != "auto":
        return env
    tried = env.backend.in_python and can_be_made_again(env.source)
    tried = tried and bool(float64_leaves((of.own or of).observation))
    dtype = "float64" if tried and _loses(env) else "float32"
    return env.with_options({"observation_dtype": dtype})


def _loses(env: ResolvedEnv) -> bool:
    """Whether float32 loses the differences of a leaf in the first steps of one environment."""
    from quintet.uniform import random_rows  # PyTorch

    wide = env.with_options({"observation_dtype": "float64", "frame_stack": 1})
    try:
        with untouched(), closing(make_group_env(wide, env.streams_of(1))) as probe:
            names = float64_leaves(probe.spaces.observation)
            low: ObsArrays = {}
            high: ObsArrays = {}
            for each in random_rows(probe, _STEPS, _SEED):
                for name in names:
                    x = each.row.obs[name]
                    low[name] = np.minimum(low.get(name, x[0]), x.min(0))
                    high[name] = np.maximum(high.get(name, x[0]), x.max(0))
                if not each.number and all((np.abs(low[name]) < OFFSET).all() for name in names):
                    return False  # as nearly all: no step is taken
            return any(
                coarse(name, low[name], high[name], probe.spaces, normalized=False) is not None
                for name in names
            )
    except (QuintetError, OSError):  # which the run meets again, and says where
        return False


@contextmanager
def untouched() -> Iterator[None]:
    """Puts the working folder and the shared random generators back as they were for the run."""
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        with same_folder():
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
