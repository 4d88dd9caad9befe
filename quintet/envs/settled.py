"""Settles the automatic options that need a look at an environment, once in a run."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from quintet.envs import masks
from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.owners import made_for
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.success import number_of
from quintet.envs.vector import OFFSET, InfoReader, ObsArrays, VectorEnv, coarse
from quintet.envs.wrappers import innermost
from quintet.errors import ConfigError, QuintetError
from quintet.spaces import float64_leaves, mask_sizes, observation_leaves
from quintet.system.files import same_folder
from quintet.system.signals import STOPS
from quintet.types import ACTION_MASK, Spaces

MASKS_AT_STEPS = (
    "info['action_mask'] must be there at resets too, got it only at steps, so it is not used: "
    "add it at resets, or use --env.mask-from-info false"
)

_STEPS, _SEED = 64, 0
"""Number of random actions that show how much an observation changes, and their seed."""

_MOST_METRICS = 32
"""Most numbers in info that ``env.metrics=auto`` takes."""

_EPISODE_STEPS = 20_000
"""Most steps of the episode that shows which numbers are in info."""

_WRITABLE = re.compile(r"[^,:*\s_][^,:*]*")
_NOT_THEIRS = re.compile(
    r"(.*/)?((\w+_)?ids?|elapsed_steps?|lives|seeds?|terminated|truncated|trunc|discount"
    r"|bad_transition|(episode_)?frame_number)"
    r"|(TimeLimit|players|episode|final_\w+|terminal_\w+)([/.].*)?"
)
"""Numbers of the machinery around environments, which don't tell how an episode went."""


@final
class KeysInInfo(NamedTuple):
    """Paths of the numbers in info: at the end of an episode (of the newest step, where none has
    ended), and in any step.
    """

    ending: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


