"""What counts as equal, as a tie, and as different."""

from typing import Any

import numpy as np
import pytest

from quintet.errors import ExportError
from quintet.export.compare import compare
from quintet.export.interface import Choice, Interface, Played, Port
from quintet.export.steps import Steps


def port(name: str, role: Any, shape: list[int], dtype: Any) -> Port:
    return Port(name=name, role=role, shape=shape, dtype=dtype, meaning="")


INTERFACE = Interface(
    format_version=1,
    format="onnx",
    algo="ppo",
    env=Played(id="x", backend="y", frame_stack=1, observe_last=False),
    observation_space={},
    action_space={},
    inputs=[port("obs", "observation", [3], "float32"), port("noise", "noise", [3], "float32")],
    outputs=[port("action", "action", [], "int64"), port("params", "params", [3], "float32")],
    state={},
    choices=[Choice(kind="categorical", action="action", place=0, params=0, noise=0, size=3)],
    versions={},
    sha256={},
)
"""A policy that chooses the largest of its observation's three numbers, counted from 10."""


class Other:
    """A program that gives another number to some observations, by their first number."""

    version = "other 1"

    def __init__(self, choices: dict[float, int], error: float = 0.0):
        self.choices, self.error = choices, error

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        scores = inputs["obs"] + inputs["noise"]
        found = [
            self.choices.get(round(float(x[0]), 3), int(y.argmax()))
            for x, y in zip(inputs["obs"], scores, strict=True)
        ]
        params = (inputs["obs"] + self.error).astype(np.float32)
        return {"action": np.array(found) + 10, "params": params}


def steps(*rows: tuple[float, float, float]) -> Steps:
    obs = np.array(rows, np.float32)[:, None]
    noise = np.zeros_like(obs)
    acted = obs.argmax(-1) + 10
    return Steps({"obs": obs, "noise": noise}, {"action": acted, "params": obs}, {"action": acted})


def test_ties_are_counted_and_told() -> None:
    played = steps((1.0, 1.0 - 5e-7, 0.0), (2.0, 1.0, 0.0), (1e3, 0.0, 1e3 - 6e-5))
    found = compare(Other({1.0: 1, 1e3: 2}), played, INTERFACE)
    found.require("it", "")
    assert found.summary() == (
        "1 of 3 (2 ties) greedy and 1 of 3 (2 ties) sampled actions are equal; "
        "largest difference 0.0e+00 (params)"
    )


@pytest.mark.parametrize(("row", "choice"), [((1.0, 1.0 - 3e-6, 0.0), 1), ((2.0, 1.0, 0.0), 2)])
def test_other_actions_are_no_ties(row, choice) -> None:
    found = compare(Other({row[0]: choice}), steps(row, (0.0, 0.5, 0.0)), INTERFACE)
    assert (found.greedy.unequal, found.greedy.ties) == (1, 0)
    with pytest.raises(
        ExportError,
        match="1 of 2 greedy actions differ; 1 of 2 sampled actions differ; 1 of 2 single",
    ):
        found.require("it", "")


def test_numbers_may_differ_by_the_tolerance() -> None:
    found = compare(Other({}, 5e-5), steps((0.5, 0.0, 0.0)), INTERFACE)
    found.require("it", "", 1e-4)
    with pytest.raises(ExportError, match=r"'params' differs by 5\.\de-05, more than 1e-05"):
        found.require("it", "")
    with pytest.raises(ExportError, match=r"'params' differs by inf"):
        compare(Other({}, float("nan")), steps((0.5, 0.0, 0.0)), INTERFACE).require("it", "")
