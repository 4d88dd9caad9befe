"""The compiled update gives what the eager one gives."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from ppo_helpers import learn
from ppo_helpers import CONTINUOUS, HYBRID, MASKED, make_learner, make_rollout
from quintet.algorithms.ppo.config import PPOConfig

torch.set_num_threads(1)
full = dict(
    value_clip=0.2, entropy_coef=0.01, policy_l2_coef=1e-3, kl_beta_init=1.0, kl_cutoff_coef=1.0,
    clip_schedule="linear", normalize_advantage="minibatch", log_prob_clip=5.0, log_gradients=True,
    log_histograms=True,
)
for spaces, options in ((CONTINUOUS, {}), (MASKED, full), (HYBRID, full)):
    config = PPOConfig(minibatch_steps=16, num_epochs=2, lr_schedule="constant", **options)
    learners = [make_learner(config, spaces, compiled=compiled) for compiled in (False, True)]
    start = learners[0].trained.theta.clone()
    for iteration in range(3):
        batch = make_rollout(spaces, seed=iteration)
        eager, compiled = (learn(x, batch, 1000 * iteration) for x in learners)
        assert eager.keys() == compiled.keys()
        for name, value in eager.items():
            assert abs(value - compiled[name]) <= 1e-4 * max(1.0, abs(value)), name
    assert learners[0].updates == learners[1].updates > 10
    assert (learners[0].trained.theta - start).abs().max() > 1e-3
    error = (learners[0].trained.theta - learners[1].trained.theta).abs().max().item()
    assert error <= 1e-5, error

# Graphs of the same shapes, compiled without guards: each learner keeps its own options.
apart = []
for options in ({}, {"clip_epsilon": 0.01, "max_grad_norm": 0.05, "entropy_coef": 0.1}):
    config = PPOConfig(minibatch_steps=16, num_epochs=2, lr_schedule="constant", **options)
    learners = [make_learner(config, compiled=compiled) for compiled in (False, True)]
    for learner in learners:
        learner.update(make_rollout(seed=1), 0)
    error = (learners[0].trained.theta - learners[1].trained.theta).abs().max().item()
    assert error <= 1e-5, error
    apart.append(learners[1].trained.theta)
assert (apart[0] - apart[1]).abs().max() > 1e-3

# Acts: before and after the normaliser has statistics, with other weights, in every space.
from quintet.algorithms.ppo.learner import make_actor
from quintet.algorithms.parts.setup import Compute
from quintet.models.config import ModelConfig, resolve_model

for spaces in (CONTINUOUS, MASKED, HYBRID):
    model = resolve_model(ModelConfig(policy_hidden=(8,)), spaces)
    config = PPOConfig(minibatch_steps=16, num_epochs=1)
    learner = make_learner(config, spaces, model)
    actors = [make_actor(config, model, spaces, Compute(compile=on)) for on in (False, True)]
    noise = actors[0].draw_noise(1, 4, torch.Generator().manual_seed(0))[0]
    seen = []
    for iteration in range(3):
        batch = make_rollout(spaces, seed=iteration)
        obs = {name: x[0] for name, x in batch.obs.items()}
        for actor in actors:
            actor.load(learner.publication())
        eager, compiled = (actor.act(obs, {}, batch.is_first[0], noise) for actor in actors)
        torch.testing.assert_close(compiled.action, eager.action, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(compiled.env_action, eager.env_action, rtol=1e-5, atol=1e-5)
        for name, x in eager.record.items():
            torch.testing.assert_close(compiled.record[name], x, rtol=1e-4, atol=1e-5)
        seen.append(eager.record["value"])
        learner.update(batch, 1000 * iteration)
    assert (seen[0] - seen[2]).abs().max() > 1e-3

# What Atari games get by default: pictures, bf16, two threads.
import numpy as np
from gymnasium import spaces as gym_spaces
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.algorithms.parts.setup import Setup
from quintet.types import Spaces
from bf16_helpers import assert_nearer, assert_same_gradients

torch.set_num_threads(2)
pictures = Spaces(gym_spaces.Box(0, 255, (2, 36, 36), np.uint8), gym_spaces.Discrete(3))
model = resolve_model(ModelConfig(shared_torso=True, policy_hidden=(16,)), pictures)
config = PPOConfig(
    minibatch_steps=None, num_epochs=1, max_grad_norm=None, entropy_coef=0.01,
    normalize_observations=False, learning_rate=1e-3,
)
learners, actors = [], []
for compute in (Compute("fp32"), Compute("bf16"), Compute("bf16", True)):
    setup = Setup(4, 2000, (1, 2), torch.device("cpu"), compute)
    learners.append(PPOLearner(config, model, pictures, setup))
    actors.append(make_actor(config, model, pictures, compute))
noise = actors[0].draw_noise(1, 4, torch.Generator().manual_seed(0))[0]
batches = [make_rollout(pictures, seed=iteration) for iteration in range(2)]
for batch in batches:
    obs = {name: x[0] for name, x in batch.obs.items()}
    for actor in actors:
        actor.load(learners[1].publication())
    exact, eager, compiled = (
        actor.act(obs, {}, batch.is_first[0], noise).record for actor in actors
    )
    for name in ("params_mu", "value"):
        assert_nearer(compiled[name], eager[name], exact[name], 0.05, name)
    # Actions are chosen by noise, and so are log-probabilities, but for the last bits.
    torch.testing.assert_close(compiled["logp_mu"], eager["logp_mu"], rtol=1e-3, atol=0)
    # What learns sees what acted.
    with torch.no_grad():
        params, value, _ = learners[1].network(obs)
    assert torch.equal(value, eager["value"])
    assert_same_gradients(learners, lambda learner: learner.trained.memory["exp_avg"], [batch])
torch.set_num_threads(1)

from ppo_helpers import with_states

model = ModelConfig(policy_hidden=(8,), core="gru", core_size=6)
config = PPOConfig(minibatch_steps=16, num_epochs=2, unroll_steps=16, bptt_steps=2)
learners = [make_learner(config, MASKED, model, compiled=compiled) for compiled in (False, True)]
for iteration in range(2):
    batch = with_states(learners[0], make_rollout(MASKED, seed=iteration))
    for learner in learners:
        learner.update(batch, 1000 * iteration)
error = (learners[0].trained.theta - learners[1].trained.theta).abs().max().item()
assert error <= 1e-5, error
print("same")
"""


@pytest.mark.slow
def test_compiled_equals_eager():
    # In a process of its own: shape checks of the tests are no part of what is compiled.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip() == "same", done.stderr[-3000:]
