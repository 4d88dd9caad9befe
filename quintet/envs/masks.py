"""Action masks in the forms of other libraries, as the leaf ``action_mask`` of the observation.

A mask is looked for, in this order, in the leaf ``action_mask``; in another leaf named
``action_mask`` or ``action_masks``, anywhere in the observation; in the environment's method
``action_masks()``; in info under either name.  ``env.mask_from_info`` says which of them are
taken.  Single environments get the wrapper `Masked`; adapters of others read the leaf by
`mask_leaves`, and that of games reads info by `MaskReader`.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    Keys,
    Space,
    as_choices,
    leaf_keys,
    mask_sizes,
    observation_leaves,
    space_parts,
    walk_leaves,
)
from quintet.types import ACTION_MASK

Choice = bool | Literal["auto"]
"""Values of ``env.mask_from_info``."""

NAMES = (ACTION_MASK, "action_masks")
_METHOD = "action_masks"
ADDED = -1e3  # greatest number that forbids an action where masks are added to logits


def masked(env: gymnasium.Env[Any, Any], env_id: str, choice: Choice) -> gymnasium.Env[Any, Any]:
    """The environment with its mask in the leaf ``action_mask``; unchanged if that is where it is,
    or if it has none.

    Raises:
        ConfigError: ``info["action_mask"]`` is asked for, and no action can be masked, or the
            observation holds a mask already.
    """
    observation, action = env.observation_space, env.action_space
    if choice is True:
        check_mask_from_info(observation, action, env_id)
        return Masked(env, "info")
    if choice == "auto" and mask_sizes(action):
        keys = leaf_of_mask(observation, action)
        if keys is not None:
            added = is_added(_leaf(observation, keys))
            return Masked(env, keys) if added or keys != (ACTION_MASK,) else env
        if env.has_wrapper_attr(_METHOD) and callable(env.get_wrapper_attr(_METHOD)):
            return Masked(env, "method")
    return env


def check_mask_from_info(observation: Space, action: Space, env_id: str) -> None:
    """Raises ConfigError if masks can't be taken from info: no action can be masked, or the
    observation holds a mask already."""
    if not mask_sizes(action):
        raise ConfigError(
            f"{env_id}: env.mask_from_info must have Discrete or MultiDiscrete actions, "
            f"got {action}: leave it out"
        )
    if ACTION_MASK in observation_leaves(observation):
        raise ConfigError(
            f"{env_id}: env.mask_from_info must have an observation without "
            f"{ACTION_MASK!r}; this observation has one, which is used: leave the option out"
        )


def leaf_of_mask(observation: Space, action: Space) -> Keys | None:
    """The keys of the only leaf that is a mask by its name and its shape; None without one."""
    size = sum(mask_sizes(action))
    leaves = dict(walk_leaves(observation))
    if (ACTION_MASK,) in leaves:
        return (ACTION_MASK,) if len(leaves) > 1 else None
    found = [
        keys
        for keys, leaf in leaves.items()
        if keys and keys[-1] in NAMES and leaf.shape == (size,) and size > 0
    ]
    return found[0] if len(found) == 1 and len(leaves) > 1 else None


def is_added(leaf: Space) -> bool:
    """Whether a leaf's bounds say that its numbers are added to logits: 0 allows an action, a large
    negative number forbids it."""
    if not isinstance(leaf, spaces.Box) or leaf.dtype.kind != "f":
        return False
    return bool((leaf.high <= 0).all() and (leaf.low <= ADDED).all())


def mask_leaves(
    observation: Space, action: Space, choice: Choice
) -> tuple[Space, dict[str, tuple[Keys, Space]]]:
    """An observation space with the leaf of a mask as ``action_mask``, and its leaves by path with
    their keys in an observation; for environments that are not wrapped.
    """
    keys = leaf_of_mask(observation, action) if choice == "auto" else None
    if keys in (None, (ACTION_MASK,)):
        return observation, leaf_keys(observation)
    assert keys is not None
    leaf = _leaf(observation, keys)
    found = {
        ACTION_MASK if at == keys else path: (at, x)
        for path, (at, x) in leaf_keys(observation).items()
    }
    return with_mask(_without(observation, keys), leaf), found


def note_on(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """A sentence about where an environment's mask is taken from, if not from ``action_mask``."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, Masked):
            return (env.note,)
        env = env.env
    return ()


def leaf_note(keys: dict[str, tuple[Keys, Space]]) -> tuple[str, ...]:
    """The same for the leaves of `mask_leaves`."""
    at = keys.get(ACTION_MASK, ((ACTION_MASK,), None))[0]
    return () if at == (ACTION_MASK,) else (_mask_remark(f"the observation's leaf {_path(at)!r}"),)


def is_in(info: Any, action: Space) -> bool:
    """Whether the info of a reset has a mask that fits the actions."""
    size, name = sum(mask_sizes(action)), _name_in(info)
    return bool(size and name) and as_row(info[name], action).shape == (size,)


