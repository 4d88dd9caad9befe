"""Vector environments of tensors from other libraries, as `TensorVectorEnv`.

- A vector environment with Gymnasium's ``reset`` and ``step`` that has a ``device`` (ManiSkill,
  Isaac Lab, mjlab).  Its arrays may be of any library with DLPack, as JAX and Warp; actions are
  then arrays of that library, without a copy.
- A ``VecEnv`` of rsl_rl, in either of its forms.  Its observations are a dict, or a TensorDict, of
  groups, each of which is a leaf.

Streams are reset within the step that ends their episode unless ``metadata["autoreset_mode"]`` says
otherwise.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final, runtime_checkable

import gymnasium
import numpy as np
import torch
import torch.utils.dlpack
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from quintet.envs.adapted import stated_autoreset
from quintet.envs.other_apis import Unfit, require_spaces, step_parts
from quintet.envs.success import key_of
from quintet.envs.tensor import GymTensors, RslTensors, TensorStep, TensorVectorEnv, bare
from quintet.envs.vector import EnvDescription
from quintet.errors import ConfigError
from quintet.spaces import Keys, Space, as_choices, leaf_keys, start_of, stored_spaces
from quintet.system.transfer import sent
from quintet.types import Obs

_FINAL = ("final_obs", "final_observation")
"""Names of the last observations in info, in Gymnasium and in ManiSkill."""


def adapted(env: Any, env_id: str, success: str | None) -> TensorVectorEnv | None:
    """The environment as a `TensorVectorEnv`; None if its interface is none of those that are
    known.

    success: as ``env.success``.  Raises ConfigError if its spaces can't be used.
    """
    if isinstance(env, TensorVectorEnv):
        return env
    if isinstance(env, RslTensors):
        return RslEnv(env, env_id)
    return GymEnv(env, env_id, success) if isinstance(bare(env), GymTensors) else None


@final
class GymEnv:
    """A vector environment with Gymnasium's methods whose arrays stay on their device."""

    restarts, generators = True, None

    def __init__(self, env: Any, env_id: str, success: str | None) -> None:
        self._env, inner = env, bare(env)
        self.num_streams, self.device = int(inner.num_envs), torch.device(inner.device)
        self.autoreset = _autoreset(env, env_id)
        self._key = key_of(success)
        first, _ = env.reset(seed=0)
        # A wrapper's own come first, since it may scale actions or change observations.
        wraps = isinstance(getattr(env, "single_action_space", None), gymnasium.Space)
        outer = env if wraps else inner
        action = outer.single_action_space
        if isinstance(action, gymnasium.Space):
            require_spaces(outer, env_id, "single_")
            observation = outer.single_observation_space
        else:  # of a class of its own
            observation = observed(first)
            action = unbounded(tuple(action.shape))
        self.spaces = stored_spaces(observation, action, env_id)
        self._read = _reader(observation)
        self._action = _packer(action, env_id, _library_of(first))
        self.description = EnvDescription(env_id, "gymnasium", success=success, one_seed=True)

    def restart(self, seed: int) -> Obs:
        return self._read(self._env.reset(seed=seed)[0])

    def step(self, action: Tensor) -> TensorStep:
        obs, reward, terminated, truncated, infos = step_parts(self._env.step(self._action(action)))
        last = next((infos[name] for name in _FINAL if name in infos), None)
        won = None
        if self._key is not None:  # SAME_STEP: the rest is of the next episode's reset
            found = infos.get("final_info", infos)
            won = as_tensor(found[self._key]) if self._key in found else None
        flags = _flat(terminated), _flat(truncated)
        final = None if last is None else self._read(last)
        return TensorStep(self._read(obs), _flat(reward), *flags, final, won)

    def close(self) -> None:
        self._env.close()


@final
class RslEnv:
    """A ``VecEnv`` of rsl_rl.  It can't be restarted, so streams continue."""

    autoreset, restarts, generators = AutoresetMode.SAME_STEP, False, None

    def __init__(self, env: Any, env_id: str) -> None:
        self._env = env
        self.num_streams, self.device = int(env.num_envs), torch.device(env.device)
        observation = observed(_groups(env.get_observations()))
        self.spaces = stored_spaces(observation, unbounded((int(env.num_actions),)), env_id)
        self._read = _reader(observation)
        self.description = EnvDescription(env_id, "rsl_rl", one_seed=True)

    def restart(self, seed: int) -> Obs:  # noqa: ARG002
        return self._read(_groups(self._env.get_observations()))

    def step(self, action: Tensor) -> TensorStep:
        result = self._env.step(action)
        if len(result) == 5:  # observations, and privileged ones
            obs, privileged, reward, done, extras = result
            obs = {"policy": obs} | ({} if privileged is None else {"critic": privileged})
        else:
            obs, reward, done, extras = result
            obs = _groups((obs, extras))
        ended = _flat(done).bool()
        limit = extras.get("time_outs")
        truncated = torch.zeros_like(ended) if limit is None else ended & _flat(limit).bool()
        return TensorStep(self._read(obs), _flat(reward), ended & ~truncated, truncated)

    def close(self) -> None:
        try:
            close = self._env.close
        except AttributeError:  # which is no part of its interface
            return
        close()


