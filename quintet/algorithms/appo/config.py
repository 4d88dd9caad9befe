"""Options of APPO, and checks of their combinations.

The defaults are those of Sample Factory's first version (arXiv 2006.11751);
presets.yaml beside this file has presets for kinds of environments.
"""

import math
from typing import Annotated, Literal, NamedTuple, final

from gymnasium.spaces import Box
from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintet.algorithms.parts.options import (
    Idle,
    Knob,
    Shared,
    idle_normalizers,
    refuse_idle,
    schedule_check,
)
from quintet.bounds import LARGEST, MOST_COUNT, MOST_ROWS, MOST_UNROLL, Bounded
from quintet.models.config import ModelConfig, torso_faults
from quintet.protocols import UpdateAdvice
from quintet.spaces import action_leaves
from quintet.system.importing import CodeName
from quintet.types import Spaces

DEFAULTS = {"runtime.kind": "async"}
"""Of options of the runtime."""

MAX_POLICY_LAG_UPDATES = 40
"""Rows of weights that are more updates old are not learned from (``runtime.max_policy_lag``);
where the iterations that one unroll of every stream takes, and one more, have more updates than
this, their number.
"""


class Knobs(NamedTuple):
    """Options of the loss as knobs; a cap or clip of none is infinity.

    first: no option: 1 at the first step of an iteration, else 0.
    """

    gamma: Knob
    lambda_: Knob
    rho_bar: Knob
    c_bar: Knob
    clip_ratio: Knob
    value_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    kl_coef: Knob
    first: Knob


TUNABLE = frozenset(
    {
        "gamma", "gae_lambda", "lambda_", "rho_bar", "c_bar", "clip_ratio", "value_clip",
        "value_coef", "entropy_coef", "kl_coef", "kl_target", "learning_rate", "adam_beta1",
        "adam_beta2", "adam_epsilon", "max_grad_norm", "num_epochs", "early_stop_tolerance",
    }
)  # fmt: skip
"""Options that may change during a run."""

TUNED = ("learning_rate", "entropy_coef", "value_coef", "max_grad_norm", "clip_ratio", "value_clip")
"""What a population tunes of these where it names nothing."""


