"""Recurrent PPO: what is learned from is what was acted, chunk by chunk."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from ppo_helpers import train

from quintet.algorithms.parts.minibatches import Chunks
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.models.config import ModelConfig
from quintet.types import Rollout

CHUNK = 4
PLAIN = PPOConfig(unroll_steps=12, minibatch_steps=16, bptt_steps=CHUNK, num_epochs=2)


def model(core: str, **options: object) -> ModelConfig:
    hidden = {"policy_hidden": (8,), "core": core, "core_size": 6}
    return ModelConfig.model_validate(hidden | options)


class Walk(gymnasium.Env):
    """Numbers at random in episodes that end in both ways, within chunks and at their edges."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    lengths = (3, 2, 5, 4)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.left = self.lengths[self.episode % 4]
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        over, even = self.left == 0, self.episode % 2 == 0
        return self.draw(), float(action), over and even, over and not even, {}

    def draw(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)


def plain(learner: PPOLearner) -> None:
    """Takes the normaliser of observations away: it had no statistics when they acted."""
    learner.normalizers.observations = type(learner.normalizers.observations)({}, 1.0, 1.0)


def collected(
    core: str, config: PPOConfig = PLAIN, **options: object
) -> tuple[PPOLearner, list[dict[str, float]], Rollout]:
    return train(config, Walk, 3, model=model(core, **options), streams=4, groups=2)


CORES = [
    pytest.param("lstm", {}, id="lstm"),
    pytest.param("gru", {}, id="gru"),
    pytest.param("lstm", {"core_layers": 2, "shared_torso": True}, id="deep-shared"),
]


@pytest.mark.parametrize(("core", "options"), CORES)
def test_learning_outputs_equal_acting_ones(core: str, options: dict[str, object]) -> None:
    """Values and distributions of every row, also through the resets inside of chunks."""
    config = PLAIN.model_copy(update={"num_epochs": 1, "learning_rate": 1e-30})
    learner, _, batch = train(config, Walk, 1, model=model(core, **options), streams=4, groups=2)
    plain(learner)
    rows, _ = learner._rows(batch, batch.valid)
    chunks = Chunks(batch.valid.shape, CHUNK, torch.device("cpu"))
    everywhere = torch.arange(chunks.rows.shape[1])
    rows = rows.take(chunks.order, everywhere)
    params, value, _ = learner.network(rows.obs, rows.state, rows.is_first)
    torch.testing.assert_close(params, rows.params_mu, atol=1e-8, rtol=1e-6)  # near 0.007
    torch.testing.assert_close(value, rows.value_mu, atol=3e-7, rtol=0)


def test_recomputed_values_are_the_recorded_ones() -> None:
    config = PLAIN.model_copy(update={"learning_rate": 1e-30})
    learner, _, batch = train(config, Walk, 1, model=model("lstm"), streams=4)
    plain(learner)
    obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
    chunks = Chunks(batch.valid.shape, CHUNK, torch.device("cpu"))
    recorded, anew = (chunks.values(learner.network, batch, obs, x) for x in (True, False))
    torch.testing.assert_close(anew, recorded, atol=3e-7, rtol=0)


