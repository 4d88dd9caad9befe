"""EnvPool: environments in C++ threads, natively in next-step layout.

The adapter handles these properties of EnvPool 1.2:

- It subclasses Gymnasium's VectorEnv, yet its ``observation_space`` is that of one environment.
- Seeds are fixed at construction (``reset(seed=...)`` is ignored), so `restart` builds a new pool:
  about 0.5 ms for classic control, 1 ms per stream for MuJoCo and 60 ms per stream for Atari.
- It reports ``terminated = done and not truncated``, so a true end on the last allowed step arrives
  as a truncation. Where ``info["terminated"]`` exists (Atari, MuJoCo Playground) it is 1 exactly at
  the true end of the game and settles the question; elsewhere such an end stays a truncation.
- Atari's ``info["reward"]`` is the score before EnvPool's own ``reward_clip``.
- Most families can draw themselves, without saying how many steps make a second. On Linux MuJoCo
  ends the whole process if it draws without a loaded OpenGL library, or with another one than
  EnvPool uses: `envpool_library.load_opengl` loads the system's before EnvPool.
- Declared bounds can be wrong: Box2D declares ``Box(1.17e-38, 3.4e38)``, the smallest and the
  largest float, for unbounded values. Such bounds are read as infinite; bounds are never enforced.
"""

import difflib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple, final

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv as GymVectorEnv

from quintet.envs import atari, envpool_library
from quintet.envs.atari import AtariConfig
from quintet.envs.backends import Backend, Cost, Group, Identity
from quintet.envs.config import EnvConfig
from quintet.envs.envpool_library import envpool_id, families, imported, load_opengl
from quintet.envs.ids import taken_by_gymnasium
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.short_wait import SLEEPS_ARE_COUNTED, ShortWait
from quintet.envs.vector import (
    Array,
    CannotRender,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    check_seeds,
)
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    Space,
    action_remarks,
    action_shape,
    as_choices,
    leaf_keys,
    map_leaves,
    start_of,
    stored_spaces,
)
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
_NO_LIMIT = 2**31 - 1
_FRAME_SKIP_FAMILIES = frozenset(("atari", "vizdoom"))
_FRAMES_PER_S = {"atari": 60.0, "box2d": 50.0, "minigrid": 10.0, "vizdoom": 35.0}
"""Frames per second of families, before frames are skipped."""
_STEPS_PER_S = {
    **dict.fromkeys(("Acrobot",), 15.0),
    **dict.fromkeys(("Ant", "HalfCheetah", "InvertedDoublePendulum", "Pusher"), 20.0),
    **dict.fromkeys(("InvertedPendulum", "Swimmer"), 25.0),
    **dict.fromkeys(("MountainCar", "MountainCarContinuous", "Pendulum"), 30.0),
    **dict.fromkeys(("CartPole", "Reacher"), 50.0),
    **dict.fromkeys(("Humanoid", "HumanoidStandup"), 67.0),
    **dict.fromkeys(("Hopper", "Walker2d"), 125.0),
}
"""Gymnasium's steps per second of ids without their version."""


def is_pool(env: object) -> bool:
    """Whether an object is an EnvPool pool; does not import EnvPool."""
    return any(kind.__module__.startswith("envpool.") for kind in type(env).__mro__)


def settle(env: object) -> dict[str, Any] | None:
    """The options of `EnvConfig` with which pools like the given one are made; None: it is not a
    pool.

    Raises:
        ConfigError: it is a wrapper around a pool, or no synchronous pool of an id.
    """
    if is_pool(env):
        pool: Any = env
        env_id, kwargs, num_threads = describe_pool(pool)
        says = {"id": env_id, "backend": "envpool", "kwargs": kwargs, "num_streams": len(pool)}
        return says | ({"num_threads": num_threads} if num_threads else {})
    if isinstance(env, GymVectorEnv) and is_pool(env.unwrapped):
        raise ConfigError(
            f"a wrapper around EnvPool can't be given new seeds, which every restart needs; got "
            f"{env}; give the pool itself, with frame_stack and reward_clip"
        )
    return None


def describe_pool(pool: Any) -> tuple[str, dict[str, Any], int]:
    """The id, the arguments that aren't default, and the threads (0: EnvPool's choice) of a pool;
    raises ConfigError if no id of EnvPool makes such a pool, or the pool isn't synchronous.
    """
    import envpool
    from envpool.registration import registry

    settings = _settings(pool.spec)
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
            default = _settings(envpool.make_spec(env_id))
        except Exception:  # VizdoomCustom-v1 needs files of the user
            continue  # a RuntimeError, or what the package vizdoom makes of it once it is imported
        default |= _DEFAULT_KWARGS.get(family_of[env_id], {})
        ours = _OURS | _OF_MACHINE
        changed = {k: x for k, x in settings.items() if x != default.get(k) and k not in ours}
        found[env_id] = changed
    if not found:
        raise ConfigError(
            f"a pool must be one of EnvPool's ids made with env_type='gymnasium'; got "
            f"{type(pool).__name__}; give the id, with backend 'envpool' and env.kwargs"
        )
    # One task may have several names: take the plain and newest. Hopper-v3 is Hopper-v4.
    env_id = max(found, key=lambda name: (-len(found[name]), "/" not in name, name))
    return env_id, found[env_id], int(settings["num_threads"])


