"""Advantage actor-critic: one gradient step from each unroll (Mnih et al., arXiv 1602.01783)."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from quintet.algorithms.registry import Algorithm, Late


class A2CConfig(BaseModel):
    """Options of A2C."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gamma: float = Field(0.98, ge=0, le=1, description="discount factor")
    unroll_steps: int = Field(8, ge=1, le=4096, description="steps of each stream per update")
    value_coef: float = Field(0.5, ge=0, le=1e30, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.01, ge=0, le=1e30, description="weight of the entropy bonus")
    learning_rate: float = Field(5e-3, gt=0, le=1e30, description="rate of Adam, falls to 0")
    adam_epsilon: float = Field(1e-5, gt=0, le=1e30, description="term in Adam's denominator")
    max_grad_norm: float = Field(0.5, gt=0, le=1e30, description="bound of the gradient's norm")
    replay_ratio: float = Field(0.0, ge=0, le=100, description="replayed batches per fresh batch")


ENTRY = Algorithm(
    config=A2CConfig,
    make_learner=Late("quintet_a2c.learner:A2CLearner"),
    make_actor=Late("quintet_a2c.learner:make_actor"),
    metrics=lambda: ("loss/policy", "loss/value", "loss/total", "policy/entropy"),
    presets=Path(__file__).with_name("presets.yaml"),
)
