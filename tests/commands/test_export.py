"""``quintet export``, from a run to a folder that verifies."""

import json
import re
from pathlib import Path

import pytest
from installed_helpers import need
from small_run_helpers import TOY

from quintet.commands.cli import main

need("exports must have the extra export", "onnxscript")

SMALL = (
    *("--env.num-streams", "4", "--unroll-steps", "16", "--minibatch-steps", "32"),
    *("--num-epochs", "1", "--model.policy-hidden", "8", "--eval.episodes", "2"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    words = ["train", "ppo", "--env", TOY, "--total-steps", "256", "--run-dir", str(folder)]
    assert main([*words, *SMALL]) == 0
    return folder


def test_from_a_run(run, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run), "--out", str(out), "--steps", "200"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{out}: ppo on {TOY}, 200 steps")
    assert f"from {TOY} (" in said
    assert sorted(path.name for path in out.iterdir()) == [
        "certificate.json", "example.py", "policy.json", "policy.onnx", "steps.npz"
    ]  # fmt: skip
    about = json.loads((out / "policy.json").read_text())
    assert [port["name"] for port in about["inputs"]] == ["obs", "noise"]
    assert about["inputs"][1]["meaning"].startswith("0: the greedy action; to sample, [0:3]")
    assert [port["name"] for port in about["outputs"]] == ["action", "params", "value"]
    home = str(Path(__file__).parent).encode()  # no file names a place on this machine
    assert not any(home in path.read_bytes() for path in out.iterdir())
    assert main(["verify", str(out)]) == 0
    assert main(["export", str(run), "--out", str(out)]) == 1
    assert "DIR must be new or empty" in capsys.readouterr().err


def test_the_best_policy_on_samples_for_pytorch(run, tmp_path, capsys) -> None:
    words = ["export", str(run), "--out", str(tmp_path / "out"), "--checkpoint", "best"]
    words += ["--format", "torch", "--samples", "--steps", "100", "--tolerance", "1e-4"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "samples of the observation space" in said
    assert "(up to 0.0001 were allowed)" in said


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "quintet export must get a run and a folder"),
        (["{run}"], 2, "quintet export must get a run and a folder"),
        (["{run}x", "--out", "{out}"], 1, "which does not exist"),
        (["{run}", "--out", "{out}", "--steps", "1"], 2, "steps must be in 100"),
        (
            ["{run}", "--out", "{out}", "--format", "torch", "--env", "quintet.envs.toy:Target"],
            2,
            r"policy's \w+ space is .*, but quintet\.envs\.toy:Target has",
        ),
    ],
)
def test_mistakes(words, status, message, run, tmp_path, capsys) -> None:
    given = [word.format(run=run, out=tmp_path / "out") for word in words]
    assert main(["export", *given]) == status
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (tmp_path / "out").exists()
