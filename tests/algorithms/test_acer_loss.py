"""ACER's loss and its gradient at the weights of linear networks, by hand in float64, and what must
not change them.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from acer_helpers import STREAMS, apart, config, double_sum, loss_of, make_batch, make_learner
from ppo_helpers import CONTINUOUS, DISCRETE, HYBRID, MASKED
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from quintet.algorithms.acer.learner import ACERLearner
from quintet.algorithms.parts.unrolls import Unrolls
from quintet.models.config import ModelConfig
from quintet.runtime.batch import select
from quintet.types import ACTION_MASK, Rollout, Spaces

Weights = dict[str, Tensor]


class Sequence(NamedTuple):
    """What `double_sum` reads."""

    reward: Tensor
    discount_t: Tensor
    not_cut_t: Tensor


class Terms(NamedTuple):
    """Of a batch, by row: the policy's statistics as a function of the weights, the statistics of
    the average policy, the objective and the KL as functions of statistics, and the critic's
    errors.
    """

    f: Tensor
    average: Tensor
    objective: Any
    kl: Any
    errors: dict[str, Tensor]


def sequence(learner: ACERLearner, batch: Rollout) -> Sequence:
    gamma = learner.config.gamma * (~batch.terminated).double()
    return Sequence(batch.reward.double(), gamma, batch.not_cut_t.double())


def observed(batch: Rollout) -> Tensor:
    """The only leaf that is no mask, ``[T + 1, B, 3]``."""
    (found,) = (x for name, x in batch.obs.items() if name != ACTION_MASK)
    return found.double()


def log_f(f: Tensor) -> Tensor:
    """0 where f is 0, as the term is that it is in."""
    return torch.where(f > 0, f, 1.0).log()


def average_of(learner: ACERLearner) -> Weights:
    """The average policy's weights, where there is one."""
    found = learner.trained.averaged() or learner.trained.parameters
    return {name: x.detach().double() for name, x in found.items()}


