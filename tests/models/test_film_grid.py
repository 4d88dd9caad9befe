"""The encoder of grids with a mission: against plain loops, at its start, where it is chosen."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from quintet.errors import ConfigError, EnvironmentFault
from quintet.models.build import ActorCritic
from quintet.models.config import (
    GridOptions,
    ModelConfig,
    network_facts,
    resolve_model,
    uses_pictures,
)
from quintet.models.film_grid import FilmBlock, FilmGrid
from quintet.models.heads import action_family
from quintet.models.leaves import is_grid_with_mission, normalized_leaves, small_picture
from quintet.models.precision import Precision
from quintet.models.text import TextEncoder
from quintet.options.declaration import Facts, idle
from quintet.types import ACTION_MASK, LAST_ACTION, LAST_REWARD, Obs, Spaces

LENGTH = 20
LEAVES: dict[str, spaces.Space] = {
    "direction": spaces.Discrete(4),
    "image": spaces.Box(0, 255, (3, 4, 3), np.uint8),
    "mission": spaces.Box(0, 255, (LENGTH,), np.uint8),
}
GRID = Spaces(spaces.Dict(LEAVES), spaces.Discrete(5))
SMALL: dict[str, Any] = {
    "tokenizer": "bytes",
    "text_embedding": 5,
    "text_hidden": 6,
    "image_channels": 4,
    "policy_hidden": (8,),
}
MISSIONS = ("go to a red ball", "open the door", "go to a red ball", "", "a", "open the doo")


def model_of(**options: Any) -> ModelConfig:
    """The network with some options of its own and some of film_grid."""
    kwargs = {name: options.pop(name) for name in GridOptions.model_fields if name in options}
    return ModelConfig(**options, encoder_kwargs=kwargs)


def build(
    options: dict[str, Any] | None = None, of: Spaces = GRID, precision: Precision = "fp32"
) -> ActorCritic:
    model = resolve_model(model_of(**SMALL | (options or {})), of)
    generator = torch.Generator().manual_seed(0)
    return ActorCritic(of, action_family(of.action, "clip"), model, generator, precision)


def stirred(options: dict[str, Any] | None = None, precision: Precision = "fp32") -> ActorCritic:
    """A network whose weights are none of the zeros that it begins with."""
    network, g = build(options, precision=precision), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=g)
    return network


def as_bytes(missions: tuple[str, ...], length: int = LENGTH) -> Tensor:
    rows = torch.zeros((len(missions), length), dtype=torch.uint8)
    for row, mission in zip(rows, missions, strict=True):
        code = mission.encode()
        row[: len(code)] = torch.tensor(list(code), dtype=torch.uint8)
    return rows


def observe(missions: tuple[str, ...] = MISSIONS, seed: int = 0) -> Obs:
    g = torch.Generator().manual_seed(seed)
    size = (len(missions), 3, 4)
    ids = [torch.randint(0, n, size, generator=g) for n in (11, 6, 4)]
    return {
        "direction": torch.randint(0, 4, size[:1], generator=g),
        "image": torch.stack(ids, -1).to(torch.uint8),
        "mission": as_bytes(missions),
    }


def outputs(network: ActorCritic, obs: Obs) -> Tensor:
    """Parameters and values ``[N, A + 1]``."""
    params, value, _ = network(obs)
    return torch.cat((params, value[:, None]), 1)


def apart(a: Tensor, b: Tensor) -> float:
    """Size of the difference as a share of `b`."""
    return ((a - b).norm() / b.norm()).item()


def gradients(network: ActorCritic, obs: Obs) -> dict[str, Tensor]:
    named = dict(network.named_parameters())
    found = torch.autograd.grad(outputs(network, obs).square().sum(), list(named.values()))
    return dict(zip(named, found, strict=True))


VARIANTS = [
    pytest.param({}, id="bytes"),
    pytest.param({"tokenizer": "words"}, id="hashed"),
    pytest.param({"tokenizer": "words", "vocabulary": ("red", "open", "a")}, id="vocabulary"),
    pytest.param({"text_pooling": "attention"}, id="attention"),
    pytest.param({"bidirectional_film": True, "film_blocks": 1}, id="bidirectional"),
    pytest.param({"deduplicate_text": False, "text_pooling": "attention"}, id="plain"),
    pytest.param({"shared_torso": True}, id="shared"),
]


def cell_of(encoder: FilmGrid, ids: list[int]) -> Tensor:
    tables = (encoder.objects, encoder.colours, encoder.states)
    return sum(table.weight[i] for table, i in zip(tables, ids, strict=True))


def gru_states(text: TextEncoder, tokens: list[int]) -> list[Tensor]:
    """By the equations of a GRU, a token at a time."""
    cell = text.gru.cells[0]
    h, states = torch.zeros(text.feature_size), []
    for token in tokens:
        x = cell.input_weight @ text.embedding.weight[token] + cell.bias
        r_x, z_x, n_x = x.chunk(3)
        r_h, z_h, n_h = (cell.hidden_weight @ h).chunk(3)
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        n = torch.tanh(n_x + r * (n_h + cell.candidate_bias))
        h = (1 - z) * n + z * h
        states.append(h)
    return states


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("pooling", ["last", "attention"])
def test_features_against_plain_loops(pooling: str, bidirectional: bool):
    """Row by row, cell by cell, byte by byte."""
    network = stirred({"text_pooling": pooling, "bidirectional_film": bidirectional})
    encoder, obs = network.encoder, observe()
    features = encoder(obs)
    assert isinstance(encoder, FilmGrid)
    assert features.shape == (len(MISSIONS), encoder.feature_size)
    for n, mission in enumerate(MISSIONS):
        grid = torch.stack(
            [
                torch.stack([cell_of(encoder, ids) for ids in row])
                for row in obs["image"][n].tolist()
            ]
        )
        states = gru_states(encoder.text, list(mission.encode()))
        vector = states[-1] if states else torch.zeros(6)
        if pooling == "attention" and states:
            query = encoder.text.query(grid.flatten(0, 1).amax(0))
            weights = torch.stack([query @ h / 6**0.5 for h in states]).softmax(0)
            vector = sum(w * h for w, h in zip(weights, states, strict=True))
        x = grid.permute(2, 0, 1)
        for block in encoder.blocks:
            film = block.film(vector)
            scale, shift, *read = film.view(-1, 4, 1, 1)
            y = x + torch.relu((1 + scale) * block.conv(x) + shift)
            if bidirectional:
                y = y + torch.relu((1 + block.gain(x)) * read[0] + block.offset(x))
            x = y
        looks = encoder.directions.weight[obs["direction"][n]]
        linear = encoder.layers[0]
        expected = torch.relu(linear(torch.cat((x.flatten(1).amax(1), looks))))
        torch.testing.assert_close(features[n], expected, rtol=1e-6, atol=1e-5)  # of size 29


def test_the_block_starts_without_text():
    """With scale and shift at 0 it is a residual convolution."""
    block, x = FilmBlock(4, 6, bidirectional=False), torch.randn(2, 4, 3, 3)
    with torch.no_grad():
        block.film.weight.zero_()
        block.film.bias.zero_()
    plain = x + functional.relu(block.conv(x))
    assert torch.equal(block(x, torch.randn(2, 6), None), plain)
    assert torch.equal(FilmBlock.forward(block, x, torch.randn(1, 6), torch.zeros(2).long()), plain)


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize(
    ("init", "step"), [("orthogonal", 0.1), ("truncated_normal", 0.1), ("uniform", 1000.0)]
)
def test_missions_matter_after_one_step_and_not_before(
    options: dict[str, Any], init: str, step: float
):
    network = build(options | {"init": init})
    one, other = observe(), observe()
    other["mission"] = as_bytes(tuple(reversed(("open", "close", "red", "blue", "go", "x y"))))
    assert torch.equal(outputs(network, one), outputs(network, other))
    found = gradients(network, one)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter -= step * found[name]
    changed = (outputs(network, one) - outputs(network, other)).abs().amax(1)
    assert (changed > 1e-6).sum() >= 3  # of six missions, of which a vocabulary knows few words


@pytest.mark.parametrize("options", VARIANTS)
def test_bytes_behind_the_end_change_nothing(options: dict[str, Any]):
    network, obs = stirred(options), observe()
    expected, grads = outputs(network, obs), gradients(network, obs)
    dirty = obs | {"mission": obs["mission"].clone()}
    g = torch.Generator().manual_seed(3)
    for row, mission in zip(dirty["mission"], MISSIONS, strict=True):
        rest = row[len(mission.encode()) + 1 :]
        rest[:] = torch.randint(0, 256, rest.shape, generator=g).to(torch.uint8)
    assert not torch.equal(dirty["mission"], obs["mission"])
    torch.testing.assert_close(outputs(network, dirty), expected, rtol=1e-6, atol=5e-6)
    for name, grad in gradients(network, dirty).items():
        assert apart(grad, grads[name]) < 2e-6, name
    # The byte before the end does.
    dirty["mission"][0, len(MISSIONS[0]) - 1] = ord("d")
    known = options.get("vocabulary") is not None  # neither ball nor bald
    assert torch.allclose(outputs(network, dirty)[0], expected[0], atol=1e-6) == known


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("length", [16, 17, 24, 96])
def test_padding_changes_nothing(options: dict[str, Any], length: int):
    wider = spaces.Dict(LEAVES | {"mission": spaces.Box(0, 255, (length,), np.uint8)})
    network, other = stirred(options), build(options, Spaces(wider, GRID.action))
    other.load_state_dict(network.state_dict())
    obs = observe()
    padded = obs | {"mission": as_bytes(MISSIONS, length)}
    torch.testing.assert_close(outputs(other, padded), outputs(network, obs), rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("options", [x for x in VARIANTS if "deduplicate_text" not in x.values[0]])
@pytest.mark.parametrize("collide", [False, True])
def test_each_mission_is_read_once_with_the_same_results(options: dict[str, Any], collide: bool):
    network = stirred(options)
    plain = build(options | {"deduplicate_text": False})
    plain.load_state_dict(network.state_dict())
    if collide:  # all hashes are equal
        network.encoder.text.weights.zero_()
    read: list[int] = []
    for each in (network, plain):
        each.encoder.text.gru.register_forward_hook(lambda *args: read.append(args[1][0].shape[1]))
    obs = observe(MISSIONS * 3)
    expected, grads = outputs(plain, obs), gradients(plain, obs)
    torch.testing.assert_close(outputs(network, obs), expected, rtol=1e-6, atol=5e-6)
    for name, grad in gradients(network, obs).items():
        assert apart(grad, grads[name]) < 2e-6, name
    assert read == [18, 18, 5, 5]


@pytest.mark.parametrize("options", VARIANTS)
def test_rows_do_not_meet(options: dict[str, Any]):
    """A batch of one kind: what a row gives doesn't hang on the others."""
    network, obs = stirred(options), observe()
    together = outputs(network, obs)
    for n in range(len(MISSIONS)):
        alone = outputs(network, {name: x[n : n + 1] for name, x in obs.items()})
        torch.testing.assert_close(alone[0], together[n], rtol=1e-6, atol=5e-6)


