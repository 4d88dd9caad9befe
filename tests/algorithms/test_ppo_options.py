"""No option without effect: each one, set to another value, changes the loss or the gradient on
fixed data, or else what can be seen of the run.  The lists are those of the classes: a new option
fails here until it has an entry.  Options that may change during a run have theirs in
test_tunable.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium import spaces as gym
from ppo_helpers import (
    CONTINUOUS,
    DISCRETE,
    GRID,
    PICTURE,
    TOTAL,
    learn,
    make_learner,
    make_obs,
    make_rollout,
    valid_rows,
    with_states,
)
from torch import Tensor, nn

from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import make_actor
from quintet.errors import NonFiniteError
from quintet.models.config import GridOptions, ModelConfig, resolve_model
from quintet.options.declaration import tunable
from quintet.types import Spaces

BASE: dict[str, Any] = {"unroll_steps": 16, "minibatch_steps": 16, "num_epochs": 2}
FEED_FORWARD: dict[str, Any] = {"policy_hidden": (8,)}
RECURRENT = {"policy_hidden": (8,), "core": "lstm", "core_size": 6}

# What an option is changed to, and what it needs beside it to matter at all.
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "advantage_estimator": ("monte_carlo", {}),
    "value_target": ("monte_carlo", {}),
    "value_source": ("recomputed", {}),
    "refresh_advantages": ("per_epoch", {"value_source": "recorded"}),
    "normalize_advantage": ("minibatch", {}),
    "truncation_as_termination": (True, {}),
    "unfinished_episode": ("drop", {}),
    "unroll_steps": (12, {}),
    "minibatch_steps": (None, {}),
    "drop_last": (True, {"minibatch_steps": 10}),
    "bptt_steps": (8, {"bptt_steps": 4}),
    "clip_schedule": ("linear", {}),
    "kl_coef_init": (1.0, {}),
    "reduction": ("mean_over_all", {}),
    "normalize_observations": (False, {}),
    "normalize_pictures": (True, {}),
    "observation_clip": (0.5, {}),
    "reward_normalizer": ("step_std", {}),
    "reward_norm_clip": (0.1, {}),
    "normalizer_variance_epsilon": (1.0, {}),
    "update_normalizers": (False, {}),
    "lr_schedule": ("constant", {}),
    "check_numerics": (True, {}),
    "log_histograms": (True, {}),
    "log_gradients": (True, {}),
    "noise_correlation": (0.7, {}),
}
NETWORK: dict[str, dict[str, Any]] = {"bptt_steps": RECURRENT}
SPACES = {"normalize_pictures": PICTURE}

# The same of the network, and the spaces in which it matters.
TWO_LEAVES = Spaces(
    gym.Dict({name: gym.Box(-9.0, 9.0, (2,)) for name in ("far", "near")}),
    gym.Discrete(3),
)
MODEL_CHANGES: dict[str, tuple[Any, dict[str, Any], Spaces]] = {
    "encoder": ("impala_cnn", {"encoder": "nature_cnn"}, PICTURE),
    "encoder_kwargs": (
        {"width": 7},
        {"encoder": "test_ppo_options:Own", "encoder_kwargs": {"width": 5}},
        DISCRETE,
    ),
    "policy_hidden": ((6,), {"value_hidden": (8,)}, DISCRETE),
    "value_hidden": ((6,), {"policy_hidden": (8,)}, DISCRETE),
    "shared_torso": (True, FEED_FORWARD, DISCRETE),
    "critic_leaves": (("far",), FEED_FORWARD, TWO_LEAVES),
    "activation": ("relu", FEED_FORWARD, DISCRETE),
    "layer_norm": (True, FEED_FORWARD, DISCRETE),
    "core": ("gru", RECURRENT, DISCRETE),
    "core_size": (5, RECURRENT, DISCRETE),
    "core_layers": (2, RECURRENT, DISCRETE),
    "core_skip": (True, RECURRENT, DISCRETE),
    "init": ("truncated_normal", FEED_FORWARD, DISCRETE),
    "action_std": ("softplus", FEED_FORWARD, CONTINUOUS),
    "action_std_init": (0.5, FEED_FORWARD, CONTINUOUS),
    "action_bounds": ("squash", FEED_FORWARD, CONTINUOUS),
}
# The same of film_grid's arguments: what they are changed to.
FILM = {"image_channels": 4, "film_blocks": 1, "text_hidden": 6, "text_embedding": 5}
FILM_CHANGES: dict[str, Any] = {
    "tokenizer": "bytes",
    "vocabulary": ("red", "ball"),
    "hash_buckets": 7,
    "text_embedding": 4,
    "text_hidden": 5,
    "text_pooling": "attention",
    "image_channels": 5,
    "film_blocks": 2,
    "bidirectional_film": True,
}


class Own(nn.Module):
    """An encoder of a user's own."""

    def __init__(self, leaves: dict[str, gym.Space], width: int):
        super().__init__()
        self.feature_size = width
        self.linear = nn.Linear(leaves["obs"].shape[0], width)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.linear(obs["obs"])


