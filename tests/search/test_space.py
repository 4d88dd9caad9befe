"""Search spaces: of the options themselves, of words, of files."""

from pathlib import Path

import pytest

from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.run import RunConfig
from quintet.options.saved import load_config
from quintet.search.space import Dimension, around, parse, usual


@pytest.fixture(scope="module")
def config() -> RunConfig:
    typed = Layer("command line", {"env.id": "CartPole-v1", "entropy_coef": 0.0, "gamma": 0.99})
    return load_config("ppo", [], typed, beside=True).config


def test_usual_options_have_ranges_around_their_values(config: RunConfig) -> None:
    space = {one.name: one for one in usual(config)}
    assert "learning_rate" in space
    entropy = space["entropy_coef"]  # 0, which no factor changes
    assert (entropy.low, entropy.high, entropy.log) == (0.0, 0.02, False)
    assert entropy.drawn(0.0) == 0.0
    assert space["gamma"].near_1
    assert space["gae_lambda"].near_1
    assert not {"kl_coef", "num_epochs", "adam_beta1"} & space.keys()
    rate = space["learning_rate"]
    value = config.flat()["learning_rate"]
    assert (rate.low, rate.high, rate.log) == (value / 10, value * 10, True)


def test_options_without_effect_are_not_searched(config: RunConfig) -> None:
    own = config.learner.model_copy(update={"advantage_estimator": "monte_carlo", "value_coef": 0})
    space = {one.name for one in usual(config.model_copy(update={"learner": own}))}
    assert "learning_rate" in space
    assert not {"gae_lambda", "value_coef"} & space


def test_a_value_near_1_is_drawn_by_its_distance(config: RunConfig) -> None:
    gamma = around("gamma", config)
    assert gamma.key == "1 - gamma"
    assert gamma.low == pytest.approx(0.001)
    assert gamma.high == pytest.approx(0.1)
    assert gamma.value(0.02) == 0.98
    assert gamma.drawn(0.98) == pytest.approx(0.02)
    assert gamma.drawn(0.5) is None


def test_whole_numbers_stay_within_their_bounds(config: RunConfig) -> None:
    epochs = around("num_epochs", config.model_copy())
    assert epochs.whole
    assert epochs.low >= 1


def test_words_and_files_give_the_same_space(config: RunConfig, tmp_path: Path) -> None:
    words = (
        "learning-rate=1e-4..1e-2:log",
        "num-epochs=2..8",
        "advantage_estimator=gae,monte_carlo",
        "minibatch_steps=32,null",
    )
    space = parse(words, config, {})
    assert space == [
        Dimension("learning_rate", 1e-4, 1e-2, log=True),
        Dimension("num_epochs", 2.0, 8.0, whole=True),
        Dimension("advantage_estimator", choices=("gae", "monte_carlo")),
        Dimension("minibatch_steps", choices=(32, None)),
    ]
    file = tmp_path / "space.yaml"
    file.write_text(
        "learning_rate: 1e-4..1e-2:log\nnum_epochs: 2..8\nadvantage_estimator: [gae, monte_carlo]\n"
        "minibatch_steps: [32, null]\n"
    )
    assert parse((str(file),), config, {}) == space


def test_lists_are_choices_too(config: RunConfig, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("model:\n  policy_hidden: [[64, 64], [256]]\n")
    (one,) = parse((str(file),), config, {})
    assert [one.value(label) for label in one.labels] == [[64, 64], [256]]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("learning_rat=1..2", "did you mean 'learning_rate'"),
        ("seed=1,2", "same in all trials"),
        ("eval.episodes=1,2", "same in all trials"),
        ("learning_rate=1..0", "with LOW below HIGH"),
        ("learning_rate=0..1:log", "above 0 with :log"),
        ("learning_rate=1e-3", "at least two different values"),
        ("learning_rate=-1..1", "values that the option takes, got -1"),
        ("num_epochs=1.5..3", "whole numbers"),
        ("advantage_estimator=gae,gea", "values that the option takes, got 'gea'"),
        ("entropy_coef", "must have a range or values"),
        ("value_clip", "must have a range or values"),
        ("gamma=0.9,0.99", "given or searched, got both"),
        ("nowhere.yaml", "readable YAML file"),
    ],
)
def test_a_wrong_space_is_refused(config: RunConfig, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse((word,), config, {"gamma": 0.99})
