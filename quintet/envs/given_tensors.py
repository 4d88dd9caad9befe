"""Vector environments of tensors from other libraries, as `TensorVectorEnv`.

- A vector environment with Gymnasium's ``reset`` and ``step`` that has a ``device`` (ManiSkill,
  Isaac Lab, mjlab).  Its arrays may be of any library with DLPack, as JAX and Warp; actions are
  then arrays of that library, without a copy.
- A ``VecEnv`` of rsl_rl, in any of its forms.  Its observations are a dict, or a TensorDict, of
  groups, each of which is a leaf; plain ones are the group ``policy``.  A step gives four values,
  or five with privileged observations, the group ``critic`` (legged_gym).

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

from quintet.envs.given_vector import stated_autoreset
from quintet.envs.masks import Choice, leaf_note, mask_leaves
from quintet.envs.other_apis import Unfit, require_spaces, step_parts
from quintet.envs.success import key_of
from quintet.envs.tensor import (
    GymTensors,
    Privileged,
    RslTensors,
    TensorStep,
    TensorVectorEnv,
    bare,
)
from quintet.envs.vector import EnvDescription
from quintet.errors import ConfigError
from quintet.spaces import Keys, Space, as_choices, leaf_keys, start_of, stored_spaces
from quintet.system.transfer import to_device
from quintet.types import Obs

_FINAL = ("final_obs", "final_observation")
"""Names of the last observations in info, in Gymnasium and in ManiSkill."""


def adapted(
    env: Any, env_id: str, success: str | None, masks: Choice = "auto"
) -> TensorVectorEnv | None:
    """The environment as a `TensorVectorEnv`; None if its interface is none of those that are
    known.

    success, masks: as ``env.success`` and ``env.mask_from_info``.  Raises ConfigError if its spaces
    can't be used.
    """
    if isinstance(env, TensorVectorEnv):
        return env
    if isinstance(env, RslTensors):
        return RslEnv(env, env_id, success)
    return GymEnv(env, env_id, success, masks) if isinstance(bare(env), GymTensors) else None


@final
class GymEnv:
    """A vector environment with Gymnasium's methods whose arrays stay on their device."""

    restarts, generators = True, None

    def __init__(self, env: Any, env_id: str, success: str | None, masks: Choice) -> None:
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
        else:  # the library's own class of spaces
            observation = observed(first)
            action = unbounded(tuple(action.shape))
        seen, leaves = mask_leaves(observation, action, masks)
        self.spaces = stored_spaces(seen, action, env_id)
        self._read = _reader(leaves)
        self._action = _packer(action, env_id, _library_of(first))
        self.description = EnvDescription(
            env_id, "gymnasium", success=success, one_seed=True, notes=leaf_note(leaves)
        )

    def restart(self, seed: int) -> Obs:
        return self._read(self._env.reset(seed=seed)[0])

    def step(self, action: Tensor) -> TensorStep:
        obs, reward, terminated, truncated, infos = step_parts(self._env.step(self._action(action)))
        last = next((infos[name] for name in _FINAL if name in infos), None)
        # SAME_STEP: the rest is of the next episode's reset.
        infos = infos.get("final_info", infos)
        won = _success(infos, self._key)
        flags = _flat(terminated), _flat(truncated)
        final = None if last is None else self._read(last)
        return TensorStep(self._read(obs), _flat(reward), *flags, final, won, infos)

    def close(self) -> None:
        self._env.close()


