"""Importance-weighted actor-learner architecture, with V-trace."""

from pathlib import Path

from quintet.algorithms.impala import config
from quintet.algorithms.parts.options import reward_divisor, reward_scaling
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric

OWN_METRICS = {"loss/aux/": Metric("1", "an auxiliary loss term")}

ENTRY = Algorithm(
    config=config.ImpalaConfig,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.impala.learner:ImpalaLearner"),
    make_actor=Late("quintet.algorithms.impala.learner:make_actor"),
    batch=("batch_unrolls", "unroll_steps"),
    shared="batch_unrolls",
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet.algorithms.impala.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet.algorithms.impala.metrics:judged"),
    defaults={"runtime.kind": "async"},
    reward_scaling=reward_scaling,
    reward_divisor=reward_divisor,
    like=("a3c", "vtrace"),
)
