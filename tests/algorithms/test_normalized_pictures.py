"""Pictures that are normalised by pixel: the statistics, that learning and acting see the same, and
that what is said to have no effect has none.
"""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import ppo_helpers
import pytest
import torch
from conformance_helpers import MASKED, Case, go_on, options_without_effect
from gymnasium import spaces as gym
from ppo_helpers import DISCRETE, GRID, PICTURE, learn
from torch import Tensor, nn

from quintet.algorithms.impala import learner as impala
from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.ppo import learner as ppo
from quintet.algorithms.ppo.config import PPOConfig
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.normalize import ObservationNormalizer
from quintet.types import Obs, Rollout, Spaces

MODEL = ModelConfig(policy_hidden=(8,), shared_torso=True)
BOTH = Spaces(
    gym.Dict({"camera": PICTURE.observation, "speed": DISCRETE.observation}), gym.Discrete(3)
)
CONFIGS: dict[str, Any] = {
    "ppo": PPOConfig(
        unroll_steps=16, minibatch_steps=32, num_epochs=1, normalize_pictures=True,
        observation_clip=1.2,
    ),
    "impala": ImpalaConfig(
        unroll_steps=16, batch_unrolls=4, normalize_pictures=True, observation_clip=1.2,
    ),
}  # fmt: skip
LEARNERS = {"ppo": ppo.PPOLearner, "impala": impala.ImpalaLearner}
ACTORS = {"ppo": ppo.make_actor, "impala": impala.make_actor}


def make(algo: str, spaces: Spaces = PICTURE, config: Any = None, compute: Any = None) -> Any:
    setup = Setup(4, 10_000, (1, 2), torch.device("cpu"), compute or Compute())
    return LEARNERS[algo](config or CONFIGS[algo], resolve_model(MODEL, spaces), spaces, setup)


def batch_of(seed: int, spaces: Spaces = PICTURE) -> Rollout:
    """With rows that are not valid; the pictures are darker in some parts than in others."""
    batch = ppo_helpers.make_rollout(spaces, seed=seed)
    assert not batch.valid.all()
    for x in batch.obs.values():
        if x.dtype == torch.uint8:
            x[..., :9] //= 7
    return batch


def pixels(batches: list[Rollout], name: str = "obs") -> np.ndarray:
    """All that was really seen, in [0, 1]."""
    return np.concatenate([b.obs[name][:-1][b.valid].numpy() for b in batches]) / 255.0


@pytest.mark.parametrize("algo", LEARNERS)
def test_statistics_are_those_of_all_valid_rows(algo: str):
    learner, batches = make(algo), [batch_of(seed) for seed in range(3)]
    frames = {"obs": batches[2].obs["obs"][0]}
    scaled = learner.normalizers.observations(frames)["obs"]
    torch.testing.assert_close(scaled, frames["obs"] / 255.0)
    for batch in batches:
        metrics = learn(learner, batch, 0)
    seen, moments = pixels(batches), learner.normalizers.observations.leaf_moments("obs")
    assert moments.count == len(seen) < 3 * 16 * 4
    np.testing.assert_allclose(moments.mean.numpy() / 255.0, seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy() / 255.0**2, seen.var(0), rtol=1e-11)
    z = (frames["obs"].numpy() / 255.0 - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-3)
    found = learner.normalizers.observations(frames)["obs"]
    np.testing.assert_allclose(found.numpy(), z.clip(-1.2, 1.2), rtol=1e-4, atol=1e-5)
    # Of the last batch, by the statistics of those before.
    before = pixels(batches[:2])
    z = (pixels(batches[2:]) - before.mean(0)) / np.sqrt(before.var(0) + 1e-3)
    share = metrics["normalizer/observation_clip_frac"]
    assert share == pytest.approx((np.abs(z) >= 1.2).mean(), abs=1e-4)
    assert 0.01 < share < 0.5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("algo", LEARNERS)
