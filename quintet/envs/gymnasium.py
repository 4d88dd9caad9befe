"""Single Gymnasium environments in Python, stepped one after another in next-step layout."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn, final

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs import foreign, reward_shaping
from quintet.envs.foreign import PLAIN_FLAGS, PLAIN_NUMBERS
from quintet.envs.success import rule_of, single_success
from quintet.envs.vector import Array, EnvDescription, ObsArrays, Rendered, StepRow, check_seeds
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    Space,
    action_remarks,
    action_shape,
    leaf_dtype,
    leaf_keys,
    stored_spaces,
    unpack_action,
)
from quintet.system import forks
from quintet.system.signals import STOPS
from quintet.system.user_code import described, raised, traced


@dataclass(frozen=True)
class Leaf:
    """Access to one observation leaf: its place, its checks and its storage."""

    path: str
    keys: tuple[str | int, ...]
    space: Space
    shape: tuple[int, ...]
    dtype: np.dtype
    start: Any
    size: Any  # number of discrete values, or one for each place; None if not discrete
    is_plain: bool  # the whole observation is this leaf, a Box

    def of(self, obs: Any) -> Any:
        """The leaf's value in an observation; raises BadLeaf if it is missing."""
        value = obs
        try:
            for key in self.keys:
                value = value[key]
        except STOPS:
            raise
        except BaseException as error:  # whatever the observation is
            raise BadLeaf(f"gave no observation {self.path!r}: {described(error)}") from error
        return value

    def is_met(self, value: Any) -> bool:
        """Whether a value can be stored unchanged; other values may need conversion."""
        if self.start is not None:
            return False
        if type(value) is not np.ndarray:
            whole = self.shape == () and type(value) in (int, np.int64) and self.size is not None
            return whole and 0 <= value < self.size
        floats = value.dtype.kind == "f" == self.dtype.kind  # of other width, perhaps
        if value.shape != self.shape or not (value.dtype is self.dtype or floats):
            return False
        # Of whole numbers below 0 the unsigned ones are above any size.
        return self.size is None or bool((value.view(f"u{value.itemsize}") < self.size).all())


