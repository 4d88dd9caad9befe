"""Options of proximal policy optimisation, and checks of their combinations.

The defaults suit vector observations; presets.yaml beside this file has presets for others.
"""

from typing import Annotated, Literal, NamedTuple, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintet.algorithms.parts.options import (
    Idle,
    Knob,
    Shared,
    chunk_faults,
    idle_normalizers,
    refuse_aux_losses,
    refuse_idle,
    schedule_check,
    size_faults,
)
from quintet.bounds import LARGEST, MOST_COUNT, MOST_ROWS, MOST_UNROLL, Bounded
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, torso_faults
from quintet.protocols import UpdateAdvice
from quintet.system.importing import CodeName
from quintet.types import Spaces


class Knobs(NamedTuple):
    """Options of the loss as knobs, some of them scheduled.

    share: factor of all means: the share of valid rows with ``reduction=mean_over_all``, else 1.
    """

    clip_epsilon: Knob
    value_clip: Knob
    log_prob_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    policy_l2_coef: Knob
    value_l2_coef: Knob
    shared_l2_coef: Knob
    kl_beta: Knob
    kl_target: Knob
    kl_cutoff_factor: Knob
    kl_cutoff_coef: Knob
    share: Knob


TUNABLE = frozenset(
    {
        "gamma",
        "gae_lambda",
        "clip_epsilon",
        "value_clip",
        "value_coef",
        "entropy_coef",
        "policy_l2_coef",
        "value_l2_coef",
        "shared_l2_coef",
        "log_prob_clip",
        "kl_target",
        "kl_tolerance",
        "kl_cutoff_coef",
        "kl_cutoff_factor",
        "target_kl",
        "num_epochs",
        "learning_rate",
        "adam_epsilon",
        "max_grad_norm",
    }
)
"""Options that may change during a run."""

TUNED = (
    "learning_rate",
    "entropy_coef",
    "value_coef",
    "max_grad_norm",
    "clip_epsilon",
    "value_clip",
)
"""What a population tunes of these where it names nothing."""


