"""DDPG's explorers: streams that know nothing of each other, and parameter noise that finds its
size.
"""

from itertools import combinations, pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conformance_helpers import NUMBERS, Case, Task
from ddpg_helpers import NETWORK, acting, case, replayed
from gymnasium import spaces as gym
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.ddpg.network import perturbable
from quintet.models.flat import views_of

STREAMS, STEPS = 6, 2_000
PARAM = "adaptive-param_0.5"


def correlation(x: Tensor, y: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((x, y)))[0, 1])


def acted(of: Case, starts: Tensor) -> tuple[list[Tensor], list[dict[str, Tensor]], Tensor]:
    """Actions and states of acts on the same observation, and the noise.

    starts: ``[T, B]``.
    """
    actor, state = acting(of, starts.shape[1])
    noise = actor.draw_noise(*starts.shape, torch.Generator().manual_seed(0))
    obs = {"obs": torch.zeros(starts.shape[1], 3)}
    actions, states = [], []
    for first, row in zip(starts, noise, strict=True):
        out = actor.act(obs, state, first, row)
        state = out.state
        actions.append(out.action)
        states.append(state)
    return actions, states, noise


def begun(*shape: int) -> Tensor:
    starts = torch.zeros(shape, dtype=torch.bool)
    starts[0] = True
    return starts


# Streams


@pytest.mark.parametrize(
    ("exploration", "options"),
    [("normal_0.1", {}), ("ou_0.3", {"ou_theta": 10.0, "ou_dt": 0.05})],
    ids=["normal", "ou"],
)
def test_noises_of_streams_dimensions_and_times_are_uncorrelated(
    exploration: str, options: dict[str, Any]
) -> None:
    """An Ornstein-Uhlenbeck process keeps half of itself from step to step here, so its kicks are
    compared.
    """
    of = case(exploration=exploration, normalize_observations=False, **options)
    actions, states, _ = acted(of, begun(STEPS, STREAMS))
    if options:
        x = torch.stack([torch.zeros_like(actions[0]), *(state["ou"] for state in states)])
        x = x[1:] - 0.5 * x[:-1]
    else:
        x = torch.stack(actions)  # the policy's own action is the same in every act
    series = x.flatten(1).unbind(1)
    assert len(series) == 2 * STREAMS
    assert all(each.std() > 0.05 for each in series)
    found = [correlation(a, b) for a, b in combinations(series, 2)]
    found += [correlation(a[1:], b[:-1]) for a in series for b in series]
    assert max(map(abs, found)) < 4.5 / STEPS**0.5


def test_a_process_begins_anew_at_its_own_streams_start() -> None:
    of = case(exploration="ou_0.3", normalize_observations=False)
    starts = begun(5, 3)
    starts[3, 1] = True
    _, states, noise = acted(of, starts)
    kick = 0.3 * 0.01**0.5 * noise[:, :, 3:5].float()
    for stream in range(3):
        x = torch.zeros(2)
        for t in range(5):
            x = kick[t, stream] + (0.0 if starts[t, stream] else 1 - 0.15 * 0.01) * x
            torch.testing.assert_close(states[t]["ou"][stream], x)


def test_perturbations_of_streams_and_episodes_are_uncorrelated() -> None:
    """Each is drawn at its own stream's start, with the standard deviation that was published."""
    of = Case(
        "ddpg",
        options={"exploration": PARAM},
        network=NETWORK | {"policy_hidden": (64, 64)},
    )
    starts = begun(40, 4)
    starts[10, 0] = starts[20, 1] = starts[20, 2] = starts[30, 0] = True
    actor, _ = acting(of, 1)
    _, states, _ = acted(of, starts)
    may_move = perturbable(actor.network)
    moved = torch.cat([torch.full(x, may_move[name]).flatten() for name, x in actor.shapes.items()])
    drawn = []
    for t in range(40):
        before = states[max(t - 1, 0)]["weights"]
        changed = (states[t]["weights"] != before).any(1)
        assert t == 0 or torch.equal(changed, starts[t])
        for stream in starts[t].nonzero().flatten().tolist():
            weights = states[t]["weights"][stream]
            drawn.append(((weights - actor.theta) / 0.5)[moved])
            assert torch.equal(weights[~moved], actor.theta[~moved])
    assert len(drawn) == 8
    count = int(moved.sum())
    assert count > 4_000
    for z in drawn:
        assert abs(float(z.mean())) < 4.5 / count**0.5
        assert float(z.std()) == pytest.approx(1.0, abs=4.5 / (2 * count) ** 0.5)
    found = [correlation(a, b) for a, b in combinations(drawn, 2)]
    assert max(map(abs, found)) < 4.5 / count**0.5