def _name_in(info: Any) -> str:
    """The name of the mask in info; "" if there is none."""
    found = info if isinstance(info, Mapping) else {}
    return next((name for name in NAMES if name in found), "")


@final
class MaskReader:
    """Reads the masks of one place as rows of 0 and 1.

    note: where masks are taken from.
    """

    def __init__(
        self,
        action: Space,
        place: str = f"info[{NAMES[0]!r}] or [{NAMES[1]!r}]",
        *,
        added: bool = False,
    ):
        """place: where masks are taken from; added: whether they are added to logits."""
        self._action, self._place, self._added = action, place, added
        self._size = sum(mask_sizes(action))
        self.note = _mask_remark(place, added=added)
        self.space, self.none = spaces.MultiBinary(self._size), np.zeros(self._size, np.int8)

    def in_info(self, info: Mapping[str, Any] | None, *, over: bool) -> NDArray[np.int8]:
        """The mask in info, which may be missing where an episode is over.  Raises ValueError."""
        if info and (name := _name_in(info)):
            return self.row(info[name])
        if over:
            return self.none
        raise ValueError(
            f"every reset and step must have info[{ACTION_MASK!r}], from which masks are taken, "
            f"got info with {sorted(info or ())}: add it, or use --env.mask-from-info false"
        )

    def row(self, given: Any) -> NDArray[np.int8]:
        """A mask as a row; raises ValueError if it is none."""
        mask = as_row(given, self._action)
        if mask.shape != (self._size,) or mask.dtype.kind not in "biuf":
            got = "None" if given is None else f"shape {mask.shape}, dtype {mask.dtype}"
            raise ValueError(
                f"{self._place} must be an array of {self._size} numbers, one per action, or of "
                f"the form that the action space's sample(mask=...) takes, got {got}; if it is no "
                "mask, use --env.mask-from-info false"
            )
        allowed: NDArray[np.bool_] = mask == (0 if self._added else 1)
        forbidden = mask <= ADDED if self._added else mask == 0
        if not (allowed | forbidden).all():  # such as NaN
            raise ValueError(f"{self._place} {wrong_values(mask, added=self._added)}")
        return allowed.astype(np.int8)


