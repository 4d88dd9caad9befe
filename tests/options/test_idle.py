"""Options that the spaces of a run leave without effect: refused, or dropped and told."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Dict, Discrete
from small_run_helpers import save_options

from quintet.errors import ConfigError
from quintet.options import layers
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.run import launch

PIXELS = {"env.id": "test_idle:Room", "env.num_streams": 2}


class Room(gymnasium.Env[Any, Any]):
    """A picture, and if asked for a number beside it."""

    action_space = Discrete(2)

    def __init__(self, speed: bool = False) -> None:
        picture = Box(0, 255, (36, 36), np.uint8)
        self.observation_space = (
            Dict({"camera": picture, "speed": Box(-1, 1)}) if speed else picture
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, {}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def resolved(
    algo: str = "impala", speed: bool = False, layer: str = "call", **values: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    options = {name.replace("__", "."): value for name, value in values.items()}
    source = partial(Room, speed)
    return resolution.resolved(load_config(algo, [], Layer(layer, PIXELS | options), source))


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_who_asks_for_what_does_nothing_is_refused(algo: str):
    options = {"normalize_pictures": False, "observation_clip": 3.0}
    with pytest.raises(ConfigError) as raised:
        resolved(algo, normalize_observations=True, **options)
    said = str(raised.value)
    assert "normalize_observations=True has no effect without floats in the observation" in said
    assert "(36, 36), uint8); normalize_pictures is for these" in said
    assert "observation_clip=3.0 has no effect without normalize_observations or" in said
    assert said.endswith("; leave it out")
    values, sources = resolved(algo, normalize_pictures=True, observation_clip=3.0)
    assert (values["normalize_pictures"], values["observation_clip"]) == (True, 3.0)
    assert sources["observation_clip"] == "call"
    values, _ = resolved(algo, speed=True, normalize_observations=True, **options)
    assert (values["normalize_observations"], values["normalize_pictures"]) == (True, False)


def test_the_encoder_says_what_is_a_picture():
    for encoder in ("mlp", "impala_cnn"):
        values, _ = resolved(normalize_pictures=True, model__encoder=encoder)
        assert values["normalize_pictures"]
    with pytest.raises(
        ConfigError, match=r"an observation that model\.encoder=torch\.nn:Linear reads"
    ):
        resolved(normalize_pictures=True, model__encoder="torch.nn:Linear")


def test_a_default_that_does_nothing_is_shown_as_off():
    values, sources = resolved("ppo")
    assert values["normalize_observations"] is False
    assert sources["normalize_observations"] == "resolved (default)"
    assert resolved("ppo", speed=True)[0]["normalize_observations"] is True


def test_what_a_preset_set_is_dropped_and_told(monkeypatch):
    given = layers.preset_layers

    def with_more(*args: Any) -> list[Layer]:
        (kind,) = given(*args)
        idle = {"normalize_observations": True, "observation_clip": 3.0}
        idle["normalize_pictures"] = False
        return [Layer(kind.source, {**kind.values, **idle})]

    monkeypatch.setattr("quintet.options.saved.preset_layers", with_more)
    values, sources = resolved("impala")
    assert (values["normalize_observations"], values["observation_clip"]) == (False, 5.0)
    for name in ("normalize_observations", "observation_clip"):
        assert sources[name] == "default (the value of preset pixels has no effect here)"
    values, sources = resolved("impala", speed=True)
    assert (values["normalize_observations"], values["observation_clip"]) == (True, 3.0)
    assert sources["observation_clip"] == "preset pixels"


def test_a_run_that_began_with_it_goes_on_with_it(tmp_path: Path):
    run_dir = tmp_path / "run"
    values, _ = resolved("impala")
    save_options(run_dir, values | {"normalize_observations": True, "observation_clip": 3.0})
    values, sources = resolved("impala", run_dir=str(run_dir))
    assert (values["normalize_observations"], values["observation_clip"]) == (True, 3.0)
    assert sources["normalize_observations"] == "saved run"


def test_a_run_keeps_what_was_in_force(tmp_path: Path):
    """And a policy of it has no statistics of what is not normalised."""
    small = {
        "env.num_streams": 2, "unroll_steps": 4, "minibatch_steps": 8, "num_epochs": 1,
        "model.policy_hidden": [8], "eval.episodes": 0, "report.progress": False,
    }  # fmt: skip
    for name, options in (("plain", {}), ("pixels", {"normalize_pictures": True})):
        source, command = Room, PIXELS | small | options | {"run_dir": str(tmp_path / name)}
        command["total_env_steps"] = 16
        result = launch.run(load_config("ppo", [], Layer("call", command), source))
        saved = yaml.safe_load((tmp_path / name / "config.yaml").read_text())
        assert saved["normalize_observations"] is False
        stored = [k for k in result.policy.publication.tensors if k.startswith("normalizer/")]
        assert len(stored) == (3 if options else 0)
        action, _ = result.policy.act(np.zeros((36, 36), np.uint8))
        assert action in (0, 1)


class Whole(torch.nn.Module):
    """Of all leaves, flat."""

    def __init__(self, leaves):
        super().__init__()
        self.feature_size = 8
        self.layer = torch.nn.LazyLinear(8)
        self.forward({k: torch.zeros(1, *x.shape) for k, x in leaves.items()})

    def forward(self, obs):
        return self.layer(torch.cat([x.float().flatten(1) for x in obs.values()], -1))


@pytest.mark.parametrize(
    ("own", "idle"),
    [({"model__encoder": "test_idle:Whole"}, "layer_norm"), ({"model__core": "none"}, "core_skip")],
)
def test_a_preset_leaves_nothing_idle_behind_where_the_network_is_the_user_s(
    monkeypatch, own: dict[str, str], idle: str
):
    """The preset is for grids: layers and memory."""
    given = layers.preset_layers

    def with_more(*args: Any) -> list[Layer]:
        (grid,) = given(*args)
        return [Layer(grid.source, {**grid.values, "model.layer_norm": True})]

    monkeypatch.setattr("quintet.options.saved.preset_layers", with_more)
    values, sources = resolved(**{"preset": "grid", "speed": True, **own})
    assert values[f"model.{idle}"] is False
    assert sources[f"model.{idle}"] == "default (the value of preset grid has no effect here)"
    # Who sets such an option learns what it needs.
    with pytest.raises(ConfigError, match=rf"{idle}=True has no effect without a"):
        resolved(**{"preset": "grid", "speed": True, **own, f"model__{idle}": True})


def test_arguments_of_an_encoder_that_takes_none_are_refused():
    says = r"encoder_kwargs=.* without film_grid, small_cnn or an encoder of your own \(model.enc"
    with pytest.raises(ConfigError, match=says):
        resolved(model__encoder="mlp", model__encoder_kwargs={"film_blocks": 3})


def test_options_that_became_arguments_of_film_grid_are_answered_with_these():
    says = r"unknown option 'model.film_blocks' .*here it is 'model.encoder_kwargs' \(keyword arg"
    with pytest.raises(ConfigError, match=says):
        resolved(model__film_blocks=3)
