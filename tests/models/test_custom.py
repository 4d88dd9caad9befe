"""Encoders of the user's own: found, built from the run's seed, checked against the contract."""

import sys
from functools import partial
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.custom import CustomEncoder, encoder_name, find_encoder
from quintet.models.heads import action_family
from quintet.models.precision import Precision
from quintet.types import ACTION_MASK, Spaces

OBSERVATION = spaces.Dict(
    {
        "place": spaces.Box(-1.0, 1.0, (3,), np.float32),
        "room": spaces.Discrete(4),
        ACTION_MASK: spaces.MultiBinary(2),
    }
)
SPACES = Spaces(OBSERVATION, spaces.Discrete(2))


class Good(nn.Module):
    """An embedding beside a linear layer."""

    def __init__(self, leaves: dict, width: int = 6):
        super().__init__()
        self.seen = leaves
        self.embedding = nn.Embedding(int(leaves["room"].n), 2)
        self.linear = nn.Linear(leaves["place"].shape[0] + 2, width)
        self.feature_size = width

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        assert ACTION_MASK not in obs
        x = torch.cat((obs["place"], self.embedding(obs["room"])), -1)
        return self.linear(x).relu()

    class Inner(nn.Flatten):
        """Found by a dotted name."""


class Noting(nn.Linear):
    """Has a state beside its tensors."""

    def get_extra_state(self) -> object:
        return torch.zeros(1)

    def set_extra_state(self, state: object) -> None: ...


class Odd(nn.Module):
    """Breaks the contract in one way."""

    def __init__(self, leaves: dict, fault: str):
        super().__init__()
        self.fault = fault
        self.feature_size = {"no size": None, "true": True, "text": "3", "zero": 0}.get(fault, 3)
        if fault == "raises":
            raise ZeroDivisionError("a mistake in the class")
        self.linear = nn.Linear(3, 3)
        if fault == "frozen":
            self.linear.bias.requires_grad_(False)
        if fault == "double":
            self.linear.weight.data = self.linear.weight.data.double()
        if fault == "unused":
            self.spare = nn.Linear(2, 2)
        if fault == "batch norm":
            self.norm = nn.BatchNorm1d(3)
        if fault == "other state":
            self.linear = Noting(3, 3)

    def forward(self, obs: dict[str, Tensor]) -> object:
        if self.fault == "forward raises":
            raise ZeroDivisionError("a mistake in forward")
        if self.fault == "double":
            return obs["place"]
        x = self.linear(obs["place"])
        match self.fault:
            case "shape":
                return x[:, :2]
            case "tuple":
                return (x, x)
            case "float64":
                return x.double()
            case "detached":
                return x.detach()
            case "batch norm":
                return self.norm(x)
            case "dropout":
                return torch.nn.functional.dropout(x)
        return x


class Bare(nn.Module):
    """No parameters at all."""

    def __init__(self, leaves: dict):
        super().__init__()
        self.feature_size = 3

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["place"]


class Sampled(Bare):
    """Reads sequences, of which none may be empty, and keeps what it was tried on."""

    tried: ClassVar[list[dict[str, Tensor]]] = []

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        self.tried.append(obs)
        lengths = (obs["place"] != 0).sum(-1)
        return nn.utils.rnn.pack_padded_sequence(
            obs["place"][..., None], lengths, batch_first=True, enforce_sorted=False
        ).data.reshape(-1, 3)


def build(seed: int | None = 0, precision: Precision = "fp32", **given: object) -> ActorCritic:
    config = resolve_model(ModelConfig(**{"encoder": "test_custom:Good"} | given), SPACES)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    family = action_family(SPACES.action, "clip")
    return ActorCritic(SPACES, family, config, generator, precision)


class Pixels(nn.Module):
    """Layers of several forms, whose names are those of other things."""

    def __init__(self, leaves: dict):
        super().__init__()
        self.value_head = nn.Conv1d(1, 2, 2)
        self.core = nn.LayerNorm((2, 2))
        self.bias = nn.Linear(4, 3)
        self.feature_size = 3

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.bias(self.core(self.value_head(obs["place"][:, None])).flatten(1))


