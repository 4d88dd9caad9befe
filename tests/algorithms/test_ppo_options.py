"""No option without effect: each one, set to another value, changes what is learned."""

from typing import Any

import pytest
import torch
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    PICTURE,
    TOTAL,
    make_learner,
    make_obs,
    make_rollout,
    valid_rows,
)
from torch import Tensor

from quintet.algorithms.ppo import PPOConfig, PPOLearner
from quintet.errors import NonFiniteError
from quintet.models.build import ModelConfig, resolve_model
from quintet.types import Spaces

BASE: dict[str, Any] = {"unroll_steps": 16, "minibatch_steps": 16, "num_epochs": 2}
SHARED = ModelConfig(policy_hidden=(8,), shared_torso=True)

# What an option is changed to, and what it needs beside it to matter at all.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gamma": (0.9, {}),
    "advantage_estimator": ("monte_carlo", {}),
    "gae_lambda": (0.8, {}),
    "value_target": ("monte_carlo", {}),
    "value_source": ("recomputed", {}),
    "refresh_advantages": ("per_epoch", {"value_source": "recorded"}),
    "normalize_advantage": ("minibatch", {}),
    "truncation_as_termination": (True, {}),
    "unfinished_episode": ("drop", {}),
    "unroll_steps": (12, {}),
    "num_epochs": (3, {}),
    "minibatch_steps": (None, {}),
    "drop_last": (True, {"minibatch_steps": 10}),
    "clip_epsilon": (0.05, {}),
    "clip_schedule": ("linear", {}),
    "value_clip": (0.1, {}),
    "value_coef": (0.5, {"max_grad_norm": None, "adam_epsilon": 1e-2}),
    "entropy_coef": (0.1, {}),
    "policy_l2_coef": (0.1, {}),
    "value_l2_coef": (0.1, {}),
    "shared_l2_coef": (0.1, {}),
    "log_prob_clip": (1.0, {}),
    "kl_beta_init": (1.0, {}),
    "kl_target": (10.0, {"kl_beta_init": 1.0}),
    "kl_tolerance": (0.99, {"kl_beta_init": 1.0, "kl_target": 0.1}),
    "kl_cutoff_coef": (10.0, {}),
    "kl_cutoff_factor": (0.5, {"kl_cutoff_coef": 10.0}),
    "target_kl": (1e-6, {}),
    "reduction": ("mean_over_all", {"max_grad_norm": None, "adam_epsilon": 1e-2}),
    "normalize_observations": (False, {}),
    "observation_clip": (0.5, {}),
    "reward_normalizer": ("step_std", {}),
    "reward_norm_clip": (0.1, {}),
    "normalizer_variance_epsilon": (1.0, {}),
    "update_normalizers": (False, {}),
    "learning_rate": (1e-3, {}),
    "lr_schedule": ("constant", {}),
    "adam_epsilon": (1e-2, {}),
    "max_grad_norm": (0.01, {"adam_epsilon": 1e-2}),
    "check_numerics": (True, {}),
}

MODEL_CHANGES: dict[str, tuple[Any, dict[str, Any], Spaces]] = {
    "encoder": ("mlp", {"policy_hidden": (8,), "activation": "relu"}, PICTURE),
    "policy_hidden": ((6,), {"value_hidden": (8,)}, DISCRETE),
    "value_hidden": ((6,), {"policy_hidden": (8,)}, DISCRETE),
    "shared_torso": (True, {"policy_hidden": (8,)}, DISCRETE),
    "activation": ("relu", {"policy_hidden": (8,)}, DISCRETE),
    "init": ("truncated_normal", {"policy_hidden": (8,)}, DISCRETE),
    "action_std": ("softplus", {"policy_hidden": (8,)}, CONTINUOUS),
    "action_std_init": (0.5, {"policy_hidden": (8,)}, CONTINUOUS),
    "action_bounds": ("squash", {"policy_hidden": (8,)}, CONTINUOUS),
}


