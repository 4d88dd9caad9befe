"""Figures: their classes, their style, and their files."""

import logging
import warnings
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError
from quintet.system import files

_FORMATS = (".png", ".svg", ".pdf")

# readable without colour: every group has its own line style, from the eighth on with a marker;
# colours are the palette of Okabe and Ito, which colour-blind people can tell apart
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def figure_classes() -> tuple[Any, Any]:
    """The classes ``Figure`` and ``EngFormatter``, without global state and window system."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # silences notes on fonts
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as fault:
        raise QuintetError(
            'plotting needs matplotlib, which is not installed: pip install "quintet-rl[plot]"'
        ) from fault
    return Figure, EngFormatter


def style_axes(axes: Any, grid: str = "both") -> None:
    """Sets the common style of pictures."""
    axes.grid(True, axis=grid, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def line_colour(number: int) -> str:
    """The colour of the group or policy with this index."""
    return _COLOURS[number % len(_COLOURS)]


def save(figure: Any, out: Path) -> Path:
    """Writes a picture and returns its path; raises QuintetError if it can't be written."""
    require_format(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():  # a letter that the font lacks, axes that have no room
            warnings.simplefilter("ignore")
            figure.savefig(out)
    except OSError as fault:
        raise files.cannot_write(out, fault) from fault
    return out


def require_format(out: Path) -> None:
    """Raises QuintetError if a picture can't have this name."""
    if out.suffix.lower() not in _FORMATS:
        raise QuintetError(
            f"a plot's name must end in {' or '.join(_FORMATS)}, got {out}: give --out another name"
        )
