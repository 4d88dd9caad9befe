"""Descriptions of spaces as JSON, for files, and their comparison."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from quintet.errors import ConfigError, QuintetError
from quintet.spaces import MOST_NUMBERS, Space, require_keys
from quintet.types import Spaces


def _bound(values: np.ndarray[Any, Any]) -> Any:
    """One number if all are equal, else a flat list in C order; infinities as JSON strings."""
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
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            n = space.n if isinstance(space.n, int) else list(space.n)
            return {"kind": "multi_binary", "n": n}
        case spaces.Dict():
            items: list[Any] = [[key, to_json(child)] for key, child in space.spaces.items()]
            return {"kind": "dict", "items": items}
        case spaces.Tuple():
            return {"kind": "tuple", "items": [to_json(child) for child in space.spaces]}
    raise QuintetError(
        "a space must be Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got "
        f"{space}; wrap the environment so that it has one of these"
    )


def for_networks(data: Any) -> Any:
    """A description reduced to what a network depends on: without bounds of boxes (uint8 pictures
    keep the upper bound, which scales them), and with float64 written as float32."""
    if isinstance(data, dict):
        shape = data.get("shape")  # a stranger may have written the file
        picture = data.get("dtype") == "uint8" and isinstance(shape, list) and len(shape) > 1
        kept = {k: for_networks(data[k]) for k in data if k != "low" and (picture or k != "high")}
        return kept | ({"dtype": "float32"} if kept.get("dtype") == "float64" else {})
    return [for_networks(each) for each in data] if isinstance(data, list) else data


def other_spaces(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Spaces described by `to_json` (``observation_space``, ``action_space``) that differ for a
    network, both forms of each, by "observation space" and "action space".  Names and order of
    leaves matter; bounds of observations, but for the scale of pictures, and float64 don't."""
    differ = {}
    for name in ("observation_space", "action_space"):
        a, b = mine[name], theirs[name]
        compared = (a, b) if name == "action_space" else (for_networks(a), for_networks(b))
        if compared[0] != compared[1]:
            differ[name.replace("_", " ")] = (_or_fault(a), _or_fault(b))
    return differ


def _or_fault(data: Any) -> Any:
    """The space of a description, or what is wrong with the description."""
    try:
        return from_json(data)
    except ValueError as fault:
        return f"none ({fault})"


def as_json(of: Spaces) -> dict[str, Any]:
    """The spaces in a description, by its names."""
    return {"observation_space": to_json(of.observation), "action_space": to_json(of.action)}


def require_same(
    mine: Mapping[str, Any], theirs: Spaces, who: str, env_id: str, way_out: str
) -> None:
    """Raises ConfigError if an environment's spaces differ from those described by `mine`.

    who: owner of `mine` in the message; way_out: the cure.
    """
    for what, (own, given) in other_spaces(mine, as_json(theirs)).items():
        raise ConfigError(f"{who}'s {what} is {own}, but {env_id} has {given}; {way_out}")


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array of a `_bound`; integers are not converted to floats, which would be rounded."""
    values = [float(x) if isinstance(x, str) else x for x in np.ravel(np.array(bound, object))]
    return np.broadcast_to(np.array(values, dtype), (math.prod(shape),)).reshape(shape).copy()


def from_json(data: Any) -> Space:
    """The space that `to_json` described; raises ValueError if it is not a space or too large."""
    try:
        space = _from_json(data)
        require_keys(space)
        return space
    except (KeyError, TypeError, OverflowError, AssertionError, AttributeError) as fault:
        raise ValueError(
            f"a file must describe a space, got {str(data)[:100]} ({type(fault).__name__}: {fault})"
        ) from fault
    except ConfigError as fault:
        raise ValueError(str(fault)) from fault


def _from_json(data: Any) -> Space:
    """The space that `to_json` described; raises ValueError for an unknown kind."""
    match data["kind"]:
        case "box":
            shape, dtype = _stored_shape(data["shape"]), _stored_dtype(data["dtype"])
            low, high = (_array(data[key], shape, dtype) for key in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "discrete":
            return spaces.Discrete(_integer(data["n"]), start=_integer(data["start"]))
        case "multi_discrete":
            dtype, start = _stored_dtype(data["dtype"]), data["start"]
            return spaces.MultiDiscrete(data["nvec"], dtype=dtype.type, start=start)
        case "multi_binary":
            n = data["n"]
            shape = _stored_shape(n if isinstance(n, list) else [n])
            return spaces.MultiBinary(shape if isinstance(n, list) else shape[0])
        case "dict":
            # ordered as the network's inputs are
            return spaces.Dict(OrderedDict((k, _from_json(child)) for k, child in data["items"]))
        case "tuple":
            return spaces.Tuple([_from_json(child) for child in data["items"]])
    raise ValueError(f"the kind of a space must be known, got {str(data['kind'])[:50]!r}")


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"a space must have whole numbers of 64 bits, got {str(value)[:50]}")
    return value


def _stored_shape(given: Any) -> tuple[int, ...]:
    shape = tuple(_integer(size) for size in given)
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"a space has at most {MOST_NUMBERS:,} numbers, got {str(shape)[:50]}")
    return shape


def _stored_dtype(given: Any) -> np.dtype[Any]:
    if not isinstance(given, str) or np.dtype(given).kind not in "biuf":
        raise ValueError(f"a space must have a dtype of numbers, got {str(given)[:50]!r}")
    return np.dtype(given)
