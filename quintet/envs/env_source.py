"""Environments that a user gives other than by id: callables and vector environments."""

import errno
import inspect
import json
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv

from quintet.envs import atari, other_apis
from quintet.envs.backends import BACKENDS
from quintet.envs.config import LIMIT
from quintet.envs.owners import living, purpose
from quintet.envs.tensor import gives_tensors, size_of
from quintet.errors import ConfigError
from quintet.system import forks
from quintet.system.importing import name_of
from quintet.system.signals import STOPS
from quintet.system.user_code import argv_advice, lacking, raised, traced

MakeEnv = Callable[..., gymnasium.Env[Any, Any] | GymVectorEnv[Any, Any, Any]]
"""Makes one environment, or, with a parameter ``num_envs``, a vector environment of that size."""


@final
@dataclass(frozen=True)
class GivenTensors:
    """A vector environment of tensors that a user gave, of one of the interfaces that
    `quintet.envs.given_tensors` knows.
    """

    env: Any
    num_envs: int


GIVEN = (GymVectorEnv, GivenTensors)
"""Classes of vector environments that a user gave, which belong to the user."""

EnvLike = str | MakeEnv | GymVectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]
"""An id or import string, a callable, a vector environment, or what `gymnasium.make` made."""

EnvSource = MakeEnv | GymVectorEnv[Any, Any, Any] | GivenTensors
"""Makes environments that have no id."""


def settle(env: EnvLike) -> tuple[dict[str, Any], EnvSource | None]:
    """The fields of `EnvConfig` that a given environment determines, and its source.

    A pool of EnvPool and an environment of `gymnasium.make` are only read, and made again.  Any
    other vector environment is one group of streams.  Raises ConfigError if it is none of these.
    """
    if isinstance(env, str):
        return {"id": env}, None
    for _, backend in () if callable(env) else BACKENDS.usable():
        if (says := backend.settle(env)) is not None:
            return says, None
    if gives_tensors(env):
        size = size_of(env)
        says = {"id": name_of(env), "num_streams": size, "streams_per_group": size}
        return says, GivenTensors(env, size)
    if isinstance(env, GymVectorEnv):
        size = env.num_envs
        return {"id": name_of(env), "num_streams": size, "streams_per_group": size}, env
    if isinstance(env, gymnasium.Env):
        return _like(env)
    if callable(env):
        return {"id": name_of(env)}, env
    raise ConfigError(
        f"env must be an id, a callable that makes environments, or a vector environment; got "
        f"{env!r}; " + (other_apis.way_out(env) or "see docs of quintet.make_vector_env")
    )


def _like(env: gymnasium.Env[Any, Any]) -> tuple[dict[str, Any], EnvSource | None]:
    """Maker of environments like one of `gymnasium.make`, by its specification."""
    spec = env.spec
    if spec is None:
        name = type(env.unwrapped).__name__
        raise ConfigError(
            f"env must make environments, one for each stream; got {env!r}, an environment "
            f"itself; give its class, {name}, or a function that makes it, lambda: {name}(...)"
        )
    wrappers = [each.name for each in spec.additional_wrappers if each.kwargs is None]
    if wrappers:
        raise ConfigError(
            f"env must make environments, one for each stream; got {env!r}, whose wrapper "
            f"{wrappers[0]} has no specification; give lambda: "
            f"{wrappers[0]}(gymnasium.make({spec.id!r}), ...)"
        )
    # render_mode belongs to the one that was made: "human" would open windows.
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    registered = gymnasium.registry.get(spec.id)
    plain = registered is not None and not spec.additional_wrappers and not atari.is_ales(spec.id)
    with suppress(TypeError, ValueError):  # JSON can't hold some arguments
        json.dumps(kwargs)
        if registered is not None and plain:
            changed = {k: v for k, v in kwargs.items() if (k, v) not in registered.kwargs.items()}
            if spec.max_episode_steps != registered.max_episode_steps:
                # None would be the registered limit.
                limit = spec.max_episode_steps
                changed["max_episode_steps"] = -1 if limit is None else limit
            return {"id": spec.id, "backend": "gymnasium", "kwargs": changed}, None
    make = partial(gymnasium.make, replace(spec, kwargs=kwargs), disable_env_checker=True)
    return {"id": f"gymnasium:<{spec.id}>"}, make


def can_be_made_again(source: EnvSource | None) -> bool:
    """Whether further environments can be made, which evaluation needs."""
    return not isinstance(source, GIVEN) or is_plain_sync(source)


def is_plain_sync(env: object) -> bool:
    """Whether it is a SyncVectorEnv itself, whose environments can be stepped one by one, and made
    again by its makers.
    """
    if type(env) is not SyncVectorEnv or env.observation_mode != "same":
        return False
    if env not in _MAKES_NEW:
        _MAKES_NEW[env] = _makes_new(env)
    return _MAKES_NEW[env]


_MAKES_NEW: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


def _makes_new(env: "SyncVectorEnv") -> bool:
    """Whether the first maker gives a new environment, and not one that existed before."""
    makers: Any = env.env_fns
    if not isinstance(makers, list | tuple):  # an iterator is used up
        return False
    try:
        made = makers[0]()
    except STOPS:
        raise
    except BaseException:  # the run meets it again, and says where
        return True
    if any(made.unwrapped is each.unwrapped for each in env.envs):
        return False
    made.close()
    return True


