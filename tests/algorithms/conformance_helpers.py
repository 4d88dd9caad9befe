"""What the contracts of every learner are tested with.

A learner is made through its registry entry alone, and learns from what its own actors collect in a
small environment of noise.  A learner of the future joins by its entry; `SIZES` keeps batches small
and `TOGETHER` names options that only matter together.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args, get_origin

import gymnasium
import numpy as np
import pytest
import torch
from a2c_helpers import A2C, A2CConfig
from folders_helpers import new_folder
from gymnasium import spaces as gym
from pydantic import BaseModel, Field
from sac_helpers import SAC
from torch import Tensor

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import ALONE, PLAIN, Compute, Setup
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig, network_facts, resolve_model
from quintet.observe.timing import PhaseTimer
from quintet.options.declaration import Facts, Idle, bounds_of, idle
from quintet.protocols import Actor, Learner, Ranks
from quintet.runtime.batch import select
from quintet.runtime.replay.replay import Replay
from quintet.runtime.sampler import SerialSampling
from quintet.runtime.slots import RowSpecs
from quintet.spaces import Space
from quintet.types import ACTION_MASK, LearnerState, Rollout, Spaces

STREAMS, STEPS, CHUNK = 4, 8, 4
TOTAL = 10_000


class WithReplay(A2CConfig):
    """A2C that learns from replay too."""

    replay_ratio: float = Field(1.0, ge=0, le=1e3)


LEARNERS: dict[str, registry.Algorithm] = {
    **{name: registry.find(name) for name in registry.LEARNERS.names()},
    "sac": SAC,  # packages of their own, in plugins/ and examples/
    "a2c": A2C,
    "a2c with replay": replace(A2C, config=WithReplay),
}

PLUGINS = ("sac",)
"""Learners whose conformance is a slow test; their own tests are not."""


def gated(values: Iterable[Any], algo_of: Callable[[Any], str] = str) -> list[Any]:
    """The values as parameters of a test, slow for learners of `PLUGINS`."""
    slow = pytest.mark.slow
    return [pytest.param(x, marks=slow) if algo_of(x) in PLUGINS else x for x in values]


SIZES: dict[str, Any] = {
    "unroll_steps": STEPS,
    "batch_unrolls": STREAMS,
    "minibatch_steps": 16,
    "minibatches_per_iteration": 2,
    "num_epochs": 2,
    "batch_size": 16,
    "replay_capacity_steps": 600,
    "replay_start_steps": 0,
    "replay_capacity_steps_per_stream": 160,
    "replay_start_steps_per_stream": 8,
}
"""Options that any learner may have; for recurrent networks these too:"""
SIZES_WITH_A_CORE: dict[str, Any] = {"bptt_steps": CHUNK}

WHOLE_BATCH = (
    {"minibatches_per_iteration": 1, "minibatch_steps": STREAMS * STEPS, "num_epochs": 1},
    {"minibatch_steps": None, "num_epochs": 1},
)
"""One step with the whole batch, of learners that would make several of parts: the first that names
a learner's options alone.
"""


def whole_batch(algo: str) -> dict[str, Any]:
    """The entry of WHOLE_BATCH for a learner; {} where it makes one step anyway."""
    known = LEARNERS[algo].config.model_fields.keys()
    return next((each for each in WHOLE_BATCH if each.keys() <= known), {})


TOGETHER: dict[str, Sequence[dict[str, Any]]] = {
    "ppo": (
        {
            "kl_coef_init": 1.0, "kl_cutoff_coef": 1.0, "lr_schedule": "kl_adaptive",
            "kl_target": 0.1, "clip_schedule": "linear", "value_clip": 0.2, "entropy_coef": 0.01,
            "log_prob_clip": 5.0, "policy_l2_coef": 1e-3, "normalize_advantage": "minibatch",
            "reward_normalizer": "step_std", "log_gradients": True, "log_histograms": True,
        },
    ),
    "impala": (
        {
            "reduction": "mean", "rho_bar": None, "c_bar": None, "vtrace_lambda": 0.9,
            "entropy_schedule": "linear", "entropy_coef": 0.05, "optimizer": "adam",
            "max_grad_norm": None,
        },
        {
            "reduction": "sum", "truncation_as_termination": True, "max_grad_norm": 1.0,
            "rmsprop_epsilon_inside_sqrt": True, "rmsprop_momentum": 0.5,
            "normalize_observations": True,
        },
    ),
    "appo": (
        {
            "use_vtrace": False, "gae_lambda": 0.9, "value_clip": None, "kl_coef": 0.1,
            "minibatches_per_iteration": 2, "lr_schedule": "kl_adaptive", "ratio_clamp": None,
            "reward_normalizer": "return_std", "normalize_observations": True,
        },
        {
            "rho_bar": None, "c_bar": None, "vtrace_lambda": 0.9, "advantage_includes_rho": False,
            "lr_schedule": "linear", "entropy_coef": 0.0, "bptt_steps": CHUNK,
            "truncation_as_termination": True, "max_grad_norm": None,
        },
    ),
    "ddpg": (
        {
            "exploration": "normal_0.1, ou_0.2", "n_step": 3, "normalize_returns": True,
            "popart": True, "updates_per_cycle": 2, "action_layer": 1, "max_grad_norm": 1.0,
        },
        {
            "exploration": "none", "replay_start_steps": 20, "warmup_policy": "uniform",
            "normalize_returns": True, "popart_step_size": 0.1, "critic_huber_delta": 1.0,
            "return_low": -1.0, "return_high": 2.0, "truncation_as_termination": True,
            "lr_schedule": "linear",
        },
    ),
    "sac": (
        {
            "learn_temperature": False, "temperature": 0.1, "n_step": 3, "replay_start_steps": 20,
            "noise_correlation": 0.5, "normalize_observations": True, "max_grad_norm": 1.0,
        },
        {
            "policy_delay": 2, "target_entropy": -1.0, "replay_start_steps": 0,
            "truncation_as_termination": True, "lr_schedule": "linear", "reward_scale": 0.5,
        },
    ),
    "acer": (
        {
            "replay_sampling": "any_stream", "c_bar": 2.0, "retrace_lambda": 0.9,
            "importance_clip": 0.5,
            "trust_region_delta": 0.01, "tau": 0.5, "max_grad_norm": None,
            "rmsprop_epsilon_inside_sqrt": False, "normalize_observations": True,
        },
        {
            "learn_std": True, "dueling_samples": 2, "replay_ratio": 0.5, "unroll_steps": 2,
            "truncation_as_termination": True, "lr_schedule": "middle_drop",
            "reward_normalizer": "return_std",
        },
    ),
}  # fmt: skip
"""Combinations, by learner, beside its defaults and each of its switches."""


class Task(NamedTuple):
    """Spaces of an environment of noise."""

    observation: Space
    action: Space
    masked: bool = False


def choices(space: Space, action: Any = None) -> Iterator[tuple[int, int]]:
    """Every choice among several actions in a space: how many there are and which one `action`
    takes, counted from 0; in the order of the mask.
    """
    if isinstance(space, gym.Dict):
        for key, child in space.spaces.items():
            yield from choices(child, None if action is None else action[key])
    elif isinstance(space, gym.Tuple):
        for i, child in enumerate(space.spaces):
            yield from choices(child, None if action is None else action[i])
    elif isinstance(space, gym.Discrete):
        yield int(space.n), -1 if action is None else int(action - space.start)
    elif isinstance(space, gym.MultiDiscrete):
        taken = np.full(space.shape, -1) if action is None else action - space.start
        yield from zip(space.nvec.ravel().tolist(), taken.ravel().tolist(), strict=True)


def floats(space: Space) -> bool:
    """Whether any leaf is a Box."""
    if isinstance(space, gym.Dict | gym.Tuple):
        children = space.spaces.values() if isinstance(space, gym.Dict) else space.spaces
        return any(floats(child) for child in children)
    return isinstance(space, gym.Box)


class Noise(gymnasium.Env[Any, Any]):
    """Random observations, rewards and endings; an action that it must not get is an error."""

    def __init__(self, task: Task) -> None:
        # Spaces hold random state, which no two environments may share.
        self.inner, self.action_space = copy.deepcopy(task[:2])
        self.masked = task.masked
        self.observation_space: Space = self.inner
        self.sizes = [n for n, _ in choices(self.action_space)]
        if self.masked:
            mask = gym.MultiBinary(sum(self.sizes))
            self.observation_space = gym.Dict({"inner": self.inner, ACTION_MASK: mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        at = 0
        for n, taken in choices(self.action_space, action):
            assert not self.masked or self.mask[at + taken], (action, self.mask)
            at += n
        coin = self.np_random.random()
        reward = self.np_random.normal()
        return self.draw(), reward, bool(coin < 0.15), bool(0.15 <= coin < 0.3), {}

    def draw(self) -> Any:
        if not self.masked:
            return self.inner.sample()
        parts = [(self.np_random.random(n) < 0.4).astype(np.int8) for n in self.sizes]
        for part in parts:  # often nothing else is left
            part[self.np_random.integers(len(part))] = 1
        self.mask = np.concatenate(parts)
        return {"inner": self.inner.sample(), ACTION_MASK: self.mask.copy()}


NUMBERS = gym.Box(-np.inf, np.inf, (3,), np.float32)
CONTINUOUS = Task(NUMBERS, gym.Box(-2.0, 1.0, (2,), np.float32))
CHOICE = Task(NUMBERS, gym.Discrete(3))
MASKED = Task(NUMBERS, gym.MultiDiscrete([2, 3]), masked=True)


@dataclass(frozen=True)
class Case:
    """A learner with some options in an environment.

    task: by default with continuous actions, for a learner that has no others with discrete ones.
    options: beside `SIZES`; model: beside a small network.
    """

    algo: str
    task: Task = None  # type: ignore[assignment]
    options: Mapping[str, Any] = field(default_factory=dict)
    core: str = "none"
    network: Mapping[str, Any] = field(default_factory=dict)
    env: type[Noise] = Noise

    def __post_init__(self) -> None:
        if self.task is None:
            able = self.algorithm.acts_in(CONTINUOUS.action)
            object.__setattr__(self, "task", CONTINUOUS if able else CHOICE)

    @property
    def algorithm(self) -> registry.Algorithm:
        return LEARNERS[self.algo]

    @cached_property
    def config(self) -> Any:
        sizes = SIZES | (SIZES_WITH_A_CORE if self.core != "none" else {})
        known = self.algorithm.config.model_fields
        sizes = {name: value for name, value in sizes.items() if name in known}
        return self.algorithm.config(**(sizes | dict(self.options)))

    @cached_property
    def spaces(self) -> Spaces:
        env = make_vector_env(lambda: self.env(self.task), 1)
        env.close()
        return env.spaces

    @cached_property
    def model(self) -> ModelConfig:
        # The action enters the second hidden layer of DDPG's critic.
        hidden = (8, 8) if self.algo == "ddpg" else (8,)
        options: dict[str, Any] = {} if "encoder" in self.network else {"policy_hidden": hidden}
        if self.core != "none":
            options |= {"core": self.core, "core_size": 4}
        return resolve_model(ModelConfig(**(options | dict(self.network))), self.spaces)

    @property
    def goes_together(self) -> bool:
        """Whether the learner's entry finds no fault and no option without effect."""
        faults = self.algorithm.check(self.config, self.model, STREAMS, TOTAL)
        idle = options_without_effect(self.config, self.model, self.spaces)
        given = {
            name for name in self.options if name in idle and self.options[name] != idle[name].rest
        }
        return not faults and not given

    def learner(
        self, compute: Compute = PLAIN, ranks: Ranks = ALONE, seeds: tuple[int, int] = (1, 2)
    ) -> Any:
        setup = Setup(STREAMS, TOTAL, seeds, torch.device("cpu"), compute, ranks)
        return self.algorithm.make_learner(self.config, self.model, self.spaces, setup)

    def actor(self, compute: Compute = PLAIN) -> Actor:
        return self.algorithm.make_actor(self.config, self.model, self.spaces, compute)

    def batches(self, count: int) -> list[list[Rollout]]:
        """Lists of a fresh batch and what is drawn from replay after it, collected by weights that
        no other learner of the case has.
        """
        recorded = sorted(self.actor().record_specs)
        of_whom = self.algo, self.task, self.core, self.network
        key = repr((*of_whom, self.learner().plan, recorded, count))
        if key not in _COLLECTED:
            run = Run(self, self.learner(seeds=(3, 4)))
            found = [run.collect() for _ in range(count)]
            run.close()
            if run.replay is None:  # as if its weights had been published after each batch
                for version, (fresh,) in enumerate(found):
                    fresh.version.fill_(version)
            _COLLECTED[key] = found
        return _COLLECTED[key]


