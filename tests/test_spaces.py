"""Spaces as JSON and back; leaves and their dtypes; packed actions."""

import enum
import json
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from gymnasium import spaces
from packing_helpers import pack_action

from quintet.checkpoints.spaces_as_json import from_json, other_spaces, to_json
from quintet.errors import ConfigError, QuintetError
from quintet.models.heads import action_family
from quintet.spaces import (
    action_leaves,
    action_remarks,
    action_space_of,
    action_spec,
    leaf_dtype,
    leaf_spec,
    mask_sizes,
    observation_leaves,
    stored_space,
    unpack_action,
)

INF = np.inf
SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1.5, 2.5, (3,), np.float32),
    "box_scalar": spaces.Box(-1.0, 1.0, (), np.float64),
    "box_infinite": spaces.Box(-INF, INF, (2, 3), np.float32),
    "box_half_infinite": spaces.Box(-INF, np.array([1.0, INF], np.float32), dtype=np.float32),
    "box_per_element": spaces.Box(
        np.array([[-1.0, -2.0], [0.1, -INF]]), np.array([[1.0, 2.0], [0.3, 7.0]]), dtype=np.float64
    ),
    "box_rounded": spaces.Box(np.float32(0.1), np.float32(0.7), (2,), np.float32),
    "box_picture": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "box_int": spaces.Box(-1, 2**31, (4,), np.int64),
    "box_widest_int": spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    "box_int_beyond_floats": spaces.Box(0, 2**53 + 1, (1,), np.int64),
    "discrete": spaces.Discrete(5),
    "discrete_start": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi_discrete_start": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi_discrete_nested": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_discrete_dtype": spaces.MultiDiscrete([2, 3], dtype=np.int32),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary_shape": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-INF, INF, (1,))]),
    "dict_order": spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Discrete(3))),
    "nested": spaces.Dict(
        {
            "a": spaces.Tuple(
                [spaces.Dict({"x": spaces.Discrete(3, start=1)}), spaces.Discrete(2)]
            ),
            "b": spaces.Dict({"c": spaces.Box(0, 255, (2, 2), np.uint8)}),
        }
    ),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_round_trip(space: spaces.Space):
    text = json.dumps(to_json(space), allow_nan=False)
    again = from_json(json.loads(text))
    assert type(again) is type(space)
    assert again == space
    assert list(observation_leaves(again)) == list(observation_leaves(space))
    for name, leaf in observation_leaves(space).items():
        other = observation_leaves(again)[name]
        assert other.dtype == leaf.dtype
        assert other.shape == leaf.shape
        if isinstance(leaf, spaces.Box):
            assert np.array_equal(other.low, leaf.low)
            assert np.array_equal(other.high, leaf.high)
    assert to_json(again) == to_json(space)


def test_different_spaces_have_different_descriptions():
    texts = {json.dumps(to_json(space)) for space in SPACES.values()}
    assert len(texts) == len(SPACES)


def test_flat_multi_binary():
    again = from_json(json.loads(json.dumps(to_json(spaces.MultiBinary(3)))))
    assert isinstance(again, spaces.MultiBinary)
    assert again.shape == (3,)


@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple(()), spaces.Dict(a=spaces.Dict())])
def test_an_observation_without_parts_is_refused(space):
    with pytest.raises(ConfigError, match="must not be empty"):
        observation_leaves(space)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Text(3)})])
def test_other_spaces_are_refused(space: spaces.Space):
    with pytest.raises(QuintetError, match="a space must be Box, Discrete"):
        to_json(space)


def test_the_scale_of_pictures_differs_for_a_network():
    def differ(shape, one, other, dtype):
        mine, theirs = (
            {"observation_space": to_json(spaces.Box(0, high, shape, dtype)), "action_space": 0}
            for high in (one, other)
        )
        return bool(other_spaces(mine, theirs))

    assert differ((5, 5), 4, 255, np.uint8)
    assert not differ((5, 5), 255, 255, np.uint8)
    assert not differ((5,), 4, 255, np.uint8)
    assert not differ((5, 5), 1.0, 2.0, np.float32)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'graph'"):
        from_json({"kind": "graph"})


