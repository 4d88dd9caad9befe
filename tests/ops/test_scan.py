"""The shape check that stands in for annotations outside of tests, and the recursion itself."""

import pytest
import torch

from quintet.ops.scan import continues, next_row, require_same_shape, scan_back


@pytest.mark.parametrize(
    "shapes", [[(3, 2), (3, 2, 1)], [(3, 2), (2, 3)], [(3,), (3,)], [(0, 2)], [(3, 2, 1)] * 2]
)
def test_shapes_that_would_broadcast_are_refused(shapes: list[tuple[int, ...]]):
    with pytest.raises(ValueError, match="one shape"):
        require_same_shape(*(torch.zeros(shape) for shape in shapes))


def test_equal_shapes_pass():
    require_same_shape(torch.zeros(3, 2), torch.ones(3, 2))


def test_nothing_continues_behind_a_cut_or_the_last_row():
    not_cut = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    assert continues(not_cut).flatten().tolist() == [True, False, True, False]
    assert not_cut.flatten().tolist() == [1.0, 0.0, 1.0, 1.0]


def test_scan_by_hand():
    x = torch.tensor([[1.0], [2.0], [3.0], [float("nan")]])
    weight = torch.tensor([[10.0], [100.0], [7.0], [7.0]])
    goes_on = torch.tensor([[True], [True], [False], [False]])
    y = scan_back(x, weight, goes_on).flatten().tolist()
    assert y[:3] == [1.0 + 10.0 * (2.0 + 100.0 * 3.0), 302.0, 3.0]
    assert next_row(x)[:2].flatten().tolist() == [2.0, 3.0]
