"""The serial runtime: one process samples and learns in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import gather, within_budget
from quintet.runtime.sampler import Episode, GroupSampler
from quintet.runtime.seeds import Role, environment_seeds, generator_seed
from quintet.types import Publication, Rollout


@dataclass(frozen=True)
class Batch:
    """What one collection gives: the rollout, the env_steps in it, the episodes that ended in
    it.
    """

    rollout: Rollout
    env_steps: int
    episodes: list[Episode]


@final
class SerialSampling:
    """All groups in this process; one steps while the others' actions are computed."""

    def __init__(
        self,
        envs: Sequence[VectorEnv],
        make_actor: Callable[[], Actor],
        plan: DataPlan,
        seed: int,
        timer: PhaseTimer,
        device: torch.device,
    ):
        # All groups act by the same weights and a feed-forward actor keeps nothing between acts,
        # but a group's actor may be stateful (exploration), so each has its own.
        self.groups: list[GroupSampler] = []
        first_stream = 0
        for env in envs:
            self.groups.append(GroupSampler(env, make_actor(), plan, first_stream))
            first_stream += env.num_streams
        if first_stream != plan.columns_per_batch:
            raise AssertionError(f"{first_stream} streams for {plan.columns_per_batch} columns")
        self.plan, self.seed, self.timer, self.device = plan, seed, timer, device

    def publish(self, publication: Publication) -> None:
        """Gives every group the weights that it acts by from its next unroll on."""
        for group in self.groups:
            group.publish(publication)

    def restart(self, iteration: int) -> None:
        """Re-keys every stream from (seed, group, iteration); running episodes are given up."""
        self.timer.switch("stepping")
        for index, group in enumerate(self.groups):
            group.restart(
                environment_seeds(self.seed, index, iteration, group.num_streams),
                generator_seed(self.seed, Role.NOISE, index, iteration),
            )

    def collect(self, env_steps_left: int) -> Batch:
        """One unroll of every group, as one batch; rows past the budget are masked."""
        timer, groups = self.timer, self.groups
        timer.switch("acting")
        for group in groups:
            group.begin()
            group.act(0)
        for row in range(1, self.plan.unroll_steps):
            for group in groups:
                timer.switch("stepping")
                group.receive(row - 1)
                timer.switch("acting")
                group.act(row)
        timer.switch("stepping")
        episodes = []
        first_column = 0
        for group in groups:
            group.receive(self.plan.unroll_steps - 1)
        for group in groups:
            episodes += [
                replace(episode, column=episode.column + first_column) for episode in group.finish()
            ]
            first_column += group.num_streams
        rollout, env_steps = within_budget(
            gather([group.slot for group in groups], self.device), env_steps_left
        )
        episodes.sort(key=lambda episode: (episode.row, episode.column))
        valid = rollout.valid.cpu()
        kept = [episode for episode in episodes if valid[episode.row, episode.column]]
        return Batch(rollout, env_steps, kept)
