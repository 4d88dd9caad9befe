"""Evaluations while training in an environment of their own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from run_helpers import SMALL, TOY, run, weights

import quintet
from quintet.commands.cli import main
from quintet.envs.games import CoinRace
from quintet.envs.toy import Contextual, FinitePay
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics
from quintet.options.layers import Layer
from quintet.options.resolve import compose

EVALUATED = {"eval__episodes": 2, "eval__interval": 64}
SHORT = {"eval.env.kwargs": {"length": 4}}


class Unlike(Contextual):
    def __init__(self) -> None:
        super().__init__(num_contexts=5)


class BriefRace(CoinRace):
    num_steps = 3


class Alone(Contextual):
    """One agent with the spaces of the race."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = CoinRace().observation_space("")
        self.action_space = CoinRace().action_space("")


def short(length: int = 3) -> gymnasium.Env:
    return Contextual(length=length)


def lengths(folder: Path) -> set[float]:
    return {r["eval/length_mean"] for r in read_metrics(folder) if "eval/length_mean" in r}


@pytest.mark.parametrize(
    ("given", "length", "told"),
    [
        ({"eval.env.kwargs": {"length": 4}}, 4, f"{TOY} {{'length': 4}} (gymnasium)"),
        ({"eval.env": "test_eval_env:short"}, 3, "test_eval_env:short (gymnasium)"),
        ({"eval": {"env": {"id": short}}}, 3, "test_eval_env:short (gymnasium)"),
        ({"eval.env.id": lambda: Contextual(length=2)}, 2, "test_eval_env:<lambda> (gymnasium)"),
        (
            {"eval.env.id": partial(short, length=5)},
            5,
            "test_eval_env:<short> (gymnasium)",
        ),
        (
            {"eval.env.id": short, "eval.env.kwargs": {"length": 6}},
            6,
            "test_eval_env:short {'length': 6} (gymnasium)",
        ),
    ],
    ids=["arguments", "import string", "function", "lambda", "partial", "function, arguments"],
)
def test_only_evaluations_are_played_in_it_and_it_is_named(given, length, told, tmp_path):
    plain = run(tmp_path / "plain", **EVALUATED)
    other = run(tmp_path / "other", **EVALUATED, **given)
    assert lengths(tmp_path / "plain") == {10}
    assert lengths(tmp_path / "other") == {length}
    trained = [
        r["episode/length_mean"]
        for r in read_metrics(tmp_path / "other")
        if "episode/length_mean" in r
    ]
    assert set(trained) == {10}
    assert weights(other) == weights(plain)  # evaluations change no byte of the training
    assert json.loads((tmp_path / "other/run.json").read_text())["evaluated_in"] == told
    assert f"evaluations, which choose the best policy, are played in {told}\n" in (
        tmp_path / "other/log.txt"
    ).read_text().replace("  ", "")
    for folder in ("plain/run.json", "plain/log.txt"):
        assert "evaluated_in" not in (tmp_path / folder).read_text()
    assert quintet.load(tmp_path / "other").env.id == TOY