def test_what_learns_sees_what_acted(algo: str, precision: Any):
    compute = Compute(precision)
    learner = make(algo, BOTH, compute=compute)
    model = resolve_model(MODEL, BOTH)
    actor = ACTORS[algo](CONFIGS[algo], model, BOTH, compute)
    tolerance = 1e-5 if precision == "fp32" else 0.03
    params = []
    for seed in range(2):
        batch = batch_of(seed, BOTH)
        obs = {name: x[0] for name, x in batch.obs.items()}
        actor.load(learner.publication())
        acted, _, _ = actor._forward(obs, {}, batch.is_first[0])
        with torch.no_grad():
            learned, _, _ = learner.network(learner.normalizers.observations(obs))
            raw, _, _ = learner.network(obs)
        torch.testing.assert_close(acted, learned, rtol=tolerance, atol=tolerance)
        params.append((learned - raw).abs().max())
        learner.update(batch, 0)
    assert params[1] > 10 * params[0]  # from the first statistics on it matters


@pytest.mark.parametrize("algo", LEARNERS)
def test_statistics_are_saved_loaded_and_donated(algo: str):
    learner = make(algo)
    for seed in range(2):
        learner.update(batch_of(seed), 0)
    resumed, warm = make(algo), make(algo)
    resumed.load(learner.save())
    warm.warm_start(learner.weights())
    frames = {"obs": batch_of(5).obs["obs"][0]}
    for other in (resumed, warm):
        assert torch.equal(
            other.normalizers.observations(frames)["obs"],
            learner.normalizers.observations(frames)["obs"],
        )
    for one in (learner, resumed):
        one.update(batch_of(2), 0)
    states = [one.save().tensors for one in (learner, resumed)]
    assert all(torch.equal(states[1][name], x) for name, x in states[0].items())


@pytest.mark.parametrize("begun", [True, False])
def test_the_share_at_the_clip_is_that_of_the_rows_in_use(begun: bool):
    """Of all leaves, those without dimensions and pictures too, and without the rows behind."""
    normalizer = ObservationNormalizer({"a": (3,), "b": ()}, 1.0, 1e-3, {"p": (2, 5)})
    g = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> Obs:
        picture = torch.randint(0, 256, (rows, 2, 5), generator=g).to(torch.uint8)
        a, b = (torch.randn(rows, *shape, generator=g) for shape in ((3,), ()))
        return {"a": a, "b": b, "p": picture}

    if begun:
        seen = {name: x.unsqueeze(1) for name, x in drawn(50).items()}
        normalizer.merge(seen, torch.ones(50, 1, dtype=torch.bool))
    use = torch.tensor([[True, False], [True, True], [False, True]])
    obs = normalizer(drawn(use.numel() + 2))
    rows = use.flatten().numpy()
    at = [np.abs(x.numpy()[: len(rows)][rows]).reshape(4, -1) >= 1.0 for x in obs.values()]
    wanted = np.concatenate(at, 1).mean() if begun else 0.0
    assert begun == (0.1 < wanted < 0.9)
    assert normalizer.clip_share(obs, use, use.sum()) == pytest.approx(wanted)
    of_rank = normalizer.clip_share(obs, use, 2 * use.sum())
    assert of_rank == pytest.approx(wanted / 2)


LEARN_FROM_BATCHES: dict[str, Case] = {
    "ppo": Case("ppo", MASKED),
    "impala": Case("impala", MASKED, core="gru"),
    "appo": Case("appo", MASKED, core="gru"),
    "appo with GAE": Case("appo", MASKED, {"use_vtrace": False}, core="gru"),
    "acer": Case("acer", MASKED, {"trust_region_delta": 1e-3}, core="gru"),
    "acer, sampled": Case("acer", options={"trust_region_delta": 1e-3}),
}


