"""ACER's targets and directions against double sums and automatic differentiation, in float64."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from acer_helpers import (
    BITS,
    MULTI,
    ONE,
    STEPS,
    STREAMS,
    apart,
    config,
    double_sum,
    make_learner,
    numbers,
)
from gymnasium import spaces as gym
from ppo_helpers import CONTINUOUS, DISCRETE, HYBRID, MASKED, make_rollout
from torch import Tensor
from torch.testing import assert_close

from quintet.algorithms.acer.config import Knobs
from quintet.algorithms.acer.estimates import Estimates, Rows, sampled, summed
from quintet.models.heads import action_family
from quintet.ops import policy_statistics
from quintet.ops.discrete import Categorical
from quintet.ops.distributions import Family
from quintet.types import ACTION_MASK, Spaces

EXACT: dict[str, float] = {"rtol": 1e-11, "atol": 1e-11}
SAMPLED = {"box": CONTINUOUS, "hybrid": HYBRID, "multi": MULTI, "bits": BITS}


def knobs(**options: float) -> Knobs:
    given = numbers(config(), torch.float64)
    changed = {name: torch.tensor(x, dtype=torch.float64) for name, x in options.items()}
    return given._replace(**changed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_rows(spaces: Spaces = DISCRETE, seed: int = 0, learn_std: bool = False) -> Rows:
    """Of policies far from each other; with endings of both sorts and an invalid row after each."""
    batch = make_rollout(spaces, STEPS, STREAMS, seed)
    family = action_family(spaces.action, "clip")
    size = family.param_size
    pi, mu = noise(STEPS + 1, STREAMS, size, seed=seed + 100), batch.record["params_mu"].double()
    mu = mu + 0.5 * noise(STEPS, STREAMS, size, seed=seed + 200)
    if ACTION_MASK in batch.obs:
        pi = family.apply_mask(pi, batch.obs[ACTION_MASK])
        mu = family.apply_mask(mu, batch.obs[ACTION_MASK][:-1])
    mu = torch.where(batch.valid.unsqueeze(-1), mu, 0.0)
    log_rho = family.log_prob(pi[:-1], batch.action) - family.log_prob(mu, batch.action)
    return Rows(
        family=family,
        pi=pi.requires_grad_(),
        mu=mu,
        action=batch.action,
        log_rho=torch.where(batch.valid, log_rho, 0.0),
        reward=batch.reward.double(),
        discount_t=0.9 * (~batch.terminated).double(),
        not_cut_t=batch.not_cut_t.double(),
        learn_std=learn_std,
    )


# Actions that are summed over


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("c_bar", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
def test_targets_are_double_sums(spaces: Spaces, c_bar: float, lambda_: float) -> None:
    """With the value of the next state, which at a truncation is the final one's."""
    rows = make_rows(spaces)
    values = noise(STEPS + 1, STREAMS, 3, seed=1)
    found = summed(rows, values, knobs(c_bar=c_bar, retrace_lambda=lambda_))
    rho = rows.log_rho.exp()
    assert (rho > 1.5).any()
    assert (rho < 0.5).any()
    pi = rows.pi.detach().softmax(-1)
    v = (pi * values).sum(-1)
    q = values[:-1].gather(-1, rows.action.unsqueeze(-1)).squeeze(-1)
    target = double_sum(rows, q, v, lambda_ * rho.clamp(max=c_bar))
    assert_close(found.target, target, **EXACT)
    assert_close(found.q, q, **EXACT)
    assert_close(found.advantage, target - v[:-1], **EXACT)
    assert_close(found.errors["q"], 0.5 * (target - q).square(), **EXACT)
    assert found.errors.keys() == {"q"}


