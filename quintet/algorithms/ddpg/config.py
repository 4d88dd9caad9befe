"""Options of DDPG, and what does not go together.

The defaults are those of OpenAI baselines, which produced the published results of parameter noise;
presets.yaml beside this file has those of kinds of environments.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple, final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from quintet.algorithms.ddpg import exploration as noises
from quintet.algorithms.parts.options import (
    Idle,
    Knob,
    Shared,
    idle_normalizers,
    refuse_idle,
    schedule_check,
)
from quintet.bounds import (
    LARGEST,
    MOST_COUNT,
    MOST_LAYERS,
    MOST_ROWS,
    MOST_STEPS,
    MOST_UNROLL,
    Bounded,
)
from quintet.models.config import ModelConfig
from quintet.protocols import UpdateAdvice
from quintet.system.importing import CodeName
from quintet.types import Spaces

DEFAULTS: dict[str, Any] = {
    "model.policy_hidden": [64, 64],
    "model.activation": "relu",
    "model.layer_norm": True,
}
"""Of options of the network."""

WITHOUT = frozenset({"core", "shared_torso", "action_std", "action_std_init", "action_bounds"})
"""Options of networks that these have no use for."""


class Knobs(NamedTuple):
    """Options of the loss."""

    gamma: Knob
    reward_scale: Knob
    critic_loss_coef: Knob
    critic_l2_coef: Knob
    critic_huber_delta: Knob


TUNABLE = frozenset(
    {
        "gamma", "reward_scale", "critic_loss_coef", "critic_l2_coef", "critic_huber_delta",
        "actor_lr", "critic_lr", "adam_epsilon", "tau", "max_grad_norm",
    }
)  # fmt: skip
"""Options that may change during a run."""

TUNED = ("actor_lr", "critic_lr", "tau", "critic_l2_coef")
"""What a population tunes of these where it names nothing."""


@final
class DDPGConfig(BaseModel):
    """Options of DDPG; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Data
    unroll_steps: int = Field(
        100,
        ge=1,
        le=MOST_UNROLL,
        description="steps of each stream from one set of updates to the next",
    )
    updates_per_env_step: float = Field(
        0.5, gt=0, le=MOST_COUNT, description="updates owed for each env_step, all streams together"
    )
    updates_per_cycle: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="updates after every unroll_steps of each stream, in place of "
        "updates_per_env_step",
    )
    replay_capacity_steps: int = Field(1_000_000, ge=1, le=MOST_STEPS, description="env_steps kept")
    replay_start_steps: int = Field(
        0,
        ge=0,
        le=MOST_STEPS,
        description="env_steps before the first update; never fewer than batch_size",
    )
    warmup_policy: Literal["noise", "uniform"] = Field(
        "noise",
        description="until replay_start_steps; noise: the policy with its noise, uniform: "
        "uniformly random actions",
    )
    batch_size: int = Field(64, ge=1, le=MOST_ROWS, description="transitions of an update")
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    n_step: int = Field(1, ge=1, le=MOST_UNROLL, description="rewards in a target before the value")
    reward_scale: float = Field(1.0, gt=0, le=LARGEST, description="factor of rewards in learning")
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )

    # Networks and losses
    action_layer: int = Field(
        2,
        ge=1,
        le=MOST_LAYERS,
        description="hidden layer of the critic that the action enters; 1: the first",
    )
    output_init: float = Field(
        3e-3, gt=0, le=LARGEST, description="weights of both last layers are uniform in [-it, it]"
    )
    critic_loss_coef: float = Field(2.0, gt=0, le=LARGEST, description="weight of 0.5 * error^2")
    critic_huber_delta: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="errors beyond it count linearly; none: squared throughout",
    )
    critic_l2_coef: float = Field(
        1e-2,
        ge=0,
        le=LARGEST,
        description="weight of 0.5 * sum of squared critic kernels, the last excepted",
    )

    # Exploration
    exploration: str = Field("adaptive-param_0.2", description=noises.GRAMMAR)
    ou_theta: float = Field(
        0.15, gt=0, le=LARGEST, description="how fast the OU process returns to 0"
    )
    ou_dt: float = Field(0.01, gt=0, le=LARGEST, description="time of one step of the OU process")
    adapt_interval_updates: int = Field(
        50,
        ge=1,
        le=MOST_STEPS,
        description="updates from one adaptation of parameter noise to the next",
    )
    param_noise_factor: float = Field(
        1.01,
        gt=1,
        le=LARGEST,
        description="of the standard deviation of parameter noise, per adaptation",
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
    normalizer_variance_epsilon: float = Field(
        1e-2, gt=0, le=LARGEST, description="inside the root"
    )
    update_normalizers: bool = Field(True, description="false: frozen statistics (fine-tuning)")
    normalize_returns: bool = Field(
        False, description="the critic predicts values in units of the targets' spread"
    )
    return_low: Bounded | None = Field(None, description="least value of a target; none: any")
    return_high: Bounded | None = Field(None, description="greatest value of a target; none: any")
    popart: bool = Field(
        False, description="both critics keep their values when the targets' statistics move"
    )
    popart_step_size: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of a batch in the targets' statistics; none: all targets count alike",
    )

    # Optimisation
    actor_lr: float = Field(1e-4, gt=0, le=LARGEST, description="Adam's rate for the policy")
    critic_lr: float = Field(1e-3, gt=0, le=LARGEST, description="Adam's rate for the critic")
    lr_schedule: Annotated[CodeName, schedule_check("constant", "linear")] = Field(
        "constant",
        description="of both rates; constant; linear: to 0 at the end of the budget; "
        "or an import string of a function of your own, of the share of the budget that is done, "
        "which gives the factor of the rate",
    )
    adam_epsilon: float = Field(1e-8, gt=0, le=LARGEST, description="in Adam's denominator")
    tau: float = Field(
        0.01, gt=0, le=1, description="how far the targets go towards the networks per update"
    )
    max_grad_norm: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="bound of the gradient's norm, of each network; none: none",
    )
    check_numerics: bool = Field(
        False, description="in every update, raise at a NaN or infinite tensor by its name"
    )

    @field_validator("exploration")
    @classmethod
    def _exploration_is_known(cls, value: str) -> str:
        noises.parse(value)
        return value

    @property
    def noise(self) -> noises.Exploration:
        return noises.parse(self.exploration)

    @property
    def start_steps(self) -> int:
        """env_steps that are stored before the first update."""
        return max(self.replay_start_steps, self.batch_size)

    @property
    def return_range(self) -> tuple[float, float]:
        low, high = self.return_low, self.return_high
        return -math.inf if low is None else low, math.inf if high is None else high

    @property
    def requirements(self) -> dict[str, tuple[bool, str]]:
        """By option: whether it has an effect beside the others, and what it needs for that."""
        ou = (self.noise.ou > 0, "ou_S in exploration")
        param = (self.noise.param > 0, "adaptive-param_S in exploration")
        normalizes = (
            self.normalize_observations or self.normalize_pictures,
            "normalize_observations or normalize_pictures",
        )
        returns = (self.normalize_returns, "normalize_returns")
        moving = (
            self.normalize_returns and self.update_normalizers,
            "normalize_returns and update_normalizers",
        )
        return {
            "updates_per_env_step": (self.updates_per_cycle is None, "updates_per_cycle none"),
            "warmup_policy": (self.replay_start_steps > 0, "replay_start_steps > 0"),
            "ou_theta": ou,
            "ou_dt": ou,
            "adapt_interval_updates": param,
            "param_noise_factor": param,
            "observation_clip": normalizes,
            "normalizer_variance_epsilon": normalizes,
            "update_normalizers": (normalizes[0] or returns[0], f"{normalizes[1]} or {returns[1]}"),
            "popart": moving,
            "popart_step_size": moving,
        }

    @model_validator(mode="after")
    def _options_go_together(self) -> "DDPGConfig":
        low, high = self.return_range
        if low >= high:
            raise ValueError(
                f"return_low must be below return_high, got {low} and {high}; correct one of them"
            )
        if self.replay_start_steps > self.replay_capacity_steps:
            raise ValueError(
                f"replay_start_steps must be at most replay_capacity_steps "
                f"{self.replay_capacity_steps}, got {self.replay_start_steps}; lower it"
            )
        refuse_idle(self, self.requirements)
        return self


