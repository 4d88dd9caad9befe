"""The presets of PPO say what they should, and each of them trains."""

from typing import Any

import pytest
from ppo_helpers import train

from quintet.options.layers import Layer, preset_layers
from quintet.options.resolve import compose
from quintet.options.run import RunConfig

# What the table of options names as the values of TF-Agents' base agent.
BASE_AGENT: dict[str, Any] = {
    "advantage_estimator": "monte_carlo",
    "value_target": "monte_carlo",
    "value_source": "recomputed",
    "refresh_advantages": "once",
    "normalize_advantage": "batch",
    "truncation_as_termination": True,
    "unfinished_episode": "bootstrap",
    "num_epochs": 25,
    "minibatch_steps": None,
    "clip_epsilon": None,
    "value_clip": None,
    "value_coef": 1.0,
    "entropy_coef": 0.0,
    "log_prob_clip": None,
    "kl_coef_init": 1.0,
    "kl_target": 0.01,
    "kl_tolerance": 0.3,
    "kl_cutoff_coef": 1000.0,
    "kl_cutoff_factor": 2.0,
    "reduction": "mean_over_all",
    "normalize_observations": True,
    "observation_clip": 5.0,
    "reward_normalizer": "step_std",
    "reward_norm_clip": 10.0,
    "lr_schedule": "constant",
    "max_grad_norm": None,
    "model.policy_hidden": (200, 100),
    "model.value_hidden": (75, 40),
    "model.activation": "relu",
    "model.init": "truncated_normal",
}
CONTINUOUS = {
    "model.action_std": "softplus",
    "model.action_std_init": 0.35,
    "model.action_bounds": "mean_tanh",
}


def composed(name: str, env: str) -> RunConfig:
    layers = preset_layers("ppo", env, name)
    return compose("ppo", [*layers, Layer("command line", {"env.id": env})]).config


def values(config: RunConfig) -> dict[str, Any]:
    found = config.learner.model_dump()
    return found | {f"model.{name}": x for name, x in config.model.model_dump().items()}


@pytest.mark.parametrize("env", ["Pendulum-v1", "HalfCheetah-v4", "Hopper-v5"])
def test_tf_agents_base_has_every_value_of_the_original(env: str):
    """Also on top of the preset of an environment, which sets some of them itself."""
    found = values(composed("tf_agents_base", env))
    assert {name: found[name] for name in BASE_AGENT | CONTINUOUS} == BASE_AGENT | CONTINUOUS


def test_its_discrete_form_leaves_out_what_only_gaussians_have():
    found = values(composed("tf_agents_base_discrete", "CartPole-v1"))
    assert {name: found[name] for name in BASE_AGENT} == BASE_AGENT
    assert found["model.action_std"] == "state_independent"


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("clip", "CartPole-v1"),
        ("kl_penalty", "CartPole-v1"),
        ("tf_agents_base_discrete", "CartPole-v1"),
        ("tf_agents_base", "Pendulum-v1"),
    ],
)
def test_a_preset_trains(name: str, env: str):
    config = composed(name, env)
    learner = config.learner.model_copy(update={"unroll_steps": 64})
    _, metrics, _ = train(learner, env, 2, model=config.model)
    assert len(metrics) == 2
    assert all(each["policy/ratio_first_max_error"] < 1e-5 for each in metrics[1:])
    assert (metrics[0]["loss/kl"] > 0) == (name != "clip")


def test_walkers_and_hoppers_share_the_cheetah_s():
    wanted = preset_layers("ppo", "HalfCheetah-v4", "auto")[0].values
    for env in ("Hopper-v4", "Walker2d-v5", "BipedalWalker-v3", "InvertedPendulum-v4"):
        (layer,) = preset_layers("ppo", env, "auto")
        assert layer.values == wanted
    assert preset_layers("ppo", "BipedalWalkerHardcore-v3", "auto") == []
