"""Evidence about parts that several learners have, with bounds measured on runs of the presets."""

from quintet.algorithms.parts.acting import Normalizes
from quintet.models.leaves import normalized_leaves
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

POLICY, VALUE, NORMALIZERS = "policy", "value_function", "normalizers"

MAX_KL = 0.06
"""Nats: twice the highest KL of an iteration of PPO's presets in runs that learn well."""

MAX_CLIP_FRAC = 0.5
"""Fraction above which most of the batch adds nothing to the gradient."""

MAX_OUTSIDE_FRAC = 0.05
"""Fraction of values at the clip above which the statistics do not describe the data: of a normal
distribution one value in a million is beyond 5 standard deviations, for a policy that is reaching
new states a few in a hundred.
"""

MIN_REWARD_STD = 1e-6
"""Standard deviation below which rewards are nearly equal; dividing by it would give noise."""

LEAST_UPDATES = 200
"""Number of updates before which a value function explains nothing yet."""

SMALL_ERROR = 0.05
"""Ratio of squared error to squared targets below which the targets count as met.  The unexplained
part is then small next to the targets, as in a solved task where all returns are equal.
"""

FAR, MANY_CLIPPED = 0.3, 0.9
"""Bounds of the KL and of the clipped fraction where older weights acted: APPO's preset learns
HalfCheetah well with a KL of 0.07 and a clipped fraction of 0.7, on a busy machine.
"""

_SLOWER = "it moves too fast; a lower learning rate or fewer passes slow it down"


def distance(metric: str, name: str, possible: float = MAX_KL) -> Evidence:
    """Evidence from a KL of policies, in nats, that may be too large."""
    most = Range(high=MAX_KL), Range(high=possible)
    return Evidence(metric, name, *most, above=_SLOWER)


def clipped(possible: float = MAX_CLIP_FRAC) -> Evidence:
    most = Range(high=MAX_CLIP_FRAC), Range(high=possible)
    return Evidence("policy/clip_frac", "share clipped", *most, above=_SLOWER)


def saturated(metric: str, *, needed: bool = False) -> Evidence:
    """Evidence from the share of actions at a bound, of policies that end in a tanh."""
    return Evidence(
        metric,
        "share of actions at a bound",
        Range(high=0.8),
        Range(high=0.97),
        above="a policy hardly learns where tanh is flat",
        after_updates=LEAST_UPDATES,  # earlier actions may be uniform
        needed=needed,
    )


def gradient(bound: float | None, metric: str = "optim/grad_norm") -> tuple[Evidence, ...]:
    """Evidence from the gradient's norm and its bound; without a bound Adam and RMSProp divide by
    the norm."""
    if bound is None:
        return ()
    return (
        Evidence(
            metric,
            f"gradient norm (clipped to {bound:g})",
            Range(high=100 * bound),
            Range(high=1000 * bound),
            above="clipping leaves little of it; rewards are too large, or the values diverge",
        ),
    )


VALUES = (
    Evidence(
        "value/explained_variance",
        "explained variance",
        Range(low=0.1),
        Range(low=-0.01),
        below="it predicts no better than a constant",
        after_updates=LEAST_UPDATES,
        given=("value/error_frac", Range(low=SMALL_ERROR)),
    ),
    Evidence(
        "value/error_frac",
        "squared error over squared target",
        Range(high=0.9),
        Range(high=0.98),
        above="values are far from their targets' scale",
        after_updates=LEAST_UPDATES,
    ),
)


_FEW = Range(high=MAX_OUTSIDE_FRAC)
CLIPPED = Evidence(
    "normalizer/observation_clip_frac",
    "observations clipped",
    _FEW,
    _FEW,
    above="they have outliers, or have shifted",
)
FLOATS = (
    Evidence(
        "normalizer/observation_unlike_frac",
        "observations out of scale",
        Range(high=0.3),
        Range(high=0.9),
        above="the batch is unlike the data of the statistics",
        needed=True,
    ),
)
REWARDS = (
    Evidence(
        "normalizer/reward_clip_frac",
        "rewards clipped",
        _FEW,
        _FEW,
        above="a few are far larger than the rest",
    ),
    Evidence(
        "normalizer/reward_std",
        "std of rewards",
        Range(low=MIN_REWARD_STD),
        below="they hardly differ so far",
    ),
)


def parts(
    policy: tuple[Evidence, ...],
    config: Normalizes,
    spaces: Spaces,
    *,
    rewards: bool = False,
    values: tuple[Evidence, ...] = (),
) -> tuple[Part, ...]:
    """The parts of a learner: its policy with this evidence, its value function, and the
    normalisers that it has.

    rewards: whether it normalises rewards.
    values: further evidence on the value function.
    """
    floats = config.normalize_observations and bool(normalized_leaves(spaces.observation))
    evidence: tuple[Evidence, ...] = (CLIPPED,) if floats or config.normalize_pictures else ()
    evidence += (*(FLOATS if floats else ()), *(REWARDS if rewards else ()))
    normalizers = (Part(NORMALIZERS, evidence),) if evidence else ()
    return (Part(POLICY, policy), Part(VALUE, (*VALUES, *values)), *normalizers)
