"""By which weights' version an episode counts as a policy's own after it became a copy."""

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scripted_helpers import Scripted

from quintet.envs.public import make_vector_env
from quintet.observe.metrics import EpisodeStats
from quintet.observe.timing import PhaseTimer
from quintet.population.scores import Record
from quintet.protocols import DataPlan
from quintet.run.policy_run import PolicyCounters, PolicyRun
from quintet.runtime.batch import Episode
from quintet.runtime.policies import Assignment
from quintet.runtime.sampler import GroupSampler, unroll
from quintet.runtime.slots import RowSpecs, Slot, slot_specs, zeros
from quintet.types import ActOutput, Obs, Publication, State, TensorSpec

STREAMS, LENGTHS = 5, (1, 4, 2, 7, 3)


class Idle:
    """Always takes action 0."""

    action_spec = TensorSpec((), torch.int64)
    record_specs: ClassVar = {}
    state_specs: ClassVar = {}

    def load(self, publication: Publication) -> None:
        pass

    def initial_state(self, num_streams: int) -> State:
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> torch.Tensor:
        return torch.zeros(steps, num_streams, 1)

    def act(self, obs: Obs, state: State, is_first: Any, noise: Any) -> ActOutput:
        action = torch.zeros(len(is_first), dtype=torch.int64)
        return ActOutput(action, action, {}, {})


@pytest.mark.parametrize("steps", [1, 3, 16])
@pytest.mark.parametrize("policies", [1, 3])
def test_an_episode_has_the_version_that_acted_in_its_first_row(policies: int, steps: int) -> None:
    """Policies whose versions are far apart draw their episodes; weights change in between."""
    env = make_vector_env(partial(Scripted, lengths=LENGTHS), STREAMS)
    assignment = Assignment(policies, mixed=policies > 1)
    actor = assignment.make_actor(Idle)
    plan, rows = DataPlan(steps, STREAMS), RowSpecs.of(env.spaces, actor)
    slot = Slot(zeros(slot_specs(rows, plan, STREAMS)), rows, plan)
    sampler = GroupSampler(env, actor, plan, 0, assignment)
    sampler.restart(list(range(STREAMS)), 0, slot)
    began, seen = np.full(STREAMS, -1), set()
    for round_ in range(200 // steps):
        for policy in range(policies):
            sampler.publish(Publication(1000 * policy + round_, {}, policy))
        unroll([sampler], [slot], PhaseTimer())
        version, found = slot.version.numpy(), {(e.row, e.column): e for e in slot.episodes()}
        for row in range(steps):
            first = slot.is_first[row]
            began[first] = version[row, first]
            for column in np.flatnonzero(slot.terminated[row] | slot.truncated[row]):
                episode = found.pop((row, int(column)))
                assert episode.version == began[column]
                seen.add(episode.version // 1000)
        assert not found
    env.close()
    assert seen == set(range(policies))


def test_only_episodes_of_the_new_weights_count_among_the_last_ones() -> None:
    policy: Any = SimpleNamespace(
        counters=PolicyCounters(env_steps=9), episodes=EpisodeStats(), _own_since=40,
        record=Record(100), alone=False, longest_episode=0,
    )  # fmt: skip
    episodes = [Episode(0, 0, float(v), 5, None, v) for v in (39, 40, 12, 41)]
    PolicyRun.add_episodes(policy, episodes)
    assert policy.episodes.recent_return == 40.5
    assert policy.record.mean("episode/return_mean", 100) == 40.5
    assert policy.counters.ended_episodes == 4
    assert policy.episodes.report()["episode/count"] == 4