def learned(config: PPOConfig, model: ModelConfig) -> PPOLearner:
    """After two iterations, so that what the first put in the normalisers has had its effect."""
    learner = make_learner(config, model=model)
    for iteration in range(2):
        batch = make_rollout(steps=config.unroll_steps, seed=iteration + 1)
        learner.update(batch, iteration * TOTAL // 3)
    return learner


def differ(a: Tensor, b: Tensor) -> bool:
    return a.shape != b.shape or bool((a.double() - b.double()).abs().max() > 1e-6)


def test_every_option_is_in_the_tables():
    assert set(CHANGES) == set(PPOConfig.model_fields)
    assert set(MODEL_CHANGES) == set(ModelConfig.model_fields)


@pytest.mark.parametrize("name", [x for x in CHANGES if x != "check_numerics"])
def test_the_option_changes_the_weights(name: str):
    value, companions = CHANGES[name]
    before = PPOConfig(**(BASE | companions))
    after = PPOConfig(**(BASE | companions | {name: value}))
    assert getattr(before, name) != value
    model = SHARED if name == "shared_l2_coef" else ModelConfig(policy_hidden=(8,))
    first, other = learned(before, model), learned(after, model)
    assert differ(first.theta, other.theta)


def test_the_comparison_can_fail():
    model = ModelConfig(policy_hidden=(8,))
    first, same = learned(PPOConfig(**BASE), model), learned(PPOConfig(**BASE), model)
    assert not differ(first.theta, same.theta)


def test_unroll_steps_is_what_is_asked_of_the_runtime():
    assert make_learner(PPOConfig(unroll_steps=12, minibatch_steps=8)).plan.unroll_steps == 12


def test_check_numerics_changes_the_error():
    batch = make_rollout(seed=1)
    batch.record["logp_mu"].fill_(float("nan"))
    messages = []
    for value in (False, True):
        with pytest.raises(NonFiniteError) as error:
            make_learner(PPOConfig(**BASE, check_numerics=value)).update(batch, 0)
        messages.append(str(error.value))
    assert "rho" in messages[1]
    assert "rho" not in messages[0]


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({}, True),
        ({"update_normalizers": False}, False),
        ({"normalize_observations": False}, False),
    ],
)
def test_published_statistics(change: dict[str, Any], moves: bool):
    learner = make_learner(PPOConfig(**(BASE | change)))
    learner.update(make_rollout(seed=1), 0)
    found = [x for k, x in learner.publication().tensors.items() if k.startswith("normalizer/")]
    assert any(bool((x != 0).any()) for x in found) == moves


@pytest.mark.parametrize("name", list(MODEL_CHANGES))
def test_the_model_option_changes_policy_and_value(name: str):
    value, companions, spaces = MODEL_CHANGES[name]
    g = torch.Generator().manual_seed(1)
    obs = make_obs(spaces, (6,), g)
    outputs = []
    for options in (companions, companions | {name: value}):
        model = ModelConfig(**options)
        learner = make_learner(PPOConfig(**BASE), spaces, model)
        with torch.no_grad():
            params, state_value = learner.network(obs)
        family = learner.family
        noise = family.draw_noise((6,), torch.Generator().manual_seed(2))
        action = family.sample(params, noise)
        logp = family.log_prob(params, action)
        outputs.append(
            (params, state_value, logp, family.to_env(action), resolve_model(model, spaces))
        )
    (params, state_value, logp, action, model), other = outputs[0], outputs[1]
    assert getattr(model, name) != getattr(other[4], name)
    changed = {
        "params": differ(params, other[0]),
        "value": differ(state_value, other[1]),
        "logp": differ(logp, other[2]),
        "action": differ(action, other[3]),
    }
    expected = {
        "value_hidden": {"value"},
        "policy_hidden": {"params", "logp"},
        "shared_torso": {"value"},
        "action_std": set(),  # other parameters of the same start: told apart below
        "action_std_init": {"params", "logp", "action"},
        "action_bounds": {"logp", "action"},
    }.get(name, {"params", "value", "logp"})
    missing = {what for what in expected if not changed[what]}
    assert not missing


@pytest.mark.parametrize("kind", ["softplus", "state_dependent"])
def test_action_std_changes_what_an_update_does_to_the_width(kind: str):
    batch, widths = make_rollout(CONTINUOUS, seed=1), []
    for std in ("state_independent", kind):
        model = ModelConfig(policy_hidden=(8,), action_std=std)
        learner = make_learner(PPOConfig(**BASE), CONTINUOUS, model)
        learner.update(batch, 0)
        rows, _ = valid_rows(learner, batch)
        with torch.no_grad():
            widths.append(learner.network(rows.obs)[0][:, 2:])
    assert differ(*widths)
    assert bool((widths[1] - widths[1][:1]).abs().max() > 1e-6) == (kind == "state_dependent")
