"""EnvPool: environments in C++ threads, natively in next-step layout.

The adapter handles these properties of EnvPool 1.2:

- It subclasses Gymnasium's VectorEnv, yet its ``observation_space`` is that of one environment.
- Seeds are fixed at construction (``reset(seed=...)`` is ignored), so `restart` builds a new pool.
  That costs about 0.5 ms for classic control, 1 ms per stream for MuJoCo and 60 ms per stream for
  Atari.
- A synchronous pool (batch_size = num_envs) gives its rows in the order of its environments.
- It reports ``terminated = done and not truncated``, so a true end on the last allowed step arrives
  as a truncation. Where ``info["terminated"]`` exists (Atari, MuJoCo Playground) it is 1 exactly at
  the true end of the game, never at a lost life, and settles the question; elsewhere such an end
  stays a truncation.
- Atari's ``info["reward"]`` is the score before EnvPool's own ``reward_clip``.
- Most families can draw themselves, without saying how many steps make a second. On Linux MuJoCo
  ends the whole process if it draws without a loaded OpenGL library, or with another one than
  EnvPool uses. EnvPool brings its own, under a name that MuJoCo doesn't know, but uses the system's
  if that is loaded before EnvPool: `envpool_library.load_opengl` does so.
- Declared bounds can be wrong: Box2D declares ``Box(1.17e-38, 3.4e38)``, the smallest and the
  largest float, for unbounded values. Such bounds are read as infinite; bounds are never enforced.
"""

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv as ForeignVectorEnv

from quintet.envs import atari, envpool_library
from quintet.envs.atari import AtariConfig
from quintet.envs.backends import Backend, Group, Identity
from quintet.envs.config import EnvConfig
from quintet.envs.envpool_arrays import PoolArrays
from quintet.envs.envpool_library import envpool_id, families, load_opengl
from quintet.envs.pools import Cost, num_groups, num_threads
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.short_wait import SLEEPS_ARE_COUNTED, ShortWait
from quintet.envs.success import key_of, rule_of, write_success
from quintet.envs.vector import (
    Array,
    CannotRender,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    check_seeds,
)
from quintet.envs.versions import taken_by_gymnasium
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import Space, action_remarks, action_shape, leaf_keys, map_leaves, stored_spaces
from quintet.system.cpus import usable_cores
from quintet.system.user_code import raised, traced

_OURS = frozenset(
    (
        "num_envs",
        "batch_size",
        "num_threads",
        "seed",
        "env_seed",
        "env_type",
        "gym_reset_return_info",
    )
)
_OF_MACHINE = frozenset(("base_path", "thread_affinity_offset"))
_RENDER_KWARGS = ("from_pixels", "render_width", "render_height", "render_camera_id")
_CHEAP_FAMILIES = frozenset(
    ("box2d", "classic_control", "jumanji", "highway", "minigrid", "pgx", "toy_text")
)
_DEFAULT_KWARGS: dict[str, dict[str, Any]] = {"vizdoom": {"use_combined_action": True}}
"""Options of families in place of EnvPool's own: one discrete action for buttons pressed together,
where EnvPool takes the strength of each button, without an upper bound.
"""
_FRAME_SKIP_FAMILIES = frozenset(("atari", "vizdoom"))
_FRAMES_PER_S = {"atari": 60.0, "box2d": 50.0, "minigrid": 10.0, "vizdoom": 35.0}
"""Frames per second of families, before frames are skipped."""
_STEPS_PER_S = {
    name: rate
    for rate, names in (
        (15.0, "Acrobot"),
        (20.0, "Ant HalfCheetah InvertedDoublePendulum Pusher"),
        (25.0, "InvertedPendulum Swimmer"),
        (30.0, "MountainCar MountainCarContinuous Pendulum"),
        (50.0, "CartPole Reacher"),
        (67.0, "Humanoid HumanoidStandup"),
        (125.0, "Hopper Walker2d"),
    )
    for name in names.split()
}
"""Gymnasium's steps per second of ids without their version."""


