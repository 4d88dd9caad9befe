"""The fixed work on which speed is measured, and its configuration."""

import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from quintet.config.command import parse
from quintet.config.load import Layer
from quintet.errors import ConfigError

ENVIRONMENT_VARIABLE = "QUINTET_BENCH_WORKLOADS"
"""Names another file of workloads, for comparisons between programs that read the same one."""

FREE = (
    "runtime.threads",
    "runtime.precision",
    "runtime.actor_precision",
    "runtime.compile",
    "runtime.kind",
    "runtime.lag",
    "runtime.num_workers",
    "runtime.actor_threads",
    "runtime.inference",
    "runtime.slots",
    "runtime.prefetch_batches",
    "env.num_threads",
    "env.streams_per_group",
)
"""Options that change how the work is scheduled, not the work itself."""

Count = Annotated[int, Field(ge=1)]

REPLAY_UNROLL_STEPS = 8
"""env_steps of a stream between two rounds of updates from replay."""


class _Work(BaseModel):
    """What all workloads have: environment, network, learning rate, and times.

    learning_starts: transitions before the first update from replay; the measurement begins after
        them.
    warmup_seconds, seconds: least time before the measurement, and its length.
    """

    # Entries for other programs are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str
    env_backend: Literal["envpool", "gymnasium"]
    env_id: str
    num_envs: Count
    obs: Literal["vector", "image"]
    conv: list[tuple[int, int, int]] | None = None
    hidden: tuple[Count, ...]
    activation: Literal["tanh", "relu"]
    learning_rate: float
    gamma: float
    learning_starts: int = Field(0, ge=0)
    warmup_seconds: float = Field(gt=0)
    seconds: float = Field(gt=0)

    def _common(self) -> dict[str, Any]:
        """Options for this work and nothing else: no normalisers."""
        return {
            "preset": "none",
            # Never reached; `seconds` ends the run.
            "total_env_steps": 10**12,
            "env.id": self.env_id,
            "env.backend": self.env_backend,
            "env.num_streams": self.num_envs,
            "model.encoder": "nature_cnn" if self.obs == "image" else "mlp",
            "model.policy_hidden": self.hidden,
            "model.activation": self.activation,
            "normalize_observations": False,
            "gamma": self.gamma,
        }


@final
class OnPolicyWork(_Work):
    """Work of PPO or APPO.

    minibatch: transitions per optimizer step.
    value_coef: weight of the squared error (quintet's loss has half of it).
    rollout: env_steps of each environment per iteration.
    """

    algo: Literal["ppo", "appo"]
    optimizer: Literal["adam"]
    adam_eps: float
    minibatch: Count
    rollout: Count
    epochs: Count
    shared_torso: bool
    gae_lambda: float
    clip: float
    value_coef: float
    entropy_coef: float
    max_grad_norm: float

    @property
    def learner(self) -> str:
        """Quintet's learner for this work."""
        return self.algo

    def layer(self) -> Layer:
        """The options; no decay of the learning rate."""
        both = {
            "adam_epsilon": self.adam_eps,
            "model.shared_torso": self.shared_torso,
            "unroll_steps": self.rollout,
            "entropy_coef": self.entropy_coef,
            "learning_rate": self.learning_rate,
            "lr_schedule": "constant",
            "max_grad_norm": self.max_grad_norm,
        }
        own = self._ppo() if self.algo == "ppo" else self._appo()
        return Layer(f"workload {self.name}", self._common() | both | own)

    def _ppo(self) -> dict[str, Any]:
        return {
            "minibatch_steps": self.minibatch,
            "num_epochs": self.epochs,
            "normalize_advantage": "minibatch",
            "reward_normalizer": "none",
            "gae_lambda": self.gae_lambda,
            "clip_epsilon": self.clip,
            "value_coef": 2.0 * self.value_coef,
        }

    def _appo(self) -> dict[str, Any]:
        return {
            "runtime.kind": "async",
            "minibatch_steps": self.minibatch,
            "num_epochs": self.epochs,
            "use_vtrace": False,
            "gae_lambda": self.gae_lambda,
            "clip_ratio": self.clip,
            "value_clip": None,
            "value_coef": 2.0 * self.value_coef,
        }


@final
class ReplayWork(_Work):
    """Work of DDPG.

    minibatch: transitions per optimizer step.
    updates_per_step: each one step of both networks and of their targets.
    tau: how far the targets then go.
    noise_std: of Gaussian noise on actions.
    buffer_size: transitions kept.
    """

    algo: Literal["ddpg"]
    obs: Literal["vector"]
    optimizer: Literal["adam"]
    adam_eps: float
    minibatch: Count
    updates_per_step: float = Field(gt=0)
    tau: float
    noise_std: float
    buffer_size: Count
    learning_starts: Count

    @property
    def learner(self) -> str:
        """Quintet's learner for this work."""
        return self.algo

    def layer(self) -> Layer:
        """The options."""
        own = {
            "model.layer_norm": False,
            "adam_epsilon": self.adam_eps,
            "unroll_steps": REPLAY_UNROLL_STEPS,
            "batch_size": self.minibatch,
            "updates_per_env_step": self.updates_per_step,
            "replay_capacity_steps": self.buffer_size,
            "replay_start_steps": self.learning_starts,
            "warmup_policy": "uniform",
            "exploration": f"normal_{self.noise_std:g}",
            "action_layer": 1,
            "critic_l2_coef": 0.0,
            "actor_lr": self.learning_rate,
            "critic_lr": self.learning_rate,
            "tau": self.tau,
        }
        return Layer(f"workload {self.name}", self._common() | own)


