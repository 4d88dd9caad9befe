"""The fixed work of PPO."""

from pathlib import Path
from typing import Any, Literal, final

from quintet.algorithms.parts.work import OnPolicyWork


@final
class PPOWork(OnPolicyWork):
    """Work of PPO."""

    tables = Path(__file__).with_name("workloads.toml")

    algo: Literal["ppo"]

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "normalize_advantage": "minibatch",
            "reward_normalizer": "none",
            "clip_epsilon": self.clip,
        }
