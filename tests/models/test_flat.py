"""Tensors of modules by name."""

import pytest
import torch
from torch import nn

from quintet.models.flat import ModuleTensors, flatten_in_place, tensors_of


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


def test_tensors_are_those_of_the_modules():
    given = modules()
    found, wanted = ModuleTensors(given).read(), tensors_of(given)
    assert [*found] == [*wanted]
    assert all(x.data_ptr() == wanted[name].data_ptr() for name, x in found.items())
    assert not any(x.requires_grad for x in found.values())
    some = ModuleTensors(given).read(but=("other/", "network/1."))
    assert [*some] == [
        "network/0.seen", "network/0.layer.weight", "network/2.seen", "network/2.layer.weight",
    ]  # fmt: skip


def test_tensors_that_are_replaced_are_found():
    given = modules()
    tensors, network = ModuleTensors(given), given["network"]
    flatten_in_place([*network.parameters()])
    network[0].seen = torch.ones(2)
    for name, x in tensors_of(given).items():
        assert tensors.read()[name].data_ptr() == x.data_ptr(), name
    assert tensors.read()["network/0.seen"].sum() == 2.0


@pytest.mark.parametrize("before", [0, 1, 2])
def test_loading_copies(before: int):
    """The first time and later."""
    given = modules()
    tensors = ModuleTensors(given)
    for _ in range(before):
        tensors.load(tensors_of(modules()))
    donor = tensors_of(modules()) | {"another/thing": torch.ones(1)}
    tensors.load(donor)
    for name, x in tensors_of(given).items():
        assert torch.equal(x, donor[name]), name
        assert x.data_ptr() != donor[name].data_ptr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network/1.weight": None}, r"Missing key.*1\.weight"),
        ({"network/1.more": torch.ones(1)}, r"Unexpected key.*1\.more"),
        ({"other/layer.weight": torch.ones(1)}, r"size mismatch for layer\.weight"),
    ],
)
def test_other_names_and_shapes_are_refused(changes: dict[str, torch.Tensor], message: str):
    """A shape that could be stretched to the right one, too."""
    donor = {k: x for k, x in (tensors_of(modules()) | changes).items() if x is not None}
    with pytest.raises(RuntimeError, match=message):
        ModuleTensors(modules()).load(donor)


class Doubled(Part):
    """Keeps something that it makes of its tensors when they are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = self.seen * 2
        self.register_load_state_dict_post_hook(lambda it, _: it._double())

    def _double(self) -> None:
        self.twice = self.seen * 2


def test_hooks_of_modules_run_at_every_load():
    given = {"plain": Part(), "network": nn.Sequential(Doubled())}
    tensors = ModuleTensors(given)
    for number in (1.0, 2.0, 3.0):
        donor = {name: torch.full_like(x, number) for name, x in tensors_of(given).items()}
        tensors.load(donor)
        assert given["network"][0].twice.tolist() == [2 * number] * 2
        assert given["plain"].seen.tolist() == [number] * 2
