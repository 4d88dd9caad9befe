"""What DDPG reports, by the names of quintet.observe.metrics."""

from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.parts import diagnostics, judgements
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

METRICS = (
    "loss/l2",
    "value/explained_variance",
    "value/error_frac",
    *(name for name in diagnostics.METRICS if name.startswith("normalizer/observation_")),
)
"""All metrics but the learner's own."""


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
