"""The published golden cases, in both precisions."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from quintet.ops import policy_losses, schedules, value_losses
from quintet.ops.discrete import Categorical
from quintet.ops.reduce import mean_valid, normalize_valid, sum_valid
from quintet.ops.retrace import retrace
from quintet.ops.returns import gae, lambda_return, n_step
from quintet.ops.vtrace import VTraceResult, vtrace

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "returns.json").read_text())
CASES: list[dict[str, Any]] = GOLDEN["cases"]
DTYPES = [torch.float64, torch.float32]
HERE = {
    "gae",
    "nstep",
    "vtrace",
    "vtrace_logits",
    "retrace",
    "ppo_clip",
    "ppo_value_clip",
    "adaptive_kl",
    "kl_cutoff",
    "adv_norm",
    "linear_lr",
}
ELSEWHERE = {"reward_clipping"}  # tests/envs


def cases(kind: str) -> pytest.MarkDecorator:
    found = [case for case in CASES if case["kind"] == kind]
    assert found, f"no golden case of kind {kind}"
    return pytest.mark.parametrize("case", found, ids=[case["name"] for case in found])


precisions = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


def tensors(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.tensor(x, dtype=dtype) for name, x in case["inputs"].items()}


def agree(actual: Tensor | float, expected: Any, dtype: torch.dtype) -> None:
    expected = torch.tensor(expected, dtype=dtype)
    actual = torch.as_tensor(actual, dtype=None if isinstance(actual, Tensor) else dtype)
    assert actual.dtype == dtype
    tolerance = GOLDEN["tolerance"]  # as published with the cases
    if dtype == torch.float64:
        assert_close(actual, expected, rtol=0.0, atol=tolerance["float64"])
    else:
        rtol, atol = tolerance["float32_rtol"], tolerance["float32_atol"]
        assert_close(actual, expected, rtol=rtol, atol=atol)


def unroll(x: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """r_t, discount_t, not_cut_t, v_tm1, v_t"""
    not_cut = 1.0 - x["done"] if "done" in x else torch.ones_like(x["reward"])
    v_t = torch.cat([x["value"][1:], x["bootstrap"][None]])
    return x["reward"], x["discount"], not_cut, x["value"], v_t


def test_every_kind_is_known():
    kinds = {case["kind"] for case in CASES}
    assert kinds <= HERE | ELSEWHERE, f"unknown kinds: {kinds - HERE - ELSEWHERE}"
    assert kinds == HERE | ELSEWHERE
    assert len(CASES) == 27


@cases("gae")
@precisions
def test_gae(case: dict[str, Any], dtype: torch.dtype):
    r_t, discount_t, not_cut_t, v_tm1, v_t = unroll(tensors(case, dtype))
    lam = case["params"]["lam"]
    advantage, target = gae(r_t, discount_t, not_cut_t, v_tm1, v_t, lambda_=lam)
    agree(advantage, case["expected"]["advantages"], dtype)
    agree(target, case["expected"]["td_lambda_returns"], dtype)
    same = lambda_return(r_t, discount_t, not_cut_t, v_t, lambda_=lam)
    agree(same, case["expected"]["td_lambda_returns"], dtype)


def test_gae_does_not_have_the_off_by_one_of_tf_agents_953():
    checked = 0
    for case in CASES:
        wrong = case["expected"].get("tf_agents_953_advantages")
        if wrong is None:
            continue
        parts = unroll(tensors(case, torch.float64))
        ours = gae(*parts, lambda_=case["params"]["lam"]).advantage_tm1
        assert (ours - torch.tensor(wrong, dtype=torch.float64)).abs().max() > 1e-3
        checked += 1
    assert checked == 5


@cases("nstep")
@precisions
def test_n_step(case: dict[str, Any], dtype: torch.dtype):
    r_t, discount_t, not_cut_t, _, v_t = unroll(tensors(case, dtype))
    for n in (case["params"]["n"], len(r_t)):
        agree(n_step(r_t, discount_t, not_cut_t, v_t, n=n), case["expected"]["returns"], dtype)


def run_vtrace(case: dict[str, Any], x: dict[str, Tensor], rho: Tensor) -> VTraceResult:
    r_t, discount_t, not_cut_t, v_tm1, v_t = unroll(x)
    params = case["params"]
    return vtrace(
        v_tm1,
        v_t,
        r_t,
        discount_t,
        not_cut_t,
        rho,
        rho_bar=params["rho_bar"],
        c_bar=params["c_bar"],
        pg_rho_bar=params["pg_rho_bar"],
        lambda_=params["lam"],
    )


@cases("vtrace")
@precisions
def test_vtrace(case: dict[str, Any], dtype: torch.dtype):
    x = tensors(case, dtype)
    for rho in (x["rho"], x["log_rho"].exp()):
        target, advantage = run_vtrace(case, x, rho)
        agree(target, case["expected"]["vs"], dtype)
        agree(advantage, case["expected"]["pg_advantages"], dtype)


@cases("vtrace_logits")
@precisions
def test_vtrace_from_logits_and_losses(case: dict[str, Any], dtype: torch.dtype):
    x, expected, params = tensors(case, dtype), case["expected"], case["params"]
    family, action = Categorical(4), x["actions"].long()
    logp_pi = family.log_prob(x["target_logits"], action)
    logp_mu = family.log_prob(x["behavior_logits"], action)
    agree(logp_pi, expected["target_action_log_probs"], dtype)
    agree(logp_mu, expected["behavior_action_log_probs"], dtype)
    agree(logp_pi - logp_mu, expected["log_rhos"], dtype)
    target, advantage = run_vtrace(case, x, (logp_pi - logp_mu).exp())
    agree(target, expected["vs"], dtype)
    agree(advantage, expected["pg_advantages"], dtype)
    B = target.shape[1]
    policy = (-logp_pi * advantage).sum()
    value = value_losses.squared(x["value"], target).sum()
    entropy = -family.entropy(x["target_logits"]).sum()
    total = policy + params["baseline_cost"] * value + params["entropy_cost"] * entropy
    for name, scale in (("sum", 1), ("rtfm", B)):
        agree(policy / scale, expected[f"pg_loss_{name}"], dtype)
        agree(value / scale, expected[f"baseline_loss_{name}_before_cost"], dtype)
        agree(entropy / scale, expected[f"entropy_loss_{name}_before_cost"], dtype)
        agree(total / scale, expected[f"total_{name}"], dtype)


@cases("retrace")
@precisions
def test_retrace(case: dict[str, Any], dtype: torch.dtype):
    x, params = tensors(case, dtype), case["params"]
    r_t, discount_t, not_cut_t, _, v_t = unroll(x)
    target = retrace(
        x["q"],
        v_t,
        r_t,
        discount_t,
        not_cut_t,
        x["rho"],
        c_bar=params["rho_bar"],
        lambda_=params["lam"],
    )
    agree(target, case["expected"]["q_retrace"], dtype)


@cases("ppo_clip")
@precisions
def test_ppo_clip(case: dict[str, Any], dtype: torch.dtype):
    x, expected, clip = tensors(case, dtype), case["expected"], case["params"]["clip"]
    loss = policy_losses.ratio_clip(x["ratio"], x["advantage"], clip)
    agree(-loss, expected["objective"], dtype)
    agree(mean_valid(loss, x["mask"]), expected["loss_mean_over_valid"], dtype)
    agree(mean_valid(loss, x["mask"].bool()), expected["loss_mean_over_valid"], dtype)
    agree(sum_valid(loss, x["mask"]) / loss.numel(), expected["loss_mean_over_all"], dtype)


@cases("ppo_value_clip")
@precisions
def test_ppo_value_clip(case: dict[str, Any], dtype: torch.dtype):
    x, expected = tensors(case, dtype), case["expected"]
    new, old, target = x["new_value"], x["old_value"], x["returns"]
    loss = value_losses.clipped(new, old, target, case["params"]["clip"])
    agree(2.0 * loss, expected["per_step"], dtype)
    agree(loss.mean(), expected["loss"], dtype)
    agree(2.0 * value_losses.squared(new, target), expected["unclipped"], dtype)


@cases("adaptive_kl")
def test_adaptive_kl(case: dict[str, Any]):
    params = case["params"]
    beta = params["initial_beta"]
    for kl, expected in zip(case["inputs"]["mean_kl"], case["expected"]["beta_after"], strict=True):
        beta = policy_losses.adaptive_kl_coef(
            beta,
            kl,
            target=params["target"],
            tolerance=params["tolerance"],
            factor=params["factor"],
            beta_min=params["beta_min"],
            beta_max=params["beta_max"],
        )
        assert math.isclose(beta, expected, rel_tol=0.0, abs_tol=1e-10)


@cases("kl_cutoff")
@precisions
def test_kl_cutoff(case: dict[str, Any], dtype: torch.dtype):
    kl, expected, params = tensors(case, dtype)["kl"], case["expected"], case["params"]
    mean_kl = mean_valid(kl, torch.ones_like(kl))
    agree(mean_kl, expected["mean_kl"], dtype)
    rule = {
        "target": params["target"],
        "factor": params["cutoff_factor"],
        "coef": params["cutoff_coef"],
    }
    cutoff = policy_losses.kl_cutoff(mean_kl, **rule)
    agree(cutoff, expected["cutoff_loss"], dtype)
    agree(cutoff + params["beta"] * mean_kl, expected["total"], dtype)
    below = torch.tensor(expected["cutoff"], dtype=dtype)
    agree(policy_losses.kl_cutoff(below, **rule), expected["zero_below_cutoff"], dtype)


@cases("adv_norm")
@precisions
def test_advantage_normalisation(case: dict[str, Any], dtype: torch.dtype):
    x, eps = tensors(case, dtype), case["params"]["eps"]
    for mask in (x["mask"], x["mask"].bool()):
        agree(normalize_valid(x["advantage"], mask, eps), case["expected"]["masked"], dtype)
    everything = torch.ones_like(x["mask"])
    agree(normalize_valid(x["advantage"], everything), case["expected"]["unmasked"], dtype)


@cases("linear_lr")
def test_linear_rate(case: dict[str, Any]):
    params = case["params"]
    for update, expected in zip(case["inputs"]["update"], case["expected"]["lr"], strict=True):
        steps = int(update) * params["T"] * params["B"]
        rate = params["lr"] * schedules.linear(steps, params["total"])
        assert math.isclose(rate, expected, rel_tol=0.0, abs_tol=1e-15)
        assert (rate == 0.0) == (expected == 0.0)
