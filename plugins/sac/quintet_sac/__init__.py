"""Soft actor-critic for quintet (Haarnoja et al., arXiv 1812.05905)."""

from pathlib import Path

from gymnasium import spaces as gym_spaces

from quintet.algorithms.parts.critic_metrics import CRITIC_METRICS
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric
from quintet_sac import config

OWN_METRICS = CRITIC_METRICS | {
    "loss/temperature": Metric("1", "loss term of the temperature, whose gradient adapts it"),
    "policy/temperature": Metric("reward units per nat", "weight of the policy's entropy"),
    "policy/action_saturation_frac": Metric(
        "1", "share of the policy's actions within 0.01 of a bound, in replayed observations"
    ),
    "optim/temperature_grad_norm": Metric("1", "size of the temperature's gradient"),
    "optim/temperature_learning_rate": Metric("1", "learning rate of the temperature"),
}

ENTRY = Algorithm(
    config=config.SACConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet_sac.learner:SACLearner"),
    make_actor=Late("quintet_sac.learner:make_actor"),
    shared="batch_size",
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet_sac.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet_sac.metrics:judged"),
    actions=(gym_spaces.Box,),
    needs=config.NEEDS,
    defaults=config.DEFAULTS,
    reward_scaling=config.reward_scaling,
    like=("td3", "tqc", "redq", "droq", "crossq"),
)
