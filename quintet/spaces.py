"""Observation and action spaces: their leaves, the dtypes these have in memory, and JSON for
policies.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from quintet.errors import QuintetError
from quintet.types import TensorSpec

Space = spaces.Space[Any]


def observation_leaves(space: Space) -> dict[str, Space]:
    """Leaves of an observation space by path.

    A space that is neither Dict nor Tuple is the one leaf ``"obs"``; else the path joins the keys
    of nested Dicts and the positions in Tuples with ``"/"``.
    """
    if isinstance(space, spaces.Dict):
        children = {str(key): child for key, child in space.spaces.items()}
    elif isinstance(space, spaces.Tuple):
        children = {str(index): child for index, child in enumerate(space.spaces)}
    else:
        return {"obs": space}
    leaves: dict[str, Space] = {}
    for key, child in children.items():
        for path, leaf in observation_leaves(child).items():
            nested = isinstance(child, spaces.Dict | spaces.Tuple)
            leaves[f"{key}/{path}" if nested else key] = leaf
    return leaves


def leaf_dtype(space: Space) -> np.dtype[Any]:
    """dtype that a leaf has in memory: its own, but float32 for float64."""
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def leaf_spec(space: Space) -> TensorSpec:
    """Shape and torch dtype of a leaf."""
    dtype = torch.from_numpy(np.empty(0, leaf_dtype(space))).dtype
    return TensorSpec(tuple(space.shape or ()), dtype)


def _bound(values: np.ndarray[Any, Any]) -> Any:
    """One number where all are equal, else nested lists; infinities as JSON strings."""
    flat = values.ravel()
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0].item())
    return [_number(x) for x in flat.tolist()]


def _number(x: float) -> float | str:
    return x if np.isfinite(x) else str(x)


def to_json(space: Space) -> dict[str, Any]:
    """A JSON-able description from which `from_json` makes an equal space."""
    match space:
        case spaces.Box():
            return {
                "kind": "box",
                "shape": list(space.shape),
                "dtype": str(space.dtype),
                "low": _bound(space.low),
                "high": _bound(space.high),
            }
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "kind": "multi_discrete",
                "nvec": np.asarray(space.nvec).tolist(),
                "start": np.asarray(space.start).tolist(),
            }
        case spaces.MultiBinary():
            return {"kind": "multi_binary", "shape": list(space.shape)}
        case spaces.Dict():
            return {
                "kind": "dict",
                "items": [[key, to_json(child)] for key, child in space.spaces.items()],
            }
        case spaces.Tuple():
            return {"kind": "tuple", "items": [to_json(child) for child in space.spaces]}
    raise QuintetError(
        "a space of Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple is required, got "
        f"{space}; wrap the environment so that it has one of these"
    )


def from_json(data: dict[str, Any]) -> Space:
    """The space that `to_json` described."""
    match data["kind"]:
        case "box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            low, high = (
                np.broadcast_to(
                    np.asarray(data[key], np.float64).reshape(-1), (int(np.prod(shape)),)
                )
                if not isinstance(data[key], list)
                else np.asarray([float(x) for x in data[key]])
                for key in ("low", "high")
            )
            return spaces.Box(
                low.reshape(shape).astype(dtype),
                high.reshape(shape).astype(dtype),
                dtype=dtype.type,
            )
        case "discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "multi_discrete":
            return spaces.MultiDiscrete(data["nvec"], start=data["start"])
        case "multi_binary":
            return spaces.MultiBinary(data["shape"])
        case "dict":
            return spaces.Dict({key: from_json(child) for key, child in data["items"]})
        case "tuple":
            return spaces.Tuple([from_json(child) for child in data["items"]])
    raise QuintetError(f"a known kind of space is required, got {data['kind']!r}")
