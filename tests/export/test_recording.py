"""What is recorded for a certificate."""

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cells_helpers import OBSERVATIONS, Cell
from gymnasium import spaces
from turns_helpers import Alone, Scripted, game_env

from quintet.errors import ExportError
from quintet.export import recording
from quintet.types import ActOutput

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("low", "high", "least", "most"),
    [
        (-LARGEST, LARGEST, -100.0, 100.0),
        (200.0, 300.0, 200.0, 300.0),
        (-300.0, -200.0, -300.0, -200.0),
        (0.0, LARGEST, 0.0, 100.0),
        (-np.inf, np.inf, -10.0, 10.0),
    ],
)
def test_samples_are_in_the_space_and_not_too_wide(low, high, least, most, monkeypatch) -> None:
    monkeypatch.setitem(OBSERVATIONS, "wide", spaces.Box(low, high, (2,), np.float32))
    seen = recording.of_space(Cell(observation="wide").policy(), 200, 0)
    found = seen.obs["obs"]
    assert least <= found.min() < found.max() <= most
    assert len(np.unique(found)) > 300
    assert seen.is_first[0].all()
    assert 0 < seen.is_first[1:].mean() < 0.1


class Counting:
    """Remembers how often it has acted in an episode; notes what it remembers at each act."""

    def __init__(self) -> None:
        self.noted: list[list[int]] = []

    def initial_state(self, count: int) -> dict[str, torch.Tensor]:
        return {"acts": torch.zeros(count, dtype=torch.int64)}

    def draw_noise(self, *_: Any) -> torch.Tensor:
        return torch.zeros(1, 0)

    def act(self, obs: Any, state: Any, is_first: torch.Tensor, noise: Any) -> ActOutput:
        acts = torch.where(is_first, 0, state["acts"])
        self.noted.append(acts.tolist())
        action = torch.zeros_like(acts)
        return ActOutput(action, action, {}, {"acts": acts + 1})


def test_of_a_game_in_turn_decisions_are_recorded_and_memory_is_kept_between_them() -> None:
    actor = Counting()
    with closing(game_env(Scripted, 6)) as vector:
        policy: Any = SimpleNamespace(actor=actor, threads=1)
        obs, is_first = recording._played(policy, vector, 60, 1)
    agent, time = obs["obs"][..., 0], obs["obs"][..., 1]
    assert is_first.shape == (60, 6)
    for stream in range(6):
        assert set(agent[:, stream].tolist()) == {stream % 3}
        begun = is_first[:, stream]
        assert begun[0]
        assert 5 < begun.sum() < 40
        assert (np.diff(time[:, stream])[~begun[1:]] > 0).all()  # of one game, later
    noted = np.array(actor.noted)
    assert 2 < noted.max() < 15
    assert (np.diff(noted, axis=0) == 0).mean() > 0.3  # in the others' turns


def test_a_game_in_which_an_agent_never_acts_gives_no_certificate() -> None:
    with closing(game_env(Alone, 3)) as vector:
        policy: Any = SimpleNamespace(actor=Counting(), threads=1)
        with pytest.raises(ExportError, match="got one that did not in 200 rows"):
            recording._played(policy, vector, 10, 1)
