"""Options of ACER, and checks of their combinations.

The defaults are those of OpenAI baselines; presets.yaml beside this file has presets for kinds
of environments.
"""

from typing import Annotated, Any, Literal, NamedTuple, final

from gymnasium import spaces as gym_spaces
from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintet.algorithms.parts.options import (
    Idle,
    Knob,
    Shared,
    idle_normalizers,
    refuse_idle,
    schedule_check,
)
from quintet.bounds import LARGEST, MOST_COUNT, MOST_STEPS, MOST_UNROLL, Bounded
from quintet.models.config import ModelConfig, torso_faults
from quintet.ops.schedules import OF_FRACTION
from quintet.protocols import UpdateAdvice
from quintet.spaces import action_leaves
from quintet.system.importing import CodeName
from quintet.types import Spaces

DEFAULTS: dict[str, Any] = {
    "env.num_streams": 16,
    "model.shared_torso": True,
    "model.action_std_init": 0.3,
}
"""Of options of the network and the environment."""


class Knobs(NamedTuple):
    """Options of the loss as knobs."""

    gamma: Knob
    lambda_: Knob
    c_bar: Knob
    importance_clip: Knob
    q_coef: Knob
    entropy_coef: Knob
    trust_region_delta: Knob


TUNABLE = frozenset(
    {
        *Knobs._fields,
        "average_decay",
        "learning_rate",
        "rmsprop_decay",
        "rmsprop_epsilon",
        "max_grad_norm",
    }
)
"""Options that may change during a run."""

TUNED = ("learning_rate", "entropy_coef", "q_coef", "max_grad_norm", "importance_clip")
"""What a population tunes of these where it names nothing."""


