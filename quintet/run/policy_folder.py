"""The files of one policy: ``best/``, ``policy/`` of a finished run, its part of checkpoints, and
its replay.

A run of one policy has them in its own folder, under plain names.  In a run of several, policy K
has the folder ``policy_K/``, the tensors ``policy_K`` and ``learner_K`` of a checkpoint, and entry
K of ``policies`` in its meta.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from quintet import checkpoint
from quintet.config.run import RunConfig
from quintet.errors import CheckpointError, FileFault
from quintet.observe.metrics import policy_prefix
from quintet.policy import Policy
from quintet.policy_place import LEARNER, POLICIES, POLICY
from quintet.protocols import DataPlan
from quintet.run.folder import RunFolder
from quintet.runtime.policies import Assignment
from quintet.runtime.replay.replay import Replay
from quintet.runtime.seeds import Role, generator_seed
from quintet.runtime.slots import RowSpecs
from quintet.runtime.torch_settings import OwnTorch
from quintet.system import files, manifest

BEST = "best"


@final
class PolicyFolder:
    """The place of policy `index` of `num_policies` in a run's folder."""

    def __init__(self, run: RunFolder, index: int = 0, num_policies: int = 1) -> None:
        self.run, self.index, self.num_policies = run, index, num_policies
        self.path = run.path / policy_prefix(index, num_policies)

    def open(self) -> None:
        """Makes the folder, or removes unfinished files from it, inside the open folder of the
        run."""
        self.path.mkdir(exist_ok=True)
        checkpoint.clean_temporary(self.path)

    # Its part of a checkpoint

    def named(self, policy: Mapping[str, Tensor], learner: Mapping[str, Tensor]) -> dict[str, Any]:
        """The tensors for acting, and the tensors only for learning, by key."""
        return {self._key(POLICY): policy, self._key(LEARNER): learner}

    def tensors(self, found: checkpoint.Checkpoint, kind: str) -> dict[str, Tensor]:
        """A checkpoint's tensors for acting (POLICY) or for learning (LEARNER)."""
        return found.tensors[self._key(kind)]

    def part(self, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """This policy's part of a checkpoint's meta; raises CheckpointError if the checkpoint has
        another number of policies.
        """
        count = len(meta.get(POLICIES, (None,)))
        if count != self.num_policies:
            raise CheckpointError(
                f"the checkpoint must have {self.num_policies} policies, that of "
                f"{self.run.path} has {count}; give another --run-dir"
            )
        part: Mapping[str, Any] = meta[POLICIES][self.index] if count > 1 else meta
        return part

    def _key(self, kind: str) -> str:
        return kind if self.num_policies == 1 else f"{kind}_{self.index}"

    # policy/ and best/

    def write(self, name: str, policy: Policy, card: str | None = None) -> None:
        """Writes ``policy/`` or ``best/``, perhaps with a card; raises CheckpointError if it can't
        be written.
        """
        self.run.check()
        checkpoint.write(self.path, name, *policy.contents(), signed=policy.signed, card=card)

    def best_mark(self) -> str | None:
        """A hash that identifies ``best/``; None if it can't be read."""
        try:
            whole = files.read_bytes(self.path / BEST / manifest.MANIFEST)
        except FileFault:
            return None
        return hashlib.sha256(whole).hexdigest()

    def best_fault(self, part: Mapping[str, Any]) -> str | None:
        """Damage of ``best/``, by a checkpoint's `part`; None if it is sound, or there was none."""
        path = self.path / BEST
        if part["best"] is None:
            return None
        try:
            found = checkpoint.read(path)
        except CheckpointError as fault:
            return str(fault)
        mark = part.get("best_mark")
        # A newer one is sound: the run was killed between writing it and its checkpoint.
        newer = int(found.meta.get("version", 0)) > part["version"]
        if mark is None or newer or mark == self.best_mark():
            return None
        return f"{path} holds another policy than the run's best"


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
        # Its streams make as many unrolls as all others of the run.
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
        """Whether it has the rows that a checkpoint of so many iterations ago needs."""
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
                + f"; with --init-from {path} a run begins anew with its policy"
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

    Of several policies in the same streams one may play a single stream for long: all columns of a
    batch may be that stream's, and as many may have waited before.  With its own streams a policy
    may be a batch ahead of the others, and have another one waiting.  In an async run one worker
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
