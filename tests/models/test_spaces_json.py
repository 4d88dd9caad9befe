"""Spaces as JSON and back; leaves and their dtypes."""

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintet.errors import QuintetError
from quintet.spaces import from_json, leaf_dtype, leaf_spec, observation_leaves, to_json

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


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Text(3)})])
def test_other_spaces_are_refused(space: spaces.Space):
    with pytest.raises(QuintetError, match="a space of Box, Discrete"):
        to_json(space)


def test_an_unknown_kind_is_refused():
    with pytest.raises(QuintetError, match="'graph'"):
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
    spec = leaf_spec(SPACES[name])
    assert spec.shape == shape
    assert spec.dtype == dtype
    memory = np.zeros((2, *shape), leaf_dtype(SPACES[name]))
    assert torch.from_numpy(memory).dtype == dtype
