"""Policies of a population that diverge are replaced by sound ones, and others go on."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_run_helpers import hashes

import quintet
from quintet.algorithms.appo.learner import APPOLearner
from quintet.errors import NonFiniteError
from quintet.observe.lineage import EVENTS, plot_lineage
from quintet.observe.report_files import read_metrics
from quintet.run.policy_run import PolicyRun
from quintet.runtime.sampler import GroupSampler
from quintet.types import Publication, Rollout

SMALL: dict[str, Any] = {
    "env.num_streams": 6,
    "unroll_steps": 8,
    "preset": "none",
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "report.interval_s": 0.0,
    "eval.episodes": 0,
    "runtime.kind": "serial",
    "population.size": 3,
}
OF: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_steps": 24},
    "appo": {"minibatch_steps": 16},
    "impala": {"batch_unrolls": 2},
    "acer": {"replay_capacity_steps_per_stream": 80, "replay_start_steps_per_stream": 8},
    "ddpg": {"replay_capacity_steps": 500, "batch_size": 8, "updates_per_env_step": 0.1},
}
TOTAL = 600
MIXED = {"env.num_streams": 4, "env.streams_per_group": 4}
RECURRENT = {"model.core": "gru", "model.core_size": 8, "model.activation": "relu"}
LAGS = {"runtime.kind": "lockstep", "runtime.lag": 1, "runtime.num_workers": 1}


def train(folder: Path, algo: str = "appo", env: str = "CartPole-v1", **given: Any) -> Any:
    rate = "actor_lr" if algo == "ddpg" else "learning_rate"
    initial = {"population.initial": {rate: [1e-3, 1e30, 1e-3]}}
    on_report = given.pop("on_report", None)
    reports = {} if on_report else {"report.interval_s": 1e6}  # each takes as long as an update
    options = {name.replace("__", "."): x for name, x in given.items()}
    config = SMALL | OF[algo] | initial | reports | options
    return quintet.train(algo, env, TOTAL, 4, folder, config, on_report)


def diverged(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    return [event for event in found if event["event"] == "diverged"]


@pytest.mark.parametrize(
    ("algo", "env", "given"),
    [
        pytest.param("ppo", "CartPole-v1", {}, marks=pytest.mark.slow),
        ("impala", "Pendulum-v1", MIXED),  # which is never given an action that is not finite
        pytest.param("acer", "Pendulum-v1", {}, marks=pytest.mark.slow),
        ("ddpg", "Pendulum-v1", {}),
        pytest.param("appo", "CartPole-v1", LAGS, marks=pytest.mark.slow),
        # Whose state would stay NaN.
        ("impala", "CartPole-v1", RECURRENT),
        pytest.param("appo", "CartPole-v1", RECURRENT | MIXED, marks=pytest.mark.slow),
    ],
)
def test_a_policy_that_diverges_is_replaced(
    algo: str,
    env: str,
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = dict[int, int]()
    publication, become = PolicyRun.publication, PolicyRun.become

    def publishes(self: PolicyRun) -> Publication:
        found = publication(self)
        published[self.folder.index] = found.version
        return found

    def becomes(self: PolicyRun, donor: PolicyRun, options: Any) -> None:
        become(self, donor, options)
        version, update = self.learner.version, self.learner.update
        assert version > published[self.folder.index], "or old rows would be its own"

        def updates(batch: Rollout, env_steps: int) -> None:
            assert batch.replayed or bool((batch.version[batch.valid] >= version).all())
            update(batch, env_steps)

        monkeypatch.setattr(self.learner, "update", updates)

    monkeypatch.setattr(PolicyRun, "publication", publishes)
    monkeypatch.setattr(PolicyRun, "become", becomes)
    folder = tmp_path / "run"
    assert train(folder, algo, env, **given).status == "finished"
    events = diverged(folder)
    assert {event["policy"] for event in events} == {1}, "once it is a copy it learns"
    assert len(events) == 1
    (event,) = events
    assert event["donor"] in (0, 2)
    assert max(event["before"].values()) == 1e30
    assert max(event["after"].values()) < 1e4
    assert " must be finite, got " in event["reason"]
    said = (folder / "log.txt").read_text()
    assert f"policy 1 has diverged: {event['reason']}; policy 1 (no objective) becomes" in said
    assert read_metrics(folder)[-1]["policy_1/population/copies"] >= 1
    assert plot_lineage(folder, tmp_path / "lineage.svg").exists()
    weights = quintet.load(folder / "policy_1" / "policy").publication.tensors
    assert all(bool(x.isfinite().all()) for x in weights.values())


def test_weights_that_are_not_finite_are_found_before_they_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update may reach them though its loss and its gradient were finite."""
    update = APPOLearner.update

    def overflows(self: APPOLearner, batch: Rollout, env_steps: int) -> None:
        update(self, batch, env_steps)
        if self.config.learning_rate == 1e30:
            self.trained.theta[0] = math.inf

    monkeypatch.setattr(APPOLearner, "update", overflows)
    train(tmp_path / "run")
    (event,) = diverged(tmp_path / "run")
    assert " must be finite, got inf after update 1" in event["reason"]
    assert event["reason"].endswith(" after update 1")


