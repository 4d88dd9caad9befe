"""``quintet check-env`` finds what is wrong with an environment, and nothing where all is right."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from scripted_helpers import Scripted

import quintet
from quintet.commands import cli
from quintet.commands.check_env import _in_words
from quintet.envs import check
from quintet.envs.check import EnvCheck, check_env
from quintet.envs.config import EnvConfig
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import EnvDescription, StepRow
from quintet.errors import EnvironmentFault
from quintet.types import Spaces


class Sound(gymnasium.Env):
    """Episodes of 10 steps; pays the action."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        return self.obs(), float(action), self.steps == 10, False, {}

    def obs(self):
        return self.np_random.random(2, dtype=np.float32)


class Unseeded(Sound):
    def obs(self):
        seen = super().obs()
        return np.random.random(2).astype(np.float32) if self.steps == 3 else seen


class Remembers(Sound):
    """What all of its kind did before."""

    stepped = False

    def step(self, action):
        if self.steps == 9:
            Remembers.stepped = True
        return super().step(action)

    def obs(self):
        return super().obs() * (0.5 if self.stepped and self.steps == 1 else 1.0)


class NotFinite(Sound):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, np.inf if self.steps == 4 else reward, *rest


class Wide(Sound):
    def obs(self):
        return 2.0 * super().obs() + 1.0


class Still(Sound):
    def step(self, action):
        return super().obs() * 0, 0.0, False, False, {}

    def obs(self):
        return np.zeros(2, np.float32)


class Raises(Sound):
    def step(self, action):
        if self.steps == 5:
            raise RuntimeError("boom")
        return super().step(action)


class Masked(Sound):
    """Its mask allows nothing from step `least` on, which steps do not mind."""

    least = 4

    def action_masks(self):
        return np.arange(2) < (self.steps < self.least)


class MaskedAtSteps(Sound):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": [1, 0]}


class Strict(Sound):
    def step(self, action):
        raise ValueError(f"illegal action {action}")


class Slow(Sound):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


class Shaped(Sound):
    """Weighs its rewards by values that each environment has for itself, or all share."""

    shared = {"goal": 2.0}

    def __init__(self, own: bool = True):
        self.reward_shaping = {"goal": 1.0, "energy": 0.25} if own else self.shared


def checked(make: Callable[[], gymnasium.Env], steps: int = 60) -> EnvCheck:
    return check_env(resolve_env(EnvConfig(id="made"), make), steps)


def test_nothing_is_wrong_with_a_sound_environment() -> None:
    found = checked(Sound, 54)
    assert (found.faults, found.remarks) == ([], [])
    assert found.deterministic
    assert found.steps == 2 * (54 - 4), "every eleventh row is a reset"
    assert (found.terminated, found.truncated) == (10, 0)
    assert set(found.lengths) == {10}
    assert (found.reward_min, found.reward_max) == (0.0, 1.0)
    assert found.rewarded_frac == pytest.approx(0.5, abs=0.15)
    assert sum(found.returns) == pytest.approx(found.rewarded_frac * 100)
    assert 0 < found.step_s <= found.slowest_step_s < 1


def test_a_mask_that_allows_nothing_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match=r"at least one action.*made, stream 0, step 4: it"):
        checked(Masked)
    with pytest.raises(EnvironmentFault, match="stream 0, step 0: it allows none"):
        checked(type("Never", (Masked,), {"least": 0}))
    # Where an episode has ended, nothing is chosen.
    assert checked(type("AtTheEnd", (Masked,), {"least": 10})).faults == []


def test_a_mask_that_is_missing_at_resets_is_told() -> None:
    (fault,) = checked(MaskedAtSteps).faults
    assert "info['action_mask'] must be there at resets too" in fault
    left = EnvConfig(id="made", mask_from_info=False)
    assert check_env(resolve_env(left, MaskedAtSteps), 20).faults == []


@pytest.mark.parametrize("kind", ["serial", "async"])
def test_a_run_tells_of_a_mask_that_is_missing_at_resets(kind: str, tmp_path: Path) -> None:
    config = {"runtime.kind": kind, "eval.episodes": 0, "report.progress": False}
    quintet.train("appo", MaskedAtSteps, 1024, 0, tmp_path / "run", config)
    said = (tmp_path / "run" / "log.txt").read_text()
    assert said.count("info['action_mask'] must be there at resets too, got it only at steps") == 1


def test_an_illegal_action_leads_to_masks() -> None:
    with pytest.raises(EnvironmentFault, match=r"see docs/environments.md#action-masks$"):
        checked(Strict)
    with pytest.raises(EnvironmentFault, match=r"or wrap it$"):
        checked(Raises)


def test_a_rare_reward_is_no_0_percent() -> None:
    found = checked(Sound, 20)
    found.rewarded_frac = 5 / 1960
    assert "not 0 in 0.255% of the steps" in _in_words(found, [])


