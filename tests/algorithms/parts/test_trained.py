"""`Trained` against PyTorch's own optimizers."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import CLEAR_EVERY, Descent, Parameters, Trained
from quintet.errors import NonFiniteError
from quintet.ops import adam


class Knobs(NamedTuple):
    scale: Knob


class Two(nn.Module):
    """Two networks whose gradients are taken at the same parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x).square().sum() + self.critic(x).exp().sum()


def test_segments_have_rates_and_clips_of_their_own() -> None:
    torch.manual_seed(0)
    ours, theirs = Two(), Two()
    theirs.load_state_dict(ours.state_dict())

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Statistics]:
        total = knobs.scale * functional_call(ours, parameters, (x,))
        return total, Statistics({"loss/total": total})

    setup = Setup(1, 1, (1, 2), torch.device("cpu"))
    trained = Trained(
        ours, loss, Knobs, setup, only_learning=("network/critic.",), segments=("actor", "critic")
    )
    assert set(trained.published()) == {"network/actor.weight", "network/actor.bias"}
    assert set(trained.weights()) - set(trained.published()) == {
        "network/critic.weight",
        "network/critic.bias",
    }
    rates, bounds = (1e-2, 3e-2), (0.1, 2.0)
    parts = theirs.actor, theirs.critic
    optimizers = [torch.optim.Adam(p.parameters(), r) for p, r in zip(parts, rates, strict=True)]
    for step in range(1, 6):
        x = torch.randn(4, 3)
        descents = [
            Descent(adam.rates(step, rate, 1e-8), bound)
            for rate, bound in zip(rates, bounds, strict=True)
        ]
        trained.step(x, Knobs(0.5), *descents)
        theirs.zero_grad()
        (0.5 * theirs(x)).backward()
        for part, optimizer, bound in zip(parts, optimizers, bounds, strict=True):
            nn.utils.clip_grad_norm_(part.parameters(), bound)
            optimizer.step()
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(trained.parameters[name].detach(), p.detach(), msg=name)
    trained.fold()
    assert set(trained.interval.read()) == {
        "loss/total",
        "optim/actor_grad_norm",
        "optim/critic_grad_norm",
    }


def test_moments_of_weights_without_gradient_do_not_stay_subnormal() -> None:
    network = nn.Linear(2, 1, bias=False)

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Statistics]:
        total = functional_call(network, parameters, (x,)).sum()
        return total, Statistics({"loss/total": total})

    trained = Trained(network, loss, Knobs, Setup(1, 1, (1, 2), torch.device("cpu")))
    tiny = torch.finfo(torch.float32).tiny
    subnormal = []
    for step in range(1, CLEAR_EVERY + 2):
        x = torch.tensor([[1.0, 1.0 if step == 1 else 0.0]])
        trained.step(x, Knobs(1.0), Descent(adam.rates(step, 1e-3, 1e-8), None))
        subnormal.append(0.0 < trained.memory["exp_avg"][1] < tiny)
    assert subnormal[CLEAR_EVERY - 2]
    assert not any(subnormal[CLEAR_EVERY - 1 :])
    assert trained.memory["exp_avg"][1] == 0.0
    assert (trained.memory["exp_avg_sq"] > tiny).all()
    torch.testing.assert_close(trained.memory["exp_avg"][0], torch.tensor(1.0))


def plain(told: float) -> tuple[Trained[Tensor, Knobs], nn.Linear]:
    """What trains a layer, by a loss that is told as `told`."""
    network = nn.Linear(2, 1)

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Statistics]:
        total = knobs.scale * functional_call(network, parameters, (x,)).sum()
        return total, Statistics({"policy/kl": torch.tensor(torch.nan), "loss/total": total * told})

    return Trained(network, loss, Knobs, Setup(1, 1, (1, 2), torch.device("cpu"))), network


def test_a_loss_is_looked_at_in_every_update_also_where_its_gradient_is_finite() -> None:
    """As of an error whose square is infinite.  Statistics that there are none of are NaN."""
    x, descent = torch.ones(1, 2), Descent(adam.rates(1, 1e-3, 1e-8), None)
    trained, _ = plain(1.0)
    for _ in range(3):
        trained.step(x, Knobs(1.0), descent)
        trained.fold_when_due()
    assert trained.untold == 3
    trained, _ = plain(torch.inf)
    trained.step(x, Knobs(1.0), descent)
    with pytest.raises(NonFiniteError, match=r"loss/total became -?inf at update 1;"):
        trained.fold_when_due()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_not_published(value: float) -> None:
    trained, network = plain(1.0)
    trained.published()
    with torch.no_grad():
        network.bias.fill_(1e38)
        network.weight.fill_(3e38)  # whose sum is infinite, though none of them is
    trained.published()
    with torch.no_grad():
        network.bias.fill_(value)
    said = f"finite weights are required, bias holds {value} after update 0; begin anew"
    with pytest.raises(NonFiniteError, match=said):
        trained.published()
