"""Several learners in threads of one process, with the exchanges of real ones."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from ppo_helpers import learn

from quintet.algorithms.parts.policy_probe import PolicyProbe
from quintet.protocols import Learner, Ranks
from quintet.runtime.parallel.ranks import LOOK_EVERY_S, RankGroup
from quintet.types import Rollout

T = TypeVar("T")


_MAKING = Lock()


def _one_at_a_time(make: Callable[[], T]) -> T:
    with _MAKING:
        return make()


class Patience:
    """Ends an exchange that the other ranks never join, which a test would wait for."""

    def __init__(self) -> None:
        self.looks = 0

    def joined(self, _: int) -> None:
        self.looks = 0

    def watch(self) -> None:
        self.looks += 1
        if self.looks * LOOK_EVERY_S > 60.0:
            raise RuntimeError("an exchange was joined by one rank alone for a minute")


class RankThreads:
    """Learners that share batches; what any of them raises is raised here."""

    def __init__(self, size: int, make: Callable[[Ranks], Any], device: torch.device | None = None):
        """make: a learner of these ranks; device: of all of them; None: the CPU."""
        here = device or torch.device("cpu")
        own = [Patience() for _ in range(size)]
        self.ranks = [RankGroup(i, size, here, p.watch, p.joined) for i, p in enumerate(own)]
        self.learners = [make(ranks) for ranks in self.ranks]
        # PyTorch's generator, which networks draw from, is one for all.
        for learner in self.learners:
            probes = (each for each in vars(learner).values() if isinstance(each, PolicyProbe))
            for probe in probes:
                if probe.make_past is not None:
                    probe.make_past = partial(_one_at_a_time, probe.make_past)
        store = dist.HashStore()
        self._each(lambda i: self.ranks[i].connect(store))

    def _each(self, work: Callable[[int], T]) -> list[T]:
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(work, range(len(self.ranks))))

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        """One update of all of them; every one reports the same."""
        first, *others = self._each(lambda i: learn(self.learners[i], batch, env_steps))
        assert all(each == first for each in others)
        return first

    def at_once(self, work: Callable[[Any], T]) -> list[T]:
        """What each of them makes of the work."""
        return self._each(lambda i: work(self.learners[i]))


def states(learners: Sequence[Learner]) -> list[dict[str, torch.Tensor]]:
    """All that they would save."""
    return [{name: x.clone() for name, x in one.save().tensors.items()} for one in learners]
