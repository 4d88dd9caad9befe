"""What happens once per iteration: schedules, penalty weight, early stop, targets, normalisers."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ppo_helpers import CONTINUOUS, DISCRETE, make_learner, make_rollout, of_version, valid_rows
from ppo_helpers import learn as iterate
from torch import Tensor, nn

from quintet.algorithms.parts.minibatches import Chunks, Rows, ended_rows
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.algorithms.ppo.metrics import LOSSES
from quintet.ops.policy_losses import adaptive_kl_coef
from quintet.runtime.delivery import within_budget
from quintet.types import Rollout, State

GOLDEN = {
    case["name"]: case
    for case in json.loads((Path(__file__).parents[1] / "golden" / "returns.json").read_text())[
        "cases"
    ]
}


def on_policy(learner: PPOLearner, batch: Rollout) -> Rollout:
    """The batch as if the learner's own network had acted in it, by the statistics with which it is
    learned from.
    """
    learner.normalizers.merge_first(batch, learner.version)
    obs = learner.normalizers.observations(
        {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
    )
    with torch.no_grad():
        params, value, _ = learner.network(obs)
        logp = learner.family.log_prob(params, batch.action.flatten(0, 1))
    shape = batch.reward.shape
    record = {
        "logp_mu": logp.view(shape),
        "params_mu": params.view(*shape, -1),
        "value": value.view(shape),
    }
    return replace(batch, record=record)


def mean_kl(learner: PPOLearner, rows: Rows, index: Tensor) -> float:
    with torch.no_grad():
        params, _, _ = learner.network(rows.obs)
        return learner.family.kl(rows.params_mu, params)[index].mean().item()


@pytest.mark.parametrize("kl_target", [1e-5, 1.0])
def test_beta_moves_once_by_the_updated_policy(kl_target: float):
    config = PPOConfig(kl_coef_init=1.0, kl_target=kl_target, learning_rate=1e-2, num_epochs=3)
    learner = make_learner(config.model_copy(update={"minibatch_steps": 16}))
    batch = on_policy(learner, make_rollout(seed=1))
    rows, index = valid_rows(learner, batch)
    before = mean_kl(learner, rows, index)
    assert before < 1e-6
    metrics = iterate(learner, batch, 0)
    assert learner.updates > 9
    after = mean_kl(learner, rows, index)
    assert metrics["policy/kl"] == pytest.approx(after, rel=1e-6)
    assert 1e-4 < after < 0.5
    assert metrics["policy/kl_coef"] == 1.0  # what the loss had
    assert learner.schedule.beta == (1.5 if kl_target < after else 1 / 1.5)
    more = iterate(learner, batch, 0)["policy/kl"]
    assert learner.schedule.beta == pytest.approx(1.5**2 if kl_target < more else 1 / 1.5**2)


class Given(nn.Module):
    """Means that are given, and unit widths."""

    def forward(
        self, obs: dict[str, Tensor], state: State, is_first: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        mean = obs["mean"]
        return torch.cat([mean, torch.zeros_like(mean)], -1), mean[:, 0], state


def test_golden_adaptive_kl():
    case = GOLDEN["adaptive_kl"]
    params = case["params"]
    config = PPOConfig(
        kl_coef_init=params["initial_beta"],
        kl_target=params["target"],
        kl_tolerance=params["tolerance"],
    )
    learner = make_learner(config, CONTINUOUS)
    learner.network = Given()
    zeros, chunks = torch.zeros(4), Chunks((1, 4), 1, torch.device("cpu"))
    for kl, beta in zip(case["inputs"]["mean_kl"], case["expected"]["beta_after"], strict=True):
        # Unit Gaussians d apart have KL d^2 / 2; the last row counts nowhere.
        shift = torch.full((4, 2), math.sqrt(kl))
        shift[3] = 100.0
        rows = Rows(
            {"mean": shift}, zeros > 0, zeros, zeros, torch.zeros(4, 4), zeros, zeros, zeros, {}
        )
        before = learner.schedule.beta
        use = torch.tensor([[True, True, True, False]])
        found = learner.schedule.adapt(learner._mean_kl(rows, chunks, use))
        assert found["policy/kl"] == pytest.approx(kl, rel=1e-6)
        assert learner.schedule.beta == pytest.approx(beta, abs=1e-10)
        assert found["policy/kl_coef_factor"] == pytest.approx(beta / before)


def test_beta_stays_without_the_penalty():
    learner = make_learner(PPOConfig(kl_cutoff_coef=1.0))
    metrics = iterate(learner, make_rollout(), 0)
    assert metrics["policy/kl"] > 0
    assert learner.schedule.beta == 0.0
    assert adaptive_kl_coef(0.0, 1.0, target=0.01, tolerance=0.3) > 0.0


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-7, 1 / 1.5), (1.0, 1.5)])
def test_kl_adaptive_rate(kl_target: float, factor: float):
    learner = make_learner(PPOConfig(lr_schedule="kl_adaptive", kl_target=kl_target))
    batch = on_policy(learner, make_rollout(seed=1))
    metrics = iterate(learner, batch, 9_000)
    assert metrics["policy/kl"] < 0.5
    assert learner.schedule.learning_rate == pytest.approx(3e-4 * factor)
    assert metrics["optim/learning_rate"] == 3e-4  # what the steps were made with
    learner.update(batch, 9_000)
    assert learner.schedule.learning_rate == pytest.approx(3e-4 * factor**2)


def test_golden_linear_rate():
    case = GOLDEN["linear_lr"]
    params = case["params"]
    per_update = params["T"] * params["B"]
    learner = make_learner(PPOConfig(learning_rate=params["lr"]), total=params["total"])
    for update, rate in zip(case["inputs"]["update"], case["expected"]["lr"], strict=True):
        before = learner.trained.theta.clone()
        metrics = iterate(learner, make_rollout(), int(update) * per_update)
        assert metrics["optim/learning_rate"] == pytest.approx(rate, abs=1e-15)
        assert torch.equal(learner.trained.theta, before) == (rate == 0.0)
        largest = (learner.trained.theta - before).abs().max().item()
        # Ten steps of Adam, none much larger than its rate.
        assert 9 * rate <= largest <= 15 * rate


def test_constant_rate():
    learner = make_learner(PPOConfig(lr_schedule="constant"))
    assert iterate(learner, make_rollout(), 9_000)["optim/learning_rate"] == 3e-4


def test_clip_schedule():
    def learn(schedule: str, clip: float, env_steps: int) -> PPOLearner:
        config = PPOConfig(clip_schedule=schedule, clip_epsilon=clip, lr_schedule="constant")
        learner = make_learner(config)
        learner.update(make_rollout(), env_steps)
        return learner

    falling = learn("linear", 0.2, 7_500)
    assert falling.schedule.clip_epsilon == pytest.approx(0.05)
    assert torch.equal(falling.trained.theta, learn("constant", 0.05, 7_500).trained.theta)
    assert torch.equal(
        learn("linear", 0.2, 0).trained.theta, learn("constant", 0.2, 0).trained.theta
    )
    assert (falling.trained.theta - learn("constant", 0.2, 7_500).trained.theta).abs().max() > 1e-5


def test_target_kl_stops_the_epochs():
    config = PPOConfig(minibatch_steps=16, num_epochs=8, learning_rate=3e-3, lr_schedule="constant")
    learner = make_learner(config)
    batch = on_policy(learner, make_rollout(seed=1))
    parts = math.ceil(int(batch.valid.sum()) / 16)
    told, _ = watched(learner, batch)
    kls = [x["policy/approx_kl"] for x in told]
    by_epoch = torch.tensor(kls).view(8, parts).mean(1).tolist()
    assert by_epoch == sorted(by_epoch)
    for last in (1, 4):
        # Between the KLs of two epochs: the loop ends with the first above 1.5 x target_kl.
        bound = (by_epoch[last - 1] + by_epoch[last]) / 2 / 1.5
        other = make_learner(config.model_copy(update={"target_kl": bound}))
        told, metrics = watched(other, batch)
        assert len(told) == other.updates == (last + 1) * parts
        assert metrics["optim/epochs"] == last + 1
        total = math.fsum(x["loss/total"] for x in told[-parts:]) / parts
        assert metrics["loss/total_last_epoch"] == pytest.approx(total)
    never = make_learner(config.model_copy(update={"target_kl": by_epoch[-1]}))
    never.update(batch, 0)
    assert never.updates == 8 * parts


def watched(learner: PPOLearner, batch: Rollout) -> tuple[list[dict[str, float]], dict[str, float]]:
    """What every optimizer step of one update tells, and the update's metrics."""
    told: list[dict[str, float]] = []
    step = learner.trained.step

    def watch(*args) -> None:
        step(*args)
        last = learner.trained.recent(learner.trained.pending - 1)
        told.append({name: x.item() for name, x in last.items()})

    learner.trained.step = watch
    return told, iterate(learner, batch)


