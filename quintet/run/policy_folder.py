"""The files of one policy: ``best/``, ``policy/`` of a finished run, and its part of checkpoints.

A run of one policy has them in its own folder and under plain names.  Of several, policy K has the
folder ``policy_K/``, the tensors ``policy_K`` and ``learner_K`` of a checkpoint, and entry K of
``policies`` in its meta.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from quintet import checkpoint
from quintet.errors import CheckpointError, FileFault
from quintet.observe.metrics import policy_prefix
from quintet.policy import LEARNER, POLICIES, POLICY, Policy
from quintet.run.folder import RunFolder
from quintet.system import files, manifest

BEST = "best"


@final
class PolicyFolder:
    """The place of policy `index` of `num_policies` in a run's folder."""

    def __init__(self, run: RunFolder, index: int = 0, num_policies: int = 1) -> None:
        self.run, self.index, self.num_policies = run, index, num_policies
        self.path = run.path / policy_prefix(index, num_policies)

    def open(self) -> None:
        """Makes the folder, or removes unfinished files from it; the run's folder is open."""
        self.path.mkdir(exist_ok=True)
        checkpoint.clean_temporary(self.path)

    # Its part of a checkpoint

    def named(self, policy: Mapping[str, Tensor], learner: Mapping[str, Tensor]) -> dict[str, Any]:
        """The tensors that acting needs, and those that only learning needs, by their key."""
        return {self._key(POLICY): policy, self._key(LEARNER): learner}

    def tensors(self, found: checkpoint.Checkpoint, kind: str) -> dict[str, Tensor]:
        """The checkpoint's tensors for acting (`kind` POLICY) or for learning (LEARNER); raises
        KeyError if the checkpoint has none.
        """
        return found.tensors[self._key(kind)]

    def part(self, meta: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a checkpoint's meta that belongs to this policy; raises CheckpointError if it
        is of a run with another number of policies.
        """
        count = len(meta.get(POLICIES, (None,)))
        if count != self.num_policies:
            raise CheckpointError(
                f"a checkpoint of {self.num_policies} policies is required, {self.run.path} has "
                f"one of {count}; give another --run-dir"
            )
        part: Mapping[str, Any] = meta[POLICIES][self.index] if count > 1 else meta
        return part

    def _key(self, kind: str) -> str:
        return kind if self.num_policies == 1 else f"{kind}_{self.index}"

    # policy/ and best/

    def write(self, name: str, policy: Policy) -> None:
        """Writes ``policy/`` or ``best/``; raises CheckpointError if it can't be written, or the
        run's folder is another one.
        """
        self.run.check()
        checkpoint.write(self.path, name, *policy.contents(), signed=policy.signed)

    def best_mark(self) -> str | None:
        """A hash that identifies ``best/``; None where it can't be read."""
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
