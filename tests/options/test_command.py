"""What is written on the command line becomes one layer of values, faults included."""

import pytest

from quintet.commands import cli
from quintet.errors import ConfigError
from quintet.options.command import parse
from quintet.options.layers import Layer
from quintet.options.resolve import compose


def values(*arguments: str) -> dict:
    algo, files, layer, seeds, jobs, minutes, trust, overwrite = parse("train", ["ppo", *arguments])
    assert (seeds, jobs, minutes, trust, overwrite) == (None, None, None, False, False)
    assert algo == "ppo"
    assert files == []
    assert layer.source == "command line"
    return dict(layer.values)


def learner(*arguments: str):
    asked = parse("train", ["ppo", "--env", "CartPole-v1", *arguments])
    return compose("ppo", [*asked.files, asked.options]).config


def test_only_what_was_given_is_in_the_layer():
    assert values() == {}
    assert values("--env", "X", "--total-steps", "5") == {"env.id": "X", "total_env_steps": 5}


def test_dashes_underscores_equals_signs_and_aliases():
    wanted = {"env.num_streams": 4, "total_env_steps": 5000, "env.id": "A_b-v1"}
    for given in (
        ["--env.num-streams", "4", "--total-steps", "5000", "--env", "A_b-v1"],
        ["--env.num_streams", "4", "--total_steps", "5000", "--env.id", "A_b-v1"],
        ["--env.num_streams=4", "--total-env-steps=5000", "--env=A_b-v1"],
    ):
        assert values(*given) == wanted


def test_values_become_numbers_lists_mappings_and_nothing():
    config = learner(
        *("--clip-epsilon", "none", "--max-grad-norm", "None", "--value-clip", "0.3"),
        *("--learning-rate", "1e-3", "--total-steps", "100_000", "--drop-last", "true"),
        *("--model.policy-hidden", "32", "16", "--report.sinks", "jsonl", "csv"),
        *("--eval.interval", "5000", "--reward-norm-clip", "-1"),
    )
    ppo = config.learner
    assert (ppo.clip_epsilon, ppo.max_grad_norm, ppo.value_clip) == (None, None, 0.3)
    assert (ppo.learning_rate, ppo.drop_last, ppo.reward_norm_clip) == (1e-3, True, -1.0)
    assert config.total_env_steps == 100_000
    assert config.model.policy_hidden == (32, 16)
    assert config.report.sinks == ("jsonl", "csv")
    assert config.eval.interval == 5000
    assert learner("--eval.interval", "auto").eval.interval == "auto"


@pytest.mark.parametrize("word", ["none", "null", "None"])
def test_options_of_several_words_may_be_none(word: str):
    """Where such an option is never without a value, none are no words."""
    assert values("--model.policy-hidden", word) == {"model.policy_hidden": None}
    assert values("--report.sinks", word) == {"report.sinks": []}
    assert learner("--report.sinks", word).report.sinks == ()


def test_kwargs_of_the_environment_are_json():
    text = '{"n": 5, "f": 0.5, "on": true, "text": "a b", "list": [1, 2], "none": null}'
    wanted = {"n": 5, "f": 0.5, "on": True, "text": "a b", "list": [1, 2], "none": None}
    assert values("--env.kwargs", text) == {"env.kwargs": wanted}
    assert values(f"--env.kwargs={text}") == {"env.kwargs": wanted}
    with pytest.raises(ConfigError, match=r"env\.kwargs: .* dictionary, got '{bad'"):
        learner("--env.kwargs", "{bad")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--env.kwargs", "{length: 1}"],
            "env.kwargs: input should be a valid dictionary, got '{length: 1}'; write it as JSON, "
            "with names in double quotes, as in '{\"length\": 1}'",
        ),
        (
            ["--checkpoint.interval-iterations", "0"],
            "checkpoint.interval_iterations: input should be 'auto' or greater than or equal to 1, "
            "got 0; give such a value, or leave it out",
        ),
        (
            ["--checkpoint.interval-iterations", "x"],
            "checkpoint.interval_iterations: input should be 'auto' or a valid integer, got 'x'; "
            "give such a value, or leave it out",
        ),
        (["--seed", "-1"], "seed: input should be greater than or equal to 0, got -1; give such a "
         "value, or leave it out"),
        (["--seed"], "seed must have a value, got --seed alone: give one"),
        (["--config"], "config must have a value, got --config alone: give one"),
        (["--report.sinks"], "report.sinks must have a value, got --report.sinks alone: give one"),
        (["--trust", "yes"], "--trust takes no value, got 'yes'; give --trust alone"),
        (["--seed", "1", "--trust=yes"], "--trust takes no value, got 'yes'; give --trust alone"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence_with_what_to_do(arguments, said, capsys):
    assert cli.main(["train", "ppo", "--env", "CartPole-v1", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_trust_is_a_word_of_its_own():
    for arguments in (["--trust"], ["--trust", "--seed", "1"], ["--seed", "1", "--trust"]):
        assert parse("train", ["ppo", *arguments]).trust


def test_the_last_of_two_wins():
    assert values("--gamma", "0.9", "--gamma", "0.8") == {"gamma": 0.8}


def test_unknown_options_stay_in_the_layer_with_the_others():
    given = values("--learnin-rate", "1e-3", "--gamma", "2", "stray", "--foo=3", "--bar")
    assert given["learnin_rate"] == "1e-3"
    assert given["foo"] == "3"
    assert {"gamma", "stray", "bar"} <= set(given)
    with pytest.raises(ConfigError) as raised:
        compose("ppo", [Layer("command line", given)])
    assert str(raised.value).startswith("6 faults:")  # these five, and no environment


def test_files_come_in_their_order(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("env: CartPole-v1\ngamma: 0.9\nmodel:\n  policy-hidden: [8]\n")
    two.write_text("gamma: 0.8\nenv.kwargs: {a: 1}\n")
    _, files, layer, *_ = parse("train", ["ppo", "--seed", "1", "--config", str(one), str(two)])
    assert [file.source for file in files] == [f"file {one}", f"file {two}"]
    assert files[0].values == {"env.id": "CartPole-v1", "gamma": 0.9, "model.policy_hidden": [8]}
    assert files[1].values == {"gamma": 0.8, "env.kwargs": {"a": 1}}
    assert layer.values == {"seed": 1}
    loaded = compose("ppo", [*files, layer])
    assert loaded.config.learner.gamma == 0.8
    assert loaded.sources["gamma"] == f"file {two}"
