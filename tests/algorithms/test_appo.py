"""APPO's chunks, iterations, and what is recorded and refused."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from appo_helpers import (
    STEPS,
    STREAMS,
    TWO_CHOICES,
    Linear,
    make_batch,
    make_learner,
    minibatches_of,
)
from conformance_helpers import NUMBERS, Case, Run, Task, options_without_effect
from gymnasium import spaces as gym
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    SMALL,
    TOTAL,
    learn,
    make_rollout,
    of_version,
)

from quintet.algorithms import registry
from quintet.algorithms.appo.chunks import Chunks, minibatch_indices, share
from quintet.algorithms.appo.config import (
    APPOConfig,
    Knobs,
    check,
    planned_updates,
)
from quintet.algorithms.appo.learner import APPOLearner, make_actor
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.trained import knobs_of
from quintet.errors import ConfigError
from quintet.models.config import resolve_model
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.types import Rollout

# Chunks


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_a_chunk_is_rows_of_a_stream_with_the_one_behind_and_the_state_before(steps: int) -> None:
    batch = make_rollout(DISCRETE, STEPS, STREAMS)
    count = STEPS // steps + 1
    state = torch.arange(count * STREAMS).view(count, STREAMS, 1).float()
    batch = replace(batch, state={"h": state})
    chunks = Chunks.of(batch, batch.reward, batch.terminated, {}, steps)
    number = 0
    for start in range(0, STEPS, steps):
        for b in range(STREAMS):
            rows = slice(start, start + steps)
            behind = slice(start, start + steps + 1)
            assert torch.equal(chunks.obs["obs"][:, number], batch.obs["obs"][behind, b])
            assert torch.equal(chunks.is_first[:, number], batch.is_first[behind, b])
            for name in ("action", "reward", "valid", "not_cut_t"):
                assert torch.equal(getattr(chunks, name)[:, number], getattr(batch, name)[rows, b])
            assert torch.equal(
                chunks.record["logp_mu"][:, number], batch.record["logp_mu"][rows, b]
            )
            assert chunks.state["h"][number].item() == state[start // steps, b].item()
            number += 1
    assert chunks.valid.shape == (steps, number)
    taken = chunks.take(torch.tensor([3, 1]))
    assert torch.equal(taken.action, chunks.action[:, [3, 1]])
    assert torch.equal(taken.state["h"], chunks.state["h"][[3, 1]])


def test_a_pass_has_every_chunk_once_and_leaves_out_minibatches_without_a_valid_row() -> None:
    valid = torch.ones(3, 12, dtype=torch.bool)
    g = torch.Generator().manual_seed(0)
    parts, skipped = minibatch_indices(valid, 4, g)
    assert skipped == 0
    assert torch.cat(parts).sort().values.tolist() == list(range(12))
    assert torch.cat(parts).tolist() != list(range(12))
    again, _ = minibatch_indices(valid, 4, g)
    assert torch.cat(again).tolist() != torch.cat(parts).tolist()
    valid[:, 4:8] = False
    valid[1, 5] = False
    parts, skipped = minibatch_indices(valid, 4, None)
    assert skipped == 1
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert [share(parts[0], rank, 2).tolist() for rank in (0, 1)] == [[0, 1], [2, 3]]


# Iterations


def test_the_ratio_has_bounds_behind_which_no_gradient_flows() -> None:
    learner = make_learner(ratio_clamp=(0.9, 1.1), clip_epsilon=10.0)
    batch = make_batch(learner)
    batch.record["logp_mu"].add_(2.0)  # every ratio is far below the bound
    chunks = learner._chunks(batch)
    knobs = knobs_of(Knobs, learner.config, first=1.0)
    (minibatch,) = minibatches_of(learner, chunks, knobs)
    parameters = learner.trained.parameters
    _, outputs = learner.loss(parameters, minibatch, Knobs(*map(torch.tensor, knobs)))
    rho = outputs.forward.log_rho[chunks.valid].exp()
    assert rho.unique().tolist() == pytest.approx([0.9])
    gradients = torch.autograd.grad(
        outputs.losses["loss/policy"], [*parameters.values()], materialize_grads=True
    )
    assert not any(each.any() for each in gradients)


def test_no_more_passes_once_the_losses_of_the_policy_stand_still() -> None:
    batch = make_batch(make_learner())
    still = make_learner(num_epochs=5, learning_rate=1e-12)
    assert learn(still, batch)["optim/epochs"] == 2.0
    assert still.updates == 2
    moving = make_learner(num_epochs=5, learning_rate=1e-2)
    assert learn(moving, batch)["optim/epochs"] == 5.0
    assert still.version == 2


@pytest.mark.parametrize("exploration_loss", ["entropy", "symmetric_kl"])
@pytest.mark.parametrize(("coef", "passes"), [(0.1, 6.0), (0.0, 2.0)])
def test_passes_go_on_while_the_exploration_loss_changes(
    exploration_loss: str, coef: float, passes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal advantages the policy loss is 0 in every pass."""
    options = {} if coef == 0 else {"exploration_loss": exploration_loss}
    learner = make_learner(num_epochs=6, learning_rate=1e-2, entropy_coef=coef, **options)
    estimates = learner._estimates

    def equal(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        target, advantage = estimates(*given)
        return target, torch.ones_like(advantage)

    monkeypatch.setattr(learner, "_estimates", equal)
    assert learn(learner, make_batch(make_learner()))["optim/epochs"] == passes


def test_a_pass_is_compared_with_the_one_before() -> None:
    """Not with all before, whose mean changes by less."""
    options = {"num_epochs": 4, "learning_rate": 1e-2}
    batch, losses = make_batch(make_learner()), list[float]()
    compared = "loss/policy", "loss/entropy"
    learner = make_learner(early_stop_tolerance=0.0, **options)
    fold = learner.trained.fold

    def watched() -> None:
        found = [learner.trained.recent(k, k + 1) for k in range(4)]
        losses.extend(sum(each[name].item() for name in compared) for each in found)
        fold()

    learner.trained.fold = watched  # type: ignore[method-assign]
    learner.update(batch, 0)
    changes = [abs(after - before) for before, after in pairwise(losses)]
    for tolerance, passes in ((0.9 * min(changes), 4.0), (1.1 * changes[0], 2.0)):
        stops = make_learner(early_stop_tolerance=tolerance, **options)
        assert learn(stops, batch)["optim/epochs"] == passes


def test_several_minibatches_are_in_another_order_in_each_pass() -> None:
    learner = make_learner(bptt_steps=2, minibatch_steps=4, minibatches_per_iteration=8)
    chunks, knobs = learner._chunks(make_batch(learner)), knobs_of(Knobs, learner.config, first=1.0)
    given = chunks.action[:, chunks.valid.any(0)]
    passes = [
        torch.cat(
            [each.chunks.record["logp_mu"] for each in minibatches_of(learner, chunks, knobs)], 1
        )
        for _ in range(2)
    ]
    assert given.numel()
    assert not torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0], chunks.record["logp_mu"])


