"""Runs in environments whose tensors stay on their device, against runs that see arrays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_run_helpers import SMALL
from tensor_helpers import Counting

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError
from quintet.run import sampling
from quintet.runtime.device_sampling import DeviceSampling
from quintet.runtime.sampler import SerialSampling

CARTPOLE, GRID = "torch/CartPole-v1", "torch/Grid-v0"
RECURRENT = {
    "bptt_steps": 16,
    "model.core": "lstm",
    "model.core_size": 8,
    "env.kwargs": {"velocities": False},
}
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


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the classes that sampled."""
    make, names = sampling.make_sampling, []

    def told(*given: Any) -> Any:
        found = make(*given)
        names.append(type(found).__name__)
        return found

    monkeypatch.setattr("quintet.run.launch.make_sampling", told)
    return names


@pytest.mark.parametrize(
    ("algo", "env", "own"),
    [
        ("ppo", CARTPOLE, {"env.reward_clip": "soft_asymmetric"}),
        pytest.param("ppo", CARTPOLE, RECURRENT, marks=pytest.mark.slow),
        ("ppo", GRID, {"env.kwargs": {"masked": True, "size": 5}}),
        ("impala", "torch/Pendulum-v1", {"batch_unrolls": 3}),
        pytest.param(
            "appo",
            CARTPOLE,
            {"minibatch_steps": 32, "minibatches_per_iteration": 1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ppo", "ppo lstm", "ppo mask", "impala", "appo"],
)
def test_weights_are_those_of_a_run_with_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[str], algo, env, own
) -> None:
    mine = train(tmp_path / "a", algo, env, **own)
    monkeypatch.setattr("quintet.run.sampling.staying", lambda *_: None)
    theirs = train(tmp_path / "b", algo, env, **own)
    assert made == [DeviceSampling.__name__, SerialSampling.__name__]
    assert same(tmp_path / "a", tmp_path / "b")
    if own.get("env.reward_clip") is None:  # whose tanh is another in NumPy
        assert mine.metrics["env_steps"] == theirs.metrics["env_steps"] == 1_000


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
def test_what_needs_the_host_is_told(tmp_path: Path, made: list[str], own, why: str) -> None:
    train(tmp_path / "a", steps=200, **own)
    log = (tmp_path / "a" / "log.txt").read_text()
    assert f"at every step, because of {why}" in log
    assert made == ["SerialSampling"]


def test_a_learner_with_replay_steps_arrays(tmp_path: Path, made: list[str]) -> None:
    train(tmp_path / "a", "acer", steps=400, replay_start_steps_per_stream=50)
    assert "acer, which keeps a replay" in (tmp_path / "a" / "log.txt").read_text()
    assert made == ["SerialSampling"]


def test_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintet.options import machine

    monkeypatch.setattr(machine, "_present", lambda device, *_: device)
    monkeypatch.setattr("quintet.run.sampling.tensors_device", lambda _: "cpu")
    with pytest.raises(ConfigError, match=r"runtime\.device must be cpu, where the tensors of"):
        train(tmp_path / "a", **{"runtime.device": "cuda"})


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_makers_of_tensors_are_stepped_on_their_device(
    tmp_path: Path, made: list[str], algo: str
) -> None:
    found = train(tmp_path / "a", algo, make_counting, steps=1_024)
    assert found.policy.env.id == "test_device_envs:make_counting"
    assert made == ["DeviceSampling"]


def test_a_given_one_is_stepped_on_its_device(tmp_path: Path, made: list[str]) -> None:
    """By a learner whose default kind has workers, too."""
    own = {name: x for name, x in OFF_POLICY.items() if name != "env.num_streams"}
    with pytest.warns(UserWarning, match="no evaluation"):
        quintet.train(
            "impala", Counting(4), 256, run_dir=tmp_path / "a", config=own | {"batch_unrolls": 4}
        )
    assert made == ["DeviceSampling"]


def make_counting(num_envs: int) -> Counting:
    return Counting(num_envs)
