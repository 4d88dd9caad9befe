"""ACER: actor-critic with experience replay."""

from pathlib import Path

from quintet.algorithms.acer import config
from quintet.algorithms.parts.options import reward_divisor, reward_scaling
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric

OWN_METRICS = {
    "loss/policy_truncated": Metric("1", "policy term of the actions taken, with clipped ratios"),
    "loss/policy_correction": Metric("1", "policy term that corrects the clipping"),
    "loss/q": Metric("1", "value_coef times half the squared error of the action's value"),
    "trust_region/gradient_norm": Metric("1", "norm of a sample's gradient, at the statistics"),
    "trust_region/gradient_norm_after": Metric("1", "that norm within the trust region"),
    "trust_region/kl_gradient_norm": Metric("1", "norm of the KL's gradient, at the statistics"),
    "trust_region/kl_change": Metric("nats", "first-order change of the KL, without the region"),
    "trust_region/adjustment": Metric("1", "factor of the KL's gradient that is subtracted"),
    "trust_region/active_frac": Metric("1", "share of samples that the trust region holds back"),
    "trust_region/kl_to_average": Metric("nats", "KL(average policy, policy)"),
    "replay/age_mean": Metric("updates", "mean age of the weights that acted in replayed rows"),
    "replay/updates_per_batch": Metric("updates", "updates from replay per fresh batch"),
}

ENTRY = Algorithm(
    config=config.ACERConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.acer.learner:ACERLearner"),
    make_actor=Late("quintet.algorithms.acer.learner:make_actor"),
    batch=("env.num_streams", "unroll_steps"),
    shared="env.num_streams",
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet.algorithms.acer.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet.algorithms.acer.metrics:judged"),
    needs=config.NEEDS,
    defaults=config.DEFAULTS,
    reward_scaling=reward_scaling,
    reward_divisor=reward_divisor,
    like=("dqn", "qrdqn", "rainbow", "r2d2"),
)
