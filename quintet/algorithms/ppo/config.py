"""Options of proximal policy optimisation, and checks of their combinations.

The defaults suit vector observations; presets.yaml in this folder has presets for others.
"""

from typing import Literal, NamedTuple, final

from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.bounds import Below1, Fraction, NotNegative, Positive, Rows, Unroll
from quintet.options.declaration import AROUND, FACTOR, NEAR_1, USUAL, Needs, Options, option
from quintet.system.importing import CodeName


class Knobs(NamedTuple):
    """Options of the loss as knobs, some of them scheduled.

    share: factor of all means: with ``reduction=mean_over_all`` the fraction of valid rows, else 1.
    """

    clip_epsilon: Knob
    value_clip: Knob
    log_prob_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    policy_l2_coef: Knob
    value_l2_coef: Knob
    shared_l2_coef: Knob
    kl_coef: Knob
    kl_target: Knob
    kl_cutoff_factor: Knob
    kl_cutoff_coef: Knob
    share: Knob


_L2 = "weight of the sum of squared kernels (no biases, no scales of normalising layers, no 1/2) of"


@final
class PPOConfig(Options):
    """Options of PPO."""

    # Targets and data
    gamma: parts.Gamma = 0.99
    advantage_estimator: Literal["gae", "monte_carlo"] = option("gae", needs="unroll_steps > 1")
    """estimator of advantages; monte_carlo: bootstrapped discounted return minus the value"""
    gae_lambda: Fraction = option(
        0.95,
        needs=(
            "gamma > 0 and unroll_steps > 1",
            "advantage_estimator=gae or value_target=lambda_return and value_coef > 0",
        ),
        tune=NEAR_1,
        also="lam lambda lambda_",
        search=AROUND,
    )
    """lambda of GAE and of the lambda-return; 0: the one-step error; 1: the whole return"""
    value_target: Literal["lambda_return", "monte_carlo"] = option(
        "lambda_return", needs="value_coef > 0 and unroll_steps > 1"
    )
    """target of the value function; monte_carlo: the bootstrapped discounted return"""
    value_source: Literal["recorded", "recomputed"] = option(
        "recorded", needs="refresh_advantages=once"
    )
    """values in targets; recorded: from the network that acted; recomputed: from the current
    network at the update's start (the same up to rounding if there is no lag)
    """
    refresh_advantages: Literal["once", "per_epoch"] = option("once", needs="num_epochs > 1")
    """times at which values, advantages and targets are computed: once, or before each pass"""
    normalize_advantage: Literal["batch", "minibatch", "none"] = option(
        "batch",
        needs=Needs("minibatch_steps", value="minibatch"),
        also="norm_adv",
    )
    """rows over which advantages get mean 0 and variance 1"""
    truncation_as_termination: parts.TruncationAsTermination = False
    unfinished_episode: Literal["bootstrap", "drop"] = "bootstrap"
    """use of a stream's rows after its last ending in the batch; drop: not used (as in older
    TF-Agents)
    """
    unroll_steps: Unroll = option(
        256, also=f"n_steps train_batch_size train_batch_size_per_learner {parts.UNROLL_STEPS}"
    )
    """steps of each stream per batch"""
    noise_correlation: parts.NoiseCorrelation = 0.0
    num_epochs: parts.NumEpochs = 10
    minibatch_steps: Rows | None = option(64, faster="higher", also=parts.MINIBATCH_STEPS)
    """rows per optimizer step; none: the whole batch"""
    drop_last: bool = option(False, needs="minibatch_steps")
    """drop the rows that do not fill a whole minibatch"""
    bptt_steps: Unroll = option(32, needs="model.core", also="recurrence seq_length max_seq_len")
    """rows through which a recurrent network's gradient flows, from a recorded state"""

    # Loss
    clip_epsilon: Positive | None = option(0.2, tune=USUAL, also=parts.CLIP)
    """half width of the ratio's clip; none: no clip"""
    clip_schedule: Literal["constant", "linear"] = option("constant", needs="clip_epsilon")
    """schedule of clip_epsilon; linear: it falls to 0 over the run"""
    value_clip: parts.ValueClip = None
    value_coef: parts.ValueCoef = 1.0
    entropy_coef: parts.EntropyCoef = 0.0
    policy_l2_coef: NotNegative = option(
        0.0, doc=f"{_L2} layers that only the policy has", tune=FACTOR
    )
    value_l2_coef: NotNegative = option(
        0.0, doc=f"{_L2} layers that only the value function has", tune=FACTOR
    )
    shared_l2_coef: NotNegative = option(
        0.0, doc=f"{_L2} shared layers", needs="model.shared_torso", tune=FACTOR
    )
    log_prob_clip: Positive | None = option(None, tune=FACTOR)
    """bound of the absolute value of old and new log-probabilities; none: no bound"""
    kl_coef_init: NotNegative = option(0.0, also=f"kl_beta_init {parts.KL_COEF}")
    """first weight of the adaptive KL penalty; 0: no penalty"""
    kl_target: Positive = option(
        0.01,
        needs="kl_coef_init or kl_cutoff_coef or lr_schedule=kl_adaptive",
        tune=FACTOR,
        also="desired_kl lr_schedule_kl_threshold",
    )
    """target of the mean KL, in nats"""
    kl_tolerance: Below1 = option(0.3, needs="kl_coef_init > 0", tune=FACTOR)
    """dead band of the KL penalty, as a fraction of kl_target"""
    kl_cutoff_coef: NotNegative = option(0.0, tune=FACTOR)
    """weight of the squared KL above the cutoff; 0: no such term"""
    kl_cutoff_factor: NotNegative = option(2.0, needs="kl_cutoff_coef > 0", tune=FACTOR)
    """cutoff of the KL, in units of kl_target"""
    target_kl: Positive | None = option(None, needs="num_epochs > 1", tune=FACTOR)
    """estimated KL (the mean of rho - 1 - log rho) of a pass, in nats; a pass above 1.5 times this
    is the last; none: no early stop
    """
    reduction: Literal["mean", "mean_over_all"] = "mean"
    """reduction of the loss; mean: over valid rows; mean_over_all: divided by the number of all
    rows (TF-Agents)
    """

    # Normalisation
    normalize_observations: parts.NormalizeObservations = True
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    reward_normalizer: parts.RewardNormalizer = "return_std"
    reward_norm_clip: parts.RewardNormClip = 10.0
    normalizer_variance_epsilon: parts.NormalizerVarianceEpsilon = 1e-3
    update_normalizers: parts.UpdateNormalizers = True

    # Optimisation
    learning_rate: parts.LearningRate = 3e-4
    lr_schedule: CodeName = parts.schedule(
        "linear",
        ("constant", "linear", "kl_adaptive"),
        "constant; linear: to 0 at the end of the budget; kl_adaptive: by the mean KL",
    )
    adam_epsilon: parts.AdamEpsilon = 1e-5
    max_grad_norm: parts.MaxGradNorm = 0.5
    check_numerics: parts.CheckNumerics = False
    log_histograms: bool = False
    """report distributions of data and loss, before and after the passes, to TensorBoard"""
    log_gradients: bool = False
    """report norms and distributions of each parameter and of its last gradient"""

    @property
    def uses_kl(self) -> bool:
        """Whether the exact KL is used in the loss or for a decision."""
        return self.kl_coef_init > 0 or self.kl_cutoff_coef > 0 or self.lr_schedule == "kl_adaptive"

    @property
    def l2_coefs(self) -> dict[str, float]:
        """Coefficients by group of kernels, without zeros."""
        coefs = {name: getattr(self, f"{name}_l2_coef") for name in ("policy", "value", "shared")}
        return {name: coef for name, coef in coefs.items() if coef > 0}


