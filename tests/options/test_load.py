"""Layers of a configuration, where values come from, and how faults are told."""

from pathlib import Path

import pytest
from small_run_helpers import save_options

from quintet.commands.cli import main
from quintet.envs.toy import Contextual
from quintet.errors import ConfigError
from quintet.options.layers import Layer, flatten, options, preset_layers, read_file
from quintet.options.resolve import compose
from quintet.options.run import PARTS, TOP, RunConfig
from quintet.options.saved import find_run_dir, load_config, read_saved
from quintet.system import files

CARTPOLE = {"env.id": "CartPole-v1"}
KNOWN = options("ppo")


def save_run(folder: Path, values: dict) -> None:
    """A folder as a run leaves it behind, as far as configurations go."""
    loaded = compose("ppo", [Layer("x", {**CARTPOLE, **values})])
    save_options(folder, loaded.config.flat())


def faults_of(values: dict, **more) -> str:
    with pytest.raises(ConfigError) as raised:
        compose("ppo", [Layer("command line", {**CARTPOLE, **values})], **more)
    return str(raised.value)


# Layers


def test_the_later_layer_wins_and_is_named_as_the_source():
    layers = [
        Layer("preset P", {"gamma": 0.1, "num_epochs": 1, "learning_rate": 1.0}),
        Layer("file F", {"gamma": 0.2, "num_epochs": 2}),
        Layer("command line", {**CARTPOLE, "gamma": 0.3}),
    ]
    loaded = compose("ppo", layers)
    values = loaded.config.flat()
    assert [values[n] for n in ("gamma", "num_epochs", "learning_rate", "unroll_steps")] == [
        0.3,
        2,
        1.0,
        256,
    ]
    assert loaded.sources["gamma"] == "command line"
    assert loaded.sources["num_epochs"] == "file F"
    assert loaded.sources["learning_rate"] == "preset P"
    assert loaded.sources["unroll_steps"] == "default"
    assert set(loaded.sources) == set(values)


def test_all_five_layers_in_their_order(tmp_path):
    presets = preset_layers("ppo", "CartPole-v1", "auto")
    assert [layer.source for layer in presets] == ["preset CartPole-*"]
    assert presets[0].values["total_env_steps"] == 100_000
    files = [Layer("file a", {"num_epochs": 2, "gae_lambda": 0.4, "eval.episodes": 3})]
    command = Layer("command line", {**CARTPOLE, "run_dir": str(tmp_path), "eval.episodes": 7})
    save_run(tmp_path, {"num_epochs": 2, "gae_lambda": 0.4, "eval.episodes": 5})
    loaded = load_config("ppo", files, command)
    assert loaded.config.eval.episodes == 7
    assert loaded.sources["eval.episodes"] == "command line"
    assert loaded.sources["num_epochs"] == "saved run"
    assert loaded.sources["run_dir"] == "command line"
    # without the run the file is next, then the preset, then the default
    other = Layer("command line", {**CARTPOLE, "run_dir": str(tmp_path / "new")})
    loaded = load_config("ppo", files, other)
    assert loaded.sources["num_epochs"] == "file a"
    assert loaded.config.eval.episodes == 3
    assert loaded.sources["total_env_steps"] == "preset CartPole-*"
    assert loaded.config.total_env_steps == 100_000
    assert loaded.sources["gamma"] == "default"


def test_a_saved_run_holds_its_own_options_against_new_defaults(tmp_path):
    """What a preset or a default says today must not change a run of yesterday."""
    save_run(tmp_path, {"total_env_steps": 50_000, "gamma": 0.5})
    command = Layer("command line", {**CARTPOLE, "run_dir": str(tmp_path)})
    config = load_config("ppo", [], command).config
    assert config.total_env_steps == 50_000
    assert config.learner.gamma == 0.5


# Presets