def test_a_minibatch_without_valid_rows_is_left_out_and_counted() -> None:
    """In every pass."""
    options = {"minibatch_steps": STEPS, "minibatches_per_iteration": STREAMS, "num_epochs": 2}
    learner = make_learner(**options)
    batch = make_batch(learner)
    batch.valid[:, 1:] = False
    told = learn(learner, batch)
    assert told["optim/skipped_minibatches"] == 6.0
    assert learner.updates == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_a_minibatch_of_one_or_two_valid_rows_is_finite(rows: int) -> None:
    learner = make_learner()
    batch = make_batch(learner)
    batch.valid[:] = False
    batch.valid[0, :rows] = True
    told = learn(learner, batch)
    assert all(math.isfinite(x) for x in told.values())
    assert learner.trained.theta.isfinite().all()
    moments = learner.trained.memory["exp_avg_sq"]
    assert told["optim/second_moment_max"] == moments.max().item() > 0


def test_advantages_that_hardly_differ_stay_small() -> None:
    learner = make_learner(use_vtrace=False, gamma=0.0)
    batch = make_batch(learner)
    batch.record["value"].zero_()
    batch.reward.mul_(1e-5)
    told = learn(learner, batch)
    assert 1e-3 < told["advantage/normalized_max"] < 0.1


