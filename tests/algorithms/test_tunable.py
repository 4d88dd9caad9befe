"""Options that a population may change during a run take effect at the next update, in eager and in
compiled learners alike, and compile nothing anew.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import impala_helpers
import ppo_helpers
import pytest
import torch
from conformance_helpers import CONTINUOUS, NUMBERS, PLUGINS, Case, Task
from gymnasium import spaces as gym
from pydantic import BaseModel
from torch import Tensor

from quintet.algorithms.acer.config import ACERConfig
from quintet.algorithms.appo.config import APPOConfig
from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.parts.setup import Compute
from quintet.algorithms.ppo.config import PPOConfig
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.declaration import Facts, idle, require_tunable, tunable
from quintet.types import Rollout

SHARED = ModelConfig(policy_hidden=(8,), value_hidden=(6,), shared_torso=True)
# Every number that may be off is on, and near enough to what happens to make a difference.
PPO = PPOConfig(
    minibatch_steps=16,
    num_epochs=2,
    unroll_steps=16,
    lr_schedule="constant",
    clip_epsilon=0.1,
    value_clip=0.1,
    entropy_coef=0.1,
    policy_l2_coef=0.01,
    value_l2_coef=0.01,
    shared_l2_coef=0.01,
    log_prob_clip=3.0,
    kl_coef_init=1.0,
    kl_target=0.035,
    kl_cutoff_factor=0.5,
    kl_cutoff_coef=10.0,
    adam_epsilon=1e-3,
    target_kl=0.5,
)
OTHER = {
    "gamma": 0.9,
    "gae_lambda": 0.5,
    "vtrace_lambda": 0.5,
    "retrace_lambda": 0.5,
    "num_epochs": 3,
    "target_kl": 1e-6,
    "kl_tolerance": 0.9,
    "log_prob_clip": 1.0,
    "c_bar": 0.9,
    "rho_bar": 1.5,
    "pg_rho_bar": 0.5,
    "max_grad_norm": 0.01,
    "rmsprop_decay": 0.5,
    "adam_beta1": 0.5,
    "adam_beta2": 0.9,
    "tau": 0.5,
    "importance_clip": 0.5,
    "early_stop_tolerance": 1e9,
    "trust_region_delta": 10.0,
}
"""Values that differ enough; of the others twice what they are."""

IMPALA = ImpalaConfig(
    unroll_steps=16,
    batch_unrolls=4,
    vtrace_lambda=0.9,
    entropy_coef=0.1,
    rmsprop_momentum=0.5,
    lr_schedule="constant",
)
ADAM = IMPALA.model_copy(update={"optimizer": "adam", "rmsprop_momentum": 0.0})


CHOICE = Task(NUMBERS, gym.Discrete(3))
APPO: dict[str, Any] = {
    "num_epochs": 4, "lr_schedule": "kl_adaptive", "kl_target": 1e-9, "kl_coef": 0.1,
    "value_clip": 0.1, "entropy_coef": 0.1, "adam_epsilon": 1e-3, "early_stop_tolerance": 1e-9,
    "max_grad_norm": 1.0, "learning_rate": 1e-2,
}  # fmt: skip
OF_CASES = {
    "appo-vtrace": Case("appo", CHOICE, APPO | {"use_vtrace": True}),
    "appo-gae": Case("appo", CHOICE, APPO | {"use_vtrace": False}),
    "ddpg": Case(
        "ddpg", CONTINUOUS,
        {
            "exploration": "none", "critic_huber_delta": 0.3, "max_grad_norm": 0.5,
            "adam_epsilon": 1e-3, "actor_lr": 1e-2, "critic_lr": 1e-2, "tau": 0.1,
            "updates_per_env_step": 0.2,
        },
        network={"activation": "relu"},
    ),
    "sac": Case(
        "sac", CONTINUOUS,
        {
            "learn_temperature": False, "temperature": 0.3, "max_grad_norm": 0.5,
            "adam_epsilon": 1e-3, "actor_lr": 1e-2, "critic_lr": 1e-2, "tau": 0.1,
            "updates_per_env_step": 0.2,
        },
    ),
    "sac-learned": Case(
        "sac", CONTINUOUS,
        {"temperature_lr": 1e-2, "adam_epsilon": 1e-3, "max_grad_norm": 0.5, "tau": 0.1,
         "updates_per_env_step": 0.2},
    ),
    "acer": Case(
        "acer", CHOICE,
        {
            "trust_region_delta": 1e-3, "importance_clip": 1.0, "c_bar": 0.5,
            "retrace_lambda": 0.9,
            "entropy_coef": 0.1, "tau": 0.1, "lr_schedule": "constant",
            "rmsprop_epsilon": 1e-2, "max_grad_norm": 1.0, "learning_rate": 0.1,
        },
    ),
}  # fmt: skip
"""Learners by name, in environments of noise."""


def of_case(name: str) -> tuple[str, BaseModel, Callable[..., Any], Callable[..., Any]]:
    case = OF_CASES[name]

    def make(config: BaseModel, compiled: bool) -> Any:
        assert config == case.config
        return case.learner(Compute(compile=compiled))

    def batches(_: Any) -> list[Rollout]:
        return [batch for each in case.batches(3) for batch in each]

    return case.algo, case.config, make, batches


def ppo(config: PPOConfig, compiled: bool) -> Any:
    return ppo_helpers.make_learner(config, model=SHARED, compiled=compiled)


def impala(config: ImpalaConfig, compiled: bool) -> Any:
    return impala_helpers.make_learner(config, compiled=compiled)


def ppo_batches(_: Any) -> list[Rollout]:
    return [ppo_helpers.make_rollout(seed=seed) for seed in range(3)]


def impala_batches(learner: Any) -> list[Rollout]:
    return [impala_helpers.make_batch(learner, seed=seed) for seed in range(3)]


def names_of(config: BaseModel) -> list[str]:
    still = idle(config, Facts())
    return [name for name in sorted(tunable(type(config))) if name not in still]


def after(learner: Any, batches: list[Rollout], config: BaseModel | None) -> Tensor:
    """The weights after an update with the first options and two with others."""
    learner.update(batches[0], 0)
    if config is not None:
        learner.configure(config)
    for batch in batches[1:]:
        learner.update(batch, 0)
    return learner.trained.theta.clone()


def changed(config: BaseModel, name: str) -> BaseModel:
    if name == "kl_target" and isinstance(config, APPOConfig):
        return config.model_copy(update={name: 1e9})  # the rate falls by one and rises by the other
    return config.model_copy(update={name: OTHER.get(name, 2 * getattr(config, name))})


CASES = [
    ("ppo", PPO, ppo, ppo_batches),
    ("impala", IMPALA, impala, impala_batches),
    ("impala", ADAM, impala, impala_batches),
    *(of_case(name) for name in OF_CASES),
]
IDS = ["ppo", "impala-rmsprop", "impala-adam", *OF_CASES]


@pytest.mark.parametrize(
    ("algo", "config", "make", "batches"),
    [
        pytest.param(
            *case, id=name, marks=[pytest.mark.slow] * (name == "appo-gae" or case[0] in PLUGINS)
        )
        for name, case in zip(IDS, CASES, strict=True)
    ],
)
def test_each_takes_effect_at_the_next_update(
    algo: str, config: BaseModel, make: Callable[..., Any], batches: Callable[..., Any]
) -> None:
    given = batches(make(config, False))
    plain = after(make(config, False), given, None)
    for name in names_of(config):
        found = after(make(config, False), given, changed(config, name))
        assert (found - plain).abs().max() > 1e-6, name


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_every_option_that_may_change_is_tried(algo: str) -> None:
    """For these learners no other test shows the effects of all of them."""
    configs = [config for name, config, *_ in CASES if name == algo]
    tried = {name for config in configs for name in names_of(config)}
    assert tried == tunable(type(configs[0])).keys()


def follow(case: int) -> None:
    """Compares a compiled learner with eager ones, each option changed in turn."""
    from torch._dynamo.utils import counters  # takes seconds, in every test process

    _, config, make, batches = CASES[case]
    compiled = make(config, True)
    given, state = batches(compiled), compiled.save()
    start = {name: x.clone() for name, x in state.tensors.items()}
    for batch in given:  # what is fresh makes no graph of DDPG's
        compiled.update(batch, 0)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs
    for name in names_of(config):
        compiled.configure(config)
        compiled.load(type(state)(start, state.scalars))
        found = after(compiled, given, changed(config, name))
        wanted = after(make(config, False), given, changed(config, name))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=name)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_compiled_learners_follow_without_compiling_anew(case: int) -> None:
    """In a process where annotations are not executed, which can't be compiled."""
    script = (
        f"import torch; torch.set_num_threads(1); import test_tunable; test_tunable.follow({case})"
    )
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}:{here.parent / 'runtime'}"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.mark.parametrize(
    ("config", "change", "word"),
    [
        (PPO, {"bptt_steps": 8}, "bptt_steps"),
        (PPO, {"entropy_coef": 0.0}, "entropy_coef"),
        (IMPALA, {"rho_bar": None}, "rho_bar"),
        (IMPALA, {"reduction": "sum"}, "reduction"),
        (ACERConfig(), {"unroll_steps": 3}, "unroll_steps"),
    ],
)
def test_what_would_be_another_loss_is_refused(
    config: BaseModel, change: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"got a change of {word}; begin a new run"):
        require_tunable(config, config.model_copy(update=change))
