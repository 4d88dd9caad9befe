"""Observation and action spaces: their leaves, dtypes in memory, packed actions, and JSON."""

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from quintet.bounds import MOST_UNITS
from quintet.errors import ConfigError, QuintetError
from quintet.types import ACTION_MASK, Spaces, TensorSpec

Space = spaces.Space[Any]
Keys = tuple[str | int, ...]

MOST_NUMBERS = 10**8
"""Most numbers in a leaf of an observation."""

_NO_BOUND = 1e15
"""Magnitude from which a bound means no bound."""

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def observation_leaves(space: Space) -> dict[str, Space]:
    """Leaves of an observation space by path, in the order of the space.

    A plain space is the single leaf ``"obs"``; Dicts give ``"a"`` and ``"a/b"``, Tuples ``"0"`` and
    ``"1"``.

    Raises:
        ConfigError: a leaf has no fixed shape (Text, Sequence, Graph, OneOf) or too many numbers, a
            key can't be stored, or two paths collide.
    """
    return {path: leaf for path, (_, leaf) in leaf_keys(space).items()}


def leaf_keys(space: Space) -> dict[str, tuple[Keys, Space]]:
    """Like `observation_leaves`, with the keys that lead to each leaf of an observation."""
    _require_keys(space)
    found: dict[str, tuple[Keys, Space]] = {}
    for keys, leaf in walk_leaves(space):
        path = "/".join(str(key) for key in keys) or "obs"
        if not isinstance(leaf, _LEAVES):
            raise ConfigError(
                f"observation leaf {path!r} must be a Box, Discrete, MultiDiscrete or MultiBinary "
                f"space; got {leaf}; {_instead_of(leaf)}"
            )
        if math.prod(leaf.shape or ()) > MOST_NUMBERS:
            raise ConfigError(
                f"observation leaf {path!r} must have at most {MOST_NUMBERS:,} numbers, got shape "
                f"{leaf.shape}; wrap the environment so that it gives smaller ones"
            )
        if path in found:
            raise ConfigError(
                f"observation leaves must have different paths, got {path!r} twice: rename a key"
            )
        found[path] = (keys, leaf)
    if not found:
        raise ConfigError(f"the observation must have a part, got {space}: give it one, as a 0")
    return found


def walk_leaves(space: Space, keys: Keys = ()) -> Iterator[tuple[Keys, Space]]:
    """Leaves of any kind with the keys that lead to them, in the order of the space."""
    children = _children(space)
    if children is None:
        yield keys, space
    for key, child in children or ():
        yield from walk_leaves(child, (*keys, key))