def is_pool(env: object) -> bool:
    """Whether an object is an EnvPool pool; does not import EnvPool."""
    return any(kind.__module__.startswith("envpool.") for kind in type(env).__mro__)


def settle(env: object) -> dict[str, Any] | None:
    """The options of `EnvConfig` by which pools like a given one are made; None: it is no pool.  A
    pool is only read: seeds are fixed when a pool is made.

    Raises:
        ConfigError: it is a wrapper around a pool, or no pool of an id.
    """
    if is_pool(env):
        pool: Any = env
        env_id, kwargs, num_threads = describe_pool(pool)
        says = {"id": env_id, "backend": "envpool", "kwargs": kwargs, "num_streams": pool.num_envs}
        return says | ({"num_threads": num_threads} if num_threads else {})
    if isinstance(env, ForeignVectorEnv) and is_pool(env.unwrapped):
        raise ConfigError(
            f"a wrapper around EnvPool can't be given new seeds, which every restart needs; "
            f"got {env}; give the pool itself, and a frame stack or clipped rewards by "
            f"frame_stack and reward_clip"
        )
    return None


def describe_pool(pool: Any) -> tuple[str, dict[str, Any], int]:
    """The id, the arguments that aren't default, and the threads (0: EnvPool's choice) of a pool;
    raises ConfigError if no id of EnvPool makes such a pool, or the pool isn't synchronous.
    """
    import envpool
    from envpool.registration import registry

    settings = dict(zip(pool.spec._config_keys, pool.spec._config_values, strict=True))
    if settings["batch_size"] not in (0, settings["num_envs"]):
        raise ConfigError(
            f"a pool must step all of its environments together; got batch_size "
            f"{settings['batch_size']} and num_envs {settings['num_envs']}; leave batch_size out"
        )
    family_of = families()
    found: dict[str, dict[str, Any]] = {}
    for env_id, (_, _, registered) in registry.specs.items():
        if registry.envpools[env_id].get("gymnasium", ("", ""))[1] != type(pool).__name__ or any(
            settings.get(key) != value for key, value in registered.items() if key == "task"
        ):
            continue
        try:
            spec = envpool.make_spec(env_id)
        except Exception:  # of VizdoomCustom-v1, which needs files of the user
            continue  # a RuntimeError, or what the package vizdoom makes of it once it is imported
        default = dict(zip(spec._config_keys, spec._config_values, strict=True))
        default |= _DEFAULT_KWARGS.get(family_of[env_id], {})
        kwargs = {
            key: value
            for key, value in settings.items()
            if value != default.get(key) and key not in _OURS | _OF_MACHINE
        }
        found[env_id] = kwargs
    if not found:
        raise ConfigError(
            f"a pool must be one of EnvPool's ids made with env_type='gymnasium'; got "
            f"{type(pool).__name__}; give the id, with backend 'envpool' and env.kwargs"
        )
    fewest = min(len(kwargs) for kwargs in found.values())
    # Of several names of one task take the plain and newest: Hopper-v3 is Hopper-v4.
    names = [name for name, kwargs in found.items() if len(kwargs) == fewest]
    env_id = max(names, key=lambda name: ("/" not in name, name))
    return env_id, found[env_id], int(settings["num_threads"])


