"""BabyAI, as EnvPool gives it, from training to the saved policy."""

from pathlib import Path

import numpy as np
import pytest
import torch

import quintet

ENV = "BabyAI-GoToLocal-v0"
SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 1,
    "model.policy_hidden": [8],
    "model.encoder_kwargs": {"image_channels": 4, "text_hidden": 6},
    "eval.episodes": 0,
    "report.progress": False,
    "runtime.threads": 1,
}


def test_a_grid_is_learned_saved_and_played(tmp_path: Path):
    pytest.importorskip("envpool")
    runs = [quintet.train("ppo", ENV, 256, 5, tmp_path / name, SMALL) for name in ("a", "b")]
    one, other = (run.policy.publication.tensors for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)  # the same bytes twice
    assert one["network/encoder.blocks.0.film.weight"].any()  # the mission has begun to matter
    policy = quintet.load(tmp_path / "a")
    assert policy.description["model"]["encoder"] == "film_grid"
    policy.save(tmp_path / "saved")
    again = quintet.load(tmp_path / "saved")
    image = np.full((2, 7, 7, 3), (5, 2, 0), np.uint8)
    mission = np.zeros((2, 512), np.uint8)
    mission[:, :11] = list(b"go to a key")
    obs = {"direction": np.array([0, 3]), "image": image, "mission": mission}
    assert np.array_equal(policy.act(obs)[0], again.act(obs)[0])
    scores = quintet.evaluate(policy, episodes=2)
    assert len(scores.returns) == 2


def test_it_is_not_compiled(tmp_path: Path):
    pytest.importorskip("envpool")
    with pytest.raises(
        quintet.errors.ConfigError, match="must have an encoder that compiles to one graph"
    ):
        quintet.train("ppo", ENV, 256, 5, tmp_path / "a", SMALL | {"runtime.compile": "on"})
    assert not (tmp_path / "a").exists()
