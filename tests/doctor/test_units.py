"""Units of a saved policy that no longer answer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import quintet
from quintet.doctor import units
from quintet.policies.policy import Policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = {
        "env.num_streams": 2,
        "unroll_steps": 32,
        "minibatch_steps": 64,
        "eval.episodes": 0,
        "report.sinks": [],
    }
    return quintet.train("ppo", "Pendulum-v1", 128, run_dir=folder, config=config).policy


def test_a_new_network_has_no_dead_units(policy: Policy):
    found = units.units(policy)
    assert found is not None
    assert found.dead == 0


def test_units_at_their_bounds_are_found(policy: Policy, tmp_path: Path):
    policy.save(tmp_path / "sound")
    assert not [*units.dead_units(tmp_path / "sound")]
    tensors = {
        name: torch.full_like(x, 50.0) if name.endswith("0.bias") else x
        for name, x in policy.publication.tensors.items()
    }
    spoiled = Policy(policy.description, replace(policy.publication, tensors=tensors))
    spoiled.save(tmp_path / "spoiled")
    (found,) = units.dead_units(tmp_path / "spoiled")
    assert found.name == "dead-units"
    assert found.evidence["dead"] >= 64


def test_a_folder_without_a_policy_is_no_error(tmp_path: Path):
    assert not [*units.dead_units(tmp_path)]


@pytest.mark.parametrize("error", [IndexError("of its own"), SystemExit(3)])
def test_an_encoder_that_fails_on_invented_observations_is_no_error(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    def fails(_: Policy) -> None:
        raise error

    policy.save(tmp_path / "sound")
    monkeypatch.setattr(units, "units", fails)
    assert not [*units.dead_units(tmp_path / "sound")]