def by_hand(learner: PPOLearner, batch: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters ``[T+1, B, P]`` and values ``[T+1, B]``, one act at a time, chunk by chunk."""
    params, values = [], []
    for t in range(batch.is_first.shape[0]):
        if t % CHUNK == 0:
            state = {name: x[t // CHUNK] for name, x in batch.state.items()}
        obs = learner.normalizers.observations({name: x[t] for name, x in batch.obs.items()})
        p, v, state = learner.network(obs, state, batch.is_first[t])
        params.append(p.detach())
        values.append(v.detach())
    return torch.stack(params), torch.stack(values)


@pytest.mark.parametrize("source", ["recorded", "recomputed"])
def test_values_up_to_the_last_row_are_those_of_one_act_after_another(source: str) -> None:
    config = PLAIN.model_copy(update={"learning_rate": 1e-30})
    learner, _, batch = train(config, Walk, 1, model=model("lstm"), streams=4)
    plain(learner)
    obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
    _, expected = by_hand(learner, batch)
    chunks = Chunks(batch.valid.shape, CHUNK, torch.device("cpu"))
    found = chunks.values(learner.network, batch, obs, source == "recorded")
    torch.testing.assert_close(found, expected, atol=3e-7, rtol=0)


def test_the_kl_that_moves_the_penalty_is_that_of_the_valid_rows() -> None:
    config = PPOConfig.model_validate(
        PLAIN.model_dump()
        | {"kl_coef_init": 1.0, "normalize_observations": False, "learning_rate": 0.01}
    )
    learner, metrics, batch = train(config, Walk, 2, model=model("gru"), streams=4)
    params, _ = by_hand(learner, batch)
    kl = learner.family.kl(batch.record["params_mu"], params[:-1])
    assert (~batch.valid).any()
    assert abs(kl[batch.valid].mean() - kl.mean()) > 1e-5
    # Differences of logarithms near 1, in float32.
    assert metrics[-1]["policy/kl"] == pytest.approx(float(kl[batch.valid].mean()), rel=1e-5)


def test_the_network_remembers_within_an_episode_and_forgets_at_its_end() -> None:
    learner, _, batch = collected("lstm")
    network = learner.network
    obs = {"obs": batch.obs["obs"][:4].float()}
    is_first = torch.zeros(4, 4, dtype=torch.bool)
    is_first[2] = True
    state = {name: torch.randn_like(x) for name, x in network.initial_state(4).items()}

    def values(first_row: torch.Tensor) -> torch.Tensor:
        rows = torch.cat((first_row[None], obs["obs"][1:]))
        flat = {"obs": rows.flatten(0, 1)}
        return network.value(flat, state, is_first.flatten()).view(4, 4)

    one, other = values(obs["obs"][0]), values(obs["obs"][0] + 1.0)
    assert ((one - other)[:2].abs() > 1e-8).all()
    assert torch.equal(one[2:], other[2:])


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_valid_row_comes_once_per_epoch_in_whole_chunks(drop_last: bool) -> None:
    _, _, batch = collected("gru")
    chunks = Chunks(batch.valid.shape, CHUNK, torch.device("cpu"))
    use = batch.valid.flatten()
    found = chunks.one_pass(use, 16, drop_last, torch.Generator().manual_seed(1))
    seen = torch.zeros_like(use, dtype=torch.int64)
    for rows, weight in zip(found.index, found.weight, strict=True):
        seen[rows[weight > 0]] += 1
        assert float(weight.sum()) == pytest.approx(1.0)
        assert len(set(weight[weight > 0].tolist())) == 1
    assert int(seen.max()) == 1
    assert torch.equal(seen.bool(), use)


def test_gradients_reach_through_the_whole_chunk_and_no_further() -> None:
    """The loss of a chunk's last row depends on its first observation."""
    learner, _, batch = collected("lstm")
    obs = batch.obs["obs"][:CHUNK].float().flatten(0, 1).requires_grad_()
    state = {name: x[0] for name, x in batch.state.items()}
    first = torch.zeros(CHUNK * 4, dtype=torch.bool)
    value = learner.network.value({"obs": obs}, state, first).view(CHUNK, 4)
    (grad,) = torch.autograd.grad(value[-1].sum(), obs)
    assert (grad.view(CHUNK, 4, -1)[0].abs().sum(-1) > 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"refresh_advantages": "per_epoch"},
        {"bptt_steps": 1, "refresh_advantages": "per_epoch"},
        {"bptt_steps": 1, "value_source": "recomputed"},
        {"value_source": "recomputed"},
        {"kl_coef_init": 1.0},
        {"lr_schedule": "kl_adaptive"},
        {"minibatch_steps": None},
        {"unfinished_episode": "drop"},
        {"normalize_advantage": "minibatch"},
        {"reduction": "mean_over_all"},
    ],
    ids=str,
)
def test_options_work_with_a_core(changes: dict[str, object]) -> None:
    config = PPOConfig.model_validate(PLAIN.model_dump() | changes)
    learner, metrics, _ = collected("lstm", config)
    assert learner.updates > 0
    if changes.keys() & {"kl_coef_init", "lr_schedule"}:
        assert metrics[-1]["policy/kl"] > 0
