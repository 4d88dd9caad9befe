"""What an update tells: scalars by name, and distributions and norms where they are asked for."""

from pathlib import Path

import pytest
import torch
from conformance_helpers import everything
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    MASKED,
    learn,
    make_learner,
    make_rollout,
    train,
)

import quintet
from quintet.algorithms import registry
from quintet.algorithms.ppo import metrics
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import Schedule
from quintet.models.config import ModelConfig
from quintet.observe import metrics as declared
from quintet.observe.report_files import read_metrics
from quintet.types import Spaces

ON = {"log_histograms": True, "log_gradients": True}
PLAIN = PPOConfig(minibatch_steps=16, num_epochs=2)
TOLD = PLAIN.model_copy(update=ON)
EVERY_TERM = PPOConfig(
    minibatch_steps=16,
    num_epochs=2,
    entropy_coef=0.1,
    policy_l2_coef=0.1,
    kl_coef_init=1.0,
    kl_cutoff_coef=1.0,
)

ONCE = {"reward", "reward_normalized", "advantage", "value_target"}
OF_LOSS = {
    "advantage_normalized",
    "value_prediction",
    "value_error",
    "logp_mu",
    "logp_pi",
    "ratio",
    "ratio_clipped",
    "objective",
    "objective_clipped",
    "objective_minimum",
    "entropy",
    "kl",
    "loss_policy",
    "loss_value",
}
BY_SPACE: dict[str, tuple[Spaces, set[str], set[str]]] = {
    "discrete": (DISCRETE, {"observation/obs", "action"}, set()),
    "masked": (MASKED, {"observation/x", "observation/action_mask", "action"}, set()),
    "continuous": (CONTINUOUS, {"observation/obs", "action"}, {"action_mean", "action_std"}),
}


def test_every_scalar_is_told_and_declared():
    registry.find("ppo")  # which declares its metrics
    found = learn(make_learner(EVERY_TERM), make_rollout(seed=1), 0)
    declared.check(found)
    losses = set(metrics.LOSSES)
    assert {"loss/policy", "loss/value", "loss/l2", "loss/entropy", "loss/kl"} <= losses
    expected = (
        losses
        | {f"{name}_last_epoch" for name in (*losses, "loss/total")}
        | {"loss/total", "loss/total_abs"}
    )
    expected |= {f"policy/{x}" for x in ["entropy", "clip_frac", "ratio_mean", "approx_kl", "kl"]}
    expected |= {f"policy/{x}" for x in ["kl_cutoff_frac", "kl_coef", "kl_coef_factor"]}
    expected |= {f"value/{x}" for x in ["prediction_mean", "target_mean", "explained_variance"]}
    expected |= {"reward/mean", "reward/normalized_mean", "data/valid_frac"}
    expected |= {"optim/learning_rate", "optim/grad_norm", "normalizer/reward_std"}
    expected |= {f"normalizer/observation_{x}_{y}" for x in ("mean", "std") for y in ("min", "max")}
    assert expected <= set(found)
    assert all(found[name] != 0.0 for name in losses)
    assert found["policy/entropy"] > 0 > found["loss/entropy"]


@pytest.mark.parametrize(("spaces", "data", "loss"), BY_SPACE.values(), ids=BY_SPACE)
def test_every_distribution_is_told_over_the_valid_rows(
    spaces: Spaces, data: set[str], loss: set[str]
):
    batch, learner = make_rollout(spaces, seed=1), make_learner(TOLD, spaces)
    learner.normalizers.merge(make_rollout(spaces, seed=2))  # else values are computed anew
    learner.update(batch, 0)
    found = {k.removeprefix("histogram/"): x for k, x in learner.histograms().items()}
    declared.check(learner.histograms())
    expected = ONCE | data | {f"{w}/{x}" for w in ("first", "last") for x in OF_LOSS | loss}
    layers = {
        f"{kind}/{name}"
        for kind in ("parameter", "gradient")
        for name in learner.trained.parameters
    }
    assert set(found) == expected | layers
    count = int(batch.valid.sum())
    assert all(x.ndim == 1 and not x.requires_grad for x in found.values())
    assert all(found[name].numel() % count == 0 for name in expected)
    assert torch.equal(found["reward"], batch.reward[batch.valid])
    assert torch.equal(found["action"], batch.action[batch.valid].flatten())
    assert torch.equal(found["first/logp_mu"], batch.record["logp_mu"][batch.valid])
    torch.testing.assert_close(
        found["value_target"] - found["advantage"], batch.record["value"][batch.valid]
    )
    for when in ("first", "last"):
        of = {name: found[f"{when}/{name}"] for name in OF_LOSS | loss}
        assert of["ratio_clipped"].min() >= 0.8
        assert of["ratio_clipped"].max() <= 1.2
        torch.testing.assert_close(of["ratio"], (of["logp_pi"] - of["logp_mu"]).exp())
        torch.testing.assert_close(of["objective"], of["ratio"] * of["advantage_normalized"])
        lower = torch.minimum(of["objective"], of["objective_clipped"])
        torch.testing.assert_close(of["objective_minimum"], lower)
        torch.testing.assert_close(of["loss_policy"], -lower)
        torch.testing.assert_close(of["loss_value"], 0.5 * of["value_error"].square())
        torch.testing.assert_close(
            of["value_error"], found["value_target"] - of["value_prediction"]
        )
    assert (found["first/ratio"] - found["last/ratio"]).abs().max() > 1e-4
    if loss:
        assert (found["first/action_std"] == 1.0).all()  # before the first step
        assert (found["last/action_std"] != 1.0).any()
        assert found["first/action_mean"].numel() == 2 * count


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_before_the_first_step_all_ratios_are_1(core: str):
    config = TOLD.model_copy(update={"unroll_steps": 16, "bptt_steps": 8})
    model = ModelConfig(policy_hidden=(8,), core=core, core_size=6 if core == "lstm" else 128)
    learner, _, batch = train(config, "CartPole-v1", 3, model=model)
    found = learner.histograms()
    assert found["histogram/first/ratio"].numel() == batch.valid.sum()
    torch.testing.assert_close(
        found["histogram/first/ratio"], torch.ones(int(batch.valid.sum())), atol=1e-6, rtol=0
    )
    assert (found["histogram/last/ratio"] - 1.0).abs().max() > 1e-4


