"""Texts in observations, as rows of bytes."""

from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.spaces import Space, map_leaves


def has_text(space: Space) -> bool:
    """Whether a leaf of an observation space is a Text."""
    found = False

    def look(_: str, leaf: Space) -> Space:
        nonlocal found
        found = found or isinstance(leaf, spaces.Text)
        return leaf

    map_leaves(space, look)
    return found


def text_bytes(text: str, size: int) -> NDArray[np.uint8]:
    """UTF-8 in `size` bytes, with zeros behind its end; raises ValueError if it is longer."""
    code = text.encode()
    if len(code) > size:
        raise ValueError(f"a text of at most {size} bytes is required, got {len(code)}: {text!r}")
    return np.frombuffer(code.ljust(size, b"\0"), np.uint8)


@final
class TextAsBytes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives every Text of the observation as uint8 ``[N]``, with room for its longest text."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._given = env.observation_space
        self.observation_space = map_leaves(
            self._given,
            lambda _, leaf: (
                spaces.Box(0, 255, (_size(leaf),), np.uint8)
                if isinstance(leaf, spaces.Text)
                else leaf
            ),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return _encoded(self._given, obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return (_encoded(self._given, obs), *rest)


def _size(space: spaces.Text) -> int:
    return space.max_length * max((len(each.encode()) for each in space.characters), default=1)


def _encoded(space: Space, obs: Any) -> Any:
    """The observation with bytes for its texts; what is not as declared stays as it is."""
    if isinstance(space, spaces.Text) and isinstance(obs, str):
        return text_bytes(obs, _size(space))
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        children = space.spaces
        return {k: _encoded(children[k], x) if k in children else x for k, x in obs.items()}
    if isinstance(space, spaces.Tuple) and isinstance(obs, tuple):
        return tuple(_encoded(child, x) for child, x in zip(space.spaces, obs, strict=False))
    return obs
