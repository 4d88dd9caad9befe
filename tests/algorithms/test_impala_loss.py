"""IMPALA's loss and update against the golden numbers and against plain loops."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from impala_helpers import (
    COLUMNS,
    STEPS,
    loss_and_gradient,
    make_batch,
    make_learner,
    terms_of,
    unrolls,
)
from ppo_helpers import CONTINUOUS, DISCRETE, HYBRID, MASKED, columns, learn, make_rollout
from torch import Tensor, nn

from quintet.algorithms.impala.config import ImpalaConfig, Knobs
from quintet.algorithms.parts import policy_probe
from quintet.models.config import ModelConfig
from quintet.types import Rollout

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "returns.json").read_text())["cases"]
LINEAR = ModelConfig(policy_hidden=(), value_hidden=())


def golden(name: str) -> dict[str, Any]:
    return next(case for case in GOLDEN if case["name"] == name)


class Given(nn.Module):
    """A network that says what it is told."""

    def __init__(self, logits: Tensor, value: Tensor):
        super().__init__()
        self.logits, self.v = nn.Parameter(logits), nn.Parameter(value)

    def forward(self, *_: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return self.logits.flatten(0, 1), self.v.flatten(), {}


@pytest.mark.parametrize(("reduction", "suffix"), [("sum", "sum"), ("sum_time_mean_batch", "rtfm")])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, {"rtol": 0, "atol": 1e-10}), (torch.float32, {})]
)
def test_golden_losses(reduction: str, suffix: str, dtype: torch.dtype, tolerance: dict[str, Any]):
    case = golden("vtrace_from_logits_and_losses")
    x = {name: torch.tensor(value, dtype=dtype) for name, value in case["inputs"].items()}
    params, expected = case["params"], case["expected"]
    gamma = x["discount"].max().item()
    torch.testing.assert_close(x["discount"], gamma * (1 - x["done"]))
    config = ImpalaConfig(
        reduction=reduction,
        gamma=gamma,
        rho_bar=params["rho_bar"],
        c_bar=params["c_bar"],
        pg_rho_bar=params["pg_rho_bar"],
        vtrace_lambda=params["lam"],
        value_coef=params["baseline_cost"],
        entropy_coef=params["entropy_cost"],
    )
    learner = make_learner(config)
    T, B = x["reward"].shape
    mu, action = x["behavior_logits"], x["actions"].long()
    logits = torch.cat((x["target_logits"], torch.full((1, B, mu.shape[-1]), 7.0, dtype=dtype)))
    learner.network = Given(logits, torch.cat((x["value"], x["bootstrap"][None])))
    given = unrolls(
        learner,
        make_rollout(steps=T, streams=B),
        obs={},
        action=action,
        reward=x["reward"],
        terminal=x["done"].bool(),
        not_cut_t=1 - x["done"],
        valid=torch.ones(T, B, dtype=torch.bool),
        logp_mu=mu.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1),
    )
    learner.family = type(learner.family)(mu.shape[-1])
    numbers = learner.knobs(config.entropy_coef)
    knobs = Knobs(*(torch.tensor(number, dtype=dtype) for number in numbers))
    loss, stats = learner.trained.evaluate(dict(learner.network.named_parameters()), given, knobs)
    found = {
        "pg_loss": stats.means["loss/policy"].detach(),
        "baseline_loss": stats.means["loss/value"].detach() / params["baseline_cost"],
        "entropy_loss": stats.means["loss/entropy"].detach() / params["entropy_cost"],
        "total": loss.detach(),
    }
    for name, value in found.items():
        key = f"{name}_{suffix}" + ("" if name in ("pg_loss", "total") else "_before_cost")
        wanted = torch.tensor(expected[key], dtype=dtype)
        torch.testing.assert_close(value, wanted, **tolerance, msg=name)


def test_golden_rate():
    case = golden("linear_lr")
    params = case["params"]
    config = ImpalaConfig(learning_rate=params["lr"], unroll_steps=STEPS, batch_unrolls=COLUMNS)
    learner = make_learner(config, total=params["total"])
    batch = make_batch(learner)
    for update, expected in zip(case["inputs"]["update"], case["expected"]["lr"], strict=True):
        steps = int(update) * params["T"] * params["B"]
        before = learner.trained.theta.clone()
        metrics = learn(learner, batch, steps)
        assert metrics["optim/learning_rate"] == pytest.approx(expected, rel=1e-12, abs=1e-15)
        assert torch.equal(learner.trained.theta, before) == (expected == 0.0)


def by_hand(
    config: ImpalaConfig, batch: Rollout, weights: dict[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Terms of the loss and its gradient for a linear network, in plain numbers.

    ``logits = W o + b``, ``v = w o + c``; the policy's term is differentiated as
    ``adv * (pi - onehot)``, the value's as ``v - target``, and nothing else.
    """
    T, B = batch.reward.shape
    obs = batch.obs["obs"].double().tolist()
    W, b, w, c = (weights[k] for k in ("W", "b", "w", "c"))
    size = len(b)

    def dot(u: list[float], x: list[float]) -> float:
        return math.fsum(p * q for p, q in zip(u, x, strict=True))

    terms = {"policy": 0.0, "value": 0.0, "entropy": 0.0}
    d_logit = [[[0.0] * size for _ in range(B)] for _ in range(T)]
    d_value = [[0.0] * B for _ in range(T)]
    for k in range(B):
        v = [dot(w, obs[i][k]) + c for i in range(T + 1)]
        after = target_after = 0.0
        for i in reversed(range(T)):
            if not batch.valid[i, k]:
                continue
            logits = [dot(W[a], obs[i][k]) + b[a] for a in range(size)]
            top = max(logits)
            z = math.fsum(math.exp(x - top) for x in logits)
            log_pi = [x - top - math.log(z) for x in logits]
            pi = [math.exp(x) for x in log_pi]
            action = int(batch.action[i, k])
            rho = math.exp(log_pi[action] - batch.record["logp_mu"][i, k].item())
            r, cut = batch.reward[i, k].item(), bool(batch.not_cut_t[i, k] == 0)
            discount = 0.0 if batch.terminated[i, k] else config.gamma
            cut = cut or i == T - 1
            delta = min(rho, config.rho_bar) * (r + discount * v[i + 1] - v[i])
            trace = config.vtrace_lambda * min(rho, config.c_bar)
            acc = delta + (0.0 if cut else discount * trace * after)
            following = v[i + 1] if cut else target_after
            advantage = min(rho, config.pg_rho_bar) * (r + discount * following - v[i])
            after, target_after = acc, v[i] + acc
            entropy = -dot(pi, log_pi)
            terms["policy"] -= log_pi[action] * advantage
            terms["value"] += 0.5 * config.value_coef * acc**2
            terms["entropy"] -= config.entropy_coef * entropy
            for a in range(size):
                d_logit[i][k][a] = advantage * (pi[a] - (a == action))
                d_logit[i][k][a] += config.entropy_coef * pi[a] * (log_pi[a] + entropy)
            d_value[i][k] = -config.value_coef * acc
    count = int(batch.valid.sum())
    scale = {"sum": 1.0, "sum_time_mean_batch": 1 / B, "mean": 1 / count}[config.reduction]
    spots = [(i, k) for i in range(T) for k in range(B)]
    gradient = {
        "b": [scale * math.fsum(d_logit[i][k][a] for i, k in spots) for a in range(size)],
        "W": [
            [scale * math.fsum(d_logit[i][k][a] * obs[i][k][j] for i, k in spots) for j in range(3)]
            for a in range(size)
        ],
        "c": scale * math.fsum(d_value[i][k] for i, k in spots),
        "w": [scale * math.fsum(d_value[i][k] * obs[i][k][j] for i, k in spots) for j in range(3)],
    }
    return {name: scale * x for name, x in terms.items()}, gradient


