"""Compares what a program answers with what its policy answered."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quintet.errors import ExportError
from quintet.export.interface import Choice, Interface, Port, Size, Strict, Text
from quintet.export.players import Player, play
from quintet.export.steps import STATE_EVERY, Arrays, Steps

TOLERANCE, MOST_TOLERANCE = 1e-5, 1e-3
"""Largest differences of float outputs, relative to numbers above 1: the default, and the largest
that a user may allow.
"""

TIE = 1e-6
"""Difference of two choices' scores, relative to numbers above 1, up to which rounding decides
between them.
"""

SINGLE_ROWS = 200
"""Most rows of the first stream that are also played alone, as a batch of 1."""


@final
class Actions(Strict):
    """Numbers of compared actions; `equal + ties == compared` in a whole export.

    ties: actions that differ where two choices score the same up to `TIE`.
    """

    compared: Size
    equal: Size
    ties: Size

    @property
    def unequal(self) -> int:
        return self.compared - self.equal - self.ties


@final
class Comparison(Strict):
    """The result of a comparison.

    greedy, sampled, single: actions without noise, with the recorded noise (None: the policy does
        not sample), and of single observations.
    largest: largest difference of each output of floats, relative to numbers above 1.
    """

    greedy: Actions
    sampled: Actions | None
    single: Actions
    largest: dict[Text, float]

    def require(self, what: str, way_out: str, tolerance: float = TOLERANCE) -> None:
        """Raises ExportError if an action or output differs; `way_out`: what to do then."""
        faults = [
            f"{actions.unequal:,} of {actions.compared:,} {name} actions differ"
            for name, actions in (
                ("greedy", self.greedy), ("sampled", self.sampled), ("single", self.single)
            )
            if actions is not None and actions.unequal
        ]  # fmt: skip
        faults += [
            f"{name!r} differs by {x:.1e}, more than {tolerance:g}"
            for name, x in self.largest.items()
            if not x <= tolerance
        ]
        if faults:
            raise ExportError(
                f"{what} must answer as its policy does, but {'; '.join(faults)}; {way_out}"
            )

    def summary(self) -> str:
        """The result in a sentence."""
        kinds = [f"{_count_in_words(self.greedy)} greedy"]
        kinds += [] if self.sampled is None else [f"{_count_in_words(self.sampled)} sampled"]
        name, most = max(self.largest.items(), key=lambda each: each[1], default=("", 0.0))
        widest = f"; largest difference {most:.1e} ({name})" if name else ""
        return f"{' and '.join(kinds)} actions are equal{widest}"


def _count_in_words(actions: Actions) -> str:
    ties = f" ({actions.ties:,} ties)" if actions.ties else ""
    return f"{actions.equal:,} of {actions.compared:,}{ties}"


def compare(
    player: Player, steps: Steps, interface: Interface, tolerance: float = TOLERANCE
) -> Comparison:
    """Plays all steps and compares; the stored states of `steps` may be all rows or every
    `STATE_EVERY`-th.

    tolerance: largest difference of the numbers of an action.
    """
    quiet = steps.inputs
    if interface.samples:
        quiet = quiet | {"noise": np.zeros_like(steps.inputs["noise"])}
    found = play(player, quiet, interface)
    largest = {}
    for port in interface.outputs:
        if np.dtype(port.dtype).kind == "f":
            wanted, got = steps.greedy[port.name], found[port.name]
            if len(wanted) < len(got):
                got = got[::STATE_EVERY]
            largest[port.name] = float(_difference(wanted, got).max(initial=0.0))
    greedy = _actions(interface, steps.greedy, found, (steps.greedy.get("params"), None), tolerance)
    sampled = None
    if interface.samples:
        noisy = play(player, steps.inputs, interface)
        params, noise = steps.greedy.get("params"), steps.inputs["noise"]
        sampled = _actions(interface, steps.sampled, noisy, (params, noise), tolerance)
    few = {name: x[:SINGLE_ROWS, :1] for name, x in quiet.items()}
    alone = play(player, few, interface)
    first = {
        p.name: steps.greedy[p.name][:SINGLE_ROWS, :1] for p in interface.of("action", "params")
    }
    single = _actions(interface, first, alone, (first.get("params"), None), tolerance)
    return Comparison(greedy=greedy, sampled=sampled, single=single, largest=largest)


def _difference(wanted: NDArray[Any], got: NDArray[Any]) -> NDArray[np.float64]:
    """Differences relative to numbers above 1; NaN counts as infinite."""
    a, b = wanted.astype(np.float64), got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b) / np.maximum(1.0, np.abs(a))
    return np.where(a == b, 0.0, np.nan_to_num(distance, nan=np.inf))


def _actions(
    interface: Interface,
    wanted: Arrays,
    got: Arrays,
    scored: tuple[NDArray[Any] | None, NDArray[Any] | None],
    tolerance: float,
) -> Actions:
    """Compares the actions of all rows ``[T, B]``; scored: parameters and noise, if any."""
    params, noise = scored
    leaves = interface.of("action")
    rows = wanted[leaves[0].name].shape[:2]
    differs = {
        leaf.name: _unequal(leaf, wanted[leaf.name], got[leaf.name], tolerance) for leaf in leaves
    }
    wrong = np.zeros(rows, np.bool_)
    for x in differs.values():
        wrong |= x.any(-1)
    ties = 0
    if params is not None:
        for row in zip(*np.nonzero(wrong), strict=True):
            left = {name: x[row].copy() for name, x in differs.items()}
            scores = params[row].astype(np.float64)
            for choice in interface.choices:
                moved = None if noise is None else noise[row]
                if left[choice.action][choice.place] and _is_tie(
                    choice, scores, moved, _step(choice, wanted, got, row)
                ):
                    left[choice.action][choice.place] = False
            ties += not any(x.any() for x in left.values())
    count = int(np.prod(rows))
    return Actions(compared=count, equal=count - int(wrong.sum()), ties=ties)


def _unequal(
    leaf: Port, wanted: NDArray[Any], got: NDArray[Any], tolerance: float
) -> NDArray[np.bool_]:
    """Whether each number of an action differs ``[T, B, n]``."""
    shape = (*wanted.shape[:2], -1)
    if np.dtype(leaf.dtype).kind == "f":
        return (_difference(wanted, got) > tolerance).reshape(shape)
    return np.asarray(wanted != got).reshape(shape)


def _step(choice: Choice, wanted: Arrays, got: Arrays, row: tuple[Any, ...]) -> int:
    """Distance from the policy's choice to the program's."""
    a, b = (int(x[choice.action][row].ravel()[choice.place]) for x in (wanted, got))
    return b - a


def _is_tie(
    choice: Choice, params: NDArray[np.float64], noise: NDArray[Any] | None, step: int
) -> bool:
    """Whether both choices score the same up to `TIE`."""
    scores = params[choice.params : choice.params + choice.size].copy()
    if noise is not None:
        scores += noise[choice.noise : choice.noise + choice.size]
    if choice.kind == "bit":
        return bool(abs(scores[0]) <= TIE)
    best = int(scores.argmax())
    other = best + step
    if not 0 <= other < choice.size:
        return False
    gap = scores[best] - scores[other]
    return bool(gap <= TIE * max(1.0, abs(scores[best])))