def _settings(spec: Any) -> dict[str, Any]:
    """The arguments of a pool's specification, those by default included."""
    return dict(zip(spec._config_keys, spec._config_values, strict=True))


@final
class EnvPoolVectorEnv:
    """A synchronous pool of `num_streams` environments, which steps from `send` to `recv`.

    infos: reads success and the episodes' own numbers.
    """

    def __init__(self, env: ResolvedEnv, group: Group) -> None:
        """Reads the spaces; the pool itself is built by `restart`.

        Raises:
            ConfigError: EnvPool refuses the arguments, or the spaces can't be used.
        """
        env_id, family, num_streams = env.name, env.family, group.num_streams
        self._id, self._family, self._drawn = env_id, family, group.drawn
        self.num_streams, self.num_threads = num_streams, env.num_threads(num_streams)
        self.infos = env.info_reader(num_streams)
        self._kwargs = {**_DEFAULT_KWARGS.get(family, {}), **env.config.arguments}
        spec = _make_spec(env_id, self._kwargs)
        settings = _settings(spec)
        atari.require_one_stack(env.config, int(settings.get("stack_num", 1)))
        if settings.get("max_num_players", 1) != 1:
            raise ConfigError(
                f"environments must have one agent; {env_id} has up to "
                f"{settings['max_num_players']} players; choose a single-agent environment"
            )
        with _quiet_spaces():
            declared = _with_infinite_bounds(spec.gymnasium_observation_space)
            action = spec.gymnasium_action_space
        found = leaf_keys(declared).items()
        self._keys = {path: (keys, start_of(leaf)) for path, (keys, leaf) in found}
        self._action_start = start_of(as_choices(action))
        self._action_shape = (num_streams, *action_shape(action))
        self._own_action_shape = (num_streams, *(action.shape or ()))
        self.spaces = stored_spaces(declared, action, env_id)
        repeat = int(settings.get("frame_skip", 1)) if family in _FRAME_SKIP_FAMILIES else 1
        self.description = EnvDescription(
            env_id,
            "envpool",
            repeat,
            env.config.success,
            max_steps=_known_limit(settings),
            remarks=action_remarks(action),
        )
        self._pool: Any = None
        self._in_flight = False
        self._ended = np.zeros(num_streams, np.bool_)
        brief = family in _CHEAP_FAMILIES and self.num_threads < usable_cores()
        self._wait = ShortWait() if brief and SLEEPS_ARE_COUNTED else None

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Builds a new pool with the given seeds; raises ConfigError if EnvPool refuses them."""
        checked = check_seeds(seeds, self.num_streams)
        self.close()  # the old threads end before the new ones begin
        try:
            self._pool = imported().make(
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
        if self.infos is not None:
            self.infos.clear()
        with _quiet_spaces():
            self._arrays = _PoolArrays(self._pool)
        self._places = [
            (path, reduce(lambda tree, key: tree[key], keys, self._arrays.at.obs), start)
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
        except Exception as error:  # raised by its C++ code
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
        if self.infos is not None:
            values = {name: arrays[place] for name, place in info.items()}
            self.infos.step(values, out.valid, self._ended, out)

    def render(self, stream: int) -> Rendered:
        if not self._drawn:
            raise CannotRender("the pool was made without rendering")
        assert self._pool is not None, "restart before render"
        if self._family == "mujoco" and load_opengl():
            raise CannotRender(load_opengl())
        name = self._id.rpartition("/")[2].rpartition("-v")[0]
        frames = _FRAMES_PER_S.get(self._family)
        rate = None if frames is None else frames / self.description.action_repeat
        return Rendered(self._pool.render(env_ids=stream)[0], _STEPS_PER_S.get(name, rate))

    def close(self) -> None:
        """Ends the pool's threads after their current step."""
        if self._pool is not None:
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
                    f"{self._id} (envpool): observation {path!r} must have the declared shape "
                    f"{into.shape}, got {value.shape}; correct env.kwargs, or the backend"
                )
            np.copyto(into, value if start is None else value - start, casting="same_kind")


class _Places(NamedTuple):
    """Positions of the arrays in a step's result; entries of `info` that are one array, by name."""

    obs: Any
    reward: int
    done: int
    truncated: int
    info: Mapping[str, int]


