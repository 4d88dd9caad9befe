"""APPO's loss and statistics against plain loops over rows."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from appo_helpers import STEPS, STREAMS, Linear, make_batch, make_learner, minibatches_of
from ppo_helpers import (
    DISCRETE,
    MASKED,
    make_rollout,
)
from torch import Tensor

from quintet.algorithms.appo.config import (
    APPOConfig,
    Knobs,
)
from quintet.algorithms.parts.trained import knobs_of
from quintet.models.config import ModelConfig
from quintet.runtime.delivery import with_cuts
from quintet.types import ACTION_MASK, Rollout


def by_hand(config: APPOConfig, batch: Rollout, network: Linear) -> dict[str, Tensor]:
    """The terms of the loss, one row at a time; `chunk` rows belong together."""
    logits, v, _ = network(batch.obs)
    log_p = logits.log_softmax(-1)
    actions = logits.shape[-1]
    ended = batch.terminated | batch.truncated
    rows: list[dict[str, Any]] = []
    low, high = config.ratio_clamp or (0.0, math.inf)

    def row(i: int, b: int) -> dict[str, Any]:
        valid = bool(batch.valid[i, b])
        action = int(batch.action[i, b])
        ratio = (log_p[i, b, action] - batch.record["logp_mu"][i, b]).exp() if valid else None
        goes_on = not ended[i, b] and (i + 1 == STEPS or bool(batch.valid[i + 1, b]))
        terminal = batch.terminated[i, b] or (
            config.truncation_as_termination and batch.truncated[i, b]
        )
        return {
            "i": i,
            "b": b,
            "valid": valid,
            "rho": ratio.clamp(low, high) if valid else torch.ones(()),
            "r": batch.reward[i, b].item() if valid else 0.0,
            "discount": 0.0 if terminal else config.gamma,
            "goes_on": goes_on,
        }

    chunk = STEPS if not config.use_vtrace else config.chunk_steps
    for b in range(STREAMS):
        for start in range(0, STEPS, chunk):
            mine = [row(i, b) for i in range(start, start + chunk)]
            if config.use_vtrace:
                of_vtrace(config, mine, v.detach())
            else:
                of_gae(config, mine, batch.record["value"], v.detach())
            rows += [each for each in mine if each["valid"]]

    advantages = [each["advantage"] for each in rows]
    mean = sum(advantages) / len(rows)
    std = math.sqrt(sum((a - mean) ** 2 for a in advantages) / (len(rows) - 1))
    c = config.clip_epsilon
    terms: dict[str, list[Tensor]] = {name: [] for name in ("policy", "value", "explore", "kl")}
    for each in rows:
        i, b, rho = each["i"], each["b"], each["rho"]
        a = (each["advantage"] - mean) / max(1e-3, std)
        clipped = rho.clamp(1 / (1 + c), 1 + c)
        terms["policy"].append(-torch.minimum(rho * a, clipped * a))
        error = (v[i, b] - each["target"]).square()
        if config.value_clip is not None:
            old = batch.record["value"][i, b]
            near = old + (v[i, b] - old).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (near - each["target"]).square())
        terms["value"].append(0.5 * error)
        p = log_p[i, b].exp()
        if config.exploration_loss == "entropy":
            terms["explore"].append((p * log_p[i, b]).sum())
        else:
            u = 1.0 / actions
            to_uniform = (p * (log_p[i, b] - math.log(u))).sum()
            from_uniform = (u * (math.log(u) - log_p[i, b])).sum()
            terms["explore"].append((0.5 * (to_uniform + from_uniform)).clamp(max=30.0))
        if config.kl_coef > 0:
            log_mu = batch.record["params_mu"][i, b].log_softmax(-1)
            terms["kl"].append((p * (log_p[i, b] - log_mu)).sum())
    return {name: torch.stack(x).mean() for name, x in terms.items() if x}


def of_vtrace(config: APPOConfig, rows: list[dict[str, Any]], v: Tensor) -> None:
    """Adds target and advantage to the rows of a chunk."""
    rho_bar = math.inf if config.rho_bar is None else config.rho_bar
    c_bar = math.inf if config.c_bar is None else config.c_bar
    later = 0.0
    for number, row in reversed([*enumerate(rows)]):
        i, b, rho = row["i"], row["b"], row["rho"].item()
        here, there = v[i, b].item(), v[i + 1, b].item()
        last = number == len(rows) - 1
        inner = row["goes_on"] and not last
        delta = min(rho_bar, rho) * (row["r"] + row["discount"] * there - here)
        trace = config.vtrace_lambda * min(c_bar, rho)
        later = delta + (row["discount"] * trace * later if inner else 0.0)
        row["target"] = here + later
        following = rows[number + 1]["target"] if inner else there
        row["advantage"] = row["r"] + row["discount"] * following - here
        if config.advantage_includes_rho:
            row["advantage"] *= min(rho_bar, rho)


def of_gae(config: APPOConfig, rows: list[dict[str, Any]], old: Tensor, v: Tensor) -> None:
    later = 0.0
    for number, row in reversed([*enumerate(rows)]):
        i, b = row["i"], row["b"]
        last = number == len(rows) - 1
        there = (v if last else old)[i + 1, b].item()
        delta = row["r"] + row["discount"] * there - old[i, b].item()
        goes_on = row["goes_on"] and not last
        later = delta + (row["discount"] * config.gae_lambda * later if goes_on else 0.0)
        row["advantage"], row["target"] = later, later + old[i, b].item()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bptt_steps": 4, "vtrace_lambda": 0.9, "rho_bar": 2.0, "c_bar": 0.5},
        {"bptt_steps": 1, "value_clip": None, "clip_epsilon": 0.5},
        {"bptt_steps": 4, "truncation_as_termination": True, "rho_bar": 3.0, "c_bar": 0.5},
        {"advantage_includes_rho": False, "ratio_clamp": None, "rho_bar": None, "c_bar": None},
        {"advantage_includes_rho": False, "ratio_clamp": (0.5, 1.5), "gamma": 0.7},
        {"use_vtrace": False, "gae_lambda": 0.8, "value_clip": 5.0},
        {"use_vtrace": False, "bptt_steps": 2, "truncation_as_termination": True},
        {"exploration_loss": "symmetric_kl", "entropy_coef": 0.3, "kl_coef": 0.7},
    ],
    ids=str,
)
def test_loss_and_gradient_by_plain_loops(options: dict[str, Any]) -> None:
    learner = make_learner(**options)
    config, batch = learner.config, make_batch(learner)
    assert (~batch.valid).any()
    assert batch.trace_cut is not None
    assert batch.trace_cut.any()
    network = Linear((3, 3))
    learner.network = network  # type: ignore[assignment]
    learner.trained.views = lambda: dict(network.named_parameters())  # type: ignore[method-assign]
    expected = by_hand(config, batch, network)
    knobs = knobs_of(Knobs, config, first=1.0)
    (minibatch,) = minibatches_of(learner, learner._chunks(batch), knobs)
    loss, told = learner.trained.evaluate(
        dict(network.named_parameters()), minibatch, Knobs(*map(torch.tensor, knobs))
    )
    explore = "entropy" if config.exploration_loss == "entropy" else "uniform_kl"
    weighted = {
        "loss/policy": expected["policy"],
        "loss/value": config.value_coef * expected["value"],
        f"loss/{explore}": config.entropy_coef * expected["explore"],
    }
    if config.kl_coef > 0:
        weighted["loss/kl"] = config.kl_coef * expected["kl"]
    for name, x in weighted.items():
        torch.testing.assert_close(told.means[name].float(), x, rtol=1e-4, atol=1e-6, msg=name)
    total = torch.stack([*weighted.values()]).sum()
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-6)
    (found,) = torch.autograd.grad(loss, [network.weight])
    (wanted,) = torch.autograd.grad(total, [network.weight])
    assert wanted.abs().max() > 1e-2
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_kl_to_the_uniform_policy_has_a_cap_by_row() -> None:
    learner = make_learner(exploration_loss="symmetric_kl")
    config, batch, network = learner.config, make_batch(learner), Linear((3, 3))
    with torch.no_grad():
        network.weight.mul_(40.0)
    learner.network = network  # type: ignore[assignment]
    knobs = knobs_of(Knobs, config, first=1.0)
    (minibatch,) = minibatches_of(learner, learner._chunks(batch), knobs)
    _, told = learner.trained.evaluate(
        dict(network.named_parameters()), minibatch, Knobs(*map(torch.tensor, knobs))
    )
    wanted = config.entropy_coef * by_hand(config, batch, network)["explore"]
    assert 0.1 < told.means["policy/uniform_kl_capped_frac"] < 0.9
    torch.testing.assert_close(told.means["loss/uniform_kl"], wanted, rtol=1e-4, atol=0)


def test_the_uniform_policy_is_one_over_the_allowed_actions() -> None:
    """To which a policy of equal logits is as near as can be."""
    learner = make_learner(MASKED, exploration_loss="symmetric_kl")
    learner.trained.theta.zero_()
    chunks = learner._chunks(make_batch(learner, MASKED))
    assert not chunks.obs[ACTION_MASK].all()
    knobs = knobs_of(Knobs, learner.config, first=1.0)
    (minibatch,) = minibatches_of(learner, chunks, knobs)
    tensors = Knobs(*map(torch.tensor, knobs))
    _, outputs = learner.loss(learner.trained.parameters, minibatch, tensors)
    assert outputs.uniform_kl is not None
    assert outputs.uniform_kl.abs().max() < 1e-6


def test_gae_takes_the_value_behind_the_unroll_from_the_state_there() -> None:
    model = ModelConfig(policy_hidden=(8,), core="gru", core_size=4)
    learner = make_learner(model=model, use_vtrace=False, bptt_steps=4)
    batch = make_rollout(DISCRETE, STEPS, STREAMS)
    state = learner.network.initial_state(STREAMS)
    batch = replace(batch, state={name: torch.randn(3, *x.shape) for name, x in state.items()})
    batch.is_first[-1], batch.valid[-1] = False, True
    batch.terminated[-1] = batch.truncated[-1] = False
    batch = with_cuts(batch)
    chunks = learner._chunks(batch)
    last = {name: x[-1] for name, x in batch.obs.items()}
    end = {name: x[2] for name, x in batch.state.items()}
    v_end = learner.network.value(last, end, batch.is_first[-1])
    wanted = batch.reward[-1] + learner.config.gamma * v_end
    found = chunks.estimates["target"][-1, -STREAMS:]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_statistics_are_of_valid_rows() -> None:
    learner = make_learner(kl_coef=0.1, clip_epsilon=0.5)
    batch, network = make_batch(learner), Linear((3, 3))
    batch.record["value"][~batch.valid] = 1e3
    batch.obs["obs"][:-1][~batch.valid] *= 10.0
    learner.network = network  # type: ignore[assignment]
    knobs = knobs_of(Knobs, learner.config, first=1.0)
    (minibatch,) = minibatches_of(learner, learner._chunks(batch), knobs)
    tensors = Knobs(*map(torch.tensor, knobs))
    _, told = learner.trained.evaluate(dict(network.named_parameters()), minibatch, tensors)
    _, outputs = learner.loss(dict(network.named_parameters()), minibatch, tensors)
    a = outputs.normalized[batch.valid]
    logits, v, _ = network(batch.obs)
    log_pi, log_mu = (x.log_softmax(-1) for x in (logits[:-1], batch.record["params_mu"]))
    logp = log_pi.gather(-1, batch.action.long().unsqueeze(-1)).squeeze(-1)
    rho = (logp - batch.record["logp_mu"]).exp().clamp(0.05, 20.0)[batch.valid]
    change = (v[:-1] - batch.record["value"]).abs()[batch.valid]
    means = {
        "policy/clip_frac": ((rho < 1 / 1.5) | (rho > 1.5)).float().mean(),
        "policy/ratio_mean_abs_error": (rho - 1).abs().mean(),
        "policy/kl": (log_mu.exp() * (log_mu - log_pi)).sum(-1)[batch.valid].mean(),
        "value/change_mean": change.mean(),
    }
    greatest = {
        "value/change_max": change.max(),
        "advantage/normalized_max": a.max(),
        "policy/ratio_max": rho.max(),
        "policy/logit_abs_max": logits[:-1][batch.valid].abs().max(),
    }
    least = {"advantage/normalized_min": a.min(), "policy/ratio_min": rho.min()}
    for wanted, found in ((means, told.means), (greatest, told.greatest), (least, told.least)):
        for name, x in wanted.items():
            torch.testing.assert_close(found[name].float(), x, rtol=1e-4, atol=1e-6, msg=name)
