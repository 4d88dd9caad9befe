"""`Trained` against PyTorch's own optimizers."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.parts.optimizer import Optimizer
from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import (
    CLEAR_EVERY,
    Parameters,
    StepOptions,
    Trained,
)
from quintet.errors import NonFiniteError
from quintet.ops import adam


class Knobs(NamedTuple):
    scale: Knob


def of_total(total: Tensor, x: Tensor, knobs: Knobs) -> Statistics:
    return Statistics({"loss/total": total})


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

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
        total = knobs.scale * functional_call(ours, parameters, (x,))
        return total, total

    setup = Setup(1, 1, (1, 2), torch.device("cpu"))
    trained = Trained(
        ours,
        loss,
        of_total,
        Knobs,
        setup,
        only_learning=("network/critic.",),
        segments=("actor", "critic"),
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
        options = [
            StepOptions(adam.rates(step, rate, 1e-8), bound)
            for rate, bound in zip(rates, bounds, strict=True)
        ]
        trained.step(x, Knobs(0.5), *options)
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


class Options(NamedTuple):
    """The options that `step_options` reads of a learner with Adam."""

    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 0.5


def test_a_segment_sits_steps_out() -> None:
    """As the policy of TD3, which moves in every second step: the optimizer of its own, which is
    called as often, does the same; also where the training is saved and goes on in between.
    """
    torch.manual_seed(0)
    theirs, setup = Two(), Setup(1, 1, (1, 2), torch.device("cpu"))

    def make() -> Trained[Tensor, Knobs]:
        network = Two()
        network.load_state_dict(theirs.state_dict())

        def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
            total = knobs.scale * functional_call(network, parameters, (x,))
            return total, total

        segments = ("actor", "critic")
        return Trained(
            network, loss, of_total, Knobs, setup,
            segments=segments, delayed=("actor",), averages=True,
        )  # fmt: skip

    trained = make()
    parts, rates = (theirs.actor, theirs.critic), (1e-2, 3e-2)
    optimizers = [torch.optim.Adam(p.parameters(), r) for p, r in zip(parts, rates, strict=True)]
    for step in range(1, 8):
        if step == 6:
            state, trained = trained.save(), make()
            trained.load(state, step - 1)
        x, moves = torch.randn(4, 3), step % 2 == 0
        actor = trained.segments[0]
        before = [each.clone() for each in (actor.theta, *actor.memory.values())]
        options = (
            trained.step_options(rates[0], Options(), "actor") if moves else None,
            trained.step_options(rates[1], Options(), "critic"),
        )
        trained.step(x, Knobs(0.5), *options, polyak=0.5 if moves else 0.0)
        after = (actor.theta, *actor.memory.values())
        for mine, old in zip(after, before, strict=True):
            assert torch.equal(mine, old) is not moves
        theirs.zero_grad()
        (0.5 * theirs(x)).backward()
        for part, optimizer in zip(parts, optimizers, strict=True):
            nn.utils.clip_grad_norm_(part.parameters(), 0.5)
            if moves or part is theirs.critic:
                optimizer.step()
    for name, p in theirs.named_parameters():
        torch.testing.assert_close(trained.parameters[name].detach(), p.detach(), msg=name)


def test_a_step_that_a_segment_sits_out_has_fewer_statistics() -> None:
    """Means are over the steps that have them, and the gradient that was not needed counts in
    none; what is not finite is found in either kind of step.
    """
    network = Two()

    def loss(
        parameters: Parameters, batch: tuple[Tensor, bool], knobs: Knobs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x, moves = batch
        critic, actor = network.critic, network.actor
        own = {
            part: {n: parameters[f"{part}.{n}"] for n in ("weight", "bias")}
            for part in ("critic", "actor")
        }
        outputs = {"loss/critic": functional_call(critic, own["critic"], (x,)).sum()}
        if moves:
            outputs["loss/actor"] = functional_call(actor, own["actor"], (x,)).sum()
        return knobs.scale * sum(outputs.values(), torch.zeros(())), outputs

    def make() -> Trained[tuple[Tensor, bool], Knobs]:
        return Trained(
            network, loss, lambda outputs, *_: Statistics(outputs), Knobs,
            Setup(1, 1, (1, 2), torch.device("cpu")),
            segments=("actor", "critic"), delayed=("actor",),
        )  # fmt: skip

    trained = make()
    x, rest = torch.ones(1, 3), StepOptions(adam.REST, None)
    expected: dict[str, float] = {"loss/actor": network.actor(x).sum().item()}
    expected["loss/critic"] = sum(network.critic(k * x).item() for k in (1, 2, 6)) / 3
    for factor, moves in ((2, False), (1, True), (6, False)):
        trained.step((factor * x, moves), Knobs(1.0), rest if moves else None, rest)
    trained.fold()
    found = trained.interval.read()
    norms = {"optim/actor_grad_norm": 8.0**0.5}
    norms["optim/critic_grad_norm"] = sum((3 * k * k + 1) ** 0.5 for k in (1, 2, 6)) / 3
    assert found == pytest.approx(expected | norms)
    for moves in (False, True):
        network.load_state_dict(Two().state_dict())
        trained = make()
        trained.step((x, True), Knobs(1.0), rest, rest)
        trained.step((x * torch.nan, moves), Knobs(1.0), rest if moves else None, rest)
        with pytest.raises(NonFiniteError, match="at update 2;"):
            trained.fold_when_due()


def test_a_velocity_does_not_rest() -> None:
    network = nn.Linear(2, 1)

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
        total = functional_call(network, parameters, (x,)).sum()
        return total, total

    setup = Setup(1, 1, (1, 2), torch.device("cpu"))
    rule = Optimizer("rmsprop", momentum=True)
    trained = Trained(network, loss, of_total, Knobs, setup, rule, delayed=("",))
    with pytest.raises(ValueError, match="momentum must be 0 where a segment skips steps"):
        trained.step(torch.ones(1, 2), Knobs(1.0), None)


def test_moments_of_weights_without_gradient_do_not_stay_subnormal() -> None:
    network = nn.Linear(2, 1, bias=False)

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
        total = functional_call(network, parameters, (x,)).sum()
        return total, total

    trained = Trained(network, loss, of_total, Knobs, Setup(1, 1, (1, 2), torch.device("cpu")))
    tiny = torch.finfo(torch.float32).tiny
    subnormal = []
    for step in range(1, CLEAR_EVERY + 2):
        x = torch.tensor([[1.0, 1.0 if step == 1 else 0.0]])
        trained.step(x, Knobs(1.0), StepOptions(adam.rates(step, 1e-3, 1e-8), None))
        subnormal.append(0.0 < trained.memory["exp_avg"][1] < tiny)
    assert subnormal[CLEAR_EVERY - 2]
    assert not any(subnormal[CLEAR_EVERY - 1 :])
    assert trained.memory["exp_avg"][1] == 0.0
    assert (trained.memory["exp_avg_sq"] > tiny).all()
    torch.testing.assert_close(trained.memory["exp_avg"][0], torch.tensor(1.0))


def plain(told: float) -> tuple[Trained[Tensor, Knobs], nn.Linear]:
    """What trains a layer, by a loss that is told as `told`."""
    network = nn.Linear(2, 1)

    def loss(parameters: Parameters, x: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
        total = knobs.scale * functional_call(network, parameters, (x,)).sum()
        return total, total

    def statistics(total: Tensor, x: Tensor, knobs: Knobs) -> Statistics:
        return Statistics({"policy/kl": torch.tensor(torch.nan), "loss/total": total * told})

    setup = Setup(1, 1, (1, 2), torch.device("cpu"))
    return Trained(network, loss, statistics, Knobs, setup), network


def test_a_loss_is_looked_at_in_every_update_also_where_its_gradient_is_finite() -> None:
    """As of an error whose square is infinite.  Statistics that there are none of are NaN."""
    x, descent = torch.ones(1, 2), StepOptions(adam.rates(1, 1e-3, 1e-8), None)
    trained, _ = plain(1.0)
    for _ in range(3):
        trained.step(x, Knobs(1.0), descent)
        trained.fold_when_due()
    assert trained.pending == 3
    trained, _ = plain(torch.inf)
    trained.step(x, Knobs(1.0), descent)
    with pytest.raises(NonFiniteError, match=r"^loss/total must be finite, got -?inf at update 1;"):
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
    said = f"^bias must be finite, got {value} after update 0; begin again"
    with pytest.raises(NonFiniteError, match=said):
        trained.published()