def makes_groups(maker: MakeEnv) -> bool:
    """Whether a callable has a parameter ``num_envs``, so that it makes vector environments; one
    with ``env_index`` makes single ones.
    """
    return other_apis.takes(maker, "num_envs") and not other_apis.takes(maker, "env_index")


@final
class Numbers(NamedTuple):
    """Numbers of environments, for their makers.

    first: index of the first one: 0 in training alone; None: after all of training, for a look.
    seed: seed of the run.  worker: number of the worker process that makes them.
    """

    first: int | None = None
    seed: int = 0
    worker: int = 0

    def arguments(
        self, maker: MakeEnv, kwargs: Mapping[str, Any], num_envs: int, stream: int
    ) -> dict[str, Any]:
        """The arguments of a maker: `kwargs`, with ``{index}`` in strings filled in, and those of
        ``env_index``, ``num_envs``, ``worker_index`` and ``seed`` that its signature names.

        num_envs: number of environments in training.
        stream: number of the environment, counted from the first one.
        """
        index = stream + (num_envs if self.first is None else self.first)
        seed = int(np.random.SeedSequence([self.seed, index]).generate_state(1)[0] >> 1)
        numbers = {"worker_index": self.worker, "seed": seed}
        if not makes_groups(maker):
            numbers |= {"env_index": index, "num_envs": num_envs}
        bound = maker.keywords if isinstance(maker, partial) else {}
        named = {
            name: x
            for name, x in numbers.items()
            if name not in bound and other_apis.takes(maker, name)
        }
        filled = {
            name: value.replace("{index}", str(index)) if isinstance(value, str) else value
            for name, value in kwargs.items()
        }
        return named | filled


def limits_itself(maker: MakeEnv) -> bool:
    """Whether a callable takes ``max_episode_steps``: by name, or as a `gymnasium.make`."""
    made_by = maker.func if isinstance(maker, partial) else maker
    return made_by in (gymnasium.make, gymnasium.make_vec) or other_apis.takes(maker, LIMIT)


def call_maker(maker: Callable[..., Any], env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """The environment that `maker` makes; its errors become a ConfigError that says what to do."""
    try:
        with forks.kept_out(env_id):
            made = maker(**kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"{env_id} needs a package that is not installed: {error}; run: {_install_line(env_id)}"
        ) from error
    except STOPS:
        raise
    except BaseException as error:
        what_to_do = _way_out(maker, env_id, kwargs, error)
        if lacking:
            what_to_do += (
                f"; the process that started this one has, but this one lacks: {'; '.join(lacking)}"
            )
        why = f" for {purpose()}" if purpose() else ""
        fault = ConfigError(
            f"{env_id} must make an environment from the arguments {dict(kwargs)}{why}, but it "
            f"{raised(error)}; {what_to_do}"
        )
        raise traced(fault, error) from error
    forks.require_files(env_id)
    return made


def _way_out(
    maker: Callable[..., Any], env_id: str, kwargs: Mapping[str, Any], error: BaseException
) -> str:
    """Advice on an error of a maker of environments, by its cause."""
    if isinstance(error, TypeError) and "gymnasium.Env" in str(error):
        # gymnasium.make says this of a registered environment of another interface.
        return other_apis.CLASS
    if isinstance(error, gymnasium.error.UnregisteredEnv):
        return "register the id, or import the module that does, in the function that makes it"
    if isinstance(error, TypeError) and (arguments := _arguments_fault(maker, kwargs, error)):
        return arguments
    if advice := argv_advice(error):
        return advice
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            "give each environment a port of its own: port 0 (the system then chooses a free one), "
            "or a port that depends on the parameter env_index (docs/environments.md); a counter "
            "in the class or module is not enough, since environments are made in several "
            "processes and each of them counts anew"
        )
    what = "correct env.kwargs or the environment" if kwargs else "mend the environment"
    if (others := living(env_id)) == 0:
        return what
    return (
        f"{what}; this process has {others} more of these environments: if only one may exist at "
        "a time, train with --runtime.kind serial --env.num-streams 1 --eval.episodes 0"
    )


def _arguments_fault(maker: Callable[..., Any], kwargs: Mapping[str, Any], error: TypeError) -> str:
    """Advice if the maker does not take these arguments; "" if it does."""
    unfit = [name for name in kwargs if f"'{name}'" in str(error)]  # gymnasium.make quotes them
    takes = f"it does not take {', '.join(unfit)}" if unfit else ""
    try:
        signature = inspect.signature(maker)
    except ValueError:  # some built-in callables don't tell
        return ""
    try:
        signature.bind(**kwargs)
    except TypeError:
        names = ", ".join(signature.parameters)
        unfit = [name for name in kwargs if name not in signature.parameters]
        takes = f"it takes {names or 'no arguments'}"
    limit = "; a limit of steps is env.max_episode_steps" if LIMIT in unfit else ""
    return f"correct env.kwargs: {takes}{limit}" if takes else ""


def _install_line(env_id: str) -> str:
    """The command that installs the missing package of a Gymnasium id."""
    if atari.rom_of(env_id) is not None:
        return atari.INSTALL_LINE
    spec = gymnasium.registry.get(env_id.partition(":")[2] or env_id)
    packages = {
        "mujoco": "quintet-rl[mujoco]",
        "box2d": "quintet-rl[box2d]",
        "classic_control": "gymnasium[classic-control]",
        "toy_text": "gymnasium[toy-text]",
    }
    for part, package in packages.items():
        if spec is not None and part in str(spec.entry_point):
            return f'pip install "{package}"'
    return "the command that the environment's own documentation names"