def discrete(learner: ACERLearner, weights: Weights, batch: Rollout, _: Any) -> Terms:
    options, obs = learner.config, observed(batch)

    def policy(of: Weights) -> Tensor:
        logits = obs @ of["policy_head.linear.weight"].T + of["policy_head.linear.bias"]
        if ACTION_MASK in batch.obs:
            logits = logits.masked_fill(batch.obs[ACTION_MASK] == 0, -torch.inf)
        return logits.softmax(-1)

    f = policy(weights)
    values = obs @ weights["critic_head.linear.weight"].T + weights["critic_head.linear.bias"]
    pi, taken = f.detach(), batch.action.unsqueeze(-1)
    v = (pi * values.detach()).sum(-1)
    q = values[:-1].gather(-1, taken).squeeze(-1)
    mu = batch.record["params_mu"].double().softmax(-1)
    rho_all = torch.where(pi[:-1] > 0, pi[:-1] / mu, 0.0)
    rho = torch.where(batch.valid, rho_all.gather(-1, taken).squeeze(-1), 1.0)
    trace = options.retrace_lambda * rho.clamp(max=options.c_bar)
    target = double_sum(sequence(learner, batch), q.detach(), v, trace)
    weight = rho.clamp(max=options.importance_clip) * (target - v[:-1])
    left_out = torch.where(rho_all > 0, 1 - options.importance_clip / rho_all, 0.0).clamp_min(0)
    left_out = left_out * pi[:-1] * (values[:-1].detach() - v[:-1].unsqueeze(-1))

    def objective(f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logs = log_f(f)
        truncated = logs.gather(-1, taken).squeeze(-1) * weight
        return truncated, (logs * left_out).sum(-1), -(f * logs).sum(-1)

    def kl(average: Tensor, f: Tensor) -> Tensor:
        return (average * (log_f(average) - log_f(f))).sum(-1)

    average = average_of(learner)
    errors = {"q": 0.5 * (target - q).square()}
    return Terms(f[:-1], policy(average)[:-1], objective, kl, errors)


def gaussian(learner: ACERLearner, weights: Weights, batch: Rollout, noise: Tensor) -> Terms:
    options, obs = learner.config, observed(batch)
    learns = options.learn_std

    def policy(of: Weights) -> Tensor:
        mean = obs @ of["policy_head.linear.weight"].T + of["policy_head.linear.bias"]
        log_std = of["policy_head.std_param"].expand(mean.shape)
        return torch.cat((mean, log_std), -1) if learns else mean

    fixed = weights["policy_head.std_param"].detach()

    def normal(f: Tensor, std: Tensor = fixed) -> Normal:
        return Normal(f[..., :2], (f[..., 2:] if learns else std).exp())

    f = policy(weights)
    pi, mu = normal(f.detach()[:-1]), batch.record["params_mu"].double()
    mu = Normal(mu[..., :2], mu[..., 2:].exp())
    drawn = pi.mean.unsqueeze(2) + pi.stddev.unsqueeze(2) * noise.double()
    asked = torch.cat((batch.action.double().unsqueeze(2), drawn), 2)
    beside = obs[:-1].unsqueeze(2).expand(-1, -1, asked.shape[2], -1)
    hidden = torch.cat((beside, asked.clamp(-1, 1)), -1) @ weights["critic_head.hidden.0.weight"].T
    hidden = (hidden + weights["critic_head.hidden.0.bias"]).tanh()
    advantages = hidden @ weights["critic_head.advantage.weight"][0]
    v = obs @ weights["critic_head.value.weight"][0] + weights["critic_head.value.bias"]
    q_all = v[:-1].unsqueeze(-1) + advantages - advantages[..., 2:].mean(-1, keepdim=True)
    q, v_tm1, first = q_all[..., 0], v[:-1].detach(), drawn[:, :, 0]
    rho, rho_drawn = (
        (pi.log_prob(a) - mu.log_prob(a)).sum(-1).exp() for a in (batch.action, first)
    )
    rho = torch.where(batch.valid, rho, 1.0)
    given = sequence(learner, batch), q.detach(), v.detach()
    target = double_sum(*given, options.retrace_lambda * rho.sqrt().clamp(max=options.c_bar))
    clip = options.importance_clip
    weight = rho.clamp(max=clip) * (double_sum(*given, torch.ones_like(rho)) - v_tm1)
    left_out = (1 - clip / rho_drawn).clamp_min(0) * (q_all[..., 1].detach() - v_tm1)

    def objective(f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pi = normal(f)
        truncated, correction = (
            pi.log_prob(a).sum(-1) * w for a, w in ((batch.action, weight), (first, left_out))
        )
        return truncated, correction, pi.entropy().sum(-1) + 0 * f.sum(-1)

    averaged = average_of(learner)

    def kl(average: Tensor, f: Tensor) -> Tensor:
        own = normal(average, averaged["policy_head.std_param"])
        return kl_divergence(own, normal(f)).sum(-1)

    v_target = rho.clamp(max=1.0) * (target - q.detach()) + v_tm1
    errors = {"q": 0.5 * (target - q).square(), "value": 0.5 * (v_target - v[:-1]).square()}
    return Terms(f[:-1], policy(averaged)[:-1], objective, kl, errors)


def by_hand(learner: ACERLearner, unrolls: Unrolls, batch: Rollout) -> tuple[Weights, Any]:
    """The gradient at the weights by their names, and what is told."""
    options, valid = learner.config, batch.valid
    weights = {
        n: p.detach().double().requires_grad_() for n, p in learner.trained.parameters.items()
    }
    noise = unrolls.record.get("noise")
    make = discrete if noise is None else gaussian
    terms = make(learner, weights, batch, noise)
    f = terms.f.detach().requires_grad_()
    truncated, correction, entropy = terms.objective(f)
    whole = truncated + correction + options.entropy_coef * entropy
    (g,) = torch.autograd.grad(whole.sum(), f)
    told = {
        "loss/policy_truncated": -truncated,
        "loss/policy_correction": -correction,
        "loss/policy": -truncated - correction,
        "loss/entropy": -options.entropy_coef * entropy,
        **{f"loss/{name}": options.value_coef * x for name, x in terms.errors.items()},
    }
    z = g
    if options.trust_region:
        kl = terms.kl(terms.average, f)
        (k,) = torch.autograd.grad(kl.sum(), f)
        change = (k * g).sum(-1)
        factor = ((change - options.trust_region_delta) / k.square().sum(-1)).clamp_min(0.0)
        z = g - factor.unsqueeze(-1) * k
        told |= {
            "trust_region/gradient_norm": g.norm(dim=-1),
            "trust_region/gradient_norm_after": z.norm(dim=-1),
            "trust_region/kl_gradient_norm": k.norm(dim=-1),
            "trust_region/kl_change": change,
            "trust_region/adjustment": factor,
            "trust_region/active_frac": (factor > 0).double(),
            "trust_region/kl_to_average": kl,
        }
    count = int(valid.sum())
    upstream = torch.where(valid.unsqueeze(-1), -z, 0.0) / count
    error = options.value_coef * sum(
        torch.where(valid, x, 0.0).sum() for x in terms.errors.values()
    )
    names = list(weights)
    given = [weights[name] for name in names]
    (of_policy, of_critic) = (
        torch.autograd.grad(terms.f, given, upstream, materialize_grads=True, retain_graph=True),
        torch.autograd.grad(error / count, given, materialize_grads=True),
    )
    gradient = [a + b for a, b in zip(of_policy, of_critic, strict=True)]
    means = {name: (x.detach()[valid].sum() / count).item() for name, x in told.items()}
    return dict(zip(names, gradient, strict=True)), means


CASES: dict[str, tuple[Spaces, dict[str, Any]]] = {
    "discrete": (DISCRETE, {}),
    "no region": (DISCRETE, {"trust_region": False, "entropy_coef": 0.1}),
    "other numbers": (
        DISCRETE,
        {
            "gamma": 0.8, "retrace_lambda": 0.7, "c_bar": 2.0, "importance_clip": 0.6,
            "value_coef": 0.3, "entropy_coef": 0.2, "trust_region_delta": 0.1,
        },
    ),
    "gamma 0": (DISCRETE, {"gamma": 0.0, "entropy_coef": 0.1}),
    "no entropy": (DISCRETE, {"entropy_coef": 0.0, "trust_region_delta": 0.01}),
    "masked": (MASKED, {"importance_clip": 1.0, "entropy_coef": 0.3}),
    "box": (CONTINUOUS, {"importance_clip": 0.5}),
    "box, std": (
        CONTINUOUS, {"learn_std": True, "entropy_coef": 0.1, "dueling_samples": 2, "c_bar": 1.5},
    ),
    "box, no region": (CONTINUOUS, {"trust_region": False, "retrace_lambda": 0.8}),
}  # fmt: skip


def learner_of(name: str, seed: int = 4) -> tuple[ACERLearner, Spaces]:
    spaces, options = CASES[name]
    return apart(make_learner(config(**options), spaces), seed), spaces


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_and_what_is_told_by_hand(name: str) -> None:
    """With policies that acted, that is and that is the average all apart, invalid rows, and both
    endings.
    """
    learner, spaces = learner_of(name)
    batch = make_batch(learner, spaces)
    assert (~batch.valid).any()
    assert (batch.truncated & batch.valid).any()
    unrolls = learner._unrolls(batch)
    _, found, told = loss_of(learner, unrolls)
    wanted, means = by_hand(learner, unrolls, batch)
    assert found.keys() == wanted.keys()
    for weight, x in wanted.items():
        bound = 1e-5 * max(x.abs().max().item(), 1.0)
        assert_close(found[weight].double(), x, rtol=0, atol=bound, msg=lambda m, w=weight: w + m)
    if learner.config.trust_region:
        assert 0.0 < means["trust_region/active_frac"] < 1.0
    for key, x in means.items():
        assert told.means[key].item() == pytest.approx(x, rel=1e-5, abs=1e-6), key
    total = sum(means[key] for key in means if key.count("_") == 0 and key.startswith("loss/"))
    assert told.means["loss/total"].item() == pytest.approx(total, rel=1e-5)
    region = [key for key in told.means if key.startswith("trust_region/")]
    assert bool(region) == learner.config.trust_region
    still = {"policy_head.std_param"}
    assert all(found[weight].any() for weight in wanted if weight not in still)
    if "policy_head.std_param" in wanted:
        assert found["policy_head.std_param"].any() == learner.config.learn_std


def same(one: dict[str, Tensor], other: dict[str, Tensor], **bounds: float) -> None:
    for name, x in one.items():
        scale = max(x.abs().max().item(), 1.0)
        assert_close(other[name] / scale, x / scale, **bounds, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, CONTINUOUS, HYBRID])
def test_a_bound_beyond_reach_is_no_trust_region(spaces: Spaces) -> None:
    """To rounding; and a tight one is something else."""
    found = []
    for options in (
        {"trust_region": False},
        {"trust_region_delta": 1e30},
        {"trust_region_delta": 1e-3},
    ):
        learner = apart(make_learner(config(**options), spaces))
        found.append(loss_of(learner, make_batch(learner, spaces))[1])
    same(found[0], found[1], rtol=0, atol=1e-6)
    assert max((found[0][n] - found[2][n]).abs().max().item() for n in found[0]) > 1e-3


def test_the_trust_region_looks_at_the_average_policy_alone() -> None:
    learner, spaces = learner_of("discrete")
    batch = make_batch(learner, spaces)
    _, plain, told = loss_of(learner, batch)
    assert learner.trained.average is not None
    learner.trained.average.copy_(learner.trained.theta)
    _, moved, at_home = loss_of(learner, batch)
    assert (plain["policy_head.linear.bias"] - moved["policy_head.linear.bias"]).abs().max() > 1e-3
    assert at_home.means["trust_region/kl_to_average"].abs() < 1e-6
    assert told.means["trust_region/kl_to_average"] > 0.1
    # Where both are one the derivative of the KL is -1 at each probability.
    assert at_home.means["trust_region/kl_gradient_norm"].item() == pytest.approx(3**0.5, rel=1e-6)
    for name in ("critic_head.linear.weight", "critic_head.linear.bias"):
        assert torch.equal(plain[name], moved[name])  # it bends no error


def spoilt(batch: Rollout, number: float, action: int) -> Rollout:
    """The batch with other contents where nothing was done."""
    gone = ~batch.valid

    def other(x: Tensor, value: float) -> Tensor:
        rows = gone.view(*gone.shape, *[1] * (x.ndim - 2))
        return torch.where(rows, torch.tensor(value).to(x.dtype), x)

    value = number if batch.action.is_floating_point() else action
    return replace(
        batch,
        reward=other(batch.reward, number),
        action=other(batch.action, value),
        record={name: other(x, number) for name, x in batch.record.items()},
        version=other(batch.version, -7),
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30, -3.0])
@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, CONTINUOUS, HYBRID])
def test_rows_that_are_not_valid_leave_every_bit(spaces: Spaces, number: float) -> None:
    """Whatever they hold, and whether or not their first action is masked."""
    batch = None
    found = []
    for action in (0, 2):
        options = config(importance_clip=0.5, trust_region_delta=0.05)
        learner = apart(make_learner(options, spaces))
        plain = make_batch(learner, spaces)
        batch = plain if action == 0 else spoilt(plain, number, action)
        found.append(loss_of(learner, batch))
    (loss, gradient, told), (other_loss, other, other_told) = found
    assert batch is not None
    assert (~batch.valid).sum() > 3
    assert torch.equal(loss, other_loss)
    assert all(torch.equal(x, other[name]) for name, x in gradient.items())
    assert all(x.isfinite().all() for x in gradient.values())
    assert torch.equal(told.pack().nan_to_num(-1.0), other_told.pack().nan_to_num(-1.0))
    # There is no normaliser, and replay says nothing of rewards.
    silent = {"normalizer/observation_clip_frac", "reward/mean"}
    assert batch.replayed
    assert {name for name, x in told.means.items() if not x.isfinite()} == silent


