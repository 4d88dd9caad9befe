"""``policy/README.md``: what a model hub and a person read about a policy."""

import os
import re

import numpy as np
import pytest
import small_run_helpers
import yaml
from small_run_helpers import TOY

import quintet
from quintet.algorithms.ppo.config import PPOConfig
from quintet.options.run import RunConfig
from quintet.run.card import card
from quintet.system import files


def test_the_card_of_a_run(tmp_path):
    config = small_run_helpers.SMALL | {"eval.episodes": 4}
    result = quintet.train("ppo", TOY, 256, run_dir=tmp_path / "run", config=config)
    place = tmp_path / "run" / "policy" / "README.md"
    text = place.read_text()
    _, header, rest = text.split("---\n", 2)
    about = yaml.safe_load(header)
    assert about["library_name"] == "quintet"
    assert about["tags"] == ["reinforcement-learning", "deep-reinforcement-learning", "ppo", TOY]
    (model,) = about["model-index"]
    (found,) = model["results"]
    mean, std = (result.metrics[f"eval/return_{name}"] for name in ("mean", "std"))
    assert found["metrics"][0]["value"] == f"{mean:.2f} +/- {std:.2f}"
    assert found["dataset"]["name"] == TOY
    half = 1.96 * std / 3**0.5
    interval = f"{mean - half:,.2f} to {mean + half:,.2f}"
    assert f"mean return {mean:,.2f} (95% interval {interval})" in rest
    assert "over 4 whole episodes of greedy actions" in rest
    assert "| env_steps | 256 of 256 |" in rest
    options = files.parse_yaml(re.search(r"```yaml\n(.*)```", rest, re.S)[1])
    assert options["algo"] == "ppo"
    assert options["unroll_steps"] == 16
    assert str(tmp_path) not in text
    assert not (tmp_path / "run" / "best" / "README.md").exists()

    # It may be changed, which the same command leaves, and removed, after which it writes it again.
    place.write_text("mine")
    quintet.load(tmp_path / "run" / "policy")
    again = quintet.train("ppo", TOY, 256, run_dir=tmp_path / "run", config=config)
    assert (again.status, place.read_text()) == ("finished", "mine")
    os.remove(place)
    quintet.train("ppo", TOY, 256, run_dir=tmp_path / "run", config=config)
    assert place.read_text() == text
    os.remove(place)
    quintet.load(tmp_path / "run" / "policy").save(tmp_path / "run" / "policy")
    assert sorted(path.name for path in place.parent.iterdir()) == [
        "manifest.json", "meta.json", "policy.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("won", "of_returns", "of_wins"),
    [
        (
            50,
            "all 50 returns are equal, so there is no interval; with 95% confidence at most 7% of "
            "episodes have another return",
            "100% won (95% interval 93% to 100%)",
        ),
        (49, "95% interval 0.79 to 0.99", "98% won (95% interval 90% to 100%)"),
        (25, "95% interval -0.27 to 0.27", "50% won (95% interval 37% to 63%)"),
        (0, "all 50 returns are equal", "0% won (95% interval 0% to 7%)"),
    ],
)
def test_intervals_of_a_game_that_is_won_or_lost(won: int, of_returns: str, of_wins: str):
    """Returns are 1 and -1."""
    returns = np.array([1.0] * won + [-1.0] * (50 - won))
    report = {
        "eval/return_mean": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/return_min": float(returns.min()),
        "eval/return_max": float(returns.max()),
        "eval/episodes": 50.0,
        "eval/success_rate": won / 50,
    }
    config = RunConfig(algo="ppo", env={"id": "CartPole-v1"}, learner=PPOConfig())
    text = card(config, report)
    assert f"mean return {returns.mean():,.2f} ({of_returns}" in text
    assert of_wins in text


def test_without_evaluation_the_card_says_so(tmp_path):
    quintet.train("ppo", TOY, 256, run_dir=tmp_path / "run", config=small_run_helpers.SMALL)
    text = (tmp_path / "run" / "policy" / "README.md").read_text()
    assert "| score | not evaluated (`eval.episodes 0`) |" in text
    assert "model-index" not in text


def test_places_are_left_out(tmp_path):
    config = RunConfig(
        algo="ppo",
        env={"id": "CartPole-v1"},
        run_dir=tmp_path,
        learner=PPOConfig(),
        cluster={"address": "10.0.0.7:6379"},
    )
    text = card(config, {"env_steps": 10.0})
    assert "cluster.nodes_min" in text
    assert "10.0.0.7" not in text
    assert str(tmp_path) not in text
