"""APPO: asynchronous proximal policy optimisation."""

from quintet.algorithms.appo import config
from quintet.algorithms.registry import Algorithm, Late

ENTRY = Algorithm(
    config=config.APPOConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.appo.learner:APPOLearner"),
    make_actor=Late("quintet.algorithms.appo.learner:make_actor"),
    shared=config.shared,
    metrics=Late("quintet.algorithms.appo.metrics:METRICS").get,
    judged=Late("quintet.algorithms.appo.metrics:judged"),
    tunable=config.TUNABLE,
    tuned=config.TUNED,
    suited=config.suited,
    idle_in=config.idle_in,
    defaults=config.DEFAULTS,
    advice=config.advice,
)