@pytest.mark.parametrize("clip", [0.5, 1.0, 10.0])
def test_the_direction_is_the_derivative_of_the_terms_by_the_probabilities(clip: float) -> None:
    rows, values = make_rows(), noise(STEPS + 1, STREAMS, 3, seed=1)
    found = summed(rows, values, knobs(importance_clip=clip))
    pi, mu = rows.pi.detach()[:-1].softmax(-1), rows.mu.softmax(-1)
    v = (pi * values[:-1]).sum(-1, keepdim=True)
    taken, rho = rows.action.unsqueeze(-1), pi / mu
    f = pi.clone().requires_grad_()
    truncated = f.log().gather(-1, taken) * rho.gather(-1, taken).clamp(max=clip)
    truncated = (truncated * (found.target.unsqueeze(-1) - v)).squeeze(-1)
    # The spec's form, from the ratios of all actions.
    weight = torch.where(rho > clip, 1 - clip / rho, 0.0)
    correction = (f.log() * weight * pi * (values[:-1] - v)).sum(-1)
    valid = rows.log_rho != 0  # the ratios of other rows mean nothing
    (g,) = torch.autograd.grad((truncated + correction).sum(), f)
    assert_close(found.g[valid], g[valid], **EXACT)
    assert_close(found.truncated[valid], -truncated.detach()[valid], **EXACT)
    assert_close(found.correction[valid], -correction.detach()[valid], **EXACT)
    assert (found.correction.abs() > 1e-3).any() == (clip < 10)
    assert_close(found.f, pi, **EXACT)


def test_only_statistics_and_errors_carry_gradients() -> None:
    rows = make_rows()
    values = noise(STEPS + 1, STREAMS, 3, seed=1).requires_grad_()
    found = summed(rows, values, knobs())
    for name in ("g", "truncated", "correction", "target", "advantage"):
        assert not getattr(found, name).requires_grad, name
    (by_f,) = torch.autograd.grad(found.f.square().sum(), rows.pi)
    assert by_f[:-1].abs().sum() > 0
    (by_values,) = torch.autograd.grad(found.errors["q"].sum(), values)
    expected = torch.zeros_like(values)
    error = (found.q - found.target).detach().unsqueeze(-1)
    expected[:-1].scatter_(-1, rows.action.unsqueeze(-1), error)
    assert_close(by_values, expected, **EXACT)  # of the action taken alone, and of no target


def one_row(actions: Tensor, q: Tensor, seed: int = 7) -> tuple[Rows, Tensor, Tensor]:
    """An unroll of one step for each of these actions, in one state, whose episodes end with what
    the action is worth; and the probabilities of pi and mu.
    """
    columns, size = len(actions), len(q)
    pi, mu = 1.5 * noise(2, size, seed=seed)
    rows = Rows(
        family=Categorical(size),
        pi=pi.expand(2, columns, size),
        mu=mu.expand(1, columns, size),
        action=actions.unsqueeze(0),
        log_rho=(pi.log_softmax(-1) - mu.log_softmax(-1))[actions].unsqueeze(0),
        reward=q[actions].unsqueeze(0),
        discount_t=torch.zeros(1, columns, dtype=torch.float64),
        not_cut_t=torch.zeros(1, columns, dtype=torch.float64),
        learn_std=False,
    )
    return rows, pi.softmax(-1), mu.softmax(-1)


@pytest.mark.parametrize("clip", [0.5, 1.0, 10.0])
def test_truncation_and_correction_are_together_the_gradient_of_the_policy(clip: float) -> None:
    """The mean over actions of mu is that of pi, whatever the clip: of f its derivative is q - v,
    since ``sum_a pi(a) * (q(a) - v) * d log pi(a) / df`` is that.
    """
    q = 3.0 * noise(4, seed=8)
    expected = None
    for given in (clip, 1e9):
        rows, pi, mu = one_row(torch.arange(4), q)
        assert (pi / mu).max() > 1.0
        found = summed(rows, q.expand(2, 4, 4), knobs(importance_clip=given))
        mean = (mu.unsqueeze(-1) * found.g[0]).sum(0)
        expected = q - (pi * q).sum()
        assert_close(mean, expected, rtol=1e-12, atol=1e-12)
        bent = found.correction.abs().max() > 1e-3
        assert bent == bool((pi / mu).max() > given)