def test_leaves_by_path():
    assert list(observation_leaves(SPACES["nested"])) == ["a/0/x", "a/1", "b/c"]
    assert list(observation_leaves(SPACES["tuple"])) == ["0", "1"]
    assert list(observation_leaves(SPACES["box"])) == ["obs"]


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("box", (3,), torch.float32),
        ("box_scalar", (), torch.float32),
        ("box_per_element", (2, 2), torch.float32),
        ("box_picture", (4, 4, 3), torch.uint8),
        ("box_int", (4,), torch.int64),
        ("discrete_start", (), torch.int64),
        ("multi_discrete_nested", (2, 2), torch.int64),
        ("multi_binary_shape", (2, 3), torch.int8),
    ],
)
def test_leaf_spec(name: str, shape: tuple[int, ...], dtype: torch.dtype):
    stored = stored_space(SPACES[name])
    spec = leaf_spec(stored)
    assert spec.shape == shape
    assert spec.dtype == dtype
    memory = np.zeros((2, *shape), leaf_dtype(stored))
    assert torch.from_numpy(memory).dtype == dtype


# space, packed shape, packed dtype, widths of the mask's parts
ACTIONS: dict[str, tuple[spaces.Space, tuple[int, ...], torch.dtype, list[int]]] = {
    "discrete": (spaces.Discrete(3, start=-1), (), torch.int64, [3]),
    "box": (spaces.Box(-1.0, 2.0, (2,)), (2,), torch.float32, []),
    "box_scalar": (spaces.Box(-1.0, 1.0, ()), (1,), torch.float32, []),
    "box_matrix": (spaces.Box(-1.0, 1.0, (2, 3), np.float64), (6,), torch.float32, []),
    "multi_discrete": (spaces.MultiDiscrete([2, 5], start=[3, 4]), (2,), torch.int64, [2, 5]),
    "multi_discrete_matrix": (
        spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32),
        (4,),
        torch.int64,
        [2, 3, 4, 5],
    ),
    "box_int": (
        spaces.Box(-1, np.array([2, 0], np.int8), dtype=np.int8),
        (2,),
        torch.int64,
        [4, 2],
    ),
    "box_int_scalar": (spaces.Box(3, 5, (), np.int32), (1,), torch.int64, [3]),
    "box_int_matrix": (spaces.Box(0, 255, (1, 2), np.uint8), (2,), torch.int64, [256, 256]),
    "box_int_and_floats": (
        spaces.Tuple([spaces.Box(5, 7, (2,), np.int64), spaces.Box(-1.0, 1.0, (1,))]),
        (3,),
        torch.float32,
        [3, 3],
    ),
    "multi_binary_matrix": (spaces.MultiBinary((2, 3)), (6,), torch.int64, []),
    "integers": (
        spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(4, start=7)]),
        (3,),
        torch.int64,
        [4],
    ),
    "nested": (
        spaces.Dict(
            OrderedDict(
                z=spaces.Tuple([spaces.Discrete(3, start=2), spaces.Box(-1.0, 1.0, (1, 2))]),
                a=spaces.Dict({"m": spaces.MultiDiscrete([3, 2], start=[1, 0])}),
            )
        ),
        (5,),
        torch.float32,
        [3, 3, 2],
    ),
}


def assert_equal(got: object, expected: object) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert_equal(got[key], value)
    elif isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            assert_equal(a, b)
    else:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def stacked(space: spaces.Space, samples: list) -> object:
    """Actions of several streams, leaf by leaf."""
    if isinstance(space, spaces.Dict):
        children = space.spaces.items()
        return {key: stacked(child, [x[key] for x in samples]) for key, child in children}
    if isinstance(space, spaces.Tuple):
        children = enumerate(space.spaces)
        return tuple(stacked(child, [x[i] for x in samples]) for i, child in children)
    return np.stack(samples)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_are_packed_and_unpacked(name: str):
    space, shape, dtype, _ = ACTIONS[name]
    spec = action_spec(space)
    assert (spec.shape, spec.dtype) == (shape, dtype)
    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    batch = stacked(space, samples)
    packed = pack_action(space, batch)
    assert packed.shape == (4, *shape)
    assert torch.from_numpy(packed).dtype == dtype
    again = unpack_action(space, packed)
    if name == "box_matrix":  # float64 doesn't survive float32
        np.testing.assert_allclose(again, batch, atol=1e-7)
        assert again.dtype == np.float64
    else:
        assert_equal(again, batch)
    for i, sample in enumerate(samples):
        one = unpack_action(space, packed[i])
        assert space.contains(one)
        np.testing.assert_array_equal(pack_action(space, one), packed[i])
        np.testing.assert_array_equal(pack_action(space, sample), packed[i])


