"""Options of DDPG, and checks of their combinations.

The defaults are those of OpenAI baselines, which produced the published results of parameter noise;
presets.yaml in this folder has presets for kinds of environments.
"""

import math
from typing import Any, Literal, NamedTuple, final

from pydantic import field_validator, model_validator

from quintet.algorithms.ddpg import exploration as noises
from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.models.config import ModelConfig
from quintet.options.bounds import (
    LARGEST,
    MOST_COUNT,
    Bounded,
    Count,
    Layers,
    NotNegative,
    Positive,
    Share,
    Steps,
    Unroll,
)
from quintet.options.declaration import FACTOR, USUAL, Needs, Options, option
from quintet.system.importing import CodeName

DEFAULTS: dict[str, Any] = {
    "model.policy_hidden": [64, 64],
    "model.activation": "relu",
    "model.layer_norm": True,
}
"""Defaults of options of the network."""

NEEDS = {
    f"model.{name}": Needs("an algorithm other than ddpg", lambda *_: False)
    for name in ("core", "shared_torso", "action_std", "action_std_init", "action_bounds")
}
"""Conditions that are never met, of network options without effect in DDPG."""


class Knobs(NamedTuple):
    """Options of the loss."""

    gamma: Knob
    reward_scale: Knob
    value_coef: Knob
    critic_l2_coef: Knob
    critic_huber_delta: Knob


_OU = Needs("ou_S in exploration", lambda o, _: o.noise.ou > 0)
_PARAM = Needs("adaptive-param_S in exploration", lambda o, _: o.noise.param > 0)
_MOVING = "normalize_returns and update_normalizers"


@final
class DDPGConfig(Options):
    """Options of DDPG."""

    # Data
    unroll_steps: Unroll = option(100, also=parts.UNROLL_STEPS)
    """steps of each stream between two sets of updates"""
    updates_per_env_step: float = option(
        0.5,
        gt=0,
        le=MOST_COUNT,
        faster="lower",
        needs=Needs("updates_per_cycle none", lambda o, _: o.updates_per_cycle is None),
        also="gradient_steps utd_ratio update_to_data_ratio",
    )
    """updates per env_step of all streams together"""
    updates_per_cycle: Count | None = option(None, faster="lower")
    """updates after unroll_steps of every stream, in place of updates_per_env_step"""
    replay_capacity_steps: parts.ReplayCapacitySteps = 1_000_000
    replay_start_steps: parts.ReplayStartSteps = 0
    warmup_policy: Literal["noise", "uniform"] = option("noise", needs="replay_start_steps > 0")
    """actions until replay_start_steps; noise: the policy's, with noise; uniform: random"""
    batch_size: parts.BatchSize = 64
    gamma: parts.Gamma = 0.99
    n_step: parts.NStep = 1
    reward_scale: parts.RewardScale = 1.0
    truncation_as_termination: parts.TruncationAsTermination = False

    # Networks and losses
    action_layer: Layers = option(
        2,
        needs=Needs("an encoder with hidden layers of quintet's", lambda _, f: not f.model.custom),
    )
    """number of the critic's hidden layer that reads the action; 1: the first"""
    output_init: Positive = 3e-3
    """bound of the uniform distribution of both last layers' first weights"""
    value_coef: Positive = option(2.0, tune=FACTOR, also=f"critic_loss_coef {parts.VALUE_COEF}")
    """weight of 0.5 * error^2"""
    critic_huber_delta: Positive | None = option(None, tune=FACTOR)
    """error beyond which the critic's loss is linear; none: squared everywhere"""
    critic_l2_coef: NotNegative = option(1e-2, tune=USUAL, also="critic_l2_reg")
    """weight of 0.5 * sum of squared critic kernels, without the last layer's"""

    # Exploration
    exploration: str = option(
        "adaptive-param_0.2",
        doc=noises.GRAMMAR,
        also="action_noise exploration_noise noise_type noise_std",
    )
    ou_theta: Positive = option(0.15, needs=_OU)
    """rate at which the OU process returns to 0"""
    ou_dt: Positive = option(0.01, needs=_OU)
    """time step of the OU process"""
    adapt_interval_updates: Steps = option(50, needs=_PARAM, also="param_noise_adaption_interval")
    """updates between two adaptations of parameter noise"""
    param_noise_factor: float = option(1.01, gt=1, le=LARGEST, needs=_PARAM)
    """factor of parameter noise's standard deviation per adaptation"""

    # Normalisation
    normalize_observations: parts.NormalizeObservations = True
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    normalizer_variance_epsilon: parts.ObservationVarianceEpsilon = 1e-2
    update_normalizers: bool = option(
        True, needs=(f"{parts.OBSERVATIONS} or normalize_returns", parts.HAS_STATISTICS)
    )
    """update the normalisers' statistics; false: keep those of init_from"""
    normalize_returns: bool = False
    """let the critic predict in units of the targets' standard deviation"""
    return_low: Bounded | None = None
    """lower bound of targets; none: no bound"""
    return_high: Bounded | None = None
    """upper bound of targets; none: no bound"""
    popart: bool = option(False, needs=_MOVING)
    """keep both critics' values when the targets' statistics change"""
    popart_step_size: Share | None = option(None, needs=_MOVING)
    """weight of a batch in the targets' statistics; none: all targets have the same weight"""

    # Optimisation
    actor_lr: parts.ActorLr = 1e-4
    critic_lr: parts.CriticLr = 1e-3
    lr_schedule: CodeName = parts.rates_schedule()
    adam_epsilon: parts.AdamEpsilon = 1e-8
    tau: parts.Tau = 0.01
    max_grad_norm: parts.MaxGradNorms = None
    check_numerics: parts.CheckNumerics = False

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

    @model_validator(mode="after")
    def _options_go_together(self) -> "DDPGConfig":
        low, high = self.return_range
        if low >= high:
            raise ValueError(
                f"return_low must be below return_high, got {low} and {high}; correct one of them"
            )
        return self


def check(
    config: DDPGConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults that no single field shows, one sentence each."""
    faults = []
    # The critic has the policy's layers unless it is given others.
    hidden = model.policy_hidden if model.value_hidden is None else model.value_hidden
    if not model.custom and hidden is not None and config.action_layer > len(hidden):
        faults.append(
            f"action_layer must be at most {len(hidden)}, the critic's last hidden layer, got "
            f"{config.action_layer}: after it values would be linear in the action; lower it or "
            "give model.value_hidden more layers"
        )
    return faults + parts.replay_faults(config, num_streams, total_env_steps)


def reward_scaling(config: DDPGConfig) -> str:
    """The way to scale rewards; "" if they are scaled already."""
    if config.normalize_returns or config.reward_scale != 1.0:
        return ""
    return "--normalize-returns true or --reward-scale scales them"


def warnings(config: DDPGConfig, model: ModelConfig) -> list[str]:
    """Warnings about options that are allowed but seldom wise."""
    if not config.noise.param or model.layer_norm:
        return []
    norm = f"LayerNorm in {model.encoder}" if model.custom else "--model.layer-norm true"
    return [
        f"parameter noise without {norm} moves some layers far more than others, since one size "
        "fits all of their weights only where their inputs are normalised"
    ]


def planned_updates(config: DDPGConfig, num_streams: int, total_env_steps: int) -> int:
    """Optimizer steps that are worth compiling."""
    steps = max(0, total_env_steps - config.start_steps)
    if config.updates_per_cycle is not None:
        return config.updates_per_cycle * (steps // (config.unroll_steps * num_streams))
    return int(config.updates_per_env_step * steps)