def test_without_a_clip_there_is_nothing_clipped():
    config = PPOConfig(minibatch_steps=16, clip_epsilon=None, log_histograms=True)
    learner = make_learner(config)
    learner.update(make_rollout(seed=1), 0)
    names = {name.rsplit("/", 1)[-1] for name in learner.histograms()}
    assert OF_LOSS - names == {"ratio_clipped", "objective_clipped", "objective_minimum"}


def test_norms_are_those_of_the_last_step():
    learner = make_learner(TOLD.model_copy(update={"minibatch_steps": None, "num_epochs": 1}))
    start = learner.trained.theta.clone()
    found = learn(learner, make_rollout(seed=1), 0)
    grad = [found[f"grad_norm/{name}"] for name in learner.trained.parameters]
    assert sum(x * x for x in grad) ** 0.5 == pytest.approx(found["optim/grad_norm"], rel=3e-7)
    assert found["optim/grad_norm"] > 0.5  # that is, before clipping
    for name, parameter in learner.network.named_parameters():
        assert found[f"param_norm/{name}"] == pytest.approx(parameter.norm().item(), rel=1e-6)
    # Adam's first step goes against the sign of the gradient.
    gradient = torch.cat(
        [learner.histograms()[f"histogram/gradient/{name}"] for name in learner.trained.parameters]
    )
    moved = learner.trained.theta - start
    clear = gradient.abs() > 1e-3
    assert clear.sum() > 20
    assert torch.equal(moved[clear].sign(), -gradient[clear].sign())
    again = learn(learner, make_rollout(seed=2), 0)
    assert again.keys() == found.keys()
    grad = [again[f"grad_norm/{name}"] for name in learner.trained.parameters]
    assert sum(x * x for x in grad) ** 0.5 == pytest.approx(again["optim/grad_norm"], rel=3e-7)


def test_nothing_is_computed_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    def never(*_: object) -> None:
        raise AssertionError("computed")

    told = make_learner(TOLD)
    plain = make_learner(PLAIN)
    told.update(make_rollout(seed=1), 0)
    monkeypatch.setattr(metrics, "loss_values", never)
    monkeypatch.setattr(metrics, "batch_values", never)
    loss, calls = plain.trained.loss, []
    monkeypatch.setattr(plain.trained, "loss", lambda *args: calls.append(1) or loss(*args))
    plain.update(make_rollout(seed=1), 0)
    assert len(calls) == plain.updates
    assert plain.trained.gradient is None
    assert plain.histograms() == {}
    assert everything(plain) == everything(told)


def test_a_batch_without_a_row_to_use_tells_no_distribution_of_another():
    config = TOLD.model_copy(update={"unfinished_episode": "drop", "log_gradients": False})
    learner, batch = make_learner(config), make_rollout(seed=1)
    learner.update(batch, 0)
    assert learner.histograms()
    batch.terminated[:] = batch.truncated[:] = False
    learner.update(batch, 0)
    assert learner.histograms() == {}


def test_a_run_writes_them_for_tensorboard_and_nowhere_else(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = ON | {
        "env.num_streams": 8,
        "unroll_steps": 32,
        "minibatch_steps": 64,
        "num_epochs": 1,
        "eval.episodes": 0,
        "report.interval_s": 0,
        "report.progress": False,
        "env.backend": "gymnasium",
    }
    done = quintet.train("ppo", "CartPole-v1", 512, 1, tmp_path / "run", config)
    events = EventAccumulator(str(done.run_dir / "tensorboard"), {"histograms": 0}).Reload()
    reported = [report["env_steps"] for report in read_metrics(done.run_dir)]
    assert len(reported) > 1
    for name in ("first/ratio", "observation/obs", "gradient/value_head.weight"):
        shown = events.Histograms(f"histogram/{name}")
        assert [x.step for x in shown] == reported
    assert events.Histograms("histogram/reward")[0].histogram_value.num == reported[0]
    assert not any(name.startswith("histogram/") for name in done.metrics)
    for file in ("metrics.jsonl", "progress.csv"):
        text = (done.run_dir / file).read_text()
        assert "histogram/" not in text
        assert "grad_norm/value_head.weight" in text


def test_saved_numbers_of_a_schedule_are_those_that_it_knows() -> None:
    """So that a checkpoint's can be checked before they are taken; others are no metrics."""
    config = PPOConfig(clip_schedule="linear")
    used, fresh = Schedule(config, 100), Schedule(config, 100)
    used.begin(40)
    saved = used.save()
    assert saved.keys() == fresh.save().keys()
    fresh.load(saved | {"told/policy/else": "x"})
    assert fresh.metrics == used.metrics != Schedule(config, 100).metrics