def test_a_network_that_is_blind_to_the_mission():
    network = build({"tokenizer": "none", "text_embedding": 32, "text_hidden": 128})
    assert not [name for name in network.state_dict() if "text" in name or "film" in name]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    obs = observe()
    blind = outputs(network, obs | {"mission": as_bytes(("x",) * len(MISSIONS))})
    assert torch.equal(outputs(network, obs), blind)
    assert torch.equal(outputs(network, {k: x for k, x in obs.items() if k != "mission"}), blind)
    assert not torch.allclose(outputs(network, observe(seed=1)), blind)
    assert all(x.abs().max() > 0 for x in gradients(network, obs).values())


@pytest.mark.parametrize("options", VARIANTS)
def test_every_weight_takes_part(options: dict[str, Any]):
    for name, grad in gradients(stirred(options), observe()).items():
        assert grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("leaf", "place", "value", "says"),
    [
        ("image", (2, 1, 3, 0), 11, "'image' must have object ids of 0 to 10.* got 11"),
        ("image", (0, 0, 0, 1), 6, "'image' must have colour ids of 0 to 5.* got 6"),
        ("image", (5, 2, 0, 2), 255, "'image' must have state ids of 0 to 3.* got 255"),
        ("direction", (3,), 4, "'direction' must have values of 0 to 3, as in MiniGrid, got 4"),
        (
            "direction",
            (3,),
            -1,
            "'direction' must have values of 0 to 3, as in MiniGrid, got -1",
        ),
    ],
)
def test_ids_that_are_none(leaf: str, place: tuple[int, ...], value: int, says: str):
    network, obs = build(), observe()
    outputs(network, obs)
    obs[leaf][place] = value
    with pytest.raises(EnvironmentFault, match=says):
        outputs(network, obs)