def _children(space: Space) -> Iterable[tuple[Any, Space]] | None:
    """The parts of a Dict or Tuple by their keys; None for a leaf."""
    if isinstance(space, spaces.Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else None


def _require_keys(space: Space) -> None:
    """Refuses keys of Dict spaces that JSON would change."""
    for key, child in _children(space) or ():
        text = isinstance(key, str) and key != "" and str(key) == key and key.isprintable()
        whole = isinstance(key, int) and not isinstance(key, bool) and str(key) == str(int(key))
        if not text and not whole:
            raise ConfigError(
                "the keys of a Dict space must be texts (printable, not empty) or whole numbers, "
                f"got {key!r} of type {type(key).__name__} in {_brief(space)}; rename it"
            )
        _require_keys(child)


def _brief(space: Space) -> str:
    """A space for a message, shortened if it is long."""
    text = str(space)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_text(space: Space) -> bool:
    """Whether the values of a space are strings."""
    return space.dtype is not None and space.dtype.kind == "U"


def _instead_of(leaf: Space) -> str:
    """Advice on a leaf without a fixed shape."""
    if is_text(leaf) or isinstance(leaf, spaces.Sequence):
        return (
            "give what makes its single environments, whose texts and sequences become arrays of a "
            "fixed shape; wrap an environment of several agents so that it gives such arrays"
        )
    return "wrap the environment so that it gives arrays of a fixed shape"


def space_parts(space: Space) -> dict[str, Space]:
    """The uppermost parts of an observation space by name; a plain space is the part ``"obs"``."""
    children = _children(space)
    return {"obs": space} if children is None else {str(key): child for key, child in children}


def leaf_dtype(space: Space) -> np.dtype[Any]:
    """Dtype of a leaf's values in memory: int64 for Discrete, others unchanged."""
    if isinstance(space, spaces.Discrete):
        return np.dtype(np.int64)
    assert space.dtype is not None
    return np.dtype(space.dtype)


def float64_leaves(space: Space) -> frozenset[str]:
    """Paths of the float64 leaves, without an action mask."""
    leaves = observation_leaves(space).items()
    return frozenset(path for path, x in leaves if x.dtype == np.float64 and path != ACTION_MASK)


def in_float64(of: Spaces) -> Spaces:
    """The same spaces, with float64 leaves of observations stored in float64."""
    own = (of.own or of).observation
    kept = float64_leaves(own)
    whole = map_leaves(own, lambda path, leaf: _stored_leaf(leaf, float64=path in kept))
    return of._replace(observation=whole)


def map_leaves(space: Space, function: Callable[[str, Space], Space]) -> Space:
    """The same tree of spaces with every leaf replaced by ``function(path, leaf)``."""

    def walk(node: Space, path: str) -> Space:
        children = _children(node)
        if children is None:
            return function(path or "obs", node)
        # in order: gymnasium sorts plain dicts
        mapped = OrderedDict((k, walk(v, f"{path}/{k}" if path else f"{k}")) for k, v in children)
        return (
            spaces.Dict(mapped) if isinstance(node, spaces.Dict) else spaces.Tuple(mapped.values())
        )

    return walk(space, "")


def stored_spaces(observation: Space, action: Space, env_id: str) -> Spaces:
    """The spaces of an environment that declares these; raises ConfigError for unsupported ones."""
    own = Spaces(observation, action)
    return Spaces(stored_space(observation), action_space_of(action, env_id), own)


def with_observation(of: Spaces, change: Callable[[Spaces], Space]) -> Spaces:
    """The same, with `change` applied to the stored and to the environment's own observation
    space."""
    own = None if of.own is None else with_observation(of.own, change)
    return Spaces(change(of), of.action, own)


def stored_space(space: Space) -> Space:
    """The space in the learner's form: float64 boxes as float32 (but see `in_float64`), discrete
    values counted from 0.

    Adapters of environments subtract ``start`` from observations and add it to actions.
    """
    leaf_keys(space)  # refuses what has no fixed shape
    return map_leaves(space, lambda _, leaf: _stored_leaf(leaf))


def _stored_leaf(leaf: Space, *, float64: bool = False) -> Space:
    """float64: whether float64 leaves stay float64."""
    dtype = leaf_dtype(leaf)
    if dtype == np.float64 and not float64:
        dtype = np.dtype(np.float32)
    if isinstance(leaf, spaces.Discrete):
        return spaces.Discrete(int(leaf.n))
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(leaf.nvec.copy(), dtype=dtype)
    none = unmeant(leaf)
    if isinstance(leaf, spaces.Box) and (leaf.dtype != dtype or none.any()):
        with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite
            low, high = leaf.low.astype(dtype), leaf.high.astype(dtype)
        low[none[0]], high[none[1]] = -np.inf, np.inf
        return spaces.Box(low, high, dtype=dtype)
    return leaf


def unmeant(leaf: Space) -> np.ndarray[Any, Any]:
    """A mask ``[2, *shape]`` of low and high of a float Box: finite bounds that mean no bound, as
    the largest number of a dtype.
    """
    if not isinstance(leaf, spaces.Box) or np.dtype(leaf.dtype).kind != "f":
        return np.zeros((2, *(leaf.shape or ())), np.bool_)
    size = np.abs(np.array([leaf.low, leaf.high], np.float64))
    none: np.ndarray[Any, Any] = (size >= _NO_BOUND) | (size == float(np.finfo(np.float16).max))
    none &= np.isfinite(size)
    none[0] &= leaf.low < 0
    none[1] &= leaf.high > 0
    return none


def action_space_of(space: Space, env_id: str) -> Space:
    """The stored action space; raises ConfigError if it is not supported, or leaves no choice."""
    leaves = action_leaves(space)
    _require_keys(space)
    unknown = [leaf for leaf in leaves if not isinstance(leaf, _LEAVES)]
    if unknown or not leaves or any(0 in (leaf.shape or ()) for leaf in leaves):
        raise ConfigError(
            f"{env_id}: the action space must be Box, Discrete, MultiDiscrete or MultiBinary, or a "
            f"Tuple or Dict of these, with a number in each; got {space}; wrap the environment "
            "so that it has one"
        )
    numbers = action_shape(space) or (1,)
    if max(numbers[0], sum(mask_sizes(space))) > MOST_UNITS:
        raise ConfigError(
            f"{env_id}: the action space must have at most {MOST_UNITS:,} numbers and choices, got "
            f"{_brief(space)}; wrap the environment so that it has fewer"
        )
    return map_leaves(space, lambda _, leaf: _stored_leaf(leaf))


def action_remarks(space: Space) -> tuple[str, ...]:
    """A sentence on bounds of an action space that count as none, if it has some."""
    if not any(unmeant(leaf).any() for leaf in action_leaves(space)):
        return ()
    return (
        f"bounds of the action space {_brief(space)} are too large to be meant (from "
        f"{_NO_BOUND:g} on, or the greatest number of a dtype): they count as none, so actions are "
        "not scaled to them; give the bounds that the environment means",
    )


def action_leaves(space: Space) -> list[Space]:
    """Leaves of an action space in its order; for a Dict in the order of its keys."""
    return [leaf for _, leaf in walk_leaves(space)]


def action_shape(space: Space) -> tuple[int, ...]:
    """Shape of one packed action, the form of actions outside environments.

    A Discrete is one integer of shape (). Everything else is flat, ``(n,)``: a Box, MultiDiscrete
    or MultiBinary of any shape in C order, a Tuple or Dict leaf by leaf, where a Discrete takes one
    place.
    """
    if isinstance(space, spaces.Discrete):
        return ()
    return (sum(math.prod(leaf.shape or ()) for leaf in action_leaves(space)),)


def action_spec(space: Space) -> TensorSpec:
    """Shape and dtype of one packed action: int64 if all leaves are integers, else float32, which
    holds a policy's integers exactly.
    """
    import torch  # not before there is an environment

    floats = any(isinstance(leaf, spaces.Box) for leaf in action_leaves(space))
    return TensorSpec(action_shape(space), torch.float32 if floats else torch.int64)


def unpack_action(space: Space, packed: np.ndarray[Any, Any]) -> Any:
    """Packed actions ``[*n, *action_shape(space)]`` in the form of `space` itself.

    Returns:
        The tuples and dicts of the space, with a new array ``[*n, *leaf.shape]`` for each leaf, in
        the leaf's dtype, with ``start`` added and within the bounds.  A single value of a Discrete
        is a NumPy number, like the space's own samples.
    """
    if isinstance(space, _LEAVES):
        scalar = isinstance(space, spaces.Discrete)
        return _unpack_leaf(space, packed[..., None] if scalar else packed)
    leaves = action_leaves(space)
    ends = np.cumsum([math.prod(leaf.shape or ()) for leaf in leaves])
    parts = np.split(packed, ends[:-1], -1)
    values = iter([_unpack_leaf(leaf, x) for leaf, x in zip(leaves, parts, strict=True)])

    def build(node: Space) -> Any:
        children = _children(node)
        if children is None:
            return next(values)
        built = {key: build(child) for key, child in children}
        return built if isinstance(node, spaces.Dict) else tuple(built.values())

    return build(space)


def _unpack_leaf(leaf: Space, flat: np.ndarray[Any, Any]) -> Any:
    own = flat.reshape((*flat.shape[:-1], *(leaf.shape or ())))
    if isinstance(leaf, spaces.Box):  # np.clip takes several times as long for one action
        own = np.minimum(np.maximum(own, leaf.low), leaf.high)
    own = own.astype(leaf.dtype)
    # Of shape () this is a number.
    return own + leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else own


def mask_sizes(space: Space) -> list[int]:
    """Widths of the parts of an action mask, one per choice.

    The mask of an action space is flat, leaf by leaf: ``n`` places for a Discrete and for each
    component of a MultiDiscrete, none for Box and MultiBinary leaves.
    """
    sizes: list[int] = []
    for leaf in action_leaves(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += [int(n) for n in leaf.nvec.ravel()]
    return sizes


def leaf_spec(space: Space) -> TensorSpec:
    import torch

    dtype = torch.from_numpy(np.empty(0, leaf_dtype(space))).dtype
    return TensorSpec(tuple(space.shape or ()), dtype)


def _bound(values: np.ndarray[Any, Any]) -> Any:
    """One number if all are equal, else nested lists; infinities as JSON strings."""
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
    """A description by `to_json` without what no network uses: bounds of boxes, but for upper ones
    of pictures in uint8, by which they are scaled, and storage of floats in float64."""
    if isinstance(data, dict):
        shape = data.get("shape")  # of a stranger's file, perhaps
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


def without_leaves(of: Spaces, paths: Container[str]) -> Spaces:
    """The same without these leaves of observations."""
    return with_observation(of, lambda of: _without(of.observation, paths, ()))


def _without(space: Space, paths: Container[str], at: Keys) -> Space:
    if not isinstance(space, spaces.Dict):
        return space
    kept = OrderedDict[str, Space]()
    for key, child in space.spaces.items():
        inside = ["/".join(map(str, keys)) for keys, _ in walk_leaves(child, (*at, key))]
        if not all(path in paths for path in inside):
            kept[key] = _without(child, paths, (*at, key))
    return spaces.Dict(kept)


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
        _require_keys(space)
        return space
    except (KeyError, TypeError, OverflowError, AssertionError, AttributeError) as fault:
        raise ValueError(
            f"a file must describe a space, got {str(data)[:100]} ({type(fault).__name__}: {fault})"
        ) from fault
    except ConfigError as fault:
        raise ValueError(str(fault)) from fault


def _from_json(data: Any) -> Space:
    match data["kind"]:
        case "box":
            shape, dtype = _stored_shape(data["shape"]), _stored_dtype(data["dtype"])
            low, high = (_array(data[key], shape, dtype) for key in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "discrete":
            return spaces.Discrete(_whole(data["n"]), start=_whole(data["start"]))
        case "multi_discrete":
            dtype, start = _stored_dtype(data["dtype"]), data["start"]
            return spaces.MultiDiscrete(data["nvec"], dtype=dtype.type, start=start)
        case "multi_binary":
            n = data["n"]
            shape = _stored_shape(n if isinstance(n, list) else [n])
            return spaces.MultiBinary(shape if isinstance(n, list) else shape[0])
        case "dict":
            # in order, which is that of the network's inputs
            return spaces.Dict(OrderedDict((k, _from_json(child)) for k, child in data["items"]))
        case "tuple":
            return spaces.Tuple([_from_json(child) for child in data["items"]])
    raise ValueError(f"the kind of a space must be known, got {str(data['kind'])[:50]!r}")


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError(f"a space must have whole numbers of 64 bits, got {str(value)[:50]}")
    return value


def _stored_shape(given: Any) -> tuple[int, ...]:
    shape = tuple(_whole(size) for size in given)
    if min(shape, default=0) < 0 or math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"a space has at most {MOST_NUMBERS:,} numbers, got {str(shape)[:50]}")
    return shape


def _stored_dtype(given: Any) -> np.dtype[Any]:
    if not isinstance(given, str) or np.dtype(given).kind not in "biuf":
        raise ValueError(f"a space must have a dtype of numbers, got {str(given)[:50]!r}")
    return np.dtype(given)
