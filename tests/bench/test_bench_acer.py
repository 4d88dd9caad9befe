"""`quintet bench` of ACER's work: it is what the file says, and the limit is of the same work."""

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet import cli
from quintet.algorithms.acer import bench as bare_acer
from quintet.algorithms.acer.bench import ACERWork
from quintet.algorithms.acer.learner import ACERLearner
from quintet.algorithms.parts.bare import BareActorCritic
from quintet.bench import limits, measure, workloads
from quintet.bench.workloads import ENVIRONMENT_VARIABLE
from quintet.config.resolve import compose
from quintet.types import Spaces

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    import acer_step
finally:
    sys.path.pop(0)

SMALL = """
[small]
algo = "acer"
env_backend = "envpool"
env_id = "CartPole-v1"
num_envs = 4
obs = "vector"
rollout = 8
replay_ratio = 3
hidden = [8, 7]
activation = "relu"
shared_torso = true
optimizer = "rmsprop"
learning_rate = 1e-3
rmsprop_decay = 0.9
rmsprop_eps = 1e-4
gamma = 0.9
value_coef = 0.3
entropy_coef = 0.02
importance_clip = 7.0
trust_region = true
trust_region_delta = 0.7
tau = 0.2
max_grad_norm = 0.4
buffer_size = 3200
learning_starts = 1600
warmup_seconds = 0.05
seconds = 0.4
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a workload of a fraction of a second."""
    path = tmp_path / "workloads.toml"
    path.write_text(SMALL)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    monkeypatch.setattr(limits, "SECONDS", 0.02)
    monkeypatch.setattr(measure, "has_compiler", lambda: False)  # nothing to wait for
    return path


def options_of(work: ACERWork) -> dict[str, Any]:
    return compose(work.algo, [workloads.layer(work)]).config.flat()


def test_every_field_of_a_workload_is_in_the_configuration(small: Path) -> None:
    table = tomllib.loads(SMALL)["small"]
    work = acer_step.read("small")
    fields = {
        "env.id": "env_id",
        "env.backend": "env_backend",
        "env.num_streams": "num_envs",
        "unroll_steps": "rollout",
        "replay_ratio": "replay_ratio",
        "model.policy_hidden": "hidden",
        "model.activation": "activation",
        "model.shared_torso": "shared_torso",
        "learning_rate": "learning_rate",
        "rmsprop_decay": "rmsprop_decay",
        "rmsprop_epsilon": "rmsprop_eps",
        "gamma": "gamma",
        "value_coef": "value_coef",
        "entropy_coef": "entropy_coef",
        "importance_clip": "importance_clip",
        "trust_region": "trust_region",
        "trust_region_delta": "trust_region_delta",
        "tau": "tau",
        "max_grad_norm": "max_grad_norm",
    }
    for option, field in fields.items():
        assert options_of(work)[option] == table[field], option
    assert options_of(work)["replay_capacity_steps_per_stream"] == 3200 // 4
    assert options_of(work)["replay_start_steps_per_stream"] == 1600 // 4
    assert options_of(work)["lr_schedule"] == "constant"
    assert options_of(work)["rmsprop_epsilon_inside_sqrt"] is True
    assert options_of(work)["replay_sampling"] == "per_stream"
    assert options_of(work)["retrace_lambda"] == options_of(work)["c_bar"] == 1.0
    assert not options_of(work)["normalize_observations"]
    assert work.update_rows == 4 * 8
    unbounded = work.model_copy(update={"trust_region": False})
    assert options_of(unbounded)["trust_region"] is False


