"""The fixed work of APPO."""

from pathlib import Path
from typing import Any, Literal, Self, final

from pydantic import model_validator

from quintet.algorithms.parts.work import OnPolicyWork


@final
class APPOWork(OnPolicyWork):
    """Work of APPO; its minibatches are whole rollouts."""

    tables = Path(__file__).with_name("workloads.toml")

    algo: Literal["appo"]

    @model_validator(mode="after")
    def _minibatches_are_whole_rollouts(self) -> Self:
        if self.minibatch % self.rollout:
            raise ValueError(
                f"minibatch must be of whole rollouts of {self.rollout}, got {self.minibatch}"
            )
        return self

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "runtime.kind": "async",
            "use_vtrace": False,
            "clip_epsilon": self.clip,
            "value_clip": None,
        }
