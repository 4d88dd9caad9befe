"""Networks of other forms than `ActorCritic`, put together of the same pieces."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.func import functional_call

from quintet.models.build import (
    ActorCritic,
    Branch,
    Trunk,
    draw_weights,
    make_encoder,
    make_trunks,
)
from quintet.models.config import TRAITS, ModelConfig, resolve_model
from quintet.models.encoders import Cnn, Mlp, layers
from quintet.models.film_grid import FilmGrid
from quintet.models.heads import PolicyHead, action_family
from quintet.models.small_cnn import SmallCnn
from quintet.models.weights import kernels
from quintet.ops.discrete import Categorical
from quintet.types import Spaces

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = Spaces(VECTOR, spaces.Discrete(4))
CONTROL = Spaces(VECTOR, spaces.Box(-1.0, 1.0, (2,), np.float32))
GRID = {
    "direction": spaces.Discrete(4),
    "image": spaces.Box(0, 255, (5, 5, 3), np.uint8),
    "mission": spaces.Box(0, 255, (9,), np.uint8),
}
PICTURE = spaces.Box(0, 255, (36, 36, 3), np.uint8)


class Control(nn.Module):
    """A deterministic actor, and a critic that takes the action at its second layer."""

    def __init__(self, model: ModelConfig, generator: torch.Generator):
        super().__init__()
        assert model.policy_hidden is not None
        first, *later = model.policy_hidden
        encoder = make_encoder(CONTROL, model, model.policy_hidden, generator)
        self.actor = Trunk("actor", encoder, None, "fp32")
        self.critic = Trunk(
            "critic", make_encoder(CONTROL, model, (first,), generator), None, "fp32"
        )
        self.actor_encoder, self.critic_encoder = self.actor.encoder, self.critic.encoder
        self.actor_head = nn.Linear(self.actor.feature_size, 2)
        self.critic_layers = layers((first + 2, *later), "relu", layer_norm=True)
        self.critic_head = nn.Linear(later[-1], 1)
        branches = (
            Branch(self.actor, self.actor_head, "policy"),
            Branch(self.critic, self.critic_layers, "hidden"),
        )
        draw_weights(branches, "orthogonal", generator)
        for head in (self.actor_head, self.critic_head):
            nn.init.uniform_(head.weight, -3e-3, 3e-3, generator=generator)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        action = self.actor_head(self.actor(obs)[0]).tanh()
        features = self.critic_layers(torch.cat((self.critic(obs)[0], action), -1))
        return action, self.critic_head(features).squeeze(-1)


def test_an_actor_and_a_critic_that_takes_the_action_later():
    model = ModelConfig(policy_hidden=(8, 6), activation="relu", layer_norm=True)
    model = resolve_model(model, CONTROL)
    network = Control(model, torch.Generator().manual_seed(0))
    again = Control(model, torch.Generator().manual_seed(0))
    assert torch.equal(network.critic_head.weight, again.critic_head.weight)
    assert 2e-3 < network.actor_head.weight.abs().max() <= 3e-3
    critic = (*network.critic.modules(), *network.critic_layers.modules())
    assert kernels(network, critic) == ["critic_encoder.layers.0.weight", "critic_layers.0.weight"]
    obs = {"obs": torch.randn(5, 3)}
    action, q = network(obs)
    assert action.shape == (5, 2)
    assert q.shape == (5,)
    # As averages are made: a copy stands by itself, and other weights can be put in.
    average = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter += 0.1
    assert torch.equal(network(obs)[1], q)
    assert not torch.equal(average(obs)[1], q)
    put_in = functional_call(network, dict(average.named_parameters()), (obs,))
    assert torch.equal(put_in[1], average(obs)[1])


class PolicyAndQ(nn.Module):
    """A policy, and a value of every action."""

    def __init__(self, model: ModelConfig, generator: torch.Generator):
        super().__init__()
        self.trunk, self.q_trunk = make_trunks(SPACES, model, generator, "fp32")
        self.encoder, self.core = self.trunk.encoder, self.trunk.core
        if self.q_trunk is not self.trunk:
            self.q_encoder, self.q_core = self.q_trunk.encoder, self.q_trunk.core
        self.policy_head = PolicyHead(
            Categorical(4), self.trunk.feature_size, model.action_std, 1.0
        )
        self.q_head = nn.Linear(self.q_trunk.feature_size, 4)
        branches = (
            Branch(self.trunk, self.policy_head, "policy"),
            Branch(self.q_trunk, self.q_head, "value"),
        )
        draw_weights(branches, model.init, generator)


@pytest.mark.parametrize("shared", [False, True])
def test_a_policy_and_values_of_actions(shared: bool):
    model = ModelConfig(policy_hidden=(6,), shared_torso=shared, core="gru", core_size=5)
    model = resolve_model(model, SPACES)
    network = PolicyAndQ(model, torch.Generator().manual_seed(0))
    specs = network.trunk.state_specs | network.q_trunk.state_specs
    assert list(specs) == (["core/h0"] if shared else ["policy/h0", "value/h0"])
    state = {name: torch.zeros(2, *spec.shape) for name, spec in specs.items()}
    features, after = network.q_trunk({"obs": torch.randn(6, 3)}, state, torch.zeros(6).bool())
    assert network.q_head(features).shape == (6, 4)
    assert list(after) == [list(specs)[-1]]
    # Drawn as those of the same names in an ActorCritic, but for the head of another size.
    family = action_family(SPACES.action, "clip")
    twin = ActorCritic(SPACES, family, model, torch.Generator().manual_seed(0)).state_dict()
    mine = network.state_dict()
    assert torch.equal(mine["encoder.layers.0.weight"], twin["encoder.layers.0.weight"])
    assert torch.equal(mine["policy_head.linear.weight"], twin["policy_head.linear.weight"])


@pytest.mark.parametrize(
    ("observation", "options"),
    [
        (VECTOR, {}),
        (PICTURE, {}),
        (PICTURE, {"encoder": "impala_cnn"}),
        (PICTURE, {"encoder": "small_cnn"}),
        (
            spaces.Dict(GRID),
            {"encoder_kwargs": {"text_pooling": "attention", "bidirectional_film": True}},
        ),
        (VECTOR, {"core": "lstm"}),
        (VECTOR, {"layer_norm": True}),
    ],
    ids=["mlp", "nature", "impala", "small", "grid", "lstm", "norm"],
)
def test_all_weights_follow_from_the_generator_alone(observation: spaces.Space, options: dict):
    """Nothing is left as PyTorch's own generator drew it."""
    of = Spaces(observation, spaces.Discrete(2))
    model = resolve_model(ModelConfig(**options), of)
    family, drawn = action_family(of.action, "clip"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(0)
        drawn.append(ActorCritic(of, family, model, generator).state_dict())
    for name, x in drawn[0].items():
        assert torch.equal(x, drawn[1][name]), name


def test_every_encoder_is_made():
    for name, traits in TRAITS.items():
        seen = GRID if traits.reads_ids else {"x": PICTURE}
        of = Spaces(spaces.Dict(seen), spaces.Discrete(2))
        model = resolve_model(ModelConfig(encoder=name), of)
        made = make_encoder(of, model, model.policy_hidden, None)
        expected = {"mlp": Mlp, "film_grid": FilmGrid, "small_cnn": SmallCnn}.get(name, Cnn)
        assert type(made) is expected
        assert made.feature_size == (traits.hidden or ())[-1]


def test_a_copy_of_a_network_reads_weights_of_its_own():
    network = ActorCritic(
        SPACES,
        action_family(SPACES.action, "clip"),
        resolve_model(ModelConfig(policy_hidden=(6,), core="gru", core_size=5), SPACES),
        torch.Generator().manual_seed(0),
    )
    other = copy.deepcopy(network)
    assert other.trunk.encoder is other.encoder is not network.encoder
    assert other.value_trunk.core is other.value_core is not network.value_core