@final
class EnvPoolVectorEnv:
    """A synchronous EnvPool pool of `num_streams` environments.

    `send` begins a step in the pool's threads, and `recv` waits for it.
    """

    def __init__(
        self,
        env_id: str,
        num_streams: int,
        *,
        kwargs: Mapping[str, Any] | None = None,
        num_threads: int = 1,
        drawn: bool = False,
        success_key: str | None = None,
    ) -> None:
        """Reads the spaces; the pool itself is built by `restart`.

        Args:
            drawn: whether it can `render`.
            success_key: of info, true where an episode was won; None: nothing is read.

        Raises:
            ConfigError: EnvPool refuses the arguments, or the spaces can't be used.
        """
        family = families()[env_id]
        self._id = env_id
        self._family = family
        self._drawn = drawn
        self.num_streams = num_streams
        self._kwargs = {**_DEFAULT_KWARGS.get(family, {}), **(kwargs or {})}
        self.num_threads = num_threads
        spec = _make_spec(env_id, self._kwargs)
        settings = dict(zip(spec._config_keys, spec._config_values, strict=True))
        if settings.get("max_num_players", 1) != 1:
            raise ConfigError(
                f"environments must have one agent; {env_id} has up to "
                f"{settings['max_num_players']} players; choose a single-agent environment"
            )
        with _quiet_spaces():
            given = _with_infinite_bounds(spec.gymnasium_observation_space)
            action = spec.gymnasium_action_space
        self._keys = {path: (keys, _start(leaf)) for path, (keys, leaf) in leaf_keys(given).items()}
        self._action_start = _start(action)
        self._action_shape = (num_streams, *action_shape(action))
        self._own_action_shape = (num_streams, *(action.shape or ()))
        self.spaces = stored_spaces(given, action, env_id)
        repeat = int(settings.get("frame_skip", 1)) if family in _FRAME_SKIP_FAMILIES else 1
        self.description = EnvDescription(
            env_id,
            "envpool",
            repeat,
            rule_of(success_key),
            max_steps=int(settings.get("max_episode_steps", 0)) or None,
            remarks=action_remarks(action),
        )
        self._success_key = success_key
        self.stacked_frames = int(settings.get("stack_num", 1))
        self._pool: Any = None
        self._in_flight = False
        self._ended = np.zeros(num_streams, np.bool_)
        brief = family in _CHEAP_FAMILIES and self.num_threads < usable_cores()
        self._wait = ShortWait() if brief and SLEEPS_ARE_COUNTED else None

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Builds a new pool with the given seeds and writes its first observations; raises
        ConfigError if a seed is wrong or EnvPool refuses the arguments.
        """
        import envpool

        checked = check_seeds(seeds, self.num_streams)
        self.close()  # the old threads end before the new ones begin
        try:
            self._pool = envpool.make(
                self._id,
                env_type="gymnasium",
                num_envs=self.num_streams,
                num_threads=self.num_threads,
                seed=checked,
                **({"render_mode": "rgb_array"} if self._drawn else {}),
                **self._kwargs,
            )
        except MemoryError:
            raise
        except Exception as error:
            raise _refused(self._id, self._kwargs, error) from error
        self._ended[:] = False
        with _quiet_spaces():
            self._arrays = PoolArrays(self._pool)
        self._places = [
            (path, _at(self._arrays.at.obs, keys), start)
            for path, (keys, start) in self._keys.items()
        ]
        self._write_obs(self._arrays.reset(), out)

    def send(self, action: Array) -> None:
        assert self._pool is not None, "restart before the first send"
        assert not self._in_flight, "recv before the next send"
        assert action.shape == self._action_shape, (action.shape, self._action_shape)
        action = action.reshape(self._own_action_shape)
        self._arrays.send(action if self._action_start is None else action + self._action_start)
        self._in_flight = True
        if self._wait:
            self._wait.begin()

    def recv(self, out: StepRow) -> None:
        assert self._in_flight, "send before recv"
        self._in_flight = False
        if self._wait:
            self._wait.stay_awake()
        try:
            arrays = self._arrays.recv()
        except Exception as error:  # of its C++ code
            fault = EnvironmentFault(
                f"{self._id} (envpool), a group of {self.num_streams} streams: the pool "
                f"{raised(error)}; choose backend 'gymnasium', or another environment"
            )
            raise traced(fault, error) from error
        if self._wait:
            self._wait.collected()
        self._write_obs(arrays, out.obs)
        at, info = self._arrays.at, self._arrays.at.info
        truncated = arrays[at.truncated]
        out.reward[:] = arrays[at.reward]
        out.raw_reward[:] = arrays[info.get("reward", at.reward)]
        np.greater(arrays[at.done], truncated, out=out.terminated)  # done and not truncated
        if "terminated" in info:
            true_end = truncated & (arrays[info["terminated"]] != 0)
            np.logical_or(out.terminated, true_end, out=out.terminated)
        np.logical_and(truncated, ~out.terminated, out=out.truncated)
        np.logical_not(self._ended, out=out.valid)
        np.logical_or(out.terminated, out.truncated, out=self._ended)
        if self._success_key is not None and self._ended.any():
            who = f"{self._id} (envpool)"
            told = {name: arrays[place] for name, place in info.items()}
            write_success(out.success, self._ended, told, self._success_key, who)

    def render(self, stream: int) -> Rendered:
        if not self._drawn:
            raise CannotRender("the pool was not made to be drawn")
        assert self._pool is not None, "restart before render"
        if self._family == "mujoco" and load_opengl():
            raise CannotRender(load_opengl())
        name = self._id.rpartition("/")[2].rpartition("-v")[0]
        rate = _FRAMES_PER_S.get(self._family)
        if rate is not None:
            rate /= self.description.action_repeat
        picture = self._pool.render(env_ids=stream)[0]
        return Rendered(picture, _STEPS_PER_S.get(name, rate))

    def close(self) -> None:
        """Ends the pool's threads after their current step."""
        if self._pool is None:
            return
        if self._in_flight:
            self._arrays.recv()
            self._in_flight = False
        self._pool.close()
        self._pool = None

    def _write_obs(self, arrays: Sequence[Array], out: ObsArrays) -> None:
        for path, place, start in self._places:
            value, into = arrays[place], out[path]
            if value.shape != into.shape:  # else numpy would broadcast it silently
                raise EnvironmentFault(
                    f"{self._id} (envpool): observation {path!r} of {self.num_streams} streams "
                    f"must have the declared shape {into.shape}; got {value.shape}; correct the "
                    f"environment's arguments, or choose backend 'gymnasium'"
                )
            np.copyto(into, value if start is None else value - start, casting="same_kind")


