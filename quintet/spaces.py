"""Observation and action spaces: their leaves, dtypes in memory, and packed actions."""

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from quintet.errors import ConfigError
from quintet.options.bounds import MOST_UNITS
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
    require_keys(space)
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
        raise ConfigError(
            f"the observation space must not be empty, got {space}: give it a number, such as 0"
        )
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


def require_keys(space: Space) -> None:
    """Refuses keys of Dict spaces that JSON would change."""
    for key, child in _children(space) or ():
        text = isinstance(key, str) and key != "" and str(key) == key and key.isprintable()
        whole = isinstance(key, int) and not isinstance(key, bool) and str(key) == str(int(key))
        if not text and not whole:
            raise ConfigError(
                "the keys of a Dict space must be strings (printable, not empty) or integers, "
                f"got {key!r} of type {type(key).__name__} in {_brief(space)}; rename it"
            )
        require_keys(child)


def _brief(space: Space) -> str:
    """The text of a space in a message, shortened if it is long."""
    text = str(space)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_text(space: Space) -> bool:
    """Whether the values of a space are strings."""
    return space.dtype is not None and space.dtype.kind == "U"


def _instead_of(leaf: Space) -> str:
    """Advice on a leaf without a fixed shape."""
    if is_text(leaf) or isinstance(leaf, spaces.Sequence):
        return (
            "give a function that makes one environment: its strings and sequences become arrays "
            "of a fixed shape; wrap an environment of several agents so that it gives such arrays"
        )
    return "wrap the environment so that it gives arrays of a fixed shape"


def is_fixed(space: Space) -> bool:
    """Whether no leaf of an observation space is a Text or a Sequence."""
    return not any(is_text(x) or isinstance(x, spaces.Sequence) for _, x in walk_leaves(space))


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
        # ordered: gymnasium sorts plain dicts
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
    """The same, with `change` applied to the stored and the environment's observation space."""
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


def start_of(leaf: Space) -> Any:
    """The number from which values of a leaf count, of its shape or shape (); None: 0."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) and np.any(leaf.start):
        return leaf.start
    return None


def as_choices(leaf: Space) -> Space:
    """A MultiDiscrete with the values of a Box of whole numbers; other leaves are unchanged."""
    if not isinstance(leaf, spaces.Box) or leaf.dtype.kind == "f":
        return leaf
    low, high = np.atleast_1d(leaf.low, leaf.high)
    sizes = np.minimum(high.astype(np.float64) - low + 1, 2.0**53)
    return spaces.MultiDiscrete(sizes.astype(np.int64), start=low.astype(np.int64))


def action_space_of(space: Space, env_id: str) -> Space:
    """The stored action space, where Boxes of whole numbers are choices; raises ConfigError if it
    is not supported, or leaves no choice.
    """
    leaves = action_leaves(space)
    require_keys(space)
    unknown = [leaf for leaf in leaves if not isinstance(leaf, _LEAVES)]
    if unknown or not leaves or any(0 in (leaf.shape or ()) for leaf in leaves):
        raise ConfigError(
            f"{env_id}: the action space must be Box, Discrete, MultiDiscrete or MultiBinary, or a "
            f"Tuple or Dict of these, none of them empty; got {space}; wrap the environment "
            "so that it has one"
        )
    numbers = action_shape(space) or (1,)
    if max(numbers[0], sum(mask_sizes(space))) > MOST_UNITS:
        raise ConfigError(
            f"{env_id}: the action space must have at most {MOST_UNITS:,} numbers and choices, got "
            f"{_brief(space)}; wrap the environment so that it has fewer"
        )
    return map_leaves(space, lambda _, leaf: _stored_leaf(as_choices(leaf)))


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

    floats = any(isinstance(as_choices(leaf), spaces.Box) for leaf in action_leaves(space))
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
        own = own if leaf.dtype.kind == "f" else own + leaf.low  # see `as_choices`
        own = np.minimum(np.maximum(own, leaf.low), leaf.high)
    own = own.astype(leaf.dtype)
    # Shape () makes this a number.
    return own + leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else own


def mask_sizes(space: Space) -> list[int]:
    """Widths of the parts of an action mask, one per choice.

    The mask of an action space is flat, leaf by leaf: ``n`` places for a Discrete and for each
    component of a MultiDiscrete, none for Box and MultiBinary leaves.
    """
    sizes: list[int] = []
    for leaf in map(as_choices, action_leaves(space)):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += [int(n) for n in leaf.nvec.ravel()]
    return sizes


def leaf_spec(space: Space) -> TensorSpec:
    import torch

    dtype = torch.from_numpy(np.empty(0, leaf_dtype(space))).dtype
    return TensorSpec(tuple(space.shape or ()), dtype)


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