@pytest.mark.parametrize("clip", [0.5, 1.0, 10.0])
def test_sampled_corrections_have_the_same_mean(clip: float) -> None:
    """Over the action of mu and that of pi, each pair with its probability."""
    q = 3.0 * noise(4, seed=8)
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    rows, pi, mu = one_row(pairs[:, 0], q)
    v = (pi * q).sum()
    advantages = torch.cat((q[pairs], torch.full((16, 3), v.item(), dtype=torch.float64)), -1)
    given = knobs(importance_clip=clip)
    found = sampled(
        rows, pairs[None, :, 1], v.expand(2, 16), advantages.unsqueeze(0), given, dimensions=1
    )
    weight = mu[pairs[:, 0]] * pi[pairs[:, 1]]
    mean = (weight.unsqueeze(-1) * found.g[0]).sum(0)
    # A score is 1 / f, so the term that has no action of f in it drops out.
    assert_close(mean, q - v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_a_policy_that_acts_itself_needs_no_correction(clip: float) -> None:
    for spaces in (DISCRETE, MASKED):
        rows = make_rows(spaces)
        same = rows._replace(mu=rows.pi.detach()[:-1], log_rho=torch.zeros_like(rows.log_rho))
        found = summed(same, noise(STEPS + 1, STREAMS, 3, seed=1), knobs(importance_clip=clip))
        assert not found.correction.any()
        score = policy_statistics.score(
            rows.family, rows.pi.detach()[:-1], rows.action, learn_std=False
        )
        assert_close(found.g, score * found.advantage.unsqueeze(-1), **EXACT)


def test_masked_actions_ask_for_nothing() -> None:
    """Their ratios are those of two numbers near minus infinity."""
    rows = make_rows(MASKED)
    values = noise(STEPS + 1, STREAMS, 3, seed=1)
    narrow = rows._replace(
        pi=rows.pi.detach().float(), mu=rows.mu.float(), log_rho=rows.log_rho.float(),
        reward=rows.reward.float(), discount_t=rows.discount_t.float(),
        not_cut_t=rows.not_cut_t.float(),
    )  # fmt: skip
    odd = narrow._replace(mu=torch.where(narrow.mu < -1e8, narrow.mu * 1.5, narrow.mu))
    given = knobs(importance_clip=0.5)
    masked = (rows.pi.detach()[:-1] < -1e8) & (rows.log_rho != 0).unsqueeze(-1)
    assert masked.any()
    plain = summed(narrow, values.float(), given)
    other = summed(odd, values.float(), given)
    assert not plain.g[masked].any()
    for name in ("g", "correction", "target", "f"):
        valid = rows.log_rho != 0
        assert torch.equal(getattr(plain, name)[valid], getattr(other, name)[valid]), name
        assert getattr(plain, name)[valid].isfinite().all()


# Actions whose values are those of samples


def dueling(rows: Rows, number: int = 5, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """An action of pi per row, values of states, advantages of 2 + `number` actions."""
    drawn = rows.family.draw_noise((STEPS, STREAMS), torch.Generator().manual_seed(seed))
    action = rows.family.sample(rows.pi.detach()[:-1], drawn)
    return (
        action,
        noise(STEPS + 1, STREAMS, seed=seed + 1),
        noise(STEPS, STREAMS, 2 + number, seed=seed + 2),
    )


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("lambda_", [0.5, 1.0])
@pytest.mark.parametrize("c_bar", [0.7, 1.0, 4.0])
def test_sampled_targets_are_double_sums(dimensions: int, lambda_: float, c_bar: float) -> None:
    """Of traces with the root of the ratio, and for the policy's gradient with weight 1."""
    rows = make_rows(CONTINUOUS)
    drawn, v, advantages = dueling(rows)
    given = knobs(c_bar=c_bar, retrace_lambda=lambda_)
    found = sampled(rows, drawn, v, advantages, given, dimensions)
    rho = rows.log_rho.exp()
    q = v[:-1] + advantages[..., 0] - advantages[..., 2:].sum(-1) / 5
    trace = lambda_ * (rows.log_rho / dimensions).exp().clamp(max=c_bar)
    target = double_sum(rows, q, v, trace)
    v_target = rho.clamp(max=1.0) * (target - q) + v[:-1]
    opc = double_sum(rows, q, v, torch.ones_like(rho))
    assert_close(found.q, q, **EXACT)
    assert_close(found.target, target, **EXACT)
    assert_close(found.advantage, opc - v[:-1], **EXACT)
    assert_close(found.errors["q"], 0.5 * (target - q).square(), **EXACT)
    assert_close(found.errors["value"], 0.5 * (v_target - v[:-1]).square(), **EXACT)
    assert found.errors.keys() == {"q", "value"}


def in_parameters(family: Family, params: Tensor, g: Tensor, learn_std: bool) -> Tensor:
    """What a direction of the statistics is in the parameters."""
    params = params.detach().requires_grad_()
    f = policy_statistics.statistics(family, params, learn_std=learn_std)
    (found,) = torch.autograd.grad((f * g).sum(), params)
    return found


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("clip", [0.5, 5.0])
def test_the_sampled_direction_is_the_derivative_of_its_terms(name: str, clip: float) -> None:
    """In the parameters, where log-probabilities are the family's own."""
    rows = make_rows(SAMPLED[name], learn_std=True)
    family, pi = rows.family, rows.pi.detach()[:-1]
    drawn, v, advantages = dueling(rows)
    found = sampled(rows, drawn, v, advantages, knobs(importance_clip=clip), 2)
    q_drawn = v[:-1] + advantages[..., 1] - advantages[..., 2:].mean(-1)
    rho, rho_drawn = (
        (family.log_prob(pi, a) - family.log_prob(rows.mu, a)).exp() for a in (rows.action, drawn)
    )
    weights = (
        torch.where(rows.log_rho != 0, rho, 1.0).clamp(max=clip) * found.advantage,
        torch.where(rho_drawn > clip, 1 - clip / rho_drawn, 0.0) * (q_drawn - v[:-1]),
    )
    params = pi.clone().requires_grad_()
    terms = [
        family.log_prob(params, a) * w
        for a, w in zip((rows.action, drawn), weights, strict=True)
    ]  # fmt: skip
    (expected,) = torch.autograd.grad(sum(x.sum() for x in terms), params)
    valid = rows.log_rho != 0
    reached = in_parameters(family, pi, found.g, True)
    assert_close(reached[valid], expected[valid], rtol=1e-9, atol=1e-9)
    assert_close(found.truncated, -terms[0].detach(), **EXACT)
    assert_close(found.correction, -terms[1].detach(), **EXACT)
    if name == "box":  # without learn_std the spreads stay, and the means' part is the same
        means = sampled(rows._replace(learn_std=False), drawn, v, advantages, knobs(), 2).g
        assert_close(means, sampled(rows, drawn, v, advantages, knobs(), 2).g[..., :2])


def test_of_one_dimension_traces_are_those_of_discrete_actions() -> None:
    """The same values in both forms: one target."""
    rows, values = make_rows(), noise(STEPS + 1, STREAMS, 3, seed=1)
    given = knobs(retrace_lambda=0.9, c_bar=1.3)
    v = (rows.pi.detach().softmax(-1) * values).sum(-1)
    drawn = dueling(rows)[0]
    taken, own = (values[:-1].gather(-1, a.unsqueeze(-1)) for a in (rows.action, drawn))
    advantages = torch.cat((taken, own, v[:-1].unsqueeze(-1).expand(-1, -1, 4)), -1)
    one = sampled(rows, drawn, v, advantages, given, dimensions=1)
    other = summed(rows, values, given)
    assert_close(one.target, other.target, **EXACT)
    assert_close(one.truncated * other.advantage, other.truncated * one.advantage, **EXACT)
    three = sampled(rows, drawn, v, advantages, given, dimensions=3)
    assert (three.target - other.target).abs().max() > 0.1


def test_the_learner_takes_the_root_of_the_number_of_dimensions() -> None:
    for spaces, expected in (
        (CONTINUOUS, 2), (HYBRID, 2), (MULTI, 1), (ONE, 1), (DISCRETE, 1),
        (Spaces(ONE.observation, gym.Tuple([ONE.action, CONTINUOUS.action])), 3),
    ):  # fmt: skip
        assert make_learner(config(), spaces).dimensions == expected


def test_sampled_errors_carry_gradients_of_values_and_not_of_targets() -> None:
    rows = make_rows(CONTINUOUS)
    drawn, v, advantages = dueling(rows)
    v, advantages = v.requires_grad_(), advantages.requires_grad_()
    found = sampled(rows, drawn, v, advantages, knobs(), 2)
    for name in ("g", "truncated", "correction", "target", "advantage"):
        assert not getattr(found, name).requires_grad, name
    error = (found.q - found.target).detach()
    by_v, by_advantages = torch.autograd.grad(
        found.errors["q"].sum(), (v, advantages), retain_graph=True
    )
    assert_close(by_v[:-1], error, **EXACT)
    assert not by_v[-1].any()
    shares = torch.tensor([1.0, 0.0, *[-0.2] * 5], dtype=torch.float64)
    assert_close(by_advantages, error.unsqueeze(-1) * shares, **EXACT)
    (by_v,) = torch.autograd.grad(found.errors["value"].sum(), v)
    weight = -rows.log_rho.detach().exp().clamp(max=1.0)
    assert_close(by_v[:-1], weight * (found.target - found.q.detach()), **EXACT)


# Both


def both(rows: Rows, **options: float) -> list[Estimates]:
    other = make_rows(CONTINUOUS, seed=5)
    values = noise(STEPS + 1, STREAMS, 3, seed=1)
    given = knobs(**options)
    return [summed(rows, values, given), sampled(other, *dueling(other), given, 2)]


def test_the_two_clips_are_not_one() -> None:
    """The policy's clip bends no target, and the traces' cap weighs no policy term."""
    plain, clipped = (both(make_rows(), importance_clip=c) for c in (10.0, 0.5))
    for one, other in zip(plain, clipped, strict=True):
        for name in ("target", "advantage", "q"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        for name, x in one.errors.items():
            assert torch.equal(x, other.errors[name]), name
        assert (one.g - other.g).abs().max() > 0.01
    low = both(make_rows(), c_bar=0.3)
    assert all((a.target - b.target).abs().max() > 0.01 for a, b in zip(plain, low, strict=True))
    # Where a target can't depend on traces the policy's terms don't depend on their cap.
    still, capped = (both(make_rows(), c_bar=c, retrace_lambda=0.0) for c in (0.3, 7.0))
    for one, other in zip(still, capped, strict=True):
        assert torch.equal(one.g, other.g)
    # And the sampled advantage has traces of weight 1 whatever their cap or decay.
    assert torch.equal(plain[1].advantage, low[1].advantage)
    assert torch.equal(plain[1].advantage, still[1].advantage)
    assert not torch.equal(plain[0].advantage, low[0].advantage)


@pytest.mark.parametrize("name", ["discrete", "masked", *SAMPLED])
def test_streams_know_nothing_of_each_other(name: str) -> None:
    rows = make_rows({"discrete": DISCRETE, "masked": MASKED, **SAMPLED}.get(name, DISCRETE))
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def estimates(order: Tensor) -> Estimates:
        mixed: Any = rows._replace(
            **{n: x[:, order] for n, x in rows._asdict().items() if isinstance(x, Tensor)}
        )
        if isinstance(rows.family, Categorical):
            return summed(mixed, noise(STEPS + 1, STREAMS, 3, seed=1)[:, order], knobs())
        return sampled(mixed, *(x[:, order] for x in dueling(rows)), knobs(), 2)

    plain, mixed = estimates(torch.arange(STREAMS)), estimates(order)
    for field in ("f", "g", "truncated", "correction", "q", "target", "advantage"):
        assert torch.equal(getattr(plain, field)[:, order], getattr(mixed, field)), field
    for error, x in plain.errors.items():
        assert torch.equal(x[:, order], mixed.errors[error])


@pytest.mark.parametrize("spaces", SAMPLED.values(), ids=SAMPLED)
def test_the_mean_of_an_actions_value_is_the_states(spaces: Spaces) -> None:
    """Over actions and samples of pi, through the learner's network: 30,000 of them in one state,
    to four standard errors; the recorded policy is another.
    """
    options = config(unroll_steps=300, dueling_samples=3, replay_ratio=0)
    learner = apart(make_learner(options, spaces), size=0.4)
    batch = make_rollout(spaces, 300, 100, 1)
    obs = {name: x[:1, :1].expand(x.shape) for name, x in batch.obs.items()}
    family = learner.family
    with torch.no_grad():
        first = {name: x[:1, 0] for name, x in obs.items()}
        params = learner.network(first)[0]
        if ACTION_MASK in obs:
            params = family.apply_mask(params, first[ACTION_MASK])
    g = torch.Generator().manual_seed(9)
    action = family.sample(params.expand(300, 100, -1), family.draw_noise((300, 100), g))
    batch = replace(
        batch, obs=obs, action=action, record={"params_mu": batch.record["params_mu"]},
        valid=torch.ones_like(batch.valid), return_carry=None,
    )  # fmt: skip
    with torch.no_grad():
        unrolls = learner._unrolls(batch)
        inputs = unrolls.obs, unrolls.state, unrolls.is_first
        found, features, _ = learner.network(*inputs)
        if ACTION_MASK in obs:
            found = family.apply_mask(found, unrolls.obs[ACTION_MASK])
        given = numbers(learner.config)
        rows = learner._rows(found, unrolls, given)
        weights = learner.trained.parameters
        q = learner._estimates(weights, features, rows, unrolls, given).q.double()
        v = learner.network.critic_head.value(features[:1]).double().item()
    error = q.std().item() / math.sqrt(q.numel())
    assert q.std() > 0.05
    assert abs(q.mean().item() - v) < 4 * error
