"""Auxiliary losses of an encoder of the user's own."""

from typing import Any

import pytest
import torch
from impala_helpers import COLUMNS, STEPS, loss_and_gradient, make_batch, make_learner
from ppo_helpers import DISCRETE, learn, make_obs
from ppo_helpers import make_learner as make_ppo
from torch import Tensor, nn

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.impala.learner import make_actor
from quintet.algorithms.ppo.config import PPOConfig
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, resolve_model


class Own(nn.Module):
    """Says beside its features how badly it reconstructs, per row, and how large its weights are.

    fault: breaks the contract in one way.
    """

    def __init__(self, leaves: dict[str, Any], fault: str = "", losses: bool = True):
        super().__init__()
        self.fault, self.losses, self.feature_size = fault, losses, 5
        self.linear = nn.Linear(leaves["obs"].shape[0], 5)
        if losses:
            self.decoder = nn.Linear(5, leaves["obs"].shape[0])

    def forward(self, obs: dict[str, Tensor]) -> Any:
        features = self.linear(obs["obs"]).tanh()
        if not self.losses:
            return features
        per_row = (self.decoder(features) - obs["obs"]).square().sum(-1)
        losses: dict[Any, Any] = {
            "per_row": per_row,
            "scalar": self.linear.weight.square().sum(),
        }
        match self.fault:
            case "shape":
                losses["per_row"] = per_row[:1]
            case "column":
                losses["per_row"] = per_row.unsqueeze(-1)
            case "number":
                losses["scalar"] = 1.0
            case "name":
                losses[3] = per_row
            case "detached":
                losses["scalar"] = losses["scalar"].detach()
            case "float64":
                losses["scalar"] = losses["scalar"].double()
            case "where wanted":
                return (features, losses) if torch.is_grad_enabled() else features
        return features, losses


def own(**kwargs: Any) -> ModelConfig:
    shared = kwargs.pop("shared_torso", True)
    return ModelConfig(encoder="test_impala_aux:Own", encoder_kwargs=kwargs, shared_torso=shared)


OWN = own()


def test_terms_weights_and_reports():
    """The loss is that of the plain encoder plus the weighted terms, reduced over valid rows."""
    weights = {"per_row": 0.3, "scalar": 0.0}
    batch = make_batch(make_learner(ImpalaConfig(), model=OWN))
    obs = batch.obs["obs"][:-1]
    for reduction, divisor in (("sum", 1), ("sum_time_mean_batch", COLUMNS), ("mean", None)):
        for given in ({}, weights):
            config = ImpalaConfig(reduction=reduction, aux_loss_weights=given)
            learner = make_learner(config, model=OWN)
            module = learner.network.encoder.module
            with torch.no_grad():
                _, losses = module({"obs": obs.flatten(0, 1)})
            rows = losses["per_row"].view(STEPS, COLUMNS)[batch.valid].double()
            per_row = (rows.sum() / (divisor or len(rows))).item() * given.get("per_row", 1.0)
            scalar = losses["scalar"].item() * given.get("scalar", 1.0)
            metrics = learn(learner, batch, 0)
            assert metrics["loss/aux/per_row"] == pytest.approx(per_row, rel=1e-6)
            assert metrics["loss/aux/scalar"] == pytest.approx(scalar, rel=1e-6)
            rest = sum(metrics[f"loss/{name}"] for name in ("policy", "value", "entropy"))
            total = rest + per_row + scalar
            assert metrics["loss/total"] == pytest.approx(total, rel=1e-6)


def test_their_gradient_reaches_the_weights():
    """By differences of the loss: the decoder has no other gradient than theirs."""
    learner = make_learner(ImpalaConfig(aux_loss_weights={"per_row": 0.3}), model=OWN)
    batch = make_batch(learner)
    _, gradient = loss_and_gradient(learner, batch)
    index = next(
        sum(
            learner.trained.parameters[other].numel()
            for other in list(learner.trained.parameters)[:i]
        )
        for i, name in enumerate(learner.trained.parameters)
        if "decoder.weight" in name
    )
    found = []
    for step in (1e-2, -1e-2):
        with torch.no_grad():
            learner.trained.theta[index] += step
        found.append(loss_and_gradient(learner, batch)[0].item())
        with torch.no_grad():
            learner.trained.theta[index] -= step
    slope = (found[0] - found[1]) / 2e-2
    assert abs(slope) > 1e-2
    # A loss near 33 is rounded by 2e-6, which over the step of 2e-2 is 1e-4 of a slope of 0.3.
    assert gradient[index].item() == pytest.approx(slope, rel=1e-3)


def test_rows_that_are_not_valid_have_none():
    learner = make_learner(ImpalaConfig(), model=OWN)
    batch = make_batch(learner)
    # An invalid row behind a termination: its observation is the value of nothing.
    ends = batch.terminated[:-1] & ~batch.valid[1:]
    assert ends.any()
    before = loss_and_gradient(learner, batch)
    batch.obs["obs"][1:-1][ends] += 100.0
    after = loss_and_gradient(learner, batch)
    torch.testing.assert_close(after, before)


def test_two_encoders_give_the_sum():
    learner = make_learner(ImpalaConfig(), model=own(shared_torso=False))
    batch = make_batch(learner)
    modules = [learner.network.encoder.module, learner.network.value_encoder.module]
    wanted = sum(module.linear.weight.square().sum().item() for module in modules)
    assert learn(learner, batch, 0)["loss/aux/scalar"] == pytest.approx(wanted, rel=1e-6)


def test_they_stay_apart_from_acting():
    outputs = []
    for fault in ("", "where wanted"):
        model = resolve_model(own(fault=fault), DISCRETE)
        config = ImpalaConfig()
        learner, actor = make_learner(config, model=model), make_actor(config, model, DISCRETE)
        actor.load(learner.publication())
        obs = make_obs(DISCRETE, (5,), torch.Generator().manual_seed(0))
        noise = actor.draw_noise(1, 5, torch.Generator().manual_seed(1))[0]
        outputs.append(actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), noise))
        assert learner.network.encoder.loss_names == ("per_row", "scalar")
    assert torch.equal(outputs[0].action, outputs[1].action)
    assert list(outputs[0].record) == ["logp_mu"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (OWN, r"gives \(per_row, scalar\), got wrong"),
        (own(losses=False), r"\(it gives none\), got wrong"),
    ],
)
def test_an_unknown_name_is_refused(model: ModelConfig, said: str):
    with pytest.raises(ConfigError, match=said):
        make_learner(ImpalaConfig(aux_loss_weights={"wrong": 1.0}), model=model)


def test_ppo_refuses_them():
    with pytest.raises(
        ConfigError, match=r"without auxiliary losses, got .* with per_row, scalar: "
    ):
        make_ppo(PPOConfig(), model=OWN)
    make_ppo(PPOConfig(), model=own(losses=False))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shape", "got (1,) for 'per_row'"),
        ("column", "got (2, 1) for 'per_row'"),
        ("number", "got float for 'scalar'"),
        ("name", "by name, got one called 3"),
        ("detached", "depends on no parameter"),
        ("float64", "got 'scalar' of torch.float64"),
    ],
)
def test_a_broken_contract_is_told(fault: str, words: str):
    with pytest.raises(ConfigError) as error:
        make_learner(ImpalaConfig(), model=own(fault=fault))
    assert words in str(error.value)
