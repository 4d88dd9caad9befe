"""Options of APPO, and checks of their combinations.

The defaults are those of Sample Factory's first version (arXiv 2006.11751); presets.yaml in this
folder has presets for kinds of environments.
"""

from typing import Literal, NamedTuple, final

from pydantic import model_validator

from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.options.bounds import (
    Below1,
    Bounded,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Rows,
    Unroll,
)
from quintet.options.declaration import AROUND, CAP, FACTOR, NEAR_1, USUAL, Needs, Options, option
from quintet.system.importing import CodeName

DEFAULTS = {"runtime.kind": "async"}
"""Defaults of options of the runtime."""

MAX_POLICY_LAG_UPDATES = 40
"""Rows whose weights are older than this many updates are not learned from
(``runtime.max_policy_lag``); raised where more updates pass while one unroll of every stream is
used, plus one iteration.
"""


class Knobs(NamedTuple):
    """Options of the loss as knobs; a cap or clip of none is infinity.

    first: no option; 1 at the first step of an iteration, else 0.
    """

    gamma: Knob
    vtrace_lambda: Knob
    rho_bar: Knob
    c_bar: Knob
    clip_epsilon: Knob
    value_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    kl_coef: Knob
    first: Knob


_DISCOUNTED_TRACES = "gamma > 0 and chunks of several steps"


