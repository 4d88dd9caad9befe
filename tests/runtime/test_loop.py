"""What the training loop does where an update fails and the policy is replaced."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from adders_helpers import PLAN, ROWS

from quintet.errors import NonFiniteError
from quintet.observe.timing import PhaseTimer
from quintet.runtime import loop
from quintet.runtime.delivery import Batch, Delivery, Steps
from quintet.runtime.slots import Slot, slot_specs, zeros
from quintet.types import Publication, Rollout

STEPS = 12


class Sampling:
    """The same batch again and again; keeps the versions that were published."""

    restarts = False

    def __init__(self) -> None:
        self.delivery = Delivery(PLAN, 2)
        self.published: list[int] = []

    def publish(self, publication: Publication) -> None:
        self.published.append(publication.version)

    def restart(self, iteration: int) -> None: ...

    def collect(self, env_steps_left: int, restarts_after: Any) -> Batch:
        batch = Slot(zeros(slot_specs(ROWS, PLAN, 2)), ROWS, PLAN).rollout
        batch.valid.fill_(True)
        return Batch(batch, 0, STEPS, [], Steps(STEPS, 0, 0, 0, 0))


class Replay:
    """Draws two batches after each that it stores."""

    def __init__(self) -> None:
        self.stored = 0

    def overwrites(self, batch: Rollout) -> bool:
        return False

    def store(self, batch: Rollout) -> None:
        self.stored += 1

    def cut(self) -> None: ...

    def draws(self, valid_steps: int, iteration: int) -> Iterator[Rollout]:
        drawn = Slot(zeros(slot_specs(ROWS, PLAN, 2)), ROWS, PLAN).rollout
        return iter([drawn, drawn])


class Learner:
    """Has the weights of the version; its update of that number fails."""

    def __init__(self, fails: int) -> None:
        self.version, self.updates, self.fails = 0, 0, fails
        self.env_steps: list[int] = []

    def update(self, batch: Rollout, env_steps: int) -> None:
        self.updates += 1
        self.env_steps.append(env_steps)
        if self.updates == self.fails:
            raise NonFiniteError("finite losses are required")
        self.version += 1

    def publication(self) -> Publication:
        return Publication(self.version, {})


@pytest.mark.parametrize(("fails", "stored", "updates"), [(4, 2, 7), (5, 3, 8), (6, 3, 9)])
def test_a_replaced_policy_is_published_at_once_and_its_old_rows_are_dropped(
    fails: int, stored: int, updates: int
) -> None:
    """Nothing more is drawn of that batch, and a fresh one that it fails on is not stored."""
    learner: Any = Learner(fails)
    sampling, replay = Sampling(), Replay()
    found: list[tuple[int | None, list[int]]] = []

    def diverged(policy: int, error: NonFiniteError) -> None:
        learner.version = 100

    def after(batch: Batch) -> bool:
        found.append((sampling.delivery.queues[0].least_version, list(sampling.published)))
        return False

    replays: Any = [replay]
    hooks = loop.Hooks(lambda _: None, after, lambda *_: "", diverged=diverged)
    components = loop.Components([learner], sampling, replays, [torch.device("cpu")])
    budget = loop.Budget(3 * STEPS, 100, None, publish_iterations=10)
    loop.TrainingLoop(components, loop.Counters(), budget, hooks, PhaseTimer()).run()
    assert [published for _, published in found] == [[0], [0, 100], [0, 100]]
    assert [least for least, _ in found] == [found[0][0], 100, 100]
    assert (replay.stored, learner.updates) == (stored, updates)


def test_the_last_iteration_learns_at_a_rate_above_zero_from_replay_too() -> None:
    """Schedules go by the env_steps before the iteration."""
    learner: Any = Learner(0)
    replays: Any = [Replay()]
    hooks = loop.Hooks(lambda _: None, lambda _: False, lambda *_: "")
    components = loop.Components([learner], Sampling(), replays, [torch.device("cpu")])
    loop.TrainingLoop(
        components, loop.Counters(), loop.Budget(2 * STEPS, 100), hooks, PhaseTimer()
    ).run()
    assert learner.env_steps == 3 * [0] + 3 * [STEPS]


def test_a_batch_is_kept_where_nothing_replaces_the_policy() -> None:
    learner: Any = Learner(1)
    hooks = loop.Hooks(lambda _: None, lambda _: False, lambda *_: "It is in a file.")
    components = loop.Components([learner], Sampling())
    with pytest.raises(NonFiniteError, match=r"^finite losses are required\. It is in a file\.$"):
        loop.TrainingLoop(
            components, loop.Counters(), loop.Budget(STEPS, 100), hooks, PhaseTimer()
        ).run()


@pytest.mark.parametrize(("update", "kept"), [(None, 5), (5, 5), (4, 4), (1, 1)])
def test_the_batch_is_kept_whose_update_was_found_to_be_the_cause(
    update: int | None, kept: int
) -> None:
    """Of the last rollouts; each made one optimizer step."""
    newest: Any = [(0, 0), *((before, before + 1) for before in range(5))]
    error = NonFiniteError("finite losses are required")
    error.update = update
    assert loop._cause(error, newest) == kept
