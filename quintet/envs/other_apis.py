"""Environments whose interface is not Gymnasium's: faults and advice."""

import inspect
import re
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from quintet.errors import ConfigError, EnvironmentFault
from quintet.system.printing import message
from quintet.system.signals import STOPS
from quintet.system.user_code import argv_advice, raised, traced

LIMITED = "TimeLimit.truncated"
"""Key of info that is true where a limit of steps ended the episode, in environments of gym."""

STEP = "step(action), which returns (observation, reward, terminated, truncated, info)"

_OLD_STEP = (
    "returned 4 values from step, as in the old API of Gym; return (observation, reward, "
    "terminated, truncated, info), where truncated is True only if a time limit ended the episode"
)
CLASS = "give its class, or a function that makes one at each call"
_OF_AGENTS = (
    "it has several agents: give the function that makes it with --env.backend pettingzoo "
    "(PettingZoo's own makers and those named parallel_env don't need that; docs/multi-agent.md)"
)
_SINGLE = (
    "give a function that makes a single environment: quintet makes env.num_streams of them and "
    "steps them side by side"
)


def way_out(env: object) -> str:
    """Advice on an object that is no Gymnasium environment; "" if it does not look like one."""
    if isinstance(env, (gymnasium.Env, VectorEnv)):
        return ""
    if isinstance(env, ModuleType):
        makers = [name for name in ("parallel_env", "env") if callable(getattr(env, name, None))]
        return f"give {env.__name__}.{makers[0]}, which makes the game" if makers else ""
    homes = {kind.__module__.partition(".")[0] for kind in type(env).__mro__}
    if "pettingzoo" in homes or hasattr(env, "possible_agents"):
        return _OF_AGENTS
    if "stable_baselines3" in homes:
        return _SINGLE
    return CLASS if is_single(env) else ""


def is_single(env: object) -> bool:
    """Whether an object that is not of Gymnasium looks like one environment of one agent."""
    homes = {kind.__module__.partition(".")[0] for kind in type(env).__mro__}
    return (
        not isinstance(env, type | ModuleType | gymnasium.Env | VectorEnv)
        and homes.isdisjoint({"pettingzoo", "stable_baselines3"})
        and not any(hasattr(env, name) for name in ("possible_agents", "num_envs"))
        and all(callable(getattr(env, name, None)) for name in ("reset", "step"))
    )


def is_old(env: object) -> bool:
    """Whether the innermost environment needs `quintet.envs.old_gym`."""
    inner = innermost(env)[1]
    if not isinstance(inner, gymnasium.Env):
        return is_single(inner)
    found = [getattr(inner, name, None) for name in ("observation_space", "action_space")]
    odd = any(x is not None and not isinstance(x, gymnasium.Space) for x in found)
    return not isinstance(inner, VectorEnv) and (odd or not takes_seed(inner))


def innermost(env: Any) -> tuple[Any, Any]:
    """The innermost of Gymnasium's wrappers, None without one, and what it wraps."""
    outer = None
    while isinstance(env, gymnasium.Wrapper):
        outer, env = env, env.env
    return outer, env


def notes_on(env: object) -> tuple[str, ...]:
    """Sentences about the parts of an environment that are adapted."""
    adapter = getattr(innermost(env)[1], "adapted", None)
    return (adapter,) if isinstance(adapter, str) else ()


def takes(maker: Any, name: str) -> bool:
    """Whether a callable has a parameter of that name."""
    try:
        return name in inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some built-in callables don't tell
        return False


def takes_seed(env: Any) -> bool:
    """Whether the environment's own `reset` has a parameter ``seed``."""
    try:
        found = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
    except (TypeError, ValueError):  # some callables don't tell
        return True
    return "seed" in found or any(p.kind is p.VAR_KEYWORD for p in found.values())


class Unfit(Exception):
    """A part of an environment's result is wrong; the message continues after "the environment"."""


_NOT_ALLOWED = r"\b(illegal|invalid|forbidden|not (allowed|available|legal|valid))\b"
_ILLEGAL = re.compile(
    rf"{_NOT_ALLOWED}.{{0,20}}\b(action|move)|\b(action|move)s?\b.{{0,20}}{_NOT_ALLOWED}", re.I
)


def fault_of(who: str, error: BaseException, what: str = "") -> EnvironmentFault:
    """An error about environment `who` with the message `what`, or without one, of `error`."""
    way = argv_advice(error) or "mend the environment, or wrap it"
    text = f"{who}: the environment {what or error}; {way}"
    if _ILLEGAL.search(what or str(error)):
        text += "; if not every action is allowed, see docs/environments.md#action-masks"
    return traced(EnvironmentFault(text), error)


def step_parts(result: Any) -> tuple[Any, ...]:
    """The five parts of a step's result; raises Unfit if it has others."""
    try:
        parts = tuple(result) if isinstance(result, (tuple, list)) else ()
    except STOPS:
        raise
    except BaseException as error:  # raised by the result's own code
        raise Unfit(raised(error)) from error
    if len(parts) == 4:
        raise Unfit(_OLD_STEP)
    if len(parts) != 5:
        raise Unfit(f"returned {_form(result)} from step; it must be {STEP}")
    return parts


def is_pair(result: Any) -> bool:
    """Whether a reset's result is observation and info."""
    pair = isinstance(result, tuple | list) and len(result) == 2
    return pair and (result[1] is None or isinstance(result[1], Mapping))


