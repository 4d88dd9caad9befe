"""Texts and sequences in observations, as arrays of a fixed shape."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from quintet.spaces import Space, is_text, map_leaves

MAX_ITEMS, MAX_BYTES = 32, 512
"""Default room in a sequence, and in a text whose space has no length (MiniGrid's missions)."""


def text_bytes(text: str, size: int) -> NDArray[np.uint8]:
    """A text in UTF-8 in `size` bytes, padded with zeros; raises ValueError if it is longer."""
    code = text.encode()
    if len(code) > size:
        raise ValueError(f"a text must have at most {size} bytes, got {len(code)}: {text!r}")
    return np.frombuffer(code.ljust(size, b"\0"), np.uint8)


@final
class FixedShape(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turns strings and sequences of observations into arrays of a fixed shape.

    A text becomes uint8 ``[N]``, with room for the longest of its space.  A Sequence becomes a Dict
    of its ``items``, each leaf ``[max_items, ...]`` with zeros after the last item, and their
    ``count``.  Discrete values in a sequence count from 1; 0 means no item.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES
    ) -> None:
        """
        Args:
            env: single environment.
            max_items: room in each sequence, >= 1; a longer sequence is a ValueError in the step.
            max_bytes: room in each text whose space is not a `Text`, >= 1; likewise.
        """
        super().__init__(env)
        if max_items < 1 or max_bytes < 1:
            raise ValueError(
                f"max_items and max_bytes must be at least 1; got max_items={max_items!r}, "
                f"max_bytes={max_bytes!r}"
            )
        self.observation_space, self._encoded = _fixed(env.observation_space, max_items, max_bytes)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        # Some environments take no options.
        arguments = {} if options is None else {"options": options}
        result: Any = self.env.reset(seed=seed, **arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # told as what it is by who asked
        return self._encoded(result[0]), result[1]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        return (self._encoded(result[0]), *result[1:])


class _Fixed(NamedTuple):
    """A space in fixed shapes, and the function that converts its observations; it returns an
    observation unchanged that is not as declared.
    """

    space: Space
    encoded: Callable[[Any], Any]


def _fixed(space: Space, max_items: int, max_bytes: int) -> _Fixed:
    """A space's form of fixed shape: texts as bytes, sequences with a count."""
    if is_text(space):
        size = max_bytes
        if isinstance(space, spaces.Text):
            size = space.max_length * max((len(x.encode()) for x in space.characters), default=1)
        return _Fixed(
            spaces.Box(0, 255, (size,), np.uint8),
            lambda obs: text_bytes(obs, size) if isinstance(obs, str) else obs,
        )
    if isinstance(space, spaces.Sequence):
        return _fixed_sequence(space, _fixed(space.feature_space, max_items, max_bytes), max_items)
    if isinstance(space, spaces.Dict):
        named = OrderedDict(
            (k, _fixed(child, max_items, max_bytes)) for k, child in space.spaces.items()
        )

        def of_dict(obs: Any) -> Any:
            if not isinstance(obs, Mapping):
                return obs
            return {k: named[k].encoded(x) if k in named else x for k, x in obs.items()}

        return _Fixed(spaces.Dict(OrderedDict((k, x.space) for k, x in named.items())), of_dict)
    if isinstance(space, spaces.Tuple):
        parts = [_fixed(child, max_items, max_bytes) for child in space.spaces]

        def of_tuple(obs: Any) -> Any:
            if not isinstance(obs, tuple) or len(obs) != len(parts):
                return obs
            return tuple(part.encoded(x) for part, x in zip(parts, obs, strict=True))

        return _Fixed(spaces.Tuple([part.space for part in parts]), of_tuple)
    return _Fixed(space, lambda obs: obs)


def _fixed_sequence(space: spaces.Sequence, feature: _Fixed, room: int) -> _Fixed:
    """The form of a sequence: `room` items, filled up with zeros, and their count."""
    items = map_leaves(feature.space, lambda _, leaf: _repeated(leaf, room))

    def encoded(obs: Any) -> Any:
        try:
            found = list(iterate(space.stacked_feature_space, obs) if space.stack else obs)
        except TypeError as error:
            wrong = f"an observation must be a sequence of {space.feature_space}, got {obs!r}"
            raise ValueError(wrong) from error
        if len(found) > room:
            raise ValueError(
                f"a sequence must have at most {room} items, got {len(found)}; for more "
                "room make the environment as quintet.envs.fixed_shape.FixedShape(env, "
                "max_items=...)"
            )
        rows = [feature.encoded(item) for item in found]
        return {"items": _in_rows(feature.space, rows, room), "count": len(found)}

    both = spaces.Dict(OrderedDict(items=items, count=spaces.Discrete(room + 1)))
    return _Fixed(both, encoded)


def _repeated(leaf: Space, room: int) -> Space:
    """The space of `room` rows with values of a leaf."""
    if isinstance(leaf, spaces.Box):
        low, high = np.minimum(leaf.low, 0), np.maximum(leaf.high, 0)
        rows: Any = [np.repeat(bound[None], room, 0) for bound in (low, high)]
        return spaces.Box(*rows, dtype=leaf.dtype)
    if isinstance(leaf, spaces.Discrete):
        return spaces.MultiDiscrete(np.full(room, int(leaf.n) + 1))
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.repeat(leaf.nvec[None].astype(np.int64) + 1, room, 0))
    if isinstance(leaf, spaces.MultiBinary):
        return spaces.MultiBinary([room, *leaf.shape])
    return leaf  # refused by its own name


def _in_rows(space: Space, rows: list[Any], room: int) -> Any:
    """Encoded items, leaf by leaf in arrays of `room` rows."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space)
        try:
            found = {k: _in_rows(child, [row[k] for row in rows], room) for k, child in children}
        except (KeyError, IndexError, TypeError) as error:
            wrong = f"items of a sequence must be of {space}, got {rows!r}"
            raise ValueError(wrong) from error
        return found if isinstance(space, spaces.Dict) else tuple(found.values())
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    out = np.zeros((room, *(space.shape or ())), np.int64 if discrete else space.dtype)
    for index, row in enumerate(rows):
        value = np.asarray(row)
        fits = value.shape == out.shape[1:] and np.can_cast(value.dtype, out.dtype, "same_kind")
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            fits = fits and space.contains(value.astype(space.dtype))
            value = value - space.start + 1 if fits else value
        elif isinstance(space, spaces.MultiBinary):
            fits = fits and bool(((value == 0) | (value == 1)).all())
        if not fits:  # bounds of a Box are not forced on observations
            raise ValueError(f"an item of a sequence must be of {space}, got {row!r}")
        out[index] = value
    return out
