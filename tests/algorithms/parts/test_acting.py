"""The actor of learners that sample, with a network that it was not written for."""

import torch
from torch import Tensor, nn

from quintet.algorithms.parts.acting import SamplingActor
from quintet.models.flat import tensors_of
from quintet.models.normalize import ObservationNormalizer
from quintet.ops.discrete import Categorical
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
