"""Learners and batches for the tests of PPO: small, fixed, and without environments."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import Tensor

from quintet.algorithms.parts.minibatches import Minibatch
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.ppo.config import Knobs, PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner, Rows, make_actor
from quintet.envs.env_source import MakeEnv
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.heads import action_family
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Learner
from quintet.runtime.batch import select
from quintet.runtime.sampler import SerialSampling
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, Rollout, Spaces

OBSERVATION = gym.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = Spaces(OBSERVATION, gym.Discrete(3))
CONTINUOUS = Spaces(OBSERVATION, gym.Box(-2.0, 2.0, (2,), np.float32))
MASKED = Spaces(
    gym.Dict({"x": OBSERVATION, ACTION_MASK: gym.Box(0, 1, (3,), np.int8)}), gym.Discrete(3)
)
HYBRID = Spaces(
    gym.Dict({"x": OBSERVATION, ACTION_MASK: gym.MultiBinary(5)}),
    gym.Tuple([gym.Discrete(3), gym.Box(-1.0, 1.0, (2,)), gym.MultiDiscrete([2])]),
)
PICTURE = Spaces(gym.Box(0, 255, (36, 36, 3), np.uint8), gym.Discrete(3))
GRID = Spaces(
    gym.Dict(
        {
            "direction": gym.Discrete(4),
            "image": gym.Box(0, 3, (3, 3, 3), np.uint8),
            "mission": gym.Box(0, 255, (12,), np.uint8),
        }
    ),
    gym.Discrete(3),
)
SMALL = ModelConfig(policy_hidden=(8, 8))
TOTAL = 10_000


def make_learner(
    config: PPOConfig,
    spaces: Spaces = DISCRETE,
    model: ModelConfig = SMALL,
    streams: int = 4,
    total: int = TOTAL,
    compiled: bool = False,
) -> PPOLearner:
    setup = Setup(streams, total, (1, 2), torch.device("cpu"), Compute(compile=compiled))
    return PPOLearner(config, resolve_model(model, spaces), spaces, setup)


def make_obs(spaces: Spaces, shape: tuple[int, ...], g: torch.Generator) -> dict[str, Tensor]:
    obs = {}
    for name, leaf in observation_leaves(spaces.observation).items():
        size = (*shape, *leaf.shape)
        if leaf.dtype.kind == "f":
            obs[name] = torch.randn(size, generator=g)
        elif name == ACTION_MASK:
            mask = torch.rand(size, generator=g) < 0.6
            mask[..., 0] = True
            obs[name] = mask.to(torch.int8)
        elif isinstance(leaf, gym.Discrete):
            obs[name] = torch.randint(0, int(leaf.n), size, generator=g)
        else:
            high = int(leaf.high.max()) + 1
            obs[name] = torch.randint(0, high, size, generator=g).to(torch.uint8)
    return obs


def make_rollout(
    spaces: Spaces = DISCRETE, steps: int = 16, streams: int = 4, seed: int = 0
) -> Rollout:
    """Episodes that end in both ways, an invalid row behind each; the behaviour policy and its
    values are noise, so ratios, KLs and value errors are far from trivial.
    """
    g = torch.Generator().manual_seed(seed)
    coin = torch.rand((steps, streams), generator=g)
    terminated, truncated = coin < 0.1, (coin >= 0.1) & (coin < 0.2)
    valid = torch.ones((steps, streams), dtype=torch.bool)
    for i in range(1, steps):
        resets = (terminated | truncated)[i - 1]
        valid[i, resets] = terminated[i, resets] = truncated[i, resets] = False
    obs = make_obs(spaces, (steps + 1, streams), g)
    family = action_family(spaces.action, "clip")
    params = 0.4 * torch.randn((steps, streams, family.param_size), generator=g)
    if ACTION_MASK in obs:
        params = family.apply_mask(params, obs[ACTION_MASK][:-1])
    action = family.sample(params, family.draw_noise((steps, streams), g))
    reward = torch.randn((steps, streams), generator=g)
    reward[~valid] = 0.0
    return Rollout(
        obs=obs,
        action=action,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        is_first=torch.cat([torch.ones((1, streams), dtype=torch.bool), ~valid]),
        record={
            "logp_mu": family.log_prob(params, action),
            "params_mu": params,
            "value": 0.3 * torch.randn((steps, streams), generator=g),
        },
        return_carry=3.0 * torch.randn((steps, streams), generator=g, dtype=torch.float64),
        version=torch.ones((steps, streams), dtype=torch.int64),
        policy_id=torch.zeros((steps, streams), dtype=torch.int64),
        stream_id=torch.arange(streams),
        group_id=torch.zeros(streams, dtype=torch.int64),
        episode_id=torch.zeros(streams, dtype=torch.int64),
        last_action=torch.zeros_like(action[0]),
        last_reward=torch.zeros(streams),
        state={},
    )


def with_states(learner: PPOLearner, batch: Rollout) -> Rollout:
    """The batch with recorded states as far from zero as any, where the network has some."""
    steps, streams = batch.reward.shape
    g = torch.Generator().manual_seed(streams)
    count = steps // learner.plan.state_every + 1
    state = {
        name: torch.randn((count, streams, *spec.shape), generator=g)
        for name, spec in learner.network.state_specs.items()
    }
    return replace(batch, state=state)


def columns(batch: Rollout, order: list[int]) -> Rollout:
    """The batch with these columns, in this order."""

    return select(batch, torch.tensor(order))


def valid_rows(learner: PPOLearner, batch: Rollout) -> tuple[Rows, Tensor]:
    """What the learner makes of a batch, and the numbers of the valid rows."""
    rows, _ = learner._rows(batch, batch.valid)
    return rows, batch.valid.flatten().nonzero().squeeze(1)


def knobs(
    learner: PPOLearner, beta: float = 0.0, share: float = 1.0, dtype: torch.dtype = torch.float32
) -> Knobs:
    """The loss's numbers with a chosen weight of the KL penalty and share of valid rows."""
    numbers = learner.knobs(share)._replace(kl_coef=beta)
    return Knobs(*(torch.tensor(x, dtype=dtype) for x in numbers))