@final
class ACERWork(_Work):
    """Work of ACER, whose batches are an unroll of every environment, fresh or replayed.

    rollout: env_steps of each environment per unroll.
    replay_ratio: mean number of updates from replay after each fresh one.
    q_coef: weight of half the squared error.
    trust_region: whether the average policy bounds updates; it follows by 1 - average_decay.
    rmsprop_decay, rmsprop_eps: of TensorFlow's form, whose mean of squares begins with 1.
    buffer_size: transitions kept, of all environments.
    """

    algo: Literal["acer"]
    optimizer: Literal["rmsprop"]
    rmsprop_decay: float
    rmsprop_eps: float
    rollout: Count
    replay_ratio: float = Field(gt=0)
    shared_torso: bool
    q_coef: float
    entropy_coef: float
    importance_clip: float
    trust_region: bool
    trust_region_delta: float
    average_decay: float
    max_grad_norm: float
    buffer_size: Count
    learning_starts: Count

    @property
    def learner(self) -> str:
        """Quintet's learner for this work."""
        return self.algo

    @property
    def minibatch(self) -> int:
        """Transitions per optimizer step."""
        return self.rollout * self.num_envs

    def layer(self) -> Layer:
        """The options; no decay of the learning rate."""
        region = {
            "trust_region_delta": self.trust_region_delta,
            "average_decay": self.average_decay,
        }
        own = {
            "model.shared_torso": self.shared_torso,
            "unroll_steps": self.rollout,
            "replay_ratio": self.replay_ratio,
            "replay_capacity_steps_per_stream": self.buffer_size // self.num_envs,
            "replay_start_steps_per_stream": self.learning_starts // self.num_envs,
            "q_coef": self.q_coef,
            "entropy_coef": self.entropy_coef,
            "importance_clip": self.importance_clip,
            "trust_region": self.trust_region,
            "learning_rate": self.learning_rate,
            "lr_schedule": "constant",
            "rmsprop_decay": self.rmsprop_decay,
            "rmsprop_epsilon": self.rmsprop_eps,
            "max_grad_norm": self.max_grad_norm,
            **(region if self.trust_region else {}),
        }
        return Layer(f"workload {self.name}", self._common() | own)


Workload = OnPolicyWork | ReplayWork | ACERWork
"""One table of a workloads file."""

_TABLE: TypeAdapter[Workload] = TypeAdapter(Annotated[Workload, Field(discriminator="algo")])

_ALGOS = frozenset(
    algo for kind in get_args(Workload) for algo in get_args(kind.model_fields["algo"].annotation)
)


def read(name: str) -> Workload:
    """The workload of this name, from the file that ENVIRONMENT_VARIABLE names, else quintet's own;
    raises ConfigError if there is none, or quintet can't do its work.
    """
    tables = _tables()
    if name not in tables:
        raise ConfigError(f"a workload must be one of {', '.join(names())}; got {name!r}")
    try:
        work = _TABLE.validate_python({**tables[name], "name": name})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}" for fault in error.errors()
        )
        raise ConfigError(f"workload {name} can't be run: {faults}") from error
    nature = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    if work.obs == "image" and work.conv != nature:
        raise ConfigError(f"workload {name} can't be run: conv must be {nature}, got {work.conv}")
    if not isinstance(work, OnPolicyWork):
        return work
    if work.algo == "appo" and work.minibatch % work.rollout:
        raise ConfigError(
            f"workload {name} can't be run: minibatches of whole rollouts of {work.rollout} are "
            f"required, got {work.minibatch}"
        )
    return work


def scheduling(arguments: list[str]) -> Layer:
    """The scheduling options of a command line; raises ConfigError if there are others."""
    asked = parse("bench", ["ppo", *arguments])
    layer = asked.options
    fixed = [name for name in layer.values if name not in FREE] + ["config"] * bool(asked.files)
    if fixed:
        raise ConfigError(
            f"a workload fixes all but {', '.join(FREE)}; got {', '.join(fixed)}; leave it out"
        )
    return layer


def names() -> list[str]:
    """The workloads that quintet can run."""
    return [name for name, table in _tables().items() if table.get("algo") in _ALGOS]


def _tables() -> dict[str, Any]:
    given = os.environ.get(ENVIRONMENT_VARIABLE)
    place = Path(given) if given else files("quintet.bench") / "workloads.toml"
    try:
        return tomllib.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ENVIRONMENT_VARIABLE} must name a TOML file: {error}") from error
