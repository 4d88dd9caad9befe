"""No option of IMPALA without effect, and what can't be is refused: the lists are those of the
class, so a new option fails here until it has an entry.  Options that may change during a run have
theirs in test_tunable.py; those of them that may be off are here too.
"""

from typing import Any

import pytest
import torch
from impala_helpers import make_batch, make_learner
from ppo_helpers import DISCRETE, PICTURE, TOTAL
from pydantic import ValidationError
from test_impala_aux import OWN

from quintet.algorithms.impala.config import ImpalaConfig, planned_updates
from quintet.errors import ConfigError, NonFiniteError
from quintet.models.config import ModelConfig
from quintet.options.declaration import about, tunable
from quintet.options.layers import Layer, preset_layers
from quintet.options.resolve import compose
from quintet.types import Spaces

BASE: dict[str, Any] = {"entropy_coef": 0.01}
ADAM: dict[str, Any] = {"optimizer": "adam"}
NORMALIZES: dict[str, Any] = {"normalize_observations": True}

# What an option is changed to, and what it needs beside it to matter at all.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "unroll_steps": (12, {}),
    "batch_unrolls": (12, {}),
    "rho_bar": (1.5, {}),
    "pg_rho_bar": (0.5, {}),
    "truncation_as_termination": (True, {}),
    "reduction": ("mean", {}),
    "entropy_schedule": ("linear", {"entropy_coef": 0.1}),
    "aux_loss_weights": ({"per_row": 0.1}, {}),
    "normalize_observations": (True, {}),
    "normalize_pictures": (True, {}),
    "observation_clip": (0.5, NORMALIZES),
    "reward_normalizer": ("step_std", {}),
    "reward_norm_clip": (0.1, {"reward_normalizer": "step_std"}),
    "normalizer_variance_epsilon": (1.0, NORMALIZES),
    "update_normalizers": (False, NORMALIZES),
    "optimizer": ("adam", {}),
    "lr_schedule": ("constant", {}),
    "rmsprop_epsilon_inside_sqrt": (True, {}),
    "max_grad_norm": (0.1, {"max_grad_norm": 1.0}),
}
OFF = ("rho_bar", "pg_rho_bar", "max_grad_norm")
SEEN_ELSEWHERE = {"unroll_steps", "batch_unrolls", "check_numerics"}


SPACES = {"normalize_pictures": PICTURE}


def after_three_updates(
    config: ImpalaConfig, model: ModelConfig, spaces: Spaces = DISCRETE
) -> torch.Tensor:
    learner = make_learner(config, spaces, model)
    for update in range(3):
        learner.update(make_batch(learner, spaces, seed=update), update * TOTAL // 4)
    return learner.trained.theta


def test_every_option_has_an_entry():
    here = set(CHANGES) | SEEN_ELSEWHERE
    assert here == ImpalaConfig.model_fields.keys() - tunable(ImpalaConfig).keys() | {*OFF}


@pytest.mark.parametrize("name", sorted(set(CHANGES) - SEEN_ELSEWHERE))
def test_the_option_has_an_effect(name: str):
    value, companions = CHANGES[name]
    model = OWN if name == "aux_loss_weights" else ModelConfig(policy_hidden=(8,))
    before = ImpalaConfig(**(BASE | companions))
    assert getattr(before, name) != value
    spaces = SPACES.get(name, DISCRETE)
    thetas = [after_three_updates(before, model, spaces)]
    for each in (value, None) if name in OFF else (value,):
        after = ImpalaConfig(**(BASE | companions | {name: each}))
        thetas.append(after_three_updates(after, model, spaces))
    for i, one in enumerate(thetas):
        for other in thetas[:i]:
            assert (one - other).abs().max() > 1e-6
    assert torch.equal(thetas[0], after_three_updates(before, model, spaces))


def test_no_cap_on_the_trace_is_an_option():
    model = ModelConfig(policy_hidden=(8,))
    configs = [ImpalaConfig(rho_bar=None), ImpalaConfig(rho_bar=None, c_bar=None)]
    one, other = (after_three_updates(config, model) for config in configs)
    assert (one - other).abs().max() > 1e-6


def test_the_plan():
    plan = make_learner(ImpalaConfig(unroll_steps=12, batch_unrolls=5)).plan
    assert (plan.unroll_steps, plan.columns_per_batch, plan.state_every) == (12, 5, 12)
    assert plan.replay is None
    assert plan.return_discount is None


@pytest.mark.parametrize("checked", [False, True])
def test_numbers_that_are_not_finite_end_the_run(checked: bool):
    learner = make_learner(ImpalaConfig(check_numerics=checked))
    batch = make_batch(learner)
    learner.update(batch, 0)
    batch.record["logp_mu"][0, 0] = float("nan")
    batch.valid[0, 0] = True
    said = f"^{'target' if checked else 'loss/policy'} must be finite, got nan at update 2"
    with pytest.raises(NonFiniteError, match=said):
        learner.update(batch, 0)


IDLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "vtrace_lambda": (0.9, {"c_bar": 0.0}, {"c_bar": 0.5}),
    "c_bar": (0.5, {"vtrace_lambda": 0.0}, {"vtrace_lambda": 0.9}),
    "entropy_schedule": ("linear", {"entropy_coef": 0.0}, {"entropy_coef": 0.1}),
    "observation_clip": (9.0, {}, NORMALIZES),
    "normalizer_variance_epsilon": (1e-2, {}, NORMALIZES),
    "reward_norm_clip": (1.0, {}, {"reward_normalizer": "step_std"}),
    "update_normalizers": (False, {}, {**NORMALIZES, "init_from": "runs/x"}),
    "rmsprop_decay": (0.9, ADAM, {"optimizer": "rmsprop"}),
    "rmsprop_momentum": (0.9, ADAM, {"optimizer": "rmsprop"}),
    "rmsprop_epsilon": (0.1, ADAM, {"optimizer": "rmsprop"}),
    "rmsprop_epsilon_inside_sqrt": (True, ADAM, {"optimizer": "rmsprop"}),
    "adam_epsilon": (0.1, {}, ADAM),
}


