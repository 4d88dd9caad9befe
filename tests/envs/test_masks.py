"""Masks in the forms of other libraries become the leaf action_mask."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from small_run_helpers import SMALL

import quintet
from quintet.cli import main
from quintet.envs.make import make_vector_env
from quintet.errors import EnvironmentFault
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK
from quintet.uniform import random_rows

BOX = spaces.Box(0.0, 1.0, (2,), np.float32)
BITS = spaces.MultiBinary(4)
ADDED = spaces.Box(-1e9, 0.0, (4,), np.float32)


class Legal(gymnasium.Env):
    """Ten steps in which the first two of four actions are allowed; others are an error."""

    observation_space: spaces.Space = BOX
    action_space = spaces.Discrete(4)

    def legal(self) -> Any:
        return np.array([1, 1, 0, 0], np.int8)

    def seen(self) -> Any:
        return self.np_random.random(2, np.float32)

    def info(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), self.info()

    def step(self, action: Any) -> Any:
        assert action < 2, "an action that is not allowed"
        self.count += 1
        return self.seen(), float(action), False, self.count == 10, self.info()


class Method(Legal):
    def action_masks(self) -> Any:
        return self.legal().astype(bool)


class Info(Legal):
    def info(self) -> dict[str, Any]:
        return {ACTION_MASK: self.legal()}


class Plural(Legal):
    observation_space = spaces.Dict(obs=BOX, action_masks=BITS)

    def seen(self) -> Any:
        return {"obs": super().seen(), "action_masks": self.legal()}


class Nested(Legal):
    observation_space = spaces.Dict(obs=spaces.Dict(x=BOX, action_mask=BITS))

    def seen(self) -> Any:
        return {"obs": {"x": super().seen(), "action_mask": self.legal()}}


class Added(Legal):
    observation_space = spaces.Dict(x=BOX, action_mask=ADDED)

    def seen(self) -> Any:
        return {"x": super().seen(), ACTION_MASK: np.array([0, 0, -1e9, -1e9], np.float32)}


FORMS = {
    Method: "the environment's method action_masks()",
    Info: "info['action_mask']",
    Plural: "the observation's leaf 'action_masks'",
    Nested: "the observation's leaf 'obs/action_mask'",
    Added: "the observation's leaf 'action_mask' (0 allows an action, a large negative number "
    "forbids it)",
}


@pytest.mark.parametrize("form", FORMS)
def test_no_form_lets_a_forbidden_action_through(form: type[Legal], tmp_path: Path) -> None:
    options = {**SMALL, "eval.episodes": 2}
    quintet.train("ppo", form, 64, run_dir=tmp_path, config=options)
    said = (tmp_path / "log.txt").read_text()
    assert f"action masks are taken from {FORMS[form]}\n" in said
    assert said.count("action masks") == 1
    policy = quintet.load(tmp_path)
    scores = quintet.evaluate(policy, episodes=3, deterministic=False)
    assert scores.lengths.tolist() == [10] * 3
    leaves = observation_leaves(policy.spaces.observation)
    assert leaves[ACTION_MASK] == BITS
    assert len(leaves) == 2
    if form not in (Method, Info):  # whose observations do not have it
        env = form()
        obs, _ = env.reset(seed=0)
        for _ in range(20):
            action, _ = policy.act(obs, deterministic=False)
            assert action < 2


@pytest.mark.slow
@pytest.mark.parametrize("form", [Method, Info, Nested])
def test_workers_and_the_command_line_take_them(
    form: type[Legal], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SMALL, "runtime.kind": "lockstep", "runtime.num_workers": 2, "eval.episodes": 2}
    quintet.train("ppo", form, 128, run_dir=tmp_path, config=options)
    assert main(["eval", str(tmp_path), "--episodes", "2", "--stochastic"]) == 0
    capsys.readouterr()
    assert main(["check-env", f"test_masks:{form.__name__}", "--steps", "30"]) == 0
    assert f"action masks are taken from {FORMS[form]}" in capsys.readouterr().out


def test_false_leaves_them_where_they_are() -> None:
    for form in (Plural, Nested):
        env = make_vector_env(form, 1, mask_from_info=False)
        assert ACTION_MASK not in observation_leaves(env.spaces.observation)
        assert env.description.notes == ()


def test_vector_environments_and_games_take_leaves() -> None:
    made = SyncVectorEnv([Nested] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    env = make_vector_env(VectorWrapper(made))
    assert env.description.notes == (f"action masks are taken from {FORMS[Nested]}",)
    for each in random_rows(env, 30, 0):  # whose actions the mask allows
        assert each.row.obs[ACTION_MASK].tolist() == [[1, 1, 0, 0]] * 2
    assert list(each.row.obs) == ["obs/x", ACTION_MASK]


class Wrong(Legal):
    def __init__(self, values: Any, form: str) -> None:
        self.values, self.form = np.array(values, np.float32), form
        if form == "leaf":
            any_box = spaces.Box(-np.inf, np.inf, (4,), np.float32)
            self.observation_space = spaces.Dict(x=BOX, action_mask=any_box)

    def seen(self) -> Any:
        x = super().seen()
        return {"x": x, ACTION_MASK: self.values} if self.form == "leaf" else x

    def info(self) -> dict[str, Any]:
        return {ACTION_MASK: self.values} if self.form == "info" else {}

    def action_masks(self) -> Any:
        return self.values

    def step(self, action: Any) -> Any:
        return super().step(0)


@pytest.mark.parametrize("form", ["leaf", "info", "method"])
@pytest.mark.parametrize("values", [[0, 0, -1e9, -1e9], [1, 1, 2, 0], [0.5, 1, 0, 0]])
def test_numbers_other_than_0_and_1_are_refused(form: str, values: Any, tmp_path: Path) -> None:
    options = {**SMALL, "env.mask_from_info": True if form == "info" else "auto"}
    with pytest.raises(EnvironmentFault, match="must hold 0 and 1 alone, got") as fault:
        quintet.train("ppo", lambda: Wrong(values, form), 64, run_dir=tmp_path, config=options)
    assert ("added to logits" in str(fault.value)) == (min(values) < 0)


class Unnamed(Legal):
    observation_space = spaces.Dict(x=BOX, legal_moves=BITS)

    def seen(self) -> Any:
        return {"x": super().seen(), "legal_moves": self.legal()}

    def step(self, action: Any) -> Any:
        return super().step(0)


def test_a_leaf_that_may_be_a_mask_is_doubted(tmp_path: Path) -> None:
    quintet.train("ppo", Unnamed, 64, run_dir=tmp_path, config=SMALL)
    said = (tmp_path / "log.txt").read_text()
    assert "observation 'legal_moves' has one number for each of 4 actions" in said