def test_every_id_has_an_embedding_of_its_own():
    encoder = stirred().encoder
    ids = [(k, c, s) for k in range(11) for c in range(6) for s in range(4)]
    image = torch.tensor(ids, dtype=torch.uint8).view(22, 3, 4, 3)
    cells = encoder._embed(image).view(-1, 4)
    expected = torch.stack([cell_of(encoder, list(each)) for each in ids])
    torch.testing.assert_close(cells, expected)


def test_at_the_start_a_cell_has_variance_one():
    encoder = build({"image_channels": 512}).encoder
    cells = encoder._embed(observe()["image"])
    assert cells.var().item() == pytest.approx(1.0, abs=0.05)


INTEGER = spaces.Box(0, 3, (), np.int32)


def test_it_is_chosen_beside_the_last_action_and_reward():
    added = {LAST_ACTION: spaces.Discrete(8), LAST_REWARD: spaces.Box(-1.0, 1.0, (), np.float32)}
    of = Spaces(spaces.Dict(LEAVES | added), spaces.Discrete(7))
    assert resolve_model(ModelConfig(), of).encoder == "film_grid"


@pytest.mark.parametrize(
    ("change", "form"),
    [
        ({}, True),
        ({"direction": INTEGER}, True),
        ({"image": spaces.Box(0, 10, (19, 25, 3), np.uint8)}, True),
        ({"direction": spaces.Discrete(5)}, False),
        ({"direction": spaces.Box(0, 3, (1,), np.int32)}, False),
        ({"direction": spaces.Box(0, 3, (), np.float32)}, False),
        ({"direction": None}, False),
        ({"image": spaces.Box(0, 255, (7, 7, 4), np.uint8)}, False),
        ({"image": spaces.Box(0, 255, (7, 7), np.uint8)}, False),
        ({"image": spaces.Box(0, 255, (7, 7, 3), np.int32)}, False),
        ({"image": None}, False),
        ({"mission": spaces.Box(0, 255, (8, 8), np.uint8)}, False),
        ({"mission": spaces.Box(0, 255, (8,), np.int64)}, False),
        ({"mission": spaces.MultiBinary(8)}, False),
        ({"mission": None}, False),
    ],
)
def test_when_it_is_chosen(change: dict[str, spaces.Space | None], form: bool):
    leaves = {name: x for name, x in (LEAVES | change).items() if x is not None}
    assert is_grid_with_mission(leaves) == form
    of = Spaces(spaces.Dict(leaves), spaces.Discrete(2))
    model = resolve_model(ModelConfig(), of)
    image = leaves.get("image")
    board = image is not None and len(image.shape) == 3 and small_picture(image) is not None
    other = "small_cnn" if board else "mlp"
    assert model.encoder == ("film_grid" if form else other)
    assert uses_pictures(model, of) == form
    if form:
        assert (model.policy_hidden, model.value_hidden, model.activation) == (
            (256,),
            (256,),
            "relu",
        )
        assert resolve_model(model, of) == model
        assert not model.traits.one_graph
    else:
        with pytest.raises(ConfigError, match="film_grid must have the leaves direction"):
            build({"encoder": "film_grid"}, of)