@final
class GymnasiumVectorEnv:
    """`num_streams` environments made by one callable.

    Every observation is checked against the declared shape and kind of dtype, since numpy would
    silently broadcast a wrong shape. Errors of an environment are raised as `EnvironmentFault`,
    which names the stream, the step, the id and the seed.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        num_streams: int,
        *,
        env_id: str,
        first_stream: int = 0,
        action_repeat: int = 1,
        success_key: str | None = None,
    ) -> None:
        """Makes the environments.

        Args:
            make_env: called once for every stream, in their order, and again at restarts.
            env_id: name for people.
            first_stream: number in the run of the first environment, for error messages.
            action_repeat: frames of one step, for the record.
            success_key: of info, true where an episode was won; None: nothing is read.

        Raises:
            ConfigError: `make_env` does not make new environments with equal spaces.
        """
        self._id, self.num_streams = env_id, num_streams
        self._success_key = success_key
        self.make_env = make_env
        self._used = False
        self._first_stream = first_stream
        forks.watch()
        self._forks = forks.generation
        self._envs: list[gymnasium.Env] = []
        try:
            for _ in range(num_streams):
                self._envs.append(_single(make_env(), env_id))
            self._refuse_unequal()
            given = self._envs[0].observation_space
            self._leaves = [leaf_of(path, *found) for path, found in leaf_keys(given).items()]
            self._plain = self._leaves[0] if self._leaves[0].is_plain else None
            self._action_space = self._envs[0].action_space
            self.spaces = stored_spaces(given, self._action_space, env_id)
        except BaseException:
            self.close()
            raise
        self.description = EnvDescription(
            env_id,
            "gymnasium",
            action_repeat,
            rule_of(success_key),
            max_steps=_time_limit(self._envs[0]),
            remarks=action_remarks(self._action_space),
        )
        self._action_shape = (num_streams, *action_shape(self._action_space))
        self._seeds = [0] * num_streams
        self._ended = [False] * num_streams
        self._episode_step = [0] * num_streams
        self._action: Array | None = None

    def declared_shaping(self) -> list[dict[str, float]]:
        """Values of reward shaping that each environment declares, its own dicts."""
        return [reward_shaping.declared_by(env) for env in self._envs]

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Resets every environment with its seed; later resets have no seed.

        Used environments are replaced by new ones, since some keep state over resets (as running
        statistics), which a resumed run would not have.
        """
        self._seeds = check_seeds(seeds, self.num_streams)
        self._action = None
        if self._used:
            self.close()
            self._envs = [_single(self.make_env(), self._id) for _ in self._seeds]
        self._used = True
        for stream, seed in enumerate(self._seeds):
            self._reset(stream, seed, out)

    def send(self, action: Array) -> None:
        """Stores the action; `recv` makes the step."""
        assert self._action is None, "recv before the next send"
        assert action.shape == self._action_shape, (action.shape, self._action_shape)
        self._action = action

    def recv(self, out: StepRow) -> None:
        assert self._action is not None, "send before recv"
        action, self._action = unpack_action(self._action_space, self._action), None
        ended = self._ended
        # Written at once, since single elements of an array are slow to set.
        out.valid[:] = [not over for over in ended]
        told = [
            self._reset(stream, None, out.obs) if ended[stream] else self._step(stream, row, out)
            for stream, row in enumerate(action_rows(action, self.num_streams))
        ]
        reward, terminated, truncated = zip(*told, strict=True)
        out.reward[:] = reward
        out.raw_reward[:] = out.reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        np.logical_and(out.truncated, ~out.terminated, out=out.truncated)
        self._ended = (out.terminated | out.truncated).tolist()

    def render(self, stream: int) -> Rendered:
        env = self._envs[stream]
        plain = env.unwrapped
        if plain.render_mode is None and "rgb_array" in env.metadata.get("render_modes", ()):
            # The callable may not pass it on; most environments read it only when they draw.
            plain.render_mode = "rgb_array"
        return Rendered(env.render(), steps_per_s(env.metadata))

    def close(self) -> None:
        envs, self._envs = self._envs, []
        close_all(envs, self._id)

    def place_of(self, stream: int) -> str:
        """A stream's number, step and seed, for a message."""
        step = self._episode_step[stream]
        when = f"step {step} of its episode" if step else "reset"
        return f"stream {self._first_stream + stream}, {when}, seed {self._seeds[stream]}"

    def _step(self, stream: int, action: Any, out: StepRow) -> tuple[float, bool, bool]:
        self._episode_step[stream] += 1
        try:
            given = self._envs[stream].step(action)
        except STOPS:
            raise
        except BaseException as error:
            self._raise_fault(stream, self._told(stream, error), error)
        finally:
            if forks.generation != self._forks:
                forks.leave(self._id)
        # The usual result is recognised without a call, as a light environment steps in 2 us.
        if type(given) is not tuple or len(given) != 5:
            given = self._five(stream, given)
        obs, reward, terminated, truncated, info = given
        if not (type(reward) is float and type(terminated) is bool and type(truncated) is bool):
            reward, terminated, truncated = self._plain_numbers(stream, given)
        leaf = self._plain
        if (  # the usual case
            leaf is not None
            and type(obs) is np.ndarray
            and obs.dtype is leaf.dtype
            and obs.shape == leaf.shape
        ):
            out.obs[leaf.path][stream] = obs
        else:
            self._write_obs(stream, obs, out.obs)
        if self._success_key is not None and (terminated or truncated):
            out.success[stream] = self._success(stream, info, self._success_key)
        return reward, terminated, truncated

    def _five(self, stream: int, given: Any) -> tuple[Any, ...]:
        """The five parts of a step's result that is no tuple of five."""
        try:
            fault = foreign.step_fault(given)
            parts = tuple(given) if fault is None else ()
        except STOPS:
            raise
        except BaseException as error:  # of the result's own code
            self._raise_fault(stream, self._told(stream, error), error)
        if fault is not None:
            self._raise_fault(stream, fault)
        return parts

    def _plain_numbers(self, stream: int, given: tuple[Any, ...]) -> tuple[float, bool, bool]:
        """Reward and flags of a step as Python's own numbers."""
        _, reward, terminated, truncated, _ = given
        try:
            plain = type(reward) in PLAIN_NUMBERS
            gain = float(reward) if plain else foreign.reward_of(reward)
            if type(terminated) not in PLAIN_FLAGS or type(truncated) not in PLAIN_FLAGS:
                terminated = foreign.flag_of(terminated, "terminated")
                truncated = foreign.flag_of(truncated, "truncated")
        except OverflowError as error:  # a whole number that no float can hold
            self._raise_fault(stream, f"must return a reward in float's range; {error}", error)
        except foreign.Unfit as error:
            self._raise_fault(stream, str(error), error)
        return gain, bool(terminated), bool(truncated)

    def _success(self, stream: int, info: Any, key: str) -> bool:
        try:
            return single_success(foreign.info_of(info), key, f"{self._id} (gymnasium)")
        except foreign.Unfit as error:
            self._raise_fault(stream, str(error), error)

    def _reset(self, stream: int, seed: int | None, out: ObsArrays) -> tuple[float, bool, bool]:
        """Resets a stream; returns the reward and flags of a reset row."""
        self._episode_step[stream] = 0
        self._ended[stream] = False
        try:
            given: Any = self._envs[stream].reset(seed=seed)
        except STOPS:
            raise
        except BaseException as error:
            self._raise_fault(stream, self._told(stream, error), error)
        finally:
            if forks.generation != self._forks:
                forks.leave(self._id)
        if (fault := foreign.reset_fault(given)) is not None:
            self._raise_fault(stream, fault)
        self._write_obs(stream, given[0], out)
        return 0.0, False, False

    def _write_obs(self, stream: int, obs: Any, out: ObsArrays) -> None:
        for leaf in self._leaves:
            try:
                value = leaf.of(obs)
                out[leaf.path][stream] = value if leaf.is_met(value) else read_leaf(obs, leaf)
            except BadLeaf as error:
                self._raise_fault(stream, str(error), error)

    def _told(self, stream: int, error: BaseException) -> str:
        return foreign.call_fault(self._envs[stream], error) or raised(error)

    def _raise_fault(self, stream: int, what: str, cause: BaseException | None = None) -> NoReturn:
        fault = EnvironmentFault(
            f"{self._id} (gymnasium), {self.place_of(stream)}: the environment {what}; mend the "
            "environment, or wrap it"
        )
        raise (fault if cause is None else traced(fault, cause)) from cause

    def _refuse_unequal(self) -> None:
        if len({id(env) for env in self._envs}) < len(self._envs):
            raise ConfigError(
                f"{self._id} must make a new environment at each call; it gave the same object "
                f"twice; create the environment inside the callable"
            )
        first = self._envs[0]
        for env in self._envs[1:]:
            if (env.observation_space, env.action_space) != (
                first.observation_space,
                first.action_space,
            ):
                raise ConfigError(
                    f"{self._id} must make environments with equal spaces; got "
                    f"{first.observation_space}, {first.action_space} and "
                    f"{env.observation_space}, {env.action_space}; give them the same spaces"
                )


