"""Roles of an observation's leaves in a network: pictures, grids, numbers to normalise."""

from typing import Literal, NamedTuple, cast, final, get_args

import numpy as np
from gymnasium import spaces as gym_spaces

from quintet.errors import ConfigError
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD

Leaves = dict[str, gym_spaces.Space]  # type: ignore[type-arg]

SMALLEST: dict[str, int] = {"nature_cnn": 36, "impala_cnn": 8}
"""Least height and width of a uint8 array that an encoder reads as a picture."""


def is_image(space: gym_spaces.Space, smallest: int = 36) -> bool:  # type: ignore[type-arg]
    """Whether a leaf is a picture: uint8, at least `smallest` high and wide (36, for nature_cnn),
    perhaps stacked.
    """
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8:
        return False
    if not 2 <= len(space.shape) <= 4:
        return False
    *_, height, width = image_shape(space.shape)
    return height >= smallest and width >= smallest


def white_of(space: gym_spaces.Space) -> float:  # type: ignore[type-arg]
    """The value of a uint8 leaf that networks see as 1: the largest of its space."""
    assert isinstance(space, gym_spaces.Box)
    return float(space.high.max(initial=1))


def pictures(encoder: str, leaves: Leaves) -> dict[str, tuple[int, ...]]:
    """Shapes of the pictures that an encoder with convolutions reads, by leaf; raises ConfigError
    if there are none.
    """
    smallest = SMALLEST[encoder]
    found = {name: tuple(x.shape or ()) for name, x in leaves.items() if is_image(x, smallest)}
    if not found:
        other = "small_cnn, which reads pictures of other types and sizes"
        raise ConfigError(
            f"{encoder} must have a uint8 picture of at least {smallest} x {smallest} in the "
            f"observation, got the leaves { {k: str(v) for k, v in leaves.items()} }; use "
            f"--model.encoder {other if small_pictures(leaves) else 'mlp'}"
        )
    return found


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """``(channels, height, width)`` of a picture's shape; frames of a stack become channels.

    ``HW``, ``CHW``, ``HWC``, ``KCHW`` and ``KHWC`` are distinguished by `channels_last`.
    """
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1]) if channels_last(shape) else shape
    if len(shape) == 4 and channels_last(shape):
        return (shape[0] * shape[3], shape[1], shape[2])
    if len(shape) == 4:
        return (shape[0] * shape[1], shape[2], shape[3])
    raise ConfigError(
        f"a picture must have 2 to 4 dimensions, got shape {shape}: flatten it or use "
        "--model.encoder mlp"
    )


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether the last of 3 or 4 sizes are channels: 1 to 4 colours, or more beside a square or
    sides that are at least twice as long.
    """
    first, second, last = shape[-3:]
    return last <= 4 or first == second != last or 2 * last <= min(first, second)


SMALL = 5
"""Least height and width of what small_cnn reads as a picture."""

Layout = Literal["auto", "hwc", "chw"]


@final
class SmallPicture(NamedTuple):
    """A leaf that small_cnn reads as a picture.

    frames: of a stack; 1 without one.
    channels_last: whether a frame is ``[H, W, C]``, not ``[C, H, W]``.
    doubtful: whether the other layout is possible too.
    most: largest value of integers, which is scaled to 1.
    """

    frames: int
    channels: int
    height: int
    width: int
    channels_last: bool
    doubtful: bool
    most: float


def small_picture(space: gym_spaces.Space, layout: Layout = "auto") -> SmallPicture | None:  # type: ignore[type-arg]
    """A leaf as small_cnn reads it; None if it is no picture: not bool, uint8 or float, not of 2 to
    4 dimensions (the first of 4 are frames of a stack), or below 5 x 5.

    layout: of frames with channels.  auto: the only one with at least 5 x 5 pixels, else the only
        square one, else that with fewer channels, else ``[H, W, C]``.
    """
    shape = space.shape or ()
    if isinstance(space, gym_spaces.MultiBinary):
        most = 1.0
    elif isinstance(space, gym_spaces.Box) and (
        space.dtype == np.uint8 or space.dtype.kind in "bf"
    ):
        most = white_of(space) if space.dtype == np.uint8 else 1.0
    else:
        return None
    if not 2 <= len(shape) <= 4:
        return None
    frames, (first, middle, last) = 1, (*shape[-3:], 1)[:3]
    if len(shape) == 4:
        frames = shape[0]
    readings = {True: (last, first, middle), False: (first, middle, last)}
    if len(shape) == 2 or layout == "hwc":
        del readings[False]
    elif layout == "chw":
        del readings[True]
    large = {key: x for key, x in readings.items() if min(x[1:]) >= SMALL}
    if not large:
        return None
    square = {key: x for key, x in large.items() if x[1] == x[2]}
    left = square if len(square) == 1 else large
    channels_last = min(left, key=lambda key: left[key][0])
    return SmallPicture(frames, *left[channels_last], channels_last, len(left) > 1, most)


def small_pictures(leaves: Leaves, layout: Layout = "auto") -> dict[str, SmallPicture]:
    """The leaves that small_cnn reads as pictures, without the last action and reward.  Leaves of
    two dimensions, which may be tables, are pictures only if no picture has channels.
    """
    found = {name: small_picture(x, layout) for name, x in leaves.items() if not is_added(name)}
    readable = {name: picture for name, picture in found.items() if picture is not None}
    with_channels = {k: x for k, x in readable.items() if len(leaves[k].shape or ()) > 2}
    return with_channels or readable


def has_small_picture(leaves: Leaves, layout: object = "auto") -> bool:
    """Whether small_cnn is chosen where nature_cnn can't be: there is a picture with channels (a
    table of numbers has two dimensions), and it is no grid with a mission.
    """
    known = cast(Layout, layout if layout in get_args(Layout) else "auto")
    found = small_pictures(leaves, known)
    return not is_grid_with_mission(leaves) and any(
        len(leaves[name].shape or ()) > 2 for name in found
    )


def require_small(leaves: Leaves, layout: Layout) -> dict[str, SmallPicture]:
    """See `small_pictures`; raises ConfigError if there are none."""
    found = small_pictures(leaves, layout)
    if not found:
        raise ConfigError(
            f"small_cnn must have a picture in the observation (bool, uint8 or float, at least "
            f"{SMALL} x {SMALL}, with or without channels), got the leaves "
            f"{ {k: str(v) for k, v in leaves.items()} }; use --model.encoder mlp"
        )
    return found


def is_added(name: str) -> bool:
    """Whether a leaf is the last action or reward, which quintet adds."""
    return name.split("/")[0] in (LAST_ACTION, LAST_REWARD)


DIRECTIONS = 4
"""Directions of an agent in a grid."""


def is_grid_with_mission(leaves: Leaves) -> bool:
    """Whether an observation has the form of MiniGrid's and BabyAI's in EnvPool: `direction` (one
    integer), `image` (uint8 ``[H, W, 3]``, ids of the object, colour and state in each cell) and
    `mission` (uint8 ``[L]``, a text in bytes).  There may be other leaves.
    """
    direction, image, mission = (leaves.get(name) for name in ("direction", "image", "mission"))
    if isinstance(direction, gym_spaces.Discrete):
        looks = int(direction.n) == DIRECTIONS
    else:
        looks = (
            isinstance(direction, gym_spaces.Box)
            and direction.dtype.kind in "iu"
            and direction.shape == ()
        )
    return (
        looks
        and isinstance(image, gym_spaces.Box)
        and isinstance(mission, gym_spaces.Box)
        and image.dtype == mission.dtype == np.uint8
        and len(image.shape) == 3
        and image.shape[2] == 3
        and len(mission.shape) == 1
    )


def require_grid(leaves: Leaves) -> None:
    """Raises ConfigError if film_grid can't read the leaves."""
    if not is_grid_with_mission(leaves):
        raise ConfigError(
            "film_grid must have the leaves direction (Discrete(4) or one integer), image "
            "(uint8, H x W x 3 ids) and mission (uint8, a text in bytes), got the leaves "
            f"{ {k: str(v) for k, v in leaves.items()} }; use another --model.encoder"
        )


def normalized_leaves(space: gym_spaces.Space) -> dict[str, tuple[int, ...]]:  # type: ignore[type-arg]
    """Shapes of the leaves that are normalised: floats, without masks.  (For pictures see
    `quintet.models.config.picture_leaves`.)  The last action and reward are not normalised: their 0
    must stay 0, and a rare reward over its small standard deviation would dominate all else.
    """
    return {
        name: tuple(leaf.shape or ())
        for name, leaf in observation_leaves(space).items()
        if name != ACTION_MASK
        and not is_added(name)
        and leaf.dtype is not None
        and leaf.dtype.kind == "f"
    }
