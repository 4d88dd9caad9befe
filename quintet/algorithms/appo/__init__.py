"""APPO: asynchronous proximal policy optimisation."""

from pathlib import Path

from quintet.algorithms.appo import config
from quintet.algorithms.parts.options import reward_divisor, reward_scaling
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric

OWN_METRICS = {
    "loss/uniform_kl": Metric("1", "entropy_coef times the symmetric KL to the uniform policy"),
    "policy/ratio_mean_abs_error": Metric("1", "mean |ratio - 1|"),
    "policy/logit_abs_max": Metric("1", "largest absolute logit of discrete actions"),
    "policy/uniform_kl_capped_frac": Metric(
        "1", "share of rows whose KL to the uniform policy is above its cap"
    ),
    "advantage/normalized_min": Metric("1", "least advantage after normalising"),
    "advantage/normalized_max": Metric("1", "greatest advantage after normalising"),
    "optim/skipped_minibatches": Metric(
        "minibatches", "minibatches of an iteration left out, since no row was valid"
    ),
    "optim/second_moment_max": Metric("1", "largest element of Adam's mean of squared gradients"),
}

ENTRY = Algorithm(
    config=config.APPOConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.appo.learner:APPOLearner"),
    make_actor=Late("quintet.algorithms.appo.learner:make_actor"),
    batch=("minibatch_steps", "minibatches_per_iteration"),
    shared="minibatch_steps",
    chunk=lambda options, _: options.chunk_steps,
    fitted=True,
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet.algorithms.appo.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet.algorithms.appo.metrics:judged"),
    defaults=config.DEFAULTS,
    reward_scaling=reward_scaling,
    reward_divisor=reward_divisor,
)