NEEDS_FACTS = {"aux_loss_weights", "normalize_observations", "normalize_pictures"}


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_refused(name: str):
    value, without, effective = IDLE[name]
    base = {"env.id": "CartPole-v1", name: value}
    with pytest.raises(
        ConfigError, match=f"^{name}={value} has no effect without .*; leave it out"
    ):
        compose("impala", [Layer("call", base | without)])
    compose("impala", [Layer("call", base | without | effective)])


def test_every_option_that_needs_another_is_tried():
    fields = ImpalaConfig.model_fields.items()
    assert {name for name, info in fields if about(info).needs} == IDLE.keys() | NEEDS_FACTS


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(0.5, 1.0), (2.0, None), (1.0, 1.5)])
def test_traces_may_not_be_cut_later_than_errors(rho_bar: float, c_bar: float | None):
    with pytest.raises(
        ValidationError, match=f"c_bar must be at most rho_bar={rho_bar}, got {c_bar}".lower()
    ):
        ImpalaConfig(rho_bar=rho_bar, c_bar=c_bar)
    ImpalaConfig(rho_bar=None, c_bar=c_bar)
    ImpalaConfig(rho_bar=rho_bar, c_bar=rho_bar)


def test_check_lists_all_faults():
    given = {"model.shared_torso": True, "model.value_hidden": (3,), "aux_loss_weights": {"a": 2.0}}
    budget = {"env.id": "CartPole-v1", "total_env_steps": 24 * 80 - 1}
    with pytest.raises(ConfigError) as error:
        compose("impala", [Layer("call", given | budget)])
    faults = str(error.value).splitlines()[1:]
    for words in (["1920", "1919"], ["model.value_hidden"], ["aux_loss_weights"]):
        assert sum(all(word in fault for word in words) for fault in faults) == 1
    assert len(faults) == 3
    compose("impala", [Layer("call", budget | {"total_env_steps": 24 * 80})])


def test_planned_updates():
    assert planned_updates(ImpalaConfig(), 8, 10 * 24 * 80) == 10


def test_a_coefficient_of_0_takes_its_layers_out_of_the_gradient():
    learner = make_learner(ImpalaConfig(value_coef=0.0))
    before = {name: x.clone() for name, x in learner.trained.parameters.items()}
    learner.update(make_batch(learner), 0)
    moved = {
        name for name, x in learner.trained.parameters.items() if not torch.equal(x, before[name])
    }
    assert moved == {name for name in before if not name.startswith("value")}


@pytest.mark.parametrize(
    "kind", ["vector_discrete", "vector_continuous", "pixels", "atari", "grid"]
)
def test_presets_of_kinds_are_whole(kind: str):
    layers = preset_layers("impala", None, kind)
    loaded = compose("impala", [*layers, Layer("call", {"env.id": "CartPole-v1"})])
    assert isinstance(loaded.config.learner, ImpalaConfig)
    assert loaded.config.runtime.kind == "async"
    assert loaded.config.env.reward_clip == ("abs_one" if kind == "atari" else "none")


def test_the_papers_recipe_for_atari_is_a_preset():
    """Also on top of the preset that the environment has by default."""
    layers = preset_layers("impala", "Pong-v5", "paper_atari")
    loaded = compose("impala", [*layers, Layer("call", {"env.id": "Pong-v5"})])
    config = loaded.config.learner
    assert isinstance(config, ImpalaConfig)
    recipe = {
        "unroll_steps": 20,
        "batch_unrolls": 32,
        "vtrace_lambda": 1.0,
        "entropy_coef": 0.01,
        "learning_rate": 6e-4,
        "lr_schedule": "linear",
        "optimizer": "rmsprop",
        "rmsprop_epsilon": 0.01,
        "rmsprop_epsilon_inside_sqrt": True,
        "rmsprop_momentum": 0.0,
        "max_grad_norm": 40.0,
        "reduction": "sum",
        "normalize_observations": False,
    }
    assert {name: getattr(config, name) for name in recipe} == recipe
    assert loaded.config.env.reward_clip == "abs_one"
    assert loaded.config.model.shared_torso