def minibatch(rows: Rows, weight: Tensor) -> Minibatch:
    """All these rows, which have chunks of one row."""
    every = torch.arange(len(rows.target))
    return Minibatch(rows, every, every, weight, rows.advantage)


def map_rows(rows: Rows, of: Callable[[Tensor], Tensor]) -> Rows:
    """The rows with a function of each tensor."""

    def mapped(x: Any) -> Any:
        return {name: of(each) for name, each in x.items()} if isinstance(x, dict) else of(x)

    return Rows(**{field.name: mapped(getattr(rows, field.name)) for field in fields(rows)})


def told(statistics: Statistics) -> dict[str, float]:
    """By name, as a report would have them."""
    packed = statistics.pack().unsqueeze(0)
    return {name: x.item() for name, x in statistics.names.by_name(packed).items()}


def learn(learner: Learner, batch: Rollout, env_steps: int = 0) -> dict[str, float]:
    """One call of `update` and its metrics alone."""
    learner.metrics()
    learner.update(batch, env_steps)
    return dict(learner.metrics())


def train(
    config: PPOConfig,
    env: str | MakeEnv,
    iterations: int,
    kwargs: dict[str, Any] | None = None,
    model: ModelConfig = SMALL,
    streams: int = 4,
    groups: int = 1,
) -> tuple[PPOLearner, list[dict[str, float]], Rollout]:
    """Collects and learns on real environments; returns the metrics of each iteration, and the last
    batch.
    """
    envs = [
        make_vector_env(env, streams // groups, backend="gymnasium", kwargs=kwargs)
        for _ in range(groups)
    ]
    spaces = envs[0].spaces
    learner = make_learner(config, spaces, model, streams)
    sampling = SerialSampling(
        envs,
        lambda: make_actor(config, resolve_model(model, spaces), spaces),
        learner.plan,
        3,
        PhaseTimer(),
    )
    sampling.publish(learner.publication())
    sampling.restart(0)
    metrics = []
    for _ in range(iterations):
        rollout = sampling.collect(10**9).rollout
        metrics.append(learn(learner, rollout))
        sampling.publish(learner.publication())
    for group in sampling.groups:
        group.env.close()
    return learner, metrics, rollout


def of_version(batch: Rollout, version: int, value: float) -> Rollout:
    """The batch as weights of a version recorded it, which gave all observations one value."""
    recorded = torch.full_like(batch.record["value"], value)
    versions = torch.full_like(batch.version, version)
    return replace(batch, record=batch.record | {"value": recorded}, version=versions)