@final
class RslEnv:
    """A ``VecEnv`` of rsl_rl.  It can't be restarted, so streams continue."""

    autoreset, restarts, generators = AutoresetMode.SAME_STEP, False, None

    def __init__(self, env: Any, env_id: str, success: str | None) -> None:
        self._env, self._key = env, key_of(success)
        self.num_streams, self.device = int(env.num_envs), torch.device(env.device)
        if isinstance(env, Privileged):  # observes zeros before its first reset
            env.reset()
        observation = observed(self._now())
        self.spaces = stored_spaces(observation, unbounded((int(env.num_actions),)), env_id)
        self._read = _reader(leaf_keys(observation))
        self.description = EnvDescription(env_id, "rsl_rl", success=success, one_seed=True)

    def restart(self, seed: int) -> Obs:  # noqa: ARG002
        return self._read(self._now())

    def step(self, action: Tensor) -> TensorStep:
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            values = len(result) if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise Unfit(
                "must return four values from step (observations, rewards, dones, extras), or five "
                f"(with privileged observations in second place), but returned {values}"
            )
        obs, *others, reward, done, extras = result
        ended = _flat(done).bool()
        limit = extras.get("time_outs")
        truncated = torch.zeros_like(ended) if limit is None else ended & _flat(limit).bool()
        won = _success(extras, self._key)
        obs = self._read(_groups(obs, extras, *others))
        return TensorStep(obs, _flat(reward), ended & ~truncated, truncated, None, won, extras)

    def _now(self) -> Any:
        """The groups of observations before the next step."""
        env = self._env
        first_obs = env.get_observations()
        obs, extras = first_obs if isinstance(first_obs, tuple) else (first_obs, {})
        privileged = env.get_privileged_observations() if isinstance(env, Privileged) else None
        return _groups(obs, extras, privileged)

    def close(self) -> None:
        try:
            close = self._env.close
        except AttributeError:  # the interface does not ask for a close
            return
        close()


def _groups(obs: Any, extras: Mapping[str, Any] | None, privileged: Any = None) -> Any:
    """The groups of observations, which older versions give as a tensor, and in extras."""
    if not isinstance(obs, Tensor):
        return obs
    others = {**(extras or {}).get("observations", {})}
    if privileged is not None:
        others["critic"] = privileged
    return {**others, "policy": obs}


def _success(infos: Mapping[str, Any], key: str | None) -> Tensor | None:
    """The successes at a key of infos, if they are there."""
    return _flat(infos[key]) if key is not None and key in infos else None


def observed(obs: Any) -> Space:
    """A space of unbounded floats, or of pictures, for observations of all streams."""
    if _is_tree(obs):
        return spaces.Dict({str(name): observed(obs[name]) for name in _names(obs)})
    x = as_tensor(obs)
    if x.dtype == torch.uint8:
        return spaces.Box(0, 255, tuple(x.shape[1:]), np.uint8)
    return unbounded(tuple(x.shape[1:]), np.float64 if x.dtype == torch.float64 else np.float32)


def unbounded(shape: tuple[int, ...], dtype: type[np.floating[Any]] = np.float32) -> spaces.Box:
    """All floats of a shape."""
    return spaces.Box(-np.inf, np.inf, shape, dtype)


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


def _reader(found: Mapping[str, tuple[Keys, Space]]) -> Callable[[Any], Obs]:
    """A function from observations to leaves by path, counted from 0; see `leaf_keys`."""
    leaves = {path: (keys, _start(leaf)) for path, (keys, leaf) in found.items()}

    def read(obs: Any) -> Obs:
        return {path: _leaf(obs, *each) for path, each in leaves.items()}

    return read


def _leaf(obs: Any, keys: Keys, start: Tensor | None) -> Tensor:
    for key in keys:
        obs = obs[key]
    x = as_tensor(obs)
    return x if start is None else x - to_device(start, x.device)


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
            action = action + to_device(start, action.device)
        return action if library is None else library.from_dlpack(action)

    return packed


def _library_of(obs: Any) -> Any:
    """The module of a library that the environment computes in; None: PyTorch."""
    while _is_tree(obs) or isinstance(obs, tuple):
        obs = obs[_names(obs)[0]] if _is_tree(obs) else obs[0]
    if isinstance(obs, Tensor):
        return None
    try:
        return obs.__array_namespace__()  # the array API's standard
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