def observations(rows: int = 4) -> dict[str, Tensor]:
    return {
        "place": torch.randn(rows, 3),
        "room": torch.arange(rows) % 4,
        ACTION_MASK: torch.ones((rows, 2), dtype=torch.int8),
    }


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_network_around_it(shared: bool, core: str):
    network = build(shared_torso=shared, core=core, encoder_kwargs={"width": 5})
    assert list(network.encoder.module.seen) == ["place", "room"]
    state, is_first = network.initial_state(4), torch.zeros(4, dtype=torch.bool)
    params, value, _ = network(observations(), state, is_first)
    assert params.shape == (4, 2)
    assert value.shape == (4,)
    assert network.encoder.module.linear.out_features == 5
    kernels = {name for name, p in network.named_parameters() if p.ndim >= 2}
    groups = network.kernel_groups()
    assert sorted(name for names in groups.values() for name in names) == sorted(kernels)
    assert ("encoder.module.embedding.weight" in groups["shared"]) == shared


@pytest.mark.parametrize("shared", [False, True])
def test_its_kernels_are_told_by_their_modules(shared: bool):
    groups = build(encoder="test_custom:Pixels", shared_torso=shared).kernel_groups()
    own = ("encoder.module.bias.weight", "encoder.module.value_head.weight")
    policy, value = ["policy_head.linear.weight"], ["value_head.weight"]
    if shared:
        assert groups == {"policy": policy, "value": value, "shared": [*own]}
    else:
        of_value = [f"value_{name}" for name in own]
        assert groups == {"policy": [*own, *policy], "value": [*of_value, *value], "shared": []}


def test_its_weights_follow_from_the_run_s_seed_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one = build(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    same, other = build(seed=1), build(seed=2)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name]), name
    name = "encoder.module.linear.weight"
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], one.state_dict()[f"value_{name}"])


def test_it_keeps_the_weights_that_it_drew():
    """PyTorch's own, not those of an encoder of ours: biases are not 0."""
    module = build().encoder.module
    assert module.linear.bias.abs().min() > 0
    assert 0.5 < module.embedding.weight.std() < 2.0


def test_its_weights_stay_in_float32_where_acting_casts_ours():
    network = build(precision="bf16")
    network.freeze_precision()
    assert {x.dtype for x in network.parameters()} == {torch.float32}
    ours = build(precision="bf16", encoder="mlp")
    ours.freeze_precision()
    assert torch.bfloat16 in {x.dtype for x in ours.encoder.parameters()}


def test_weights_go_into_another_network():
    one, other = build(seed=1), build(seed=None)
    other.load_state_dict(one.state_dict())
    obs = observations()
    assert torch.equal(one(obs)[0], other(obs)[0])


def test_it_is_tried_on_samples_of_the_spaces():
    for _ in range(2):
        build(encoder="test_custom:Sampled")
    first, second = Sampled.tried[0], Sampled.tried[-1]
    assert all(x.equal(second[name]) for name, x in first.items()), "always the same ones"
    assert SPACES.observation["room"].contains(first["room"][1].numpy())
    assert first["place"].dtype == torch.float32


class Embeds(nn.Module):
    """Reads one byte of all that its bounds allow."""

    feature_size = 4

    def __init__(self, leaves: object, known: int = 11):
        super().__init__()
        self.embedding = nn.Embedding(known, 4)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.embedding(obs["obs"][:, 0].long())


def test_it_may_read_less_than_bounds_allow():
    leaves = {"obs": spaces.Box(0, 255, (3,), np.uint8)}
    own = ModelConfig(encoder="test_custom:Embeds")
    assert CustomEncoder(own, (), leaves, None).feature_size == 4
    own = ModelConfig(encoder="test_custom:Embeds", encoder_kwargs={"known": 1})
    with pytest.raises(ConfigError, match="IndexError"):
        CustomEncoder(own, (), leaves, None)


def test_no_parameters_are_needed():
    network = build(encoder="test_custom:Bare")
    assert network(observations())[0].shape == (4, 2)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", r"leaves \['place', 'room'\].*ZeroDivisionError: a mistake in the class"),
        ("forward raises", r"torch.float32 \(2, 3\).*ZeroDivisionError: a mistake in forward"),
        ("no size", "an attribute feature_size, a positive int, got None"),
        ("true", "a positive int, got True"),
        ("text", "a positive int, got '3'"),
        ("zero", "a positive int, got 0"),
        ("shape", r"of shape \[N, feature_size\], \(2, 3\) here, got \(2, 2\)"),
        ("tuple", "here, got tuple"),
        ("float64", "features of torch.float32, got torch.float64"),
        ("frozen", "buffers for what is frozen, got 'linear.bias', frozen and of torch.float32"),
        ("double", "got 'linear.weight', trainable and of torch.float64"),
        (
            "unused",
            r"must use every parameter in forward, got unused \['spare.weight', 'spare.bias'\]",
        ),
        ("detached", r"got unused \['linear.weight', 'linear.bias'\]"),
        ("dropout", "must draw no random numbers in forward, got some"),
        ("other state", r"parameters and buffers alone, got \['linear._extra_state'\] too"),
        (
            "batch norm",
            "leave its buffers as they are in forward, got a changed 'norm.running_mean'",
        ),
    ],
)
def test_breaches_of_the_contract(fault: str, says: str):
    with pytest.raises(ConfigError, match=says) as error:
        build(encoder="test_custom:Odd", encoder_kwargs={"fault": fault})
    assert "test_custom:Odd" in str(error.value)


