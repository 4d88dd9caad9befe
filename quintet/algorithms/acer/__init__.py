"""ACER: actor-critic with experience replay."""

from quintet.algorithms.acer import config
from quintet.algorithms.registry import Algorithm, Late

ENTRY = Algorithm(
    config=config.ACERConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.acer.learner:ACERLearner"),
    make_actor=Late("quintet.algorithms.acer.learner:make_actor"),
    shared=config.shared,
    metrics=Late("quintet.algorithms.acer.metrics:METRICS").get,
    judged=Late("quintet.algorithms.acer.metrics:judged"),
    tunable=config.TUNABLE,
    tuned=config.TUNED,
    idle_in=config.idle_in,
    defaults=config.DEFAULTS,
    advice=config.advice,
    like=("dqn", "qrdqn", "rainbow", "r2d2"),
)