@final
class Masked(gymnasium.Wrapper[dict[str, Any], Any, Any, Any]):
    """Makes a mask the observation leaf ``action_mask``.

    The observation becomes a Dict of the former observation, or of its parts, and of the mask.  A
    mask in info must be there at every reset and step, except where an episode ends: as one row,
    see `mask_sizes`, or as the action space's ``sample(mask=...)`` takes it.  The method is called
    after every reset and step, except at a termination.

    note: where the mask is taken from.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], place: Literal["info", "method"] | Keys):
        super().__init__(env)
        self._place, action, whole = place, env.action_space, env.observation_space
        rest: Space | None = whole
        if place == "info":
            self._reader = MaskReader(action)
        elif place == "method":
            self._reader = MaskReader(action, f"the environment's method {_METHOD}()")
        else:
            what, added = f"the observation's leaf {_path(place)!r}", is_added(_leaf(whole, place))
            self._reader = MaskReader(action, what, added=added)
            rest = _without(whole, place)
        self.note = self._reader.note
        self.observation_space = with_mask(rest, self._reader.space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        arguments = {} if options is None else {"options": options}  # not every reset takes options
        obs, info = self.env.reset(seed=seed, **arguments)
        return self._with_mask_leaf(obs, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        seen = self._with_mask_leaf(
            obs, info, terminated=bool(terminated), truncated=bool(truncated)
        )
        return seen, reward, terminated, truncated, info

    def _with_mask_leaf(
        self,
        obs: Any,
        info: Mapping[str, Any] | None,
        *,
        terminated: bool = False,
        truncated: bool = False,
    ) -> dict[str, Any]:
        """The observation with its mask in the leaf ``action_mask``."""
        if self._place == "method":
            call = self.env.get_wrapper_attr(_METHOD)
            mask = self._reader.none if terminated else self._reader.row(call())
            return {**_parts(obs), ACTION_MASK: mask}
        if self._place == "info":
            mask = self._reader.in_info(info, over=terminated or truncated)
            return {**_parts(obs), ACTION_MASK: mask}
        leaf, rest = obs, _dropped(obs, self._place)
        for key in self._place:
            leaf = leaf[key]
        return {**rest, ACTION_MASK: self._reader.row(leaf)}


def require_plain(mask: NDArray[Any], valid: NDArray[np.bool_], who: str) -> None:
    """Raises EnvironmentFault if masks ``[T, B, A]`` of valid rows hold other numbers than 0 and 1.

    who: names the environments.
    """
    if mask.dtype.kind == "b":
        return
    wrong = ((mask != 0) & (mask != 1)).any(-1) & valid
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise EnvironmentFault(f"{who}: {ACTION_MASK} {wrong_values(mask[row, column])}")


def wrong_values(mask: NDArray[Any], *, added: bool = False) -> str:
    """Words on a mask with numbers that say neither yes nor no."""
    must = f"0 and numbers of {ADDED:g} or less" if added else "0 and 1"
    wrong = mask[(mask != 0) & ((mask > ADDED) | np.isnan(mask) if added else mask != 1)]
    way = ""
    if not added and (mask <= ADDED).any():
        way = (
            "; if the mask holds numbers to be added to logits, give mask == 0 in its place, or "
            "make it a leaf of the observation with a Box whose high is 0"
        )
    got = ", ".join(f"{x:g}" for x in np.unique(wrong)[:3])
    return f"must hold only {must}, got {got}{way}"


def possible(mask: NDArray[Any], action: Space) -> NDArray[np.bool_]:
    """Whether masks ``[..., A]`` allow an action in each choice."""
    choices = np.split(mask != 0, np.cumsum(mask_sizes(action))[:-1], -1)
    found: NDArray[np.bool_] = np.logical_and.reduce([choice.any(-1) for choice in choices])
    return found


def allows_none(env_id: str, stream: int, step: int) -> EnvironmentFault:
    """The fault of a mask that allows no action in a step that is to be made."""
    return EnvironmentFault(
        f"{ACTION_MASK} must allow at least one action in each choice of an executed step; "
        f"{env_id}, stream {stream}, step {step}: it allows none; end the episode there"
    )


def as_row(mask: Any, action: Space) -> NDArray[Any]:
    """The parts of a mask in one row; a mask that does not fit as an array of any shape."""
    sizes = mask_sizes(action)
    size = sum(sizes)
    try:
        whole = np.asarray(mask)
    except ValueError:  # parts of different sizes
        whole = np.empty((), object)
    if whole.shape == (size,) and whole.dtype != object:
        return whole
    with suppress(ValueError, TypeError, LookupError):
        # None as a whole would allow all actions of an environment that forgot its mask.
        parts = [] if mask is None else [np.asarray(x) for x in _mask_parts(action, mask)]
        if parts and [each.shape for each in parts] == [(size,) for size in sizes]:
            return np.concatenate(parts)
    return whole


def _mask_remark(what: str, *, added: bool = False) -> str:
    how = " (0 allows an action, a large negative number forbids it)" if added else ""
    return f"action masks are taken from {what}{how}"


def _path(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _leaf(space: Space, keys: Keys) -> Space:
    return dict(walk_leaves(space))[keys]


def with_mask(rest: Space | None, leaf: Space) -> spaces.Dict:
    """An observation space with a leaf ``action_mask`` after its parts."""
    assert rest is not None, "a mask is not the only leaf"
    parts = OrderedDict(space_parts(rest))
    parts[ACTION_MASK] = leaf
    return spaces.Dict(parts)


def _without(space: Space, keys: Keys) -> spaces.Dict | None:
    """A Dict or Tuple without a leaf, and without parts that hold nothing else; None if nothing is
    left.  A Tuple becomes a Dict of its parts by number, so that the others keep their paths.
    """
    name, *inner = str(keys[0]), *keys[1:]
    children = OrderedDict(space_parts(space))
    left = _without(children[name], tuple(inner)) if inner else None
    if left is None:
        del children[name]
    else:
        children[name] = left
    return spaces.Dict(children) if children else None


def _dropped(obs: Any, keys: Keys) -> dict[str, Any]:
    """An observation without a leaf, as `_without`."""
    name, *inner = str(keys[0]), *keys[1:]
    rest = _parts(obs)
    left = _dropped(rest[name], tuple(inner)) if inner else None
    if left:
        return {**rest, name: left}
    del rest[name]
    return rest


def _mask_parts(space: spaces.Space[Any], mask: Any) -> Iterator[Any]:
    """The parts, one per choice, of a mask in the form that ``space.sample`` takes, in which None
    allows all; raises ValueError, TypeError or LookupError for other forms.
    """
    for keys, leaf in walk_leaves(space):
        own = mask
        for key in keys:
            own = None if own is None else own[key]
        if own is None:
            yield from map(np.ones, mask_sizes(leaf))
        elif isinstance(choices := as_choices(leaf), spaces.MultiDiscrete):
            yield from _nested(own, choices.nvec.shape)
        elif isinstance(leaf, spaces.Discrete):
            yield own


def _nested(parts: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Parts of nested sequences of these lengths; raises ValueError if they have others."""
    if not shape:
        yield parts
        return
    for _, part in zip(range(shape[0]), parts, strict=True):
        yield from _nested(part, shape[1:])


def _parts(observation: Any) -> dict[str, Any]:
    """An observation's uppermost parts by the names that `space_parts` gives."""
    if isinstance(observation, tuple):
        return {str(index): part for index, part in enumerate(observation)}
    if not isinstance(observation, Mapping):
        return {"obs": observation}
    return {str(key): part for key, part in observation.items()}