@final
class ACERConfig(BaseModel):
    """Options of ACER; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Data and replay
    unroll_steps: int = Field(
        20, ge=1, le=MOST_UNROLL, description="T, steps of every stream per fresh batch"
    )
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    replay_ratio: float = Field(
        4.0,
        ge=0,
        le=MOST_COUNT,
        description="mean number of updates from replay after each fresh one, a Poisson number; "
        "0: nothing is kept",
    )
    replay_capacity_steps_per_stream: int = Field(
        50_000,
        ge=1,
        le=MOST_STEPS,
        description="rows kept of each stream, in whole unrolls; rows in which an "
        "environment resets itself are among them",
    )
    replay_start_steps_per_stream: int = Field(
        10_000,
        ge=0,
        le=MOST_STEPS,
        description="env_steps of each stream before the first update from replay",
    )
    replay_sampling: Literal["per_stream", "any_stream"] = Field(
        "per_stream",
        description="per_stream: as many unrolls of each stream in a batch; any_stream: of any",
    )
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )

    # Loss
    q_coef: float = Field(0.5, gt=0, le=LARGEST, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.01, ge=0, le=LARGEST, description="weight of the entropy bonus")
    importance_clip: float = Field(
        10.0, gt=0, le=LARGEST, description="cap of the ratio in the policy's gradient, c"
    )
    lambda_: float = Field(1.0, ge=0, le=1, description="decay of Retrace's traces")
    c_bar: float = Field(1.0, ge=0, le=LARGEST, description="cap of the ratio in Retrace's traces")
    trust_region: bool = Field(
        True, description="bounds how far a sample moves the policy from the average policy"
    )
    trust_region_delta: float = Field(
        1.0,
        gt=0,
        le=LARGEST,
        description="greatest first-order change of the KL per sample, in nats",
    )
    average_decay: float = Field(
        0.99, ge=0, lt=1, description="of the average policy's weights, per update"
    )
    dueling_samples: int = Field(
        5, ge=1, le=MOST_COUNT, description="actions of the policy whose advantages are averaged, n"
    )
    learn_std: bool = Field(
        False, description="the standard deviation of continuous actions is learned too"
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
    learning_rate: float = Field(7e-4, gt=0, le=LARGEST, description="RMSProp's rate")
    lr_schedule: Annotated[CodeName, schedule_check(*OF_FRACTION)] = Field(
        "linear",
        description="linear: to 0 at the end of the budget; constant; double_linear_con: twice as "
        "fast, to an eighth; middle_drop: linear for a quarter, then 0.075; double_middle_drop: "
        "the same, then 0.125 in the last quarter; or an import string of a function of your own, "
        "of the share of the budget that is done, which gives the factor of the rate",
    )
    rmsprop_decay: float = Field(0.99, ge=0, lt=1, description="of the running mean of squares")
    rmsprop_epsilon: float = Field(1e-5, gt=0, le=LARGEST, description="in RMSProp's denominator")
    rmsprop_epsilon_inside_sqrt: bool = Field(
        True,
        description="TensorFlow's rule, g / sqrt(mean_sq + epsilon) with mean_sq from 1 on; false: "
        "PyTorch's",
    )
    max_grad_norm: float | None = Field(
        10.0,
        gt=0,
        le=LARGEST,
        description="bound of the global gradient norm, after the trust region",
    )
    check_numerics: bool = Field(
        False, description="in every update, raise at a NaN or infinite tensor by its name"
    )

    @property
    def requirements(self) -> dict[str, tuple[bool, str]]:
        """Whether each option has an effect beside the others, and what it requires for that."""
        replays = (self.replay_ratio > 0, "replay_ratio > 0")
        region = (self.trust_region, "trust_region")
        observations = self.normalize_observations or self.normalize_pictures
        rewards = self.reward_normalizer != "none"
        normalizes = observations or rewards, "a normaliser"
        traces = self.unroll_steps > 1 and self.gamma > 0
        return {
            "replay_capacity_steps_per_stream": replays,
            "replay_start_steps_per_stream": replays,
            "replay_sampling": replays,
            "lambda_": (traces and self.c_bar > 0, "c_bar > 0, gamma > 0 and unroll_steps > 1"),
            "c_bar": (traces and self.lambda_ > 0, "lambda_ > 0, gamma > 0 and unroll_steps > 1"),
            "trust_region_delta": region,
            "average_decay": region,
            "observation_clip": (observations, "normalize_observations or normalize_pictures"),
            "reward_norm_clip": (rewards, "a reward_normalizer"),
            "normalizer_variance_epsilon": normalizes,
            "update_normalizers": normalizes,
        }

    @model_validator(mode="after")
    def _options_go_together(self) -> "ACERConfig":
        capacity = self.replay_capacity_steps_per_stream
        if self.replay_ratio > 0 and capacity < self.unroll_steps:
            raise ValueError(
                f"replay_capacity_steps_per_stream must be at least unroll_steps "
                f"{self.unroll_steps}, got {capacity}; raise it"
            )
        if self.replay_ratio > 0 and self.replay_start_steps_per_stream > capacity:
            raise ValueError(
                f"replay_start_steps_per_stream must be at most replay_capacity_steps_per_stream "
                f"{capacity}, got {self.replay_start_steps_per_stream}; lower it"
            )
        refuse_idle(self, self.requirements)
        return self


def idle_in(config: ACERConfig, model: ModelConfig, spaces: Spaces) -> dict[str, Idle]:
    """Options without effect on a resolved network in these spaces."""
    wanted = config.normalize_observations, config.normalize_pictures
    rewards = config.reward_normalizer != "none"
    idle = idle_normalizers(type(config), wanted, model, spaces, others=rewards)
    boxes = [isinstance(leaf, gym_spaces.Box) for leaf in action_leaves(spaces.action)]
    shown = f"the action space is {spaces.action}"
    if isinstance(spaces.action, gym_spaces.Discrete):
        default = ACERConfig.model_fields["dueling_samples"].default
        idle["dueling_samples"] = Idle(default, f"actions that can't be summed over, {shown}")
    if not any(boxes):
        idle["learn_std"] = Idle(False, f"continuous actions, {shown}")
    if all(boxes) and not config.learn_std:
        required = "learn_std, since the entropy of a Gaussian depends on its spread alone"
        idle["entropy_coef"] = Idle(0.0, required)
    return idle


def check(
    config: ACERConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults beside the network, the streams and the budget, one sentence each."""
    faults = torso_faults(model)
    if model.action_std != "state_independent" and not config.learn_std:
        faults.append(
            f"model.action_std={model.action_std} requires learn_std, without which the spread of "
            "actions stays model.action_std_init; leave it out, or give --learn-std true"
        )
    batch = config.unroll_steps * num_streams
    if total_env_steps < batch:
        faults.append(
            f"total_env_steps must be at least one batch of {num_streams} streams x "
            f"{config.unroll_steps} steps = {batch}, got {total_env_steps}; raise it, or lower "
            "env.num_streams or unroll_steps"
        )
    start = config.replay_start_steps_per_stream * num_streams
    if config.replay_ratio > 0 and start >= total_env_steps:
        faults.append(
            f"replay_start_steps_per_stream x streams must be below total_env_steps "
            f"{total_env_steps}, or nothing is learned from replay, got {start}; lower it or raise "
            "the budget"
        )
    return faults


def planned_updates(config: ACERConfig, num_streams: int, total_env_steps: int) -> int:
    """Optimizer steps that are worth compiling; none with `check_numerics`."""
    if config.check_numerics:
        return 0
    batch = config.unroll_steps * num_streams
    start = config.replay_start_steps_per_stream * num_streams
    fresh, after = total_env_steps // batch, max(0, total_env_steps - start) // batch
    return fresh + int(config.replay_ratio * after)


def advice(
    config: ACERConfig,
    model: ModelConfig,  # noqa: ARG001
    batch_steps: int,
) -> UpdateAdvice:
    """Of the speed of updates."""
    ratio = f"fewer updates from replay than {config.replay_ratio:g} (--replay-ratio)"
    return UpdateAdvice(
        work=f"by 1 + {config.replay_ratio:g} batches of {batch_steps} rows",
        less_work=(ratio,) if config.replay_ratio > 0 else (),
        larger_batches=(f"longer unrolls (--unroll-steps {2 * config.unroll_steps})",),
    )


def shared(
    config: ACERConfig,  # noqa: ARG001
    model: ModelConfig,  # noqa: ARG001
    num_streams: int,
) -> Shared:
    """Columns of a batch."""
    return Shared("env.num_streams", num_streams)
