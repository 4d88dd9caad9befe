"""Ranges of PPO and of networks, and combinations without effect."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from test_conformance_options import RULES, bounds

from quintet.algorithms.ppo.config import PPOConfig, check, planned_updates
from quintet.models.config import ModelConfig

POSITIVE = (
    "clip_epsilon value_clip log_prob_clip kl_target target_kl observation_clip "
    "normalizer_variance_epsilon learning_rate adam_epsilon max_grad_norm"
)
NOT_NEGATIVE = (
    "value_coef entropy_coef policy_l2_coef value_l2_coef shared_l2_coef kl_beta_init "
    "kl_cutoff_coef kl_cutoff_factor"
)
RANGES = {
    **{key: {"gt": 0} for key in POSITIVE.split()},
    **{key: {"ge": 0} for key in NOT_NEGATIVE.split()},
    **{key: {"ge": 1} for key in ("unroll_steps", "num_epochs", "minibatch_steps", "bptt_steps")},
    **{key: {"ge": 0, "le": 1} for key in ("gamma", "gae_lambda")},
    "kl_tolerance": {"ge": 0, "lt": 1},
}


MODEL_RANGES = {
    **{key: {"ge": 1} for key in ("policy_hidden", "value_hidden", "core_size", "core_layers")},
    **{key: {"ge": 1} for key in ("hash_buckets", "text_embedding", "text_hidden")},
    **{key: {"ge": 1} for key in ("image_channels", "film_blocks")},
    "action_std_init": {"gt": 0},
}


@pytest.mark.parametrize(("config", "ranges"), [(PPOConfig, RANGES), (ModelConfig, MODEL_RANGES)])
def test_ranges_are_those_of_the_specification(config: type[BaseModel], ranges: dict[str, Any]):
    """test_conformance_options.py follows what is declared; here is what has to be declared."""
    declared = {}
    for name, field in config.model_fields.items():
        every = [*field.metadata, *bounds(field.annotation)]
        rules = [rule for rule in every if type(rule) in RULES]
        given = {RULES[type(x)][1]: getattr(x, RULES[type(x)][1]) for x in rules}
        # Others are of memory and of numbers that a computer can hold, see tests/config.
        if own := {rule: x for rule, x in given.items() if abs(x) <= 1}:
            declared[name] = own
    assert declared == ranges


def test_bounds_themselves_are_accepted_where_they_belong():
    alone = {"gamma", "gae_lambda", "value_coef", "kl_beta_init", "num_epochs", "unroll_steps"}
    tried = set()
    for name in alone:
        for rule in PPOConfig.model_fields[name].metadata:
            if type(rule) not in RULES:
                continue
            _, attribute, _ = RULES[type(rule)]
            if attribute in ("ge", "le"):
                bound = getattr(rule, attribute)
                assert getattr(PPOConfig(**{name: bound}), name) == bound
                tried.add(name)
    assert tried == alone


OFF = {"normalize_observations": False, "reward_normalizer": "none"}
MONTE_CARLO = {"advantage_estimator": "monte_carlo", "value_target": "monte_carlo"}
IDLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "advantage_estimator": ("monte_carlo", {"unroll_steps": 1}, {"unroll_steps": 2}),
    "normalize_advantage": ("minibatch", {"minibatch_steps": None}, {"minibatch_steps": 10}),
    "gae_lambda": (0.9, MONTE_CARLO, {"value_target": "lambda_return"}),
    "value_target": ("monte_carlo", {"value_coef": 0.0}, {"value_coef": 0.1}),
    "value_clip": (0.2, {"value_coef": 0.0}, {"value_coef": 0.1}),
    "clip_schedule": ("linear", {"clip_epsilon": None}, {"clip_epsilon": 0.1}),
    "kl_target": (0.02, {}, {"kl_cutoff_coef": 1.0}),
    "kl_tolerance": (0.5, {"kl_cutoff_coef": 1.0}, {"kl_beta_init": 1.0}),
    "kl_cutoff_factor": (3.0, {"kl_beta_init": 1.0}, {"kl_cutoff_coef": 1.0}),
    "observation_clip": (9.0, {"normalize_observations": False}, {"normalize_observations": True}),
    "reward_norm_clip": (5.0, {"reward_normalizer": "none"}, {"reward_normalizer": "step_std"}),
    "normalizer_variance_epsilon": (1e-2, OFF, {"normalize_observations": True}),
    "update_normalizers": (False, OFF, {"reward_normalizer": "step_std"}),
    "drop_last": (True, {"minibatch_steps": None}, {"minibatch_steps": 10}),
    "refresh_advantages": ("per_epoch", {"num_epochs": 1}, {"num_epochs": 2}),
    "value_source": (
        "recomputed",
        {"refresh_advantages": "per_epoch"},
        {"refresh_advantages": "once"},
    ),
    "target_kl": (0.01, {"num_epochs": 1}, {"num_epochs": 2}),
}


@pytest.mark.parametrize("name", list(PPOConfig().requirements))
def test_an_option_without_effect_is_refused(name: str):
    value, idle, effective = IDLE[name]
    with pytest.raises(ValidationError, match=f"{name}={value} has no effect without"):
        PPOConfig(**idle, **{name: value})
    PPOConfig(**(idle | effective), **{name: value})


def test_all_idle_options_are_named_at_once():
    with pytest.raises(ValidationError) as error:
        PPOConfig(clip_epsilon=None, clip_schedule="linear", kl_tolerance=0.5, kl_target=0.1)
    for name in ("clip_schedule=linear", "kl_tolerance=0.5", "kl_target=0.1"):
        assert name in str(error.value)


FAULTS: dict[str, tuple[PPOConfig, ModelConfig, int, list[str]]] = {
    "fine": (PPOConfig(), ModelConfig(), 10_000, []),
    "budget": (PPOConfig(), ModelConfig(), 2047, ["total_env_steps", "2047", "2048"]),
    "exact budget": (PPOConfig(), ModelConfig(), 2048, []),
    "too large": (PPOConfig(minibatch_steps=4096), ModelConfig(), 10_000, ["at most", "4096"]),
    "no divisor": (PPOConfig(minibatch_steps=100), ModelConfig(), 10_000, ["divide", "100"]),
    "drops": (PPOConfig(minibatch_steps=100, drop_last=True), ModelConfig(), 10_000, []),
    "whole": (PPOConfig(minibatch_steps=None), ModelConfig(), 10_000, []),
    "value_hidden": (
        PPOConfig(),
        ModelConfig(shared_torso=True, value_hidden=(3,)),
        10_000,
        ["model.value_hidden", "no effect", "shared_torso"],
    ),
    "shared l2": (
        PPOConfig(shared_l2_coef=0.1),
        ModelConfig(),
        10_000,
        ["shared_l2_coef", "no effect"],
    ),
    "chunks": (
        PPOConfig(bptt_steps=16),
        ModelConfig(),
        10_000,
        ["bptt_steps=16 has no effect without model.core"],
    ),
    "cut chunk": (
        PPOConfig(unroll_steps=40),
        ModelConfig(core="gru"),
        10_000,
        ["unroll_steps must be a multiple of bptt_steps=32", "got 40"],
    ),
    "part of a chunk": (
        PPOConfig(minibatch_steps=16),
        ModelConfig(core="lstm"),
        10_000,
        ["minibatch_steps must be a multiple of bptt_steps=32", "got 16"],
    ),
    "whole chunks": (PPOConfig(bptt_steps=16), ModelConfig(core="lstm"), 10_000, []),
    "shared l2 used": (PPOConfig(shared_l2_coef=0.1), ModelConfig(shared_torso=True), 10_000, []),
}


@pytest.mark.parametrize(("config", "model", "total", "words"), FAULTS.values(), ids=FAULTS)
def test_check(config: PPOConfig, model: ModelConfig, total: int, words: list[str]):
    faults = check(config, model, 8, total)
    assert len(faults) == bool(words)
    assert all(word in faults[0] for word in words)


def test_check_lists_all_faults():
    config = PPOConfig(minibatch_steps=100, shared_l2_coef=1.0)
    assert len(check(config, ModelConfig(), 8, 10)) == 3


def test_planned_updates():
    assert planned_updates(PPOConfig(), 8, 1_000_000) == 156_250
    assert planned_updates(PPOConfig(minibatch_steps=None), 8, 20_480) == 100