@final
class APPOConfig(Options):
    """Options of APPO."""

    # Data
    unroll_steps: Unroll = option(32, also=f"n_steps {parts.UNROLL_STEPS}")
    """steps of a stream in an unroll"""
    bptt_steps: Unroll | None = option(None, also="recurrence seq_length max_seq_len")
    """rows of a chunk, at whose ends traces and recurrent gradients stop; none: the whole unroll"""
    minibatch_steps: Rows = option(
        1024, faster="higher", also=f"train_batch_size {parts.MINIBATCH_STEPS}"
    )
    """rows per optimizer step, in whole chunks"""
    minibatches_per_iteration: Count = option(1, also="num_batches_per_epoch")
    """minibatches collected before each iteration"""
    num_epochs: parts.NumEpochs = 1
    early_stop_tolerance: NotNegative = option(1e-6, needs="num_epochs > 1", tune=FACTOR)
    """stop when policy plus exploration loss changes by less than this between two passes"""

    # Targets
    gamma: parts.Gamma = 0.99
    use_vtrace: bool = option(True, also="with_vtrace vtrace")
    """use V-trace with current values; false: GAE with recorded values"""
    rho_bar: Positive | None = option(
        1.0,
        needs="use_vtrace",
        tune=CAP,
        also="vtrace_rho clip_rho_threshold vtrace_clip_rho_threshold",
    )
    """cap of the ratio in V-trace's errors; none: no cap"""
    c_bar: NotNegative | None = option(
        1.0,
        needs=Needs(
            f"use_vtrace, vtrace_lambda > 0, {_DISCOUNTED_TRACES}",
            lambda o, _: o.has_traces and o.vtrace_lambda > 0,
        ),
        tune=CAP,
        at_most="rho_bar",
        also=parts.C_BAR,
    )
    """cap of the ratio in V-trace's traces, at most rho_bar; none: no cap"""
    vtrace_lambda: Fraction = option(
        1.0,
        needs=Needs(
            f"use_vtrace, c_bar > 0, {_DISCOUNTED_TRACES}",
            lambda o, _: o.has_traces and o.c_bar != 0,
        ),
        tune=NEAR_1,
        also="lambda_",
    )
    """decay of V-trace's traces"""
    advantage_includes_rho: bool = option(True, needs="use_vtrace")
    """multiply V-trace's advantage by the capped ratio, in addition to the objective's ratio"""
    gae_lambda: Fraction = option(
        0.95,
        needs="use_vtrace=false and gamma > 0 and unroll_steps > 1",
        tune=NEAR_1,
        also="lam lambda",
        search=AROUND,
    )
    """lambda of GAE"""
    truncation_as_termination: parts.TruncationAsTermination = False

    # Loss
    clip_epsilon: Positive = option(0.1, tune=USUAL, also=parts.CLIP)
    """clip of the ratio, c: it is clipped to [1 / (1 + c), 1 + c]"""
    ratio_clamp: tuple[Bounded, Bounded] | None = (0.05, 20.0)
    """bounds of the ratio in all terms, outside of which no gradient flows; none: no bounds"""
    value_clip: parts.ValueClip = 0.2
    value_coef: parts.ValueCoef = 1.0
    exploration_loss: Literal["entropy", "symmetric_kl"] = option(
        "entropy",
        needs=(
            "entropy_coef > 0",
            Needs(
                "actions that are all discrete (the action space is {f.spaces.action})",
                lambda _, f: not f.continuous,
            ),
        ),
    )
    """bonus for exploration: entropy; symmetric_kl: half of KL(pi, uniform) + KL(uniform, pi), at
    most 30 nats per row
    """
    entropy_coef: NotNegative = option(0.003, tune=USUAL, also=parts.ENTROPY_COEF)
    """weight of the exploration loss"""
    kl_coef: NotNegative = option(0.0, tune=FACTOR, also=parts.KL_COEF)
    """weight of KL(pi, mu), mu the policy that acted"""

    # Normalisation
    normalize_observations: parts.NormalizeObservations = False
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    reward_normalizer: parts.RewardNormalizer = "none"
    reward_norm_clip: parts.RewardNormClip = 10.0
    normalizer_variance_epsilon: parts.NormalizerVarianceEpsilon = 1e-3
    update_normalizers: parts.UpdateNormalizers = True

    # Optimisation
    learning_rate: parts.LearningRate = 1e-4
    lr_schedule: CodeName = parts.schedule(
        "constant",
        ("constant", "linear", "kl_adaptive"),
        "constant; linear: to 0 at the end of the budget; kl_adaptive: by the mean KL of the "
        "updated policy",
    )
    kl_target: Positive = option(
        0.008,
        needs="lr_schedule=kl_adaptive",
        tune=FACTOR,
        also="desired_kl lr_schedule_kl_threshold",
    )
    """mean KL(mu, pi) to which kl_adaptive steers, in nats"""
    adam_beta1: Below1 = option(0.9, tune=NEAR_1)
    """decay of Adam's mean of gradients"""
    adam_beta2: Below1 = option(0.999, tune=NEAR_1)
    """decay of Adam's mean of squares"""
    adam_epsilon: parts.AdamEpsilon = 1e-6
    max_grad_norm: parts.MaxGradNorm = 4.0
    check_numerics: parts.CheckNumerics = False

    @property
    def chunk_steps(self) -> int:
        return self.bptt_steps or self.unroll_steps

    @property
    def records_distribution(self) -> bool:
        """Whether the exact KL is used in the loss or for a decision."""
        return self.kl_coef > 0 or self.lr_schedule == "kl_adaptive"

    @property
    def records_value(self) -> bool:
        """Whether the value of the network that acted is used."""
        return not self.use_vtrace or (self.value_clip is not None and self.value_coef > 0)

    @property
    def has_traces(self) -> bool:
        """Whether V-trace looks further than one step, given the sizes and the discount."""
        return self.use_vtrace and self.gamma > 0 and self.chunk_steps > 1

    @model_validator(mode="after")
    def _options_go_together(self) -> "APPOConfig":
        if self.ratio_clamp is not None:
            low, high = self.ratio_clamp
            if not 0 < low <= 1 <= high:
                raise ValueError(
                    "ratio_clamp must be two numbers, the first above 0 and at most 1, the second "
                    f"at least 1, got {low:g} and {high:g}; correct them"
                )
        return self


def check(config: APPOConfig, *_: object) -> list[str]:
    """Faults of sizes, one sentence each."""
    faults = []
    chunk, unroll = config.chunk_steps, config.unroll_steps
    batch = config.minibatch_steps * config.minibatches_per_iteration
    if unroll % chunk:
        faults.append(
            f"unroll_steps must be a multiple of bptt_steps={chunk}, got {unroll}; change one of "
            "them"
        )
    if config.minibatch_steps % chunk:
        name = "unroll_steps" if config.bptt_steps is None else "bptt_steps"
        faults.append(
            f"minibatch_steps must be a multiple of {name}={chunk}, got {config.minibatch_steps}; "
            "change one of them"
        )
    elif batch % unroll:
        faults.append(
            "minibatch_steps * minibatches_per_iteration must be a multiple of "
            f"unroll_steps={unroll}, got {batch}; change one of them"
        )
    return faults


def planned_updates(config: APPOConfig, _num_streams: int, total_env_steps: int) -> int:
    """All optimizer steps, as if every row were valid."""
    return total_env_steps * config.num_epochs // config.minibatch_steps
