"""Exports that fall short, or can't be made, are refused, and nothing is written."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells_helpers import Cell

import quintet
from quintet.commands import cli
from quintet.commands import verify as command
from quintet.errors import ConfigError, ExportError, UntrustedError
from quintet.export import make, programs, recording
from quintet.export.apart import Proof
from quintet.export.make import export
from quintet.export.verification import Verified, verify
from quintet.export.whole import WholePolicy
from quintet.policies.policy import Policy
from quintet.system import memory


@pytest.fixture(scope="module")
def policy():
    return Cell(action="box").policy()


@pytest.fixture(autouse=True)
def traced_once(policy, program, monkeypatch):
    """The policy is traced once."""
    monkeypatch.setattr(programs, "traced", lambda _: program)


@pytest.fixture(scope="module")
def program(policy):
    return programs.traced(WholePolicy(policy))


def in_torch(policy: Policy, folder: Path, **options: Any) -> Verified:
    return export(policy, folder, "torch", steps=100, observations="space", **options)


def test_an_export_with_other_weights_is_not_written(policy, tmp_path, monkeypatch) -> None:
    whole = WholePolicy(policy)
    with torch.no_grad():
        next(whole.parts.parameters()).mul_(1.01)
    monkeypatch.undo()
    other = programs.traced(whole)
    monkeypatch.setattr(programs, "traced", lambda _: other)
    with pytest.raises(
        ExportError, match=r"answer as its policy does, but .*'params' differs by .*nothing was"
    ):
        in_torch(policy, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_export_records_the_versions_that_made_it(policy, tmp_path) -> None:
    in_torch(policy, tmp_path / "out")
    for name in ("policy.json", "certificate.json"):
        versions = json.loads((tmp_path / "out" / name).read_text())["versions"]
        assert versions["quintet"] == quintet.__version__
        assert versions["torch"] == torch.__version__
        assert "unknown" not in versions.values()


@pytest.fixture
def inexact(monkeypatch):
    """Programs whose parameters differ by a factor from the policy's."""
    whole = make.player_of

    def by(factor: float) -> None:
        def other(*given: Any) -> Any:
            player = whole(*given)

            def play(inputs: Any) -> Any:
                found = player(inputs)
                return found | {"params": (found["params"] * factor).astype(np.float32)}

            return play

        monkeypatch.setattr(make, "player_of", other)

    return by


@pytest.mark.parametrize(
    ("factor", "tolerance", "message"),
    [
        (1.0002, 1e-5, r"'params' differs by \S+, more than 1e-05; .*--tolerance \(at most 0.001"),
        (1.000002, 1e-7, r"'params' differs by \S+, more than 1e-07"),
    ],
)
def test_differences_beyond_the_tolerance(
    factor, tolerance, message, policy, inexact, tmp_path
) -> None:
    inexact(factor)
    with pytest.raises(ExportError, match=message):
        in_torch(policy, tmp_path / "out", tolerance=tolerance)
    assert not list(tmp_path.iterdir())


def test_a_larger_tolerance_is_told_and_code_of_others_is_not_loaded(
    policy, inexact, tmp_path, monkeypatch
) -> None:
    inexact(1.0002)
    found = in_torch(policy, tmp_path / "out", tolerance=1e-3)
    assert found.certificate.tolerance == 1e-3
    assert 1e-5 < found.certificate.compared.largest["params"] <= 1e-3
    assert "(up to 0.001 were allowed)" in found.summary()

    def here(folder: Path, limits: Any, *, trust: bool) -> Proof:
        return Proof({}, verify(folder, trust=trust).summary())

    # A process that imports PyTorch takes seconds; a slow test in test_verify.py has one.
    monkeypatch.setattr(command, "verify_apart", here)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UntrustedError, match="a program of PyTorch can run code"):
        verify(tmp_path / "out")
    assert found.version.startswith("torch")
    assert cli.main(["verify", str(tmp_path / "out")]) == 2
    assert cli.main(["verify", str(tmp_path / "out"), "--trust"]) == 0


def test_an_export_that_does_not_verify_is_not_written(policy, tmp_path, monkeypatch) -> None:
    def refuse(folder: Any, *, trust: bool) -> None:
        assert (folder / "certificate.json").exists()
        raise ExportError("no")

    monkeypatch.setattr(make, "verify", refuse)
    with pytest.raises(ExportError, match=r"^no$"):
        in_torch(policy, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "pickle"}, "format must be one of onnx, torch, numpy, got 'pickle'"),
        ({"steps": 3}, r"steps must be in 100 \.\. 1,000,000, got 3"),
        ({"tolerance": 0.1}, r"tolerance must be in 0 \.\. 0\.001, got 0\.1"),
        ({"observations": "none"}, "observations must be environment or space, got 'none'"),
        (
            {"observations": "space", "env": "CartPole-v1"},
            "env has no effect with observations=space",
        ),
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


def never(*_: Any) -> None:
    raise AssertionError("it went on")


@pytest.mark.parametrize(
    ("format", "package"), [("onnx", "onnxruntime"), ("numpy", "onnxscript"), ("onnx", "onnx")]
)
def test_missing_packages_are_told_first(format, package, policy, tmp_path, monkeypatch) -> None:
    def version(name: str) -> str:
        if name == package:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(programs, "version", version)
    monkeypatch.setattr(programs, "traced", never)
    with pytest.raises(
        ExportError, match=rf"an export to {format} needs {package}, which is not installed: pip"
    ):
        export(policy, tmp_path / "out", format, observations="space")


def test_steps_that_memory_can_not_hold_are_refused_first(policy, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**6)
    monkeypatch.setattr(recording, "of_space", never)
    with pytest.raises(ConfigError, match=r"10,000 recorded steps must have [\d,]+ bytes"):
        export(policy, tmp_path / "out", "torch", observations="space")