def test_what_invalid_rows_hold_does_not_matter() -> None:
    learners = [make_learner(), make_learner()]
    for learner, ratio, rest in zip(learners, (0.0, math.nan), (0.0, 1e9), strict=True):
        batch = make_batch(learner)
        batch.record["logp_mu"][~batch.valid] = ratio
        batch.record["value"][~batch.valid] = batch.reward[~batch.valid] = rest
        learner.update(batch, 0)
    assert torch.equal(learners[0].trained.theta, learners[1].trained.theta)


def test_statistics_take_a_batch_after_it_was_learned_from() -> None:
    learner = make_learner(reward_normalizer="step_std", normalize_observations=True)
    merge, updates = learner.normalizers.merge, list[int]()

    def watched(batch: Rollout) -> None:
        updates.append(learner.updates)
        merge(batch)

    learner.normalizers.merge = watched  # type: ignore[method-assign]
    batch = make_batch(learner)
    learner.update(batch, 0)
    learner.update(batch, 0)
    assert updates == [1, 2]
    std = learner.normalizers.rewards.moments.variance.add(1e-3).sqrt().float()
    found = learner._chunks(batch).reward[batch.valid]
    torch.testing.assert_close(found, batch.reward[batch.valid] / std, rtol=1e-4, atol=1e-6)
    assert abs(std - 1.0) > 1e-3


@pytest.mark.parametrize("use_vtrace", [False, True])
def test_values_of_raw_observations_are_computed_again(use_vtrace: bool) -> None:
    """Those of actors that had no statistics yet, also in later batches."""

    def trained(value: float, version: int) -> torch.Tensor:
        learner = make_learner(use_vtrace=use_vtrace, value_clip=0.2, normalize_observations=True)
        for seed, of in ((1, 0), (2, version)):
            batch = make_batch(learner, seed=seed)
            learner.update(of_version(batch, of, value), 0)
        return learner.trained.theta.clone()

    assert torch.equal(trained(3.0, 0), trained(-40.0, 0))
    assert not torch.equal(trained(3.0, 1), trained(-40.0, 1))


