"""Every term of the loss against plain Python loops; the total's gradient against differences."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    MASKED,
    knobs,
    learn,
    make_learner,
    make_rollout,
    map_rows,
    minibatch,
    told,
    valid_rows,
)
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.parts.minibatches import Rows
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.algorithms.ppo.metrics import LOSSES
from quintet.models.config import ModelConfig
from quintet.ops import reduce, value_losses
from quintet.types import ACTION_MASK, Spaces, State

FLOAT64 = torch.float64
BETA, SHARE = 0.7, 0.8
GOLDEN = {
    case["name"]: case
    for case in json.loads((Path(__file__).parents[1] / "golden" / "returns.json").read_text())[
        "cases"
    ]
}
CONFIGS = {
    "plain": PPOConfig(clip_epsilon=None),
    "clip": PPOConfig(clip_epsilon=0.1),
    "value_clip": PPOConfig(value_clip=0.1, value_coef=0.5),
    "entropy": PPOConfig(entropy_coef=0.3),
    "l2": PPOConfig(policy_l2_coef=0.1, value_l2_coef=0.2),
    "kl": PPOConfig(clip_epsilon=None, kl_coef_init=1.0),
    "cutoff": PPOConfig(kl_cutoff_coef=20.0, kl_cutoff_factor=1.5, kl_target=0.02),
    "no_value": PPOConfig(value_coef=0.0),
    "log_prob_clip": PPOConfig(log_prob_clip=1.0),
    "minibatch": PPOConfig(normalize_advantage="minibatch"),
    "all": PPOConfig(
        clip_epsilon=0.15,
        value_clip=0.2,
        value_coef=0.7,
        entropy_coef=0.1,
        policy_l2_coef=0.03,
        value_l2_coef=0.02,
        kl_coef_init=1.0,
        kl_cutoff_coef=30.0,
    ),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_space = pytest.mark.parametrize(
    "spaces", [DISCRETE, CONTINUOUS, MASKED], ids=["discrete", "continuous", "masked"]
)


@contextmanager
def float_means_double() -> Iterator[None]:
    """The learner asks for float32 in places; float64 instead makes differences sharp."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        yield


def double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


REPORTED = (
    "policy/entropy",
    "policy/kl",
    "policy/approx_kl",
    "policy/clip_frac",
    "policy/ratio_mean",
    "policy/ratio_max_error",
    "value/prediction_mean",
)


class Case:
    """A learner in float64, some rows, and weights of which one is 0."""

    def __init__(self, config: PPOConfig, spaces: Spaces, model: ModelConfig | None = None):
        self.learner = make_learner(config, spaces, model or ModelConfig(policy_hidden=(5,)))
        g = torch.Generator().manual_seed(7)
        self.parameters = {
            # Far from the tiny policy head of the start, where entropies and KLs are flat.
            name: (p.detach().double() + 0.3 * torch.randn(p.shape, generator=g, dtype=FLOAT64))
            for name, p in self.learner.trained.parameters.items()
        }
        rows, index = valid_rows(self.learner, make_rollout(spaces, seed=5))
        rows = rows.take(index[:12], index[:12])
        self.rows: Rows = map_rows(rows, double)
        self.weight = torch.rand(12, generator=g, dtype=FLOAT64)
        self.weight[4] = 0.0
        self.weight /= self.weight.sum()
        self.knobs = knobs(self.learner, BETA, SHARE, FLOAT64)

    def __call__(self, parameters: dict[str, Tensor] | None = None) -> tuple[Tensor, Statistics]:
        parameters, rows = parameters or self.parameters, self.rows
        if self.learner.config.normalize_advantage == "minibatch":
            rows = replace(rows, advantage=reduce.normalize_valid(rows.advantage, self.weight))
        with float_means_double():
            return self.learner.trained.evaluate(
                parameters, minibatch(rows, self.weight), self.knobs
            )

    def network(self, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with float_means_double():
            params, value, _ = functional_call(self.learner.network, parameters, (self.rows.obs,))
        return params, value

    def heads(self) -> tuple[list[list[float]], list[float]]:
        params, value = self.network(self.parameters)
        if ACTION_MASK in self.rows.obs:
            params = self.learner.family.apply_mask(params, self.rows.obs[ACTION_MASK])
        return params.tolist(), value.tolist()


def log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - log_sum for x in logits]


