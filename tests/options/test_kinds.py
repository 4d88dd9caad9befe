"""Presets by the kind of an environment that has none of its own, and presets that meet a user's
options.
"""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from small_run_helpers import save_options

from quintet.commands.cli import main
from quintet.envs.config import EnvConfig
from quintet.envs.resolved import resolve_env
from quintet.errors import ConfigError
from quintet.findings.start import many_streams
from quintet.options.facts import KindProbe
from quintet.options.layers import Layer, options, preset_layers
from quintet.options.resolve import Loaded, compose
from quintet.options.saved import load_config, load_seeds

KINDS = ("vector_discrete", "vector_continuous", "pixels", "atari")
made: list["Camera"] = []


class Camera(gymnasium.Env[Any, Any]):
    """Pictures of a given size beside two numbers; counts itself."""

    action_space = Discrete(2)

    def __init__(self, size: int = 36) -> None:
        self.observation_space = Dict(
            {"picture": Box(0, 255, (size, size, 3), np.uint8), "speed": Box(-1, 1, (2,))}
        )
        self.closed = False
        made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _count_anew_in_a_new_folder(monkeypatch, tmp_path):
    made.clear()
    monkeypatch.chdir(tmp_path)


def load(env: str, source: Any = None, algo: str = "ppo", **values: Any) -> Loaded:
    given = {"env.id": env, **{name.replace("__", "."): x for name, x in values.items()}}
    return load_config(algo, [], Layer("call", given), source)


def from_presets(loaded: Loaded) -> set[str]:
    return {source for source in loaded.sources.values() if source.startswith("preset")}


# The kind


@pytest.mark.parametrize(
    ("env", "backend", "kind"),
    [
        ("CartPole-v1", "gymnasium", "vector_discrete"),
        ("Pendulum-v1", "gymnasium", "vector_continuous"),
        ("quintet.envs.toy:MaskedDoors", "auto", "vector_discrete"),
        ("toys_helpers:ChooseAndAim", "auto", "vector_continuous"),
        ("FrozenLake-v1", "gymnasium", "vector_discrete"),
        ("Pong-v5", "ale", "atari"),
        ("ALE/Pong-v5", "gymnasium", "atari"),
        ("Pong-v5", "envpool", "atari"),
        ("Pendulum-v1", "envpool", "vector_continuous"),
    ],
)
def test_the_kind_of_an_environment(env, backend, kind):
    if backend in ("ale", "gymnasium") and "Pong" in env:
        pytest.importorskip("ale_py")
    if backend == "envpool":
        pytest.importorskip("envpool")
    assert KindProbe({"env.id": env, "env.backend": backend}).kind == kind


def test_the_kind_of_what_is_given_as_an_object():
    asked = {"env.id": "mine", "env.num_streams": 2}
    assert KindProbe(asked, Camera).kind == "pixels"
    too_small_for_nature_cnn = partial(Camera, 35)
    assert KindProbe(asked, too_small_for_nature_cnn).kind == "small_pixels"
    too_small = KindProbe({"env.id": "mine", "env.kwargs": {"size": 4}}, Camera)
    assert too_small.kind == "vector_discrete"
    pendulum = partial(gymnasium.make_vec, "Pendulum-v1", vectorization_mode="sync")
    assert KindProbe(asked, partial(pendulum, num_envs=1)).kind == "vector_continuous"
    assert all(env.closed for env in made)
    group = SyncVectorEnv([Camera, Camera])
    assert KindProbe(asked, group).kind == "pixels"
    assert len(made) == 5  # none beside the two that are given
    assert not any(env.closed for env in made[3:])
    group.close()


# Which preset it gives