def test_metrics_are_means_and_maxima_over_the_steps():
    learner = make_learner(PPOConfig(minibatch_steps=16, num_epochs=3, entropy_coef=0.01))
    told, metrics = watched(learner, on_policy(learner, make_rollout(seed=1)))
    assert len(told) > 9
    for name in told[0]:
        each = [x[name] for x in told]
        expected = max(each) if name == "policy/ratio_max_error" else math.fsum(each) / len(each)
        assert metrics[name] == pytest.approx(expected, rel=1e-6, abs=1e-12), name
    first = told[0]["policy/ratio_max_error"]
    assert metrics["policy/ratio_first_max_error"] == first <= 1e-5
    assert metrics["policy/ratio_max_error"] > 1e-3
    losses = [metrics[name] for name in LOSSES]
    assert metrics["loss/total_abs"] == pytest.approx(sum(map(abs, losses)))


@pytest.mark.parametrize("size", [16, None])
def test_refreshing_per_epoch_equals_iterations_of_one_epoch(size: int | None):
    frozen = PPOConfig(minibatch_steps=size, lr_schedule="constant", update_normalizers=False)
    per_epoch = {"refresh_advantages": "per_epoch", "num_epochs": 3}
    once = {"value_source": "recomputed", "num_epochs": 1}
    batch = make_rollout(seed=1)
    refreshed, single, stale = (
        make_learner(frozen.model_copy(update=x))
        for x in (per_epoch, once, once | {"num_epochs": 3})
    )
    refreshed.update(batch, 0)
    for _ in range(3):
        single.update(batch, 0)
    stale.update(batch, 0)
    assert torch.equal(refreshed.trained.theta, single.trained.theta)
    assert (refreshed.trained.theta - stale.trained.theta).abs().max() > 1e-6