def test_the_command_line_and_a_resumed_run(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    folder = tmp_path / "run"
    command = [
        *("train", "ppo", "--env", TOY, "--run-dir", str(folder), "--eval.episodes", "2"),
        *("--unroll-steps", "16", "--minibatch-steps", "32", "--model.policy-hidden", "8"),
        *("--env.num-streams", "4", "--report.interval-s", "0", "--report.progress", "true"),
    ]
    alike = ["--total-steps", "64", "--eval.env", "test_eval_env:short"]
    assert main([*command, *alike]) == 0
    said = capsys.readouterr().out
    assert "evaluation in test_eval_env:short (gymnasium)" in said
    assert main(["config", "ppo", "--run-dir", str(folder)]) == 0
    assert "eval.env.id: test_eval_env:short " in capsys.readouterr().out
    # The score of the former environment is no longer the best.
    best = (folder / "best/meta.json").read_bytes()
    changed = ["--eval.env.kwargs", '{"length": 1}', "--total-steps", "128"]
    assert main([*command, *changed]) == 0
    assert "best score so far" in capsys.readouterr().err
    assert lengths(folder) == {3, 1}
    assert (folder / "best/meta.json").read_bytes() != best
    assert main([*command, "--total-steps", "192"]) == 0
    assert "best score so far" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"eval.env.id": Unlike}, r"the policy's observation space is .*, but .*Unlike has .*"),
        ({"eval.env.id": FinitePay}, r"the policy's .* space is .*, but .*FinitePay has .*"),
        ({"eval.env.id": "NoSuch-v0"}, r"eval\.env: env must be an id .* got 'NoSuch-v0'"),
        ({"eval.env.id": 3}, r"eval\.env|env must be an id, a callable"),
        ({"eval.env.id": short, "eval.episodes": 0}, r"eval\.env\.id=.*no effect without eval\.ep"),
        ({"eval.env.num_threads": 2}, r"eval\.env\.num_threads=2 has no effect without"),
        ({"eval.env.success": "won"}, r"eval\.env\.success: .*"),
        ({"eval.env.num_streams": 2}, r"unknown option 'eval\.env\.num_streams'"),
        (
            {"eval.env.id": gymnasium.make_vec("CartPole-v1", 2)},
            r"eval\.env\.id must be .*, got a vector environment: give",
        ),
        ({"eval.env.id": "x:<lambda>"}, r"eval\.env\.id=x:<lambda> must be a function given"),
    ],
)
def test_what_can_not_be_is_refused_before_the_run_begins(given, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        run(tmp_path / "run", **{"eval__episodes": 2} | given)
    assert not (tmp_path / "run").exists()


def test_in_workers_and_for_several_policies(tmp_path):
    several: dict[str, Any] = {"population.size": 2, "population.pbt": False}
    for name, more in {"lockstep": {"runtime.kind": "lockstep"}, "several": several}.items():
        run(tmp_path / name, **EVALUATED, **SHORT, **more)
        prefix = "policy_0/" if name == "several" else ""
        found = [r.get(f"{prefix}eval/length_mean") for r in read_metrics(tmp_path / name)]
        assert {x for x in found if x is not None} == {4}


@pytest.mark.slow
def test_in_asynchronous_runs_and_groups(tmp_path):
    run(tmp_path / "async", **EVALUATED, **SHORT, **{"runtime.kind": "async"})
    assert lengths(tmp_path / "async") == {4}
    config = {**SMALL, "eval.episodes": 2, "eval.env.id": lambda: Contextual(length=2)}
    quintet.train("ppo", TOY, 256, run_dir=tmp_path / "group", config=config, seeds=[1, 2], jobs=2)
    assert lengths(tmp_path / "group/s1") == {2}


def test_a_vector_environment_that_trains_alone_can_be_evaluated_in_another(tmp_path):
    env = gymnasium.vector.AsyncVectorEnv([Contextual, Contextual])
    try:
        result = run(tmp_path / "run", env=env, eval__episodes=2, **{
            "eval.env.id": short, "env.num_streams": 2, "minibatch_steps": 16,
        })  # fmt: skip
    finally:
        env.close()
    assert result.metrics["eval/length_mean"] == 3


def test_games(tmp_path):
    """Each policy of a team needs its agent in evaluations too."""
    team = {"population.assignment": "agent", "population.size": 2, "population.pbt": False}
    own = {"eval__episodes": 2, "eval.env.id": BriefRace, "eval.env.backend": "pettingzoo"}
    run(tmp_path / "run", env="quintet.envs.games:parallel_env", steps=256, **team, **own)
    reports = read_metrics(tmp_path / "run")
    found = [r["policy_1/eval/length_mean"] for r in reports if "policy_1/eval/length_mean" in r]
    assert set(found) == {3}
    own["eval.env.backend"], own["eval.env.id"] = "auto", Alone
    with pytest.raises(
        ConfigError, match=r"an agent for each of the 2 policies, got 1 of .*:Alone:"
    ):
        run(tmp_path / "other", env="quintet.envs.games:parallel_env", **team, **own)


def test_other_arguments_of_another_environment_and_rules_of_success():
    env = {"env.id": TOY, "env.kwargs": {"length": 7}, "env.success": "info:won"}
    of = {**env, "env.frame_stack": 2, "eval.env.id": "test_eval_env:short"}
    found = compose("ppo", [Layer("given", of)]).evaluated.config
    assert (found.id, found.kwargs, found.success, found.frame_stack) == (
        *("test_eval_env:short", {}, None, 2),
    )
    same = compose("ppo", [Layer("given", {**of, "eval.env.id": TOY})])
    assert same.evaluated.config.kwargs == {"length": 7}
    assert not same.plays_elsewhere
    own = {**of, "eval.env.success": "reward>0.5", "eval.env.kwargs": {}}
    assert compose("ppo", [Layer("given", own)]).evaluated.config.success == "reward>0.5"