def idle_in(config: DDPGConfig, model: ModelConfig, spaces: Spaces) -> dict[str, Idle]:
    """Options that have no effect on a resolved network in these spaces."""
    wanted = config.normalize_observations, config.normalize_pictures
    idle = idle_normalizers(type(config), wanted, model, spaces, others=config.normalize_returns)
    if model.custom:
        default = type(config).model_fields["action_layer"].default
        idle["action_layer"] = Idle(default, "an encoder with hidden layers of quintet's")
    return idle


def check(
    config: DDPGConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults that no field shows by itself, one sentence each."""
    faults = []
    # The critic has the policy's layers unless it is given others.
    hidden = model.policy_hidden if model.value_hidden is None else model.value_hidden
    if not model.custom and hidden is not None and config.action_layer > len(hidden):
        faults.append(
            f"action_layer must be at most {len(hidden)}, the critic's last hidden layer, got "
            f"{config.action_layer}: after it values would be linear in the action; lower it or "
            "give model.value_hidden more layers"
        )
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
    return faults


def warnings(config: DDPGConfig, model: ModelConfig) -> list[str]:
    """What is allowed and seldom wise."""
    if not config.noise.param or model.layer_norm:
        return []
    which = f"LayerNorm in {model.encoder}" if model.custom else "--model.layer-norm true"
    return [
        f"parameter noise without {which} moves some layers far more than others, since one size "
        "fits all of their weights only where their inputs are normalised"
    ]


def planned_updates(config: DDPGConfig, num_streams: int, total_env_steps: int) -> int:
    """Optimizer steps that are worth compiling; none with `check_numerics`."""
    if config.check_numerics:
        return 0
    steps = max(0, total_env_steps - config.start_steps)
    if config.updates_per_cycle is not None:
        return config.updates_per_cycle * (steps // (config.unroll_steps * num_streams))
    return int(config.updates_per_env_step * steps)


def advice(
    config: DDPGConfig,
    model: ModelConfig,  # noqa: ARG001
    batch_steps: int,  # noqa: ARG001
) -> UpdateAdvice:
    """Of the speed of updates."""
    if config.updates_per_cycle is not None:
        option = f"fewer updates than {config.updates_per_cycle} per cycle (--updates-per-cycle)"
    else:
        owed = f"{config.updates_per_env_step:g}"
        option = f"fewer updates than {owed} per env_step (--updates-per-env-step)"
    return UpdateAdvice(
        work=f"by batches of {config.batch_size} transitions",
        less_work=(option, f"smaller batches than {config.batch_size} (--batch-size)"),
    )


def shared(config: DDPGConfig, *_: object) -> Shared:
    """Transitions of a batch."""
    return Shared("batch_size", config.batch_size)
