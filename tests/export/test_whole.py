"""Exports of every kind of policy answer as the policy; exports that do not are not written."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells_helpers import ACTIONS, OBSERVATIONS, Cell
from gymnasium import spaces as gym_spaces
from installed_helpers import need
from kinds_helpers import CORES, DAILY, LEARNERS, PICTURES, matrix

from quintet import spaces
from quintet.errors import ExportError
from quintet.export import compare, make, programs, recording
from quintet.export.interface import PROGRAMS
from quintet.export.make import export
from quintet.export.players import player_of
from quintet.export.steps import unpacked
from quintet.export.verification import Verified
from quintet.export.whole import WholePolicy, env_form
from quintet.models.config import TRAITS

need("exports must have the extra export", "onnxscript")

MATRIX = matrix()


def exported(cell: Cell, folder: Path, format: Any = "onnx", steps: int = 200) -> Verified:
    """The export of a cell's policy, compared in its own environment."""
    return export(cell.policy(), folder, format, steps=steps, env=cell.environment)


def check(found: Verified) -> None:
    compared = found.compared
    for actions in (compared.greedy, compared.sampled, compared.single):
        assert actions is None or actions.equal + actions.ties == actions.compared > 0
        assert actions is None or actions.ties <= 1
    assert found.certificate.episodes > 20
    samples = found.interface.algo != "ddpg"
    assert (compared.sampled is not None) == samples
    assert ("params" in compared.largest) == samples


def test_the_matrix_holds_every_kind() -> None:
    cells = MATRIX.values()
    assert {cell.algo for cell in cells} == {*LEARNERS}
    for algo in LEARNERS:
        own = [cell for cell in cells if cell.algo == algo]
        assert {cell.observation for cell in own} == {*OBSERVATIONS}, algo
        if algo != "ddpg":
            assert {cell.action for cell in own} == {*ACTIONS}, algo
            assert {cell.network.get("core", "none") for cell in own} == {*CORES}, algo
        assert {bool(cell.options) for cell in own} == {True, False}
        assert {cell.env.get("frame_stack", 1) for cell in own} == {1, 2}
        assert {cell.env.get("observe_last", False) for cell in own} == {True, False}
    assert {cell.network["encoder"] for cell in cells} == {*TRAITS}
    assert any(cell.masked for cell in cells)
    for option, values in {"layer_norm": {True, False}, "activation": {"tanh", "relu"}}.items():
        given = {cell.network[option] for cell in cells if cell.network["encoder"] == "mlp"}
        assert given == values
    bounds = {cell.network.get("action_bounds") for cell in cells}
    assert bounds >= {"clip", "squash", "mean_tanh"}
    assert {*PICTURES} <= {*OBSERVATIONS}


FAST = {"impala", "appo", "ddpg"}
"""The quickest, and the one with masks; test_verification has a policy of PPO in every format."""


@pytest.mark.parametrize(
    "name", [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in DAILY]
)
def test_of_each_learner(name: str, tmp_path: Path) -> None:
    # ONNX takes three times as long; masks are in the policy of IMPALA alone, as NumPy plays it.
    format = {"impala": "numpy", "acer": "onnx"}.get(name, "torch")
    check(exported(DAILY[name], tmp_path / "out", format))


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_get_the_environments_form(action: str) -> None:
    """Exactly: a number beyond a bound by rounding alone is not in the space."""
    space, rng = ACTIONS[action], np.random.default_rng(0)
    parts = []
    for leaf in spaces.action_leaves(space):
        size = math.prod(leaf.shape or ())
        wide = isinstance(leaf, gym_spaces.Box)
        x = rng.uniform(-3.0, 3.0, (40, size)) if wide else rng.integers(0, 2, (40, size))
        if wide:
            x[:4] = np.repeat([leaf.low.ravel(), leaf.high.ravel()], 2, 0).clip(-3.0, 3.0)
        parts.append(x)
    packed = torch.from_numpy(np.concatenate(parts, -1)).to(spaces.action_spec(space).dtype)
    packed = packed.reshape(40, *spaces.action_shape(space))
    wanted = spaces.unpack_action(space, packed.numpy())
    for (keys, leaf), x in zip(spaces.walk_leaves(space), env_form(space, packed), strict=True):
        own: Any = wanted
        for key in keys:
            own = own[key]
        assert x.numpy().dtype == np.asarray(own).dtype == leaf.dtype
        assert np.array_equal(x.numpy(), own), (leaf, keys)


def in_all_formats(cell: Cell, steps: int, tolerance: float) -> dict[str, compare.Comparison]:
    """Comparisons of a policy's programs by format, all with the same recorded steps."""
    policy = cell.policy()
    whole = WholePolicy(policy)
    program = programs.traced(whole)
    made = {"torch": programs.torch_program(program), "onnx": programs.onnx_program(program, whole)}
    if cell.network.get("encoder", "mlp") == "mlp":
        made["numpy"] = programs.numpy_program(made["onnx"])
    seen = recording.in_environment(policy, cell.environment, steps, 3)
    recorded = recording.answered(policy, whole, seen, 3)
    found = {}
    for format, data in made.items():
        interface = make.describe(policy, whole, format, {PROGRAMS[format]: data})
        again = unpacked(recorded.packed(interface), interface, recorded.rows, recorded.streams)
        found[format] = compare.compare(player_of(data, interface), again, interface, tolerance)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRIX)
def test_the_matrix(name: str) -> None:
    cell = MATRIX[name]
    mlp = cell.network["encoder"] == "mlp"
    # Whole numbers, which are not normalised, and fifteen untrained convolutions lead to
    # activations of a hundred and more, of which 1e-5 is a few last digits.
    rough = cell.observation in ("shorts", "text") or cell.network["encoder"] == "impala_cnn"
    tolerance = 1e-4 if rough else 1e-5
    found = in_all_formats(cell, 1600, tolerance)
    assert {*found} == {"onnx", "torch"} | ({"numpy"} if mlp else set())
    for format, compared in found.items():
        compared.require(format, "", tolerance)
        assert compared.greedy.compared == 1600
        assert compared.greedy.ties <= 1
        assert (compared.sampled is None) == (cell.algo == "ddpg")


class Deciding(torch.nn.Module):
    """Decides in Python on a value that it sees."""

    def __init__(self, leaves):
        super().__init__()
        self.feature_size, self.layer = 4, torch.nn.Linear(3, 4)

    def forward(self, obs):
        x = self.layer(obs["obs"])
        return x * 2 if obs["obs"].sum() > 0 else x


class Plain(torch.nn.Module):
    """A module of plain operations."""

    def __init__(self, leaves):
        super().__init__()
        self.feature_size = 4
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())

    def forward(self, obs):
        return self.layers(obs["obs"])


def test_own_modules(tmp_path) -> None:
    def of(name: str) -> Cell:
        return Cell(network={"encoder": f"{__name__}:{name}"})

    check(exported(of("Plain"), tmp_path / "plain", "torch"))
    with pytest.raises(ExportError, match=r"torch\.export can't turn the policy into a graph"):
        exported(of("Deciding"), tmp_path / "deciding", "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]
