"""A run begins anew where another one stands, which is kept."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_run_helpers import SMALL, TOY

import quintet
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.envs.toy import Contextual
from quintet.errors import CheckpointError, ConfigError, EnvironmentFault, WorkerFault
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import find_runs
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.run import launch


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(run_dir: Path, steps: int = 128, **more):
    config = {**SMALL, **more.pop("config", {})}
    return quintet.train("ppo", TOY, steps, run_dir=run_dir, config=config, **more)


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_old_run_is_kept_as_it_was_and_the_new_one_begins_at_0(folder):
    run = folder / "run"
    train(run)
    before = tree(run)
    other = train(run, 192, config={"gamma": 0.5}, overwrite=True)
    assert tree(folder / "run.old-1") == before
    assert other.metrics["env_steps"] == 192
    assert len(read_metrics(run)) == 1
    assert f"the run that was in {run} is kept in {run}.old-1" in (run / "log.txt").read_text()
    # Without it the run goes on, and a second one is kept beside the first.
    train(run, 256, config={"gamma": 0.5})
    assert [report["env_steps"] for report in read_metrics(run)] == [192, 256]
    train(run, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["run", "run.old-1", "run.old-2"]
    # It is a run like any other.
    assert quintet.load(folder / "run.old-2").description["learner"]["gamma"] == 0.5


def test_a_new_folder_and_a_damaged_run(folder):
    run = folder / "run"
    train(run, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["run"]
    shutil.rmtree(run / "checkpoints")
    (run / "config.yaml").write_text("{")
    assert train(run).status == "finished"  # its reports are kept
    assert (folder / "run.old-1" / "config.yaml").read_text() == "{"


def test_no_refusal_moves_a_run(folder, monkeypatch):
    run = folder / "run"
    train(run)
    before = tree(folder)
    with pytest.raises(ConfigError, match="init_from"):  # one of the last refusals
        train(run, overwrite=True, config={"init_from": str(folder / "nothing")})
    with pytest.raises(
        ConfigError, match="--overwrite starts a new run, --resume exact continues the old one"
    ):
        train(run, overwrite=True, config={"resume": "exact"})
    with run_lock(run), pytest.raises(CheckpointError, match="in use by the process with pid"):
        train(run, overwrite=True)
    assert tree(folder) == before


@pytest.mark.parametrize("held", [["thesis.tex"], ["config.yaml", "log.txt", "metrics.jsonl"]])
def test_a_folder_that_is_no_runs_is_never_moved(folder, held):
    place = folder / "project"
    place.mkdir()
    for name in held:
        (place / name).write_text("algo: ppo\n")
    with pytest.raises(ConfigError, match=r"must name a folder that a run has made, .* holds"):
        train(place, overwrite=True)
    assert sorted(path.name for path in place.iterdir()) == held


def test_nor_is_the_folder_that_one_works_in(folder, monkeypatch):
    train(folder / "run")
    monkeypatch.chdir(folder / "run")
    for place in (Path("."), folder / "run"):
        with pytest.raises(ConfigError, match=r"must not name the working folder"):
            train(place, overwrite=True)


def test_a_warm_start_from_the_run_whose_place_is_taken(folder):
    run = folder / "run"
    train(run)
    train(run, config={"init_from": str(run), "learning_rate": 1e-12}, overwrite=True)
    old, new = (quintet.load(path).publication.tensors for path in (f"{run}.old-1", run))
    name = next(name for name in old if name.endswith("weight"))
    assert (old[name] - new[name]).abs().max() < 1e-6


def test_a_run_that_goes_back_does_not_move_its_own_folder(folder, monkeypatch):
    """The second attempt, after the death of a worker, goes on in the folder of the first."""
    attempts = []

    def attempt(loaded, *_, may_go_back, **__):
        attempts.append(loaded.overwrite)
        if may_go_back:
            raise launch._GoesBack("exact")

    monkeypatch.setattr(launch, "_run", attempt)
    options = Layer("call", {"env.id": TOY, "run_dir": str(folder / "run")})
    launch.run(load_config("ppo", [], options, overwrite=True))
    assert attempts == [True, False]


def test_a_run_that_goes_back_leaves_the_reason_if_it_is_refused():
    """Its new start may find too few nodes, or the folder taken."""
    ended = []
    folder = SimpleNamespace(end_record=lambda *given, **more: ended.append((*given, more)))
    trainer = SimpleNamespace(
        folder=folder, counters=SimpleNamespace(env_steps=5), policies=[], stop=None,
        open=lambda: None, close=lambda: None,
    )  # fmt: skip
    closed = SimpleNamespace(close=lambda: None)
    cause = WorkerFault("the node is lost")
    with pytest.raises(launch._GoesBack), launch._ends_told(trainer, closed, closed):
        raise launch._GoesBack("exact") from cause
    assert ended == [("failed", 5, cause, {"in_log": False})]


@pytest.mark.slow
def test_the_command_line_a_group_and_plots(folder, capsys):
    words = [
        f"--{name.replace('_', '-')}={value[0] if isinstance(value, tuple) else value}"
        for name, value in SMALL.items()
    ]
    command = ["train", "PPO", "--env", TOY, "--total-steps", "128", *words]
    seeds = ["--seeds", "1,2", "--jobs", "1", "--run-dir", "runs"]
    assert cli.main([*command, *seeds]) == 0
    assert cli.main([*command, *seeds, "--gamma", "0.5"]) == 2
    assert "or --overwrite for a new run in this one" in capsys.readouterr().err
    assert cli.main([*command, *seeds, "--gamma", "0.5", "--overwrite"]) == 0
    kept = sorted(path.name for path in (folder / "runs").iterdir())
    assert kept == ["s1", "s1.old-1", "s2", "s2.old-1"]
    assert [path.name for path in find_runs(folder / "runs")] == ["s1", "s2"]
    assert find_runs(folder / "runs" / "s1.old-1") == [folder / "runs" / "s1.old-1"]
    assert cli.main([*command, "--overwrite", "yes"]) == 2
    assert "--overwrite takes no value, got 'yes'" in capsys.readouterr().err


def test_config_shows_other_options_than_those_of_a_run_in_the_default_folder(folder, capsys):
    command = ["config", "ppo", "--env", TOY]
    run = folder / "runs" / "ppo-quintet.envs.toy_Contextual-s0"
    train(Path("runs") / run.name, config={"gamma": 0.5})
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "gamma: 0.99 " in out
    assert "this is the configuration of a new run; add --run-dir runs" in err
    assert cli.main([*command, "--preset", "none", "--gamma", "0.8"]) == 0
    assert "gamma: 0.8 " in capsys.readouterr().out
    place = ["--run-dir", f"runs/{run.name}"]
    assert cli.main([*command, *place]) == 0
    out, err = capsys.readouterr()
    assert "gamma: 0.5 " in out
    assert err == ""
    assert cli.main([*command, *place, "--gamma", "0.8"]) == 2
    assert cli.main([*command, *place, "--gamma", "0.8", "--overwrite"]) == 0
    assert "gamma: 0.8 " in capsys.readouterr().out
    assert not list(folder.glob("runs/*.old-*"))
    (run / "run.json").unlink()  # as in the folder of an older run
    assert cli.main(command) == 0
    assert cli.main([*command, "--overwrite"]) == 2
    assert "must name a folder that a run has made" in capsys.readouterr().err


class Faulty(Contextual):
    """Ends by an error at a given step."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at, self.steps = at, 0

    def step(self, action):
        self.steps += 1
        if self.steps > self.at:
            raise RuntimeError("to be mended")
        return super().step(action)


def test_a_run_without_a_checkpoint_makes_room_for_other_options(folder):
    run = folder / "run"

    def attempt(at: int, gamma: float):
        config = {**SMALL, "gamma": gamma, "env.kwargs": {"at": at}}
        return quintet.train("ppo", Faulty, 128, run_dir=run, config=config)

    with pytest.raises(EnvironmentFault, match="to be mended"):
        attempt(0, 0.9)
    with pytest.raises(EnvironmentFault, match="to be mended"):
        attempt(20, 0.8)  # after its first update
    assert [path.name for path in folder.iterdir()] == ["run"]
    with pytest.raises(ConfigError, match=r"gamma: the run has 0\.8, this command has 0\.7"):
        attempt(10**6, 0.7)
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").write_text("{}\n")  # a report, which is kept
    assert attempt(10**6, 0.7).status == "finished"
    assert sorted(path.name for path in folder.iterdir()) == ["run", "run.old-1"]
    assert "gamma: 0.8\n" in (folder / "run.old-1/config.yaml").read_text()
    assert f"is kept in {run}.old-1" in (run / "log.txt").read_text()
