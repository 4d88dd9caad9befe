"""Checks and converts observations passed to `Policy.act`."""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from quintet.envs.gymnasium import Leaf
from quintet.envs.masks import ADDED, NAMES
from quintet.errors import QuintetError
from quintet.types import ACTION_MASK


def leaf_array(value: Any, leaf: Leaf) -> NDArray[Any]:
    """`value`, of any shape, copied to the leaf's dtype, with discrete values counted from 0;
    raises QuintetError if the leaf can't hold its numbers.
    """

    def refuse(got: str, cause: Exception | None = None) -> NoReturn:
        raise QuintetError(
            f"observation leaf {leaf.path!r} must be of {leaf.dtype} in {leaf.space}, got {got}"
        ) from cause

    try:
        given = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
        if given.dtype.kind == "U" and leaf.dtype == np.uint8 and len(leaf.shape) == 1:
            from quintet.envs.fixed_shape import text_bytes

            rows = [text_bytes(text, leaf.shape[0]) for text in given.ravel()]
            given = np.array(rows).reshape(*given.shape, *leaf.shape)
    except (TypeError, ValueError, RuntimeError) as error:
        refuse(f"something that can't be an array ({error})", error)
    if leaf.dtype.kind == "f":
        if given.dtype.kind not in "biuf":
            refuse(f"dtype {given.dtype}")
        array = given.astype(leaf.dtype, order="C")
        if not np.isfinite(array).all():
            refuse("numbers that are not finite in this dtype")
        return array
    if given.dtype.kind not in "biu":  # fractions would be cut off
        refuse(f"dtype {given.dtype}; convert it, and scale pictures as the environment does")
    start = 0 if leaf.start is None else leaf.start
    if leaf.size is not None:
        low, high = start, start + leaf.size
    elif given.dtype == leaf.dtype:
        return given.astype(leaf.dtype, order="C")
    elif leaf.dtype.kind == "b":
        low, high = 0, 2
    else:
        low, high = np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max + 1
    if given.shape[given.ndim - len(leaf.shape) :] != leaf.shape:
        return given.astype(leaf.dtype, order="C")  # refused by its shape
    if not ((given >= low) & (given < high)).all():
        refuse(f"values from {given.min()} to {given.max()}")
    array = given.astype(leaf.dtype, order="C")
    return array if leaf.start is None else (array - start).astype(leaf.dtype, copy=False)


def flat_observation(obs: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of an observation by path; a plain one is the leaf ``"obs"``."""
    if isinstance(obs, tuple):
        obs = dict(enumerate(obs))
    if not isinstance(obs, Mapping):
        return {prefix or "obs": obs}
    flat: dict[str, Any] = {}
    for key, value in obs.items():
        flat |= flat_observation(value, f"{prefix}/{key}" if prefix else str(key))
    return flat


def with_mask(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of an observation whose mask may have the place and the form that its environment
    gives it, see `quintet.envs.masks`, with the mask as ``action_mask``.
    """
    found = dict(flat)
    if ACTION_MASK not in found:
        places = [path for path in found if path.rpartition("/")[2] in NAMES]
        if len(places) == 1:
            found[ACTION_MASK] = found.pop(places[0])
    mask = found.get(ACTION_MASK)
    array = np.asarray(mask.detach().cpu() if isinstance(mask, torch.Tensor) else mask)
    if array.dtype.kind == "f":
        # Numbers that are added to logits allow all actions only if all are 0.
        added = bool((array <= ADDED).any()) or not array.any()
        if ((array == 0) | (array <= ADDED if added else array == 1)).all():
            found[ACTION_MASK] = (array == (0 if added else 1)).astype(np.int8)
    return found