def test_an_unknown_environment_gets_the_preset_of_its_kind():
    loaded = load("mine", Camera)
    assert from_presets(loaded) == {"preset pixels"}
    assert loaded.config.env.num_streams == 16
    assert loaded.config.model.shared_torso
    assert loaded.config.env.reward_clip == "none"
    assert loaded.config.learner.reward_normalizer == "return_std"
    # what is given wins
    loaded = load("mine", Camera, clip_epsilon=0.3)
    assert loaded.config.learner.clip_epsilon == 0.3
    assert loaded.sources["clip_epsilon"] == "call"


def test_atari_games_have_clipped_rewards_and_no_normaliser():
    layers = preset_layers("ppo", "Breakout-v5", "auto", lambda: "atari")
    config = compose("ppo", [*layers, Layer("call", {"env.id": "x"})], Camera).config
    assert (config.env.reward_clip, config.learner.reward_normalizer) == ("abs_one", "none")
    pixels = preset_layers("ppo", None, "pixels")[0].values
    assert pixels.items() <= layers[0].values.items()


def test_one_environment_is_made_where_nothing_else_tells_and_only_then(tmp_path):
    command = Layer("call", {"env.id": "mine", "run_dir": str(tmp_path)})
    loaded = load_seeds("ppo", [], command, [1, 2, 3], Camera)
    assert len(made) == 1
    assert made[0].closed
    assert all(isinstance(one, Loaded) and one.config.env.num_streams == 16 for one in loaded)
    load("CartPole-v1", Camera)  # an id that fits
    load("mine", Camera, preset="none")
    load("mine", Camera, preset="pixels")
    assert len(made) == 1
    load("mine", Camera, preset="kl_penalty")  # on top of the environment's
    assert len(made) == 2


def test_groups_fit_the_streams_that_the_kind_s_preset_gives():
    assert load("mine", Camera, env__streams_per_group=16).config.env.num_streams == 16


def test_a_saved_run_keeps_what_its_kind_gave_it(tmp_path):
    kept = compose("ppo", [Layer("x", {"env.id": "mine", "gamma": 0.5})], Camera)
    save_options(tmp_path, kept.config.flat())
    loaded = load("mine", Camera, run_dir=str(tmp_path))
    assert loaded.config.env.num_streams == 8
    assert loaded.config.learner.gamma == 0.5
    assert from_presets(loaded) == set()
    assert made == []


def test_a_kind_by_name_stands_in_place_of_the_environment_s_preset():
    (layer,) = preset_layers("ppo", "HalfCheetah-v4", "vector_continuous")
    assert layer.source == "preset vector_continuous"
    own, named = preset_layers("ppo", "x", "kl_penalty", lambda: "atari")
    assert (own.source, named.source) == ("preset atari", "preset kl_penalty")
    with pytest.raises(ConfigError, match=r"pixels.*; got 'pixel'; did you mean 'pixels'\?"):
        preset_layers("ppo", None, "pixel")


def test_no_preset_leaves_every_default():
    loaded = load("Pendulum-v1", preset="none")
    assert set(loaded.sources.values()) == {"default", "call", "given"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["auto", "clip", "kl_penalty", "tf_agents_base", "tf_agents_base_discrete"]
)
def test_every_preset_fits_on_every_kind(kind, name):
    layers = preset_layers("ppo", "x", name, lambda: kind)
    loaded = compose("ppo", [*layers, Layer("call", {"env.id": "x"})], Camera)
    assert set().union(*(layer.values for layer in layers)) <= set(options("ppo"))
    if name.startswith("tf_agents"):  # of the original, nothing but the budget may be lost
        theirs = {option for option, source in loaded.sources.items() if source == "preset " + kind}
        assert theirs <= {"total_env_steps"}


# Environments that can't be made


def no_camera() -> Any:
    raise RuntimeError("no camera is plugged in")