def test_the_rate_follows_the_schedule() -> None:
    batch = make_batch(make_learner())
    constant, linear = make_learner(), make_learner(lr_schedule="linear")
    for learner in (constant, linear):
        learner.update(batch, TOTAL // 4)
    assert constant.learning_rate == 1e-4
    assert linear.learning_rate == pytest.approx(0.75e-4)
    adaptive = make_learner(lr_schedule="kl_adaptive", kl_target=1e-6)
    told = learn(adaptive, make_batch(adaptive))
    assert told["policy/kl"] > 2e-6
    assert adaptive.learning_rate == pytest.approx(1e-4 / 1.5)


def test_the_rate_follows_the_kl_after_the_steps() -> None:
    """Of the policy that acted itself, which is as far as nothing from what it learns from."""
    case = Case(
        "appo", Task(NUMBERS, gym.Discrete(3)),
        {
            "lr_schedule": "kl_adaptive", "learning_rate": 0.01, "kl_target": 1e-4,
            "num_epochs": 1, "minibatches_per_iteration": 1,
        },
    )  # fmt: skip
    learner = case.learner()
    run = Run(case, learner)
    batch = run.collect()[0]
    run.close()
    told = learn(learner, batch)
    assert told["policy/kl"] > 2e-4  # of the updated policy
    assert told["optim/learning_rate"] == 0.01  # of the step, and not of the next one
    assert learner.learning_rate == pytest.approx(0.01 / 1.5)


def test_the_kl_of_the_rate_is_that_of_the_policy_that_acted_to_the_new_one() -> None:
    learner, network = make_learner(lr_schedule="kl_adaptive"), Linear((3, 3))
    batch = make_batch(learner)
    learner.network = network  # type: ignore[assignment]
    learner.trained.parameters = dict(network.named_parameters())  # type: ignore[assignment]
    log_mu = batch.record["params_mu"].log_softmax(-1)
    log_pi = network(batch.obs)[0][:-1].log_softmax(-1)
    wanted = (log_mu.exp() * (log_mu - log_pi)).sum(-1)[batch.valid].mean()
    assert learner._mean_kl(learner._chunks(batch)) == pytest.approx(wanted.item(), rel=1e-4)


def test_a_copy_goes_on_as_its_donor_would() -> None:
    """Its rate and Adam's correction follow the donor's steps, not its own."""
    options: dict[str, Any] = {"lr_schedule": "kl_adaptive", "kl_target": 1e-6}
    donor, copy = make_learner(**options), make_learner(**options)
    batch = make_batch(donor)
    for _ in range(3):
        donor.update(batch, 0)
    copy.update(batch, 0)
    copy.load(donor.save(), counters=False)
    assert copy.learning_rate == donor.learning_rate == pytest.approx(1e-4 / 1.5**3)
    for each in (donor, copy):
        each.update(batch, 0)
    assert torch.equal(copy.trained.theta, donor.trained.theta)
    assert (copy.updates, donor.updates) == (2, 4)


def test_the_first_ratio_is_that_before_the_first_step() -> None:
    """Of rows of the learner's own weights it is 1, and no longer in the second pass."""
    options = {"learning_rate": 0.01, "num_epochs": 2, "minibatches_per_iteration": 1}
    case = Case("appo", Task(NUMBERS, gym.Discrete(3)), options)
    learner = case.learner()
    run = Run(case, learner)
    told = learn(learner, run.collect()[0])
    run.close()
    assert told["policy/ratio_first_max_error"] < 1e-5
    assert told["policy/ratio_max"] > 1.001


def test_betas_are_adams() -> None:
    """The first step is the rate's size whatever the betas are; the second shows them."""
    batch, steps = make_batch(make_learner()), {}
    for betas in ((0.9, 0.999), (0.5, 0.999), (0.9, 0.9)):
        learner = make_learner(adam_beta1=betas[0], adam_beta2=betas[1])
        reference = make_learner()
        optimizer = torch.optim.Adam([reference.trained.theta], lr=1e-4, betas=betas, eps=1e-6)
        for _ in range(2):
            knobs = knobs_of(Knobs, reference.config, first=1.0)
            (minibatch,) = minibatches_of(reference, reference._chunks(batch), knobs)
            loss, _ = reference.loss(
                reference.trained.parameters, minibatch, Knobs(*map(torch.tensor, knobs))
            )
            parts = torch.autograd.grad(loss, [*reference.trained.parameters.values()])
            gradient = torch.cat([part.flatten() for part in parts])
            reference.trained.theta.grad = gradient * min(1.0, 4.0 / gradient.norm().item())
            with torch.no_grad():
                optimizer.step()
            learner.update(batch, 0)
        torch.testing.assert_close(
            learner.trained.theta, reference.trained.theta, atol=1e-8, rtol=0
        )
        steps[betas] = learner.trained.theta.clone()
    assert not torch.equal(steps[0.9, 0.999], steps[0.5, 0.999])
    assert not torch.equal(steps[0.9, 0.999], steps[0.9, 0.9])


# What is recorded and refused


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"logp_mu", "value"}),
        ({"value_clip": None}, {"logp_mu"}),
        ({"value_clip": None, "use_vtrace": False}, {"logp_mu", "value"}),
        ({"kl_coef": 0.1}, {"logp_mu", "value", "params_mu"}),
        ({"lr_schedule": "kl_adaptive"}, {"logp_mu", "value", "params_mu"}),
    ],
)
def test_an_actor_records_what_the_loss_reads(options: dict[str, Any], names: set[str]) -> None:
    config = APPOConfig(**options)
    assert set(make_actor(config, resolve_model(SMALL, DISCRETE), DISCRETE).record_specs) == names