def test_when_it_is_not_chosen_by_itself():
    """Pictures of a grid, which hold no ids, and what has other leaves."""
    picture = LEAVES | {"image": spaces.Box(0, 255, (56, 56, 3), np.uint8)}
    assert resolve_model(ModelConfig(), Spaces(spaces.Dict(picture), GRID.action)).encoder == (
        "nature_cnn"
    )
    more = LEAVES | {"speed": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    of = Spaces(spaces.Dict(more), GRID.action)
    assert resolve_model(ModelConfig(), of).encoder == "mlp"
    masked = LEAVES | {ACTION_MASK: spaces.MultiBinary(5)}
    assert resolve_model(ModelConfig(), Spaces(spaces.Dict(masked), GRID.action)).encoder == (
        "film_grid"
    )
    network = build({"encoder": "film_grid"}, of)
    obs = observe() | {"speed": torch.randn(len(MISSIONS), 2)}
    faster = obs | {"speed": obs["speed"] + 1.0}
    assert not torch.allclose(outputs(network, obs), outputs(network, faster))


def test_ids_and_bytes_are_never_normalised():
    integer = LEAVES | {"direction": INTEGER}
    assert normalized_leaves(spaces.Dict(LEAVES)) == normalized_leaves(spaces.Dict(integer)) == {}


def test_an_activation_that_it_has_not_is_refused():
    config = ModelConfig(activation="tanh")
    found = idle(config, Facts(**network_facts(config, GRID)), "model.")
    assert found["activation"].needs.startswith(
        "an mlp or an encoder of your own (film_grid has relu"
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"tokenizer": "bytes", "hash_buckets": 9},
            "hash_buckets has no effect without tokenizer=words; leave it out",
        ),
        (
            {"tokenizer": "bytes", "vocabulary": ["a"]},
            "vocabulary has no effect without tokenizer=words",
        ),
        (
            {"vocabulary": ["a"], "hash_buckets": 9},
            r"hash_buckets has no effect without vocabulary=\(\)",
        ),
        *(
            (
                {"tokenizer": "none"} | given,
                f"{next(iter(given))} has no effect without tokenizer",
            )
            for given in (
                {"vocabulary": ["a"]},
                {"hash_buckets": 9},
                {"text_embedding": 9},
                {"text_hidden": 9},
                {"text_pooling": "attention"},
                {"deduplicate_text": False},
                {"bidirectional_film": True},
            )
        ),
        ({"a": 1}, "a: extra inputs are not permitted, got 1"),
        ({"tokenizer": "letters"}, "tokenizer: input should be 'bytes'"),
        *(
            ({name: 0}, f"{name}: input should be greater than or equal to 1, got 0")
            for name, info in GridOptions.model_fields.items()
            if info.annotation is int
        ),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=f"must be arguments of film_grid: .*{says}"):
        resolve_model(ModelConfig(encoder_kwargs=given), GRID)


