"""Action masks that an environment gives in ``info``."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.errors import ConfigError
from quintet.spaces import mask_sizes, observation_leaves, space_parts
from quintet.types import ACTION_MASK


@final
class MaskFromInfo(gymnasium.Wrapper[dict[str, Any], Any, Any, Any]):
    """Makes ``info["action_mask"]`` the observation leaf ``action_mask``.

    The observation becomes a Dict of the former observation, or of its parts, and of the mask.  The
    mask must be in info at every reset and step, except where an episode ends.

    Raises:
        ConfigError: no action can be masked, or the observation holds a mask already.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        self._size = sum(mask_sizes(env.action_space))
        if self._size == 0:
            raise ConfigError(
                f"{env_id}: env.mask_from_info requires Discrete or MultiDiscrete actions, the "
                f"action space is {env.action_space}; leave it out"
            )
        if ACTION_MASK in observation_leaves(env.observation_space):
            raise ConfigError(
                f"{env_id}: env.mask_from_info requires an observation without {ACTION_MASK!r}, "
                "this one has it and it is used; leave the option out"
            )
        self.observation_space = spaces.Dict(
            OrderedDict(
                **space_parts(env.observation_space),
                **{ACTION_MASK: spaces.MultiBinary(self._size)},
            )
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return {**_parts(obs), ACTION_MASK: self._mask(info, over=False)}, info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        mask = self._mask(info, over=terminated or truncated)
        return {**_parts(obs), ACTION_MASK: mask}, reward, terminated, truncated, info

    def _mask(self, info: Mapping[str, Any] | None, over: bool) -> NDArray[np.int8]:
        info = {} if info is None else info
        if ACTION_MASK not in info and over:
            return np.zeros(self._size, np.int8)
        if ACTION_MASK not in info:
            raise ValueError(
                f"env.mask_from_info requires info[{ACTION_MASK!r}], info has {sorted(info)}; "
                "leave the option out"
            )
        mask = np.asarray(info[ACTION_MASK])
        if mask.shape != (self._size,) or mask.dtype.kind not in "biuf":
            raise ValueError(
                f"info[{ACTION_MASK!r}] must be an array of {self._size} numbers, one per action, "
                f"got shape {mask.shape}, dtype {mask.dtype}"
            )
        if not np.isfinite(mask).all():  # NaN is not 0, so it would allow an action
            raise ValueError(f"info[{ACTION_MASK!r}] must be of finite numbers, got {mask}")
        allowed: NDArray[np.int8] = (mask != 0).astype(np.int8)
        return allowed


def _parts(observation: Any) -> dict[str, Any]:
    """An observation's uppermost parts by the names that `space_parts` gives."""
    if isinstance(observation, Mapping):
        return dict(observation)
    if isinstance(observation, tuple):
        return {str(index): part for index, part in enumerate(observation)}
    return {"obs": observation}
