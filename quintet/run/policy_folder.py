"""The files of one policy: ``best/``, ``policy/`` of a finished run, and its part of checkpoints.

A run of one policy has them in its own folder, under plain names.  In a run of several, policy K
has the folder ``policy_K/``, the tensors ``policy_K`` and ``learner_K`` of a checkpoint, and entry
K of ``policies`` in its meta.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

from torch import Tensor

from quintet.checkpoints import checkpoint, manifest
from quintet.errors import CheckpointError, FileFault
from quintet.observe.metrics import policy_prefix
from quintet.policies.folders import LEARNER, POLICIES, POLICY
from quintet.policies.policy import Policy
from quintet.run.folder import RunFolder
from quintet.system import files

BEST = "best"


def cut_at(meta: Mapping[str, Any]) -> int | None:
    """The step limit that cut episodes of the best score; None: none was cut, or it is unknown."""
    found = meta.get("best_cut_at")
    return found if isinstance(found, int) else None


@final
class PolicyFolder:
    """The place of policy `index` of `num_policies` in a run's folder."""

    def __init__(self, run: RunFolder, index: int = 0, num_policies: int = 1) -> None:
        self.run, self.index, self.num_policies = run, index, num_policies
        self.path = run.path / policy_prefix(index, num_policies)

    def open(self) -> None:
        """Makes the folder inside the run's open folder, or removes unfinished files from it."""
        self.path.mkdir(exist_ok=True)
        checkpoint.clean_temporary(self.path)

    # A policy's part of a checkpoint

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
                f"the checkpoint of {self.run.path} must have {self.num_policies} policies, got "
                f"{count}; give another --run-dir"
            )
        part: Mapping[str, Any] = meta[POLICIES][self.index] if count > 1 else meta
        return part

    def _key(self, kind: str) -> str:
        return kind if self.num_policies == 1 else f"{kind}_{self.index}"

    # policy/ and best/

    def write(
        self,
        name: str,
        policy: Policy,
        card: str | None = None,
        score: float | None = None,
        cut: int | None = None,
    ) -> None:
        """Writes ``policy/`` or ``best/``, perhaps with a card, its score and the step limit that
        cut episodes of it; raises CheckpointError if it can't be written.
        """
        self.run.check()
        tensors, meta = policy.contents()
        if score is not None:
            meta |= {"best": score, "best_cut_at": cut}
        checkpoint.write(self.path, name, tensors, meta, signed=policy.signed, card=card)

    def holds(self, version: int) -> bool:
        """Whether ``policy/`` holds a whole policy of this version, and a card."""
        place = self.path / POLICY
        with suppress(CheckpointError):
            same = checkpoint.read(place).meta.get("version") == version
            return bool(same) and (place / checkpoint.CARD).is_file()
        return False

    def best_mark(self) -> str | None:
        """A hash that identifies ``best/``; None if it can't be read."""
        try:
            whole = files.read_bytes(self.path / BEST / manifest.MANIFEST)
        except FileFault:
            return None
        return hashlib.sha256(whole).hexdigest()

    def newer_best(self, part: Mapping[str, Any]) -> tuple[float, int | None] | None:
        """The score of a sound policy in ``best/`` that is newer than the checkpoint of `part`, and
        the step limit that cut episodes of it."""
        try:
            meta = checkpoint.read(self.path / BEST).meta
        except CheckpointError:
            return None
        score = meta.get("best")
        newer = int(meta.get("version", 0)) > part["version"]
        return (float(score), cut_at(meta)) if newer and score is not None else None

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
