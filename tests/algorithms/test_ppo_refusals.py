"""Values out of range and combinations without effect are refused, by name, value and rule."""

from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
from ppo_helpers import make_learner
from pydantic import BaseModel, ValidationError

from quintet.algorithms.ppo.config import PPOConfig, check, planned_updates
from quintet.config.load import Layer, compose
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig

RULES = {
    annotated_types.Ge: ("greater than or equal to", "ge", -1),
    annotated_types.Gt: ("greater than", "gt", 0),
    annotated_types.Le: ("less than or equal to", "le", 1),
    annotated_types.Lt: ("less than", "lt", 0),
}


def literals(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(x for part in get_args(annotation) for x in literals(part))


PREFIX = {PPOConfig: "", ModelConfig: "model."}
# Rules that no annotation shows: of the rows, (value, words of the error).
OTHER_RULES = {
    "encoder": (
        "no identifier",
        "must be auto, mlp, nature_cnn, impala_cnn, film_grid or an",
    ),
    "vocabulary": (["red", "Ball"], "must be of words as the tokenizer finds them"),
    "encoder_kwargs": ({"a": float("inf")}, "must be of what JSON can hold"),
}


def bounds(annotation: Any) -> list[Any]:
    """Rules within an annotation, as on the elements of a tuple."""
    found = list(getattr(annotation, "__metadata__", ()))
    found = [rule for field in found for rule in getattr(field, "metadata", [field])]
    return found + [rule for part in get_args(annotation) for rule in bounds(part)]


def wrong_values(config: type[BaseModel]) -> list[tuple[str, Any, str]]:
    """(field, value, words of the rule): of a wrong type, and for each rule that it declares."""
    found: list[tuple[str, Any, str]] = []
    for name, field in config.model_fields.items():
        words = "input should be '" if literals(field.annotation) else "input should be a valid"
        found.append((name, object if name == "encoder" else "nonsense", words))
        within = bounds(field.annotation)
        for rule in [*field.metadata, *within]:
            if type(rule) not in RULES:  # e.g. one against infinities
                continue
            words, attribute, step = RULES[type(rule)]
            bound = getattr(rule, attribute)
            value = (8, bound + step) if rule in within else bound + step
            found.append((name, value, f"{words} {bound}"))
        if float in (field.annotation, *get_args(field.annotation)):
            found += [(name, float(x), "input should be a finite number") for x in ("nan", "inf")]
        if name in OTHER_RULES:
            found.append((name, *OTHER_RULES[name]))
    return found


@pytest.mark.parametrize(
    ("config", "name", "value", "rule"),
    [(c, *case) for c in (PPOConfig, ModelConfig) for case in wrong_values(c)],
)
def test_a_wrong_value_is_refused(config: type[BaseModel], name: str, value: Any, rule: str):
    """By the way that every option takes: layers that are merged and then validated."""
    option = PREFIX[config] + name
    layers = [Layer("command line", {"env.id": "CartPole-v1", option: value})]
    with pytest.raises(ConfigError) as error:
        compose("ppo", layers)
    message = str(error.value)
    given = value[1] if isinstance(value, tuple) else value
    fault = next(line for line in message.splitlines() if f"{option}: " in line)
    assert rule in fault
    assert fault.endswith(f", got {given!r}")


POSITIVE = (
    "clip_epsilon value_clip log_prob_clip kl_target target_kl observation_clip "
    "normalizer_variance_epsilon learning_rate adam_epsilon max_grad_norm"
)
NOT_NEGATIVE = (
    "value_coef entropy_coef policy_l2_coef value_l2_coef shared_l2_coef kl_beta_init "
    "kl_cutoff_coef kl_cutoff_factor"
)
RANGES = {
    **{key: {"gt": 0} for key in POSITIVE.split()},
    **{key: {"ge": 0} for key in NOT_NEGATIVE.split()},
    **{key: {"ge": 1} for key in ("unroll_steps", "num_epochs", "minibatch_steps", "bptt_steps")},
    **{key: {"ge": 0, "le": 1} for key in ("gamma", "gae_lambda")},
    "kl_tolerance": {"ge": 0, "lt": 1},
}


MODEL_RANGES = {
    **{key: {"ge": 1} for key in ("policy_hidden", "value_hidden", "core_size", "core_layers")},
    **{key: {"ge": 1} for key in ("hash_buckets", "text_embedding", "text_hidden")},
    **{key: {"ge": 1} for key in ("image_channels", "film_blocks")},
    "action_std_init": {"gt": 0},
}


@pytest.mark.parametrize(("config", "ranges"), [(PPOConfig, RANGES), (ModelConfig, MODEL_RANGES)])
def test_ranges_are_those_of_the_specification(config: type[BaseModel], ranges: dict[str, Any]):
    """The cases above follow what is declared; here stands what has to be declared."""
    declared = {}
    for name, field in config.model_fields.items():
        every = [*field.metadata, *bounds(field.annotation)]
        rules = [rule for rule in every if type(rule) in RULES]
        if rules:
            declared[name] = {RULES[type(x)][1]: getattr(x, RULES[type(x)][1]) for x in rules}
    assert declared == ranges


def test_every_field_has_a_wrong_value():
    for config in (PPOConfig, ModelConfig):
        assert {name for name, _, _ in wrong_values(config)} == set(config.model_fields)


@pytest.mark.parametrize("config", [PPOConfig, ModelConfig])
def test_numbers_have_ranges(config: type[BaseModel]):
    for name, field in config.model_fields.items():
        number = field.annotation in (int, float, int | None, float | None)
        # A clip of rewards may be 0 or below: that turns it off.
        assert bool(field.metadata) == number or name == "reward_norm_clip", name


def test_bounds_themselves_are_accepted_where_they_belong():
    alone = {"gamma", "gae_lambda", "value_coef", "kl_beta_init", "num_epochs", "unroll_steps"}
    tried = set()
    for name in alone:
        for rule in PPOConfig.model_fields[name].metadata:
            if type(rule) not in RULES:
                continue
            _, attribute, _ = RULES[type(rule)]
            if attribute in ("ge", "le"):
                bound = getattr(rule, attribute)
                assert getattr(PPOConfig(**{name: bound}), name) == bound
                tried.add(name)
    assert tried == alone


@pytest.mark.parametrize("config", [PPOConfig, ModelConfig])
def test_unknown_names_are_refused(config: type[BaseModel]):
    with pytest.raises(ValidationError, match="clip_epsilom"):
        config(clip_epsilom=0.2)


@pytest.mark.parametrize("config", [PPOConfig(), ModelConfig()])
def test_configurations_do_not_change(config: BaseModel):
    name = next(iter(type(config).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, name, getattr(config, name))


OFF = {"normalize_observations": False, "reward_normalizer": "none"}
MONTE_CARLO = {"advantage_estimator": "monte_carlo", "value_target": "monte_carlo"}
IDLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "advantage_estimator": ("monte_carlo", {"unroll_steps": 1}, {"unroll_steps": 2}),
    "normalize_advantage": ("minibatch", {"minibatch_steps": None}, {"minibatch_steps": 10}),
    "gae_lambda": (0.9, MONTE_CARLO, {"value_target": "lambda_return"}),
    "value_target": ("monte_carlo", {"value_coef": 0.0}, {"value_coef": 0.1}),
    "value_clip": (0.2, {"value_coef": 0.0}, {"value_coef": 0.1}),
    "clip_schedule": ("linear", {"clip_epsilon": None}, {"clip_epsilon": 0.1}),
    "kl_target": (0.02, {}, {"kl_cutoff_coef": 1.0}),
    "kl_tolerance": (0.5, {"kl_cutoff_coef": 1.0}, {"kl_beta_init": 1.0}),
    "kl_cutoff_factor": (3.0, {"kl_beta_init": 1.0}, {"kl_cutoff_coef": 1.0}),
    "observation_clip": (9.0, {"normalize_observations": False}, {"normalize_observations": True}),
    "reward_norm_clip": (5.0, {"reward_normalizer": "none"}, {"reward_normalizer": "step_std"}),
    "normalizer_variance_epsilon": (1e-2, OFF, {"normalize_observations": True}),
    "update_normalizers": (False, OFF, {"reward_normalizer": "step_std"}),
    "drop_last": (True, {"minibatch_steps": None}, {"minibatch_steps": 10}),
    "refresh_advantages": ("per_epoch", {"num_epochs": 1}, {"num_epochs": 2}),
    "value_source": (
        "recomputed",
        {"refresh_advantages": "per_epoch"},
        {"refresh_advantages": "once"},
    ),
    "target_kl": (0.01, {"num_epochs": 1}, {"num_epochs": 2}),
}


@pytest.mark.parametrize("name", list(PPOConfig().requirements))
def test_an_option_without_effect_is_refused(name: str):
    value, idle, effective = IDLE[name]
    with pytest.raises(ValidationError, match=f"{name}={value} has no effect without"):
        PPOConfig(**idle, **{name: value})
    PPOConfig(**(idle | effective), **{name: value})


def test_all_idle_options_are_named_at_once():
    with pytest.raises(ValidationError) as error:
        PPOConfig(clip_epsilon=None, clip_schedule="linear", kl_tolerance=0.5, kl_target=0.1)
    for name in ("clip_schedule=linear", "kl_tolerance=0.5", "kl_target=0.1"):
        assert name in str(error.value)


FAULTS: dict[str, tuple[PPOConfig, ModelConfig, int, list[str]]] = {
    "fine": (PPOConfig(), ModelConfig(), 10_000, []),
    "budget": (PPOConfig(), ModelConfig(), 2047, ["total_env_steps", "2047", "2048"]),
    "exact budget": (PPOConfig(), ModelConfig(), 2048, []),
    "too large": (PPOConfig(minibatch_steps=4096), ModelConfig(), 10_000, ["at most", "4096"]),
    "no divisor": (PPOConfig(minibatch_steps=100), ModelConfig(), 10_000, ["divide", "100"]),
    "drops": (PPOConfig(minibatch_steps=100, drop_last=True), ModelConfig(), 10_000, []),
    "whole": (PPOConfig(minibatch_steps=None), ModelConfig(), 10_000, []),
    "value_hidden": (
        PPOConfig(),
        ModelConfig(shared_torso=True, value_hidden=(3,)),
        10_000,
        ["model.value_hidden", "no effect", "shared_torso"],
    ),
    "shared l2": (
        PPOConfig(shared_l2_coef=0.1),
        ModelConfig(),
        10_000,
        ["shared_l2_coef", "no effect"],
    ),
    "chunks": (
        PPOConfig(bptt_steps=16),
        ModelConfig(),
        10_000,
        ["bptt_steps=16 has no effect without model.core"],
    ),
    "cut chunk": (
        PPOConfig(unroll_steps=40),
        ModelConfig(core="gru"),
        10_000,
        ["unroll_steps must be a multiple of bptt_steps=32", "got 40"],
    ),
    "part of a chunk": (
        PPOConfig(minibatch_steps=16),
        ModelConfig(core="lstm"),
        10_000,
        ["minibatch_steps must be a multiple of bptt_steps=32", "got 16"],
    ),
    "whole chunks": (PPOConfig(bptt_steps=16), ModelConfig(core="lstm"), 10_000, []),
    "shared l2 used": (PPOConfig(shared_l2_coef=0.1), ModelConfig(shared_torso=True), 10_000, []),
}


@pytest.mark.parametrize(("config", "model", "total", "words"), FAULTS.values(), ids=FAULTS)
def test_check(config: PPOConfig, model: ModelConfig, total: int, words: list[str]):
    faults = check(config, model, 8, total)
    assert len(faults) == bool(words)
    assert all(word in faults[0] for word in words)


def test_check_lists_all_faults():
    config = PPOConfig(minibatch_steps=100, shared_l2_coef=1.0)
    assert len(check(config, ModelConfig(), 8, 10)) == 3


def test_planned_updates():
    assert planned_updates(PPOConfig(), 8, 1_000_000) == 156_250
    assert planned_updates(PPOConfig(minibatch_steps=None), 8, 20_480) == 100


def test_check_numerics_refuses_to_be_compiled():
    with pytest.raises(ConfigError, match="check_numerics"):
        make_learner(PPOConfig(check_numerics=True), compiled=True)