SPACES = {
    "vector": NUMBERS,
    "dict": gym.Dict({"far": gym.Box(-1, 1, (2, 2), np.float32), "kind": gym.Discrete(3)}),
    "picture": gym.Box(0, 255, (2, 36, 36), np.uint8),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_every_stream_acts_by_its_own_weights(space: str, layer_norm: bool, precision: Any) -> None:
    """As the network does with these weights alone."""
    network: dict[str, Any] = {"policy_hidden": (16, 16), "layer_norm": layer_norm}
    if space == "picture":
        network |= {"encoder": "nature_cnn"}
    task = Task(SPACES[space], gym.Box(-1.0, 1.0, (2,), np.float32))
    of = Case(
        "ddpg", task, {"exploration": PARAM, "normalize_observations": False}, network=network
    )
    actor, state = acting(of, 3, scale=0.1)
    actor.network.trunk.precision = precision
    noise = actor.draw_noise(1, 3, torch.Generator().manual_seed(0))[0]
    obs = {name: x[0, :3] for name, x in of.batches(1)[0][0].obs.items()}
    out = actor.act(obs, state, torch.ones(3, dtype=torch.bool), noise)
    assert len(out.action.unique(dim=0)) == 3
    for row in range(3):
        weights = views_of(out.state["weights"][row], actor.shapes)
        inputs = {name: x[row : row + 1] for name, x in obs.items()}
        expected = functional_call(actor.network, weights, (inputs,))
        within = {"rtol": 1e-5, "atol": 1e-6} if precision == "fp32" else {"rtol": 0, "atol": 0.05}
        torch.testing.assert_close(out.action[row], expected[0], **within)


def test_each_dimension_reaches_its_bounds_exactly() -> None:
    """Boxes in which the width, added to the lower bound, is rounded to less than the upper one."""
    low, high = np.float32([-0.10869829, -55.275238, 3.3]), np.float32([-0.034204, -0.0013142, 7])
    assert (low + (high - low) < high).any()
    box = gymnasium.spaces.Box(low, high)
    of = Case("ddpg", Task(NUMBERS, box), {"exploration": "normal_100.0"})
    actor, state = acting(of, 200)
    noise = actor.draw_noise(1, 200, torch.Generator().manual_seed(0))[0]
    first = torch.ones(200, dtype=torch.bool)
    env_action = actor.act({"obs": torch.randn(200, 3)}, state, first, noise).env_action.numpy()
    assert (env_action.min(0) == low).all()
    assert (env_action.max(0) == high).all()
    assert all(box.contains(row) for row in env_action)


# The size of parameter noise


@pytest.mark.parametrize("factor", [1.01, 1.5])
def test_the_scale_moves_by_exactly_its_factor_once_per_interval(factor: float) -> None:
    options = {"adapt_interval_updates": 4, "param_noise_factor": factor}
    learner = case(exploration="adaptive-param_0.2", **options).learner()
    seen = [learner.param_scale.item()]
    for batch in replayed(case())[:13]:
        learner.update(batch, 0)
        seen.append(learner.param_scale.item())
    assert len(seen) == 14
    for done, (before, after) in enumerate(pairwise(seen)):
        one = torch.tensor(before)
        ways = {(one * factor).item(), (one / factor).item()} if done % 4 == 0 else {before}
        assert after in ways, done


@pytest.mark.parametrize("start", [0.01, pytest.param(2.0, marks=pytest.mark.slow)])
def test_the_scale_converges_to_the_distance_that_is_desired(start: float) -> None:
    """On a network that stands still, from below and from above; with many actions one perturbation
    moves them about as far as another.
    """
    task = Task(NUMBERS, gym.Box(-1.0, 1.0, (32,), np.float32))
    still = {"actor_lr": 1e-60, "critic_lr": 1e-60, "normalize_observations": False}
    options = {"exploration": "adaptive-param_0.2", "adapt_interval_updates": 1, **still}
    of = Case("ddpg", task, options, network=NETWORK)
    learner, batch = of.learner(), replayed(of)[0]
    learner.param_scale.fill_(start)
    learner.update(batch, 0)
    first = learner.metrics()["exploration/param_noise_distance"]
    assert first < 0.1 if start < 0.2 else first > 0.4
    for _ in range(320):
        learner.update(batch, 0)
    learner.metrics()  # what is told next is of later updates alone
    for _ in range(80):
        learner.update(batch, 0)
    found = learner.metrics()["exploration/param_noise_distance"]
    assert found == pytest.approx(0.2, rel=0.05)


def test_the_learner_measures_by_perturbations_that_leave_normalising_layers() -> None:
    learner = case(exploration=PARAM).learner()
    actor = dict(learner.network.actor.named_parameters())
    perturbed = learner._perturbed(learner._split(learner.trained.parameters)[0], 3)
    moved = perturbable(learner.network.actor)
    assert set(moved.values()) == {True, False}
    for name, x in perturbed.items():
        assert x.shape == actor[name].shape
        same = x == actor[name]
        assert not same.all() if moved[name] else same.all(), name