@final
class APPOConfig(BaseModel):
    """Options of APPO; an option that would have no effect is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Data
    unroll_steps: int = Field(
        32, ge=1, le=MOST_UNROLL, description="steps of a stream that make an unroll"
    )
    bptt_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_UNROLL,
        description="rows of a chunk: traces, and gradients of a recurrent network, go no further; "
        "none: the unroll",
    )
    minibatch_steps: int = Field(
        1024, ge=1, le=MOST_ROWS, description="rows per optimizer step, whole chunks"
    )
    minibatches_per_iteration: int = Field(
        1, ge=1, le=MOST_COUNT, description="minibatches that are collected before each iteration"
    )
    num_epochs: int = Field(1, ge=1, le=MOST_COUNT, description="passes over an iteration's rows")
    early_stop_tolerance: float = Field(
        1e-6,
        ge=0,
        le=LARGEST,
        description="no more passes once the sum of the mean policy and exploration losses changes "
        "by less from one to the next",
    )

    # Targets
    gamma: float = Field(0.99, ge=0, le=1, description="discount factor")
    use_vtrace: bool = Field(
        True, description="V-trace with the values of the moment; false: GAE with recorded ones"
    )
    rho_bar: float | None = Field(
        1.0, gt=0, le=LARGEST, description="cap of the ratio in V-trace's errors; none: no cap"
    )
    c_bar: float | None = Field(
        1.0,
        ge=0,
        le=LARGEST,
        description="cap of the ratio in V-trace's traces, at most rho_bar; none: no cap",
    )
    lambda_: float = Field(1.0, ge=0, le=1, description="decay of V-trace's traces")
    advantage_includes_rho: bool = Field(
        True,
        description="V-trace's advantage holds the capped ratio, which the clipped objective has "
        "once more",
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="of GAE, where use_vtrace is false")
    truncation_as_termination: bool = Field(
        False, description="no bootstrap at time limits; only to compare with old published numbers"
    )

    # Loss
    clip_ratio: float = Field(
        0.1, gt=0, le=LARGEST, description="c: the ratio is clipped to [1 / (1 + c), 1 + c]"
    )
    ratio_clamp: tuple[Bounded, Bounded] | None = Field(
        (0.05, 20.0),
        description="bounds of the ratio everywhere; no gradient flows outside; none: no bounds",
    )
    value_clip: float | None = Field(
        0.2, gt=0, le=LARGEST, description="clip around the recorded value; none: off"
    )
    value_coef: float = Field(1.0, ge=0, le=LARGEST, description="weight of 0.5 * error^2")
    exploration_loss: Literal["entropy", "symmetric_kl"] = Field(
        "entropy",
        description="symmetric_kl: half of KL(pi, uniform) + KL(uniform, pi), at most 30 nats per "
        "row",
    )
    entropy_coef: float = Field(
        0.003, ge=0, le=LARGEST, description="weight of the exploration loss"
    )
    kl_coef: float = Field(
        0.0, ge=0, le=LARGEST, description="weight of KL(pi, mu), mu the policy that acted"
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
    learning_rate: float = Field(1e-4, gt=0, le=LARGEST, description="Adam's rate")
    lr_schedule: Annotated[CodeName, schedule_check("constant", "linear", "kl_adaptive")] = Field(
        "constant",
        description="constant; linear: to 0 at the end of the budget; kl_adaptive: by the mean KL "
        "of the updated policy; or an import string of a function of your own, of the share of the "
        "budget that is done, which gives the factor of the rate",
    )
    kl_target: float = Field(
        0.008, gt=0, le=LARGEST, description="mean KL(mu, pi) that kl_adaptive aims at"
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of Adam's mean of gradients")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="decay of Adam's mean of squares")
    adam_epsilon: float = Field(1e-6, gt=0, le=LARGEST, description="in Adam's denominator")
    max_grad_norm: float | None = Field(
        4.0, gt=0, le=LARGEST, description="bound of the global gradient norm"
    )
    check_numerics: bool = Field(
        False, description="in every update, raise at a NaN or infinite tensor by its name"
    )

    @property
    def chunk_steps(self) -> int:
        return self.bptt_steps or self.unroll_steps

    @property
    def records_distribution(self) -> bool:
        """Whether the exact KL enters the loss or a decision."""
        return self.kl_coef > 0 or self.lr_schedule == "kl_adaptive"

    @property
    def records_value(self) -> bool:
        """Whether the value of the network that acted is read."""
        return not self.use_vtrace or (self.value_clip is not None and self.value_coef > 0)

    @property
    def requirements(self) -> dict[str, tuple[bool, str]]:
        """Whether each option has an effect beside the others, and what it requires for that."""
        observations = self.normalize_observations or self.normalize_pictures
        rewards = self.reward_normalizer != "none"
        normalizes = observations or rewards
        vtrace, discounts = self.use_vtrace, self.gamma > 0
        traces = vtrace and discounts and self.chunk_steps > 1
        return {
            "rho_bar": (vtrace, "use_vtrace"),
            "advantage_includes_rho": (vtrace, "use_vtrace"),
            "c_bar": (
                traces and self.lambda_ > 0,
                "use_vtrace, lambda_ > 0, gamma > 0 and chunks of several steps",
            ),
            "lambda_": (
                traces and self.c_bar != 0,
                "use_vtrace, c_bar > 0, gamma > 0 and chunks of several steps",
            ),
            "gae_lambda": (
                not vtrace and discounts and self.unroll_steps > 1,
                "use_vtrace=false, gamma > 0 and unroll_steps > 1",
            ),
            "value_clip": (self.value_coef > 0, "value_coef > 0"),
            "exploration_loss": (self.entropy_coef > 0, "entropy_coef > 0"),
            "early_stop_tolerance": (self.num_epochs > 1, "num_epochs > 1"),
            "kl_target": (self.lr_schedule == "kl_adaptive", "lr_schedule=kl_adaptive"),
            "observation_clip": (observations, "normalize_observations or normalize_pictures"),
            "reward_norm_clip": (rewards, "a reward_normalizer"),
            "normalizer_variance_epsilon": (normalizes, "a normaliser"),
            "update_normalizers": (normalizes, "a normaliser"),
        }  # fmt: skip

    @model_validator(mode="after")
    def _options_go_together(self) -> "APPOConfig":
        rho_bar, c_bar = (math.inf if bar is None else bar for bar in (self.rho_bar, self.c_bar))
        if rho_bar < c_bar:
            raise ValueError(
                f"rho_bar must be at least c_bar, got rho_bar={self.rho_bar} and "
                f"c_bar={self.c_bar}; raise rho_bar or lower c_bar"
            )
        if self.ratio_clamp is not None:
            low, high = self.ratio_clamp
            if not 0 < low <= 1 <= high:
                raise ValueError(
                    "ratio_clamp must be two numbers, one above 0 and at most 1, one of at least "
                    f"1, got {low:g} and {high:g}; correct them"
                )
        refuse_idle(self, self.requirements)
        return self


def idle_in(config: APPOConfig, model: ModelConfig, spaces: Spaces) -> dict[str, Idle]:
    """Options without effect on a resolved network in these spaces."""
    wanted = config.normalize_observations, config.normalize_pictures
    rewards = config.reward_normalizer != "none"
    idle = idle_normalizers(type(config), wanted, model, spaces, others=rewards)
    if any(isinstance(leaf, Box) for leaf in action_leaves(spaces.action)):
        required = f"actions that are all discrete, the action space is {spaces.action}"
        idle["exploration_loss"] = Idle("entropy", required)
    return idle


def check(
    config: APPOConfig,
    model: ModelConfig,
    num_streams: int,  # noqa: ARG001 (batches are made of any streams' unrolls)
    total_env_steps: int,
) -> list[str]:
    """Faults beside the network, the streams and the budget, one sentence each."""
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
    if total_env_steps < batch:
        faults.append(
            f"total_env_steps must be at least one iteration of {batch} steps, got "
            f"{total_env_steps}; raise it, or lower minibatch_steps or minibatches_per_iteration"
        )
    return faults + torso_faults(model)


def suited(
    config: APPOConfig,
    model: ModelConfig,  # noqa: ARG001
    num_streams: int,  # noqa: ARG001 (batches are made of any streams' unrolls)
    learners: int,
    free: frozenset[str],
) -> dict[str, int]:
    """The largest minibatch, up to the one that nobody gave, of whole chunks for each learner, of
    which iterations are whole unrolls; nothing where it fits already, or none does.
    """
    size, unit = config.minibatch_steps, learners * config.chunk_steps
    if "minibatch_steps" not in free:
        return {}
    whole = math.lcm(
        unit, config.unroll_steps // math.gcd(config.unroll_steps, config.minibatches_per_iteration)
    )
    best = size // whole * whole
    return {} if best in (0, size) else {"minibatch_steps": best}


def planned_updates(
    config: APPOConfig,
    num_streams: int,  # noqa: ARG001
    total_env_steps: int,
) -> int:
    """All optimizer steps, as if every row were valid; none with `check_numerics`, which reads
    tensors that a compiled graph hides.
    """
    if config.check_numerics:
        return 0
    return total_env_steps * config.num_epochs // config.minibatch_steps


def advice(
    config: APPOConfig,
    model: ModelConfig,  # noqa: ARG001
    batch_steps: int,  # noqa: ARG001
) -> UpdateAdvice:
    """Fewer passes and larger minibatches save time."""
    less = [f"fewer passes than {config.num_epochs} (--num-epochs)"] * (config.num_epochs > 1)
    larger = f"larger minibatches (--minibatch-steps {2 * config.minibatch_steps})"
    return UpdateAdvice(less_work=tuple(less), larger_batches=(larger,))


def shared(config: APPOConfig, *_: object) -> Shared:
    """Several learners share the chunks of a minibatch."""
    return Shared("minibatch_steps", config.minibatch_steps, config.chunk_steps)
