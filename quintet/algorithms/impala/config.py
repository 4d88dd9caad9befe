"""Options of IMPALA, and checks of their combinations.

The defaults are those of RTFM's training script (arXiv 1910.08210), which derives from
TorchBeast's;
presets.yaml beside this file has presets for kinds of environments.
"""

import math
from typing import Annotated, Literal, NamedTuple, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintet.algorithms.parts.options import (
    Idle,
    Knob,
    Shared,
    idle_normalizers,
    refuse_idle,
    schedule_check,
)
from quintet.bounds import LARGEST, MOST_COUNT, MOST_UNROLL, Bounded
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, torso_faults
from quintet.protocols import UpdateAdvice
from quintet.system.importing import CodeName
from quintet.types import Spaces

Weight = Annotated[float, Field(ge=0, le=LARGEST)]
"""Coefficient of a loss."""


class Knobs(NamedTuple):
    """Options of the loss as knobs; a cap of none is infinity."""

    gamma: Knob
    lambda_: Knob
    rho_bar: Knob
    c_bar: Knob
    pg_rho_bar: Knob
    value_coef: Knob
    entropy_coef: Knob


TUNABLE = frozenset(
    {
        "gamma",
        "lambda_",
        "rho_bar",
        "c_bar",
        "pg_rho_bar",
        "value_coef",
        "entropy_coef",
        "learning_rate",
        "rmsprop_decay",
        "rmsprop_momentum",
        "rmsprop_epsilon",
        "adam_epsilon",
        "max_grad_norm",
    }
)
"""Options that may change during a run."""

TUNED = ("learning_rate", "entropy_coef", "value_coef", "max_grad_norm")
"""What a population tunes of these where it names nothing."""


