"""A curve in a few lines of text."""

from collections.abc import Sequence
from typing import final

import numpy as np

_MOST_POINTS = 1024  # more than a terminal has columns of dots
# Dots of a braille character by row from the top, for its left and its right column.
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@final
class TextCurve:
    """A value over env_steps, with fewer points kept as it grows."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        """Adds a point; x must not decrease."""
        self._points.append((x, y))
        if len(self._points) > _MOST_POINTS:
            # The newest point stays, so that the curve ends where the run is.
            del self._points[-2::-2]

    def lines(self, width: int, height: int) -> list[str]:
        """The curve in `height` lines of at most `width` characters, with the range of y on the
        left; empty with fewer than two points or without room.
        """
        x, y = np.array(self._points, np.float64).reshape(-1, 2).T
        if height < 1 or not len(x) or x[-1] <= x[0]:
            return []
        low, high = float(y.min()), float(y.max())
        names = [label(high), *[""] * (height - 2), label(low)] if height > 1 else [label(high)]
        margin = max(map(len, names))
        columns = width - margin - 1
        if columns < 4:
            return []
        at = np.interp(np.linspace(x[0], x[-1], 2 * columns), x, y)
        flat = high - low < 1e-12 * max(1.0, abs(high))
        level = np.rint((at - low) / (1 if flat else high - low) * (4 * height - 1)).astype(int)
        drawn = zip(names, _braille(level, height), strict=True)
        return [f"{name:>{margin}} {row}" for name, row in drawn]


def label(value: float) -> str:
    """A number in a short readable form: 12,345 231.4 0.0123 1.2e-05."""
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3g}"


def _braille(level: Sequence[int] | np.ndarray, height: int) -> list[str]:
    """Dots ``[2 * columns]`` at their levels, with vertical strokes between neighbours."""
    cells = [[0] * (len(level) // 2) for _ in range(height)]
    before = int(level[0])
    for column, value in enumerate(map(int, level)):
        # The stroke begins beside the value before, not at its level.
        start = value if value == before else before + (1 if value > before else -1)
        for dot in range(min(start, value), max(start, value) + 1):
            down = 4 * height - 1 - dot
            cells[down // 4][column // 2] |= _BRAILLE[down % 4][column % 2]
        before = value
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]