def test_values_of_raw_observations_are_computed_again():
    """Those of actors that had no statistics yet, also in later batches."""

    def trained(value: float, version: int) -> torch.Tensor:
        learner = make_learner(PPOConfig(value_clip=0.2))
        for seed, of in ((1, 0), (2, version)):
            batch = make_rollout(seed=seed)
            learner.update(of_version(batch, of, value), 0)
        return learner.trained.theta.clone()

    assert torch.equal(trained(3.0, 0), trained(-40.0, 0))
    assert not torch.equal(trained(3.0, 1), trained(-40.0, 1))


@pytest.mark.parametrize("source", ["recorded", "recomputed"])
def test_value_source(source: str):
    learner = make_learner(PPOConfig(value_source=source, normalize_advantage="none"))
    learner.update(make_rollout(seed=1), 0)
    batch = make_rollout(seed=2)
    noise = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    other = replace(batch, record=batch.record | {"value": noise})
    rows, other_rows = (learner._rows(x, x.valid)[0] for x in (batch, other))
    used = (rows.target - rows.advantage).view(16, 4)
    if source == "recorded":
        expected = batch.record["value"]
        assert not torch.allclose(rows.advantage, other_rows.advantage)
    else:
        with torch.no_grad():
            expected = learner.network(rows.obs)[1].view(16, 4)
        assert torch.equal(rows.advantage, other_rows.advantage)
        assert torch.equal(rows.target, other_rows.target)
    torch.testing.assert_close(used[batch.valid], expected[batch.valid], rtol=0, atol=5e-7)