def _single(env: Any, env_id: str) -> gymnasium.Env:
    # EnvPool's pools are both.
    if not isinstance(env, gymnasium.Env) or isinstance(env, gymnasium.vector.VectorEnv):
        what_to_do = foreign.way_out(env) or (
            "return a single environment, or give what makes a vector environment a parameter "
            "num_envs"
        )
        raise ConfigError(
            f"{env_id} must make one gymnasium.Env at each call; got "
            f"{type(env).__module__}.{type(env).__qualname__}; {what_to_do}"
        )
    foreign.require_spaces(env, env_id)
    return env


def _time_limit(env: gymnasium.Env) -> int | None:
    """The limit of the innermost wrapper that limits steps; None without one."""
    found = None
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            found = int(env._max_episode_steps)
        env = env.env
    return found


def close_all(envs: Iterable[Any], env_id: str) -> None:
    """Closes every environment, even if one of them fails to close.

    Raises:
        EnvironmentFault: one of them called sys.exit(), or raised a non-Exception; suppressed while
            another error is being raised, which must not be hidden.
    """
    fault: EnvironmentFault | None = None
    for env in envs:
        try:
            with forks.kept_out(env_id):
                env.close()
        except STOPS:
            raise
        except BaseException as error:
            told = f"{env_id}: the environment {raised(error, 'close')}; mend the environment"
            if isinstance(error, Exception) or fault is not None:
                warnings.warn(told, RuntimeWarning, stacklevel=3)
            else:
                fault = traced(EnvironmentFault(told), error)
    if fault is None:
        return
    if sys.exception() is None:
        raise fault
    warnings.warn(str(fault), RuntimeWarning, stacklevel=3)


