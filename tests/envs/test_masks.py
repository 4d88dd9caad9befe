"""Masks in the forms of other libraries become the leaf action_mask."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from small_run_helpers import SMALL

import quintet
from quintet.commands.cli import main
from quintet.envs.public import make_vector_env
from quintet.envs.random_play import random_rows
from quintet.errors import EnvironmentFault
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK

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


class Tupled(Legal):
    observation_space = spaces.Tuple([spaces.Dict(x=BOX), spaces.Dict(action_mask=BITS), BOX])

    def seen(self) -> Any:
        x = super().seen()
        return {"x": x}, {"action_mask": self.legal()}, x


class Added(Legal):
    observation_space = spaces.Dict(x=BOX, action_mask=ADDED)

    def seen(self) -> Any:
        return {"x": super().seen(), ACTION_MASK: np.array([0, 0, -1e9, -1e9], np.float32)}


FORMS = {
    Method: "the environment's method action_masks()",
    Info: "info['action_mask'] or ['action_masks']",
    Plural: "the observation's leaf 'action_masks'",
    Nested: "the observation's leaf 'obs/action_mask'",
    Tupled: "the observation's leaf '1/action_mask'",
    Added: "the observation's leaf 'action_mask' (0 allows an action, a large negative number "
    "forbids it)",
}


OTHERS = {Nested: {"obs/x"}, Tupled: {"0/x", "2"}}
"""Paths of the other leaves."""


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
    assert leaves.keys() - {ACTION_MASK} == OTHERS.get(form, leaves.keys() - {ACTION_MASK})
    assert len(leaves) == 1 + len(OTHERS.get(form, "1"))
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


@pytest.mark.parametrize("form", [Nested, Tupled])
def test_vector_environments_take_leaves(form: type[Legal]) -> None:
    made = SyncVectorEnv([form] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    env = make_vector_env(VectorWrapper(made))
    assert env.description.notes == (f"action masks are taken from {FORMS[form]}",)
    for each in random_rows(env, 30, 0):  # whose actions the mask allows
        assert each.row.obs[ACTION_MASK].tolist() == [[1, 1, 0, 0]] * 2
    assert {*each.row.obs} == OTHERS[form] | {ACTION_MASK}


class Tensors(gymnasium.vector.VectorEnv):
    """Vector environments of tensors with a mask in a nested leaf."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs, self.device, self.count = num_envs, "cpu", 0
        self.single_observation_space = Tupled.observation_space
        self.single_action_space = Legal.action_space

    def seen(self) -> Any:
        x = torch.rand(self.num_envs, 2, generator=self.noise)
        mask = torch.tensor([[1, 1, 0, 0]] * self.num_envs)
        return {"x": x}, {"action_mask": mask.char()}, x

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.noise, self.count = torch.Generator().manual_seed(seed or 0), 0
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        assert (actions < 2).all(), "an action that is not allowed"
        self.count += 1
        over = torch.full((self.num_envs,), self.count % 10 == 0)
        return self.seen(), actions.float(), over, torch.zeros_like(over), {}


class Game:
    """Two agents, of whom the second joins late; masks in infos, in either API of PettingZoo."""

    possible_agents = ("ann", "bob")

    def observation_space(self, agent: str) -> spaces.Space:
        return BOX

    def action_space(self, agent: str) -> spaces.Space:
        return Legal.action_space

    def legal(self, agent: str) -> Any:
        return np.array([1, 1, 0, 0] if agent == "ann" else [0, 0, 1, 1], np.int8)

    def allows(self, agent: str, action: Any) -> None:
        assert self.legal(agent)[action], "an action that is not allowed"

    def close(self) -> None:
        pass


class AtOnce(Game):
    def seen(self) -> Any:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def told(self) -> Any:
        return {agent: {ACTION_MASK: self.legal(agent)} for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.count = ["ann"], 0
        return self.seen(), self.told()

    def step(self, actions: Any) -> Any:
        for agent, action in actions.items():
            self.allows(agent, action)
        self.count += 1
        over = self.count == 6
        self.agents = list(self.possible_agents)
        seen, told = self.seen(), {} if over else self.told()
        flags = dict.fromkeys(actions, over), dict.fromkeys(actions, False)
        self.agents = [] if over else self.agents
        return seen, dict.fromkeys(actions, 1.0), *flags, told


class InTurn(Game):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.count = list(self.possible_agents), 0
        self.agent_selection = "ann"

    def last(self) -> Any:
        agent, over = self.agent_selection, self.count >= 6
        told = {} if over else {ACTION_MASK: self.legal(agent)}
        return np.zeros(2, np.float32), 1.0, over, False, told

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
        else:
            self.allows(agent, action)
            self.count += 1
        others = [each for each in self.agents if each != agent]
        self.agent_selection = others[0] if others else agent


@pytest.mark.parametrize("kind", [Tensors, AtOnce, InTurn])
@pytest.mark.parametrize("runtime", ["serial", pytest.param("lockstep", marks=pytest.mark.slow)])
def test_tensors_and_games_take_them(
    kind: type, runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, run = f"test_masks:{kind.__name__}", str(tmp_path / "run")
    backend = () if kind is Tensors else ("--env.backend", "pettingzoo")
    command = (
        *("train", "ppo", "--env", env, *backend, "--run-dir", run, "--total-steps", "256"),
        *("--env.num-streams", "4", "--unroll-steps", "32", "--minibatch-steps", "64"),
        *("--eval.episodes", "2", "--runtime.kind", runtime, "--runtime.compile", "off"),
    )
    assert main(command) == 0
    place = FORMS[Tupled if kind is Tensors else Info]
    assert f"action masks are taken from {place}\n" in (tmp_path / "run" / "log.txt").read_text()
    against = () if kind is Tensors else ("--against", "random")
    assert main(["eval", run, "--episodes", "4", "--stochastic", *against]) == 0
    capsys.readouterr()
    assert main(["check-env", env, "--steps", "30", *backend]) == 0
    assert f"action masks are taken from {place}" in capsys.readouterr().out


def test_a_game_without_a_mask_at_a_step_is_refused(tmp_path: Path) -> None:
    class Forgets(AtOnce):
        def told(self) -> Any:
            return super().told() if self.count < 3 else {}

    options = {**SMALL, "env.backend": "pettingzoo"}
    with pytest.raises(
        EnvironmentFault, match=r"must have info\['action_mask'\], .* got info with"
    ):
        quintet.train("ppo", Forgets, 64, run_dir=tmp_path, config=options)


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
    with pytest.raises(EnvironmentFault, match=r"must hold only 0 and 1, got [^[]") as fault:
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