@final
class _PoolArrays:
    """The steps of a synchronous pool as the arrays that its C++ takes and gives.

    EnvPool's own ``send`` and ``recv`` look up its options, name every array and build a tree of
    them in each step, which takes about as long as the C++ step of a cheap environment.
    """

    def __init__(self, pool: Any):
        self._send, self._recv, self._reset = pool._send, pool._recv, pool._reset
        self._action_dtype = pool.spec._action_spec[-1][0]
        self._ids = np.arange(len(pool), dtype=np.int32)
        # The numbers of the environments, and of their agents, stand before the action.
        self._id_columns: list[Array] = [self._ids] * (len(pool.spec._action_keys) - 1)
        keys = list(pool._state_keys)
        # EnvPool's own conversion says where each is, given numbers in place of arrays.
        obs, reward, _, truncated, info = pool._to(list(range(len(keys))), False, True)
        plain = {name: place for name, place in info.items() if isinstance(place, int)}
        self.at = _Places(obs, reward, keys.index("done"), truncated, plain)

    def reset(self) -> list[Array]:
        self._reset(self._ids)
        return self.recv()

    def send(self, action: Array) -> None:
        """Begins a step; the action is copied."""
        self._send([*self._id_columns, action.astype(self._action_dtype, order="C")])

    def recv(self) -> list[Array]:
        """Waits for the step; returns newly allocated arrays, see `at`."""
        arrays: list[Array] = self._recv()
        return arrays


def _make_spec(env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """EnvPool's own description of an environment, after a check of the arguments."""
    envpool = envpool_library.imported()

    if reserved := sorted(_OURS & kwargs.keys()):
        raise ConfigError(
            f"{env_id}: env.kwargs must leave {reserved} to quintet; remove them and use "
            "num_streams, num_threads and seed of the run"
        )
    try:
        plain = envpool.make_spec(env_id)
    except Exception as error:
        raise _refused(env_id, {}, error) from error
    known = sorted({*plain._config_keys, *_RENDER_KWARGS} - _OURS)
    if unknown := sorted(set(kwargs) - set(known)):
        near = {name: difflib.get_close_matches(name, known, n=3, cutoff=0.5) for name in unknown}
        hints = "".join(f"{name!r}: did you mean {v}?; " for name, v in near.items() if v)
        twin, names = taken_by_gymnasium(env_id, unknown)
        if names:
            other = f" --env {twin}" if twin != env_id else ""
            use = f"use --env.backend gymnasium{other}; "
            hints = f"Gymnasium's {twin} takes {names}; {use}"
        raise ConfigError(
            f"{env_id} (envpool): unknown env.kwargs {unknown}; {hints}known are {known}"
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


def _known_limit(settings: Mapping[str, Any]) -> int | None:
    """The time limit in steps; the largest 32-bit number stands for none."""
    limit = int(settings.get("max_episode_steps", 0))
    return limit if 0 < limit < _NO_LIMIT else None


def _with_infinite_bounds(space: Space) -> Space:
    """Reads the smallest positive and the largest float, used as bounds, as infinities."""

    def corrected(_: str, leaf: Space) -> Space:
        if not isinstance(leaf, spaces.Box) or np.dtype(leaf.dtype).kind != "f":
            return leaf
        limits = np.finfo(leaf.dtype)
        none = np.isin(leaf.low, (limits.tiny, limits.min))
        low = np.where(none, -np.inf, leaf.low).astype(leaf.dtype)
        high = np.where(leaf.high == limits.max, np.inf, leaf.high).astype(leaf.dtype)
        return spaces.Box(low, high, dtype=leaf.dtype)

    return map_leaves(space, corrected)


def _cost(family: str) -> Cost:
    if family in _CHEAP_FAMILIES:
        return "cheap"
    return "pictures" if family in _FRAME_SKIP_FAMILIES else "simulator"


def _identify(config: EnvConfig) -> Identity:
    """EnvPool's name and family; for Atari the game's options, which are checked."""
    name = envpool_id(config.id)
    assert name is not None
    family = families()[name]
    if family != atari.FAMILY:
        return Identity(name, family)
    known = AtariConfig.model_fields  # EnvPool checks the others
    ours = {key: value for key, value in config.arguments.items() if key in known}
    return Identity(name, family, atari.read_config(config.id, ours))


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


BACKEND = Backend(
    title="EnvPool",
    limits_steps=True,
    make=EnvPoolVectorEnv,
    ids=lambda: families(),
    knows=lambda env_id: envpool_id(env_id) is not None,
    identify=_identify,
    hint=_hint,
    install=envpool_library.INSTALL_LINE,
    is_installed=lambda: envpool_library.is_installed(),
    cost=_cost,
    warnings=_warnings,
    settle=settle,
    tells_spaces=True,
    packages={"envpool": "envpool"},
)
