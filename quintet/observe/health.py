"""Whether a report looks healthy, in plain words."""

import math
from collections.abc import Mapping
from typing import NamedTuple, final

MAX_KL = 0.06
"""nats; twice the highest KL of an iteration of PPO's presets in runs that learn well."""

MAX_CLIP_FRAC = 0.5
"""Above it most of the batch takes no part in the gradient."""

MAX_OUTSIDE_FRAC = 0.05
"""Of a normal distribution one value in a million is 5 standard deviations out, of a policy that
learns to reach new states a few in a hundred; above that the statistics don't describe the data.
"""

MIN_REWARD_STD = 1e-6
"""Below it rewards are nearly equal, and divided by their spread they would be noise."""


@final
class Finding(NamedTuple):
    """A sentence on one part of a learner, and whether that part is healthy."""

    part: str
    healthy: bool
    text: str


def findings(report: Mapping[str, float]) -> list[Finding]:
    """A finding for each part (policy, value function, normalizers) with metrics in the report."""
    checks = {"policy": _POLICY, "value function": _VALUE, "normalizers": _NORMALIZERS}
    found = []
    for part, bounds in checks.items():
        measured = [
            bound for bound in bounds if bound.metric in report and bound.unless not in report
        ]
        wrong = [bound for bound in measured if not bound.holds(report[bound.metric])]
        if wrong:
            value = f"{report[wrong[0].metric]:.2g}"
            found.append(Finding(part, False, wrong[0].text.format(value)))
        elif measured:
            found.append(Finding(part, True, "healthy"))
    return found


class _Bound(NamedTuple):
    """Of a metric; a report that has `unless` is not judged by it."""

    metric: str
    text: str
    low: float = -math.inf
    high: float = math.inf
    unless: str = ""

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


_SLOWER = "a lower learning rate or fewer passes slows it down"
# V-trace's share of clipped ratios is no sign: with a cap of 1, half of them are above it after the
# smallest step.  approx_kl measures how far the policy is from the one that acted, so policy lag
# needs no bound: many small steps are no worse than a single large one.  Replayed rows were acted
# by weights of long ago, and a distance from those is no fault.
_POLICY = (
    _Bound("policy/kl", f"moves too fast: KL {{}} above {MAX_KL}; {_SLOWER}", high=MAX_KL),
    _Bound(
        "policy/approx_kl",
        f"moves too fast: approx KL {{}} above {MAX_KL}; {_SLOWER}",
        high=MAX_KL,
        unless="replay/age_mean",
    ),
    _Bound(
        "policy/clip_frac",
        f"moves too fast: {{}} of the samples are clipped, above {MAX_CLIP_FRAC}; {_SLOWER}",
        high=MAX_CLIP_FRAC,
    ),
)
_VALUE = (
    _Bound(
        "value/explained_variance",
        "predicts no better than a constant (explained variance {}), as at the start and where "
        "all returns are alike",
        low=0,
    ),
)
_NORMALIZERS = (
    _Bound(
        "normalizer/observation_clip_frac",
        "clip {} of the observations: they have outliers, or have moved on",
        high=MAX_OUTSIDE_FRAC,
    ),
    _Bound(
        "normalizer/reward_clip_frac",
        "clip {} of the rewards: a few are far larger than the rest",
        high=MAX_OUTSIDE_FRAC,
    ),
    _Bound(
        "normalizer/reward_std", "see no spread in the rewards (std {}) yet", low=MIN_REWARD_STD
    ),
    _Bound("normalizer/observation_std_max", ""),
)