def categorical(p: list[float], mu: list[float], action: int) -> tuple[float, float, float]:
    """log-probability, entropy, KL(mu || pi)"""
    log_p, log_mu = log_softmax(p), log_softmax(mu)
    entropy = -sum(math.exp(x) * x for x in log_p)
    kl = sum(math.exp(m) * (m - x) for m, x in zip(log_mu, log_p, strict=True))
    return log_p[action], entropy, kl


def gaussian(p: list[float], mu: list[float], action: list[float]) -> tuple[float, float, float]:
    size = len(action)
    logp = entropy = kl = 0.0
    for k in range(size):
        mean, std = p[k], math.exp(p[size + k])
        mean_mu, std_mu = mu[k], math.exp(mu[size + k])
        density = math.exp(-((action[k] - mean) ** 2) / (2 * std**2)) / math.sqrt(2 * math.pi)
        logp += math.log(density / std)
        entropy += 0.5 * math.log(2 * math.pi * math.e * std**2)
        squares = (std_mu**2 + (mean_mu - mean) ** 2) / (2 * std**2)
        kl += math.log(std / std_mu) + squares - 0.5
    return logp, entropy, kl


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def by_loop(case: Case, config: PPOConfig) -> dict[str, float]:
    """What the loss tells, as the specification words it, in plain numbers."""
    params, value = case.heads()
    rows, weight = case.rows, case.weight.tolist()
    action, mu = rows.action.tolist(), rows.params_mu.tolist()
    logp_mu, v_mu = rows.logp_mu.tolist(), rows.value_mu.tolist()
    adv, target = rows.advantage.tolist(), rows.target.tolist()
    if config.normalize_advantage == "minibatch":
        mean = sum(w * a for w, a in zip(weight, adv, strict=True))
        var = sum(w * (a - mean) ** 2 for w, a in zip(weight, adv, strict=True))
        adv = [(a - mean) / math.sqrt(var + 1e-8) for a in adv]
    out = dict.fromkeys((*LOSSES, *REPORTED), 0.0)
    eps = config.clip_epsilon
    for i, w in enumerate(weight):
        if w == 0.0:
            continue
        terms = gaussian if isinstance(action[i], list) else categorical
        logp, entropy, kl = terms(params[i], mu[i], action[i])
        old = logp_mu[i]
        if config.log_prob_clip is not None:
            logp, old = (clamp(x, -config.log_prob_clip, config.log_prob_clip) for x in (logp, old))
        rho = math.exp(logp - old)
        surrogate = rho * adv[i]
        if eps is not None:
            surrogate = min(surrogate, clamp(rho, 1 - eps, 1 + eps) * adv[i])
        error = (value[i] - target[i]) ** 2
        if config.value_clip is not None:
            c = config.value_clip
            near = v_mu[i] + clamp(value[i] - v_mu[i], -c, c)
            error = max(error, (near - target[i]) ** 2)
        out["loss/policy"] -= SHARE * w * surrogate
        out["loss/value"] += SHARE * w * config.value_coef * 0.5 * error
        out["policy/entropy"] += w * entropy
        out["policy/kl"] += w * kl
        out["policy/approx_kl"] += w * (rho - 1 - math.log(rho))
        out["policy/clip_frac"] += w * (eps is not None and abs(rho - 1) > eps)
        out["policy/ratio_mean"] += w * rho
        out["policy/ratio_max_error"] = max(out["policy/ratio_max_error"], abs(rho - 1))
        out["value/prediction_mean"] += w * value[i]
    out["loss/entropy"] = -config.entropy_coef * SHARE * out["policy/entropy"]
    kl = SHARE * out["policy/kl"]
    if config.kl_coef_init > 0:
        out["loss/kl"] = BETA * kl
    cutoff = config.kl_cutoff_factor * config.kl_target
    out["loss/kl_cutoff"] = config.kl_cutoff_coef * max(0.0, kl - cutoff) ** 2
    if config.kl_cutoff_coef > 0:
        out["policy/kl_cutoff_frac"] = float(kl > cutoff)
    for name, parameter in case.parameters.items():
        if name.endswith("weight"):
            owner = config.value_l2_coef if name.startswith("value") else config.policy_l2_coef
            out["loss/l2"] += owner * sum(x * x for x in parameter.flatten().tolist())
    terms = [out[f"loss/{x}"] for x in ("policy", "value", "entropy", "l2", "kl", "kl_cutoff")]
    out["loss/total"] = sum(terms)
    return out


