"""Runs in environments of tensors; tests/gpu has those whose tensors stay on a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_run_helpers import SMALL
from tensor_helpers import Counting

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError

CARTPOLE = "torch/CartPole-v1"
OFF_POLICY = {name: SMALL[name] for name in SMALL if name not in ("minibatch_steps", "num_epochs")}


def train(run_dir: Path, algo: str = "ppo", env: Any = CARTPOLE, steps: int = 1_000, **own: Any):
    small = SMALL if algo == "ppo" else OFF_POLICY
    small = small | {"batch_unrolls": 4} if algo == "impala" else small
    return quintet.train(algo, env, steps, run_dir=run_dir, config=small | own)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run_dir / "checkpoints", warn=pytest.fail)
    return found.tensors["policy"] | found.tensors["learner"]


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def through_the_host(run_dir: Path) -> bool:
    return "at every step, because of" in (run_dir / "log.txt").read_text()


def test_a_resumed_run_gives_the_same_bytes(tmp_path: Path) -> None:
    own = {"checkpoint.interval_iterations": 2, "checkpoint.max_cut_frac": 1.0}
    train(tmp_path / "a", **own)
    train(tmp_path / "b", **own)
    assert same(tmp_path / "a", tmp_path / "b")
    stopped = quintet.train(
        "ppo",
        CARTPOLE,
        1_000,
        run_dir=tmp_path / "c",
        config=SMALL | own | {"report.interval_s": 0.0},
        on_report=lambda report: report["env_steps"] > 300,
    )
    assert stopped.status == "stopped"
    train(tmp_path / "c", resume="exact", **own)
    assert same(tmp_path / "a", tmp_path / "c")


def test_policies_are_evaluated_and_learn(tmp_path: Path) -> None:
    found = train(tmp_path / "a", steps=2_000, **{"eval.episodes": 2})
    assert found.metrics["eval/return_mean"] > 5
    assert quintet.evaluate(found.policy, episodes=2).env.backend == "pytorch"


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"env.frame_stack": 2}, "env.frame_stack=2"),
        ({"env.streams_per_group": 2}, "env.streams_per_group=2"),
    ],
)
def test_what_needs_the_host_is_told(tmp_path: Path, own, why: str) -> None:
    train(tmp_path / "a", steps=200, **own)
    assert f"at every step, because of {why}" in (tmp_path / "a" / "log.txt").read_text()


def test_a_learner_with_replay_steps_arrays(tmp_path: Path) -> None:
    train(tmp_path / "a", "acer", steps=400, replay_start_steps_per_stream=50)
    assert "acer, which keeps a replay" in (tmp_path / "a" / "log.txt").read_text()


def test_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet.options import machine

    monkeypatch.setattr(machine, "_present", lambda device, *_: device)
    monkeypatch.setattr("quintet.run.sampling.tensors_device", lambda _: "cpu")
    with pytest.raises(ConfigError, match=r"runtime\.device must be cpu, where the tensors of"):
        train(tmp_path / "a", **{"runtime.device": "cuda"})


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_makers_of_tensors_are_stepped_on_their_device(tmp_path: Path, algo: str) -> None:
    found = train(tmp_path / "a", algo, make_counting, steps=1_024)
    assert found.policy.env.id == "test_device_envs:make_counting"
    assert not through_the_host(tmp_path / "a")


def test_a_given_one_is_stepped_on_its_device(tmp_path: Path) -> None:
    """By a learner whose default kind has workers, too."""
    own = {name: x for name, x in OFF_POLICY.items() if name != "env.num_streams"}
    with pytest.warns(UserWarning, match="no evaluation"):
        quintet.train(
            "impala", Counting(4), 256, run_dir=tmp_path / "a", config=own | {"batch_unrolls": 4}
        )
    assert not through_the_host(tmp_path / "a")


def make_counting(num_envs: int) -> Counting:
    return Counting(num_envs)
