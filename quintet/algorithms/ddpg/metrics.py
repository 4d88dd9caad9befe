"""What DDPG reports, by the names of quintet.observe.metrics."""

from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.parts import diagnostics, judgements
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

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
    "value/explained_variance",
    "value/error_frac",
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


_POLICY = (
    Evidence(
        "exploration/action_saturation_frac",
        "share of actions at a bound",
        Range(high=0.8),
        Range(high=0.97),
        above="where tanh is flat a policy hardly learns",
        after_updates=judgements.LEAST_UPDATES,  # before, actions may be uniform
    ),
    Evidence(
        "reference/action_std",
        "std of the policy's actions over a fixed batch",
        Range(low=0.01),
        Range(low=1e-4),
        below="it acts alike whatever it observes",
        after_updates=judgements.LEAST_UPDATES,
        needed=True,
    ),
)


def judged(config: DDPGConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence by which reports judge it."""
    gradient = judgements.gradient(config.max_grad_norm, "optim/actor_grad_norm")
    return (
        Part(judgements.POLICY, (*_POLICY, *gradient)),
        judgements.VALUES,
        *judgements.normalizers(config, spaces),
    )
