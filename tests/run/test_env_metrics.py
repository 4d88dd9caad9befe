"""The environment's own numbers on their way from info to reports, checkpoints and choices."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import run_helpers
import turns_helpers
from gymnasium import spaces

import quintet
from quintet.commands.cli import _with_minus
from quintet.envs.config import EnvConfig
from quintet.envs.resolved import resolve_env
from quintet.envs.settled import KeysInInfo, keys_in_info
from quintet.errors import ConfigError
from quintet.observe.metrics import EpisodeStats, describe, highest, newest
from quintet.options.population import number_fault
from quintet.population.scores import Record, compared
from quintet.run import repeat_check, sampling
from quintet.runtime.batch import Episode
from quintet.search import leg
from quintet.search.race_asked import Asked, of_training


class Paid(gymnasium.Env):
    """Pays for action 1; info has what is paid at each step, and at the end what was paid."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.total, self.length = 0, 0.0, int(self.np_random.integers(2, 7))
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        gain = float(action) * float(self.np_random.integers(1, 4))
        self.at, self.total = self.at + 1, self.total + gain
        over = self.at == self.length
        info = {"gain": gain, "steps": self.at, **({"whole": self.total} if over else {})}
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), gain, over, False, info


class Turns(turns_helpers.Scripted):
    """Counts the turns that an agent's decisions lead to."""

    def last(self):
        *parts, _ = super().last()
        return (*parts, {"turns": 1, "end": float(self.agent_selection == "bob")})


ASKED = "gain:sum, whole, steps:max"
EVALUATED = {"eval.episodes": 4, "eval.interval": 64}


def reports_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def require_returns(reports: list[dict[str, float]], prefix: str = "") -> None:
    """In every report the sum of what was paid is the return."""
    ended = [each for each in reports if f"{prefix}episode/return_mean" in each]
    assert ended
    for each in ended:
        assert each[f"{prefix}env/gain"] == pytest.approx(each[f"{prefix}episode/return_mean"])


KINDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "processes": {"env__num_processes": 2},
    "lockstep": {"runtime__kind": "lockstep", "runtime__num_workers": 2},
    "async": {"runtime__kind": "async", "runtime__num_workers": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_reach_the_reports_of_every_kind(kind: str, tmp_path: Path) -> None:
    algo, more = ("appo" if kind == "async" else "ppo"), KINDS[kind]
    options = {name.replace("__", "."): x for name, x in more.items()}
    small = {k: x for k, x in run_helpers.SMALL.items() if kind != "async" or k != "num_epochs"}
    config = {**small, **EVALUATED, **options, "env.metrics": ASKED}
    result = quintet.train(algo, Paid, 192, run_dir=tmp_path, config=config)
    reports = reports_of(tmp_path)
    require_returns(reports)
    for each in reports:
        if "env/gain" in each:
            assert each["env/whole"] == pytest.approx(each["env/gain"])
            assert each["env/steps"] == pytest.approx(each["episode/length_mean"])
    evaluated = [each for each in reports if "eval/env/gain" in each]
    assert evaluated
    for each in evaluated:
        assert each["eval/env/gain"] == pytest.approx(each["eval/return_mean"])
    scores = quintet.evaluate(result.policy, Paid, 6)
    np.testing.assert_allclose(scores.metrics["gain"], scores.returns)
    np.testing.assert_array_equal(scores.metrics["steps"], scores.lengths)


def test_decisions_of_games_in_turn_have_those_of_their_own_ending(tmp_path: Path) -> None:
    options = {"env__backend": "pettingzoo", "env__metrics": "turns:sum, end"}
    run_helpers.run(tmp_path, 256, Turns, **options, env__num_streams=6)
    reports = [each for each in reports_of(tmp_path) if "env/turns" in each]
    assert len(reports) > 2
    for each in reports:
        assert each["env/turns"] == pytest.approx(each["episode/length_mean"])
        assert 0 <= each["env/end"] <= 1


def test_policies_have_their_own_and_are_ranked_by_them(tmp_path: Path) -> None:
    options = {
        "population__size": 2, "population__objective": "-env/steps", "population__min_episodes": 1,
        "env__metrics": ASKED,
    }  # fmt: skip
    run_helpers.run(tmp_path, 512, Paid, **options)
    last = reports_of(tmp_path)[-1]
    for policy in ("policy_0/", "policy_1/"):
        require_returns(reports_of(tmp_path), policy)
        assert last[f"{policy}population/objective"] < 0, "fewer steps are better"


def test_a_resumed_run_goes_on_with_what_was_counted(tmp_path: Path) -> None:
    """The report that a checkpoint cuts in two has the episodes of both sides."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    often = {"checkpoint__interval_iterations": 1, "checkpoint__max_cut_frac": 1.0}
    options = {"env__metrics": ASKED, "report__interval_s": 600.0, **often}
    run_helpers.run(whole, 256, Paid, **options)
    run_helpers.run(parts, 128, Paid, **options)
    run_helpers.run(parts, 256, Paid, **options)
    names = [name for name in reports_of(whole)[-1] if name.startswith(("env/", "episode/"))]
    assert {"env/gain", "env/whole", "env/steps"} <= {*names}
    stats, other = (EpisodeStats(names=("a", "b")) for _ in range(2))
    for numbers in ((1.0, np.nan), (4.0, np.nan)):
        stats.add(1.0, 2, None, True, numbers)
    other.load(json.loads(json.dumps(stats.save())))
    other.add(1.0, 2, None, True, (7.0, 3.0))
    found = other.report()
    assert (found["env/a"], found["env/b"], found["episode/count"]) == (4.0, 3.0, 3)
    assert "env/b" not in stats.report()
    assert "env/a" not in other.report()


def test_auto_is_settled_in_a_process_of_its_own_where_workers_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def keys(_: float, env: Any) -> KeysInInfo:
        asked.append(env.config.id)
        return KeysInInfo(("whole", "steps"), ())

    monkeypatch.setattr(repeat_check, "keys_apart", keys)
    monkeypatch.setattr(sampling, "keys_in_info", keys_in_info)
    more = {"runtime__kind": "lockstep", "runtime__num_workers": 1}
    run_helpers.run(tmp_path / "workers", 64, Paid, **more)
    run_helpers.run(tmp_path / "serial", 64, Paid)
    assert len(asked) == 1
    assert run_helpers.log(tmp_path / "workers").count("env/whole, steps") == 1
    for name, metrics in (("workers", "whole:last, steps"), ("serial", "gain:last, steps:last, w")):
        assert f"env.metrics: {metrics}" in (tmp_path / name / "config.yaml").read_text()


def test_a_process_of_its_own_answers_with_the_keys(keys_apart: Any) -> None:
    env = resolve_env(EnvConfig(id="paid", backend="gymnasium"), Paid)
    assert keys_apart(60.0, env) == KeysInInfo(
        ("gain", "steps", "whole"), ("gain", "steps", "whole")
    )


def test_the_best_is_chosen_by_them(tmp_path: Path) -> None:
    options = {
        "eval__episodes": 4, "eval__interval": 64, "env__metrics": ASKED,
        "checkpoint__best_by": "-env/gain",
    }  # fmt: skip
    run_helpers.run(tmp_path, 320, Paid, **options)
    found = [each["eval/env/gain"] for each in reports_of(tmp_path) if "eval/env/gain" in each]
    meta = run_helpers.checkpoint.read(tmp_path / "best").meta
    assert len(found) > 2
    assert meta["best"] == pytest.approx(-min(found))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpoint__best_by": "env/x"}, r"best_by=env/x must name a number in env.metrics"),
        ({"checkpoint__best_by": "loss/total"}, "must be a metric of evaluations, got loss/total"),
        (
            {"env__metrics": "x", "checkpoint__best_by": "-env/x"},
            "got (-env/x|x, which none of the first)",
        ),
        ({"env__metrics": "gain:most"}, "KEY:REDUCTION"),
    ],
)
def test_what_can_not_be_chosen_by(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        run_helpers.run(tmp_path, 128, Paid, eval__episodes=2, eval__interval=64, **options)


def test_a_key_that_no_episode_has_is_told(tmp_path: Path) -> None:
    run_helpers.run(tmp_path, 256, Paid, env__metrics="gain, never:sum")
    assert run_helpers.log(tmp_path).count("got never, which none of the first") == 1
    options = {"population__size": 2, "population__objective": "env/never"}
    with pytest.raises(
        ConfigError, match=r"got never, which none .* policies are chosen by env/never"
    ):
        run_helpers.run(tmp_path / "chosen", 512, Paid, env__metrics="never", **options)
    result = run_helpers.run(tmp_path / "e", 64, Paid)
    with pytest.raises(ConfigError, match="never, which none of 3 episodes had"):
        quintet.evaluate(result.policy, Paid, 3, env_options={"metrics": "never:sum"})
    found = quintet.evaluate(result.policy, Paid, 3, env_options={"metrics": "g*:sum"})
    np.testing.assert_allclose(found.metrics["gain"], found.returns)


def test_policies_are_compared_over_the_same_span_by_them() -> None:
    records = [Record(1_000, ("a", "b")) for _ in range(2)]
    for record, value in zip(records, (1.0, 5.0), strict=True):
        for end in range(10, 101, 10):
            own = (np.nan, value * end)
            record.add(end, [Episode(0, 0, 1.0, 10, metrics=own)] * 2)
    assert compared(records, "env/b", 20, 1) == [95.0, 475.0]
    assert compared(records, "env/a", 20, 1) == [None, None]
    again = Record(1_000, ("a", "b"))
    again.load(json.loads(json.dumps(records[1].save())))
    assert again.mean("env/b", 20) == 475.0


def test_a_minus_means_that_less_is_better() -> None:
    report = {"env/cost": 3.0, "policy_0/env/x": 1.0, "policy_1/env/x": 2.0}
    assert highest(report, "-env/cost") == -3.0
    assert (highest(report, "env/x"), highest(report, "-env/x")) == (2.0, -1.0)
    assert newest([report, {}], "-env/cost") == -3.0
    assert describe("eval/env/cost") is not None
    env = EnvConfig(id="x", metrics="cost:sum")
    assert number_fault("--metric", "-env/cost", env) == ""
    assert "--metric=-eval/env/y must name a number" in number_fault("--metric", "-eval/env/y", env)
    words = ["--metric", "-env/cost", "-a/b", "--x=1", "-c/d", "--trials", "-3"]
    assert _with_minus(words) == ["--metric=-env/cost", "-a/b", "--x=1", "-c/d", "--trials", "-3"]


def test_a_race_goes_by_them() -> None:
    values = {"env.id": "x", "checkpoint.best_by": "-env/cost"}
    asked = cast(Any, SimpleNamespace(values=values))
    assert Asked.objective.fget(asked) == "-env/cost"  # type: ignore[attr-defined]
    assert of_training("-eval/env/cost") == ("env/cost", -1.0)
    assert of_training("eval/return_mean") == ("episode/return_mean", 1.0)
    metrics = {"cost": np.array([1.0, np.nan, 3.0])}
    scores = cast(
        Any, SimpleNamespace(returns=np.ones(3), lengths=[1], success=None, metrics=metrics)
    )
    assert leg._values(scores, "-env/cost") == [-1.0, -3.0]
    assert leg._values(scores, "eval/return_mean") == [1.0, 1.0, 1.0]
    with pytest.raises(ConfigError, match="got env/y, but 3 episodes reported cost"):
        leg._values(scores, "env/y")
    with pytest.raises(ConfigError, match="--metric of a race must be"):
        replace(Asked(10.0, ()), layers=(quintet_layer("eval/entropy"),)).require()


def quintet_layer(best_by: str) -> Any:
    from quintet.options.layers import Layer

    return Layer("call", {"env.id": "CartPole-v1", "checkpoint.best_by": best_by})