@every_config
@every_space
def test_terms_by_loop(config: PPOConfig, spaces: Spaces):
    case = Case(config, spaces)
    total, stats = case()
    expected = by_loop(case, config)
    actual = told(stats)
    assert set(actual) == set(expected)
    for name, x in actual.items():
        assert x == pytest.approx(expected[name], rel=1e-13, abs=1e-13), name
    assert total.item() == pytest.approx(expected["loss/total"], rel=1e-13)


def test_the_cases_reach_every_branch():
    clip, value, cutoff = (Case(CONFIGS[x], DISCRETE) for x in ("clip", "value_clip", "cutoff"))
    assert 0.1 < by_loop(clip, CONFIGS["clip"])["policy/clip_frac"] < 0.9
    unclipped = CONFIGS["value_clip"].model_copy(update={"value_clip": None})
    gap = by_loop(value, CONFIGS["value_clip"])["loss/value"]
    assert gap > by_loop(value, unclipped)["loss/value"] + 1e-3
    assert by_loop(cutoff, CONFIGS["cutoff"])["loss/kl_cutoff"] > 1e-3
    bounded = by_loop(Case(CONFIGS["log_prob_clip"], DISCRETE), CONFIGS["log_prob_clip"])
    free = by_loop(Case(CONFIGS["clip"], DISCRETE), CONFIGS["log_prob_clip"])
    assert bounded["policy/ratio_mean"] == pytest.approx(free["policy/ratio_mean"])
    no_bound = CONFIGS["log_prob_clip"].model_copy(update={"log_prob_clip": None})
    other = by_loop(Case(no_bound, DISCRETE), no_bound)
    assert abs(other["policy/ratio_mean"] - bounded["policy/ratio_mean"]) > 1e-3


@every_config
@every_space
def test_gradient_of_the_total_by_differences(config: PPOConfig, spaces: Spaces):
    case = Case(config, spaces)
    tracked = {name: p.clone().requires_grad_() for name, p in case.parameters.items()}
    gradients = torch.autograd.grad(
        case(tracked)[0], list(tracked.values()), materialize_grads=True
    )
    g = torch.Generator().manual_seed(1)
    step = 1e-6
    for name, gradient in zip(tracked, gradients, strict=True):
        direction = torch.randn(gradient.shape, generator=g, dtype=FLOAT64)
        ends = [
            case(case.parameters | {name: case.parameters[name] + sign * step * direction})[0]
            for sign in (1.0, -1.0)
        ]
        slope = ((ends[0] - ends[1]) / (2 * step)).item()
        # Losses of size 80 are rounded by 1e-14, which over the step of 2e-6 is 1e-8.
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-6, abs=2e-8), name
    assert max(x.abs().max() for x in gradients) > 1e-3


@pytest.mark.parametrize(
    ("option", "term"),
    [
        ("entropy_coef", "loss/entropy"),
        ("policy_l2_coef", "loss/l2"),
        ("value_l2_coef", "loss/l2"),
        ("kl_coef_init", "loss/kl"),
        ("kl_cutoff_coef", "loss/kl_cutoff"),
        ("value_coef", "loss/value"),
    ],
)
def test_a_coefficient_of_0_leaves_the_term_out(option: str, term: str):
    config = CONFIGS["all"].model_copy(update={option: 0.0})
    other = CONFIGS["all"].model_copy(update={option: 1.0})
    case, with_term = Case(config, DISCRETE), Case(other, DISCRETE)
    stats, more = (told(x()[1])[term] for x in (case, with_term))
    if term != "loss/l2":
        assert stats == 0.0
    assert abs(more) > abs(stats) + 1e-4
    slope, larger = (gradient(x) for x in (case, with_term))
    assert (slope - larger).abs().max() > 1e-4