def test_advantages_by_loop():
    """GAE with terminations, truncations and invalid rows, from the definition."""
    config = PPOConfig(
        gamma=0.9, gae_lambda=0.7, normalize_advantage="none", reward_normalizer="none"
    )
    learner, batch = make_learner(config), make_rollout(seed=3)
    rows, _ = valid_rows(learner, batch)
    with torch.no_grad():
        last = learner.network.value(
            learner.normalizers.observations({"obs": batch.obs["obs"][-1]})
        )
    value = torch.cat([batch.record["value"], last[None]]).tolist()
    reward, adv = batch.reward.tolist(), rows.advantage.view(16, 4).tolist()
    checked = 0
    for b in range(4):
        following = 0.0
        for t in reversed(range(16)):
            ended = batch.terminated[t, b] or batch.truncated[t, b]
            bootstrap = 0.0 if batch.terminated[t, b] else value[t + 1][b]
            delta = reward[t][b] + 0.9 * bootstrap - value[t][b]
            following = delta + (0.0 if ended else 0.9 * 0.7 * following)
            if batch.valid[t, b]:
                assert adv[t][b] == pytest.approx(following, abs=1e-6)
                checked += 1
    assert checked == batch.valid.sum()


def test_unfinished_episodes_are_dropped():
    batch = make_rollout(seed=2)
    kept = ended_rows(batch)
    ended = batch.terminated | batch.truncated
    for b in range(4):
        for t in range(16):
            assert kept[t, b] == (batch.valid[t, b] and bool(ended[t:, b].any()))
    dropped = batch.valid & ~kept
    assert dropped.sum() >= 4
    results = []
    for reward in (batch.reward, torch.where(dropped, 99.0, batch.reward)):
        learner = make_learner(PPOConfig(unfinished_episode="drop", reward_normalizer="none"))
        metrics = iterate(learner, replace(batch, reward=reward), 0)
        results.append((learner.trained.theta.clone(), metrics["reward/mean"]))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] == pytest.approx(batch.reward[kept].mean().item())