@final
class PPOConfig(BaseModel):
    """Options of PPO; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Targets and data
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    advantage_estimator: Literal["gae", "monte_carlo"] = Field(
        "gae", description="monte_carlo: bootstrapped discounted return minus value"
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="of GAE and of the lambda-return")
    value_target: Literal["lambda_return", "monte_carlo"] = Field(
        "lambda_return", description="what the value function learns"
    )
    value_source: Literal["recorded", "recomputed"] = Field(
        "recorded",
        description="values of the acting network, or of the current one at the update's start; "
        "equal as long as the runtime has no lag",
    )
    refresh_advantages: Literal["once", "per_epoch"] = Field(
        "once", description="per_epoch: values, advantages and targets anew before each pass"
    )
    normalize_advantage: Literal["batch", "minibatch", "none"] = Field(
        "batch", description="over what advantages are brought to mean 0, variance 1"
    )
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )
    unfinished_episode: Literal["bootstrap", "drop"] = Field(
        "bootstrap", description="what to do with rows after a column's last ending"
    )
    unroll_steps: int = Field(
        256, ge=1, le=MOST_UNROLL, description="steps of each stream per batch"
    )
    num_epochs: int = Field(10, ge=1, le=MOST_COUNT, description="passes over a batch")
    minibatch_steps: int | None = Field(
        64, ge=1, le=MOST_ROWS, description="rows per step; none: the batch"
    )
    drop_last: bool = Field(False, description="drop the rows that fill no whole minibatch")
    bptt_steps: int = Field(
        32,
        ge=1,
        le=MOST_UNROLL,
        description="rows that a recurrent network learns through, from a recorded state",
    )

    # Loss
    clip_epsilon: float | None = Field(0.2, gt=0, le=LARGEST, description="ratio clip; none: off")
    clip_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: clip_epsilon falls to 0 over the run"
    )
    value_clip: float | None = Field(
        None, gt=0, le=LARGEST, description="clip around the recorded value"
    )
    value_coef: float = Field(1.0, ge=0, le=LARGEST, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.0, ge=0, le=LARGEST, description="weight of the entropy bonus")
    policy_l2_coef: float = Field(
        0.0, ge=0, le=LARGEST, description="on the policy's squared kernels"
    )
    value_l2_coef: float = Field(
        0.0, ge=0, le=LARGEST, description="on the value function's squared kernels"
    )
    shared_l2_coef: float = Field(
        0.0, ge=0, le=LARGEST, description="on the shared layers' squared kernels"
    )
    log_prob_clip: float | None = Field(
        None, gt=0, le=LARGEST, description="bound of |log-probability|"
    )
    kl_beta_init: float = Field(
        0.0, ge=0, le=LARGEST, description="adaptive KL penalty's first weight; 0: off"
    )
    kl_target: float = Field(0.01, gt=0, le=LARGEST, description="mean KL aimed at, in nats")
    kl_tolerance: float = Field(0.3, ge=0, lt=1, description="dead band, as a share of kl_target")
    kl_cutoff_coef: float = Field(
        0.0, ge=0, le=LARGEST, description="weight of the squared KL above cutoff"
    )
    kl_cutoff_factor: float = Field(
        2.0, ge=0, le=LARGEST, description="cutoff in units of kl_target"
    )
    target_kl: float | None = Field(
        None, gt=0, le=LARGEST, description="no more epochs above 1.5 x this KL"
    )
    reduction: Literal["mean", "mean_over_all"] = Field(
        "mean", description="mean_over_all divides by every row, invalid ones too (TF-Agents)"
    )

    # Normalisation
    normalize_observations: bool = Field(True, description="running statistics of float leaves")
    normalize_pictures: bool = Field(
        False,
        description="running statistics of each pixel of uint8 pictures, which are scaled to "
        "[0, 1] in any case",
    )
    observation_clip: float = Field(
        5.0, gt=0, le=LARGEST, description="bound of normalised observations"
    )
    reward_normalizer: Literal["return_std", "step_std", "none"] = Field(
        "return_std", description="what rewards are divided by; their mean is never subtracted"
    )
    reward_norm_clip: Bounded | None = Field(10.0, description="of normalised rewards; <= 0: off")
    normalizer_variance_epsilon: float = Field(
        1e-3, gt=0, le=LARGEST, description="inside the root"
    )
    update_normalizers: bool = Field(True, description="false: frozen statistics (fine-tuning)")

    # Optimisation
    learning_rate: float = Field(3e-4, gt=0, le=LARGEST, description="Adam's rate")
    lr_schedule: Annotated[CodeName, schedule_check("constant", "linear", "kl_adaptive")] = Field(
        "linear",
        description="constant; linear: to 0 at the end of the budget; kl_adaptive: by the mean KL; "
        "or an import string of a function of your own, of the share of the budget that is done, "
        "which gives the factor of the rate",
    )
    adam_epsilon: float = Field(1e-5, gt=0, le=LARGEST, description="in Adam's denominator")
    max_grad_norm: float | None = Field(
        0.5, gt=0, le=LARGEST, description="bound of the global gradient norm"
    )
    check_numerics: bool = Field(
        False, description="after every minibatch, raise at a NaN or infinite tensor by its name"
    )
    log_histograms: bool = Field(
        False, description="distributions of data and loss before and after, for TensorBoard"
    )
    log_gradients: bool = Field(
        False, description="norms and distributions of each parameter and its last gradient"
    )

    @property
    def uses_kl(self) -> bool:
        """Whether the exact KL enters the loss or a decision."""
        return self.kl_beta_init > 0 or self.kl_cutoff_coef > 0 or self.lr_schedule == "kl_adaptive"

    @property
    def l2_coefs(self) -> dict[str, float]:
        """Coefficients by group of kernels, without those of 0."""
        coefs = {name: getattr(self, f"{name}_l2_coef") for name in ("policy", "value", "shared")}
        return {name: coef for name, coef in coefs.items() if coef > 0}

    @property
    def requirements(self) -> dict[str, tuple[bool, str]]:
        """Whether each option has an effect beside the others, and what it requires for that."""
        observations = self.normalize_observations or self.normalize_pictures
        normalizes = observations or self.reward_normalizer != "none"
        learns_value, steps = self.value_coef > 0, self.unroll_steps > 1
        gae = self.advantage_estimator == "gae" or (
            self.value_target == "lambda_return" and learns_value
        )
        return {
            "advantage_estimator": (steps, "unroll_steps > 1"),
            "gae_lambda": (
                gae and steps,
                "advantage_estimator=gae or value_target=lambda_return, and unroll_steps > 1",
            ),
            "value_target": (learns_value and steps, "value_coef > 0 and unroll_steps > 1"),
            "value_clip": (self.value_coef > 0, "value_coef > 0"),
            "clip_schedule": (self.clip_epsilon is not None, "clip_epsilon"),
            "kl_target": (self.uses_kl, "kl_beta_init, kl_cutoff_coef or lr_schedule=kl_adaptive"),
            "kl_tolerance": (self.kl_beta_init > 0, "kl_beta_init > 0"),
            "kl_cutoff_factor": (self.kl_cutoff_coef > 0, "kl_cutoff_coef > 0"),
            "normalize_advantage": (
                self.normalize_advantage != "minibatch" or self.minibatch_steps is not None,
                "minibatch_steps",
            ),
            "observation_clip": (observations, "normalize_observations or normalize_pictures"),
            "reward_norm_clip": (self.reward_normalizer != "none", "a reward_normalizer"),
            "normalizer_variance_epsilon": (normalizes, "a normaliser"),
            "update_normalizers": (normalizes, "a normaliser"),
            "drop_last": (self.minibatch_steps is not None, "minibatch_steps"),
            "refresh_advantages": (self.num_epochs > 1, "num_epochs > 1"),
            "value_source": (self.refresh_advantages == "once", "refresh_advantages=once"),
            "target_kl": (self.num_epochs > 1, "num_epochs > 1"),
        }

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> "PPOConfig":
        refuse_idle(self, self.requirements)
        return self


def idle_in(config: PPOConfig, model: ModelConfig, spaces: Spaces) -> dict[str, Idle]:
    """Options without effect on a resolved network in these spaces."""
    wanted = config.normalize_observations, config.normalize_pictures
    return idle_normalizers(
        type(config), wanted, model, spaces, others=config.reward_normalizer != "none"
    )


def check(
    config: PPOConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults beside the network, the streams and the budget, one sentence each."""
    faults = []
    size, chunk = config.minibatch_steps, config.bptt_steps
    batch = num_streams * config.unroll_steps
    if total_env_steps < batch:
        faults.append(
            f"total_env_steps must be at least one rollout of {num_streams} streams x "
            f"{config.unroll_steps} steps = {batch}, got {total_env_steps}; raise it, or lower "
            "unroll_steps or env.num_streams"
        )
    if size is not None:
        faults += size_faults(size, config.unroll_steps, num_streams, config.drop_last)
    if model.core != "none":
        faults += chunk_faults(chunk, config.unroll_steps, size)
    elif chunk != PPOConfig.model_fields["bptt_steps"].default:
        faults.append(f"bptt_steps={chunk} has no effect without model.core; leave it out")
    faults += torso_faults(model)
    if not model.shared_torso and config.shared_l2_coef > 0:
        faults.append("shared_l2_coef has no effect without model.shared_torso; leave it out")
    return faults


