"""Evaluations while training: what is said of their scores, and what is chosen by them."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import quick_helpers
from gymnasium import spaces

import quintet
from quintet.envs import repeating
from quintet.envs.vector import EnvDescription
from quintet.errors import EnvironmentFault
from quintet.observe.run_summary import read_summary
from quintet.policies import evaluation
from quintet.policies.evaluation import Scores
from quintet.run.evaluations import far_apart

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "num_epochs": 1,
    "learning_rate": 1e-6,
    "model.policy_hidden": (8,),
    "report.sinks": ["jsonl"],
    "runtime.compile": "off",
}


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is made by the check whether episodes repeat: they count their steps."""
    monkeypatch.setattr(repeating, "unrepeatable", lambda *_: "")


class Variety(gymnasium.Env):
    """Pays 1 for another action than the last one: sampled actions get half of it."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.last, self.steps = -1, 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        paid, self.last = float(self.last not in (-1, action)), int(action)
        return np.ones(1, np.float32), 10.0 * paid, self.steps == 16, False, {}


def scores(returns: list[float]) -> Scores:
    about = EnvDescription("toy", "gymnasium")
    return Scores(np.array(returns), np.ones(len(returns), np.int64), about)


@pytest.mark.parametrize(
    ("greedy", "sampled", "far"),
    [
        ([-51e3] * 10, [140e3, 152e3, 164e3], True),
        ([0.0, 0.0, 0.0], [75.0, 80.0, 85.0], True),
        ([300.0, 500.0, 500.0], [75.0, 80.0, 85.0], False),  # greedy ones may be better
        ([90.0] * 5, [100.0] * 5, False),  # a tenth
        ([0.0, 100.0, 50.0], [20.0, 160.0, 90.0], False),  # within the spread
        ([-51e3] * 10, [140e3, 152e3], False),  # too few
        ([-51e3], [140e3, 152e3, 164e3], False),
    ],
)
def test_far_apart(greedy: list[float], sampled: list[float], far: bool) -> None:
    told = far_apart(scores(greedy), sampled)
    assert (told is not None) == far
    if told is not None:
        assert f"{np.mean(sampled):,.4g} in the last {len(sampled)} episodes" in told


def test_a_fault_in_an_evaluation_costs_no_training(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Scores:
        raise EnvironmentFault("the other environment is broken")

    config = {**SMALL, "eval.episodes": 5, "eval.interval": 10**6}
    with monkeypatch.context() as patched:
        patched.setattr("quintet.policies.evaluation.evaluate_in", breaks)
        with pytest.raises(EnvironmentFault, match="the other environment is broken"):
            quintet.train("ppo", Variety, 256, 1, tmp_path / "run", config)
    assert read_summary(tmp_path / "run").env_steps == 256
    again = quintet.train("ppo", Variety, 256, 1, tmp_path / "run", config)
    assert again.status == "finished"


@pytest.mark.parametrize(
    ("total", "interval", "then"),
    [(264, 64, [5.0, 5.0]), (256, 512, [5.0]), (256, "auto", [5.0] * 3), (256, 64, [9.0])],
)
def test_a_kill_before_the_next_checkpoint_loses_no_best_policy(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    total: int,
    interval: int | str,
    then: list[float],
) -> None:
    """Where the run goes on with other bytes, or evaluates at other times, so that nothing as good
    comes again."""
    whole, means = evaluation.evaluate_in, [1.0, 2.0, 3.0, 9.0, *then]

    def scored(*given: Any) -> Scores:
        found = whole(*given)
        return replace(found, returns=np.full(len(found.returns), means.pop(0)))

    monkeypatch.setattr("quintet.policies.evaluation.evaluate_in", scored)
    config = {
        **SMALL, "eval.episodes": 5, "eval.interval": 64, "checkpoint.keep": 100,
        "checkpoint.interval_iterations": 1,
    }  # fmt: skip
    run = quintet.train("ppo", Variety, 256, 1, tmp_path / "run", config).run_dir
    shutil.rmtree(max((run / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    quintet.train("ppo", Variety, total, 1, run, {**config, "eval.interval": interval})
    assert not means or interval == "auto"  # by the clock
    assert json.loads((run / "best" / "meta.json").read_text())["best"] == 9.0


def test_scores_of_other_evaluations_are_not_compared(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**SMALL, "eval.episodes": 1, "eval.interval": 64, "eval.greedy": False}
    quintet.train("ppo", Variety, 128, 1, tmp_path / "run", config)
    capfd.readouterr()
    more = {**config, "eval.episodes": 5}
    quintet.train("ppo", Variety, 256, 1, tmp_path / "run", more)
    assert "is of evaluations with another eval.episodes; the next" in capfd.readouterr().err


def test_an_evaluation_that_was_stopped_has_no_scores(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluation.evaluate_in

    def stopped(*given: Any) -> Scores:
        return replace(whole(*given), complete=False)

    monkeypatch.setattr("quintet.policies.evaluation.evaluate_in", stopped)
    result = quintet.train("ppo", Variety, 256, 1, tmp_path / "run", SMALL | {"eval.episodes": 5})
    assert "eval/return_mean" not in result.metrics
    assert not (result.run_dir / "best").exists()


def test_a_stop_waits_for_the_last_evaluation(tmp_path: Any) -> None:
    config = {**SMALL, "eval.episodes": 5, "eval.interval": 10**6}
    whole = evaluation.evaluate_in

    saved: list[bool] = []

    def asks(policy: Any, env: Any, how: Any, most: Any) -> Scores:
        os.kill(os.getpid(), signal.SIGTERM)
        found = whole(policy, env, how, most)
        saved.append(any((tmp_path / "b" / "checkpoints").iterdir()))
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quintet.policies.evaluation.evaluate_in", asks)
        run = quintet.train("ppo", Variety, 256, 1, tmp_path / "b", config)
    assert run.status == "finished"
    assert run.metrics["eval/episodes"] == 5
    assert saved == [True]  # in case that it may not wait for the end
    assert (tmp_path / "b" / "best").exists()


@pytest.mark.usefixtures("untried")
def test_an_evaluation_that_a_stop_left_out_is_played_after_the_resume(tmp_path: Any) -> None:
    class Stops(Variety):
        made = 0

        def step(self, action: Any) -> Any:
            Stops.made += 1
            if Stops.made == 100:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().step(action)

    config = {**SMALL, "eval.episodes": 1, "eval.interval": 128, "report.interval_s": 0.0}

    def evaluated() -> list[int]:
        rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        reports = map(json.loads, rows)
        return [each["env_steps"] for each in reports if "eval/return_mean" in each]

    assert quintet.train("ppo", Stops, 384, 1, tmp_path / "run", config).status == "stopped"
    assert (evaluated(), read_summary(tmp_path / "run").env_steps) == ([], 128)
    quintet.train("ppo", Stops, 384, 1, tmp_path / "run", config)
    assert evaluated() == [192, 256, 384]


def test_without_evaluations_the_best_score_stays(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**SMALL, "eval.episodes": 1, "population.size": 2, "population.pbt": False}
    quintet.train("ppo", Variety, 512, 1, tmp_path / "run", config)
    quintet.train("ppo", Variety, 640, 1, tmp_path / "run", config | {"eval.episodes": 0})
    assert "chooses the best policy" not in capfd.readouterr().err
    assert quintet.load(tmp_path / "run", "best").publication.version > 0


@pytest.mark.usefixtures("untried")
def test_an_error_of_environments_while_a_run_stops_loses_nothing(tmp_path: Any) -> None:
    """As where their own programs have heard the signal, too."""

    class Ends(Variety):
        made = 0

        def step(self, action: Any) -> Any:
            Ends.made += 1
            if Ends.made == 200:
                os.kill(os.getpid(), signal.SIGTERM)
                raise ValueError("the simulator is gone")
            return super().step(action)

    run = quintet.train("ppo", Ends, 256, 1, tmp_path / "run", SMALL | {"eval.episodes": 0})
    assert run.status == "stopped"
    assert read_summary(tmp_path / "run").env_steps == 192
    assert "while the run stopped: " in (tmp_path / "run" / "log.txt").read_text()
    again = quintet.train("ppo", Ends, 256, 1, tmp_path / "run", SMALL | {"eval.episodes": 0})
    assert again.status == "finished"


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("kind", ["serial", "lockstep"])
def test_an_error_of_an_environment_costs_no_training(tmp_path: Any, kind: str) -> None:
    mark = tmp_path / "mended"

    class Breaks(Variety):
        made = 0

        def step(self, action: Any) -> Any:
            Breaks.made += 1
            if Breaks.made >= (200 if kind == "serial" else 50) and not mark.exists():
                raise ValueError("the simulator is gone")
            return super().step(action)

    config = {**SMALL, "eval.episodes": 0, "runtime.kind": kind}
    if kind == "lockstep":
        config["runtime.num_workers"] = 2
    with pytest.raises(EnvironmentFault, match="the simulator is gone") as raised:
        quintet.train("ppo", Breaks, 256, 1, tmp_path / "run", config)
    assert "The run was saved" in "\n".join(raised.value.__notes__)
    assert read_summary(tmp_path / "run").env_steps == (192 if kind == "serial" else 64)
    mark.touch()
    again = quintet.train("ppo", Breaks, 256, 1, tmp_path / "run", config)
    assert again.status == "finished"


def test_a_stop_between_the_evaluations_of_several_policies_leaves_out_none(tmp_path: Any) -> None:
    """Signals come in the evaluation of the second policy."""
    whole, played = evaluation.evaluate_in, []

    def asks(policy: Any, env: Any, how: Any, most: Any) -> Scores:
        played.append(how.agent)
        if len(played) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(policy, env, how, most)

    config = {
        **SMALL, "eval.episodes": 1, "eval.interval": 128, "population.size": 2,
        "population.pbt": False,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("quintet.policies.evaluation.evaluate_in", asks)
        run = quintet.train("ppo", Variety, 512, 1, tmp_path / "run", config)
        assert (run.status, played) == ("stopped", [0, 1])
        stopped = read_summary(tmp_path / "run").env_steps
        quintet.train("ppo", Variety, stopped + 64, 1, tmp_path / "run", config)
    assert played[:4] == [0, 1, 0, 1]


def test_a_greedy_policy_that_is_far_worse_is_told_and_false_decides_by_samples(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**SMALL, "eval.episodes": 5, "eval.interval": 64}
    greedy = quintet.train("ppo", Variety, 256, 1, tmp_path / "a", config)
    said = capfd.readouterr().out
    assert said.count("greedy actions score 0 in evaluations, sampled ones ") == 1
    assert "--eval.greedy false" in said
    assert greedy.metrics["eval/return_mean"] == 0.0
    config |= {"eval.greedy": False}
    sampled = quintet.train("ppo", Variety, 256, 1, tmp_path / "b", config)
    assert "greedy actions score" not in capfd.readouterr().out
    assert sampled.metrics["eval/return_mean"] > 40.0


class Trouble(gymnasium.Env):
    """In evaluations, where `flag` is given, one of them does `what`, a word per step, once."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, what: str = "", flag: str = "") -> None:
        self.what, self.flag, self.steps, self.active = what.split(), Path(flag), 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.what and not self.active and not self.flag.exists():
            self.flag.touch()
            self.active = True
        elif self.active and self.what:
            what = self.what.pop(0)
            if what == "raise":
                raise RuntimeError("no licence")
            os.kill(os.getpid(), getattr(signal, what))
            time.sleep(0.2)
        return np.zeros(1, np.float32), 1.0, self.steps == 8, False, {}


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("SIGINT SIGINT", 130), ("raise", 1),
        pytest.param("SIGINT SIGKILL", -9, marks=pytest.mark.slow),
        pytest.param("SIGTERM SIGINT", 130, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_final_evaluation_that_was_left_out_is_made_by_the_same_command(
    tmp_path: Path, what: str, status: int
) -> None:
    kwargs = json.dumps({"what": what, "flag": str(tmp_path / "flag")})
    words = ["ppo", "--env", "test_evaluations:Trouble", "--total-steps", "128", "--run-dir"]
    words += [str(tmp_path / "run"), "--eval.episodes", "2", "--eval.interval", "1000000"]
    words += ["--eval.env.kwargs", kwargs]
    for name, value in SMALL.items():
        text = "[8]" if isinstance(value, tuple) else "jsonl" if isinstance(value, list) else value
        words += [f"--{name.replace('_', '-')}", str(text)]
    for again in (False, True, True):
        where = {"PYTHONPATH": str(Path(__file__).parent)}
        with quick_helpers.begin(["-m", "quintet", "train", *words], where) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == (0 if again else status), said
    reports = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [x["env_steps"] for x in reports if "eval/return_mean" in x] == [128.0]
    assert reports[-1]["eval/return_mean"] == 8.0
    assert (tmp_path / "run" / "best").is_dir()
    assert "this run is finished" in said, "and only once"