def test_truncation_as_termination():
    config = PPOConfig(normalize_advantage="none")
    batch = make_rollout(seed=3)
    assert batch.truncated.any()
    ends = replace(batch, terminated=batch.terminated | batch.truncated)
    ends = replace(ends, truncated=torch.zeros_like(batch.truncated))
    old = make_learner(config.model_copy(update={"truncation_as_termination": True}))
    ours = make_learner(config)
    as_ended, _ = valid_rows(old, batch)
    really_ended, _ = valid_rows(ours, ends)
    bootstrapped, _ = valid_rows(ours, batch)
    assert torch.equal(as_ended.advantage, really_ended.advantage)
    assert torch.equal(as_ended.target, really_ended.target)
    rows = batch.truncated.flatten()
    assert not torch.allclose(as_ended.target[rows], bootstrapped.target[rows])


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_one_full_batch_is_the_vanilla_policy_gradient(spaces, clip: float | None):
    config = PPOConfig(
        num_epochs=1,
        minibatch_steps=None,
        clip_epsilon=clip,
        normalize_advantage="none",
        normalize_observations=False,
        reward_normalizer="none",
        max_grad_norm=None,
    )
    learner, reference = make_learner(config, spaces), make_learner(config, spaces)
    batch = on_policy(learner, make_rollout(spaces, seed=4))
    rows, index = valid_rows(reference, batch)
    params, value, _ = reference.network(rows.obs)
    logp = reference.family.log_prob(params, rows.action)
    loss = -(logp * rows.advantage)[index].mean()
    loss = loss + 0.5 * (value - rows.target)[index].square().mean()
    parameters = list(reference.trained.parameters.values())
    gradient = torch.cat([x.flatten() for x in torch.autograd.grad(loss, parameters)])
    metrics = iterate(learner, batch, 0)
    # After one step Adam's first moment is a tenth of the gradient.
    torch.testing.assert_close(
        10.0 * learner.trained.memory["exp_avg"], gradient, rtol=1e-6, atol=1e-6
    )
    assert metrics["optim/grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-6)
    expected = -config.learning_rate * gradient / (gradient.abs() + config.adam_epsilon)
    # A step is 3e-4; weights near 1 are rounded by 6e-8.
    torch.testing.assert_close(
        learner.trained.theta - reference.trained.theta, expected, rtol=0, atol=2e-7
    )


@pytest.mark.parametrize("mode", ["return_std", "step_std"])
def test_rewards_are_divided_by_what_was_seen(mode: str):
    learner = make_learner(PPOConfig(reward_normalizer=mode, reward_norm_clip=1.5))
    first, second = make_rollout(seed=1), make_rollout(seed=2)
    # before any data the identity, without a clip
    assert (first.reward.abs() > 1.5).any()
    assert torch.equal(learner.normalizers.rewards(first.reward), first.reward)
    learner.update(first, 0)
    source = first.return_carry if mode == "return_std" else first.reward.double()
    std = (source[first.valid].var(correction=0) + 1e-3).sqrt().float()
    expected = (second.reward / std).clamp(-1.5, 1.5)
    torch.testing.assert_close(learner.normalizers.rewards(second.reward), expected)
    learner.update(second, 0)
    both = [source[first.valid]]
    both += [
        (second.return_carry if mode == "return_std" else second.reward.double())[second.valid]
    ]
    variance = torch.cat(both).var(correction=0)
    torch.testing.assert_close(learner.normalizers.rewards.moments.variance, variance)


@pytest.mark.parametrize("bound", [None, 0.0, -1.0])
def test_reward_clip_is_off(bound: float | None):
    learner = make_learner(PPOConfig(reward_norm_clip=bound))
    learner.normalizers.rewards.moments.merge(torch.tensor([0.0, 2.0]))
    reward = torch.tensor([[1e6, -1e6]])
    torch.testing.assert_close(learner.normalizers.rewards(reward), reward / (1.0 + 1e-3) ** 0.5)


def test_rewards_past_the_budget_reach_no_advantage_within_it():
    whole = make_rollout(seed=1)
    batch, _ = within_budget(whole, 30)
    past = whole.valid & ~batch.valid
    reward = torch.where(past, 50.0, batch.reward)
    learner = make_learner(PPOConfig(normalize_advantage="none", reward_normalizer="none"))
    one, _ = learner._rows(batch, batch.valid)
    other, _ = learner._rows(replace(batch, reward=reward), batch.valid)
    used = batch.valid.flatten()
    assert torch.equal(one.advantage[used], other.advantage[used])
    # The episodes go on past the budget: a cut, and no ending.
    assert torch.equal(batch.truncated, whole.truncated)
    assert batch.trace_cut is not None
    assert (batch.trace_cut & batch.valid).any()
    assert (batch.not_cut_t[batch.trace_cut] == 0).all()


def test_drop_without_any_ending_learns_nothing_and_goes_on():
    batch = make_rollout(seed=1)
    never = torch.zeros_like(batch.terminated)
    batch = replace(batch, terminated=never, truncated=never, valid=~never)
    learner = make_learner(PPOConfig(unfinished_episode="drop"))
    before = learner.trained.theta.clone()
    metrics = iterate(learner, batch, 0)
    assert metrics["optim/epochs"] == 0
    assert learner.updates == 0
    assert learner.version == 1
    assert torch.equal(learner.trained.theta, before)
    assert learner.normalizers.rewards.moments.count == batch.valid.sum()
