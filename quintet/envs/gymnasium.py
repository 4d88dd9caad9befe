"""Single Gymnasium environments in Python, stepped one after another in next-step layout."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs import other_apis
from quintet.envs.backends import Group
from quintet.envs.masks import note_on
from quintet.envs.other_apis import Unfit, fault_of
from quintet.envs.own_state import OwnState, statistics
from quintet.envs.owners import claim, made_for, purpose, release, require_new
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import Array, EnvDescription, ObsArrays, Rendered, StepRow, check_seeds
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    Keys,
    Space,
    action_remarks,
    action_shape,
    leaf_dtype,
    leaf_keys,
    stored_spaces,
    unpack_action,
)
from quintet.system import forks
from quintet.system.printing import message
from quintet.system.signals import STOPS
from quintet.system.user_code import described, raised, traced

if TYPE_CHECKING:
    from quintet.envs.tasks import Tasks


@dataclass(frozen=True)
class Leaf:
    """Access to one observation leaf: its place, its checks and its storage."""

    path: str
    keys: Keys
    space: Space
    shape: tuple[int, ...]
    dtype: np.dtype
    start: Any
    size: Any  # number of discrete values, or one for each place; None if not discrete
    is_plain: bool  # the whole observation is this leaf, a Box

    def of(self, obs: Any) -> Any:
        """The leaf's value in an observation; raises Unfit if it is missing."""
        value = obs
        try:
            for key in self.keys:
                value = value[key]
        except STOPS:
            raise
        except BaseException as error:  # whatever the observation is
            raise Unfit(f"gave no observation {self.path!r}: {described(error)}") from error
        return value

    def is_met(self, value: Any) -> bool:
        """Whether a value can be stored unchanged; other values may need conversion."""
        if self.start is not None:
            return False
        if type(value) is not np.ndarray:
            whole = self.shape == () and type(value) in (int, np.int64) and self.size is not None
            return whole and 0 <= value < self.size
        floats = value.dtype.kind == "f" == self.dtype.kind  # any width
        if value.shape != self.shape or not (value.dtype is self.dtype or floats):
            return False
        # Seen as unsigned, whole numbers below 0 are above any size.
        return self.size is None or bool((value.view(f"u{value.itemsize}") < self.size).all())


