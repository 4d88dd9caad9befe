"""ACER's average policy where networks have a memory, and warm starts of what is not learned."""

from pathlib import Path
from typing import Any

import pytest
import torch
from acer_helpers import apart
from conformance_helpers import CONTINUOUS, NUMBERS, STREAMS, Case, Task
from gymnasium import spaces as gym
from torch.testing import assert_close

import quintet
from quintet.algorithms.parts.acting import masked
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import compose

CHOICE = Task(NUMBERS, gym.Discrete(3))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_the_average_policy_sees_the_recorded_states_and_the_beginnings(
    core: str, shared: bool
) -> None:
    """As a network of its weights does."""
    case = Case("acer", CHOICE, core=core, network={"shared_torso": shared})
    learner, other = apart(case.learner(), size=0.3), case.learner()
    other.trained.theta.copy_(learner.trained.average)
    batch = next(each for some in case.batches(3) for each in some if each.replayed)
    assert batch.is_first[1:].any()
    flat = learner._unrolls(batch)
    assert all(x.any() for x in flat.state.values())
    inputs = (flat.obs, flat.state, flat.is_first)
    found = learner._average(inputs, flat)
    with torch.no_grad():
        wanted, current = (
            masked(each.family, each.network(*inputs)[0], flat.obs).view(-1, STREAMS, 3)
            for each in (other, learner)
        )
    assert_close(found, wanted[:-1], rtol=0.0, atol=1e-6)
    assert (found - current[:-1]).abs().max() > 0.01


@pytest.mark.parametrize("learn_std", [False, True])
def test_a_spread_that_is_not_learned_is_that_of_the_options(learn_std: bool) -> None:
    def make(std: float) -> Any:
        network = {"action_std_init": std, "shared_torso": False}
        return Case("acer", CONTINUOUS, {"learn_std": learn_std}, network=network).learner()

    donor, own = apart(make(0.3)), make(0.1)
    before = {name: x.clone() for name, x in own.weights().items()}
    own.warm_start(donor.weights())
    kept = 0
    for name, x in own.weights().items():
        spread = name.endswith("std_param") and not learn_std
        assert torch.equal(x, before[name] if spread else donor.weights()[name]), name
        kept += spread
    assert kept == (0 if learn_std else 2)  # of the policy and of its average


@pytest.mark.parametrize("kind", ["state_dependent", "softplus"])
def test_other_spreads_than_a_number_must_be_learned(kind: str) -> None:
    given = {"env.id": "Pendulum-v1", "model.action_std": kind}
    with pytest.raises(ConfigError, match=f"action_std={kind} has no effect without learn_std, wi"):
        compose("acer", [Layer("call", given)])
    compose("acer", [Layer("call", given | {"learn_std": True})])


def test_an_average_begins_with_the_policy_of_a_donor_that_has_none(tmp_path: Path) -> None:
    def train(folder: Path, **options: Any) -> Any:
        config = {
            "eval.episodes": 0, "report.progress": False, "env.num_streams": 2, "unroll_steps": 10,
            "replay_start_steps_per_stream": 40, "learning_rate": 1e-12, "report.sinks": ["jsonl"],
            "replay_ratio": 1.0, "replay_capacity_steps_per_stream": 200,
        }  # fmt: skip
        return quintet.train("acer", "CartPole-v1", 200, 1, folder, config | options)

    train(tmp_path / "donor", trust_region=False)
    train(tmp_path / "run", init_from=str(tmp_path / "donor"))
    told = (tmp_path / "run" / "log.txt").read_text()
    assert "begins with" in told
    found = quintet.checkpoints.checkpoint.latest(tmp_path / "run" / "checkpoints", warn=print)
    assert found is not None
    tensors = {name: x for part in found.tensors.values() for name, x in part.items()}
    averages = [name for name in tensors if name.startswith("average/")]
    assert averages
    for name in averages:
        assert_close(tensors[name], tensors["network/" + name.removeprefix("average/")])
