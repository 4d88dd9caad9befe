"""What DDPG reports, by the names of quintet.observe.metrics."""

from quintet.algorithms.parts import diagnostics

METRICS = (
    "loss/critic",
    "loss/actor",
    "loss/l2",
    "q/prediction_mean",
    "q/target_mean",
    "q/error_abs_mean",
    "q/collected_mean",
    "exploration/action_mean",
    "exploration/action_std",
    "exploration/action_saturation_frac",
    "exploration/param_noise_std",
    "exploration/param_noise_distance",
    "reference/",
    "optim/actor_grad_norm",
    "optim/critic_grad_norm",
    "optim/actor_learning_rate",
    "optim/critic_learning_rate",
    "normalizer/target_mean",
    "normalizer/target_std",
    *(name for name in diagnostics.METRICS if name.startswith("normalizer/observation_")),
)
"""All that it may report; `/` at the end stands for every name that begins so."""
