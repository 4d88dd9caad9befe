"""The examples do what they say, in a small way."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quintet
from quintet.errors import ConfigError

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_it_is_run(path: Path):
    assert f"python examples/{path.name}" in path.read_text()


def test_custom_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import custom_model

    config = {"unroll_steps": 64, "eval.episodes": 0, "model.encoder_kwargs": {"width": 16}}
    result = quintet.train(
        "ppo",
        "quintet.envs.toy:MaskedDoors",
        total_steps=4_000,
        seed=1,
        run_dir=tmp_path / "run",
        config=config,
        model=custom_model.DoorEncoder,
    )
    # A random choice gets 3.9 of 10.
    assert quintet.evaluate(result.policy, episodes=20).mean > 6.5
    obs = {
        "x": np.array([0.5], np.float32),
        "door": np.int64(1),
        "side": np.array([0], np.int8),
        "action_mask": np.ones(5, np.int8),
    }
    loaded = quintet.load(result.run_dir)
    assert loaded.act(obs)[0] == result.policy.act(obs)[0] == 1

    # Where the module is not to be found, loading says so.
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "custom_model")
    with pytest.raises(ConfigError, match=r"custom_model:DoorEncoder.*can't be imported"):
        quintet.load(result.run_dir)

    # In the folder of the module it is found again.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(EXAMPLES)
    assert quintet.load(result.run_dir).act(obs)[0] == 1


@pytest.mark.slow
def test_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import text_encoder

    result = quintet.train(
        "ppo",
        text_encoder.NamedDoor,
        total_steps=6_000,
        seed=1,
        run_dir=tmp_path / "run",
        config={"learning_rate": 2e-3, "eval.episodes": 0, "model.encoder_kwargs": {"width": 32}},
        model=text_encoder.Reader,
    )
    # Who does not read has a third of the doors right.
    assert quintet.evaluate(result.policy, episodes=100).mean > 0.6
    doors = np.array([0, 1, 2])
    said = [
        int(result.policy.act({"doors": doors, "sentence": f"open the {colour} door"})[0])
        for colour in text_encoder.COLOURS[:3]
    ]
    assert said == [0, 1, 2]


def test_custom_backend_has_the_layout_of_backends(monkeypatch: pytest.MonkeyPatch):
    from quintet.commands.cli import main
    from quintet.envs.backends import BACKENDS

    monkeypatch.syspath_prepend(EXAMPLES)
    import custom_backend

    monkeypatch.setattr(BACKENDS, "loaded", dict(BACKENDS.loaded))
    BACKENDS.register("mine", custom_backend.BACKEND)
    assert main(["check-env", "Walk-v0", "--steps", "200"]) == 0


@pytest.mark.slow
def test_custom_backend_trains(tmp_path: Path):
    words = [sys.executable, str(EXAMPLES / "custom_backend.py")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.8, done.stdout  # 1 is the optimum