def test_a_preset_is_chosen_by_the_environment_by_name_or_not_at_all():
    (layer,) = preset_layers("ppo", "HalfCheetah-v4", "auto")
    assert layer.source == "preset HalfCheetah-*"
    assert layer.values["env.num_streams"] == 32
    assert preset_layers("ppo", "Taxi-v3", "auto") == []
    assert preset_layers("ppo", None, "auto") == []
    assert preset_layers("ppo", "HalfCheetah-v4", "none") == []
    environment, named = preset_layers("ppo", "CartPole-v1", "kl_penalty")
    assert environment.source == "preset CartPole-*"
    assert named.source == "preset kl_penalty"
    loaded = compose("ppo", [environment, named, Layer("command line", CARTPOLE)])
    assert loaded.config.learner.clip_epsilon is None
    assert loaded.config.learner.kl_coef_init == 1.0
    assert loaded.sources["kl_coef_init"] == "preset kl_penalty"
    assert loaded.config.total_env_steps == 100_000
    says = r"one of clip, kl_penalty, .*; got 'klpenalty'; did you .*_"
    with pytest.raises(ConfigError, match=says):
        preset_layers("ppo", None, "klpenalty")


# Names


def test_names_nested_dotted_with_dashes_and_by_alias_are_the_same():
    wanted = {"env.id": "X", "env.num_streams": 4, "total_env_steps": 9, "gae_lambda": 0.5}
    for given in (
        wanted,
        {"env": "X", "env.num-streams": 4, "total_steps": 9, "gae-lambda": 0.5},
        {"env": {"id": "X", "num_streams": 4}, "total-steps": 9, "gae_lambda": 0.5},
        {"env": {"id": "X", "num-streams": 4}, "total-env-steps": 9, "gae-lambda": 0.5},
    ):
        assert flatten(given, KNOWN) == wanted
    # a mapping that is the value of an option stays whole, its keys as they are
    kwargs = {"a-b": {"c": 1}}
    assert flatten({"env": {"kwargs": kwargs}}, KNOWN) == {"env.kwargs": kwargs}
    assert flatten({"env.kwargs": kwargs}, KNOWN) == {"env.kwargs": kwargs}


def test_options_are_exactly_the_fields_of_the_models():
    """A part that is added to RunConfig must become reachable."""
    parts = set(RunConfig.model_fields) - set(TOP) - {"learner"}
    assert parts == set(PARTS)
    loaded = compose("ppo", [Layer("x", CARTPOLE)])
    assert set(loaded.config.flat()) == set(KNOWN)


def test_every_option_says_what_it_means():
    assert [name for name, info in KNOWN.items() if not info.description] == []


# Faults


@pytest.mark.parametrize(
    "given",
    [
        {"total-steps": 1, "total_env_steps": 2},
        {"env": {"num_streams": 1}, "env.num-streams": 2},
        {"env": "A-v1", "env.id": "B-v1"},
    ],
)
def test_an_option_that_is_given_twice_is_refused(given):
    with pytest.raises(
        ConfigError, match=r"must be given once, got it as '\S+' and as '\S+'; leave"
    ):
        flatten(given, options("ppo"))


def test_an_unknown_option_is_answered_with_the_nearest_and_its_source():
    said = faults_of({"learnin_rate": 1})
    assert said == "unknown option 'learnin_rate' (command line); did you mean 'learning_rate'?"
    assert "did you mean 'env.num_streams'?" in faults_of({"num_streams": 4})
    assert faults_of({"qqqq": 1}).startswith("unknown option 'qqqq' (command line); `quintet train")


def test_all_faults_are_told_at_once():
    said = faults_of(
        {
            "env.id": "CartPol-v1",
            "learnin_rate": 1,
            "gamma": 2,
            "eval.episodes": -1,
            "seed": -1,
            "runtime.kind": "parallel",
            "minibatch_steps": 100,
            "total_env_steps": 1000,
        }
    )
    assert said.startswith("8 faults:\n  - ")
    lines = said.splitlines()[1:]
    assert len(lines) == 8
    for part in (
        "'learnin_rate'",
        "CartPole-v1",
        "gamma: input should be less than or equal to 1, got 2",
        "eval.episodes",
        "seed: ",
        "runtime.kind: ",
        "minibatch_steps must divide",
        "total_env_steps must be at least one batch of env.num_streams x unroll_steps = 2048, got",
    ):
        assert sum(part in line for line in lines) == 1, part


