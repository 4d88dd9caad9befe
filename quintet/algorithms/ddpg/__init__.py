"""Deep deterministic policy gradient."""

from pathlib import Path

from gymnasium import spaces as gym_spaces

from quintet.algorithms.ddpg import config
from quintet.algorithms.parts.critic_metrics import CRITIC_METRICS
from quintet.algorithms.registry import Algorithm, Late
from quintet.observe.metrics import Metric

OWN_METRICS = (
    CRITIC_METRICS
    | {
        "loss/actor": Metric(
            "reward units", "minus the critic's mean value of the policy's actions"
        ),
        "q/target_bound_frac": Metric(
            "1", "largest absolute target over the bound of returns, max |reward| / (1 - gamma)"
        ),
        "q/collected_mean": Metric("reward units", "mean value of the actions that were executed"),
        "exploration/action_mean": Metric(
            "half the action range", "mean of executed actions, over dimensions too"
        ),
        "exploration/action_std": Metric("half the action range", "std of executed actions"),
        "exploration/action_saturation_frac": Metric(
            "1", "share of actions within 0.01 of a bound"
        ),
        "exploration/param_noise_std": Metric("1", "standard deviation of parameter noise"),
        "exploration/param_noise_distance": Metric(
            "half the action range", "shift of actions by parameter noise, root mean square"
        ),
        "normalizer/target_mean": Metric("reward units", "running mean of the critic's targets"),
        "normalizer/target_std": Metric("reward units", "running std of the critic's targets"),
    }
    | {
        f"reference/{name}_{what}": Metric(unit, f"{which} of {meaning}, on a fixed batch")
        for name, unit, meaning in (
            ("q", "reward units", "the values of replayed actions"),
            ("actor_q", "reward units", "the values of the policy's actions"),
            ("action", "half the action range", "the policy's actions"),
            (
                "perturbed_action",
                "half the action range",
                "the actions of a policy with parameter noise",
            ),
        )
        for what, which in (("mean", "mean"), ("std", "standard deviation"))
    }
)

ENTRY = Algorithm(
    config=config.DDPGConfig,
    check=config.check,
    planned_updates=config.planned_updates,
    make_learner=Late("quintet.algorithms.ddpg.learner:DDPGLearner"),
    make_actor=Late("quintet.algorithms.ddpg.actor:make_actor"),
    shared="batch_size",
    presets=Path(__file__).with_name("presets.yaml"),
    metrics=Late("quintet.algorithms.ddpg.metrics:METRICS").get,
    own_metrics=OWN_METRICS,
    judged=Late("quintet.algorithms.ddpg.metrics:judged"),
    symptoms=Late("quintet.algorithms.ddpg.metrics:symptoms"),
    actions=(gym_spaces.Box,),
    needs=config.NEEDS,
    defaults=config.DEFAULTS,
    reward_scaling=config.reward_scaling,
    warnings=config.warnings,
    like=("td3", "sac", "tqc", "d4pg"),
)
