"""The shape check that stands in for annotations outside of tests, and the recursion itself."""

import pytest
import torch
from ops_helpers import assert_near

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


@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 80])
@pytest.mark.parametrize("cuts", [0.0, 0.1, 0.5, 1.0])
def test_the_scan_is_the_plain_loop(T: int, cuts: float):
    """With weights of 0 and above 1, and with NaN in the row behind each cut, which none reads."""
    g = torch.Generator().manual_seed(T)
    x = torch.randn((T, 4), generator=g, dtype=torch.float64)
    weight = 1.5 * torch.rand((T, 4), generator=g, dtype=torch.float64)
    weight[torch.rand((T, 4), generator=g) < 0.1] = 0.0
    goes_on = torch.rand((T, 4), generator=g) >= cuts
    goes_on[-1] = False
    weight[~goes_on] = float("nan")  # never read
    after_cut = torch.zeros_like(goes_on)
    after_cut[1:] = ~goes_on[:-1]
    for spoilt in (False, True):
        if spoilt:
            x[after_cut] = weight[after_cut] = float("nan")
        y, expected = scan_back(x, weight, goes_on), torch.empty_like(x)
        for b in range(4):
            after = 0.0
            for i in reversed(range(T)):
                here = x[i, b].item()
                after = here + weight[i, b].item() * after if goes_on[i, b] else here
                expected[i, b] = after
        assert torch.equal(y.isnan(), expected.isnan())
        assert_near(y.nan_to_num(), expected.nan_to_num())
        assert torch.equal(y.isnan(), after_cut if spoilt else torch.zeros_like(after_cut))


def test_the_scan_hands_a_nan_on_to_the_rows_that_read_it():
    x = torch.tensor([[1.0], [2.0], [float("nan")], [4.0]])
    goes_on = torch.tensor([[True], [True], [True], [False]])
    y = scan_back(x, torch.ones(4, 1), goes_on).flatten()
    assert y.isnan().tolist() == [True, True, True, False]