@final
class GymnasiumVectorEnv:
    """`num_streams` environments made by one callable.

    Every observation is checked against the declared shape and kind of dtype, since numpy would
    silently broadcast a wrong shape. Errors of an environment are raised as `EnvironmentFault`,
    which names the stream, the step, the id and the seed.

    infos: reads success and the episodes' own numbers.
    envs: the environments of the streams, which live as long as it does, unless
        ``env.fresh_at_checkpoints`` is set: then restarts make new ones.
    tasks: gives the options of resets; None without a curriculum.
    """

    def __init__(
        self, env: ResolvedEnv, group: Group, make_env: Callable[[int], gymnasium.Env]
    ) -> None:
        """Makes the environments; raises ConfigError if they are not new ones with equal spaces.

        make_env: called with each stream in order, and again where restarts make new ones.
        """
        num_streams, env_id = group.num_streams, env.config.id
        self._id, self.num_streams, self._first_stream = env_id, num_streams, group.first_stream
        self.infos, self._make_env = env.info_reader(num_streams), make_env
        self._used, self._purpose = False, purpose()
        self._fresh = env.config.fresh_at_checkpoints
        forks.watch()
        self._forks = forks.generation
        self.tasks: Tasks | None = None
        self.envs: list[gymnasium.Env] = []
        try:
            for _ in range(num_streams):
                self.envs.append(self._new())
            self._refuse_unequal()
            given = self.envs[0].observation_space
            self._leaves = [leaf_of(path, *found) for path, found in leaf_keys(given).items()]
            self._plain = self._leaves[0] if self._leaves[0].is_plain else None
            self._action_space = self.envs[0].action_space
            self.spaces = stored_spaces(given, self._action_space, env_id)
        except BaseException:
            self.close()
            raise
        self.description = EnvDescription(
            env_id,
            env.config.backend,
            1 if env.atari is None else env.atari.frame_skip,
            env.config.success,
            max_steps=time_limit(self.envs[0]),
            remarks=action_remarks(self._action_space),
            notes=(*other_apis.notes_on(self.envs[0]), *note_on(self.envs[0])),
            statistics=statistics(self.envs[0]),
        )
        self._action_shape = (num_streams, *action_shape(self._action_space))
        self._seeds = [0] * num_streams
        self._ended = [False] * num_streams
        self._episode_step = [0] * num_streams
        self._action: Array | None = None

    @property
    def own(self) -> OwnState:
        """Access to the state that the environments keep."""
        return OwnState(lambda: self.envs, self._id)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Resets every environment with its seed; later resets have no seed."""
        self._seeds = check_seeds(seeds, self.num_streams)
        self._action = None
        if self._used and self._fresh:
            self.close()
            for _ in self._seeds:
                self.envs.append(self._new())
            require_new(self.envs, self._id)
        self._used = True
        if self.infos is not None:
            self.infos.clear()
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
        rows = [
            self._reset(stream, None, out.obs) if ended[stream] else self._step(stream, row, out)
            for stream, row in enumerate(action_rows(action, self.num_streams))
        ]
        reward, terminated, truncated = zip(*rows, strict=True)
        out.reward[:] = reward
        out.raw_reward[:] = out.reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        np.logical_and(out.truncated, ~out.terminated, out=out.truncated)
        self._ended = (out.terminated | out.truncated).tolist()
        if self.infos is not None:
            self.infos.write(out)

    def render(self, stream: int) -> Rendered:
        env = self.envs[stream]
        plain = env.unwrapped
        if getattr(plain, "render_mode", "") is None and "rgb_array" in env.metadata.get(
            "render_modes", ()
        ):
            # The callable may not pass it on; most environments read it only when they draw.
            plain.render_mode = "rgb_array"
        return Rendered(env.render(), steps_per_s(env.metadata))

    def close(self) -> None:
        envs, self.envs = self.envs, []
        for env in envs:
            release(env, self)
        close_all(envs, self._id)

    def _new(self) -> gymnasium.Env:
        stream = self._first_stream + len(self.envs)
        with made_for(self._purpose, f"stream {stream}"):
            env = _single(self._make_env(stream), self._id)
        claim(env, self, self._id)
        return env

    def place_of(self, stream: int) -> str:
        """A stream's number, step and seed, for a message."""
        step = self._episode_step[stream]
        when = f"step {step} of its episode" if step else "reset"
        return f"stream {self._first_stream + stream}, {when}, seed {self._seeds[stream]}"

    def _step(self, stream: int, action: Any, out: StepRow) -> tuple[float, bool, bool]:
        self._episode_step[stream] += 1
        try:
            given = self.envs[stream].step(action)
        except STOPS:
            raise
        except BaseException as error:
            raise self._fault(stream, error) from error
        finally:
            if forks.generation != self._forks:
                forks.leave(self._id)
        try:
            # The usual result is recognised without a call, as a light environment steps in 2 us.
            if type(given) is not tuple or len(given) != 5:
                given = other_apis.step_parts(other_apis.read_step(given, self._id))
            obs, reward, terminated, truncated, info = given
            if not (type(reward) is float and type(terminated) is bool and type(truncated) is bool):
                numbers = other_apis.plain_numbers(reward, terminated, truncated)
                reward, terminated, truncated = numbers
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
            if self.infos is not None:
                self.infos.add(stream, info, ended=terminated or truncated)
        except Unfit as error:
            raise self._fault(stream, error) from error
        return reward, terminated, truncated

    def _reset(self, stream: int, seed: int | None, out: ObsArrays) -> tuple[float, bool, bool]:
        """Resets a stream; returns the reward and flags of a reset row."""
        self._episode_step[stream] = 0
        self._ended[stream] = False
        env, tasks = self.envs[stream], self.tasks
        given = {"seed": seed} if tasks is None else tasks.draw(stream, seed)
        try:
            made = env.reset(**given)
            self._write_obs(stream, other_apis.observation_in(made, self._id), out)
        except STOPS:
            raise
        except BaseException as error:
            raise self._fault(stream, error, other_apis.reset_by(given)) from error
        finally:
            if forks.generation != self._forks:
                forks.leave(self._id)
        return 0.0, False, False

    def _write_obs(self, stream: int, obs: Any, out: ObsArrays) -> None:
        for leaf in self._leaves:
            value = leaf.of(obs)
            out[leaf.path][stream] = value if leaf.is_met(value) else read_leaf(obs, leaf)

    def _fault(self, stream: int, error: BaseException, call: str = "") -> EnvironmentFault:
        what = "" if isinstance(error, Unfit) else other_apis.call_fault(error, call)
        who = f"{self._id} ({self.description.backend}), {self.place_of(stream)}"
        return fault_of(who, error, what)

    def _refuse_unequal(self) -> None:
        require_new([env.unwrapped for env in self.envs], self._id)
        first = self.envs[0]
        own = (first.observation_space, first.action_space)
        for env in self.envs[1:]:
            if (env.observation_space, env.action_space) != own:
                raise ConfigError(
                    f"{self._id} must make environments with equal spaces; got {own[0]}, {own[1]} "
                    f"and {env.observation_space}, {env.action_space}; give them the same spaces"
                )