def _groups(given: Any) -> Any:
    """The groups of observations, which older versions give as (tensor, extras)."""
    if not isinstance(given, tuple):
        return given
    obs, extras = given
    if not isinstance(obs, Tensor):
        return obs
    others = (extras or {}).get("observations", {})
    return {"policy": obs} | {name: x for name, x in others.items() if name != "policy"}


def observed(obs: Any) -> Space:
    """A space of unbounded floats, or of pictures, for observations of all streams."""
    if _is_tree(obs):
        return spaces.Dict({str(name): observed(obs[name]) for name in _names(obs)})
    x = as_tensor(obs)
    if x.dtype == torch.uint8:
        return spaces.Box(0, 255, tuple(x.shape[1:]), np.uint8)
    return unbounded(tuple(x.shape[1:]))


def unbounded(shape: tuple[int, ...]) -> spaces.Box:
    """All floats of a shape."""
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _names(obs: Any) -> list[Any]:
    return list(obs.keys())


def _is_tree(obs: Any) -> bool:
    """Whether observations are a dict, or a TensorDict, which is no Mapping."""
    return isinstance(obs, Mapping) or type(obs).__name__ == "TensorDict"


@runtime_checkable
class _WithDLPack(Protocol):
    def __dlpack__(self) -> Any: ...


def as_tensor(x: Any) -> Tensor:
    """An array of any library as a tensor, without a copy where it is on a device of PyTorch's."""
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, _WithDLPack):
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        raise Unfit(f"must give tensors, or arrays with DLPack, gave a {kind}")
    return torch.utils.dlpack.from_dlpack(x)


def _flat(x: Any) -> Tensor:
    """One number per stream, ``[B]``, also from ``[B, 1]``."""
    found = as_tensor(x)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def _reader(space: Space) -> Callable[[Any], Obs]:
    """A function from observations of the space to leaves by path, counted from 0."""
    leaves = {path: (keys, _start(leaf)) for path, (keys, leaf) in leaf_keys(space).items()}

    def read(obs: Any) -> Obs:
        return {path: _leaf(obs, *found) for path, found in leaves.items()}

    return read


def _leaf(obs: Any, keys: Keys, start: Tensor | None) -> Tensor:
    for key in keys:
        obs = obs[key]
    x = as_tensor(obs)
    return x if start is None else x - sent(start, x.device)


def _start(leaf: Space) -> Tensor | None:
    """The number from which values of a leaf count; None: 0."""
    start = start_of(leaf)
    return None if start is None else torch.as_tensor(start)


def _packer(space: Space, env_id: str, library: Any) -> Callable[[Tensor], Any]:
    """A function from packed actions to actions of the space, as arrays of a library."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        raise ConfigError(
            f"{env_id}: environments of tensors must have one kind of actions, got {space}; wrap "
            "it so that they are one Box, Discrete or MultiDiscrete"
        )
    start, shape = _start(as_choices(space)), tuple(space.shape or ())

    def packed(action: Tensor) -> Any:
        action = action.view(-1, *shape)
        if start is not None:
            action = action + sent(start, action.device)
        return action if library is None else library.from_dlpack(action)

    return packed


def _library_of(obs: Any) -> Any:
    """The module of a library that the environment computes in; None: PyTorch."""
    while _is_tree(obs) or isinstance(obs, tuple):
        obs = obs[_names(obs)[0]] if _is_tree(obs) else obs[0]
    if isinstance(obs, Tensor):
        return None
    try:
        return obs.__array_namespace__()  # of the array API's standard
    except AttributeError:
        return sys.modules[type(obs).__module__.partition(".")[0]]


def _autoreset(env: Any, env_id: str) -> AutoresetMode:
    """The moment at which the environment resets itself."""
    mode = stated_autoreset(env)
    mode = AutoresetMode.SAME_STEP if mode is None else mode
    try:
        mode = AutoresetMode(mode)
    except ValueError:
        mode = AutoresetMode.DISABLED
    if mode == AutoresetMode.DISABLED:
        raise ConfigError(
            f"{env_id}: a vector environment of tensors must reset itself, got "
            f"metadata['autoreset_mode'] {mode}: make it with AutoresetMode.NEXT_STEP or SAME_STEP"
        )
    return mode