@pytest.mark.parametrize("spaces", [DISCRETE, HYBRID])
def test_rows_past_the_budget_do_not_count(spaces: Spaces) -> None:
    """The batch ends early in one stream: as if its other rows had never been, but for the state
    after the last one.
    """
    learner = apart(make_learner(config(), spaces))
    batch = make_batch(learner, spaces)
    valid = batch.valid.clone()
    valid[5:, 2] = False
    cut = torch.zeros_like(valid)
    cut[4, 2] = True
    short = replace(batch, valid=valid, trace_cut=cut)
    unrolls = learner._unrolls(short)
    _, plain, _ = loss_of(learner, unrolls)
    obs = {name: x.clone() for name, x in short.obs.items()}
    for name, x in obs.items():
        if name != ACTION_MASK:
            x[6:, 2] = 50.0
    noise = unrolls.record
    other = learner._unrolls(replace(spoilt(short, 1e3, 1), obs=obs))
    kept = {**other.record, **{k: x for k, x in noise.items() if k == "noise"}}
    _, found, _ = loss_of(learner, replace(other, record=kept))
    assert all(torch.equal(x, found[name]) for name, x in plain.items())
    _, uncut, _ = loss_of(learner, batch)
    assert any(not torch.equal(x, uncut[name]) for name, x in plain.items())


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, HYBRID])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_order_of_streams_is_without_meaning(spaces: Spaces, core: str) -> None:
    """Their noise goes with them."""
    small = ModelConfig(policy_hidden=(5,))
    if core != "none":
        small = ModelConfig(policy_hidden=(5,), core=core, core_size=4)
    learner = apart(make_learner(config(), spaces, small), size=0.3)
    batch, order = make_batch(learner, spaces), torch.tensor([3, 0, 5, 1, 4, 2])
    assert order.numel() == STREAMS
    unrolls = learner._unrolls(batch)
    mixed = learner._unrolls(select(batch, order))
    if "noise" in unrolls.record:
        noise = unrolls.record["noise"][:, order]
        mixed = replace(mixed, record={**mixed.record, "noise": noise})
    loss, plain, told = loss_of(learner, unrolls)
    other_loss, other, other_told = loss_of(learner, mixed)
    assert_close(other_loss, loss, rtol=1e-5, atol=1e-5)
    same(plain, other, rtol=0, atol=2e-6)
    assert_close(told.pack(), other_told.pack(), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED])