def test_reward_shaping_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(Sound, 54).reward_shaping == {}
    found = checked(lambda: gymnasium.Wrapper(Shaped()), 54)
    assert found.reward_shaping == {"goal": 1.0, "energy": 0.25}
    assert found.remarks == []
    (shares,) = checked(lambda: Shaped(own=False), 54).remarks
    assert shares.startswith("its environments share one dict of reward_shaping")
    assert cli.main(["check-env", f"{__name__}:Shaped"]) == 0
    assert "\n  shaping      goal 1, energy 0.25\n" in capsys.readouterr().out
    assert cli.main(["check-env", f"{__name__}:Sound"]) == 0
    assert "shaping" not in capsys.readouterr().out


def test_endings_are_told_apart() -> None:
    found = checked(lambda: Scripted(lengths=(3, 4), endings=("terminate", "truncate")))
    assert found.terminated > 0
    assert found.truncated > 0
    assert set(found.lengths) == {3, 4}


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (
            Unseeded,
            "two copies with the same seeds and actions differ: observation 'obs' at step 3",
        ),
        (
            Remembers,
            "after others were used, differ with the same seeds: observation 'obs' at step 1;",
        ),
        (NotFinite, "stream 0, step 4 after its reset with seed 0: reward is inf"),
    ],
)
def test_faults_are_found(make: Callable[[], gymnasium.Env], fault: str) -> None:
    found = checked(make)
    assert len(found.faults) == 1
    assert fault in found.faults[0]
    assert found.deterministic == (make is NotFinite)


def test_what_is_worth_knowing_is_remarked() -> None:
    (wide,) = checked(Wide).remarks
    assert wide.startswith("observation 'obs' leaves its declared bounds Box(0.0, 1.0")
    assert "it was between 1." in wide
    assert checked(Still).remarks == [
        "the first observation is the same with two different seeds",
        "observation 'obs' never changed",
        "no episode ended in 120 steps of random actions, of all streams together",
        "every reward was 0 under random actions",
    ]


class Large(Sound):
    def step(self, action):
        obs, reward, *ended = super().step(action)
        return obs, 1e6 * reward, *ended


