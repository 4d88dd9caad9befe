"""Texts and sequences in observations, as arrays of a fixed shape."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from quintet.spaces import Space, map_leaves

MAX_ITEMS = 32
"""Room in a sequence where nobody says more."""


def is_fixed(space: Space) -> bool:
    """Whether no leaf of an observation space is a Text or a Sequence."""
    fixed = True

    def look(_: str, leaf: Space) -> Space:
        nonlocal fixed
        fixed = fixed and not isinstance(leaf, spaces.Text | spaces.Sequence)
        return leaf

    map_leaves(space, look)
    return fixed


def text_bytes(text: str, size: int) -> NDArray[np.uint8]:
    """UTF-8 in `size` bytes, with zeros behind its end; raises ValueError if it is longer."""
    code = text.encode()
    if len(code) > size:
        raise ValueError(f"a text of at most {size} bytes is required, got {len(code)}: {text!r}")
    return np.frombuffer(code.ljust(size, b"\0"), np.uint8)


@final
class FixedShape(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives texts and sequences of observations as arrays of a fixed shape.

    A Text becomes uint8 ``[N]``, with room for its longest text.  A Sequence becomes a Dict of its
    ``items``, each leaf ``[max_items, ...]`` with zeros behind the last item, and their ``count``.
    Discrete values in a sequence count from 1, so that 0 means that there is no item.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_items: int = MAX_ITEMS) -> None:
        """
        Args:
            env: single environment.
            max_items: room in each sequence, >= 1; a longer one is a ValueError of the step.
        """
        super().__init__(env)
        if max_items < 1:
            raise ValueError(f"max_items must be >= 1; got {max_items}")
        self._given, self._room = env.observation_space, max_items
        self.observation_space = _fixed(self._given, max_items)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return _encoded(self._given, obs, self._room), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return (_encoded(self._given, obs, self._room), *rest)


def _fixed(space: Space, room: int) -> Space:
    def leaf(_: str, given: Space) -> Space:
        if isinstance(given, spaces.Text):
            return spaces.Box(0, 255, (_size(given),), np.uint8)
        if isinstance(given, spaces.Sequence):
            feature = _fixed(given.feature_space, room)
            items = map_leaves(feature, lambda _, each: _repeated(each, room))
            return spaces.Dict(OrderedDict(items=items, count=spaces.Discrete(room + 1)))
        return given

    return map_leaves(space, leaf)


def _repeated(leaf: Space, room: int) -> Space:
    """The space of `room` values of a leaf, or of none, in rows."""
    if isinstance(leaf, spaces.Box):
        low, high = np.minimum(leaf.low, 0), np.maximum(leaf.high, 0)
        rows: Any = [np.repeat(bound[None], room, 0) for bound in (low, high)]
        return spaces.Box(*rows, dtype=leaf.dtype)
    if isinstance(leaf, spaces.Discrete):
        return spaces.MultiDiscrete(np.full(room, leaf.n + 1))
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.repeat(leaf.nvec[None] + 1, room, 0))
    if isinstance(leaf, spaces.MultiBinary):
        return spaces.MultiBinary([room, *leaf.shape])
    return leaf  # refused by its own name


def _size(space: spaces.Text) -> int:
    return space.max_length * max((len(each.encode()) for each in space.characters), default=1)


def _encoded(space: Space, obs: Any, room: int) -> Any:
    """The observation in fixed shapes; what is not as declared stays as it is."""
    if isinstance(space, spaces.Text) and isinstance(obs, str):
        return text_bytes(obs, _size(space))
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        children = space.spaces
        return {k: _encoded(children[k], x, room) if k in children else x for k, x in obs.items()}
    if isinstance(space, spaces.Sequence):
        return _encoded_items(space, obs, room)
    if isinstance(space, spaces.Tuple) and isinstance(obs, tuple):
        return tuple(_encoded(child, x, room) for child, x in zip(space.spaces, obs, strict=False))
    return obs


def _encoded_items(space: spaces.Sequence, obs: Any, room: int) -> dict[str, Any]:
    try:
        items = list(iterate(space.stacked_feature_space, obs) if space.stack else obs)
    except TypeError as error:
        raise ValueError(f"a sequence of {space.feature_space} is required, got {obs!r}") from error
    if len(items) > room:
        raise ValueError(
            f"a sequence of at most {room} items is required, got {len(items)}; for more room make "
            "the environment as quintet.envs.fixed_shape.FixedShape(env, max_items=...)"
        )
    feature = space.feature_space
    rows = [_encoded(feature, item, room) for item in items]
    return {"items": _in_rows(_fixed(feature, room), rows, room), "count": len(items)}


def _in_rows(space: Space, rows: list[Any], room: int) -> Any:
    """Encoded items, leaf by leaf in arrays of `room` rows."""
    if isinstance(space, spaces.Dict):
        return {k: _in_rows(x, [row[k] for row in rows], room) for k, x in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
        return tuple(_in_rows(x, [row[i] for row in rows], room) for i, x in children)
    out = np.zeros((room, *(space.shape or ())), space.dtype)
    for index, row in enumerate(rows):
        value = np.asarray(row)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            fits = space.contains(value.astype(space.dtype))
            value = value - space.start + 1
        else:  # bounds are not forced on observations
            fits = value.shape == space.shape and np.can_cast(value.dtype, out.dtype, "same_kind")
        if not fits:
            raise ValueError(f"an item of {space} is required in a sequence, got {row!r}")
        out[index] = value
    return out