def test_keywords_that_it_does_not_take():
    with pytest.raises(ConfigError, match=r"encoder_kwargs \{'size': 3\}.*TypeError"):
        build(encoder_kwargs={"size": 3})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:Net", "needs module 'no_such_module', which can't be imported"),
        ("test_custom:Missing", "must name a class or function 'Missing' in module 'test_custom'"),
        ("test_custom:Good.Missing", "got no 'Missing' in .*; define it at the top level"),
        (
            "__main__:Missing",
            "it was defined in the script that trained: give its import string",
        ),
        ("test_custom:SPACES", "must name a class of torch.nn.Module or a .*, got Spaces"),
        ("collections:OrderedDict", "must name a class of torch.nn.Module"),
    ],
)
def test_names_that_lead_nowhere(name: str, says: str):
    with pytest.raises(ConfigError, match=says):
        build(encoder=name)


def test_a_module_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "net_of_mine.py").write_text("from test_custom import Good as Net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find_encoder("net_of_mine:Net") is Good


def test_import_strings():
    assert encoder_name(Good) == "test_custom:Good"
    assert encoder_name(Good.Inner) == "test_custom:Good.Inner"
    assert find_encoder("test_custom:Good.Inner") is Good.Inner
    config = ModelConfig(encoder=encoder_name(Good))
    assert config.custom


def local_class() -> type[nn.Module]:
    class Local(nn.Module):
        pass

    return Local


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (nn.Flatten(), r"a class of torch.nn.Module, .* got Flatten.*encoder_kwargs"),
        (dict, "a class of torch.nn.Module, .* got <class 'dict'>"),
        ("mlp", "a class of torch.nn.Module, .* got 'mlp'"),
    ],
)
def test_what_makes_no_modules(given: object, says: str):
    with pytest.raises(ConfigError, match=says):
        encoder_name(given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (local_class(), "test_custom:<local_class.<locals>.Local>"),
        (lambda leaves: Good(leaves), "test_custom:<lambda>"),
        (partial(Good, width=3), "test_custom:<Good>"),
    ],
)
def test_what_has_no_import_string_is_kept_beside_its_name(given: Any, name: str):
    named = encoder_name(given)
    assert named == name
    config = ModelConfig(encoder=named)
    assert config.custom
    for same in (config, config.model_copy(), cloudpickle.loads(cloudpickle.dumps(config))):
        assert same.encoder == name
        assert callable(find_encoder(same.encoder))
    assert type(config.model_dump(mode="json")["encoder"]) is str
    with pytest.raises(ConfigError, match="must be a function given in Python"):
        find_encoder(str(name))


def test_a_function_makes_a_new_module_at_every_call():
    build(encoder=encoder_name(lambda leaves: Good(leaves)))
    one = Good({name: leaf for name, leaf in OBSERVATION.items() if name != ACTION_MASK})
    always_the_same = encoder_name(lambda leaves: one)  # for the policy and for the value
    with pytest.raises(ConfigError, match="must make a new module at every call"):
        build(encoder=always_the_same)
    with pytest.raises(ConfigError, match=r"must make a torch.nn.Module, but it gave dict"):
        build(encoder=encoder_name(lambda leaves: {}))


def test_a_class_whose_name_stands_for_another_one(monkeypatch):
    renamed = type("Good", (nn.Module,), {"__module__": "test_custom"})
    with pytest.raises(ConfigError, match="a function or class that can be found by its name"):
        encoder_name(renamed)


def test_gradients_reach_its_parameters_under_torch_func():
    network = build()
    parameters = dict(network.named_parameters())
    obs = observations()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        params, value, _ = torch.func.functional_call(network, parameters, (obs,))
        return params.square().sum() + value.square().sum()

    gradients = torch.func.grad(loss)(parameters)
    assert all(gradients[name].any() for name in parameters if "encoder" in name)


def test_the_wrapper_hides_other_leaves():
    leaves = {"place": OBSERVATION["place"], "room": OBSERVATION["room"]}
    encoder = CustomEncoder(ModelConfig(encoder="test_custom:Good"), (), leaves, None)
    assert encoder(observations() | {"more": torch.zeros(4)}).shape == (4, encoder.feature_size)
