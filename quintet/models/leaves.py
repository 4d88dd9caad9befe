"""Roles of an observation's leaves in a network: pictures, grids, numbers to normalise."""

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
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8 or len(space.shape) < 2:
        return False
    *_, height, width = image_shape(space.shape)
    return height >= smallest and width >= smallest


def pictures(encoder: str, leaves: Leaves) -> dict[str, tuple[int, ...]]:
    """Shapes of the pictures that an encoder with convolutions reads, by leaf; raises ConfigError
    if there are none.
    """
    smallest = SMALLEST[encoder]
    found = {name: tuple(x.shape or ()) for name, x in leaves.items() if is_image(x, smallest)}
    if not found:
        raise ConfigError(
            f"{encoder} must have a uint8 picture of at least {smallest} x {smallest} in the "
            f"observation, got the leaves { {k: str(v) for k, v in leaves.items()} }; use "
            "--model.encoder mlp"
        )
    return found


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """``(channels, height, width)`` of a picture's shape; frames of a stack become channels.

    ``HW``, ``CHW``, ``HWC`` and ``KHWC`` are distinguished by a small last or first size (1 to 4
    colours).
    """
    if len(shape) == 2:
        return (1, *shape)
    channels_last = shape[-1] <= 4
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1]) if channels_last else shape
    if len(shape) == 4 and channels_last:
        return (shape[0] * shape[3], shape[1], shape[2])
    if len(shape) == 4:
        return (shape[0] * shape[1], shape[2], shape[3])
    raise ConfigError(
        f"a picture must have 2 to 4 dimensions, got shape {shape}: flatten it or use "
        "--model.encoder mlp"
    )


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
        and name.split("/")[0] not in (LAST_ACTION, LAST_REWARD)
        and leaf.dtype is not None
        and leaf.dtype.kind == "f"
    }