def settled(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """The same with ``env.observation_dtype`` and ``env.mask_from_info`` settled; environments are
    made for that where the spaces leave it open.

    of: the environment's spaces.
    """
    return with_observation_dtype(_with_mask(env, of), of)


def made_otherwise(env: ResolvedEnv, settled: ResolvedEnv) -> bool:
    """Whether the settled options would make other environments than those made for `env`."""
    before, now = env.config, settled.config
    wide = now.observation_dtype == "float64" != before.observation_dtype
    masked = now.mask_from_info is True and before.mask_from_info is not True
    return wide or masked or settled.terms != env.terms


def with_metrics(env: ResolvedEnv, keys: Callable[[ResolvedEnv], KeysInInfo] | None) -> ResolvedEnv:
    """The same with ``env.metrics`` settled: ``auto`` and patterns by the numbers that the first
    episode of one environment, which is made for that, has in info.

    keys: plays this episode; None: it can't be played.  Raises ConfigError if a pattern can't be
    settled.
    """
    text = env.config.metrics
    keys = keys if can_be_made_again(env.source) and not env.of_tensors else None
    if text == "auto":
        found: tuple[str, ...] = ()
        # The frames of games have nothing in info that says how an episode went.
        if keys is not None and env.atari is None:
            with suppress(QuintetError, OSError):  # the run meets it again, and says so
                found = keys(env).ending
        own = [x for x in found if _WRITABLE.fullmatch(x) and not _NOT_THEIRS.fullmatch(x)]
        names = own[:_MOST_METRICS]
        env = env.with_options({"metrics": ", ".join(f"{x}:last" for x in names) or "none"})
        more = f" ({len(own) - len(names)} more are left out)" if own != names else ""
        taken = (
            "metrics of the environment, from info at the ends of episodes: "
            f"env/{', '.join(names)}{more}; --env.metrics chooses other keys, sums or means"
        )
        return replace(env, notes=(*env.notes, taken)) if names else env
    if "*" not in text:
        return env
    from quintet.envs.info_metrics import as_text, expanded, read_terms

    if keys is None:
        raise ConfigError(
            f"env.metrics must be whole keys, got {text!r}: name the keys, since no second "
            "environment can be made in which to look for those that match"
        )
    return env.with_options({"metrics": as_text(expanded(read_terms(text), *keys(env)))})


def keys_in_info(env: ResolvedEnv) -> KeysInInfo:
    """The numbers in info in an episode of random actions."""
    from quintet.envs.random_play import short_rows  # PyTorch

    look = Look()
    seen = replace(env.with_options({"frame_stack": 1, "observe_last": False}), look=look)
    with (
        untouched(),
        made_for("a look at its info"),
        closing(make_group_env(seen, env.streams_of(1))) as probe,
    ):
        masked = masks_in_info(env, probe).at_reset
        for _ in short_rows(probe, _EPISODE_STEPS, _SEED) if not masked else ():
            if look.ended:
                break
    return keys_in_info(env.with_options({"mask_from_info": True})) if masked else look.keys


@final
class Look(InfoReader):
    """Notes which numbers are in infos.

    ended: whether an episode has ended.
    """

    def __init__(self) -> None:
        self.ended = False
        self._ending: dict[str, None] = {}
        self._newest: dict[str, None] = {}
        self._seen: dict[str, None] = {}

    @property
    def keys(self) -> KeysInInfo:
        """The keys that were seen so far."""
        ending = self._ending if self.ended else self._newest
        return KeysInInfo(tuple(ending), tuple(self._seen))

    def add(self, stream: int, info: Any, *, ended: bool, **_: Any) -> None:  # noqa: ARG002
        found = dict.fromkeys(_numbers_in(info))
        self._seen |= found
        self.ended |= ended
        if ended:
            self._ending |= found
        else:
            self._newest = found


def _numbers_in(info: Any, prefix: str = "") -> Iterator[str]:
    """Paths of the numbers in an info."""
    for key, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(key, str):
            continue
        if isinstance(value, Mapping):
            yield from _numbers_in(value, f"{prefix}{key}/")
        elif value is not None and number_of(value) is not None:
            yield f"{prefix}{key}"


def _with_mask(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """``auto`` stays where the observation has a mask."""
    if env.config.mask_from_info != "auto" or ACTION_MASK in observation_leaves(of.observation):
        return env
    if can_be_made_again(env.source) and _may_be_masked(env, of):
        again = suppress(QuintetError, OSError)  # the run meets it again, and says so
        with again, same_folder(), closing(make_group_env(env, env.streams_of(1))) as probe:
            return with_masks(env, masks_in_info(env, probe))
    return with_masks(env, MasksInInfo())


@final
class MasksInInfo(NamedTuple):
    """Whether info has a fitting mask: at a reset, where it is taken, or only after a step."""

    at_reset: bool = False
    at_steps_only: bool = False


def with_masks(env: ResolvedEnv, seen: MasksInInfo) -> ResolvedEnv:
    """The same with ``env.mask_from_info`` settled, and a remark on a mask that is not taken."""
    remarks = (*env.remarks, *[MASKS_AT_STEPS] * seen.at_steps_only)
    return replace(env.with_options({"mask_from_info": seen.at_reset}), remarks=remarks)


def _may_be_masked(env: ResolvedEnv, of: Spaces) -> bool:
    masked = ACTION_MASK in observation_leaves(of.observation)
    takes = env.backend.gives_mask is not None and env.atari is None
    return env.config.mask_from_info == "auto" and takes and bool(mask_sizes(of.action)) > masked


def masks_in_info(env: ResolvedEnv, made: VectorEnv) -> MasksInInfo:
    """Masks that show in environments made for a look, for ``env.mask_from_info=auto``."""
    gives_mask = env.backend.gives_mask
    if gives_mask is None or not _may_be_masked(env, made.spaces):
        return MasksInInfo()
    if _looks(lambda: gives_mask(innermost(made))):
        return MasksInInfo(at_reset=True)
    singles = env.singles(made)
    at_steps = bool(singles) and _looks(
        lambda: masks.is_in(_first_info(singles[0]), singles[0].action_space)
    )
    return MasksInInfo(at_steps_only=at_steps)


def _first_info(env: gymnasium.Env[Any, Any]) -> Any:
    """The info of a random step."""
    env.action_space.seed(_SEED)
    env.reset(seed=_SEED)
    return env.step(env.action_space.sample())[4]


def _looks(ask: Callable[[], bool]) -> bool:
    """The answer of the environment's code, False where it fails."""
    try:
        with untouched():
            return ask()
    except STOPS:
        raise
    except BaseException:  # raised by the environment's code; the run meets it again
        return False


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
    from quintet.envs.random_play import random_rows  # PyTorch

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
                    return False  # nearly all environments end here, before any step
            return any(
                coarse(name, low[name], high[name], probe.spaces, normalized=False) is not None
                for name in names
            )
    except (QuintetError, OSError):  # the run meets it again, and says where
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
