"""Options of ACER, and checks of their combinations.

The defaults are those of OpenAI baselines; presets.yaml in this folder has presets for kinds of
environments.
"""

from typing import Any, Literal, NamedTuple, final

from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.models.config import ModelConfig
from quintet.ops.schedules import OF_FRACTION
from quintet.options.bounds import (
    MOST_COUNT,
    Below1,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Share,
    Steps,
    StepsFrom0,
    Unroll,
)
from quintet.options.declaration import CAP, FACTOR, NEAR_1, USUAL, Needs, Options, option
from quintet.system.importing import CodeName

DEFAULTS: dict[str, Any] = {
    "env.num_streams": 16,
    "model.shared_torso": True,
    "model.action_std_init": 0.3,
}
"""Defaults of options of the network and the environment."""

NEEDS = {
    "model.action_std": Needs(
        "learn_std, without which the spread of actions stays model.action_std_init",
        lambda _, f: f.learner.learn_std,
    )
}
"""Conditions under which options of the network have an effect."""


class Knobs(NamedTuple):
    """Options of the loss as knobs."""

    gamma: Knob
    retrace_lambda: Knob
    c_bar: Knob
    importance_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    trust_region_delta: Knob


_REPLAYS = "replay_ratio > 0"
_CAPACITY = "replay_capacity_steps_per_stream"
_SHOWN = "(the action space is {f.spaces.action})"


@final
class ACERConfig(Options):
    """Options of ACER."""

    # Data and replay
    unroll_steps: Unroll = option(
        20, at_most=_CAPACITY, faster="higher", also=f"n_steps {parts.UNROLL_STEPS}"
    )
    """steps of each stream per fresh batch, T"""
    gamma: parts.Gamma = 0.99
    replay_ratio: float = option(4.0, ge=0, le=MOST_COUNT, faster="lower")
    """mean number of updates from replay per fresh update (Poisson); 0: no replay"""
    replay_capacity_steps_per_stream: Steps = option(50_000, needs=_REPLAYS, also=parts.CAPACITY)
    """rows kept of each stream, in whole unrolls, including reset rows of environments"""
    replay_start_steps_per_stream: StepsFrom0 = option(
        10_000, needs=_REPLAYS, at_most=_CAPACITY, also=parts.START
    )
    """env_steps of each stream before the first update from replay"""
    replay_sampling: Literal["per_stream", "any_stream"] = option("per_stream", needs=_REPLAYS)
    """unrolls of a batch; per_stream: as many of each stream; any_stream: drawn over all streams"""
    truncation_as_termination: parts.TruncationAsTermination = False

    # Loss
    value_coef: Positive = option(0.5, tune=USUAL, also=f"q_coef {parts.VALUE_COEF}")
    """weight of 0.5 * error^2"""
    entropy_coef: NotNegative = option(
        0.01,
        needs=Needs(
            "learn_std or discrete actions: the entropy of a Gaussian depends on its spread alone",
            lambda o, f: o.learn_std or f.discrete,
            rest=0.0,
        ),
        tune=USUAL,
        also=parts.ENTROPY_COEF,
    )
    """weight of the entropy bonus"""
    importance_clip: Positive = option(10.0, tune=USUAL, also="c importance_weight_truncation")
    """cap of the ratio in the policy's gradient, c"""
    retrace_lambda: Fraction = option(
        1.0,
        needs="c_bar > 0 and gamma > 0 and unroll_steps > 1",
        tune=NEAR_1,
        also="lambda_ gae_lambda lam lambda",
    )
    """decay of Retrace's traces"""
    c_bar: NotNegative = option(
        1.0,
        needs="retrace_lambda > 0 and gamma > 0 and unroll_steps > 1",
        tune=CAP,
        also=parts.C_BAR,
    )
    """cap of the ratio in Retrace's traces"""
    trust_region: bool = True
    """limit how far a sample moves the policy from the average policy"""
    trust_region_delta: Positive = option(1.0, needs="trust_region", tune=FACTOR)
    """largest first-order change of the KL per sample, in nats"""
    tau: Share = option(0.01, needs="trust_region", tune=FACTOR, also="average_decay alpha polyak")
    """fraction of the way that the average policy moves to the policy in each update"""
    dueling_samples: Count = option(
        5,
        needs=Needs(f"actions that can't be summed over {_SHOWN}", lambda _, f: not f.one_choice),
    )
    """number of the policy's actions whose advantages are averaged, n"""
    learn_std: bool = option(
        False, needs=Needs(f"continuous actions {_SHOWN}", lambda _, f: f.continuous)
    )
    """learn the standard deviation of continuous actions too"""

    # Normalisation
    normalize_observations: parts.NormalizeObservations = False
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    reward_normalizer: parts.RewardNormalizer = "none"
    reward_norm_clip: parts.RewardNormClip = 10.0
    normalizer_variance_epsilon: parts.NormalizerVarianceEpsilon = 1e-3
    update_normalizers: parts.UpdateNormalizers = True

    # Optimisation
    learning_rate: parts.LearningRate = 7e-4
    lr_schedule: CodeName = parts.schedule(
        "linear",
        (*OF_FRACTION,),
        "linear: to 0 at the end of the budget; constant; double_linear_con: twice as fast, to an "
        "eighth; middle_drop: linear for a quarter, then 0.075; double_middle_drop: the same, then "
        "0.125 in the last quarter",
    )
    rmsprop_decay: Below1 = option(0.99, tune=NEAR_1, also="rprop_alpha")
    """decay of RMSProp's running mean of squares"""
    rmsprop_epsilon: Positive = option(1e-5, tune=FACTOR, also="rms_prop_eps")
    """term added in RMSProp's denominator"""
    rmsprop_epsilon_inside_sqrt: bool = True
    """use TensorFlow's g / sqrt(mean_sq + epsilon), with mean_sq from 1; false: PyTorch's rule"""
    max_grad_norm: Positive | None = option(10.0, tune=USUAL, also=parts.MAX_GRAD_NORM)
    """largest global norm of the gradient, after the trust region; none: no bound"""
    check_numerics: parts.CheckNumerics = False


def check(config: ACERConfig, _: ModelConfig, num_streams: int, total_env_steps: int) -> list[str]:
    """Fault of a budget that ends before replay begins, one sentence."""
    start = config.replay_start_steps_per_stream * num_streams
    if config.replay_ratio == 0 or start < total_env_steps:
        return []
    return [
        f"replay_start_steps_per_stream x streams must be below total_env_steps "
        f"{total_env_steps}, or nothing is learned from replay, got {start}; lower it or raise "
        "the budget"
    ]


def planned_updates(config: ACERConfig, num_streams: int, total_env_steps: int) -> int:
    """Optimizer steps that are worth compiling."""
    batch = config.unroll_steps * num_streams
    start = config.replay_start_steps_per_stream * num_streams
    fresh, after = total_env_steps // batch, max(0, total_env_steps - start) // batch
    return fresh + int(config.replay_ratio * after)