def five_values(result: Any) -> Any:
    """A step's result of gym (observation, reward, done, info) in five values; others unchanged."""
    if not isinstance(result, tuple | list) or len(result) != 4:
        return result
    obs, reward, done, info = result
    limited = bool(info.get(LIMITED)) if isinstance(info, Mapping) else False
    return obs, reward, done and not limited, done and limited, info


def read_step(result: Any, env_id: str) -> Any:
    """A step's result, in five values where it has four."""
    if (found := five_values(result)) is not result:
        _tell(f"{env_id}: step returns four values, which are read as those of gym: an episode is "
              f"truncated where info[{LIMITED!r}] is true")  # fmt: skip
    return found


def observation_in(result: Any, env_id: str) -> Any:
    """The observation in a reset's result, which may be all of it; raises Unfit for others than
    that and a pair with info.
    """
    if not isinstance(result, tuple | list) and result is not None:
        _tell(f"{env_id}: reset returns no info, so all of it is read as the observation")
        return result
    if result is not None and is_pair(result):
        return result[0]
    raise Unfit(
        f"returned {_form(result)} from reset, as in the old API of Gym; return (observation, "
        "info), where info is a dict that may be empty"
    )


def _tell(text: str) -> None:
    """Says it once in a process, as Python does with warnings."""
    warnings.warn(message(text), RuntimeWarning, stacklevel=4)


_PLAIN_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32})
_PLAIN_FLAGS = frozenset({bool, np.bool_})
"""Types that are taken as they are."""


def plain_numbers(reward: Any, terminated: Any, truncated: Any) -> tuple[float, bool, bool]:
    """Reward and flags of a step as Python's own numbers; raises Unfit for anything else."""
    try:
        gain = float(reward) if type(reward) in _PLAIN_NUMBERS else reward_of(reward)
    except OverflowError as error:  # a whole number that no float can hold
        raise Unfit(f"must return a reward that a float can hold; {error}") from error
    if type(terminated) not in _PLAIN_FLAGS or type(truncated) not in _PLAIN_FLAGS:
        terminated = flag_of(terminated, "terminated")
        truncated = flag_of(truncated, "truncated")
    return gain, bool(terminated), bool(truncated)


def reward_of(value: Any) -> float:
    """A reward as a number, also from an array or tensor of one; raises Unfit for anything else."""
    array = _one(value)
    if array is None or array.dtype.kind not in "biuf":
        sized = value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)
        more = "; weigh several objectives into one number" if sized and len(value) > 1 else ""
        raise Unfit(f"must return a reward that is one number; gave {_brief(value)}{more}")
    return float(array)


def flag_of(value: Any, name: str) -> bool:
    """Whether an episode ended, as a truth value or an array of one; raises Unfit for others."""
    array = _one(value)
    if array is None or array.dtype.kind not in "biuf" or array not in (0, 1):
        raise Unfit(f"must return {name} as True or False; gave {_brief(value)}")
    return bool(array)


def info_of(value: Any) -> Mapping[str, Any]:
    """The info of a step, {} for None; raises Unfit if it is not a dict."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Unfit(f"must return info as a dict; gave {_brief(value)}")
    return value


def _one(value: Any) -> np.ndarray[Any, Any] | None:
    """A single value as an array of shape (); None for anything else."""
    try:
        array = np.asarray(value)
    except Exception:  # whatever it is
        try:
            array = np.asarray(value.item())  # a tensor on a GPU, or with a gradient
        except Exception:
            return None
    return array.reshape(()) if array.size == 1 else None


def _brief(value: Any) -> str:
    kind, shape = f"a {type(value).__name__}", getattr(value, "shape", None)
    if shape is not None and shape != ():
        return f"{kind} of shape {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:  # raised by the value's code, or by integers of more than 4,300 digits
        return kind
    return text if len(text) <= 60 else kind


def require_spaces(env: Any, env_id: str, prefix: str = "") -> None:
    """Raises ConfigError if an environment lacks one of Gymnasium's two spaces.

    prefix: prefix of the attributes' names, ``single_`` for a vector environment.
    """
    for name in (f"{prefix}observation_space", f"{prefix}action_space"):
        try:
            space, missing = getattr(env, name), ""
        except AttributeError as error:
            space, missing = None, f" ({error})"
        if space is None:
            raise ConfigError(
                f"{env_id}: an environment must have {name}, a space of gymnasium.spaces, as "
                f"soon as it is made; it has none{missing}; set self.{name} in __init__"
            )
        if not isinstance(space, gymnasium.Space):
            home, name_of_kind = type(space).__module__, type(space).__qualname__
            old = home.partition(".")[0] == "gym"
            raise ConfigError(
                f"{env_id}: {name} must be a space of gymnasium.spaces, got {home}.{name_of_kind} "
                f"{str(space)[:100]}; take it from gymnasium.spaces"
                f"{', not from the package gym, which Gymnasium replaced' if old else ''}"
            )


def reset_by(given: Mapping[str, Any]) -> str:
    """A reset with these arguments, in words; "" where they are no more than a seed."""
    return f"reset(options={given['options']} of env.curriculum)" if "options" in given else ""


def call_fault(error: BaseException, call: str = "") -> str:
    """Words for an environment's call that raised `error`."""
    # Gymnasium's own wrappers unpack what a step returns.
    if isinstance(error, ValueError) and "(expected 5, got 4)" in str(error):
        return _OLD_STEP
    return raised(error, call)


def _form(result: object) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
