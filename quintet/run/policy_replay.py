"""The replay of one policy of a run."""

from pathlib import Path
from typing import Any, final

import torch

from quintet.errors import CheckpointError
from quintet.options.run import RunConfig
from quintet.protocols import DataPlan
from quintet.run.policy_folder import PolicyFolder
from quintet.runtime.policies import Assignment
from quintet.runtime.replay.replay import Replay
from quintet.runtime.seed_tree import Role, generator_seed
from quintet.runtime.slots import RowSpecs
from quintet.runtime.torch_settings import OwnTorch


@final
class RunReplay:
    """A policy's replay, whose rings have room for one interval between two checkpoints."""

    def __init__(
        self,
        plan: DataPlan,
        config: RunConfig,
        assignment: Assignment,
        interval: int,
        rows: RowSpecs,
        folder: PolicyFolder,
    ):
        """assignment: assignment of policies to streams; it holds rows of its policy's streams.
        interval: most iterations from one checkpoint to the next.
        """
        self._columns, self._streams = plan.columns_per_batch, config.env.num_streams
        own = assignment.streams_of(folder.index, self._streams, config.env.num_groups)
        self._uneven = _uneven_unrolls(plan, config, assignment, len(own))
        # All streams of the run make equally many unrolls.
        unrolls = -(-interval * self._columns // self._streams) + self._uneven
        seed = generator_seed(config.seed, Role.REPLAY, folder.index)
        slack_steps = unrolls * plan.unroll_steps
        place = folder.path / "replay"
        numbers = own if len(own) < self._streams else None
        self.replay = Replay(plan, rows, len(own), seed, place, slack_steps, numbers)
        self.described = False

    def draw_on(self, device: torch.device, option: str) -> None:
        """The place where draws find large observations, by ``runtime.replay_device``.

        device: of the learner's batches.
        """
        if option != "cpu":
            self.replay.draw_on(device, must=option == "learner")

    @property
    def reach(self) -> int:
        """Iterations for which it keeps the rows that a checkpoint needs."""
        return (self.replay.slack_unrolls - self._uneven) * self._streams // self._columns

    def holds(self, iterations: int) -> bool:
        """Whether it has the rows that a checkpoint from that many iterations ago needs."""
        return iterations <= self.reach or not self.replay.full

    @OwnTorch()
    def load(self, path: Path, saved: dict[str, Any], before: list[str]) -> None:
        """Takes the rows of the checkpoint at `path`; raises CheckpointError if they are gone.

        before: earlier warnings about the folder, for the message.
        """
        try:
            self.replay.load(saved)
        except CheckpointError as error:
            raise CheckpointError(
                "; ".join([*before, f"{path} can't be resumed: {error}"])
                + f"; with --init-from {path} a new run begins with its policy"
            ) from error

    def describe_once(self) -> str | None:
        """A sentence about its size, given once, when there are rows."""
        if self.described or not self.replay.size:
            return None
        self.described = True
        return self.replay.describe()


def _uneven_unrolls(
    plan: DataPlan, config: RunConfig, assignment: Assignment, num_streams: int
) -> int:
    """Number of unrolls by which one of a policy's streams may exceed its share of the run's
    batches.

    If policies share streams, one policy may play a single stream for long: all columns of a batch
    may come from that stream, after as many have waited.  A policy that has its own streams may be
    a batch ahead of the others, while another batch of its rows waits.  In an async run one worker
    may fill a batch alone.
    """
    columns, policies = plan.columns_per_batch, assignment.num_policies
    size, uneven = config.env.streams_per_group, 0
    assert size is not None
    if policies > 1 and num_streams == config.env.num_streams:
        return columns + policies * (1 + -(-columns // num_streams))
    if policies > 1:
        uneven = 2 * -(-columns // num_streams)
    return uneven + (1 + -(-columns // size) if config.runtime.kind == "async" else 0)