_COLLECTED: dict[str, list[list[Rollout]]] = {}
"""By what they depend on; nobody may write to them."""


class Run:
    """A learner beside actors of its own, two groups in one process."""

    def __init__(self, case: Case, learner: Learner):
        self.learner, self.actors = learner, list[Actor]()
        envs = [
            make_vector_env(lambda: case.env(case.task), STREAMS // 2, backend="gymnasium")
            for _ in range(2)
        ]

        def make_actor() -> Actor:
            self.actors.append(case.actor())
            return self.actors[-1]

        plan = learner.plan
        self.sampling = SerialSampling(envs, make_actor, plan, 3, PhaseTimer())
        self.sampling.publish(learner.publication())
        self.sampling.restart(0)
        self.replay: Replay | None = None
        if plan.replay is not None:
            rows = RowSpecs.of(case.spaces, self.actors[0])
            self.replay = Replay(plan, rows, STREAMS, 5, new_folder())
        self.collected = 0

    def collect(self) -> list[Rollout]:
        """A fresh batch, copied, and what is drawn after it."""
        fresh = self.sampling.collect(10**9).rollout
        fresh = select(fresh, torch.arange(fresh.stream_id.numel()))
        batches = [fresh]
        if self.replay is not None:
            self.replay.store(fresh)
            batches += self.replay.draws(int(fresh.valid.sum()), self.collected)
        self.collected += 1
        return batches

    def iterate(self) -> tuple[dict[str, float], list[Rollout]]:
        """Collects, learns and publishes; metrics and batches."""
        batches = self.collect()
        found = learn(self.learner, batches)
        self.sampling.publish(self.learner.publication())
        return found, batches

    def close(self) -> None:
        self.sampling.close()


def learn(learner: Learner, batches: Sequence[Rollout], env_steps: int = 0) -> dict[str, float]:
    """Updates with the batches, and the metrics of these alone."""
    learner.metrics()
    for batch in batches:
        learner.update(batch, env_steps)
    return dict(learner.metrics())


def go_on(learner: Learner, batches: Sequence[Sequence[Rollout]], env_steps: int = 0) -> None:
    """Updates with all of them, as time goes on."""
    for i, each in enumerate(batches):
        for batch in each:
            learner.update(batch, env_steps + 500 * i)


def everything(learner: Learner) -> dict[str, str]:
    """All that the learner would save, by name: short, as tests show what differs."""
    state = learner.save()
    tensors = {name: x.contiguous().numpy().tobytes() for name, x in state.tensors.items()}
    digests = {name: sha256(x).hexdigest()[:16] for name, x in tensors.items()}
    return digests | {name: repr(x) for name, x in state.scalars.items()}


def weights(learner: Learner) -> Tensor:
    """All floats of what it publishes, as one vector."""
    tensors = learner.publication().tensors.values()
    return torch.cat([x.flatten().double() for x in tensors if x.is_floating_point()])


def copied(state: LearnerState) -> LearnerState:
    """The learner's own goes on changing."""
    return copy.deepcopy(state)


def literals(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal that the annotation is or has."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(x for part in get_args(annotation) for x in literals(part))


def _others(options: BaseModel, name: str) -> tuple[Any, ...]:
    """Other values of an option that is on or off, or one of several; within its bounds."""
    default = getattr(options, name)
    annotation = type(options).model_fields[name].annotation
    if isinstance(default, bool):
        return (not default,)
    if literals(annotation):
        return tuple(x for x in literals(annotation) if x != default)
    is_float = float in (annotation, *get_args(annotation))
    if not is_float or default not in (None, 0.0):
        return ()
    low, high = bounds_of(options, (name,))[name]
    return (min(max(0.5, 2.0 * low), high),)


def options_without_effect(
    options: BaseModel, model: ModelConfig, spaces: Spaces
) -> dict[str, Idle]:
    """Of a learner, with this network in these spaces."""
    return idle(options, Facts(**network_facts(model, spaces)))


def switches(algo: str) -> dict[str, Case]:
    """Cases of the defaults, of each option that is on or off or one of several turned to every
    other value, and of `TOGETHER`; what has no effect alone is left out.
    """
    entry, found = LEARNERS[algo], {f"{algo}: defaults": Case(algo)}
    options = entry.config()
    for name in entry.config.model_fields:
        for value in _others(options, name):
            case = Case(algo, options={name: value})
            if case.goes_together:
                found[f"{algo}: {name}={value}"] = case
    for i, together in enumerate(TOGETHER.get(algo, ())):
        found[f"{algo}: together {i}"] = Case(algo, options=together)
    return found
