"""Exports of every kind of policy answer as the policy; exports that do not are not written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import ACTIONS, OBSERVATIONS, Cell
from kinds import CORES, DAILY, LEARNERS, PICTURES, matrix

from quintet.errors import ConfigError, ExportError
from quintet.export import programs
from quintet.export.make import export
from quintet.export.verify import Verified
from quintet.export.whole import WholePolicy
from quintet.models.config import TRAITS

pytest.importorskip("onnxscript", reason="exports must have the extra export")

MATRIX = matrix()


def exported(cell: Cell, folder: Path, format: Any = "onnx", steps: int = 400) -> Verified:
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
    bounds = {cell.network.get("action_bounds") for cell in cells}
    assert bounds >= {"clip", "squash", "mean_tanh"}
    assert {*PICTURES} <= {*OBSERVATIONS}


@pytest.mark.parametrize("name", DAILY)
def test_of_each_learner(name: str, tmp_path: Path) -> None:
    check(exported(DAILY[name], tmp_path / "out"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRIX)
def test_the_matrix(name: str, tmp_path: Path) -> None:
    check(exported(MATRIX[name], tmp_path / "out", steps=2000))


@pytest.fixture(scope="module")
def policy():
    return Cell(network={"core": "lstm"}).policy()


def test_an_export_that_falls_short_is_not_written(policy, tmp_path, monkeypatch) -> None:
    whole = programs.traced

    def other(made: WholePolicy) -> torch.export.ExportedProgram:
        with torch.no_grad():
            next(made.parts.parameters()).mul_(1.01)
        return whole(made)

    monkeypatch.setattr(programs, "traced", other)
    with pytest.raises(
        ExportError, match=r"must answer as its policy, got others: .*'params' differs"
    ):
        export(policy, tmp_path / "out", steps=200, observations="space")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "pickle"}, "format must be one of onnx, torch, numpy, got 'pickle'"),
        ({"steps": 3}, r"steps must be in 100 \.\. 1,000,000 .*got steps=3"),
        ({"observations": "none"}, "observations must be environment or space, got 'none'"),
        ({"observations": "space", "env": "CartPole-v1"}, "env must go with observations"),
    ],
)
def test_wrong_arguments(policy, tmp_path, given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        policy.export(tmp_path / "out", **given)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(policy, tmp_path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ExportError, match="DIR must be new or empty"):
        policy.export(tmp_path, observations="space")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


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

    check(exported(of("Plain"), tmp_path / "plain"))
    with pytest.raises(ExportError, match=r"must be one that torch\.export can turn into a graph"):
        exported(of("Deciding"), tmp_path / "deciding")
    with pytest.raises(ExportError, match=r"numpy format must have an MLP.*the operator"):
        export(DAILY["acer"].policy(), tmp_path / "numpy", "numpy", observations="space")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_noise_may_be_left_out(tmp_path) -> None:
    import onnxruntime

    policy = Cell(action="box").policy()
    export(policy, tmp_path / "out", steps=100, observations="space")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
    obs = np.array([[1.0, -2.0, 0.5]], np.float32)
    (action,) = session.run(["action"], {"obs": obs})
    assert action == pytest.approx(policy.act(obs)[0], abs=1e-6)
