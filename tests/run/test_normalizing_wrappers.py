"""Wrappers that normalise: evaluations play with training's statistics and leave them alone."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from run_helpers import log, names, weights
from test_living_environments import EACH, KINDS, Levels, Saving, exact_ones, states, train

import quintet
from quintet.checkpoints import checkpoint
from quintet.commands.cli import main
from quintet.envs.own_state import OwnState, decoded, encoded
from quintet.errors import CheckpointError, EnvironmentFault

PLAYS: dict[str, Any] = {"eval__episodes": 4, "eval__interval": 64}
MADE: list[gymnasium.Wrapper] = []


def in_vectors(num_envs: int) -> Any:
    wrappers = gymnasium.wrappers.vector
    made = gymnasium.vector.SyncVectorEnv([Plain] * num_envs)
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(made))


def in_each(more: bool = False) -> gymnasium.Env:
    wrappers = gymnasium.wrappers
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(Plain()))
    return Own(env) if more else env


def others() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(Plain())


class Plain(Levels):
    """Keeps nothing itself."""

    def reset(self, *, seed=None, options=None):
        self.played = 0
        return super().reset(seed=seed)


class Own(gymnasium.ObservationWrapper):
    """A user's: counts what it sees while `training`, which not all have."""

    def __init__(self, env: gymnasium.Env, switch: bool = True) -> None:
        super().__init__(env)
        self.seen, self.began = 0, -1
        if switch:
            self.training = True
        MADE.append(self)

    def observation(self, observation: Any) -> Any:
        if self.began < 0:
            self.began = self.seen
        self.seen += getattr(self, "training", True)
        return observation + np.float32(1 / (2 + self.seen))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Refusing(Own):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("for training alone")


def made(kind: Callable[..., Any], **given: Any) -> Callable[[], gymnasium.Env]:
    MADE.clear()
    return lambda: kind(Plain(), **given)


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("env", [in_each, in_vectors])
def test_resumes_with_gymnasiums_statistics_are_exact(env: Any, kind: str, tmp_path: Path) -> None:
    more = PLAYS | ({} if env is in_vectors and kind != "lockstep" else KINDS[kind])
    whole = train(tmp_path / "whole", env, **PLAYS)
    assert exact_ones(tmp_path / "whole") == list(range(1, 12))
    folder = tmp_path / kind
    train(folder, env, until=250, **more)
    part = train(folder, env, resume="exact", **more)
    assert weights(part) == weights(whole)
    assert states(folder) == states(tmp_path / "whole")


class Seen(gymnasium.wrappers.NormalizeObservation):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        MADE.append(self)


def test_evaluations_play_with_the_first_streams_statistics_and_keep_them(tmp_path: Path) -> None:
    run = train(tmp_path / "run", made(Seen), **PLAYS)
    quiet = train(tmp_path / "quiet", made(Seen))
    assert weights(run) == weights(quiet), "an evaluation left a trace"
    assert states(tmp_path / "run") == states(tmp_path / "quiet")
    MADE.clear()
    run = train(tmp_path / "again", made(Seen), **PLAYS)
    ((held,), *_) = map(decoded, states(tmp_path / "again"))
    frozen = [each for each in MADE if not each.update_running_mean]
    assert len(frozen) == 4 * 10, "four streams in each evaluation"
    last = frozen[-1].obs_rms
    assert last.count == held["obs_rms"]["count"] > 100
    assert (last.mean == held["obs_rms"]["mean"]).all()
    learning = [each for each in MADE if each.update_running_mean and each.obs_rms.count > 100]
    assert len(learning) == 4, "training's own"


@pytest.mark.parametrize("switch", [True, False])
def test_a_users_wrapper_begins_with_its_state(switch: bool, tmp_path: Path) -> None:
    train(tmp_path, made(Own, switch=switch), **PLAYS)
    (held, *_) = [decoded(each)[0]["seen"] for each in states(tmp_path)]
    played = [each for each in MADE if each.began > 0]
    assert len(played) >= 4 * 10
    assert {each.began for each in played[-4:]} == {held}
    assert {each.seen == held for each in played[-4:]} == {switch}


def test_a_state_that_is_refused_costs_no_run(tmp_path: Path) -> None:
    run = train(tmp_path, made(Refusing), **PLAYS)
    assert run.status == "finished"
    said = "an evaluation begins without training's state, which was refused: "
    assert said in log(tmp_path)
    assert "for training alone" in log(tmp_path)


