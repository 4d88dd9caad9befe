"""Deep deterministic policy gradient."""

from gymnasium import spaces as gym_spaces

from quintet.algorithms.ddpg import config
from quintet.algorithms.registry import Algorithm, Late

ENTRY = Algorithm(
    config=config.DDPGConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.ddpg.learner:DDPGLearner"),
    make_actor=Late("quintet.algorithms.ddpg.actor:make_actor"),
    shared=config.shared,
    metrics=Late("quintet.algorithms.ddpg.metrics:METRICS").get,
    judged=Late("quintet.algorithms.ddpg.metrics:judged"),
    tunable=config.TUNABLE,
    tuned=config.TUNED,
    idle_in=config.idle_in,
    actions=(gym_spaces.Box,),
    without=config.WITHOUT,
    defaults=config.DEFAULTS,
    advice=config.advice,
    warnings=config.warnings,
    like=("td3", "sac", "tqc", "d4pg"),
)