def test_right_arguments_are_taken():
    for given in ({"tokenizer": "bytes"}, {"vocabulary": ["a"]}, {"tokenizer": "none"}):
        config = ModelConfig(encoder_kwargs=given)
        assert "encoder_kwargs" not in idle(config, Facts(**network_facts(config, GRID)), "model.")
        resolve_model(config, GRID)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("shared", [False, True])
def test_weights_have_names_and_owners(core: str, shared: bool):
    options: dict[str, Any] = {"shared_torso": shared, "core": core, "film_blocks": 1}
    network = build(options if core == "none" else options | {"core_size": 5})
    names = set(network.state_dict())
    own = {
        *("objects.weight", "colours.weight", "states.weight", "directions.weight"),
        *("text.embedding.weight", "text.gru.cells.0.hidden_weight"),
        *("blocks.0.conv.weight", "blocks.0.film.weight", "layers.0.weight"),
    }
    assert {f"encoder.{name}" for name in own} <= names
    assert ({f"value_encoder.{name}" for name in own} <= names) == (not shared)
    assert not [name for name in names if "powers" in name or name.endswith("weights")]
    groups = network.kernel_groups()
    assert "encoder.blocks.0.film.weight" in groups["shared" if shared else "policy"]


def test_a_recurrent_network_remembers_the_mission():
    """Rows are sequences, time first; the mission of another stream is not looked at."""
    network = stirred({"core": "gru", "core_size": 5})
    obs, first = observe(), torch.zeros(6, dtype=torch.bool)
    first[:2] = True
    state = network.initial_state(2)
    _, value, _ = network(obs, state, first)
    other = obs | {"mission": obs["mission"].clone()}
    other["mission"][0] = as_bytes(("close it",))[0]
    changed = (network(other, state, first)[1] - value).abs() > 1e-6
    assert changed.tolist() == [True, False, True, False, True, False]


def test_in_bfloat16_acting_and_learning_agree_to_the_bit():
    for options in ({}, {"text_pooling": "attention", "bidirectional_film": True}):
        learns, acts = stirred(options, "bf16"), build(options, precision="bf16")
        acts.freeze_precision()
        acts.load_state_dict(learns.state_dict())
        assert acts.encoder.blocks[0].conv.weight.dtype == torch.bfloat16
        given: list[Any] = []
        keep = given.append
        learns.encoder.blocks[1].register_forward_pre_hook(lambda _, x, keep=keep: keep(x[0].dtype))
        obs = observe()
        with torch.inference_mode():
            ours, theirs = outputs(learns, obs), outputs(acts, obs)
        assert ours.dtype == torch.float32
        # The actor holds bfloat16, so its weights are the learner's, rounded once.
        assert torch.equal(ours, theirs)
        assert given == [torch.bfloat16]
        exact = stirred(options)
        assert not torch.equal(ours, outputs(exact, obs))
        # Each layer rounds to 8 bits, by 0.2% in the mean; seen are 0.3% and 0.8%.
        assert apart(ours, outputs(exact, obs)) < 0.02
        whole = gradients(exact, obs)
        for name, grad in gradients(learns, obs).items():
            assert grad.dtype == torch.float32, name
            assert apart(grad, whole[name]) < 0.2, name  # behind a softmax 8%


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", VARIANTS)
def test_on_a_gpu(options: dict[str, Any]):
    network, obs = stirred(options), observe()
    expected = outputs(network, obs)
    found = outputs(network.to("cuda"), {name: x.to("cuda") for name, x in obs.items()})
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
