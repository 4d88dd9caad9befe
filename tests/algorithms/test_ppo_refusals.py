"""Bounds of PPO's options, and combinations without effect; test_conformance_options.py tries what
is beyond bounds.
"""

from typing import Any

import pytest
from test_conformance_options import RULES

from quintet.algorithms.ppo.config import PPOConfig, check, planned_updates
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.declaration import about
from quintet.options.layers import Layer
from quintet.options.resolve import compose


def test_bounds_themselves_are_accepted_where_they_belong():
    alone = {"gamma", "gae_lambda", "value_coef", "kl_coef_init", "num_epochs", "unroll_steps"}
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
    "normalize_advantage": ("minibatch", {"minibatch_steps": None}, {"minibatch_steps": 16}),
    "gae_lambda": (0.9, MONTE_CARLO, {"value_target": "lambda_return"}),
    "value_target": ("monte_carlo", {"value_coef": 0.0}, {"value_coef": 0.1}),
    "value_clip": (0.2, {"value_coef": 0.0}, {"value_coef": 0.1}),
    "clip_schedule": ("linear", {"clip_epsilon": None}, {"clip_epsilon": 0.1}),
    "kl_target": (0.02, {}, {"kl_cutoff_coef": 1.0}),
    "kl_tolerance": (0.5, {"kl_cutoff_coef": 1.0}, {"kl_coef_init": 1.0}),
    "kl_cutoff_factor": (3.0, {"kl_coef_init": 1.0}, {"kl_cutoff_coef": 1.0}),
    "observation_clip": (9.0, {"normalize_observations": False}, {"normalize_observations": True}),
    "reward_norm_clip": (5.0, {"reward_normalizer": "none"}, {"reward_normalizer": "step_std"}),
    "normalizer_variance_epsilon": (1e-2, OFF, {"normalize_observations": True}),
    "update_normalizers": (False, OFF, {"reward_normalizer": "step_std", "init_from": "runs/x"}),
    "drop_last": (True, {"minibatch_steps": None}, {"minibatch_steps": 10}),
    "refresh_advantages": ("per_epoch", {"num_epochs": 1}, {"num_epochs": 2}),
    "value_source": (
        "recomputed",
        {"refresh_advantages": "per_epoch"},
        {"refresh_advantages": "once"},
    ),
    "target_kl": (0.01, {"num_epochs": 1}, {"num_epochs": 2}),
}


NEEDS_FACTS = {
    "bptt_steps",
    "shared_l2_coef",
    "normalize_observations",
    "normalize_pictures",
    "noise_correlation",
}


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_refused(name: str):
    value, without, effective = IDLE[name]
    base = {"env.id": "CartPole-v1", name: value}
    with pytest.raises(
        ConfigError, match=f"^{name}={value} has no effect without .*; leave it out"
    ):
        compose("ppo", [Layer("call", base | without)])
    compose("ppo", [Layer("call", base | without | effective)])


def test_every_option_that_needs_another_is_tried():
    fields = PPOConfig.model_fields.items()
    assert {name for name, info in fields if about(info).needs} == IDLE.keys() | NEEDS_FACTS


def test_all_idle_options_are_named_at_once():
    given = {"clip_epsilon": None, "clip_schedule": "linear", "kl_tolerance": 0.5, "kl_target": 0.1}
    with pytest.raises(ConfigError) as error:
        compose("ppo", [Layer("call", {"env.id": "CartPole-v1"} | given)])
    for name in ("clip_schedule=linear", "kl_tolerance=0.5", "kl_target=0.1"):
        assert name in str(error.value)


FAULTS: dict[str, tuple[PPOConfig, ModelConfig, int, list[str]]] = {
    "fine": (PPOConfig(), ModelConfig(), 10_000, []),
    "too large": (PPOConfig(minibatch_steps=4096), ModelConfig(), 10_000, ["at most", "4096"]),
    "no divisor": (PPOConfig(minibatch_steps=100), ModelConfig(), 10_000, ["divide", "100"]),
    "drops": (PPOConfig(minibatch_steps=100, drop_last=True), ModelConfig(), 10_000, []),
    "whole": (PPOConfig(minibatch_steps=None), ModelConfig(), 10_000, []),
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
    config = PPOConfig(minibatch_steps=100)
    assert len(check(config, ModelConfig(core="gru"), 8, 10)) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model.shared_torso": True, "model.value_hidden": (3,)}, "without model.shared_torso=f"),
        ({"shared_l2_coef": 0.1}, "shared_l2_coef=0.1 has no effect without model.shared_torso;"),
        ({"bptt_steps": 16}, "bptt_steps=16 has no effect without model.core;"),
    ],
)
def test_what_the_network_leaves_without_effect_is_refused(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        compose("ppo", [Layer("call", {"env.id": "CartPole-v1"} | given)])


def test_planned_updates():
    assert planned_updates(PPOConfig(), 8, 1_000_000) == 156_250
    assert planned_updates(PPOConfig(minibatch_steps=None), 8, 20_480) == 100