def test_old_rows_are_bounded_and_batches_are_whole_unrolls() -> None:
    config = APPOConfig(
        unroll_steps=16, bptt_steps=8, minibatch_steps=24, minibatches_per_iteration=4
    )
    model = resolve_model(SMALL, DISCRETE)
    plan = APPOLearner(config, model, DISCRETE, Setup(4, TOTAL, (1, 2), torch.device("cpu"))).plan
    assert (plan.unroll_steps, plan.columns_per_batch, plan.state_every) == (16, 6, 8)
    assert plan.max_policy_lag == 40
    assert plan.versions_per_batch == 4
    many = Setup(300, TOTAL, (1, 2), torch.device("cpu"))
    # 50 batches of 6 columns, of 4 updates each, end together; and a batch may wait already.
    assert APPOLearner(config, model, DISCRETE, many).plan.max_policy_lag == 51 * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unroll_steps": 10, "bptt_steps": 4}, "unroll_steps must be a multiple of bptt_steps=4"),
        (
            {"unroll_steps": 8, "minibatch_steps": 12},
            "must be a multiple of unroll_steps=8, got 12",
        ),
        (
            {"unroll_steps": 8, "bptt_steps": 4, "minibatch_steps": 12},
            "minibatch_steps * minibatches_per_iteration must be a multiple of unroll_steps=8",
        ),
    ],
)
def test_sizes_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    assert any(said in fault for fault in check(APPOConfig(**options)))


def test_a_minibatch_that_nobody_gave_is_made_to_fit() -> None:
    def found(learners: int = 1, by: str = "default of x", **options: Any) -> int:
        values = {"env.id": "CartPole-v1", "runtime.num_learners": learners, **options}
        layers = [Layer(by, {"minibatch_steps": 1024}), Layer("call", values)]
        size: int = compose("appo", layers).config.learner.minibatch_steps
        return size

    assert found() == 1024
    assert found(unroll_steps=48) == 21 * 48
    with pytest.raises(ConfigError, match="must be a multiple of unroll_steps=48, got 1024"):
        found(unroll_steps=48, by="file")
    # Two of them are whole unrolls; of two learners each has whole chunks.
    assert found(unroll_steps=80, bptt_steps=8, minibatches_per_iteration=2) == 25 * 40
    assert found(2, unroll_steps=80, bptt_steps=8, minibatches_per_iteration=2) == 12 * 80
    with pytest.raises(ConfigError, match="multiple of unroll_steps=2000, got 1024"):
        found(unroll_steps=2000)  # none fits
    with pytest.raises(ConfigError, match="minibatches_per_iteration = 32000, got 10000"):
        found(minibatch_steps=32_000, total_env_steps=10_000)


def test_planned_updates_are_of_all_passes() -> None:
    config = APPOConfig(minibatch_steps=128, num_epochs=3)
    assert planned_updates(config, 8, 12_800) == 300


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rho_bar": 0.5}, "c_bar must be at most rho_bar=0.5, got 1"),
        ({"ratio_clamp": (0.5, 0.9)}, "ratio_clamp must be two numbers"),
        ({"gae_lambda": 0.9}, "gae_lambda=0.9 has no effect without use_vtrace=false"),
        ({"use_vtrace": False, "vtrace_lambda": 0.9}, "vtrace_lambda=0.9 has no effect"),
        (
            {"gamma": 0.0, "vtrace_lambda": 0.9},
            "vtrace_lambda=0.9 has no effect without .* gamma > 0",
        ),
        ({"gamma": 0.0, "c_bar": 0.5}, "c_bar=0.5 has no effect without .* gamma > 0"),
        (
            {"gamma": 0.0, "use_vtrace": False, "gae_lambda": 0.5},
            "gae_lambda=0.5 has no effect without .* gamma > 0",
        ),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        compose("appo", [Layer("call", {"env.id": "CartPole-v1"} | options)])


def test_the_uniform_policy_is_one_of_discrete_actions() -> None:
    config = APPOConfig(exploration_loss="symmetric_kl")
    for spaces, refused in ((CONTINUOUS, True), (TWO_CHOICES, False), (DISCRETE, False)):
        idle = options_without_effect(config, resolve_model(SMALL, spaces), spaces)
        assert ("exploration_loss" in idle) == refused
    assert registry.find("appo").config is APPOConfig