@pytest.mark.parametrize("reduction", ["sum", "sum_time_mean_batch", "mean"])
@pytest.mark.parametrize("inside", [False, True])
def test_two_updates_by_hand(reduction: str, inside: bool):
    """Forward, V-trace, gradient, clip of its norm and RMSProp, number by number."""
    config = ImpalaConfig(
        reduction=reduction,
        gamma=0.9,
        rho_bar=1.2,
        pg_rho_bar=0.9,
        c_bar=0.8,
        vtrace_lambda=0.95,
        entropy_coef=0.05,
        learning_rate=1e-2,
        lr_schedule="constant",
        max_grad_norm=1.0,
        rmsprop_momentum=0.5,
        rmsprop_epsilon_inside_sqrt=inside,
    )
    learner = make_learner(config, model=LINEAR)
    names = {
        "b": "policy_head.linear.bias",
        "W": "policy_head.linear.weight",
        "c": "value_head.bias",
        "w": "value_head.weight",
    }
    assert list(learner.trained.parameters) == list(names.values())
    with torch.no_grad():  # far enough from 0 for every term to count
        learner.trained.theta.copy_(
            0.5 * torch.randn(16, generator=torch.Generator().manual_seed(4))
        )
    theta = learner.trained.theta.double().tolist()
    squares, velocity = [float(inside)] * 16, [0.0] * 16
    for seed in (1, 2):
        batch = make_batch(learner, seed=seed)
        assert (~batch.valid).any()
        rows = [theta[3 + 3 * a : 6 + 3 * a] for a in range(3)]
        weights = {"b": theta[:3], "W": rows, "c": theta[12], "w": theta[13:]}
        terms, g = by_hand(config, batch, weights)
        flat = [*g["b"], *(x for row in g["W"] for x in row), g["c"], *g["w"]]
        norm = math.sqrt(math.fsum(x * x for x in flat))
        metrics = learn(learner, batch, 0)
        for name, value in terms.items():
            assert metrics[f"loss/{name}"] == pytest.approx(value, rel=1e-6), name
        assert metrics["loss/total"] == pytest.approx(sum(terms.values()), rel=1e-6)
        assert metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-6)
        for k, x in enumerate(flat):
            x *= min(1.0, 1.0 / (norm + 1e-6))
            squares[k] = 0.99 * squares[k] + 0.01 * x * x
            if inside:
                velocity[k] = 0.5 * velocity[k] + 1e-2 * x / math.sqrt(squares[k] + 0.01)
                theta[k] -= velocity[k]
            else:
                velocity[k] = 0.5 * velocity[k] + x / (math.sqrt(squares[k]) + 0.01)
                theta[k] -= 1e-2 * velocity[k]
        # Steps are some 1e-2; weights of size 1 are rounded by 1e-7.
        torch.testing.assert_close(learner.trained.theta, torch.tensor(theta), rtol=0, atol=4e-7)
    assert metrics["optim/grad_clip_frac"] == float(norm > 1.0)


