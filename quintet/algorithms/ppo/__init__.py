"""Proximal policy optimization."""

from quintet.algorithms.ppo import config
from quintet.algorithms.registry import Algorithm, Late

ENTRY = Algorithm(
    config=config.PPOConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.ppo.learner:PPOLearner"),
    make_actor=Late("quintet.algorithms.ppo.learner:make_actor"),
    shared=config.shared,
    metrics=Late("quintet.algorithms.ppo.metrics:METRICS").get,
    judged=Late("quintet.algorithms.ppo.metrics:judged"),
    tunable=config.TUNABLE,
    tuned=config.TUNED,
    suited=config.suited,
    idle_in=config.idle_in,
    advice=config.advice,
    like=("ppo2", "a2c", "trpo", "reinforce", "recurrentppo", "maskableppo"),
)
