"""The memory of old data that a run keeps in its folder, and its place in checkpoints."""

from pathlib import Path
from typing import Any, Self, final

from quintet.config.run import RunConfig
from quintet.errors import CheckpointError
from quintet.protocols import Actor, DataPlan
from quintet.runtime.replay.replay import Replay
from quintet.runtime.slots import RowSpecs
from quintet.types import Spaces


@final
class RunReplay:
    """A replay whose rings have room for one interval between two checkpoints."""

    def __init__(self, replay: Replay, columns_per_batch: int, num_streams: int):
        self.replay = replay
        self._columns, self._streams = columns_per_batch, num_streams
        self.described = False

    @classmethod
    def make(
        cls, plan: DataPlan, config: RunConfig, interval: int, spaces: Spaces, actor: Actor
    ) -> Self:
        """Checkpoints are `interval` iterations apart.

        Raises:
            ConfigError: it does not fit on the disk.
        """
        assert config.run_dir is not None
        streams = config.env.num_streams
        unrolls = -(-interval * plan.columns_per_batch // streams)
        replay = Replay(
            plan, RowSpecs.of(spaces, actor), streams, config.seed, config.run_dir / "replay",
            slack_steps=unrolls * plan.unroll_steps,
        )  # fmt: skip
        return cls(replay, plan.columns_per_batch, streams)

    @property
    def reach(self) -> int:
        """Iterations for which it keeps the rows that a checkpoint needs."""
        return self.replay.slack_unrolls * self._streams // self._columns

    def load(self, path: Path, saved: dict[str, Any], before: list[str]) -> None:
        """Takes the rows of the checkpoint at `path`.

        before: what was found of the folder until then, for the message.

        Raises:
            CheckpointError: they are not there any more.
        """
        try:
            self.replay.load(saved)
        except CheckpointError as error:
            raise CheckpointError(
                "; ".join([*before, f"{path} can't be resumed: {error}"])
                + f"; with --init-from {path} a run begins anew with its policy"
            ) from error

    def describe_once(self) -> str | None:
        """One sentence for a person, after the first rows, by which its size shows."""
        if self.described:
            return None
        self.described = True
        return self.replay.describe()
