"""Kernels are told by their modules, whatever these are called; how they are drawn."""

import pytest
import torch
from torch import Tensor, nn

from quintet.models.weights import draw_layers, kernels


class Tricky(nn.Module):
    """Names that say nothing, or the wrong thing."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Linear(3, 4)
        self.weight = nn.LayerNorm((2, 4))
        self.value_core = nn.Sequential(nn.Conv2d(1, 2, 3), nn.RMSNorm((5, 6)), nn.BatchNorm2d(2))
        self.norm = nn.Embedding(5, 3)
        self.gru = nn.GRU(3, 2)
        self.matrix = nn.Parameter(torch.ones(2, 2))
        self.scale = nn.Parameter(torch.ones(2))
        self.again = nn.Linear(3, 4, bias=False)
        self.again.weight = self.bias.weight

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_which_parameters_are_kernels():
    network = nn.ModuleDict({"a_b": Tricky(), "other": nn.Linear(2, 2)})
    found = kernels(network, network["a_b"].modules())
    expected = ["bias.weight", "gru.weight_hh_l0", "gru.weight_ih_l0", "matrix", "norm.weight"]
    assert found == [f"a_b.{name}" for name in (*expected, "value_core.0.weight")]
    assert kernels(network, [network["other"]]) == ["other.weight"]
    assert kernels(network, network["a_b"].children()) == [
        name for name in found if "matrix" not in name and "core.0" not in name
    ]


@pytest.mark.parametrize("init", ["orthogonal", "truncated_normal", "uniform"])
@pytest.mark.parametrize("role", ["hidden", "policy", "value"])
def test_only_linear_layers_and_convolutions_are_drawn(init, role):
    network = Tricky()
    before = {name: x.detach().clone() for name, x in network.named_parameters()}
    draw_layers(network, init, torch.Generator().manual_seed(0), role)
    changed = {name for name, x in network.named_parameters() if not torch.equal(x, before[name])}
    layers = {"bias", "value_core.0"}
    assert changed == {f"{layer}.{name}" for layer in layers for name in ("weight", "bias")}
    for layer in (network.bias, network.value_core[0]):
        assert bool(layer.bias.any()) == (init == "uniform")


@pytest.mark.parametrize("role", ["hidden", "policy", "value"])
@pytest.mark.parametrize(
    "layer", [nn.Linear(9, 5000), nn.Conv2d(1, 5000, 3)], ids=["linear", "conv"]
)
def test_uniform_weights_and_biases_lie_within_the_root_of_the_fan_in(layer, role):
    draw_layers(layer, "uniform", torch.Generator().manual_seed(0), role)
    for x in (layer.weight, layer.bias):
        assert x.abs().max().item() <= 1 / 3
        # Variance of a uniform number; that of 5,000 is within 1.3% of it, but for one in three.
        assert x.square().mean().item() == pytest.approx(1 / 27, rel=0.06)
        assert abs(x.mean().item()) < 0.012


def test_the_order_is_that_of_names():
    """Not that in which layers were made, so that rearranging a class changes no weights."""
    one = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    other = nn.ModuleDict({"b": nn.Linear(3, 3), "a": nn.Linear(3, 3)})
    for network in (one, other):
        draw_layers(network, "orthogonal", torch.Generator().manual_seed(0))
    assert torch.equal(one["a"].weight, other["a"].weight)
    assert torch.equal(one["b"].weight, other["b"].weight)
    assert not torch.equal(one["a"].weight, one["b"].weight)
