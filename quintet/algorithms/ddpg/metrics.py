"""What DDPG reports, by the names of quintet.observe.metrics."""

from quintet.algorithms.parts import diagnostics

REFERENCE = ("q", "actor_q", "action", "perturbed_action")
"""What is told of the batch that stays the same."""

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
    *(f"reference/{name}_{what}" for name in REFERENCE for what in ("mean", "std")),
    "optim/actor_grad_norm",
    "optim/critic_grad_norm",
    "optim/actor_learning_rate",
    "optim/critic_learning_rate",
    "normalizer/target_mean",
    "normalizer/target_std",
    *(name for name in diagnostics.METRICS if name.startswith("normalizer/observation_")),
)
"""All that it may report."""