def _single(env: Any, env_id: str) -> gymnasium.Env:
    # EnvPool's pools are both.
    if not isinstance(env, gymnasium.Env) or isinstance(env, gymnasium.vector.VectorEnv):
        what_to_do = other_apis.way_out(env) or (
            "return a single environment, or, if it is a function that makes a vector "
            "environment, add a parameter num_envs to it"
        )
        raise ConfigError(
            f"{env_id} must make one gymnasium.Env at each call; got "
            f"{type(env).__module__}.{type(env).__qualname__}; {what_to_do}"
        )
    other_apis.require_spaces(env, env_id)
    return env


def time_limit(env: gymnasium.Env) -> int | None:
    """The least limit of the wrappers that limit steps; None without one."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(int(env._max_episode_steps))
        env = env.env
    return min(limits, default=None)


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
            text = f"{env_id}: the environment {raised(error, 'close')}; mend the environment"
            if isinstance(error, Exception) or fault is not None:
                warnings.warn(message(text), RuntimeWarning, stacklevel=3)
            else:
                fault = traced(EnvironmentFault(text), error)
    if fault is None:
        return
    if sys.exception() is None:
        raise fault
    warnings.warn(message(str(fault)), RuntimeWarning, stacklevel=3)


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


def read_leaf(obs: Any, leaf: Leaf, leading: tuple[int, ...] = ()) -> Array:
    """A leaf of one observation, or of a batch ``[*leading]``, checked; discrete values count from
    0.  Raises Unfit if it is missing, or not as declared.
    """
    value = leaf.of(obs)
    try:
        array = np.asarray(value)
    except STOPS:
        raise
    except BaseException as error:
        raise Unfit(f"gave no observation {leaf.path!r}: {described(error)}") from error
    if array.shape != (*leading, *leaf.shape) or not (
        array.dtype == leaf.dtype or np.can_cast(array.dtype, leaf.dtype, "same_kind")
    ):
        streams = f" for {leading[0]} streams" if leading else ""
        raise Unfit(
            f"must give observation {leaf.path!r} as declared, {leaf.space}{streams}; "
            f"gave shape {array.shape}, dtype {array.dtype}"
        )
    if array.dtype.kind in "iu" and not np.can_cast(array.dtype, leaf.dtype) and array.size:
        held = np.iinfo(leaf.dtype) if leaf.dtype.kind in "iu" else None
        if held is not None and not held.min <= array.min() <= array.max() <= held.max:
            raise Unfit(
                f"must give observation {leaf.path!r} in numbers that {leaf.dtype} can hold; gave "
                f"numbers from {array.min()} to {array.max()}"
            )
    if leaf.start is not None:
        array = array - leaf.start
    if leaf.size is not None and not ((array >= 0) & (array < leaf.size)).all():
        raise Unfit(f"must give observation {leaf.path!r} within {leaf.space}; gave {value}")
    return array


def leaf_of(path: str, keys: Keys, space: Space) -> Leaf:
    """The `Leaf` with `space` at `keys`."""
    size: Any = 2 if isinstance(space, spaces.MultiBinary) else getattr(space, "nvec", None)
    if isinstance(space, spaces.Discrete):
        size = int(space.n)
    start = getattr(space, "start", None)  # Discrete and MultiDiscrete have one
    return Leaf(
        path=path,
        keys=keys,
        space=space,
        shape=tuple(space.shape or ()),
        dtype=leaf_dtype(space),
        start=start if np.any(start) else None,
        size=size,
        is_plain=keys == () and isinstance(space, spaces.Box),
    )
