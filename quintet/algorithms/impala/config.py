"""Options of IMPALA, and checks of their combinations.

The defaults are those of RTFM's training script (arXiv 1910.08210), which derives from
TorchBeast's; presets.yaml in this folder has presets for kinds of environments.
"""

from typing import Literal, NamedTuple, final

from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.bounds import Below1, Count, Fraction, NotNegative, Positive, Unroll
from quintet.options.declaration import CAP, FACTOR, NEAR_1, USUAL, Needs, Options, option
from quintet.system.importing import CodeName


class Knobs(NamedTuple):
    """Options of the loss as knobs; a cap of none is infinity."""

    gamma: Knob
    vtrace_lambda: Knob
    rho_bar: Knob
    c_bar: Knob
    pg_rho_bar: Knob
    value_coef: Knob
    entropy_coef: Knob


@final
class ImpalaConfig(Options):
    """Options of IMPALA."""

    # Targets and data
    unroll_steps: Unroll = option(80, also=f"n_steps {parts.UNROLL_STEPS}")
    """steps of a stream in an unroll, T; the paper has 20 for Atari, 100 for DMLab"""
    batch_unrolls: Count = option(24, faster="higher", also="batch_size train_batch_size")
    """unrolls per update, B, for any number of streams; the paper has 32"""
    gamma: parts.Gamma = 0.99
    rho_bar: Positive | None = option(
        1.0, tune=CAP, also="vtrace_rho clip_rho_threshold vtrace_clip_rho_threshold"
    )
    """cap of the ratio in V-trace's errors; none: no cap"""
    pg_rho_bar: Positive | None = option(1.0, tune=FACTOR)
    """cap of the ratio in the policy's advantage; none: no cap"""
    c_bar: NotNegative | None = option(
        1.0,
        needs="vtrace_lambda > 0 and gamma > 0 and unroll_steps > 1",
        tune=CAP,
        at_most="rho_bar",
        also=parts.C_BAR,
    )
    """cap of the ratio in V-trace's traces, at most rho_bar; 0: one-step errors; none: no cap"""
    vtrace_lambda: Fraction = option(
        1.0,
        needs=Needs(
            "c_bar > 0, gamma > 0 and unroll_steps > 1",
            lambda o, _: o.c_bar != 0 and o.gamma > 0 and o.unroll_steps > 1,
        ),
        tune=NEAR_1,
        also="lambda_ gae_lambda lam lambda",
    )
    """decay of V-trace's traces"""
    truncation_as_termination: parts.TruncationAsTermination = False

    # Loss
    reduction: Literal["sum_time_mean_batch", "sum", "mean"] = "sum_time_mean_batch"
    """reduction of the loss over valid rows; sum: their sum; sum_time_mean_batch: divided by
    batch_unrolls; mean: divided by their number
    """
    value_coef: parts.ValueCoef = 0.5
    entropy_coef: parts.EntropyCoef = 0.0006
    entropy_schedule: Literal["constant", "linear"] = option("constant", needs="entropy_coef > 0")
    """schedule of entropy_coef; linear: it falls to 0 over the run"""
    aux_loss_weights: dict[str, NotNegative] = option(
        default_factory=dict,
        needs=Needs(
            "an encoder of your own that gives such losses (model.encoder is {f.model.encoder})",
            lambda _, f: f.model.custom,
        ),
    )
    """weights of your encoder's auxiliary losses by name; a loss that is not named has weight 1"""

    # Normalisation
    normalize_observations: parts.NormalizeObservations = False
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    reward_normalizer: parts.RewardNormalizer = "none"
    reward_norm_clip: parts.RewardNormClip = 10.0
    normalizer_variance_epsilon: parts.NormalizerVarianceEpsilon = 1e-3
    update_normalizers: parts.UpdateNormalizers = True

    # Optimisation
    optimizer: Literal["rmsprop", "adam"] = option("rmsprop", also="use_rms_prop")
    """optimizer, without weight decay"""
    learning_rate: parts.LearningRate = 5e-4
    lr_schedule: CodeName = parts.schedule(
        "linear", ("linear", "constant"), "linear: to 0 at the end of the budget; constant"
    )
    rmsprop_decay: Below1 = option(
        0.99, needs="optimizer=rmsprop", tune=NEAR_1, also="rprop_alpha alpha"
    )
    """decay of RMSProp's running mean of squares"""
    rmsprop_momentum: Below1 = option(0.0, needs="optimizer=rmsprop", tune=NEAR_1)
    """momentum of RMSProp's steps; 0: none"""
    rmsprop_epsilon: Positive = option(
        0.01, needs="optimizer=rmsprop", tune=FACTOR, also="rms_prop_eps"
    )
    """term added in RMSProp's denominator"""
    rmsprop_epsilon_inside_sqrt: bool = option(False, needs="optimizer=rmsprop")
    """use TensorFlow's g / sqrt(mean_sq + epsilon), with mean_sq from 1, as the paper does"""
    adam_epsilon: Positive = option(1e-5, needs="optimizer=adam", tune=FACTOR, also="adam_eps")
    """term added in Adam's denominator"""
    max_grad_norm: Positive | None = option(40.0, tune=USUAL, also=parts.MAX_GRAD_NORM)
    """largest global norm of the gradient; none: no bound; 40 is for losses summed over time"""
    check_numerics: parts.CheckNumerics = False


def planned_updates(config: ImpalaConfig, _num_streams: int, total_env_steps: int) -> int:
    """All optimizer steps, as if every row were valid."""
    return total_env_steps // (config.batch_unrolls * config.unroll_steps)


def aux_weights(
    config: ImpalaConfig, model: ModelConfig, names: tuple[str, ...]
) -> dict[str, float]:
    """The weights of the encoder's auxiliary losses; raises ConfigError if an option weights a loss
    that the encoder lacks.
    """
    unknown = sorted(set(config.aux_loss_weights) - set(names))
    if unknown:
        raise ConfigError(
            f"aux_loss_weights must name losses that model.encoder={model.encoder} gives "
            f"({', '.join(names) or 'it gives none'}), got {', '.join(unknown)}: correct the name"
        )
    return {name: config.aux_loss_weights.get(name, 1.0) for name in names}