def test_every_copy_of_a_policy_has_the_state(tmp_path: Path) -> None:
    """With the statistics of a new wrapper, scores would be others."""
    run = train(tmp_path / "run", in_each, **PLAYS)

    def score(policy: quintet.Policy) -> list[float]:
        return quintet.evaluate(policy, in_each, 4).returns.tolist()

    wanted = score(run.policy)
    copies = {
        "newest": quintet.load(tmp_path / "run"),
        "policy": quintet.load(tmp_path / "run/policy"),
    }
    copies["pickled"] = pickle.loads(pickle.dumps(run.policy))
    copies["saved"] = quintet.load(run.policy.save(tmp_path / "saved"))
    assert {name: score(policy) for name, policy in copies.items()} == dict.fromkeys(copies, wanted)
    best = quintet.load(tmp_path / "run", "best")
    assert best.own_state
    run.policy.own_state = b""
    assert score(run.policy) != wanted


def test_others_wrappers_begin_anew_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = train(tmp_path, in_each).policy
    assert quintet.evaluate(policy, in_each, 2).statistics_told == ""
    told = quintet.evaluate(policy, others, 2).statistics_told
    assert told.startswith("NormalizeObservation began anew, without training's statistics")
    more = quintet.evaluate(policy, episodes=2, env_options={"kwargs": {"more": True}})
    assert more.statistics_told.startswith("NormalizeObservation and NormalizeReward began anew")
    assert "refused" not in capsys.readouterr().err, "nothing was tried"


def test_an_object_of_the_users_stays_as_it_is(tmp_path: Path) -> None:
    given = in_vectors(4)
    policy = train(tmp_path, given, env__streams_per_group=4).policy
    assert policy.own_state
    before = given.env.obs_rms.count
    scores = quintet.evaluate(policy, given, 4)
    assert given.env.update_running_mean
    assert given.env.obs_rms.count > before
    assert scores.statistics_told
    given.close()


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--env.num-processes", "2"), marks=pytest.mark.slow)]
)
def test_the_command_plays_with_the_statistics(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, in_each)
    wanted = quintet.evaluate(quintet.load(tmp_path), in_each, 4).returns.tolist()
    capsys.readouterr()
    command = ["eval", str(tmp_path), "--episodes", "4", *more]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.get("statistics_anew", []) == []
    assert found["return_mean"] == pytest.approx(np.mean(wanted))


def test_a_damaged_state_is_no_policys(tmp_path: Path) -> None:
    policy = train(tmp_path / "run", in_each).policy
    policy.own_state = b'[{"__array__": ["|O", [1], ""]}]'
    policy.save(tmp_path / "damaged")
    with pytest.raises(CheckpointError, match="must hold a policy"):
        quintet.load(tmp_path / "damaged")


def test_an_older_state_without_gymnasiums_statistics_is_taken() -> None:
    made = gymnasium.wrappers.NormalizeObservation(Own(Plain()))
    OwnState(lambda: [made], "given").load([encoded([{"seen": 7}])])
    assert made.env.seen == 7
    assert made.obs_rms.count < 1


def test_a_switch_that_cant_be_set_is_the_environments_fault() -> None:
    class Fixed(Own):
        training = property(lambda _: True)

    made = Fixed(Plain(), switch=False)
    with pytest.raises(EnvironmentFault, match="training"):
        OwnState(lambda: [made], "given").load([encoded([{"__frozen__": {"seen": 7}}])])


@pytest.mark.parametrize("env", [in_each, in_vectors])
def test_what_such_wrappers_cost_is_told_once(env: Any, tmp_path: Path) -> None:
    own = {**PLAYS, "normalize_observations": False}
    train(tmp_path / "off", env, reward_normalizer="none", **own)
    said = [line for line in log(tmp_path / "off").splitlines() if "warning: Normalize" in line]
    assert len(said) == 2
    assert "NormalizeObservation: evaluations play with its statistics" in said[0]
    assert said[0].endswith("leave it out: use --normalize-observations true")
    assert said[1].endswith("leave it out: --reward-normalizer return_std scales rewards")
    own["normalize_observations"] = True
    train(tmp_path / "on", env, reward_normalizer="return_std", **own)
    assert "leave it out: the run normalises observations itself" in log(tmp_path / "on")
    assert "leave it out: the run scales rewards itself" in log(tmp_path / "on")


def test_what_offers_nothing_is_told(tmp_path: Path) -> None:
    train(tmp_path / "levels", Levels, **PLAYS)
    assert "and for evaluations that begin with what it keeps, give it state_dict()" in log(
        tmp_path / "levels"
    )
    train(tmp_path / "saving", Saving, **PLAYS)
    assert "give it state_dict()" not in log(tmp_path / "saving")
    newest = checkpoint.read(tmp_path / "saving/checkpoints" / names(tmp_path / "saving")[-1])
    assert newest.meta["exact"]
