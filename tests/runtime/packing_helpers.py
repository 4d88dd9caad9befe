"""Actions of a space as the packed arrays in which they travel."""

from typing import Any

import numpy as np
from gymnasium import spaces

from quintet.spaces import Space, action_spec, as_choices


def pack_action(space: Space, action: Any) -> np.ndarray[Any, Any]:
    """The inverse of `unpack_action`: ``[*n, *action_spec(space).shape]`` from actions of `space`,
    each leaf ``[*n, *leaf.shape]``.
    """
    spec = action_spec(space)
    dtype = np.float32 if spec.dtype.is_floating_point else np.int64
    flat = np.concatenate(_packed_leaves(space, action), -1).astype(dtype)
    return flat if spec.shape else flat[..., 0]


def _packed_leaves(space: Space, action: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(space, spaces.Dict):
        items = [(child, action[key]) for key, child in space.spaces.items()]
        return [x for child, value in items for x in _packed_leaves(child, value)]
    if isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, action, strict=True)
        return [x for child, value in pairs for x in _packed_leaves(child, value)]
    values = np.asarray(action)
    choices = as_choices(space)
    if isinstance(choices, spaces.Discrete | spaces.MultiDiscrete):
        values = values - np.reshape(choices.start, space.shape or ())
    return [values.reshape(*values.shape[: values.ndim - len(space.shape or ())], -1)]
