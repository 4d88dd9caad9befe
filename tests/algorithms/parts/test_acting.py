"""The actor of learners that sample, with a network that it was not written for."""

import pytest
import torch
from torch import Tensor, nn

from quintet.algorithms.parts.acting import SamplingActor, Warmup
from quintet.algorithms.parts.setup import Compute
from quintet.models.flat import tensors_of
from quintet.models.normalize import ObservationNormalizer
from quintet.ops.discrete import Categorical
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Publication, TensorSpec

ACTIONS, OBS = 4, 3


class PolicyAndQ(nn.Module):
    """A policy that is bold or shy by turns, and a value of every action."""

    state_specs = {"turn": TensorSpec((1,), torch.float32)}

    def __init__(self) -> None:
        super().__init__()
        self.family = Categorical(ACTIONS)
        self.pi, self.q = nn.Linear(OBS, ACTIONS), nn.Linear(OBS, ACTIONS)

    def initial_state(self, num_streams: int) -> dict[str, Tensor]:
        return {"turn": torch.zeros(num_streams, 1)}

    def forward(self, obs, state, is_first):
        params, after = self.policy(obs, state, is_first)
        return params, self.q(obs["obs"]), after

    def policy(self, obs, state, is_first):
        turn = torch.where(is_first[:, None], 0.0, state["turn"]) + 1
        return self.pi(obs["obs"]) / turn, {"turn": turn}


@torch.no_grad()
def test_an_actor_samples_from_whatever_network_it_is_given() -> None:
    torch.manual_seed(0)
    learned, given = PolicyAndQ(), PolicyAndQ()
    normalizer = ObservationNormalizer({}, 1.0, 1.0)
    actor = SamplingActor(given, normalizer, ("logp_mu", "params_mu"))
    published = tensors_of({"network": learned, "normalizer": normalizer})
    actor.load(Publication(0, published))
    obs, is_first = {"obs": torch.randn(5, OBS)}, torch.ones(5, dtype=torch.bool)
    state = actor.initial_state(5)
    assert actor.state_specs == PolicyAndQ.state_specs
    for turn in (1, 2):
        noise = actor.draw_noise(1, 5, torch.Generator().manual_seed(turn))[0]
        out = actor.act(obs, state, is_first & (turn == 1), noise)
        params = learned.pi(obs["obs"]) / turn
        torch.testing.assert_close(out.record["params_mu"], params)
        logp = learned.family.log_prob(params, out.action)
        torch.testing.assert_close(out.record["logp_mu"], logp)
        mode = actor.act(obs, state, is_first & (turn == 1), None)
        assert torch.equal(mode.action, params.argmax(-1))
        state = out.state
        assert (state["turn"] == turn).all()


class Steady(nn.Module):
    """A Gaussian that observations do not change."""

    state_specs: dict[str, TensorSpec] = {}

    def __init__(self) -> None:
        super().__init__()
        self.family = DiagGaussian(2, (-1.0, -2.0), (1.0, 2.0), "action")
        self.params = nn.Parameter(torch.tensor([0.5, -0.5, -3.0, -3.0]))

    def initial_state(self, num_streams: int) -> dict[str, Tensor]:
        return {}

    def forward(self, obs, state, is_first):
        params, _ = self.policy(obs, state, is_first)
        return params, params, {}

    def policy(self, obs, state, is_first):
        return self.params.expand(len(obs["obs"]), -1), {}


def acts(actor: SamplingActor, steps: int, starts: tuple[int, ...] = (0,)) -> Tensor:
    """The actions of 2,000 streams ``[steps, 2000, 2]``."""
    obs, state = {"obs": torch.zeros(2_000, OBS)}, actor.initial_state(2_000)
    found = []
    for t, noise in enumerate(actor.draw_noise(steps, 2_000, torch.Generator().manual_seed(0))):
        first = torch.full((2_000,), t in starts)
        out = actor.act(obs, state, first, noise)
        mode = actor.act(obs, state, first, None)
        assert torch.equal(mode.action[0], actor.network.params[:2])  # also in warm-up
        state = out.state
        found.append(out.action)
    return torch.stack(found)


@torch.no_grad()
def test_actions_are_uniform_while_a_publication_says_so() -> None:
    actor = SamplingActor(Steady(), None, ())
    warmup = Warmup(10)
    published = tensors_of({"network": Steady(), "normalizer": actor.normalizer})
    actor.load(Publication(0, {**published, **warmup.published()}))
    uniform = acts(actor, 1)[0].tanh()
    assert uniform.abs().mean().item() == pytest.approx(0.5, abs=0.02)
    assert uniform.mean().item() == pytest.approx(0.0, abs=0.03)
    warmup.collected = 10
    actor.load(Publication(1, {**published, **warmup.published()}))
    assert (acts(actor, 1)[0] - actor.network.params[:2]).abs().max() < 0.3
    actor.load(Publication(2, published))
    assert not actor.warming_up


@torch.no_grad()
def test_noise_is_correlated_within_an_episode() -> None:
    """By 0.8 from one step to the next; the distribution of each step stays."""
    actor = SamplingActor(Steady(), None, (), correlation=0.8)
    assert not actor.state_specs
    mean, log_std = actor.network.params.chunk(2)
    noise = (acts(actor, 4, starts=(0, 2)) - mean) / log_std.exp()
    rows = noise.flatten(1)
    assert rows.std(1).tolist() == pytest.approx([1.0] * 4, abs=0.04)
    found = torch.corrcoef(rows)
    assert found[0, 1].item() == pytest.approx(0.8, abs=0.02)
    assert found[2, 3].item() == pytest.approx(0.8, abs=0.02)
    assert found[1, 2].item() == pytest.approx(0.0, abs=0.05)
    exported = SamplingActor(Steady(), None, (), Compute(records=()), 0.8)
    assert exported.initial_state(3) == {}
