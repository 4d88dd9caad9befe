"""What the fixed work of every learner has."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor

from fixed_work import environments
from quintet.models.precision import Precision
from quintet.types import Spaces

Count = Annotated[int, Field(ge=1)]

_NATURE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


class Work(BaseModel):
    """Work of one learner: environment, network, learning rate, and times; and the same work in
    plain torch, whose speed is the limit for training.

    algo: the learner.
    learning_starts: transitions before the first update from replay; the measurement begins after
        them.
    warmup_seconds: least time before the measurement; seconds: its length.
    """

    # Entries for other programs are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str
    algo: str
    env_backend: str
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

    @field_validator("env_backend")
    @classmethod
    def _backend_can_be_measured(cls, name: str) -> str:
        if name not in environments.STEPS:
            raise ValueError(f"must be {' or '.join(environments.STEPS)}, got {name!r}")
        return name

    @model_validator(mode="after")
    def _convolutions_are_nature_s(self) -> Self:
        if self.obs == "image" and self.conv != _NATURE:
            raise ValueError(f"conv must be {_NATURE}, got {self.conv}")
        return self

    @property
    @abstractmethod
    def update_rows(self) -> int:
        """Transitions per optimizer step."""

    def options(self) -> dict[str, Any]:
        """Options of a run with exactly this work: no normalisers."""
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

    @abstractmethod
    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        """The bare policy's forward on observations of all environments."""

    @abstractmethod
    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        """One bare optimizer step on random rows."""


REPLAY_UNROLL_STEPS = 8
"""env_steps of a stream between two rounds of updates from replay."""


class ReplayWork(Work):
    """Work of learners that learn from replay after every step of their actors.

    minibatch: transitions per optimizer step.
    updates_per_step: updates per env_step, each one step of all networks and of their targets.
    tau: fraction by which the targets then move.
    buffer_size: transitions kept.
    """

    obs: Literal["vector"]
    optimizer: Literal["adam"]
    adam_eps: float
    minibatch: Count
    updates_per_step: float = Field(gt=0)
    tau: float
    buffer_size: Count
    learning_starts: Count

    @property
    def update_rows(self) -> int:
        return self.minibatch

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "adam_epsilon": self.adam_eps,
            "unroll_steps": REPLAY_UNROLL_STEPS,
            "batch_size": self.minibatch,
            "updates_per_env_step": self.updates_per_step,
            "replay_capacity_steps": self.buffer_size,
            "replay_start_steps": self.learning_starts,
            "actor_lr": self.learning_rate,
            "critic_lr": self.learning_rate,
            "tau": self.tau,
        }
