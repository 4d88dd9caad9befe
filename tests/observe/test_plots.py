"""Plots: one line per experiment, bands over seeds, and pictures that show something."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from quintet.errors import QuintetError
from quintet.observe import plots
from quintet.observe.intervals import bootstrap_band, iqm, resampled
from quintet.observe.plot_groups import env_name, group_labels
from quintet.observe.plots import plot_runs
from quintet.observe.run_summary import group_key


def make_run(
    folder: Path,
    seed: int,
    reports: int = 40,
    level: float = 100.0,
    success: bool = False,
    **options: object,
) -> Path:
    """A run whose return rises to `level`; options overwrite the configuration's.

    success: its episodes are won ever more often, from 0 to 1.
    """
    folder.mkdir(parents=True)
    config = {"algo": "ppo", "seed": seed, "run_dir": str(folder), "env": {"id": "CartPole-v1"}}
    text = yaml.safe_dump({**config, "learning_rate": 1e-3, **options})
    (folder / "config.yaml").write_text(text)
    noise = np.random.default_rng(seed)
    with (folder / "metrics.jsonl").open("w") as file:
        for number in range(1, reports + 1):
            steps = number * 1000
            value = level * number / reports + noise.normal() * 10
            report = {"env_steps": steps, "wall_s": number / 2, "episode/return_mean": value}
            if number % 5 == 0:
                report["eval/return_mean"] = value + 5
            if success:
                report["episode/success_rate"] = number / reports
            if success and number % 5 == 0:
                report["eval/success_rate"] = 0.9 * number / reports
            file.write(json.dumps(report) + "\n")
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The figure that `plot_runs` draws."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    kept: dict[str, Any] = {}

    def keep(**options: Any) -> Figure:
        kept["figure"] = Figure(**options)
        return kept["figure"]

    monkeypatch.setattr(plots, "figure_classes", lambda: (keep, EngFormatter))
    return kept


def legend_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_picture_is_written_and_not_blank(tmp_path: Path, ending: str) -> None:
    run = make_run(tmp_path / "run", 1)
    out = plot_runs([run], tmp_path / "new" / f"curve.{ending}")
    assert out.stat().st_size > 3000
    if ending == "png":
        from matplotlib.image import imread

        pixels = imread(out)[..., :3]
        assert pixels.shape[0] > 400
        assert pixels.shape[1] > 800
        blue = (pixels[..., 2] > pixels[..., 0] + 0.3).mean()
        assert 0.001 < blue < 0.2, "there is a coloured line"
    else:
        assert out.read_bytes().startswith({"pdf": b"%PDF", "svg": b"<?xml"}[ending])


def test_seeds_are_one_line_with_a_band(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / f"s{seed}", seed) for seed in (1, 2, 3)]
    plot_runs(runs, tmp_path / "x.png")
    axes = drawn["figure"].axes[0]
    assert legend_of(drawn["figure"]) == ["ppo (3 seeds, 95% band)", "evaluation"]
    assert len(axes.collections) == 1, "one band"
    band = axes.collections[0].get_paths()[0].vertices
    assert np.ptp(band[:, 1]) > 50
    thin = [line for line in axes.lines if line.get_linewidth() < 1]
    thick = [line for line in axes.lines if line.get_linewidth() == 2]
    assert (len(thin), len(thick)) == (3, 1)
    assert axes.get_title(loc="left") == "CartPole-v1"
    assert axes.get_xlabel() == "env steps"
    assert axes.get_ylabel() == "mean episode return [reward units]"
    middle = thick[0].get_ydata()[len(thick[0].get_ydata()) // 2]
    # Three draws around it with a deviation of 10.
    assert middle == pytest.approx(50, abs=6)


def test_one_run_has_no_band_and_shows_evaluations(tmp_path: Path, drawn: dict[str, Any]) -> None:
    plot_runs([make_run(tmp_path / "run", 1)], tmp_path / "x.png", x="wall_s")
    axes = drawn["figure"].axes[0]
    assert len(axes.collections) == 0
    assert axes.get_xlabel() == "wall time [s]"
    line, markers, _legend = axes.lines
    assert list(line.get_xdata()) == [number / 2 for number in range(1, 41)]
    assert list(markers.get_xdata()) == [number / 2 for number in range(5, 41, 5)]
    assert markers.get_marker() == "o"


def test_success_is_drawn_where_all_runs_have_it(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / str(seed), seed, success=True) for seed in (1, 2)]
    other = make_run(tmp_path / "other", 3)
    plot_runs(runs[:1], tmp_path / "x.png")
    axes = drawn["figure"].axes[0]
    assert (axes.get_ylabel(), axes.get_ylim()) == ("success rate", (-0.02, 1.02))
    line, markers, _legend = axes.lines
    assert line.get_ydata() == pytest.approx([number / 40 for number in range(1, 41)])
    assert markers.get_ydata() == pytest.approx([0.9 * n / 40 for n in range(5, 41, 5)])
    plot_runs(runs, tmp_path / "x.png", kind="bars")
    axes = drawn["figure"].axes[0]
    assert axes.get_xlabel() == "final success rate in evaluations"
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.9])
    assert axes.get_xlim() == (-0.02, 1.02)
    plot_runs([*runs, other], tmp_path / "x.png")
    assert drawn["figure"].axes[0].get_ylabel() == "mean episode return [reward units]"
    plot_runs(runs, tmp_path / "x.png", metric="episode/return_mean")
    assert drawn["figure"].axes[0].get_ylabel() == "mean episode return [reward units]"


def test_other_metrics_show_no_evaluations(tmp_path: Path, drawn: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run", 1)
    plot_runs([run], tmp_path / "x.png", metric="eval/return_mean")
    assert legend_of(drawn["figure"]) == ["ppo"]
    assert drawn["figure"].axes[0].get_ylabel() == "mean evaluation return [reward units]"


def test_experiments_differ_without_colour(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / f"r{k}", 1, learning_rate=k * 1e-4) for k in range(1, 10)]
    runs.append(make_run(tmp_path / "again", 2, learning_rate=1e-4))
    plot_runs(runs, tmp_path / "x.png")
    axes = drawn["figure"].axes[0]
    labelled = [
        line for line in axes.lines if line.get_label()[0] != "_" and line.get_linestyle() != "None"
    ]
    looks = {
        (line.get_linestyle(), tuple(line._dash_pattern[1] or ()), line.get_marker())
        for line in labelled
    }
    assert len(looks) == len(labelled) == 9
    texts = legend_of(drawn["figure"])
    assert texts[0] == "ppo, learning_rate 0.0001 (2 seeds, 95% band)"
    assert texts[1] == "ppo, learning_rate 0.0002"


def test_long_runs_are_thinned_without_bias(tmp_path: Path, drawn: dict[str, Any]) -> None:
    plot_runs([make_run(tmp_path / "run", 1, reports=5000)], tmp_path / "x.png")
    line = drawn["figure"].axes[0].lines[0]
    assert len(line.get_xdata()) == 200
    assert line.get_ydata() == pytest.approx(np.linspace(0, 100, 200), abs=12)
    # 5,000 draws with a deviation of 10, so within 0.14, but for one in three.
    assert np.mean(line.get_ydata()) == pytest.approx(50, abs=0.4)


def test_mean_ends_where_the_shortest_seed_ends(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / "a", 1, reports=40), make_run(tmp_path / "b", 2, reports=10)]
    plot_runs(runs, tmp_path / "x.png")
    thick = next(line for line in drawn["figure"].axes[0].lines if line.get_linewidth() == 2)
    assert thick.get_xdata()[-1] == 10_000


def test_ends_of_the_common_part_are_interpolated(tmp_path: Path, drawn: dict[str, Any]) -> None:
    """Reports of two seeds on one line, at other steps."""
    for name, steps in (("a", range(0, 110, 10)), ("b", range(25, 105, 15))):
        make_run(tmp_path / name, int(name == "b"))
        reports = [{"env_steps": x, "wall_s": x, "episode/return_mean": 2.0 * x} for x in steps]
        file = tmp_path / name / "metrics.jsonl"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in reports))
    plot_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "x.png")
    thick = next(line for line in drawn["figure"].axes[0].lines if line.get_linewidth() == 2)
    assert thick.get_xdata()[[0, -1]].tolist() == [25, 100]
    assert thick.get_ydata() == pytest.approx(2.0 * thick.get_xdata(), abs=1.0)
    assert thick.get_ydata()[[0, -1]] == pytest.approx([50.0, 200.0], abs=0.5)


def test_a_seed_that_is_there_twice_is_told(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    plot_runs(runs, tmp_path / "x.png")
    assert legend_of(drawn["figure"])[0] == "ppo (3 runs of 2 seeds, 95% band)"
    plot_runs(runs, tmp_path / "x.png", kind="bars")
    (label,) = drawn["figure"].axes[0].get_yticklabels()
    assert label.get_text().endswith(", 3 runs of 2 seeds")


def test_numbers_and_names_of_a_stranger_are_harmless(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2))]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1e308, "wall_s": 1e308, "episode/return_mean": 1.7e308}\n')
        file.write('{"env_steps": 50000, "\\u001b[31mred": 1.0}\n')
    for kind in ("curve", "bars"):
        plot_runs(runs, tmp_path / "x.png", kind=kind)  # type: ignore[arg-type]
    with pytest.raises(QuintetError) as raised:
        plot_runs(runs[:1], tmp_path / "x.png", metric="red")
    assert str(raised.value).isprintable()


def test_band_is_the_bootstrap_interval_of_the_mean() -> None:
    curves = np.random.default_rng(1).normal(size=(30, 2)) * [1.0, 10.0]
    low, high = bootstrap_band(curves)
    again = bootstrap_band(curves)
    assert (low == again[0]).all()
    assert (high == again[1]).all()
    assert (low < curves.mean(axis=0)).all()
    assert (high > curves.mean(axis=0)).all()
    expected = 2 * 1.96 * curves.std(axis=0) / np.sqrt(30)
    assert high - low == pytest.approx(expected, rel=0.1)
    same = np.full((4, 3), 5.0)
    assert np.array_equal(bootstrap_band(same), np.full((2, 3), 5.0))


def test_groups_by_configuration_without_seed_and_folder() -> None:
    one = {"algo": "ppo", "seed": 1, "run_dir": "a", "env.id": "X-v1", "env.frame_stack": 1}
    two = {"env.frame_stack": 1, "seed": 2, "algo": "ppo", "env.id": "X-v1", "report.sinks": []}
    assert group_key(one) == group_key(two)
    other = {**two, "env.frame_stack": 4}
    assert group_key(other) != group_key(two)
    assert group_labels([one, other]) == ["ppo, frame_stack 1", "ppo, frame_stack 4"]
    assert group_labels([one]) == ["ppo"]
    assert env_name(one) == env_name(two) == "X-v1"
    assert env_name({"env": "Y-v0"}) == "Y-v0"
    assert env_name({}) == ""


HAS = r"did you mean episode/return_mean\? It has: "
ERRORS: dict[str, tuple[str, dict[str, Any]]] = {
    r"must end in \.png or \.svg or \.pdf, got .*x\.bmp": ("run", {"out": "x.bmp"}),
    r"empty has no reports yet": ("empty", {}),
    r"nowhere has no metrics\.jsonl": ("nowhere", {}),
    r"no values of loss/total.*It has: episode/return_mean": ("run", {"metric": "loss/total"}),
    f"rollout/ep_rew_mean.*{HAS}": ("run", {"metric": "rollout/ep_rew_mean"}),
    f"episode/return.*{HAS}": ("run", {"metric": "episode/return"}),
}


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", 1)
    make_run(tmp_path / "empty", 1, reports=0)
    with pytest.raises(QuintetError, match="at least one run"):
        plot_runs([], tmp_path / "x.png")
    for said, (name, given) in ERRORS.items():
        with pytest.raises(QuintetError, match=said):
            plot_runs([tmp_path / name], **{"out": tmp_path / "x.png", **given})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(QuintetError, match=r'pip install "quintet-rl\[plot\]"'):
        plot_runs([run], tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


def test_interquartile_mean_is_that_of_its_paper() -> None:
    assert iqm(np.array([1.0, 2.0, 3.0])) == 2.0, "of three it is the mean"
    assert iqm(np.array([100.0, 2.0, 4.0, -50.0])) == 3.0
    scores = np.random.default_rng(0).normal(size=(5, 10))
    expected = np.sort(scores, axis=1)[:, 2:8].mean(axis=1)
    assert iqm(scores) == pytest.approx(expected)


def test_interval_is_that_of_the_interquartile_mean() -> None:
    scores = np.random.default_rng(1).normal(5.0, 1.0, size=400)
    low, high = resampled(iqm, scores) or (0, 0)
    assert resampled(iqm, scores) == (low, high)
    assert low < iqm(scores) < high
    # for a bell curve the trimmed mean's standard error is 1.09 times the mean's
    assert high - low == pytest.approx(2 * 1.96 * 1.09 / 20, rel=0.12)
    outlier = np.append(np.full(19, 5.0), 1e6)
    assert (resampled(iqm, outlier) or (0, 0))[0] == 5.0
    assert resampled(iqm, np.array([7.0])) is None


def test_bars_are_interquartile_means_of_last_evaluations(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    runs = [
        make_run(tmp_path / f"{rate}-{seed}", seed, level=level, learning_rate=rate)
        for rate, level in ((1e-3, 100.0), (1e-2, -40.0))
        for seed in (1, 2, 3, 4)
    ]
    plot_runs(runs, tmp_path / "x.png", kind="bars")
    axes = drawn["figure"].axes[0]
    finals = [
        [r for r in map(json.loads, (run / "metrics.jsonl").open()) if "eval/return_mean" in r][-1]
        for run in runs
    ]
    scores = np.array([final["eval/return_mean"] for final in finals]).reshape(2, 4)
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(list(iqm(scores)))
    assert len({bar.get_hatch() for bar in axes.patches}) == 2, "told apart without colour"
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert [sorted(line.get_xdata()) for line in marks] == [sorted(each) for each in scores]
    intervals = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2]
    assert intervals == [resampled(iqm, each) for each in scores]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[0].startswith("ppo, learning_rate 0.001\n")
    assert names[0].endswith(", 4 seeds")
    assert "final mean evaluation return" in axes.get_xlabel()


def test_bars_of_other_metrics_are_means_over_the_end(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    run = make_run(tmp_path / "run", 1)
    plot_runs([run], tmp_path / "x.png", kind="bars", metric="episode/return_mean")
    reports = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    late = [r["episode/return_mean"] for r in reports if r["env_steps"] >= 36_000]
    bar = drawn["figure"].axes[0].patches[0]
    assert bar.get_width() == pytest.approx(np.mean(late))


def test_default_metric_is_one_that_all_runs_have(tmp_path: Path, drawn: dict[str, Any]) -> None:
    run, short = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2, reports=1)
    plot_runs([run], tmp_path / "x.png", kind="bars")
    assert "evaluation" in drawn["figure"].axes[0].get_xlabel()
    plot_runs([run, short], tmp_path / "x.png", kind="bars")
    assert "mean episode return" in drawn["figure"].axes[0].get_xlabel()
    line = json.dumps({"env_steps": 5, "wall_s": 1, "eval/return_mean": 3.0})
    (short / "metrics.jsonl").write_text(f"{line}\n")
    plot_runs([run, short], tmp_path / "x.png")
    assert "evaluation" in drawn["figure"].axes[0].get_ylabel()


def test_seeds_without_a_common_part_have_no_mean(tmp_path: Path, drawn: dict[str, Any]) -> None:
    run, new = make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2, reports=1)
    line = json.dumps({"env_steps": 5, "wall_s": 1, "episode/return_mean": 3.0})
    (new / "metrics.jsonl").write_text(f"{line}\n")
    plot_runs([run, new], tmp_path / "x.png")
    axes = drawn["figure"].axes[0]
    assert len(axes.collections) == 0
    assert legend_of(drawn["figure"])[0] == "ppo (2 seeds)"
    assert sum(len(line.get_xdata()) == 200 for line in axes.lines) == 2


@pytest.mark.parametrize("kind", ["curve", "bars"])
def test_one_report_is_a_point(tmp_path: Path, drawn: dict[str, Any], kind: plots.Kind) -> None:
    plot_runs([make_run(tmp_path / "run", 1, reports=1)], tmp_path / "x.png", kind=kind)
    axes = drawn["figure"].axes[0]
    assert [line.get_marker() for line in axes.lines if len(line.get_xdata()) == 1] == ["o"]
    assert (tmp_path / "x.png").stat().st_size > 3000


A = {"algo": "ppo", "lr": 1}
OLD = {"algo": "ppo", "gamma": 0.99}
NEW = OLD | {"precision": "bf16"}
PPO = {"algo": "ppo", "env.id": "A-v1", "gamma": 0.99, "clip_epsilon": 0.2, "lr": 3e-4}
IMPALA = {"algo": "impala", "env.id": "A-v1", "gamma": 0.9, "rho_bar": 1.0, "lr": 1e-3}
ELSEWHERE = IMPALA | {"env.id": "B-v1"}
PRESET = {"clip_schedule": "linear", "num_epochs": 8, "streams": 32, "lr": 1e-3, "gae": 0.9}
PLAIN = {"clip_schedule": "constant", "num_epochs": 10, "streams": 8, "lr": 3e-4, "gae": 0.95}
LABELS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([{"algo": "ppo", "env.id": x} for x in ("A-v1", "B-v1")], ["ppo, A-v1", "ppo, B-v1"]),
    # Where an option is null in one run and missing in another of an older version.
    (
        [A, A | {"clip": None}, A | {"lr": 2, "clip": None}],
        ["ppo, lr 1", "ppo, lr 1 (2)", "ppo, lr 2"],
    ),
    # An option that an older run does not have tells only where nothing else does.
    ([OLD, NEW], ["ppo", "ppo, precision bf16"]),
    ([OLD, NEW | {"gamma": 0.9}], ["ppo, gamma 0.99", "ppo, gamma 0.9"]),
    # Learners are told apart by their names, and each by what it could differ in.
    ([PPO, IMPALA], ["ppo", "impala"]),
    ([PPO, IMPALA, IMPALA | {"rho_bar": 2.0}], ["ppo", "impala, rho_bar 1", "impala, rho_bar 2"]),
    ([PPO, ELSEWHERE], ["ppo, A-v1", "impala, B-v1"]),
    (
        [PPO, PPO | {"gamma": 0.9}, ELSEWHERE],
        ["ppo, A-v1, gamma 0.99", "ppo, A-v1, gamma 0.9", "impala, B-v1"],
    ),
    (
        [
            {"algo": "ppo", **options, "preset": name, "unroll_steps": steps}
            for name, options in (("auto", PRESET), ("none", PLAIN))
            for steps in (64, 128)
        ],
        [f"ppo, preset {x}, unroll_steps {n}" for x in ("auto", "none") for n in (64, 128)],
    ),
]


@pytest.mark.parametrize(("configs", "labels"), LABELS)
def test_labels_are_short_and_no_two_are_the_same(
    configs: list[dict[str, Any]], labels: list[str]
) -> None:
    assert group_labels(configs) == labels


def test_of_six_options_that_each_tell_one_group_apart_the_last_is_needed() -> None:
    many = [{"algo": "ppo", **{f"o{k}": int(k == i) for k in range(6)}} for i in range(7)]
    assert len(set(group_labels(many))) == 7


def test_what_two_starts_measured_does_not_part_their_runs():
    a = {"algo": "ppo", "total_env_steps": 1_200_000}
    b = a | {"total_env_steps": 1_300_000}
    measured = {"total_env_steps": "measured (minutes=10)"}
    assert group_key(a, measured) == group_key(b, measured)
    assert group_key(a, measured) != group_key(b, {"total_env_steps": "measured (minutes=20)"})
    assert group_key(a) != group_key(b)


def test_a_run_without_a_configuration_is_drawn_by_itself(
    tmp_path: Path, drawn: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "a", 1)
    (folder / "config.yaml").unlink()
    plot_runs([folder], tmp_path / "out.png")
    assert f"{folder} is taken for a run by itself" in capsys.readouterr().err


def test_a_run_without_a_whole_checkpoint_says_where_its_options_are_from(
    tmp_path: Path, drawn: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "a", 1)
    plot_runs([folder], tmp_path / "out.png")
    assert "options" not in capsys.readouterr().err
    (folder / "checkpoints").mkdir()
    plot_runs([folder], tmp_path / "out.png")
    file = folder / "config.yaml"
    told = f"{folder} has no whole checkpoint: its options are read from {file}"
    assert told in capsys.readouterr().err


def test_a_run_under_two_names_is_no_second_seed(tmp_path: Path, drawn: dict[str, Any]) -> None:
    run = make_run(tmp_path / "a", 1)
    plot_runs([run, tmp_path / "a" / ".." / "a"], tmp_path / "out.png")
    assert not any("seeds" in text for text in legend_of(drawn["figure"]))


def test_runs_with_nothing_to_draw_are_left_out_aloud(
    tmp_path: Path, drawn: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    good, begun, bare = (make_run(tmp_path / name, 1) for name in ("good", "begun", "bare"))
    (begun / "metrics.jsonl").write_text("")
    (bare / "metrics.jsonl").unlink()
    folders = [good, begun, bare]
    plot_runs(folders, tmp_path / "out.png")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith("left out: ") for line in said)
    for folder in folders[1:]:
        with pytest.raises(QuintetError, match=re.escape(str(folder))):
            plot_runs([folder], tmp_path / "out.png")


def test_failed_runs_have_no_bars(tmp_path: Path, drawn: dict[str, Any], capsys: Any) -> None:
    good, failed = (make_run(tmp_path / name, seed) for name, seed in (("good", 1), ("failed", 2)))
    (failed / "run.json").write_text('{"state": "failed", "error": "x", "env_steps": 9}')
    plot_runs([failed, good], tmp_path / "out.png", kind="bars")
    assert capsys.readouterr().err == f"left out: {failed} failed, so it has no final score\n"
    (axes,) = drawn["figure"].axes
    assert [label.get_text()[-8:] for label in axes.get_yticklabels()] == [", 1 seed"]
    plot_runs([failed], tmp_path / "out.png", kind="bars")  # better than no picture
    assert not capsys.readouterr().err
    (failed / "run.json").write_text('{"state": "stopped", "env_steps": 9}')
    plot_runs([failed, good], tmp_path / "out.png", kind="bars")
    assert "has not finished, so it has no final score" in capsys.readouterr().err


def test_bars_of_training_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2, reports=4)]
    plot_runs(runs, tmp_path / "out.png", kind="bars")
    said = capsys.readouterr().err
    assert "warning: final scores are those of training (episode/return_mean)" in said
    assert f"since {runs[1]} has no evaluations" in said
    won = [make_run(tmp_path / name, seed, success=True) for name, seed in (("c", 1), ("d", 2))]
    file = won[1] / "metrics.jsonl"
    file.write_text(file.read_text().replace("eval/success_rate", "eval/success"))
    plot_runs(won, tmp_path / "out.png", kind="bars")
    assert f"since {won[1]} has no evaluations" in capsys.readouterr().err


def test_bars_have_a_panel_for_each_environment(tmp_path: Path, drawn: dict[str, Any]) -> None:
    runs = [
        make_run(tmp_path / f"{algo}{env}{seed}", seed, level=level, algo=algo, env={"id": env})
        for env, level in (("CartPole-v1", 500.0), ("MountainCar-v0", -100.0))
        for algo in ("ppo", "impala")
        for seed in (1, 2)
    ]
    runs.append(make_run(tmp_path / "one", 3, algo="acer", env={"id": "MountainCar-v0"}))
    plot_runs(runs, tmp_path / "out.png", kind="bars")
    cartpole, car = drawn["figure"].axes
    assert [axes.get_title("left") for axes in (cartpole, car)] == ["CartPole-v1", "MountainCar-v0"]
    names = [
        [x.get_text().split("\n")[0] for x in axes.get_yticklabels()] for axes in (cartpole, car)
    ]
    assert names == [["ppo", "impala"], ["ppo", "impala", "acer"]]
    colours = [[bar.get_facecolor() for bar in axes.patches] for axes in (cartpole, car)]
    assert colours[0] == colours[1][:2]
    assert cartpole.get_xlim()[0] >= -50 > car.get_xlim()[0]  # each has its own scale


STRANGE = (
    "$\\foo$",
    "a$b$c",
    "$",
    "\\$x$",
    "tab\there",
    "\x00\ud800",
    "日本$^2$",
    "x" * 5_000,
    "_x",
)


@pytest.mark.parametrize("kind", ["curve", "bars"])
@pytest.mark.filterwarnings("error")
def test_text_is_text(tmp_path: Path, drawn: dict[str, Any], capsys: Any, kind: Any) -> None:
    runs = [make_run(tmp_path / f"r{k}", 1, env={"id": text}) for k, text in enumerate(STRANGE)]
    for run in runs:
        report = {"env_steps": 1, "wall_s": 1, "loss/$a$": 1}
        (run / "metrics.jsonl").write_text(json.dumps(report) + "\n")
    out = plot_runs(runs, tmp_path / "out.svg", kind=kind, metric="loss/$a$")
    assert out.stat().st_size > 1_000
    assert not capsys.readouterr().err
    shown = drawn["figure"].findobj(lambda each: hasattr(each, "_preprocess_math"))
    read = [each._preprocess_math(each.get_text()) for each in shown]
    assert not any(math for _, math in read)
    for text in ("loss/$a$", *STRANGE):
        if text.isprintable() and len(text) < 40:
            assert any(text in letters for letters, _ in read), text


@pytest.mark.parametrize("content", [b"- 1", b"\xff\xfe\x00"])
def test_a_damaged_configuration_is_named(
    tmp_path: Path, content: bytes, drawn: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", 1)
    (run / "config.yaml").write_bytes(content)
    plot_runs([run], tmp_path / "out.png")
    assert "config.yaml" in capsys.readouterr().err


def test_single_runs_of_many_differences_have_the_names_of_their_folders(
    tmp_path: Path, drawn: dict[str, Any]
) -> None:
    def drawn_of(**second: object) -> list[str]:
        number = len(list(tmp_path.iterdir()))
        runs = [
            make_run(
                tmp_path / f"{number}" / name, 1, **{"gamma": 0.9, "unroll_steps": 8, **options}
            )
            for name, options in (("plain", {}), ("tuned", second))
        ]
        plot_runs(runs, tmp_path / "x.png")
        return [name.partition(" (")[0] for name in legend_of(drawn["figure"])[:2]]

    assert drawn_of(learning_rate=1e-4)[0] == "ppo, learning_rate 0.001"
    more = {"learning_rate": 1e-4, "gamma": 0.99, "unroll_steps": 16}
    assert drawn_of(**more) == ["plain", "tuned"]