def test_combinations_that_can_not_be():
    assert "streams_per_group must divide" in faults_of({"env.streams_per_group": 3})
    assert "minibatch_steps must be at most" in faults_of({"minibatch_steps": 4096})
    compose("ppo", [Layer("x", {**CARTPOLE, "minibatch_steps": 100, "drop_last": True})])
    compose("ppo", [Layer("x", {**CARTPOLE, "minibatch_steps": None})])
    shared = {"model.shared_torso": True, "model.value_hidden": (8,)}
    assert "without model.shared_torso=false" in faults_of(shared)
    assert "shared_l2_coef=0.1 has no effect" in faults_of({"shared_l2_coef": 0.1})
    # a budget of exactly one rollout is enough, one step less is not
    compose("ppo", [Layer("x", {**CARTPOLE, "total_env_steps": 2048})])
    assert "got 2047" in faults_of({"total_env_steps": 2047})


def test_the_environment_is_required_and_looked_up():
    with pytest.raises(ConfigError, match="there is no environment: give one by --env ID"):
        compose("ppo", [])
    assert "nearest are CartPole-v1" in faults_of({"env.id": "CartPol-v1"})
    # options of an environment that can't be used stand beside other faults
    said = faults_of({"env.id": "Pong-v5", "env.kwargs": {"stack_num": 0}, "gamma": 3})
    assert "2 faults" in said
    assert "Pong-v5: env.kwargs can't be used: stack_num: " in said
    # a callable's name is no id of any backend
    config = compose("ppo", [Layer("x", {"env.id": "make"})], Contextual).config
    assert config.env.id == "make"


def test_an_unknown_algorithm():
    with pytest.raises(
        ConfigError, match=r"one of ppo, impala, appo, ddpg, acer; got 'pppo'; did you mean 'ppo'"
    ):
        compose("pppo", [])
    # As in the file of a run of another learner.
    with pytest.raises(ConfigError, match="algo must be that of the command, ppo, got 'acer'"):
        load_config("ppo", [Layer("file f", {"algo": "acer"})], Layer("x", CARTPOLE))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "readable YAML file, got none: .*No such file"),
        ("a: [1", "readable YAML file, got none: "),
        ("- 1\n- 2\n", "yaml with list"),
        ("just words", "yaml with str"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, text, says):
    path = tmp_path / "options.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        read_file(path)
    assert str(path) in str(raised.value)
    with pytest.raises(ConfigError, match="--config must be"):
        read_file(tmp_path)


# A folder with a run


def test_options_that_do_not_go_with_those_of_a_run_name_its_folder(tmp_path):
    """Alone they would do."""
    save_run(tmp_path, {"env.num_streams": 32, "env.streams_per_group": 32})
    asked = {"run_dir": str(tmp_path), "env.num_streams": 16}
    for given in (asked, asked | {"env.id": "CartPole-v1"}):
        with pytest.raises(ConfigError) as raised:
            load_config("ppo", [], Layer("command line", given))
        said = str(raised.value)
        assert "holds a run of another configuration" in said
        assert "env.num_streams: the run has 32, this command has 16" in said
        assert "streams_per_group must divide" in said
    save_run(tmp_path, {"runtime.kind": "async"})
    for wrong, says in (
        ({"gamma": 2.0}, "gamma: input should be less"),
        ({"resume": "exact"}, "resume=exact must have a run that gives identical"),
        ({"gama": 0.5}, "unknown option 'gama'"),
    ):
        with pytest.raises(ConfigError, match=f"^{says}"):
            load_config("ppo", [], Layer("command line", {"run_dir": str(tmp_path), **wrong}))


