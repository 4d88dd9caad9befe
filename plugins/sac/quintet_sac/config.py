"""Options of SAC, and checks of their combinations."""

from typing import Any, NamedTuple, final

from quintet.algorithms.parts import options as parts
from quintet.algorithms.parts.options import Knob
from quintet.models.config import ModelConfig
from quintet.options.bounds import MOST_COUNT, Bounded, Count, Positive, Unroll
from quintet.options.declaration import USUAL, Needs, Options, option
from quintet.system.importing import CodeName

DEFAULTS: dict[str, Any] = {
    "env.num_streams": 1,
    "model.policy_hidden": [256, 256],
    "model.activation": "relu",
    "model.action_std": "state_dependent",
}
"""Defaults of options of the network and of environments."""

NEEDS = {
    f"model.{name}": Needs("an algorithm other than sac", lambda *_: False)
    for name in ("core", "shared_torso", "action_bounds")
}
"""Conditions that are never met, of network options without effect in SAC."""


class Knobs(NamedTuple):
    """Options of the loss."""

    gamma: Knob
    reward_scale: Knob
    temperature: Knob


@final
class SACConfig(Options):
    """Options of SAC."""

    # Data
    unroll_steps: Unroll = option(8, also=parts.UNROLL_STEPS)
    """steps of each stream between two sets of updates"""
    updates_per_env_step: float = option(
        1.0,
        gt=0,
        le=MOST_COUNT,
        faster="lower",
        also="gradient_steps utd_ratio update_to_data_ratio",
    )
    """updates per env_step of all streams together"""
    replay_capacity_steps: parts.ReplayCapacitySteps = 1_000_000
    replay_start_steps: parts.ReplayStartSteps = 1_000  # actions are uniform until then
    noise_correlation: parts.NoiseCorrelation = 0.0
    batch_size: parts.BatchSize = 256
    gamma: parts.Gamma = 0.99
    n_step: parts.NStep = 1
    reward_scale: parts.RewardScale = 1.0
    truncation_as_termination: parts.TruncationAsTermination = False

    # Temperature
    learn_temperature: bool = option(True, also="autotune auto_alpha automatic_entropy_tuning")
    """adapt the temperature, the weight of entropy against rewards, to target_entropy"""
    temperature: Positive = option(
        1.0,
        needs=Needs("learn_temperature false", lambda o, _: not o.learn_temperature),
        tune=USUAL,
        also="alpha ent_coef entropy_coef",
    )
    """weight of the policy's entropy in nats against rewards"""
    temperature_init: Positive = option(
        1.0, needs="learn_temperature", also="initial_alpha", tensors="network/temperature."
    )
    """temperature at the start; that of init_from if its run had the same temperature_init"""
    target_entropy: Bounded | None = option(None, needs="learn_temperature")
    """entropy to keep, in nats of actions in [-1, 1]; none: minus the number of dimensions"""

    # Normalisation
    normalize_observations: parts.NormalizeObservations = False
    normalize_pictures: parts.NormalizePictures = False
    observation_clip: parts.ObservationClip = 5.0
    normalizer_variance_epsilon: parts.ObservationVarianceEpsilon = 1e-2
    update_normalizers: parts.UpdateObservationStatistics = True

    # Optimisation
    actor_lr: parts.ActorLr = 3e-4
    critic_lr: parts.CriticLr = 3e-4
    temperature_lr: Positive = option(
        3e-4, needs="learn_temperature", tune=USUAL, also="alpha_lr lr learning_rate"
    )
    """Adam's rate for the logarithm of the temperature"""
    lr_schedule: CodeName = parts.rates_schedule()
    adam_epsilon: parts.AdamEpsilon = 1e-8
    tau: parts.Tau = 0.005
    policy_delay: Count = option(1, faster="higher", also="actor_update_interval policy_frequency")
    """updates of the critics per update of policy and temperature"""
    max_grad_norm: parts.MaxGradNorms = None
    check_numerics: parts.CheckNumerics = False

    @property
    def start_steps(self) -> int:
        """env_steps that are stored before the first update."""
        return max(self.replay_start_steps, self.batch_size)


def check(
    config: SACConfig, model: ModelConfig, num_streams: int, total_env_steps: int
) -> list[str]:
    """Faults that no single field shows, one sentence each."""
    faults = []
    hidden = model.policy_hidden if model.value_hidden is None else model.value_hidden
    if not model.custom and hidden == ():
        faults.append("model.value_hidden must have a layer for the action, got none: give it one")
    return faults + parts.replay_faults(config, num_streams, total_env_steps)


def reward_scaling(config: SACConfig) -> str:
    """The way to scale rewards; "" if they are scaled already."""
    return "scale them by --reward-scale" if config.reward_scale == 1.0 else ""


def planned_updates(config: SACConfig, num_streams: int, total_env_steps: int) -> int:  # noqa: ARG001
    """Optimizer steps that are worth compiling."""
    return int(config.updates_per_env_step * max(0, total_env_steps - config.start_steps))