def _at(tree: Any, keys: Sequence[str | int]) -> int:
    """The leaf of a nested dict of places."""
    for key in keys:
        tree = tree[key]
    place: int = tree
    return place


def _make_spec(env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """EnvPool's own description of an environment, after a check of the arguments."""
    load_opengl()
    import envpool

    reserved = sorted(_OURS & kwargs.keys())
    if reserved:
        raise ConfigError(
            f"{env_id}: env.kwargs must leave {reserved} to quintet; remove them and use "
            f"num_streams, num_threads and seed of the run"
        )
    try:
        plain = envpool.make_spec(env_id)
    except Exception as error:
        raise _refused(env_id, {}, error) from error
    known = sorted({*plain._config_keys, *_RENDER_KWARGS} - _OURS)
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        near = {name: difflib.get_close_matches(name, known, n=3, cutoff=0.5) for name in unknown}
        hints = "; ".join(f"{k!r}: did you mean {v}?" for k, v in near.items() if v)
        twin, theirs = taken_by_gymnasium(env_id, unknown)
        if theirs:
            hints = f"Gymnasium's {twin} takes {theirs}; use --env.backend gymnasium" + (
                f" --env {twin}" if twin != env_id else ""
            )
        raise ConfigError(
            f"{env_id} (envpool): unknown env.kwargs {unknown}; {hints + '; ' if hints else ''}"
            f"known are {known}"
        )
    try:
        return envpool.make_spec(env_id, **kwargs) if kwargs else plain
    except Exception as error:
        raise _refused(env_id, kwargs, error) from error


def _refused(env_id: str, kwargs: Mapping[str, Any], error: Exception) -> ConfigError:
    fault = ConfigError(
        f"EnvPool must be able to make {env_id}; with env.kwargs {dict(kwargs)} it answered "
        f"{type(error).__name__}: {error}; correct env.kwargs, or choose backend 'gymnasium'"
    )
    return traced(fault, error)


@contextmanager
def _quiet_spaces() -> Iterator[None]:
    """Hides Gymnasium's warnings about the precision of bounds that EnvPool declares."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield


def _start(space: Space) -> Any:
    """A space's start, subtracted from observed values and added to actions; None if it is 0."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        return space.start
    return None


def _with_infinite_bounds(space: Space) -> Space:
    """Reads the smallest positive and the largest float, used as bounds, as infinities."""

    def corrected(_: str, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or np.dtype(leaf.dtype).kind != "f":
            return leaf
        limits = np.finfo(leaf.dtype)
        unbounded_below = (leaf.low == limits.tiny) | (leaf.low == limits.min)
        low = np.where(unbounded_below, -np.inf, leaf.low).astype(leaf.dtype)
        high = np.where(leaf.high == limits.max, np.inf, leaf.high).astype(leaf.dtype)
        return spaces.Box(low, high, dtype=leaf.dtype)

    return map_leaves(space, corrected)


def _cost(family: str) -> Cost:
    if family in _CHEAP_FAMILIES:
        return "cheap"
    return "pictures" if family in _FRAME_SKIP_FAMILIES else "simulator"


def _identify(config: EnvConfig) -> Identity:
    name = envpool_id(config.id)
    assert name is not None
    family = families()[name]
    if family != atari.FAMILY:
        return Identity(name, family)
    known = AtariConfig.model_fields  # EnvPool checks the others
    ours = {key: value for key, value in config.kwargs.items() if key in known}
    return Identity(name, family, atari.read_config(config.id, ours))


def _make(env: ResolvedEnv, group: Group) -> EnvPoolVectorEnv:
    config, threads = env.config, env.num_threads(group.num_streams)
    pool = EnvPoolVectorEnv(
        env.name, group.num_streams, kwargs=config.kwargs, num_threads=threads, drawn=group.drawn,
        success_key=key_of(config.success),
    )  # fmt: skip
    atari.require_one_stack(config, pool.stacked_frames)
    return pool


def _warnings(env: ResolvedEnv) -> list[str]:
    if env.family != "vizdoom" or env.config.kwargs.get("frame_skip") == 1:
        return []
    return [
        f"EnvPool's {env.name} gives no reward for the frames of an episode's last action; "
        "take ViZDoom's own package, or --env.kwargs '{\"frame_skip\": 1}' "
        "(docs/environments.md, ViZDoom)"
    ]


def _hint(_: str) -> str:
    if envpool_library.is_installed():
        return ""
    return f"EnvPool, not installed, has 1600 more: {envpool_library.INSTALL_LINE}"


def _bare_step(env_id: str, num_envs: int, cores: int) -> Callable[[], object]:
    """A step of a pool with as many threads as cores."""
    load_opengl()
    import envpool

    pool = envpool.make_gymnasium(env_id, num_envs=num_envs, num_threads=cores)
    actions = np.array([pool.action_space.sample() for _ in range(num_envs)])
    if actions.dtype.kind == "i":
        actions = actions.astype(np.int32)
    pool.reset()
    return lambda: pool.step(actions)


BACKEND = Backend(
    title="EnvPool",
    make=_make,
    ids=lambda: families(),
    knows=lambda env_id: envpool_id(env_id) is not None,
    identify=_identify,
    hint=_hint,
    package="EnvPool",
    install=envpool_library.INSTALL_LINE,
    is_installed=lambda: envpool_library.is_installed(),
    num_groups=lambda family: num_groups(_cost(family)),
    num_threads=lambda family, streams, groups: num_threads(_cost(family), streams, groups),
    warnings=_warnings,
    owns=is_pool,
    settle=settle,
    tells_spaces=True,
    packages={"envpool": "envpool"},
    bare_step=_bare_step,
)