@pytest.mark.parametrize("name", LEARN_FROM_BATCHES)
def test_an_update_reads_nothing_but_what_is_normalised(name: str):
    """It is the update of a learner whose own normaliser leaves normalised observations as they
    are.
    """
    plain = LEARN_FROM_BATCHES[name]
    case = replace(plain, options={**plain.options, "normalize_observations": True})
    first, second, _ = case.batches(3)
    learner, other = case.learner(), case.learner()
    go_on(learner, [first])
    other.load(copy.deepcopy(learner.save()))
    own, theirs = learner.normalizers.observations, other.normalizers.observations
    (leaf,) = theirs.names
    moments = theirs.leaf_moments(leaf)
    moments.mean.zero_()
    moments.m2.copy_(moments.count * (1.0 - theirs.epsilon))
    theirs._refresh()
    given = replace(second[0], obs=own(second[0].obs))
    assert (given.obs[leaf] - second[0].obs[leaf]).abs().max() > 0.1
    before = learner.trained.theta.clone()
    learner.update(second[0], 0)
    other.update(given, 0)
    moved = (learner.trained.theta - before).abs().max()
    assert moved > 1e-4
    assert (other.trained.theta - learner.trained.theta).abs().max() < 1e-3 * moved


# What does nothing is told


class Sees(nn.Module):
    """A part of the camera's first colour, as it was given, and the speed."""

    def __init__(self, leaves: dict[str, gym.Space]):
        super().__init__()
        self.feature_size = 5
        self.linear = nn.Linear(16 + leaves["speed"].shape[0], 5)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        assert obs["camera"].dtype == torch.uint8
        part = obs["camera"][:, 4:8, 4:8, 0].flatten(1).float() / 255.0
        return self.linear(torch.cat((part, obs["speed"]), 1))


GREY = Spaces(gym.Box(0, 255, (12,), np.uint8), gym.Discrete(3))
CASES = {
    "floats": (DISCRETE, ModelConfig(policy_hidden=(8,))),
    "picture": (PICTURE, MODEL),
    "both": (BOTH, MODEL),
    "mlp on a picture": (PICTURE, ModelConfig(policy_hidden=(8,), encoder="mlp")),
    "bytes": (GREY, ModelConfig(policy_hidden=(8,))),
    "grid": (GRID, ModelConfig(policy_hidden=(8,))),
    "own encoder": (BOTH, ModelConfig(encoder="test_normalized_pictures:Sees")),
}
CHANGES: dict[str, Any] = {
    "normalize_observations": True,
    "normalize_pictures": True,
    "observation_clip": 0.5,
    "normalizer_variance_epsilon": 1.0,
    "update_normalizers": False,
}
IDLE = {
    "floats": {"normalize_pictures"},
    "picture": {"normalize_observations"},
    "both": set(),
    "mlp on a picture": {"normalize_observations"},
    "bytes": set(CHANGES),
    "grid": set(CHANGES),
    "own encoder": {"normalize_pictures"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algo", ["ppo", pytest.param("impala", marks=pytest.mark.slow)])
def test_what_is_said_to_have_no_effect_has_none_and_all_else_has_some(algo: str, case: str):
    spaces, model = CASES[case]
    model = resolve_model(model, spaces)
    setup = Setup(4, 10_000, (1, 2), torch.device("cpu"))
    base: dict[str, Any] = {"unroll_steps": 16}
    if algo == "ppo":
        base |= {"reward_normalizer": "none", "minibatch_steps": 32, "num_epochs": 1}

    @cache  # two of them are beside every change
    def after(**options: Any) -> torch.Tensor:
        learner = LEARNERS[algo](type(CONFIGS[algo])(**base, **options), model, spaces, setup)
        for seed in range(3):
            learner.update(batch_of(seed, spaces), 0)
        return learner.trained.theta

    for name, value in CHANGES.items():
        begins = not name.startswith("normalize_")
        before = {"normalize_observations": begins, "normalize_pictures": begins}
        config = type(CONFIGS[algo])(**base, **(before | {name: value}))
        idle = name in options_without_effect(config, model, spaces)
        same = torch.equal(after(**before), after(**(before | {name: value})))
        assert idle == same == (name in IDLE[case]), name