def test_an_environment_that_cannot_be_made_is_told_with_all_other_faults():
    with pytest.raises(ConfigError, match="it raised RuntimeError: no camera is plugged in"):
        load("mine", no_camera)
    with pytest.raises(ConfigError, match=r"(?s)^2 faults:.*'gama'.*nearest are CartPole-v1"):
        load("CartPol-v1", gama=0.5)
    with pytest.raises(ConfigError, match=r"^env\.num_streams: [^(]* got 0; [^(]*$"):
        load("Pendulum-v1", env__num_streams=0)
    assert load("Pendulum-v1", env__num_threads="none").config.env.num_threads is None
    with pytest.raises(ConfigError, match="there is no environment"):
        load_config("ppo", [], Layer("call", {}))


# Presets that meet a user's options


def test_what_a_preset_sets_and_the_user_s_options_leave_idle_is_dropped_and_told():
    loaded = load("HalfCheetah-v4", num_epochs=1)
    assert loaded.config.learner.refresh_advantages == "once"
    said = "default (the value of preset HalfCheetah-* has no effect here)"
    assert loaded.sources["refresh_advantages"] == said
    assert loaded.sources["normalize_advantage"] == "preset HalfCheetah-*"
    # which may make another option of effect that was idle beside it
    loaded = load("HalfCheetah-v4", num_epochs=1, value_source="recomputed")
    assert loaded.config.learner.value_source == "recomputed"


def test_the_user_s_own_idle_option_stays_a_fault_that_names_the_preset():
    with pytest.raises(ConfigError) as raised:
        load("mine", Camera, preset="atari", reward_norm_clip=3.0)
    assert str(raised.value) == (
        "reward_norm_clip=3.0 has no effect without reward_normalizer; leave it out "
        "(reward_normalizer from "
        "the preset atari; set it yourself, or use --preset none)"
    )
    with pytest.raises(ConfigError, match=r"^num_epochs: [^(]* got 0; [^(]*$"):  # his alone
        load("mine", Camera, num_epochs=0)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"env.num_streams": 1}, 64),
        ({"env.num_streams": 6}, 384),
        ({"env.num_streams": 33}, 352),  # not 512, 2112 rows are no multiple of it
        ({"env.num_streams": 40}, 512),
        ({"env.num_streams": 33, "drop_last": True}, 512),
        ({"unroll_steps": 12, "bptt_steps": 12, "model.core": "lstm", "env.num_streams": 5}, 60),
        ({"unroll_steps": 96, "bptt_steps": 24, "model.core": "lstm"}, 384),  # whole chunks
        ({"runtime.num_learners": 3, "env.num_streams": 33}, 264),  # a third each
    ],
)
def test_minibatches_of_a_preset_fit_a_user_s_streams(options, size):
    loaded = load("CartPole-v1", **options)
    assert loaded.config.learner.minibatch_steps == size
    fitted = "" if size == 512 else "resolved ("
    assert loaded.sources["minibatch_steps"].startswith(f"{fitted}preset CartPole-*")


@pytest.mark.parametrize(
    ("env", "options", "unroll", "minibatch"),
    [
        ("torch/CartPole-v1", {"env.num_streams": 4096}, 32, 32_768),
        ("Pendulum-v1", {"env.num_streams": 1024}, 32, 8_192),
        ("CartPole-v1", {"env.num_streams": 1023}, 64, 496),
        ("CartPole-v1", {"env.num_streams": 4096, "minibatch_steps": 1024}, 64, 1024),
        ("CartPole-v1", {"env.num_streams": 4096, "unroll_steps": 16}, 16, 512),
        ("CartPole-v1", {"env.num_streams": 4096, "preset": "tf_agents_base"}, 256, None),
        ("CartPole-v1", {"env.num_streams": 1025, "model.core": "lstm"}, 64, 320),  # by chunks
    ],
)
def test_thousands_of_streams_get_a_short_unroll_and_large_minibatches(
    env, options, unroll, minibatch
):
    loaded = load(env, total_env_steps=10_000_000, **options)
    learner = loaded.config.learner
    assert (learner.unroll_steps, learner.minibatch_steps) == (unroll, minibatch)
    chosen = minibatch in (32_768, 8_192)
    assert (loaded.sources["minibatch_steps"] == "resolved (for many streams)") is chosen
    told = [each.said for each in many_streams(loaded)]
    assert bool(told) is chosen
    if told:
        assert f"unroll_steps=32 and minibatch_steps={minibatch} were chosen for" in told[0]