def test_adam_is_pytorch_s():
    """Three updates, with the gradients that the learner itself has at each."""
    config = ImpalaConfig(optimizer="adam", max_grad_norm=None, lr_schedule="constant")
    learner = make_learner(config)
    theirs = learner.trained.theta.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=config.learning_rate, eps=config.adam_epsilon)
    for seed in range(3):
        batch = make_batch(learner, seed=seed)
        _, theirs.grad = loss_and_gradient(learner, batch)
        optimizer.step()
        learner.update(batch, 0)
        torch.testing.assert_close(learner.trained.theta, theirs.detach(), rtol=0, atol=2.5e-7)


def test_metrics_by_loop():
    learner = make_learner(ImpalaConfig(entropy_coef=0.01))
    batch = make_batch(learner)
    terms = terms_of(learner, batch)
    valid = batch.valid.flatten().tolist()

    def kept(x: Tensor) -> list[float]:
        each = x.detach().double().flatten().tolist()
        return [a for a, ok in zip(each, valid, strict=True) if ok]

    def mean(x: list[float]) -> float:
        return math.fsum(x) / len(x)

    def variance(x: list[float]) -> float:
        return mean([(a - mean(x)) ** 2 for a in x])

    rho, target, v = kept(terms.rho), kept(terms.target_tm1), kept(terms.v_tm1)
    expected = {
        "policy/ratio_mean": mean(rho),
        "policy/ratio_min": min(rho),
        "policy/ratio_max": max(rho),
        "policy/rho_clip_frac": mean([float(x > 1.001) for x in rho]),
        "policy/c_clip_frac": mean([float(x > 1.001) for x in rho]),
        "policy/approx_kl": mean([x - 1 - math.log(x) for x in rho]),
        "policy/entropy": mean(kept(terms.entropy)),
        "value/prediction_mean": mean(v),
        "value/target_mean": mean(target),
        "value/explained_variance": 1
        - variance([a - b for a, b in zip(target, v, strict=True)]) / variance(target),
        "value/error_frac": mean([(a - b) ** 2 for a, b in zip(target, v, strict=True)])
        / mean([x**2 for x in target]),
        "advantage/mean": mean(kept(terms.pg_advantage_tm1)),
        "advantage/std": math.sqrt(variance(kept(terms.pg_advantage_tm1))),
        "reward/mean": mean(kept(batch.reward)),
        "data/valid_frac": sum(valid) / len(valid),
    }
    metrics = learn(learner, batch, 0)
    assert min(rho) < 0.9 < 1.1 < max(rho)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-6, abs=1e-7), name
    assert set(metrics) - set(expected) - set(policy_probe.DISTRIBUTION) == {
        "loss/policy",
        "loss/value",
        "loss/entropy",
        "loss/total",
        "loss/total_abs",
        "optim/grad_norm",
        "optim/grad_clip_frac",
        "optim/learning_rate",
    }


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS, MASKED, HYBRID])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e30])
def test_rows_that_are_not_valid_change_nothing(spaces: Any, junk: float):
    """Whatever stands in them, a NaN too; only their observation is that of an ending."""
    found = []
    for spoil in (False, True):
        learner = make_learner(ImpalaConfig(entropy_coef=0.01, normalize_observations=True), spaces)
        for seed in range(2):
            batch = make_batch(learner, spaces, seed=seed)
            hidden = ~batch.valid
            assert hidden.any()
            if spoil:
                batch.reward[hidden] = junk
                batch.record["logp_mu"][hidden] = junk
                floats = batch.action.is_floating_point()
                batch.action[hidden] = torch.tensor(junk if floats else 10**6).to(batch.action)
            metrics = learn(learner, batch, 0)
        found.append((learner.trained.theta.clone(), metrics))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_a_batch_of_nothing_valid_moves_nothing():
    learner = make_learner(ImpalaConfig(unroll_steps=1, batch_unrolls=COLUMNS))
    batch = make_batch(learner, steps=1)
    before = learner.trained.theta.clone()
    metrics = learn(learner, replace(batch, valid=torch.zeros_like(batch.valid)), 0)
    assert torch.equal(learner.trained.theta, before)
    assert metrics["data/valid_frac"] == metrics["loss/total"] == 0.0
    assert "policy/ratio_min" not in metrics