def test_the_record_begins_with_updates_from_replay(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_in_child", lambda *_: 1e-6)  # of the bare environment
    assert cli.main(["bench", "small", "--json", "--runtime.compile", "off"]) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    iterations = record["env_steps"] // 32
    assert record["env_steps"] == 32 * iterations
    drawn = record["updates"] - iterations
    # Poisson's, of mean 3; without replay there would be none.
    assert abs(drawn - 3 * iterations) < 5 * (3 * iterations) ** 0.5
    assert record["trained_samples"] == 32 * record["updates"]
    assert record["parameters"] == (4 * 8 + 8) + (8 * 7 + 7) + 2 * (7 * 2 + 2)
    assert record["us_per_env_step"]["replay"] > 0
    assert set(record["limit_us_per_env_step"]) == {"env", "act", "update"}
    assert record["limit_env_steps_per_s"] > 0


def test_the_region_waits_for_replay() -> None:
    """The warm-up is over and updates are made from fresh batches, but none from replay yet."""
    work = workloads.read("cartpole-acer").model_copy(update={"warmup_seconds": 1e-9})

    class Timer:
        passed = 0.0

        def seconds(self) -> dict[str, float]:
            self.passed += 1.0
            return {"learning": self.passed}

    class Counted:
        iteration, env_steps, updates = 1, 15_999, 1
        plan = ACERLearner.plan

    watch = measure.Stopwatch(work, Counted(), Counted(), Timer())  # type: ignore[arg-type]
    watch._env_steps = lambda: 0  # type: ignore[method-assign]
    watch.after_iteration()
    assert watch.first is not None
    assert watch.begin is None
    Counted.env_steps = 16_000
    watch.after_iteration()
    assert watch.begin is not None


def test_the_limit_is_of_the_updates_that_were_made(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is random where they are from replay."""
    asked: dict[str, float] = {}

    def told(*_: object, updates_per_step: float, **__: object) -> limits.Limits:
        asked["updates_per_step"] = updates_per_step
        return limits.Limits(1.0, 1.0, 1.0)

    monkeypatch.setattr(limits, "measure", told)
    record = measure.run(workloads.read("small"), workloads.scheduling(["--runtime.compile=off"]))
    assert asked["updates_per_step"] == record["updates"] / record["env_steps"]


def apart(learner: ACERLearner) -> None:
    """Weights that tell every part of the update, policies far from uniform."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for head in (learner.network.policy_head, learner.network.critic_head):
            for p in head.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=g))
        average = learner.trained.average
        if average is not None:
            average.copy_(learner.trained.theta)


def copy_of(learner: ACERLearner, work: ACERWork, spaces: Spaces) -> BareActorCritic:
    """The bare network with the learner's weights."""
    bare, network = work.network(spaces), learner.network
    with torch.no_grad():
        for mine, other in zip(ours(learner), theirs(bare), strict=True):
            other.copy_(mine)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in theirs(bare))
    return bare


def ours(learner: ACERLearner) -> list[torch.Tensor]:
    network = learner.network
    parts = (network.encoder, network.policy_head.linear, network.critic_head)
    return [p for part in parts for p in part.parameters()]


def theirs(bare: BareActorCritic) -> list[torch.Tensor]:
    return [p for part in (bare.shared, bare.policy, bare.value) for p in part.parameters()]


HARSH = {
    "importance_clip": 1.2,
    "trust_region_delta": 0.05,
    "tau": 0.4,
    "learning_rate": 0.5,
    "max_grad_norm": 0.5,
    "entropy_coef": 0.1,
}
"""What makes every bound hold some rows back."""


@pytest.mark.parametrize("form", ["eager", "graph"])
@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize(("name", "steps"), [("cartpole-acer", 4), ("pong-acer", 2)])
def test_the_bare_update_is_the_trained_one(
    name: str, steps: int, region: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same weights and batch: the weights after some updates, and so the average too."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the graph, eagerly
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", dict, raising=False
    )  # float32 on every processor
    small = {"num_envs": 3, "rollout": 5} if name == "pong-acer" else {}
    work = acer_step.read(name).model_copy(update={**HARSH, **small, "trust_region": region})
    spaces = acer_step.spaces_of(work)
    torch.manual_seed(0)
    data = bare_acer.batch(work, spaces)
    assert (data.discount == 0).any() or name == "pong-acer"
    learner = acer_step.learner_of(work, spaces, compiled=False)
    apart(learner)
    bare = copy_of(learner, work, spaces)
    before = [p.clone() for p in ours(learner)]
    update = bare_acer.update(work, bare, "fp32", data, form == "graph")
    batch = acer_step.rollout_of(work, data)
    for _ in range(steps):
        update()
        learner.update(batch, 0)
    for mine, other, old in zip(ours(learner), theirs(bare), before, strict=True):
        moved = (mine - old).abs().max().item()
        assert moved > 1e-4
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-3 * moved)
    told = learner.metrics()
    assert told["optim/grad_clip_frac"] > 0
    assert told["policy/rho_clip_frac"] > 0
    assert not region or 0 < told["trust_region/active_frac"] < 1


def test_replayed_rows_are_as_the_learner_gets_them() -> None:
    """A fresh batch of the same rows makes the same update."""
    work = acer_step.read("cartpole-acer")
    spaces = acer_step.spaces_of(work)
    torch.manual_seed(0)
    data = bare_acer.batch(work, spaces)
    batch = acer_step.rollout_of(work, data)
    learners = [acer_step.learner_of(work, spaces, compiled=False) for _ in range(2)]
    for learner, replayed in zip(learners, (True, False), strict=True):
        learner.update(replace(batch, replayed=replayed), 0)
    assert torch.equal(*(learner.trained.theta for learner in learners))
    assert [learner.metrics().get("replay/age_mean") for learner in learners] == [0.0, None]
