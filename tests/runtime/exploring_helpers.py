"""A learner whose actors explore as DDPG's do, by private state:
`exploring_helpers.py RUN_DIR KIND N` trains it in a process of its own, which kills
itself inside its N-th checkpoint write.

An actor perturbs its weights at every start of an episode, by a seed out of its noise, and adds an
Ornstein-Uhlenbeck process to its actions.  The learner checks both in every row that it receives.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from exact_run_helpers import kill_in_write
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import quintet
from quintet.algorithms import registry
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.models.config import ModelConfig
from quintet.protocols import DataPlan
from quintet.types import (
    ActOutput,
    LearnerState,
    Publication,
    Rollout,
    Spaces,
    State,
    TensorSpec,
)

OBS, ACTIONS = 3, 2
DECAY, KICK = 0.15 * 0.01, 0.2 * math.sqrt(0.01)


def perturbed(theta: Tensor, scale: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return theta + scale * torch.randn(theta.shape, generator=generator)


def means(theta: Tensor, obs: Tensor) -> Tensor:
    """Actions ``[B, A]`` of weights ``[B, A, O]``, each row by itself."""
    return (theta * obs.unsqueeze(-2)).sum(-1).tanh()


class ExplorerConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    unroll_steps: int = Field(8, ge=1, description="steps of each stream per update")


class ExplorerActor:
    """Recorded state: what was observed, decaying.  Private: the process, the perturbed weights,
    of these the seed and the version of what was perturbed, and the acts since the restart.
    """

    record_specs = {
        "process": TensorSpec((ACTIONS,), torch.float32),
        "kick": TensorSpec((ACTIONS,), torch.float32),
        "seed": TensorSpec((), torch.int64),
        "since": TensorSpec((), torch.int64),
        "acts": TensorSpec((), torch.int64),
    }
    action_spec = TensorSpec((ACTIONS,), torch.float32)
    state_specs = {"seen": TensorSpec((OBS,), torch.float32)}

    def __init__(self, *_: Any) -> None:
        self.theta, self.scale = torch.zeros(ACTIONS, OBS), torch.zeros(())
        self.version = -1

    def load(self, publication: Publication) -> None:
        self.theta.copy_(publication.tensors["theta"])
        self.scale.copy_(publication.tensors["scale"])
        self.version = publication.version

    def initial_state(self, num_streams: int) -> State:
        return {
            "seen": torch.zeros(num_streams, OBS),
            "process": torch.zeros(num_streams, ACTIONS),
            "theta": self.theta.expand(num_streams, ACTIONS, OBS).clone(),
            "seed": torch.zeros(num_streams, dtype=torch.int64),
            "since": torch.full((num_streams,), -1),
            "acts": torch.zeros(num_streams, dtype=torch.int64),
        }

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """A seed, which float64 holds exactly, and the process's kicks."""
        seeds = torch.randint(2**53, (steps, num_streams, 1), generator=generator)
        kicks = torch.randn(steps, num_streams, ACTIONS, generator=generator)
        return torch.cat((seeds.double(), kicks.double()), -1)

    @torch.inference_mode()
    def act(self, obs: Any, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        seen = torch.where(is_first[:, None], 0.0, state["seen"]) * 0.5 + obs["obs"]
        if noise is None:
            action = means(self.theta, obs["obs"])
            return ActOutput(action, action, {}, {**state, "seen": seen})
        theta, since = state["theta"], torch.where(is_first, self.version, state["since"])
        seed = torch.where(is_first, noise[:, 0].long(), state["seed"])
        if is_first.any():
            theta = theta.clone()
            for row in is_first.nonzero().flatten().tolist():
                theta[row] = perturbed(self.theta, self.scale, int(seed[row]))
        kick = KICK * noise[:, 1:].float()
        process = torch.where(is_first[:, None], 0.0, state["process"]) * (1 - DECAY) + kick
        action = (means(theta, obs["obs"]) + process).clamp(-1, 1)
        record = {"process": process, "seed": seed, "since": since, "acts": state["acts"] + 1}
        state = {"seen": seen, "theta": theta, **record}
        return ActOutput(action, action, {**record, "kick": kick}, state)


MADE: list["ExplorerLearner"] = []


class ExplorerLearner:
    """Moves its weights to what paid, and its scale; checks all that actors did."""

    def __init__(self, config: ExplorerConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.theta = torch.randn(ACTIONS, OBS, generator=generator)
        self.scale = torch.tensor(0.3)
        self.version = self.acts = 0
        self.checked = 0
        self.known = {0: (self.theta, self.scale)}
        MADE.append(self)

    @property
    def plan(self) -> DataPlan:
        steps = self.config.unroll_steps
        return DataPlan(steps, self.setup.num_streams, state_every=steps)

    @property
    def updates(self) -> int:
        return self.version

    def update(self, batch: Rollout, env_steps: int) -> None:
        assert set(batch.state) == {"seen"}
        for column in range(batch.valid.shape[1]):
            if batch.valid[:, column].any():
                self._check(batch, column)
        valid = batch.valid.unsqueeze(-1).unsqueeze(-1)
        product = batch.action.unsqueeze(-1) * batch.obs["obs"][:-1].unsqueeze(-2)
        gain = torch.where(valid, product * batch.reward[..., None, None], 0.0)
        self.theta = self.theta + 0.01 * gain.sum((0, 1))
        self.scale = self.scale * 1.01
        self.acts += int(batch.record["acts"][batch.valid].sum())
        self.version += 1
        self.known[self.version] = (self.theta, self.scale)

    def _check(self, batch: Rollout, column: int) -> None:
        """Every row's action follows from its record, and that from the row before it."""
        record = {name: x[:, column] for name, x in batch.record.items()}
        process: Tensor | None = None
        last = (-1, -1)
        for row, is_first in enumerate(batch.is_first[:-1, column].tolist()):
            if not batch.valid[row:, column].any():
                return  # nothing more was executed
            seed, since = int(record["seed"][row]), int(record["since"][row])
            if is_first:
                assert since == int(batch.version[row, column])
                process = torch.zeros(ACTIONS)
            elif row:
                assert (seed, since) == last
            if row:
                assert int(record["acts"][row]) == int(record["acts"][row - 1]) + 1
            if process is not None:
                process = process * (1 - DECAY) + record["kick"][row]
                assert torch.equal(process, record["process"][row])
            else:  # what the unroll before it left
                process = record["process"][row]
            last = (seed, since)
            if since in self.known:  # else of before a resume
                theta = perturbed(*self.known[since], seed)
                action = means(theta[None], batch.obs["obs"][row, column][None])[0]
                assert torch.equal((action + process).clamp(-1, 1), batch.action[row, column])
                self.checked += 1

    def configure(self, options: ExplorerConfig) -> None: ...

    def metrics(self) -> dict[str, float]:
        return {"loss/total": float(self.theta.sum())}

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, {"theta": self.theta, "scale": self.scale})

    def weights(self) -> dict[str, Tensor]:
        return dict(self.publication().tensors)

    def warm_start(self, weights: Mapping[str, Tensor]) -> None: ...

    def save(self) -> LearnerState:
        tensors = {**self.publication().tensors, "acts": torch.tensor(self.acts)}
        return LearnerState(tensors, {"version": self.version})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        self.theta, self.scale = state.tensors["theta"].clone(), state.tensors["scale"].clone()
        self.version = int(state.scalars["version"] or 0)
        self.acts = int(state.tensors["acts"])
        self.known = {self.version: (self.theta, self.scale)}


def make_actor(
    config: ExplorerConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> ExplorerActor:
    return ExplorerActor()


EXPLORER = registry.Algorithm(
    config=ExplorerConfig,
    check=lambda *_: [],
    planned_updates=lambda *_: 0,
    make_learner=ExplorerLearner,
    make_actor=make_actor,
)


class Wandering(gymnasium.Env[Any, Any]):
    """Episodes of 2 to 20 steps that end both ways."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 21))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        over, ends = self.left == 0, bool(self.np_random.random() < 0.5)
        return self._obs(), float(action[0] - abs(action[1])), over and ends, over and not ends, {}

    def _obs(self) -> Any:
        return self.np_random.normal(size=OBS).astype(np.float32)


SMALL: dict[str, Any] = {
    "env.num_streams": 6,
    "env.streams_per_group": 2,
    "eval.episodes": 0,
    "report.sinks": ["jsonl"],
    "report.interval_s": 0.0,
    "report.progress": False,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
}


def runtime(kind: str) -> dict[str, Any]:
    """Options of ``serial``, or ``lockstep`` or ``async``, perhaps with ``server``."""
    name, *server = kind.split()
    found = {"runtime.kind": name}
    if name != "serial":
        found |= {"runtime.num_workers": 2, "runtime.inference": "server" if server else "local"}
    return found | ({"runtime.lag": 0} if name == "lockstep" else {})


def train(folder: Any, kind: str, total: int = 1_501, **config: Any) -> Any:
    options = SMALL | runtime(kind) | config
    return quintet.train("explorer", Wandering, total, 7, folder, options)


if __name__ == "__main__":
    import exploring_helpers  # the classes that the run's options name

    registry.LEARNERS.loaded["explorer"] = exploring_helpers.EXPLORER
    kill_in_write(int(sys.argv[3]))
    exploring_helpers.train(sys.argv[1], sys.argv[2], resume="exact")