@pytest.mark.parametrize("reduction", ["sum", "sum_time_mean_batch", "mean"])
def test_the_order_of_columns_changes_nothing(reduction: str):
    config = ImpalaConfig(reduction=reduction, entropy_coef=0.01)
    learner = make_learner(config, model=ModelConfig(policy_hidden=(8,), core="gru", core_size=6))
    batch = make_batch(learner)
    loss, gradient = loss_and_gradient(learner, batch)
    other_loss, other = loss_and_gradient(learner, columns(batch, [2, 0, 3, 1]))
    torch.testing.assert_close(other_loss, loss)
    torch.testing.assert_close(other, gradient, rtol=1e-6, atol=3e-6)  # 64 terms


@pytest.mark.parametrize("ending", ["terminated", "truncated", "trace_cut"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_batch_with_a_cut_is_two_trajectories(ending: str, core: str):
    """The gradient of a sum over T + S rows with a cut between is that of the two parts' sums."""
    model = ModelConfig(policy_hidden=(8,), **({} if core == "none" else {"core": core}))
    learner = make_learner(ImpalaConfig(reduction="sum", entropy_coef=0.01), model=model)
    batch, T = make_batch(learner), 7
    for name in ("terminated", "truncated"):
        getattr(batch, name)[T - 1] = False
    none = torch.zeros_like(batch.terminated)
    batch = replace(batch, trace_cut=none)
    getattr(batch, ending)[T - 1] = True
    batch.valid[T] = ending == "trace_cut"
    batch.valid[T - 1] = True
    batch.is_first[T] = False
    batch.is_first[T + 1] = True

    def part(a: int, b: int, state: int | None) -> Rollout:
        def rows(x: Tensor) -> Tensor:
            return x[a:b]

        names = ("action", "reward", "terminated", "truncated", "valid", "trace_cut")
        return replace(
            batch,
            obs={k: x[a : b + 1] for k, x in batch.obs.items()},
            is_first=batch.is_first[a : b + 1],
            record={k: rows(x) for k, x in batch.record.items()},
            state={k: x[:1] for k, x in batch.state.items()},
            **{name: rows(getattr(batch, name)) for name in names},
        )

    if ending == "trace_cut":  # what is behind it is not valid
        batch.valid[T:] = False
        expected = loss_and_gradient(learner, part(0, T, 0))
    else:
        first, second = (loss_and_gradient(learner, part(*p, 0)) for p in ((0, T), (T + 1, STEPS)))
        expected = (first[0] + second[0], first[1] + second[1])
    loss, gradient = loss_and_gradient(learner, batch)
    # A sum of 64 terms, added in another order.
    torch.testing.assert_close(loss, expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-6, atol=4e-6)  # of size 14, 64 terms


def test_truncation_as_termination_takes_the_bootstrap_away():
    targets = []
    for as_end in (False, True):
        learner = make_learner(ImpalaConfig(truncation_as_termination=as_end))
        batch = make_batch(learner)
        terms = terms_of(learner, batch)
        targets.append(terms.target_tm1 - terms.v_tm1)
        ends = batch.truncated & batch.valid
        assert ends.any()
        if as_end:
            clipped = terms.rho.clamp(max=1.0) * (batch.reward - terms.v_tm1)
            torch.testing.assert_close(targets[1][ends], clipped[ends].detach())
    assert (targets[0] - targets[1])[ends].abs().min() > 0