def test_a_run_of_another_configuration_is_refused_with_the_differences(tmp_path):
    save_run(tmp_path, {"gamma": 0.9})
    before = sorted(tmp_path.rglob("*"))
    asked = {
        "env.id": "Acrobot-v1",
        "run_dir": str(tmp_path),
        "gamma": 0.8,
        "seed": 3,
        "num_epochs": 10,  # as it is
        "total_env_steps": 4096,  # may change
        "eval.episodes": 1,  # may change
        "report.interval_s": 9.0,  # may change
        "runtime.device": "cpu",  # may change
    }
    with pytest.raises(ConfigError) as raised:
        load_config("ppo", [], Layer("command line", asked))
    said = str(raised.value)
    assert "holds a run of another configuration" in said
    assert "  - env.id: the run has 'CartPole-v1', this command has 'Acrobot-v1'" in said
    assert "  - gamma: the run has 0.9, this command has 0.8" in said
    assert "  - seed: the run has 0, this command has 3" in said
    assert said.count("  - ") == 3
    assert "\ngive another --run-dir" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_differences_in_a_file_count_like_those_on_the_command_line(tmp_path):
    save_run(tmp_path, {"gamma": 0.9})
    command = Layer("command line", {**CARTPOLE, "run_dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"gamma: the run has 0\.9, this command has 0\.8"):
        load_config("ppo", [Layer("file f", {"gamma": 0.8})], command)
    load_config("ppo", [Layer("file f", {"gamma": 0.9})], command)


def test_automatic_values_of_a_command_keep_those_of_the_run(tmp_path):
    """Also over a file that names others, and where a word means no value."""
    save_run(tmp_path, {"runtime.compile": "off", "runtime.threads": 3})
    place = {**CARTPOLE, "run_dir": str(tmp_path)}
    file = Layer("file f", {"runtime.compile": "on", "runtime.device": "cuda"})
    given = {"runtime.compile": "auto", "runtime.device": "auto", "runtime.threads": "none"}
    config = load_config("ppo", [file], Layer("command line", place | given)).config
    assert (config.runtime.compile, config.runtime.device) == ("off", "auto")
    assert config.runtime.threads == 3


def test_lists_of_the_command_line_are_the_run_s(tmp_path):
    save_run(tmp_path, {"model.policy_hidden": [64, 64]})
    asked = {**CARTPOLE, "run_dir": str(tmp_path), "model.policy_hidden": ["64", "64"]}
    with pytest.raises(ConfigError) as raised:
        load_config("ppo", [], Layer("command line", asked | {"runtime.lag": 0}))
    assert "policy_hidden" not in str(raised.value)


def test_a_run_that_froze_empty_statistics_goes_on(tmp_path):
    """It began before that was refused."""
    config = compose("ppo", [Layer("x", CARTPOLE)]).config
    save_options(tmp_path, config.flat() | {"update_normalizers": False})
    asked = {**CARTPOLE, "run_dir": str(tmp_path)}
    assert not load_config(
        "ppo", [], Layer("command line", asked)
    ).config.learner.update_normalizers


def test_threads_of_pools_may_change(tmp_path):
    save_run(tmp_path, {"env.backend": "envpool", "env.num_threads": 2})
    asked = {**CARTPOLE, "run_dir": str(tmp_path), "env.num_threads": 1}
    assert load_config("ppo", [], Layer("command line", asked)).config.env.num_threads == 1


def test_resume_never_refuses_a_run_but_not_an_empty_folder(tmp_path):
    values = {**CARTPOLE, "run_dir": str(tmp_path), "resume": "never"}
    load_config("ppo", [], Layer("command line", values))
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match="--resume never must have a folder without a run"):
        load_config("ppo", [], Layer("command line", values))


def test_no_run_of_async_is_resumed_exactly(tmp_path):
    """There are no bytes to go back to, and newer checkpoints would be removed for nothing."""
    values = {**CARTPOLE, "run_dir": str(tmp_path), "resume": "exact", "runtime.kind": "async"}
    with pytest.raises(ConfigError, match=r"resume=exact must have .* use --resume latest"):
        load_config("impala", [], Layer("command line", values))
    load_config("impala", [], Layer("command line", {**values, "runtime.kind": "serial"}))


def test_what_a_saved_run_needed_for_more_learners_is_dropped_with_them(tmp_path):
    given = {"batch_unrolls": 4, "runtime.num_learners": 2, "runtime.learner_timeout_s": 600.0}
    config = compose("impala", [Layer("test", {**CARTPOLE, **given})]).config
    save_options(tmp_path, config.flat())
    command = {**CARTPOLE, "run_dir": str(tmp_path), "runtime.num_learners": 1}
    loaded = load_config("impala", [], Layer("command line", command))
    assert loaded.config.runtime.learner_timeout_s == 300.0
    command["runtime.learner_timeout_s"] = 9.0
    with pytest.raises(ConfigError, match=r"learner_timeout_s=9\.0 has no effect"):
        load_config("impala", [], Layer("command line", command))


def test_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / ".lock").touch()  # what a run that never began leaves
    assert read_saved(tmp_path) is None
    assert read_saved(tmp_path / "absent") is None
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"with thesis\.tex and no config\.yaml: give another"):
        read_saved(tmp_path)