def test_a_run_goes_on_exactly_after_a_policy_was_replaced(tmp_path: Path) -> None:
    exact = {"checkpoint__interval_iterations": 3, "checkpoint__max_cut_frac": 1.0}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, **exact)
    train(parts, **exact, on_report=lambda report: report["env_steps"] > TOTAL / 2)
    assert diverged(parts) == diverged(whole)
    train(parts, **exact, resume="exact")
    assert (parts / EVENTS).read_text() == (whole / EVENTS).read_text()
    assert hashes(parts) == hashes(whole)


def test_without_a_sound_policy_the_run_ends(tmp_path: Path) -> None:
    """Copies of a policy that will diverge do, too; resuming ends in the same way."""
    initial = {"learning_rate": [1e30] * 3}
    for _ in range(2):
        with pytest.raises(
            NonFiniteError,
            match=r"policy \d has diverged, and no finite policy is left.*--learning-r",
        ):
            train(tmp_path / "run", population__initial=initial)


def test_without_pbt_the_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"policy 1 has diverged: .* The offending batch is"):
        train(tmp_path / "run", population__pbt=False)


def test_a_policy_is_named_whose_fault_is_found_in_a_report_or_checkpoint() -> None:
    class Late:
        updates = 3

        def metrics(self) -> dict[str, float]:
            raise NonFiniteError("finite losses are required")

        save = publication = metrics

    for count, said in ((2, "policy 1: finite losses"), (1, "^finite losses")):
        policy: Any = object.__new__(PolicyRun)
        policy.learner, policy.folder = Late(), type("F", (), {"num_policies": count, "index": 1})
        for part in (lambda p: p.report(1.0), PolicyRun.save):
            with pytest.raises(NonFiniteError, match=said):
                part(policy)


def test_recurrent_state_that_is_not_finite_begins_anew() -> None:
    """It is what weights have left that were replaced meanwhile."""
    sampler: Any = object.__new__(GroupSampler)
    sampler.actor = SimpleNamespace(
        state_specs={"policy/h0": None}, draw_noise=lambda *_: torch.zeros(2, 1)
    )
    sampler.plan, sampler.num_streams = SimpleNamespace(unroll_steps=2), 1
    sampler.generator, sampler.fresh, sampler.says_version = None, True, True
    state = {
        "policy/h0": torch.tensor([1.0, math.nan]),
        "1/policy/h0": torch.tensor([-math.inf, 2.0]),
        "private": torch.tensor([math.nan]),
    }
    sampler.slot, sampler.state = object(), state
    sampler.begin(sampler.slot)
    assert state["private"].isnan().all(), "it is the actor's own"
    assert state["policy/h0"].tolist() == [1.0, 0.0]
    assert state["1/policy/h0"].tolist() == [0.0, 2.0]


def test_no_environment_gets_an_action_that_is_not_finite() -> None:
    from quintet.ops.gaussian import DiagGaussian

    wrong = torch.tensor([[math.nan, math.inf, -math.inf]])
    for squash in ("none", "mean", "action"):
        family = DiagGaussian(3, low=(-1.0, 2.0, -4.0), high=(1.0, 3.0, -2.0), squash=squash)
        action = family.to_env(wrong)[0].tolist()
        assert all(
            a <= x <= b for a, x, b in zip((-1.0, 2.0, -4.0), action, (1.0, 3.0, -2.0), strict=True)
        )
    unbounded = DiagGaussian(3, low=(-math.inf,) * 3, high=(math.inf,) * 3, squash="none")
    assert unbounded.to_env(wrong).tolist() == [[0.0, 0.0, 0.0]]
