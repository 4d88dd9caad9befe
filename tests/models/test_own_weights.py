"""Layers whose rows have weights of their own, against a loop over the rows."""

import copy

import pytest
import torch
from torch import Tensor, nn

from quintet.models import own_weights
from quintet.models.encoders import layers


def stacked(count: int, modules: nn.Sequential) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = {name: x.shape for name, x in modules.named_parameters()}
    return {name: torch.randn(count, *shape, generator=g) for name, shape in shapes.items()}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_layers_row_by_row(layer_norm: bool, activation: str) -> None:
    """In float64, since layer norm enlarges the rounding of small differences."""
    modules = layers((5, 7, 4), activation, layer_norm).double()
    weights = {name: each.double() for name, each in stacked(6, modules).items()}
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = own_weights.sequential(modules, weights, x)
    for row in range(6):
        alone = copy.deepcopy(modules)
        alone.load_state_dict({name: each[row] for name, each in weights.items()})
        torch.testing.assert_close(found[row], alone(x[row : row + 1])[0], rtol=1e-12, atol=1e-12)


def test_no_layers_are_the_identity() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(own_weights.sequential(layers((5,), "relu", True), {}, x), x)