@pytest.mark.parametrize("text", ["algo: [", "", "gamma: 0.9\n"])
def test_a_run_without_a_checkpoint_begins_again_by_the_commands_own_options(tmp_path, text):
    """Whatever its config.yaml says."""
    (tmp_path / "config.yaml").write_text(text)
    command = Layer("command line", {**CARTPOLE, "run_dir": str(tmp_path)})
    loaded = load_config("ppo", [], command)
    assert (loaded.config.learner.gamma, loaded.overwrite) == (0.99, False)
    (tmp_path / "metrics.jsonl").touch()
    assert not load_config("ppo", [], command).overwrite
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="must name a folder that a run has made"):
        load_config("ppo", [], command)
    (tmp_path / "run.json").touch()
    assert load_config("ppo", [], command).overwrite  # its reports are kept
    (tmp_path / "checkpoints/000000001").mkdir(parents=True)  # which the run itself refuses
    assert not load_config("ppo", [], command).overwrite


def test_the_default_folder_comes_from_algorithm_environment_and_seed():
    asked = {**CARTPOLE, "seed": 3}
    assert find_run_dir("ppo", asked) == Path("runs/ppo-CartPole-v1-s3").absolute()
    asked = {"env.id": "quintet.envs.toy:Target"}
    assert find_run_dir("ppo", asked).parts[-2:] == ("runs", "ppo-quintet.envs.toy_Target-s0")
    assert find_run_dir("ppo", {}) is None
    assert find_run_dir("ppo", {"run_dir": "x"}) == Path("x").absolute()


def test_a_file_with_words_of_yaml(tmp_path, capsys):
    (tmp_path / "words.yaml").write_text(
        "env: quintet.envs.toy:Contextual\npreset: ~\nruntime:\n  compile: off\n"
        "normalize_observations: off\nlearning_rate: 1e-3\ntotal_env_steps: 1e6\n"
        "minibatch_steps: ~\ncheckpoint:\n  save_best: no\nenv.kwargs: ~\n"
    )
    assert main(["config", "ppo", "--config", str(tmp_path / "words.yaml")]) == 0
    found = files.parse_yaml(capsys.readouterr().out)
    assert found["preset"] == "none"
    assert found["runtime.compile"] == "off"
    assert found["normalize_observations"] is found["checkpoint.save_best"] is False
    assert (found["learning_rate"], found["total_env_steps"]) == (1e-3, 10**6)