@final
class ImpalaConfig(BaseModel):
    """Options of IMPALA; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Targets and data
    unroll_steps: int = Field(
        80, ge=1, le=MOST_UNROLL, description="T, steps of a stream that make an unroll"
    )
    batch_unrolls: int = Field(
        24, ge=1, le=MOST_COUNT, description="B, unrolls per update, whatever the number of streams"
    )
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    rho_bar: float | None = Field(
        1.0, gt=0, le=LARGEST, description="cap of the ratio in V-trace's errors; none: no cap"
    )
    pg_rho_bar: float | None = Field(
        1.0,
        gt=0,
        le=LARGEST,
        description="cap of the ratio in the policy's advantage; none: no cap",
    )
    c_bar: float | None = Field(
        1.0,
        ge=0,
        le=LARGEST,
        description="cap of the ratio in V-trace's traces, at most rho_bar; none: no cap",
    )
    lambda_: float = Field(1.0, ge=0, le=1, description="decay of V-trace's traces")
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )

    # Loss
    reduction: Literal["sum_time_mean_batch", "sum", "mean"] = Field(
        "sum_time_mean_batch",
        description="of the terms of valid rows; sum_time_mean_batch: their sum divided by "
        "batch_unrolls, mean: by their number",
    )
    value_coef: float = Field(0.5, ge=0, le=LARGEST, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.0006, ge=0, le=LARGEST, description="weight of the entropy bonus")
    entropy_schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear: entropy_coef falls to 0 over the run"
    )
    aux_loss_weights: dict[str, Weight] = Field(
        default_factory=dict,
        description="weights of the auxiliary losses of an encoder of your own, by name; 1 where "
        "none is given",
    )

    # Normalisation
    normalize_observations: bool = Field(False, description="running statistics of float leaves")
    normalize_pictures: bool = Field(
        False,
        description="running statistics of each pixel of uint8 pictures, which are scaled to "
        "[0, 1] in any case",
    )
    observation_clip: float = Field(
        5.0, gt=0, le=LARGEST, description="bound of normalised observations"
    )
    reward_normalizer: Literal["return_std", "step_std", "none"] = Field(
        "none", description="what rewards are divided by; their mean is never subtracted"
    )
    reward_norm_clip: Bounded | None = Field(10.0, description="of normalised rewards; <= 0: off")
    normalizer_variance_epsilon: float = Field(
        1e-3, gt=0, le=LARGEST, description="inside the root"
    )
    update_normalizers: bool = Field(True, description="false: frozen statistics (fine-tuning)")

    # Optimisation
    optimizer: Literal["rmsprop", "adam"] = Field("rmsprop", description="without weight decay")
    learning_rate: float = Field(5e-4, gt=0, le=LARGEST, description="the optimizer's rate")
    lr_schedule: Annotated[CodeName, schedule_check("linear", "constant")] = Field(
        "linear",
        description="linear: to 0 at the end of the budget; constant; "
        "or an import string of a function of your own, of the share of the budget that is done, "
        "which gives the factor of the rate",
    )
    rmsprop_decay: float = Field(0.99, ge=0, lt=1, description="of the running mean of squares")
    rmsprop_momentum: float = Field(0.0, ge=0, lt=1, description="of the steps; 0: none")
    rmsprop_epsilon: float = Field(0.01, gt=0, le=LARGEST, description="in RMSProp's denominator")
    rmsprop_epsilon_inside_sqrt: bool = Field(
        False,
        description="TensorFlow's rule, g / sqrt(mean_sq + epsilon) with mean_sq from 1 on, to "
        "which the epsilons of the paper belong",
    )
    adam_epsilon: float = Field(1e-5, gt=0, le=LARGEST, description="in Adam's denominator")
    max_grad_norm: float | None = Field(
        40.0,
        gt=0,
        le=LARGEST,
        description="bound of the global gradient norm; 40 belongs to losses summed over time",
    )
    check_numerics: bool = Field(
        False, description="in every update, raise at a NaN or infinite tensor by its name"
    )

    @property
    def requirements(self) -> dict[str, tuple[bool, str]]:
        """Whether each option has an effect beside the others, and what it requires for that."""
        rmsprop = (self.optimizer == "rmsprop", "optimizer=rmsprop")
        observations = self.normalize_observations or self.normalize_pictures
        rewards = self.reward_normalizer != "none"
        normalizes = observations or rewards, "a normaliser"
        traces = self.c_bar != 0 and self.unroll_steps > 1
        return {
            "lambda_": (traces, "c_bar > 0 and unroll_steps > 1"),
            "c_bar": (
                self.lambda_ > 0 and self.unroll_steps > 1,
                "lambda_ > 0 and unroll_steps > 1",
            ),
            "entropy_schedule": (self.entropy_coef > 0, "entropy_coef > 0"),
            "observation_clip": (observations, "normalize_observations or normalize_pictures"),
            "reward_norm_clip": (rewards, "a reward_normalizer"),
            "normalizer_variance_epsilon": normalizes,
            "update_normalizers": normalizes,
            "rmsprop_decay": rmsprop,
            "rmsprop_momentum": rmsprop,
            "rmsprop_epsilon": rmsprop,
            "rmsprop_epsilon_inside_sqrt": rmsprop,
            "adam_epsilon": (self.optimizer == "adam", "optimizer=adam"),
        }

    @model_validator(mode="after")
    def _options_go_together(self) -> "ImpalaConfig":
        rho_bar, c_bar = (math.inf if bar is None else bar for bar in (self.rho_bar, self.c_bar))
        if rho_bar < c_bar:
            raise ValueError(
                f"rho_bar must be at least c_bar, got rho_bar={self.rho_bar} and "
                f"c_bar={self.c_bar}; raise rho_bar or lower c_bar"
            )
        refuse_idle(self, self.requirements)
        return self


def idle_in(config: ImpalaConfig, model: ModelConfig, spaces: Spaces) -> dict[str, Idle]:
    """Options without effect on a resolved network in these spaces."""
    wanted = config.normalize_observations, config.normalize_pictures
    rewards = config.reward_normalizer != "none"
    return idle_normalizers(type(config), wanted, model, spaces, others=rewards)


def check(
    config: ImpalaConfig,
    model: ModelConfig,
    num_streams: int,  # noqa: ARG001 (batches are made of any streams' unrolls)
    total_env_steps: int,
) -> list[str]:
    """Faults beside the network, the streams and the budget, one sentence each."""
    faults = []
    batch = config.batch_unrolls * config.unroll_steps
    if total_env_steps < batch:
        faults.append(
            f"total_env_steps must be at least one batch of {config.batch_unrolls} unrolls x "
            f"{config.unroll_steps} steps = {batch}, got {total_env_steps}; raise it, or lower "
            "batch_unrolls or unroll_steps"
        )
    faults += torso_faults(model)
    if config.aux_loss_weights and not model.custom:
        faults.append(
            f"aux_loss_weights={config.aux_loss_weights} has no effect without an encoder of your "
            f"own that gives such losses, model.encoder is {model.encoder}; leave it out"
        )
    return faults


def planned_updates(
    config: ImpalaConfig,
    num_streams: int,  # noqa: ARG001
    total_env_steps: int,
) -> int:
    """All optimizer steps, as if every row were valid; none with `check_numerics`, which reads
    tensors that a compiled graph hides.
    """
    if config.check_numerics:
        return 0
    return total_env_steps // (config.batch_unrolls * config.unroll_steps)


def advice(
    config: ImpalaConfig,
    model: ModelConfig,  # noqa: ARG001
    batch_steps: int,  # noqa: ARG001
) -> UpdateAdvice:
    """Every row is learned from once, so only fewer and larger updates save time."""
    larger = f"larger batches (--batch-unrolls {2 * config.batch_unrolls})"
    return UpdateAdvice(larger_batches=(larger,))


def shared(config: ImpalaConfig, *_: object) -> Shared:
    """Columns of a batch."""
    return Shared("batch_unrolls", config.batch_unrolls)


def aux_weights(
    config: ImpalaConfig, model: ModelConfig, names: tuple[str, ...]
) -> dict[str, float]:
    """The weight of every auxiliary loss of the encoder; raises ConfigError if an option weights a
    loss that the encoder lacks.
    """
    unknown = sorted(set(config.aux_loss_weights) - set(names))
    if unknown:
        raise ConfigError(
            f"aux_loss_weights requires names of losses that model.encoder={model.encoder} gives "
            f"({', '.join(names) or 'it gives none'}), got {', '.join(unknown)}; correct the name"
        )
    return {name: config.aux_loss_weights.get(name, 1.0) for name in names}