def test_the_order_of_actions_is_without_meaning(spaces: Spaces) -> None:
    """Of one learner the heads' rows and of the other batch the actions are in another order."""
    order = torch.tensor([2, 0, 1])
    place = order.argsort()
    learner, other = (apart(make_learner(config(), spaces)) for _ in range(2))
    heads = ("policy_head.linear.", "critic_head.linear.")
    for weights in (other.trained.parameters, other.trained.averaged()):
        for name, x in weights.items():
            if name.startswith(heads):
                x.data.copy_(x.detach()[order].clone())
    batch = make_batch(learner, spaces)
    obs = {name: x[..., order] if name == ACTION_MASK else x for name, x in batch.obs.items()}
    mixed = replace(
        batch,
        obs=obs,
        action=place[batch.action],
        record={"params_mu": batch.record["params_mu"][..., order]},
    )
    loss, plain, told = loss_of(learner, batch)
    other_loss, found, other_told = loss_of(other, mixed)
    assert_close(other_loss, loss, rtol=1e-5, atol=1e-5)
    assert any(name.startswith(heads) for name in plain)
    wanted = {name: x[order] if name.startswith(heads) else x for name, x in plain.items()}
    same(wanted, found, rtol=0, atol=2e-6)
    assert_close(told.pack(), other_told.pack(), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_time_limit_ends_nothing_unless_it_is_told_to() -> None:
    """The gradient is another where truncations count as terminations, and is that of a batch in
    which they are.
    """
    learners = [apart(make_learner(config(truncation_as_termination=x), DISCRETE)) for x in (0, 1)]
    batch = make_batch(learners[0])
    ended = replace(
        batch,
        terminated=batch.terminated | batch.truncated,
        truncated=torch.zeros_like(batch.truncated),
    )
    plain, as_ends = (loss_of(learner, batch)[1] for learner in learners)
    ends = loss_of(learners[0], ended)[1]
    assert all(torch.equal(x, ends[name]) for name, x in as_ends.items())
    assert (plain["critic_head.linear.bias"] - ends["critic_head.linear.bias"]).abs().max() > 1e-3