def test_each_way_to_scale_rewards_names_its_learners(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check-env", "test_check:Large", "--steps", "500"])
    choice = next(x for x in capsys.readouterr().out.splitlines() if "are not scaled by" in x)
    _, _, ways = choice.partition("not scaled by ")
    assert re.search(r"--reward-normalizer return_std scales them in impala, appo, acer", ways)
    assert re.search(r"--normalize-returns true or --reward-scale scales them in ddpg", ways)
    assert {"impala", "appo", "ddpg", "acer"} <= {*ways.partition(":")[0].split(", ")}


def test_what_json_can_not_hold_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-env", f"{__name__}:NotFinite", "--steps", "60", "--json"]) == 1
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["reward_max"] is None
    assert None in found["returns"]


def test_errors_name_the_step_and_the_line() -> None:
    with pytest.raises(EnvironmentFault, match=r"step 6 .*boom \(.*test_check.py:\d+ in step"):
        checked(Raises)


class Late:
    """A game of four steps with two agents, of whom one comes in at its third step."""

    possible_agents = ("ann", "bob")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(1.0, 2.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def seen(self) -> dict[str, np.ndarray]:
        return {a: self.rng.uniform(1, 2, 2).astype(np.float32) for a in self.possible_agents}

    def reset(self, seed: int | None = None, options: object = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.agents = 0, ["ann"]
        return self.seen(), {}

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        over = dict.fromkeys(actions, self.t == 4)
        self.agents = [] if self.t == 4 else ["ann", "bob"][: 1 + (self.t > 1)]
        rewards = {a: float(x) for a, x in actions.items()}
        return self.seen(), rewards, over, dict.fromkeys(actions, False), {}


def test_a_game_is_judged_by_who_is_there() -> None:
    found = check_env(resolve_env(EnvConfig(id="late", backend="pettingzoo"), Late), 100)
    assert found.steps == 2 * 20 * (4 + 2)
    assert found.faults == found.remarks == []
    assert found.slowest_step_s >= found.step_s > 0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-env", "quintet.envs.toy:Contextual", "--steps", "50"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("quintet.envs.toy:Contextual (gymnasium)\n  observation  Box(")
    assert "the same seeds and actions give identical episodes" in out
    assert out.splitlines()[-1].startswith("no fault found in ")
    name = f"{__name__}:Unseeded"
    assert cli.main(["check-env", name, "--steps", "20", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["deterministic"] is False
    assert found["steps"] == len(found["faults"]) * 38
    assert found["observation_space"]["shape"] == [2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "quintet check-env needs an environment: quintet check-env ID"),
        (["CartPole-v1", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["CartPole-v1", "--most-s", "0"], "--most-s must be above 0, got 0.0"),
        (["CartPole-v1", "--most-s", "nan"], "--most-s must be above 0, got nan"),
        (["CartPole-v1", "--seed", "-1"], "--seed must be in 0 .. "),
        (["CartPole-v1", "--env.kwargs", "{"], "--env.kwargs must be JSON"),
        (["CartPole-v1", "--env.kwargs", "[]"], "--env.kwargs must be as in"),
        (["CartPole-v1", "--env.kwargs", '{"a": NaN}'], "env.kwargs: must hold only what JSON"),
        (["CartPol-v1"], "nearest are CartPole-v1"),
    ],
)
def test_mistakes_have_one_sentence_each(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check-env", *words]) == 2
    assert told in capsys.readouterr().err


def test_options_are_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    newest = max(name for name in gymnasium.registry if name.startswith("Taxi-"))
    taxi = ["check-env", newest, "--steps", "20", "--env.backend", "gymnasium"]
    assert cli.main([*taxi, "--env.mask-from-info", "true"]) == 0
    assert "action_mask" in capsys.readouterr().out
    made = ["check-env", "quintet.envs.toy:FinitePay", "--env.kwargs", '{"n": 3}', "--steps", "20"]
    assert cli.main(made) == 0
    assert "length 3 to 3" in capsys.readouterr().out


def test_a_slow_environment_is_stepped_for_so_long(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    assert cli.main(["check-env", f"{__name__}:Slow", "--most-s", "0.4", "--json"]) == 0
    assert time.monotonic() - begin < 3.0  # of 48 s for all of its steps
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["steps"] < 100
    assert "of 1,000 steps were taken (--most-s)" in found["remarks"][0]
    # One step at least, or nothing could be said.
    assert cli.main(["check-env", f"{__name__}:Slow", "--most-s", "1e-9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2


class Far(gymnasium.Env):
    """Its observation lies around an offset and changes by one each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, offset, dtype, step=1):
        self.observation_space = spaces.Box(0, 2**30, (2,), dtype)
        self.offset, self.step_size = offset, step

    def show(self):
        return np.array([self.offset + self.time * self.step_size, self.time % 3], self.dtype)

    @property
    def dtype(self):
        return self.observation_space.dtype

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.show(), {}

    def step(self, action):
        self.time += 1
        return self.show(), 1.0, self.time == 20, False, {}


@pytest.mark.parametrize(
    ("offset", "dtype", "step", "lost"),
    [
        *((1.7e9, dtype, 1, True) for dtype in (np.float64, np.int64, np.uint64, np.int32)),
        (5e6, np.float64, 1, True),
        (5e6, np.float32, 1, True),
        (5e6, np.float64, 1000, False),
        (1000, np.float64, 1, False),
        (0, np.float64, 1e9, False),
        (1.7e9, np.float64, 1e6, False),
    ],
)
def test_what_float32_loses_of_an_offset_is_said(offset, dtype, step, lost):
    env = resolve_env(EnvConfig(id="far"), lambda: Far(offset, dtype, step))
    told = [each for each in check_env(env, 60).remarks if "float32, in which" in each]
    assert len(told) == lost
    assert all("observation 'obs'[0] is around" in each for each in told)


class Misplaces:
    """Two streams, whose episodes have two steps; a fault replaces fields of some row."""

    num_streams = 2
    spaces = Spaces(gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32), gymnasium.spaces.Discrete(2))
    description = EnvDescription("misplaces", "theirs")

    def __init__(self, **fault: Any) -> None:
        self.fault = fault

    def restart(self, seeds: Any, out: Any) -> None:
        self.t, out["obs"][:, 0] = 0, seeds

    def send(self, action: Any) -> None: ...

    def recv(self, out: StepRow) -> None:
        self.t += 1
        resets, ends = self.t % 3 == 0, self.t % 3 == 2
        fields = {
            "valid": not resets, "terminated": ends, "truncated": False,
            "raw_reward": 0.0 if resets else 2.0,
        }  # fmt: skip
        fields["reward"] = fields["raw_reward"]
        for name, value in (fields | self.fault).items():
            getattr(out, name)[:] = value
        out.obs["obs"] += 0.5 if self.t < 9 else 0.0

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, ""),
        ({"truncated": True}, "terminated and truncated must not both be true"),
        ({"valid": True}, "the row after an ending must be a reset (valid and flags false, rew"),
        ({"raw_reward": 2.0, "reward": 2.0}, "the row after an ending must be a reset"),
        ({"valid": False}, "valid must be true in every row that is not a reset"),
        ({"reward": 0.0}, "reward must be equal to raw_reward"),
    ],
)
def test_rows_of_a_backend_have_the_layout(
    fault: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "make_group_env", lambda *_: Misplaces(**fault))
    env = resolve_env(EnvConfig(id="misplaces", backend="gymnasium"), Sound)
    monkeypatch.setattr(type(env), "singles", lambda *_: ())
    faults = check_env(env, 12).faults
    if said:
        assert len(faults) == 1
        assert faults[0].startswith(said)
        assert faults[0].endswith(": mend recv of backend 'theirs'")
    else:
        assert faults == []