def action_rows(action: Any, num_streams: int) -> Iterable[Any]:
    """Each stream's action from unpacked actions, in the form of `action_space.sample()`."""
    if isinstance(action, np.ndarray):
        return action
    return (_row(action, stream) for stream in range(num_streams))


def _row(action: Any, stream: int) -> Any:
    if isinstance(action, dict):
        return {key: _row(child, stream) for key, child in action.items()}
    if isinstance(action, tuple):
        return tuple(_row(child, stream) for child in action)
    return action[stream]


def steps_per_s(metadata: Mapping[str, Any]) -> float | None:
    """Gymnasium's ``render_fps``, if it is a valid number."""
    given = metadata.get("render_fps")
    rate = float(given) if isinstance(given, Real) else 0.0
    return rate if 0.0 < rate < np.inf else None


class BadLeaf(Exception):
    """An observation leaf is wrong; the message goes on after "the environment"."""


def read_leaf(obs: Any, leaf: Leaf, leading: tuple[int, ...] = ()) -> Array:
    """A leaf of one observation, or of a batch ``[*leading]``, checked; discrete values count from
    0.  Raises BadLeaf if it is missing, or not as declared.
    """
    value = leaf.of(obs)
    try:
        array = np.asarray(value)
    except STOPS:
        raise
    except BaseException as error:
        raise BadLeaf(f"gave no observation {leaf.path!r}: {described(error)}") from error
    if array.shape != (*leading, *leaf.shape) or not (
        array.dtype == leaf.dtype or np.can_cast(array.dtype, leaf.dtype, "same_kind")
    ):
        streams = f" for {leading[0]} streams" if leading else ""
        raise BadLeaf(
            f"must give observation {leaf.path!r} as declared, {leaf.space}{streams}; "
            f"gave shape {array.shape}, dtype {array.dtype}"
        )
    if leaf.start is not None:
        array = array - leaf.start
    if leaf.size is not None and not ((array >= 0) & (array < leaf.size)).all():
        raise BadLeaf(f"must give observation {leaf.path!r} within {leaf.space}; gave {value}")
    return array


def leaf_of(path: str, keys: tuple[str | int, ...], space: Space) -> Leaf:
    """The record of the leaf `space` at `keys`."""
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    size: Any = None
    if isinstance(space, spaces.Discrete):
        size = int(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        size = space.nvec
    elif isinstance(space, spaces.MultiBinary):
        size = 2
    return Leaf(
        path=path,
        keys=keys,
        space=space,
        shape=tuple(space.shape or ()),
        dtype=leaf_dtype(space),
        start=space.start if discrete and np.any(space.start) else None,  # type: ignore[attr-defined]
        size=size,
        is_plain=keys == () and isinstance(space, spaces.Box),
    )
