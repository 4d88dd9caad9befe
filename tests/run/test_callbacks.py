"""The moments of a run, and what may be done at them."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run_helpers
from small_run_helpers import TOY

import quintet
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics
from quintet.run.callbacks import LiveRun

SMALL = small_run_helpers.SMALL | {
    "eval.episodes": 2,
    "eval.interval": 128,
    "checkpoint.interval_iterations": 1000,
}


def train(folder: Path, steps: int = 256, config: dict[str, Any] | None = None, **callbacks: Any):
    return quintet.train(
        "ppo", TOY, steps, run_dir=folder, config={**SMALL, **(config or {})},
        callbacks=quintet.Callbacks(**callbacks),
    )  # fmt: skip


def test_every_moment_in_its_order_with_what_it_is_told(tmp_path):
    seen: list[tuple[Any, ...]] = []

    def on(moment: str):
        return lambda run, *more: seen.append((moment, run.env_steps, *more))

    moments = ("begin", "evaluation", "report", "checkpoint")
    end = lambda run, status: seen.append(  # noqa: E731
        ("end", run.env_steps, status, (run.run_dir / "policy").exists())
    )
    result = train(tmp_path / "run", **{name: on(name) for name in moments}, end=end)
    half = seen[1][1]
    assert 128 <= half < 192
    assert [each[:2] for each in seen] == [
        ("begin", 0), ("evaluation", half), ("report", half),
        ("evaluation", 256), ("report", 256), ("checkpoint", 256), ("end", 256),
    ]  # fmt: skip
    by_moment = {each[0]: each[2:] for each in seen}
    assert by_moment["evaluation"][0].mean == result.metrics["eval/return_mean"]
    assert by_moment["report"][0] == result.metrics
    path = by_moment["checkpoint"][0]
    assert quintet.load(path).publication.version == result.policy.publication.version
    assert by_moment["end"] == ("finished", True)


def test_metrics_of_ones_own_are_in_the_report_and_in_every_sink(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    logged = []

    def evaluation(run, scores):
        run.log("gap", 1.0)
        run.log("gap", np.float32(scores.mean))
        run.log("not_there", math.nan)

    def report(run, found):
        run.log("share/of_report", found["env_steps"] / 256)
        found["env_steps"] = 3.0  # a copy

    on_report = logged.append
    result = quintet.train(
        "ppo", TOY, 256, run_dir=folder, config=SMALL, on_report=on_report,
        callbacks=quintet.Callbacks(evaluation=evaluation, report=report),
    )  # fmt: skip
    assert result.metrics["user/gap"] == result.metrics["eval/return_mean"]
    shares = [each["env_steps"] / 256 for each in logged]
    assert 0.5 <= shares[0] < shares[1] == 1.0
    assert [each["user/share/of_report"] for each in logged] == shares
    assert read_metrics(folder) == logged
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    with open(folder / "progress.csv") as file:
        table = list(csv.DictReader(file))
    for row in (lines, table):
        assert [float(each["user/share/of_report"]) for each in row] == shares
    assert not any("user/not_there" in line for line in lines)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    shown = [each.value for each in events.Scalars("user/share/of_report")]
    assert shown == pytest.approx(shares)


def test_an_early_stop_and_going_on(tmp_path):
    folder = tmp_path / "run"
    stopped = train(folder, evaluation=lambda run, scores: run.env_steps < 192)
    assert stopped.status == "stopped"
    half = stopped.metrics["env_steps"]
    assert half < 192
    moments: list[tuple[str, Any]] = []
    result = train(
        folder,
        begin=lambda run: moments.append(("begin", run.env_steps)),
        end=lambda run, status: moments.append((status, run.env_steps)),
    )
    assert result.status == "finished"
    assert moments == [("begin", half), ("finished", 256)]
    # A run that was finished before has no moments.
    train(folder, begin=lambda run: pytest.fail("begin"), end=lambda *_: pytest.fail("end"))


def test_a_checkpoint_of_ones_choice_is_the_last(tmp_path):
    config = {"checkpoint.interval_iterations": 1}
    stopped = train(tmp_path / "run", config=config, checkpoint=lambda *_: True)
    assert stopped.status == "stopped"
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_each_policy_of_several_is_told_with_its_scores(tmp_path):
    """And a stop by the first leaves out no evaluation."""
    seen: list[tuple[int, float, Any]] = []

    def evaluation(run: LiveRun, scores: Any) -> bool:
        own, told = run.policy(), run.policy(run.evaluated)
        key = next(iter(own.publication.tensors))
        assert own.publication.tensors[key].equal(told.publication.tensors[key])
        seen.append((run.evaluated, scores.mean, own.publication.tensors[key]))
        return True

    more = {"population.size": 2, "population.pbt": False, "eval.interval": 64}
    run = train(tmp_path / "run", 512, more, evaluation=evaluation)
    assert run.status == "stopped"
    assert [each[0] for each in seen] == [0, 1]
    assert not seen[0][2].equal(seen[1][2])
    for index, mean, _ in seen:
        assert run.metrics[f"policy_{index}/eval/return_mean"] == mean


def test_a_policy_is_saved_by_ones_own_rule(tmp_path):
    def report(run, found):
        if run.env_steps < 192:
            run.policy().save(tmp_path / "half")

    config = {"checkpoint.interval_iterations": 1, "checkpoint.keep": 9}
    result = train(tmp_path / "run", config=config, report=report)
    half = quintet.load(tmp_path / "half")
    assert 0 < half.publication.version < result.policy.publication.version
    same = quintet.load(tmp_path / "run", f"{half.publication.version:09d}").publication.tensors
    assert all(x.equal(same[name]) for name, x in half.publication.tensors.items())


@pytest.mark.parametrize("moment", ["begin", "evaluation", "report", "checkpoint", "end"])
def test_an_error_reaches_the_caller_once_and_the_run_goes_on(tmp_path, moment):
    calls = []

    def fails(run, *_):
        calls.append(run.env_steps)
        raise ValueError("mine")

    def later(run, *_):
        assert not calls, "no function is called after one has failed"

    others = dict.fromkeys(("evaluation", "report", "checkpoint", "end"), later)
    with pytest.raises(ValueError, match="mine"):
        train(tmp_path / "run", **{**others, moment: fails})
    assert len(calls) == 1
    assert calls[0] == {"begin": 0, "checkpoint": 256, "end": 256}.get(moment, calls[0]) <= 256
    assert calls[0] < 192 or moment in ("checkpoint", "end")
    assert train(tmp_path / "run").metrics["env_steps"] == 256


def test_callbacks_do_not_change_the_bytes(tmp_path):
    def looks(run, *_):
        run.policy()
        run.log("x", 1.0)

    plain = train(tmp_path / "plain").policy.publication.tensors
    looked = train(
        tmp_path / "looked", begin=looks, evaluation=looks, report=looks, checkpoint=looks
    ).policy.publication.tensors
    assert all(plain[name].equal(looked[name]) for name in plain)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"callbacks": print},
            r"callbacks must be quintet.Callbacks\(.*\), got",
        ),
        (
            {"callbacks": quintet.Callbacks(evaluation=lambda scores: None)},
            "callbacks.evaluation must be a function of the run and the scores, got",
        ),
        (
            {"callbacks": quintet.Callbacks(begin=3)},
            "callbacks.begin must be a function of the run",
        ),
        (
            {"callbacks": quintet.Callbacks(), "seeds": [1, 2]},
            "callbacks is not possible with seeds",
        ),
    ],
)
def test_what_can_not_be_called_is_refused_before_anything_begins(tmp_path, given, says):
    with pytest.raises(ConfigError, match=says):
        quintet.train("ppo", TOY, 64, run_dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", 1),
        ("a b", 1),
        (3, 1),
        ("a//b", 1),
        ("a", "x"),
        ("a", None),
        ("größe", 1),
        ("a" * 151, 1),
    ],
)
def test_what_can_not_be_logged_is_refused(tmp_path, name, value):
    with pytest.raises(ConfigError, match="log must have a n"):
        LiveRun(tmp_path, [], lambda: 0).log(name, value)