@pytest.mark.parametrize("name", ACTIONS)
def test_the_stored_action_space_is_packed_alike(name: str):
    """The order and the counting from 0 that a learner sees are those that unpacking undoes."""
    space, _, _, sizes = ACTIONS[name]
    stored = action_space_of(space, "mine")
    assert action_spec(stored) == action_spec(space)
    sizes_of = [[math.prod(x.shape) for x in action_leaves(each)] for each in (stored, space)]
    assert sizes_of[0] == sizes_of[1]
    assert mask_sizes(space) == mask_sizes(stored) == sizes
    space.seed(1)
    for _ in range(20):
        packed = pack_action(space, space.sample())
        unpacked = unpack_action(stored, packed)
        assert stored.contains(unpacked)  # no start is in it
        np.testing.assert_array_equal(pack_action(stored, unpacked), packed)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("bounds", ["clip", "squash", "mean_tanh"])
def test_families_act_in_packed_form_within_the_space(name: str, bounds: str):
    space, shape, dtype, sizes = ACTIONS[name]
    family = action_family(action_space_of(space, "mine"), bounds)
    assert family.action_shape == shape
    assert family.action_dtype == dtype
    assert family.mask_size == sum(sizes)
    generator = torch.Generator().manual_seed(0)
    params = 3.0 * torch.randn((50, family.param_size), generator=generator)
    raw = family.sample(params, family.draw_noise((50,), generator))
    sent = family.to_env(raw).numpy()
    assert sent.shape == (50, *shape)
    assert all(space.contains(unpack_action(space, x)) for x in sent)


def test_bounds_that_float32_rounds_outwards_are_kept():
    space = spaces.Box(0.1, 0.7, (1,), np.float64)
    assert float(np.float32(0.7)) < 0.7 < 0.8
    assert float(np.float32(0.1)) > 0.1
    low = spaces.Box(-0.1, 0.7, (1,), np.float64)
    rounded = np.array([-0.1], np.float32)
    assert float(rounded[0]) < -0.1
    assert low.contains(unpack_action(low, rounded))
    assert space.contains(unpack_action(space, np.array([0.7], np.float32)))


def test_a_half_bounded_action_stays_within_its_bound():
    space = spaces.Box(np.array([0.0, -INF]), np.array([INF, 1.0]), dtype=np.float32)
    assert unpack_action(space, np.array([-3.0, 5.0], np.float32)).tolist() == [0.0, 1.0]
    assert unpack_action(space, np.array([3.0, -5.0], np.float32)).tolist() == [3.0, -5.0]


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Tuple([spaces.Text(3)]), spaces.Tuple([]), spaces.Dict({})]
)
def test_actions_without_a_fixed_size_are_refused(space: spaces.Space):
    with pytest.raises(ConfigError, match="mine: the action space must be"):
        action_space_of(space, "mine")


def test_stored_spaces_keep_the_order_of_their_leaves():
    space = spaces.Dict(OrderedDict(z=spaces.Discrete(2, start=1), a=spaces.Box(-1.0, 1.0, (1,))))
    assert list(observation_leaves(stored_space(space))) == ["z", "a"]


