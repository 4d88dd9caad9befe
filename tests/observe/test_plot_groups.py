"""Names and places of groups of runs in pictures and pages."""

import json
from pathlib import Path
from typing import Any

import pytest
from forged_runs_helpers import forged

from quintet.commands import cli
from quintet.observe import figures, plots
from quintet.observe.plot_groups import group_labels, plain
from quintet.observe.run_summary import group_key

BASE = {
    "algo": "ppo",
    "env.id": "X-v1",
    "learning_rate": 1e-3,
    "entropy_coef": 0.01,
    "model.layer_norm": False,
    "eval.greedy": True,
    "checkpoint.interval_s": None,
}
CHOSEN = {"learning_rate": "command line", "entropy_coef": "command line"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn."""
    figure_class, formatter = figures.figure_classes()
    kept: list[Any] = []

    def keep(**options: Any) -> Any:
        kept.append(figure_class(**options))
        return kept[-1]

    monkeypatch.setattr(plots, "figure_classes", lambda: (keep, formatter))
    return kept


def test_all_options_that_differ_are_named() -> None:
    configs = [
        BASE,
        BASE | {"learning_rate": 1e-4, "entropy_coef": 0.1},
        BASE | {"learning_rate": 3e-4, "entropy_coef": 0.0},
    ]
    assert group_labels(configs) == [
        "ppo, entropy_coef 0.01, learning_rate 0.001",
        "ppo, entropy_coef 0.1, learning_rate 0.0001",
        "ppo, entropy_coef 0, learning_rate 0.0003",
    ]


def test_options_that_nobody_chose_are_named_only_where_they_are_needed() -> None:
    other = BASE | {"learning_rate": 1e-4, "model.layer_norm": True}
    sources = [CHOSEN | {"model.layer_norm": "default"}] * 2
    assert group_labels([BASE, other], sources) == [
        "ppo, learning_rate 0.001",
        "ppo, learning_rate 0.0001",
    ]
    last = BASE | {"model.layer_norm": True}
    assert group_labels([BASE, last], sources) == ["ppo, layer_norm False", "ppo, layer_norm True"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((1e-3, 1e-3 + 1e-12), ("0.001", "0.001000000001")),
        ((0.1, 0.25), ("0.1", "0.25")),
    ],
)
def test_numbers_are_as_short_as_tells_them_apart(values: Any, names: Any) -> None:
    configs = [BASE | {"learning_rate": value} for value in values]
    assert group_labels(configs) == [f"ppo, learning_rate {name}" for name in names]


def test_options_of_checkpoints_and_reports_part_no_runs() -> None:
    more = {"checkpoint.interval_s": 5, "report.interval_s": 1, "eval.episodes": 0}
    assert group_key(BASE) == group_key(BASE | more)
    other = BASE | more | {"learning_rate": 1e-4}
    assert group_labels([BASE, other]) == ["ppo, learning_rate 0.001", "ppo, learning_rate 0.0001"]
    assert group_key(BASE) != group_key(BASE | {"eval.greedy": False})


def test_a_line_of_a_name_ends_between_options() -> None:
    name = "ppo, entropy_coef 0.01, learning_rate 0.001"
    assert plain(name, 30) == "ppo, entropy_coef 0.01,\nlearning_rate 0.001"
    assert plain("one$two", 30) == "one\\$two"


def greedy_and_sampled(place: Path) -> Path:
    """Two seeds of each way to evaluate; training is the same."""
    for way, score in (("greedy", 100.0), ("sampled", 40.0)):
        for seed in (1, 2):
            options = {"seed": seed, "eval": {"greedy": way == "greedy"}}
            score += seed
            forged(place / way / f"s{seed}", options, **{"eval/return_mean": score})
    return place


def test_greedy_and_sampled_evaluations_stand_apart(
    tmp_path: Path, drawn: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = str(greedy_and_sampled(tmp_path / "runs"))
    out = tmp_path / "x.png"
    assert cli.main(["plot", runs, "--kind", "bars", "--out", str(out)]) == 0
    titles = [axes.get_title(loc="left") for axes in drawn[-1].axes]
    assert titles == ["CartPole-v1, greedy actions", "CartPole-v1, sampled actions"]
    assert [len(axes.get_yticklabels()) for axes in drawn[-1].axes] == [1, 1]
    assert cli.main(["plot", f"{runs}/sampled", "--kind", "bars", "--out", str(out)]) == 0
    (axes,) = drawn[-1].axes
    assert axes.get_xlabel() == "final mean evaluation return [reward units], sampled actions"
    assert cli.main(["plot", runs, "--out", str(out)]) == 0
    assert [each.get_text().partition(" (")[0] for each in drawn[-1].legends[0].get_texts()] == [
        "ppo, greedy evaluation",
        "ppo, sampled evaluation",
        "evaluation, greedy actions",
        "evaluation, sampled actions",
    ]
    (axes,) = drawn[-1].axes
    marks = [x for x in axes.lines if x.get_linestyle() == "None" and len(x.get_xdata())]
    filled = [x.get_markerfacecolor() == x.get_markeredgecolor() for x in marks]
    assert filled == [False, False, True, True], "as the legend says"
    capsys.readouterr()
    assert cli.main(["runs", runs]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    ways = [line.partition("(eval, ")[2].partition(")")[0] for line in lines]
    assert ways == ["greedy", "greedy", "sampled", "sampled"]
    assert cli.main(["runs", runs, "--json"]) == 0
    assert [each["score_actions"] for each in json.loads(capsys.readouterr().out)] == ways


def test_a_page_tells_runs_of_the_same_name_apart(tmp_path: Path) -> None:
    runs, out = greedy_and_sampled(tmp_path / "runs"), tmp_path / "x.html"
    assert cli.main(["report", str(runs), "--out", str(out)]) == 0
    page = out.read_text()
    for name, way in (("greedy/s1", "greedy"), ("sampled/s2", "sampled")):
        assert f">{name}</a>" in page
        assert f"(eval/return_mean, {way})" in page


def test_a_run_without_evaluations_beside_one_with_them_leaves_no_gap(
    tmp_path: Path, drawn: list[Any]
) -> None:
    forged(tmp_path / "runs" / "a", {"seed": 1}, **{"eval/return_mean": 150.0})
    forged(tmp_path / "runs" / "b", {"seed": 2})
    forged(tmp_path / "runs" / "c", {"seed": 3, "learning_rate": 1.0})
    out = str(tmp_path / "x.png")
    assert cli.main(["plot", str(tmp_path / "runs"), "--out", out]) == 0
    figure = drawn[-1]
    (axes,) = figure.axes
    assert axes.get_position().height * figure.get_figheight() > 3.0


def test_no_text_of_a_picture_is_cut(tmp_path: Path, drawn: list[Any]) -> None:
    for k in range(3):
        options = {
            f"{name}_with_a_long_name": (k + 1) / 7 for name in ("one", "two", "three", "four")
        }
        run = tmp_path / "runs" / str(k)
        forged(run, {"eval": {"greedy": k > 0}, **options}, **{"eval/return_mean": 150.0 + k})
    out = str(tmp_path / "x.png")
    for words in ([], ["--kind", "bars"], ["--metric", "episode/return_mean"]):
        assert cli.main(["plot", str(tmp_path / "runs"), "--out", out, *words]) == 0
        figure = drawn[-1]
        texts = [x for axes in figure.axes for x in axes.get_yticklabels()]
        texts += [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
        texts += [each for legend in figure.legends for each in legend.get_texts()]
        for each in filter(lambda x: x.get_text(), texts):
            box = each.get_window_extent()
            assert box.x0 >= 0, each
            assert box.x1 <= figure.bbox.x1, each
