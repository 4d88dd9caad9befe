"""Options that several learners have, and common parts of their configurations."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator

from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.bounds import (
    Below1,
    Bounded,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Rows,
    Share,
    Steps,
    StepsFrom0,
    Unroll,
)
from quintet.options.declaration import AROUND, FACTOR, NEAR_1, USUAL, Needs, option
from quintet.system.importing import words_or_code

if TYPE_CHECKING:
    from torch import Tensor

Knob = Union[float, "Tensor"]
"""A number that may change from step to step: a float for `Trained.step`, a scalar tensor for the
loss.
"""


def reads_values(options: object) -> bool:
    """Whether a learner looks for numbers that are not finite within an update."""
    return bool(getattr(options, "check_numerics", False))


UNROLL_STEPS = (
    "num_steps nsteps rollout unroll_length rollout_length n_rollout_steps "
    "rollout_fragment_length train_freq train_frequency num_steps_per_env"
)
MINIBATCH_STEPS = (
    "batch_size num_minibatches nminibatches n_minibatch num_mini_batches minibatch_size "
    "mini_batch_size sgd_minibatch_size"
)
KL_COEF = "kl_coeff kl_loss_coeff init_kl_coeff"
VALUE_COEF = "vf_coef value_loss_coef value_loss_coeff vf_loss_coeff baseline_cost"
ENTROPY_COEF = "ent_coef entropy_coeff entropy_cost entropy_weight exploration_loss_coeff"
CLIP = "clip_ratio clip_range clip_coef cliprange clip_param ppo_clip_ratio eps_clip"
C_BAR = "vtrace_c clip_c_threshold"
MAX_GRAD_NORM = "grad_clip clip_grad grad_norm_clipping clip_norm gradient_clip_norm"
CAPACITY = "buffer_size replay_size memory_size"
START = "learning_starts start_steps replay_start warmup_steps"
"""Names in other libraries of options that several learners have."""

OBSERVATIONS = "normalize_observations or normalize_pictures"
HAS_STATISTICS = Needs("init_from, whose statistics are kept", lambda _, f: f.init_from is not None)

_NORMALIZER = Needs(
    "a normaliser",
    lambda o, _: o.reward_normalizer != "none" or o.normalize_observations or o.normalize_pictures,
)


def _is_no_schedule(value: Any) -> Any:
    """Refuses schedules in the forms of other libraries, with the way to give one here."""
    if callable(value):
        raise ValueError(
            "must be a number, the first rate; a function is given as lr_schedule, and maps the "
            "fraction of the budget that is done (not left) to a factor of the rate"
        )
    if isinstance(value, str) and value.startswith("lin_"):
        raise ValueError(
            f"must be a number; {value[4:]} with lr_schedule=linear is a rate that falls to 0"
        )
    return value


Gamma = Annotated[
    Fraction,
    option(
        doc="discount factor",
        tune=NEAR_1,
        also="discount discounting discount_factor",
        search=AROUND,
    ),
]
TruncationAsTermination = Annotated[
    bool,
    option(doc="treat time limits as terminations, only to compare with old published numbers"),
]
EntropyCoef = Annotated[
    NotNegative,
    option(doc="weight of the entropy bonus", tune=USUAL, also=ENTROPY_COEF, search="0.0..0.02"),
]
ValueCoef = Annotated[
    NotNegative, option(doc="weight of 0.5 * error^2", tune=USUAL, also=VALUE_COEF)
]
ValueClip = Annotated[
    Positive | None,
    option(
        doc="largest change of the value from the recorded value, in units of the "
        "(normalised) reward; none: no clip",
        needs="value_coef > 0",
        tune=USUAL,
        also="clip_range_vf clip_vloss ppo_clip_value use_clipped_value_loss",
    ),
]
NoiseCorrelation = Annotated[
    Below1,
    option(
        doc="correlation of an action's noise with the noise of the action before; near 1 a policy "
        "tries one thing for longer",
        needs=Needs(
            "actions that are all Box (the action space is {f.spaces.action})",
            lambda _, f: f.continuous and not f.discrete,
        ),
    ),
]
NumEpochs = Annotated[
    Count,
    option(
        doc="passes over the rows of an iteration",
        tune=FACTOR,
        faster="lower",
        also="n_epochs update_epochs noptepochs ppo_epochs num_sgd_iter num_learning_epochs",
    ),
]
LearningRate = Annotated[
    Positive,
    BeforeValidator(_is_no_schedule),
    option(doc="the optimizer's rate", tune=USUAL, also="lr"),
]
NormalizeObservations = Annotated[
    bool,
    option(
        doc="normalise float leaves of observations by running statistics",
        needs=Needs(
            "floats in the observation, which is {f.spaces.observation}{f.hint}",
            lambda _, f: f.floats,
            rest=False,
        ),
        also="normalize norm_obs normalize_obs normalize_input obs_norm observation_filter "
        "empirical_normalization actor_obs_normalization",
    ),
]
NormalizePictures = Annotated[
    bool,
    option(
        doc="normalise each pixel of uint8 pictures by running statistics; false: only scale "
        "pictures to [0, 1]",
        needs=Needs(
            "an observation that model.encoder={f.model.encoder} reads as a picture (it is "
            "{f.spaces.observation})",
            lambda _, f: f.pictures,
            rest=False,
        ),
    ),
]
ObservationClip = Annotated[
    Positive,
    option(
        doc="largest absolute value of normalised observations",
        needs=OBSERVATIONS,
        also="clip_obs",
    ),
]
RewardNormalizer = Annotated[
    Literal["return_std", "step_std", "none"],
    option(
        doc="divisor of rewards; return_std: the standard deviation of the running discounted "
        "return; step_std: the reward's own standard deviation; none",
        also="normalize norm_reward normalize_reward normalize_returns",
        tensors="reward_moments/",
    ),
]
RewardNormClip = Annotated[
    Bounded | None,
    option(
        doc="largest absolute value of normalised rewards; <= 0: no bound",
        needs="reward_normalizer",
        also="clip_reward",
    ),
]
NormalizerVarianceEpsilon = Annotated[
    Positive, option(doc="term added to the variance inside the root", needs=_NORMALIZER)
]
UpdateNormalizers = Annotated[
    bool,
    option(
        doc="update the normalisers' statistics; false: keep those of init_from",
        needs=(_NORMALIZER, HAS_STATISTICS),
    ),
]
UpdateObservationStatistics = Annotated[
    bool,
    option(
        doc="update the normalisers' statistics; false: keep those of init_from",
        needs=(OBSERVATIONS, HAS_STATISTICS),
    ),
]
AdamEpsilon = Annotated[
    Positive, option(doc="term added in Adam's denominator", tune=FACTOR, also="adam_eps")
]
MaxGradNorm = Annotated[
    Positive | None,
    option(
        doc="largest global norm of the gradient; none: no bound", tune=USUAL, also=MAX_GRAD_NORM
    ),
]
ReplayCapacitySteps = Annotated[Steps, option(doc="env_steps kept in replay", also=CAPACITY)]
ReplayStartSteps = Annotated[
    StepsFrom0,
    option(
        doc="env_steps before the first update, at least batch_size",
        at_most="replay_capacity_steps",
        also=START,
    ),
]
BatchSize = Annotated[
    Rows, option(doc="transitions per update", faster="lower", also="train_batch_size")
]
NStep = Annotated[
    Unroll, option(doc="number of rewards in a target before the value", also="n_steps")
]
RewardScale = Annotated[
    Positive, option(doc="factor by which rewards are multiplied for learning", tune=FACTOR)
]
ObservationVarianceEpsilon = Annotated[
    Positive, option(doc="term added to the variance inside the root", needs=OBSERVATIONS)
]
ActorLr = Annotated[
    Positive,
    BeforeValidator(_is_no_schedule),
    option(doc="Adam's rate for the policy", tune=USUAL, also="lr learning_rate policy_lr"),
]
CriticLr = Annotated[
    Positive,
    BeforeValidator(_is_no_schedule),
    option(doc="Adam's rate for the critic", tune=USUAL, also="lr learning_rate q_lr qf_lr"),
]
Tau = Annotated[
    Share,
    option(
        doc="fraction of the way that the target networks move to the networks in each update",
        tune=USUAL,
        also="polyak",
    ),
]
MaxGradNorms = Annotated[
    Positive | None,
    option(
        doc="largest norm of each network's gradient; none: no bound",
        tune=FACTOR,
        also=MAX_GRAD_NORM,
    ),
]
CheckNumerics = Annotated[
    bool,
    option(
        doc="check after every optimizer step which tensor is NaN or infinite, and name it in "
        "the error; needs runtime.compile=off"
    ),
]


def schedule(default: str, words: tuple[str, ...], doc: str) -> Any:
    """The field of a schedule of the learning rate: one of these words, or a function of the user's
    own."""
    own = (
        "or an import string of your own function (in Python the argument lr_schedule of "
        "quintet.train), which maps the fraction of the budget that is done to the factor of the "
        "rate"
    )
    info = option(
        default,
        doc=f"schedule of the rate; {doc}; {own}",
        also="anneal_lr lr_decay lrschedule schedule",
    )
    info.metadata.append(words_or_code(*words))
    return info


def rates_schedule() -> Any:
    """The field of the schedule of several rates."""
    words = ("constant", "linear")
    doc = "constant; linear: all rates fall to 0 at the end of the budget"
    return schedule("constant", words, doc)


def replay_faults(config: Any, num_streams: int, total_env_steps: int) -> list[str]:
    """Faults of the options of a replay, one sentence each."""
    faults = []
    if total_env_steps <= config.start_steps:
        faults.append(
            f"total_env_steps must be above replay_start_steps and batch_size, got "
            f"{total_env_steps} and {config.start_steps}; raise it, or nothing is learned"
        )
    if config.replay_capacity_steps < config.unroll_steps * num_streams:
        faults.append(
            f"replay_capacity_steps must be at least unroll_steps x streams = "
            f"{config.unroll_steps * num_streams}, got {config.replay_capacity_steps}; raise it"
        )
    if config.n_step * num_streams > total_env_steps:
        faults.append(
            f"n_step must be at most the {total_env_steps // num_streams} steps of each stream, "
            f"got {config.n_step}; lower it"
        )
    return faults


def reward_scaling(config: Any) -> str:
    """The way to scale rewards with the option `RewardNormalizer`; "" if it is on."""
    off = config.reward_normalizer == "none"
    return "--reward-normalizer return_std scales them" if off else ""


def reward_divisor(config: Any) -> float:
    """The least number by which `RewardNormalizer` divides; 0 if it is off."""
    off = config.reward_normalizer == "none"
    return 0.0 if off else float(config.normalizer_variance_epsilon**0.5)


def refuse_aux_losses(algo: str, model: ModelConfig, names: tuple[str, ...]) -> None:
    """Refuses an encoder's auxiliary losses of these names, for learners that don't use them.

    Raises:
        ConfigError: names them.
    """
    if names:
        raise ConfigError(
            f"{algo} must have an encoder without auxiliary losses, got "
            f"model.encoder={model.encoder} with {', '.join(names)}: return the features alone, or "
            "train with a learner that reports loss/aux/"
        )