class Steps:
    """Loss and gradient of every optimizer step over two iterations, so that what the first put
    into normalisers and schedules has had its effect.
    """

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces = DISCRETE):
        self.found: list[tuple[float, Tensor]] = []
        self.metrics: dict[str, float] = {}
        self.learner = make_learner(config, spaces, model)
        trained = self.learner.trained
        step, descend, gradients = trained.step, trained._apply, []

        def watch_gradient(grad: Tensor, numbers: Tensor) -> Tensor:
            gradients.append(grad.clone())
            return descend(grad, numbers)

        def watch(*args: Any) -> None:
            step(*args)
            total = trained.recent(trained.pending - 1)["loss/total"].item()
            self.found.append((total, gradients.pop()))

        trained._apply, trained.step = watch_gradient, watch
        for iteration in range(2):
            batch = make_rollout(spaces, config.unroll_steps, seed=iteration + 1)
            batch = with_states(self.learner, batch)
            self.metrics = learn(self.learner, batch, iteration * TOTAL // 3)

    def differ(self, other: "Steps") -> bool:
        """By more than 1e-6 in a loss or in an element of a gradient, or in their number."""
        if len(self.found) != len(other.found):
            return True
        return any(
            abs(a - b) > 1e-6 or x.shape != y.shape or bool((x - y).abs().max() > 1e-6)
            for (a, x), (b, y) in zip(self.found, other.found, strict=True)
        )


def numerics_are_checked(before: PPOConfig, after: PPOConfig) -> None:
    batch = make_rollout(seed=1)
    batch.record["logp_mu"].fill_(float("nan"))
    said = []
    for config in (before, after):
        with pytest.raises(NonFiniteError) as error:
            make_learner(config).update(batch, 0)
        said.append("rho" in str(error.value))
    assert said == [False, True]


def histograms_appear(before: PPOConfig, after: PPOConfig) -> None:
    off, on = (Steps(config, ModelConfig(**FEED_FORWARD)) for config in (before, after))
    assert off.learner.histograms() == {}
    assert len(on.learner.histograms()) > 20
    assert not on.differ(off)


def norms_appear(before: PPOConfig, after: PPOConfig) -> None:
    off, on = (Steps(config, ModelConfig(**FEED_FORWARD)) for config in (before, after))
    assert {name.split("/")[0] for name in set(on.metrics) - set(off.metrics)} == {
        "grad_norm",
        "param_norm",
    }
    assert not on.differ(off)


def noise_follows_the_last(before: PPOConfig, after: PPOConfig) -> None:
    model, streams = resolve_model(ModelConfig(**FEED_FORWARD), CONTINUOUS), 2000
    found = []
    for config in (before, after):
        actor = make_actor(config, model, CONTINUOUS)
        actor.load(make_learner(config, CONTINUOUS, model).publication())
        state, g = actor.initial_state(streams), torch.Generator().manual_seed(5)
        obs, actions = {"obs": torch.zeros(streams, 3)}, []
        for noise in actor.draw_noise(2, streams, g):
            first = torch.full((streams,), not actions)
            out = actor.act(obs, state, first, noise)
            actions.append(out.action)
            state = out.state
            logp = actor.family.log_prob(out.record["params_mu"], out.action)
            assert torch.equal(logp, out.record["logp_mu"])  # of the policy alone
        both = torch.stack([each[:, 0] for each in actions])
        assert both.std(1).tolist() == pytest.approx([1.0, 1.0], abs=0.05)
        found.append(torch.corrcoef(both)[0, 1].item())
    assert found == pytest.approx([0.0, 0.7], abs=0.05)


# Options that must not change what is learned from given data; what they do change.
REPORTS: dict[str, Callable[[PPOConfig, PPOConfig], None]] = {
    "check_numerics": numerics_are_checked,
    "log_histograms": histograms_appear,
    "log_gradients": norms_appear,
    "noise_correlation": noise_follows_the_last,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_option_has_an_effect(name: str):
    value, companions = CHANGES[name]
    before = PPOConfig(**(BASE | companions))
    after = PPOConfig(**(BASE | companions | {name: value}))
    assert getattr(before, name) != value
    if name in REPORTS:
        REPORTS[name](before, after)
        return
    model = ModelConfig(**NETWORK.get(name, FEED_FORWARD))
    spaces = SPACES.get(name, DISCRETE)
    assert Steps(before, model, spaces).differ(Steps(after, model, spaces))


@pytest.mark.parametrize("name", list(ModelConfig.model_fields))
def test_the_model_option_has_an_effect(name: str):
    value, companions, spaces = MODEL_CHANGES[name]
    before, after = ModelConfig(**companions), ModelConfig(**(companions | {name: value}))
    assert getattr(before, name) != value
    options = BASE | ({"bptt_steps": 8} if before.core != "none" else {})
    config = PPOConfig(**options)
    require_other_numbers(config, before, after, spaces)


def require_other_numbers(
    config: PPOConfig, before: ModelConfig, after: ModelConfig, spaces: Spaces
) -> None:
    steps = [Steps(config, model, spaces) for model in (before, after)]
    losses = [[loss for loss, _ in each.found] for each in steps]
    # Not only other shapes, but other numbers.
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) > 1e-6


@pytest.mark.parametrize("name", FILM_CHANGES)
def test_the_argument_of_film_grid_has_an_effect(name: str):
    before, after = (
        ModelConfig(policy_hidden=(8,), encoder="film_grid", encoder_kwargs=kwargs)
        for kwargs in (FILM, FILM | {name: FILM_CHANGES[name]})
    )
    require_other_numbers(PPOConfig(**BASE), before, after, GRID)


def test_no_entry_is_of_another_option():
    assert set(CHANGES) == PPOConfig.model_fields.keys() - tunable(PPOConfig).keys()
    assert set(MODEL_CHANGES) == set(ModelConfig.model_fields)
    # This one changes results by rounding only: tests/models/test_film_grid.py.
    assert {*FILM_CHANGES, "deduplicate_text"} == set(GridOptions.model_fields)
    assert set(REPORTS) | set(NETWORK) | set(SPACES) <= set(CHANGES)


@pytest.mark.parametrize("options", [FEED_FORWARD, RECURRENT])
def test_the_comparison_can_fail(options: dict[str, Any]):
    config = PPOConfig(**BASE, bptt_steps=8)
    steps = [Steps(config, ModelConfig(**options)) for _ in range(2)]
    assert len(steps[0].found) > 10
    assert not steps[0].differ(steps[1])


def test_unroll_steps_is_what_is_asked_of_the_runtime():
    assert make_learner(PPOConfig(unroll_steps=12, minibatch_steps=8)).plan.unroll_steps == 12


def test_bptt_steps_is_how_often_states_are_asked_for():
    config, model = PPOConfig(unroll_steps=12, bptt_steps=4), ModelConfig(**RECURRENT)
    assert make_learner(config, model=model).plan.state_every == 4


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({}, True),
        ({"update_normalizers": False}, False),
        ({"normalize_observations": False}, False),
    ],
)
def test_published_statistics(change: dict[str, Any], moves: bool):
    learner = make_learner(PPOConfig(**(BASE | change)))
    learner.update(make_rollout(seed=1), 0)
    found = [x for k, x in learner.publication().tensors.items() if k.startswith("normalizer/")]
    assert any(bool((x != 0).any()) for x in found) == moves