def box(**changes: object) -> dict[str, object]:
    plain = {"kind": "box", "shape": [3], "dtype": "float32", "low": -1.0, "high": 1.0}
    return plain | changes


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        [],
        {},
        {"kind": 7},
        {"kind": "x" * 10**6},
        *(box(shape=shape) for shape in ([10**9], [10**15], [10**400], [-1], ["3"], "3", 3, [1.5])),
        *(box(shape=[100_000, 100_000]), box(shape=[2**40, 2**40, 2**40])),
        *(box(dtype=dtype) for dtype in ("object", "U9999", "nothing", 7, None, "complex128")),
        *(box(low=low) for low in ("x", None, [1.0, 2.0], 10**400, {})),
        *({"kind": "discrete", "n": n, "start": 0} for n in (0, -1, 1e30, 10**30, "3", None, True)),
        {"kind": "discrete", "n": 3, "start": 10**30},
        *(
            {"kind": "multi_discrete", "nvec": nvec, "start": [0], "dtype": "int64"}
            for nvec in ([10**30], [-1], [], "3", None)
        ),
        *({"kind": "multi_binary", "n": n} for n in (10**15, -1, "3", None, [10**9, 10**9])),
        {"kind": "dict", "items": [[["a"], box()]]},
        {"kind": "dict", "items": [[None, box()]]},
        {"kind": "dict", "items": 3},
        {"kind": "tuple", "items": {"a": 1}},
    ],
)
def test_a_description_from_elsewhere_is_no_space_or_a_small_one(data):
    with pytest.raises(ValueError, match=r".") as raised:
        from_json(data)
    assert len(str(raised.value)) < 500


class Named(str, enum.Enum):  # noqa: UP042 (whose text is not its value)
    A = "a"


@pytest.mark.parametrize(
    "key", [("arm", 0), Named.A, np.int64(1), b"a", None, True, 1.5, "", "a\nb", "\ud800"]
)
@pytest.mark.parametrize("deep", [False, True])
def test_keys_that_can_not_be_stored_are_refused(key, deep):
    space = spaces.Dict(OrderedDict([(key, spaces.Box(0, 1, (2,)))]))
    space = spaces.Tuple([space]) if deep else space
    for refuse in (stored_space, lambda x: action_space_of(x, "mine")):
        with pytest.raises(ConfigError, match="keys of a Dict space must be strings"):
            refuse(space)


KEYS = ("a/b", "a.b", ".", "/", "obs", "0", 7, np.str_("n"), "with space", "ö", "__class__")


def test_other_keys_are_kept():
    for key in KEYS:
        space = spaces.Dict(OrderedDict([(key, spaces.Box(0, 1, (2,)))]))
        stored = stored_space(space)
        again = from_json(json.loads(json.dumps(to_json(stored))))
        assert again == stored == space
        assert list(observation_leaves(again)) == [str(key)]
        assert from_json(to_json(action_space_of(space, "mine"))) == space


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "top", [np.finfo(np.float16).max, np.finfo(np.float32).max, np.finfo(np.float64).max, 1e30]
)
def test_bounds_that_can_not_be_meant_count_as_none(dtype, top):
    top = min(float(top), float(np.finfo(dtype).max))
    low, high = np.array([-top, 0.0, -1.0], dtype), np.array([top, top, 1.0], dtype)
    space = spaces.Box(low, high, dtype=dtype)
    for stored in (stored_space(space), action_space_of(space, "mine")):
        np.testing.assert_array_equal(stored.low, [-INF, 0.0, -1.0])
        np.testing.assert_array_equal(stored.high, [INF, INF, 1.0])
    assert "count as none" in action_remarks(space)[0]


def test_bounds_that_are_meant_stay():
    for space in (
        spaces.Box(-1e9, 1e14, (2,), np.float64),
        spaces.Box(-INF, INF, (2,)),
        spaces.Box(0, 2**62, (2,), np.int64),
        spaces.Dict(a=spaces.Box(-65_000, 65_000, (2,)), b=spaces.Discrete(3)),
    ):
        assert action_remarks(space) == ()
    assert stored_space(space) == space


def test_action_spaces_without_end_are_refused():
    for space in (
        spaces.Discrete(10**9),
        spaces.MultiDiscrete([10**6, 10**6]),
        spaces.MultiBinary(10**7),
        spaces.Box(0, 10**6, (1,), np.int32),
        spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    ):
        with pytest.raises(ConfigError, match="at most 1,000,000 numbers and choices"):
            action_space_of(space, "mine")