def gradient(case: Case) -> Tensor:
    tracked = {name: p.clone().requires_grad_() for name, p in case.parameters.items()}
    found = torch.autograd.grad(case(tracked)[0], list(tracked.values()), materialize_grads=True)
    return torch.cat([x.flatten() for x in found])


class Reached(Exception):
    """A gradient went through a term."""


class Term(torch.autograd.Function):
    """A term through which no gradient may come."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.sum(-1) if x.ndim > 1 else x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        raise Reached


@pytest.mark.parametrize("option", ["value_coef", "entropy_coef", "kl_coef_init", "kl_cutoff_coef"])
def test_a_coefficient_of_0_takes_the_term_out_of_the_graph(
    option: str, monkeypatch: pytest.MonkeyPatch
):
    off = PPOConfig(value_coef=0.0)
    case, with_term = (Case(x, DISCRETE) for x in (off, off.model_copy(update={option: 1.0})))
    family = type(case.learner.family)
    monkeypatch.setattr(family, "entropy", lambda self, params: Term.apply(params))
    monkeypatch.setattr(family, "kl", lambda self, mu, params: 9.0 + Term.apply(params))
    monkeypatch.setattr(value_losses, "squared", lambda value, target: Term.apply(value))
    assert gradient(case).abs().max() > 1e-3
    with pytest.raises(Reached):
        gradient(with_term)


@pytest.mark.parametrize("group", ["policy", "value", "shared"])
def test_an_l2_coefficient_of_0_takes_the_kernels_out_of_the_graph(group: str):
    """The loss is then the same whatever these kernels would add to it."""
    model = ModelConfig(policy_hidden=(5,), shared_torso=group == "shared")
    case = Case(PPOConfig(), CONTINUOUS, model)
    case.learner.kernels = {key: ["no such kernel"] for key in ("policy", "value", "shared")}
    plain = gradient(case)
    kernels = make_learner(PPOConfig(), CONTINUOUS, model).kernels
    case.learner.config = PPOConfig(**{f"{group}_l2_coef": 0.1})
    case.knobs = knobs(case.learner, BETA, SHARE, FLOAT64)
    with pytest.raises(KeyError, match="no such kernel"):
        gradient(case)
    case.learner.kernels = case.learner.kernels | {group: kernels[group]}
    assert (gradient(case) - plain).abs().max() > 1e-3


def test_what_is_only_reported_is_not_in_the_gradient():
    plain = Case(PPOConfig(clip_epsilon=None, value_coef=0.0), DISCRETE)
    tracked = {name: p.clone().requires_grad_() for name, p in plain.parameters.items()}
    total, stats = plain(tracked)
    assert not stats.pack().requires_grad
    params, _ = plain.network(tracked)
    log_p = params.log_softmax(-1)[torch.arange(12), plain.rows.action]
    rho = (log_p - plain.rows.logp_mu).exp()
    written_out = -SHARE * (plain.weight * rho * plain.rows.advantage).sum()
    assert total.item() == pytest.approx(written_out.item(), rel=1e-14)
    names = [name for name in tracked if not name.startswith("value")]
    expected = torch.autograd.grad(written_out, [tracked[name] for name in names])
    actual = torch.autograd.grad(plain(tracked)[0], [tracked[name] for name in names])
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("shared", [False, True])
def test_l2_counts_each_kernel_once_and_no_bias(shared: bool):
    options = {"policy": 1.0, "value": 1e3, "shared": 1e6}
    coefs = {f"{k}_l2_coef": v for k, v in options.items() if shared or k != "shared"}
    config = PPOConfig(**coefs)
    case = Case(config, CONTINUOUS, ModelConfig(policy_hidden=(5, 4), shared_torso=shared))
    squares = dict.fromkeys(options, 0.0)
    for name, parameter in case.parameters.items():
        if not name.endswith(".weight"):
            continue
        body = "shared" if shared else "policy"
        group = {"encoder": body, "policy_head": "policy"}.get(name.split(".")[0], "value")
        squares[group] += parameter.square().sum().item()
    expected = sum(options[group] * x for group, x in squares.items())
    assert (squares["shared"] > 0) == shared
    l2 = told(case()[1])["loss/l2"]
    assert l2 == pytest.approx(expected, rel=1e-14)
    grouped = [name for names in case.learner.kernels.values() for name in names]
    assert sorted(grouped) == sorted(x for x in case.parameters if x.endswith(".weight"))


class Given(nn.Module):
    """A network whose outputs are its inputs."""

    def forward(
        self, obs: dict[str, Tensor], state: State, is_first: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        return obs["params"], obs["value"], state


def given_rows(count: int) -> Rows:
    zeros = torch.zeros(count, dtype=FLOAT64)
    params = torch.zeros((count, 3), dtype=FLOAT64)
    action = torch.zeros(count, dtype=torch.int64)
    obs = {"params": params, "value": zeros}
    logp = zeros - math.log(3.0)
    return Rows(obs, zeros.bool(), action, logp, params, zeros, zeros, zeros, {})


def golden_loss(learner: PPOLearner, rows: Rows, weight: Tensor, share: float) -> dict[str, float]:
    learner.network = Given()
    with float_means_double():
        given = minibatch(rows, weight)
        _, stats = learner.trained.evaluate({}, given, knobs(learner, share=share, dtype=FLOAT64))
    return told(stats)


@pytest.mark.parametrize("over_all", [False, True])
def test_golden_ppo_clip(over_all: bool):
    case = GOLDEN["ppo_clip"]
    x = {name: torch.tensor(v, dtype=FLOAT64) for name, v in case["inputs"].items()}
    learner = make_learner(PPOConfig(clip_epsilon=case["params"]["clip"], value_coef=0.0))
    rows = given_rows(6)
    rows = replace(rows, logp_mu=rows.logp_mu - x["ratio"].log(), advantage=x["advantage"])
    share = x["mask"].mean().item() if over_all else 1.0
    found = golden_loss(learner, rows, x["mask"] / x["mask"].sum(), share)
    name = "loss_mean_over_all" if over_all else "loss_mean_over_valid"
    assert found["loss/policy"] == pytest.approx(case["expected"][name], abs=1e-12)
    assert found["policy/clip_frac"] == pytest.approx(
        case["expected"]["clip_fraction_valid"], abs=1e-12
    )


def test_golden_ppo_value_clip():
    case = GOLDEN["ppo_value_clip"]
    x = {name: torch.tensor(v, dtype=FLOAT64) for name, v in case["inputs"].items()}
    # Their coefficient stands on the square, ours on half of it.
    coef = 2.0 * case["params"]["coef"]
    learner = make_learner(PPOConfig(value_clip=case["params"]["clip"], value_coef=coef))
    rows = given_rows(4)
    obs = rows.obs | {"value": x["new_value"]}
    rows = replace(rows, obs=obs, value_mu=x["old_value"], target=x["returns"])
    found = golden_loss(learner, rows, torch.full((4,), 0.25, dtype=FLOAT64), 1.0)
    assert found["loss/value"] == pytest.approx(case["expected"]["loss"], abs=1e-12)


def test_mean_over_all_divides_by_every_row():
    batch = make_rollout(seed=3)
    once = PPOConfig(num_epochs=1, minibatch_steps=None, entropy_coef=0.1)
    ours, orig = (
        learn(make_learner(config), batch)
        for config in (once, once.model_copy(update={"reduction": "mean_over_all"}))
    )
    share = batch.valid.float().mean().item()
    assert 0.5 < share < 0.95
    for name in ("loss/policy", "loss/value", "loss/entropy", "loss/total"):
        assert orig[name] == pytest.approx(share * ours[name], rel=3e-7)
    for name in ("policy/entropy", "policy/kl", "policy/ratio_mean"):
        assert orig[name] == pytest.approx(ours[name], rel=3e-7)