OUTPUTS: dict[str, set[str]] = {
    "value_hidden": {"value"},
    "policy_hidden": {"params", "logp"},
    "shared_torso": {"value"},
    "action_std_init": {"params", "logp", "action"},
    "action_bounds": {"logp", "action"},
    "activation": {"params", "value", "logp"},
    "layer_norm": {"params", "value", "logp"},
    "init": {"params", "value", "logp"},
}


@pytest.mark.parametrize("name", list(OUTPUTS))
def test_the_model_option_changes_what_it_is_for(name: str):
    value, companions, spaces = MODEL_CHANGES[name]
    obs = make_obs(spaces, (6,), torch.Generator().manual_seed(1))
    outputs = []
    for options in (companions, companions | {name: value}):
        model = ModelConfig(**options)
        learner = make_learner(PPOConfig(**BASE), spaces, model)
        with torch.no_grad():
            params, state_value, _ = learner.network(obs)
        family = learner.family
        action = family.sample(params, family.draw_noise((6,), torch.Generator().manual_seed(2)))
        outputs.append(
            {
                "params": params,
                "value": state_value,
                "logp": family.log_prob(params, action),
                "action": family.to_env(action),
            }
        )
    one, other = outputs
    changed = {x for x in one if bool((one[x].double() - other[x].double()).abs().max() > 1e-6)}
    assert OUTPUTS[name] <= changed
    if name == "value_hidden":
        assert changed == {"value"}


@pytest.mark.parametrize("kind", ["softplus", "state_dependent"])
def test_action_std_changes_what_an_update_does_to_the_width(kind: str):
    batch, widths = make_rollout(CONTINUOUS, seed=1), []
    for std in ("state_independent", kind):
        model = ModelConfig(policy_hidden=(8,), action_std=std)
        learner = make_learner(PPOConfig(**BASE), CONTINUOUS, model)
        learner.update(batch, 0)
        rows, _ = valid_rows(learner, batch)
        with torch.no_grad():
            widths.append(learner.network(rows.obs)[0][:, 2:])
    assert bool((widths[0] - widths[1]).abs().max() > 1e-6)
    assert bool((widths[1] - widths[1][:1]).abs().max() > 1e-6) == (kind == "state_dependent")
