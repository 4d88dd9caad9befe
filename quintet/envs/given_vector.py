"""Vector environments that a user provides, in next-step layout: Gymnasium's, ALE's and others with
this interface.

NEXT_STEP environments have the layout already. SAME_STEP environments begin the next episode within
the last step of an episode, and put the final observation in ``infos["final_obs"]``; DISABLED ones
wait for ``reset(options={"reset_mask": ...})``. Both are converted: at an ending the row carries
the final observation and the ending's flags, and the row after it is spent on resetting. The
environments step together, so while the other streams step, a stream that has ended also steps,
with an arbitrary action. That step is discarded: a partial reset follows at once, and the row has
its first observation. If all streams end at the same step, nothing is stepped; the first
observations of SAME_STEP are kept for the reset rows.

So the action of every valid row was chosen for the observation in that row and was executed, every
reported episode is whole, and every final observation is the true one. The price is one discarded
episode of one step at every ending, unless all streams end together; it matters only to
environments that count their episodes. No other scheme fits: environments that step together
execute equally often, so streams that end more often would need more rows. `quintet.envs.make`
steps the environments of a SyncVectorEnv one by one, without any loss.

`restart` is ``reset(seed=[...])``, or, for environments that take only one number (as Gymnasium's
own vectorised CartPole), the seed of the first stream. With ``env.fresh_at_checkpoints`` a callable
first makes new environments.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from gymnasium.error import Error as GymnasiumError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv
from numpy.typing import NDArray

from quintet.envs import atari, other_apis
from quintet.envs.backends import Group
from quintet.envs.gymnasium import (
    Leaf,
    close_all,
    leaf_of,
    read_leaf,
    steps_per_s,
)
from quintet.envs.masks import leaf_note, mask_leaves
from quintet.envs.other_apis import Unfit, fault_of, step_parts
from quintet.envs.own_state import OwnState, statistics
from quintet.envs.owners import claim, release
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import (
    Array,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    allocate_obs,
    check_seeds,
)
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    action_remarks,
    action_shape,
    in_float64,
    stored_spaces,
    unpack_action,
)
from quintet.system import forks
from quintet.system.printing import message
from quintet.system.signals import STOPS
from quintet.system.user_code import described, raised
from quintet.types import ACTION_MASK

if TYPE_CHECKING:
    from quintet.envs.tasks import Tasks

Mask = NDArray[np.bool_]


@final
class AdaptedVectorEnv:
    """One Gymnasium vector environment as a group of streams.

    infos: reads success and the episodes' own numbers.
    """

    def __init__(
        self,
        described: ResolvedEnv,
        group: Group,
        env: GymVectorEnv[Any, Any, Any],
        make: Callable[[], GymVectorEnv[Any, Any, Any]] | None = None,
    ) -> None:
        """Takes over `env`; unless `make` is given, it belongs to the caller, who closes it.

        make: makes an equal environment; None if there is only this one.

        Raises ConfigError if its autoreset mode is missing, or its mode or spaces can't be used.
        """
        self._env, self._make, self._id = env, make, described.config.id
        self.num_streams, env_id = int(env.num_envs), self._id
        self._first_stream, self.infos = group.first_stream, described.info_reader(self.num_streams)
        other_apis.require_spaces(env, env_id, "single_")
        self._mode = _autoreset_mode(env, env_id)
        _refuse_partial_batches(env, env_id)
        atari.refuse_endless_resets(env, self._mode, env_id)
        seen, found = mask_leaves(
            env.single_observation_space, env.single_action_space, described.config.mask_from_info
        )
        self._leaves = [leaf_of(path, *each) for path, each in found.items()]
        if (
            self._mode != AutoresetMode.NEXT_STEP
            and self.num_streams > 1
            and any(leaf.path == ACTION_MASK for leaf in self._leaves)
        ):
            raise ConfigError(
                f"{env_id}: a vector environment with an {ACTION_MASK} must reset itself at the "
                f"next step, got {self._mode.name}; make it with AutoresetMode.NEXT_STEP"
            )
        self._action_space = env.single_action_space
        self._action_shape = (self.num_streams, *action_shape(self._action_space))
        self.spaces = stored_spaces(seen, self._action_space, env_id)
        self.description = EnvDescription(
            env_id,
            "gymnasium",
            success=described.config.success,
            remarks=action_remarks(self._action_space),
            notes=leaf_note(found),
            statistics=statistics(env),
        )
        # First observations of episodes that begin when all streams have ended together.
        self._first_obs = allocate_obs(in_float64(self.spaces).observation, (self.num_streams,))
        self._ended: Mask = np.zeros(self.num_streams, np.bool_)
        self._fresh, self._used = described.config.fresh_at_checkpoints, False
        self._action: Any = None
        self._in_flight = False
        existing = type(env) is SyncVectorEnv and make is None
        self._existing = [*env.envs] if existing else []  # type: ignore[attr-defined]
        if self._mode == AutoresetMode.DISABLED:  # others reset themselves, without options
            self.tasks: Tasks | None = None
        for each in [*self._existing, *([] if make is None else [env])]:
            claim(each, self, env_id)

    @property
    def own(self) -> OwnState:
        """Access to the state that the environments keep."""
        return OwnState(lambda: [self._env], self._id)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Resets with one seed per stream."""
        checked = check_seeds(seeds, self.num_streams)
        self._finish_flight()
        if self._used and self._fresh and self._make is not None:
            self.close()
            made = self._make()
            claim(made, self, self._id)
            self._env = made
        self._used = True
        obs = self._call(f"reset(seed={checked})", lambda: self._reset_with(checked))
        if getattr(self, "tasks", None) is not None:  # each stream has its own options
            obs = self._reset_some(np.ones(self.num_streams, np.bool_), checked)
        self._ended[:] = False
        if self.infos is not None:
            self.infos.clear()
        self._write(obs, out)

    def send(self, action: Array) -> None:
        assert not self._in_flight, "recv before the next send"
        assert action.shape == self._action_shape, (action.shape, self._action_shape)
        if not self._all_wait():
            if self._mode == AutoresetMode.DISABLED and self._ended.any():
                self._reset_some(self._ended)
            self._action = unpack_action(self._action_space, action)
            env = self._env
            if isinstance(env, AsyncVectorEnv):
                self._call("step_async", lambda: env.step_async(self._action))
        self._in_flight = True  # only now, since a failed step can't be waited for

    def recv(self, out: StepRow) -> None:
        assert self._in_flight, "send before recv"
        self._in_flight = False  # also where the step fails: it is over then
        resets = self._ended.copy()
        if self._all_wait():
            self._begin_together(out.obs)
            terminated = truncated = np.zeros_like(resets)
            reward = np.zeros(self.num_streams, np.float32)
        else:
            obs, reward, terminated, truncated, infos = self._step()
            reward = self._per_stream("reward", reward)
            terminated = self._flags("terminated", terminated) & ~resets
            truncated = self._flags("truncated", truncated) & ~resets
            self._ended = terminated | truncated
            self._write(obs, out.obs)
            same_step = self._mode == AutoresetMode.SAME_STEP
            if same_step and self._ended.any():
                if self._ended.all():
                    self._write(obs, self._first_obs)
                self._write_final(infos, out.obs)
            if self.infos is not None:
                # The infos that SAME_STEP gives are those of the next episode's reset.
                final = infos.get("final_info", {}) if same_step else infos
                self.infos.step(infos, ~resets, self._ended, out, final)
            if self._mode != AutoresetMode.NEXT_STEP and resets.any():
                self._write_first(resets, out.obs)
        out.reward[:] = np.where(resets, 0.0, reward)
        out.raw_reward[:] = out.reward
        out.terminated[:] = terminated
        out.truncated[:] = truncated & ~terminated
        out.valid[:] = ~resets

    def render(self, stream: int) -> Rendered:
        pictures = self._env.render()
        picture = None if pictures is None else pictures[stream]
        return Rendered(picture, steps_per_s(self._env.metadata))

    def close(self) -> None:
        """Closes environments that `make` made; an instance that a user gave stays open."""
        try:
            self._finish_flight()
        except EnvironmentFault as error:  # must not hide an earlier error at the end of a run
            warnings.warn(message(f"closing failed: {error}"), RuntimeWarning, stacklevel=2)
        for each in self._existing:
            release(each, self)
        if self._make is not None:
            release(self._env, self)
            close_all([self._env], self._id)

    def _reset_with(self, seeds: list[int]) -> Any:
        reset: Any = self._env.reset
        if type(self._env.unwrapped).__module__.startswith("ale_py"):
            return reset(seed=np.array(seeds))[0]
        try:
            return reset(seed=seeds)[0]
        except (TypeError, ValueError, GymnasiumError) as error:
            # Each may mean that the environment takes no list; these two take one.
            if isinstance(self._env.unwrapped, AsyncVectorEnv | SyncVectorEnv):
                raise
            try:
                return reset(seed=seeds[0])[0]
            except Exception:
                raise error from None

    def _all_wait(self) -> bool:
        return self._mode != AutoresetMode.NEXT_STEP and bool(self._ended.all())

    def _begin_together(self, out: ObsArrays) -> None:
        """Writes the reset row of all streams at once, without a step."""
        if self._mode == AutoresetMode.DISABLED:
            self._write(self._reset_some(self._ended), out)
        else:
            for path, leaf in self._first_obs.items():
                out[path][:] = leaf
        self._ended = np.zeros(self.num_streams, np.bool_)

    def _step(self) -> Any:
        env = self._env
        if isinstance(env, AsyncVectorEnv):
            return self._call("step_wait", lambda: step_parts(env.step_wait()))
        return self._call("step", lambda: step_parts(env.step(self._action)))

    def _finish_flight(self) -> None:
        """Waits for a step that has begun."""
        in_flight, self._in_flight = self._in_flight, False
        if in_flight and isinstance(self._env, AsyncVectorEnv) and not self._all_wait():
            self._step()

    def _reset_some(self, mask: Mask, seeds: Sequence[int] | None = None) -> Any:
        """Resets the streams in `mask`; seeds: of a restart by the options of a curriculum."""
        tasks: Tasks | None = getattr(self, "tasks", None)
        if tasks is None:
            options = {"reset_mask": mask.copy()}
            what = "reset(options={'reset_mask': ...})"
            return self._call(what, lambda: self._env.reset(options=options)[0])
        obs = None
        for stream in np.flatnonzero(mask).tolist():
            drawn = tasks.draw(stream, None if seeds is None else seeds[stream])
            of_stream = np.arange(self.num_streams) == stream
            each: Any = [drawn["seed"] if one else None for one in of_stream]
            options = {**drawn["options"], "reset_mask": of_stream}
            reset = partial(self._env.reset, seed=each, options=options)
            obs = self._call(other_apis.reset_by(drawn), reset)[0]
        return obs

    def _write_first(self, resets: Mask, out: ObsArrays) -> None:
        """Discards the step of the streams in `resets` and writes their first observations."""
        obs = self._reset_some(resets)
        # The rows of the others are written, except for SAME_STEP's final observations.
        untouched = ~resets
        if self._mode == AutoresetMode.SAME_STEP:
            untouched &= ~self._ended
        for leaf in self._leaves:
            array = self._array(obs, leaf)
            before = out[leaf.path][untouched]
            now = array[untouched].astype(before.dtype)
            if not np.array_equal(now, before, equal_nan=array.dtype.kind == "f"):
                raise self._fault(
                    "must reset only the streams of options['reset_mask'], but observation "
                    f"{leaf.path!r} of another stream changed; make it with AutoresetMode.NEXT_STEP"
                )
            out[leaf.path][resets] = array[resets]

    def _write_final(self, infos: Any, out: ObsArrays) -> None:
        """Writes ``final_obs``, which has one object per stream, or is a batch like the
        observations."""
        final = infos.get("final_obs") if isinstance(infos, dict) else None
        if final is None:
            raise self._fault(
                "must give infos['final_obs'] at every ending, as autoreset mode SAME_STEP asks; "
                "make it with AutoresetMode.NEXT_STEP"
            )
        per_stream = isinstance(final, np.ndarray) and final.dtype == object
        for leaf in self._leaves:
            if not per_stream:
                out[leaf.path][self._ended] = self._array(final, leaf)[self._ended]
                continue
            for stream in np.nonzero(self._ended)[0]:
                out[leaf.path][stream] = self._array(final[stream], leaf, one=True)

    def _write(self, obs: Any, out: ObsArrays) -> None:
        for leaf in self._leaves:
            out[leaf.path][:] = self._array(obs, leaf)

    def _array(self, obs: Any, leaf: Leaf, *, one: bool = False) -> Array:
        """A leaf of all streams, or of `one` stream, checked; discrete values count from 0."""
        try:
            return read_leaf(obs, leaf, () if one else (self.num_streams,))
        except Unfit as error:
            raise self._fault(str(error), error) from error

    def _per_stream(self, what: str, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except STOPS:
            raise
        except BaseException as error:
            no_array = f"gave a {what} that can't be an array: {described(error)}"
            raise self._fault(no_array, error) from error
        if array.shape == (self.num_streams, 1):
            array = array[:, 0]
        if array.shape != (self.num_streams,) or array.dtype.kind not in "biuf":
            raise self._fault(
                f"must give one {what}, a number, for each of {self.num_streams} streams; gave "
                f"shape {array.shape}, dtype {array.dtype}"
            )
        return array

    def _flags(self, what: str, value: Any) -> Mask:
        array = self._per_stream(what, value)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise self._fault(f"must give {what} as true or false; gave {array}")
        return array.astype(np.bool_)

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            with forks.kept_out(self._id):
                return function()
        except STOPS:
            raise
        except Unfit as error:
            raise self._fault(str(error), error) from error
        except (EOFError, ConnectionError) as error:  # the pipe to a process broke
            lost = (
                f"lost a worker process in {what} ({type(error).__name__}): it ended by itself, was"
                " killed, or ran out of memory"
            )
            raise self._fault(lost, error) from error
        except BaseException as error:
            raise self._fault(raised(error, what), error) from error

    def _fault(self, what: str, cause: BaseException | None = None) -> EnvironmentFault:
        last = self._first_stream + self.num_streams - 1
        who = f"{self._id} (vector environment), streams {self._first_stream} to {last}"
        return fault_of(who, cause or Unfit(what), what)


def stated_autoreset(env: Any) -> Any:
    """The autoreset mode that a vector environment states; None: it states none."""
    metadata = getattr(env, "metadata", None) or {}
    # One dict of all classes that have none of their own; ALE's environments write into it.
    if metadata is GymVectorEnv.metadata:
        return getattr(env.unwrapped, "autoreset_mode", None)
    return metadata.get("autoreset_mode")


def _autoreset_mode(env: GymVectorEnv[Any, Any, Any], env_id: str) -> AutoresetMode:
    mode = stated_autoreset(env)
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f"{env_id}: a vector environment must say in metadata['autoreset_mode'] when it resets "
            f"itself, got {mode!r}; set it to one of {[str(known) for known in AutoresetMode]}"
        ) from None


def _refuse_partial_batches(env: GymVectorEnv[Any, Any, Any], env_id: str) -> None:
    batch = getattr(env.unwrapped, "batch_size", env.num_envs)
    if batch != env.num_envs:
        raise ConfigError(
            f"{env_id}: a vector environment must step all of its environments together; this one "
            f"has batch_size {batch} and {env.num_envs} environments; leave batch_size out"
        )