@pytest.mark.parametrize(
    "options",
    [
        {"env.num_streams": 1, "unroll_steps": 521},  # a prime number of rows
        {"unroll_steps": 20, "model.core": "lstm", "env.num_streams": 33},
    ],
)
def test_minibatches_that_would_be_tiny_or_part_a_chunk_are_refused_by_the_preset_s_name(options):
    with pytest.raises(ConfigError, match=r"minibatch_steps from the preset CartPole-\*"):
        load("CartPole-v1", **options)


def test_a_user_s_own_minibatches_are_left_alone():
    with pytest.raises(ConfigError, match="minibatch_steps must be at most the batch of 4 streams"):
        load("CartPole-v1", **{"env.num_streams": 4, "minibatch_steps": 512})


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 512),
        ({"unroll_steps": 48}, 480),
        ({"unroll_steps": 48, "bptt_steps": 16, "minibatches_per_iteration": 3}, 512),
        ({"unroll_steps": 48, "bptt_steps": 16, "minibatches_per_iteration": 2}, 480),
        ({"unroll_steps": 300}, 300),
        ({"runtime.num_learners": 3}, 480),  # 5 chunks of 32 for each
    ],
)
def test_minibatches_of_appo_are_whole_chunks_of_a_user_s_unrolls(options, size):
    loaded = load("CartPole-v1", algo="appo", **options)
    assert loaded.config.learner.minibatch_steps == size
    with pytest.raises(ConfigError, match="minibatch_steps must be a multiple of unroll_steps=48"):
        load("CartPole-v1", algo="appo", unroll_steps=48, minibatch_steps=512)
    with pytest.raises(ConfigError, match=r"of unroll_steps=600, got 512.*from the preset"):
        load("CartPole-v1", algo="appo", unroll_steps=600)


def test_what_a_preset_sets_for_other_spaces_is_dropped_and_told(capsys):
    assert main(["config", "ppo", "--env", "CartPole-v1", "--preset", "tf_agents_base"]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    told = {line[0]: line[1:] for line in lines}
    source = "default (the value of preset tf_agents_base has no effect here)"
    assert told["model.action_bounds:"] == ["clip", "#", source]


def test_quintet_config_shows_the_kind(capsys, tmp_path):
    where = ["--env", "tests_kinds_camera:Camera", "--run-dir", str(tmp_path / "run")]
    (tmp_path / "tests_kinds_camera.py").write_text(f"from {__name__} import Camera\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert main(["config", "ppo", *where, "--num-epochs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["clip_epsilon:", "0.1", "#", "preset", "pixels"] for line in lines)
    assert any(line.split() == ["num_epochs:", "1", "#", "command", "line"] for line in lines)


def test_the_spaces_of_the_environment_that_was_made_for_the_kind():
    probe = KindProbe({"env.id": "mine", "env.kwargs": {"size": 12}}, Camera)
    asked = resolve_env(EnvConfig(id="mine", kwargs={"size": 12}), Camera)
    assert probe.look(asked)[1] is None  # none was made yet
    assert probe.kind == "small_pixels"
    count = len(made)
    env, spaces = probe.look(asked.with_options({"num_streams": 5, "success": "reward>0"}))
    assert spaces is not None
    assert env.config.mask_from_info is False
    assert spaces.observation["picture"].shape == (12, 12, 3)
    other = resolve_env(EnvConfig(id="mine", kwargs={"size": 40}), Camera)
    assert probe.look(other) == (other, None)
    assert probe.look(asked.with_options({"observe_last": True}))[1] is None
    assert len(made) == count
