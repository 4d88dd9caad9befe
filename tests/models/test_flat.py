"""Tensors of modules by name."""

import pytest
import torch
from torch import nn

from quintet.models.flat import Held, flatten_in_place, tensors_of


class Part(nn.Module):
    """A layer, nothing, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3, bias=False)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("spare", torch.zeros(1), persistent=False)
        self.register_parameter("nothing", None)


def modules() -> dict[str, nn.Module]:
    part = Part()
    return {"network": nn.Sequential(part, nn.Linear(3, 1), part), "other": Part()}


def test_held_are_the_tensors_of_the_modules():
    given = modules()
    found, wanted = Held(given).read(), tensors_of(given)
    assert [*found] == [*wanted]
    assert all(x.data_ptr() == wanted[name].data_ptr() for name, x in found.items())
    assert not any(x.requires_grad for x in found.values())


def test_held_follow_tensors_that_are_replaced():
    given = modules()
    held, network = Held(given), given["network"]
    flatten_in_place([*network.parameters()])
    network[0].seen = torch.ones(2)
    for name, x in tensors_of(given).items():
        assert held.read()[name].data_ptr() == x.data_ptr(), name
    assert held.read()["network/0.seen"].sum() == 2.0


def test_some_are_left_out_and_the_others_are_copied():
    given, donor = modules(), modules()
    some = Held(given).without(("other/", "network/1."))
    assert [*some.read()] == [
        "network/0.seen", "network/0.layer.weight", "network/2.seen", "network/2.layer.weight",
    ]  # fmt: skip
    before = given["network"][1].weight.clone()
    some.load(tensors_of(donor))
    assert torch.equal(given["network"][0].layer.weight, donor["network"][0].layer.weight)
    assert torch.equal(given["network"][1].weight, before)
    with pytest.raises(KeyError, match=r"network/0\.seen"):
        some.load({})
