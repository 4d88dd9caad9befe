"""Proximal policy optimization."""

from pathlib import Path

from quintet.algorithms.parts.options import reward_divisor, reward_scaling
from quintet.algorithms.ppo import config
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric

OWN_METRICS = {
    "loss/kl_cutoff": Metric("1", "penalty on a mean KL above the cutoff"),
    "policy/kl_cutoff_frac": Metric("1", "share of updates whose KL was above the cutoff"),
    "policy/kl_coef": Metric("1", "weight of the KL penalty in force"),
    "policy/kl_coef_factor": Metric("1", "factor of that weight after the update"),
    "policy/clip_epsilon": Metric("1", "clip range of the ratio in force"),
    "policy/ratio_max_error": Metric("1", "largest |ratio - 1|"),
    "grad_norm/": Metric("1", "gradient norm of one parameter in the last step, before clipping"),
    "param_norm/": Metric("1", "norm of one parameter"),
    **{
        f"loss/{term}_last_epoch": Metric("1", f"loss/{term} in the last pass alone")
        for term in ("policy", "value", "entropy", "l2", "kl", "kl_cutoff", "total")
    },
}

ENTRY = Algorithm(
    config=config.PPOConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.ppo.learner:PPOLearner"),
    make_actor=Late("quintet.algorithms.ppo.learner:make_actor"),
    batch=("env.num_streams", "unroll_steps"),
    shared="minibatch_steps",
    chunk=config.chunk,
    fitted=True,
    for_many_streams=config.for_many_streams,
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet.algorithms.ppo.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet.algorithms.ppo.metrics:judged"),
    reward_scaling=reward_scaling,
    reward_divisor=reward_divisor,
    like=("ppo2", "a2c", "trpo", "reinforce", "recurrentppo", "maskableppo"),
)