def suited(
    config: PPOConfig, model: ModelConfig, num_streams: int, learners: int, free: frozenset[str]
) -> dict[str, int]:
    """The largest minibatch, up to the one that nobody gave, that divides the batch in whole chunks
    for each learner; nothing where it fits already, or none of half its size does.
    """
    size, batch = config.minibatch_steps, num_streams * config.unroll_steps
    if size is None or "minibatch_steps" not in free or config.drop_last:
        return {}
    unit = learners * (1 if model.core == "none" else config.bptt_steps)
    most = min(size, batch)
    fitting = (n for n in range(most, (most - 1) // 2, -1) if batch % n == 0 and n % unit == 0)
    best = next(fitting, size)
    return {} if best == size else {"minibatch_steps": best}


def planned_updates(config: PPOConfig, num_streams: int, total_env_steps: int) -> int:
    """All optimizer steps, without regard to early stops and invalid rows; none with
    `check_numerics`, which reads tensors that a compiled graph hides.
    """
    if config.check_numerics:
        return 0
    batch = num_streams * config.unroll_steps
    return total_env_steps * config.num_epochs // (config.minibatch_steps or batch)


def advice(config: PPOConfig, model: ModelConfig, batch_steps: int) -> UpdateAdvice:
    """Fewer passes and larger minibatches save time."""
    passes, size = config.num_epochs, config.minibatch_steps
    work = "1 pass" if passes == 1 else f"{passes} passes"
    less = [f"fewer passes than {passes} (--num-epochs)"] if passes > 1 else []
    if size is not None:
        work += f" in minibatches of {size:,}"
        if size < batch_steps:
            chunk = 1 if model.core == "none" else config.bptt_steps
            larger = _larger_minibatch(size, batch_steps, chunk)
            less.append(f"larger minibatches (--minibatch-steps {larger})")
    return UpdateAdvice(work, tuple(less))


def _larger_minibatch(size: int, batch: int, chunk: int) -> int:
    """A size about twice as large that divides the batch in whole minibatches of whole chunks."""
    half_as_many = (-(-batch // size) + 1) // 2
    fitting = (n for n in range(half_as_many, 0, -1) if batch % n == 0 and batch // n % chunk == 0)
    return batch // next(fitting, 1)


def shared(config: PPOConfig, model: ModelConfig, num_streams: int) -> Shared:
    """Several learners share the rows of a minibatch, in whole chunks."""
    rows = config.minibatch_steps or config.unroll_steps * num_streams
    return Shared("minibatch_steps", rows, 1 if model.core == "none" else config.bptt_steps)


def require_learnable(
    config: PPOConfig, model: ModelConfig, loss_names: tuple[str, ...], num_learners: int
) -> None:
    """Raises ConfigError where the network or the number of learners does not fit."""
    refuse_aux_losses("ppo", model, loss_names)
    if num_learners > 1 and config.kl_cutoff_coef > 0:
        raise ConfigError(
            f"kl_cutoff_coef={config.kl_cutoff_coef:g} requires runtime.num_learners=1, got "
            f"{num_learners}: no learner has the mean that it squares; leave one of them out"
        )