def check(config: PPOConfig, model: ModelConfig, num_streams: int, _budget: int) -> list[str]:
    """Faults beyond the network and the streams, one sentence each."""
    steps, size, unit = config.unroll_steps, config.minibatch_steps, chunk(config, model)
    batch = num_streams * steps
    whole, faults = f"{num_streams} streams x {steps} steps = {batch}", []
    if size is not None and size > batch:
        faults.append(
            f"minibatch_steps must be at most the batch of {whole}, got {size}; lower it or raise "
            "unroll_steps"
        )
    elif size is not None and batch % size and not config.drop_last:
        faults.append(
            f"minibatch_steps must divide the batch of {whole}, got {size}; change one of them or "
            "set --drop-last true"
        )
    return faults + [
        f"{name} must be a multiple of bptt_steps={unit} with a recurrent model.core, got "
        f"{rows}; change one of them"
        for name, rows in {"unroll_steps": steps, "minibatch_steps": size}.items()
        if rows is not None and rows % unit
    ]


MANY_STREAMS = 1024
"""Streams from which on small minibatches would make an iteration thousands of optimizer steps."""

_MANY_UNROLL_STEPS, _MANY_MINIBATCHES = 32, 4


def for_many_streams(config: PPOConfig, num_streams: int) -> dict[str, int]:
    """A short unroll and a few large minibatches, as simulators on GPUs are usually trained with;
    {} with fewer streams, or if a minibatch is at least as large already.
    """
    steps = min(config.unroll_steps, _MANY_UNROLL_STEPS)
    size = num_streams * steps // _MANY_MINIBATCHES
    large = config.minibatch_steps is None or config.minibatch_steps >= size
    if num_streams < MANY_STREAMS or large:
        return {}
    return {"unroll_steps": steps, "minibatch_steps": size}


def chunk(config: PPOConfig, model: ModelConfig) -> int:
    """Rows that stay together."""
    return 1 if model.core == "none" else config.bptt_steps


def planned_updates(config: PPOConfig, num_streams: int, total_env_steps: int) -> int:
    """All optimizer steps, without regard to early stops and invalid rows."""
    batch = num_streams * config.unroll_steps
    return total_env_steps * config.num_epochs // (config.minibatch_steps or batch)


def require_learnable(
    config: PPOConfig, model: ModelConfig, loss_names: tuple[str, ...], num_learners: int
) -> None:
    """Raises ConfigError if the network or the number of learners does not fit."""
    parts.refuse_aux_losses("ppo", model, loss_names)
    if num_learners > 1 and config.kl_cutoff_coef > 0:
        raise ConfigError(
            f"kl_cutoff_coef={config.kl_cutoff_coef:g} must have runtime.num_learners=1, got "
            f"{num_learners}: the mean KL that it squares needs all rows in one process; leave "
            "one of them out"
        )
