"""A learner of an installed package, that of docs/adding-a-learner.md, works in every command."""

import inspect
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from installed_helpers import install
from test_docs import FENCE, QUOTED, ROOT

import quintet
from quintet.algorithms import registry
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.observe import metrics
from quintet.observe.report_files import read_metrics

PACKAGE, SAC = ROOT / "examples" / "quintet-a2c", ROOT / "plugins" / "sac"


def files_of(package: Path) -> dict[str, str]:
    found = (package / "pyproject.toml", *sorted(package.glob("quintet_*/*.*")))
    return {str(path.relative_to(package)): path.read_text() for path in found}


FILES = files_of(PACKAGE)
SMALL = "--env.num-streams 4 --eval.episodes 0 --report.progress false --checkpoint.max-cut-frac 1"


def install_from(package: Path, folder: Path) -> None:
    """As pip installs it, by what its pyproject.toml says."""
    files = files_of(package)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    modules = {name: text for name, text in files.items() if "/" in name}
    install(folder, project["name"], "\n".join(lines), modules, project["version"])


# The document

FIELDS = {field.name for field in fields(registry.Algorithm)}


def test_the_document_has_every_line_of_the_package_in_order() -> None:
    """Whoever types its blocks, file by file, has the package."""
    said: dict[str, list[str]] = {}
    text = QUOTED.read_text()
    for block in FENCE.finditer(text):
        named = [name for name in FILES if f"`{name}`" in text[: block.start()].splitlines()[-1]]
        for name in named:
            said.setdefault(name, []).extend(filter(None, block[2].splitlines()))
    for name, source in FILES.items():
        assert said[name] == list(filter(None, source.splitlines())), name


def test_the_docstring_of_a_record_has_every_field() -> None:
    """The document leads to it."""
    assert "api/learners.md" in QUOTED.read_text()
    text = inspect.cleandoc(registry.Algorithm.__doc__ or "")
    named = {name for name in FIELDS if f"\n{name}: " in text}
    assert named == FIELDS - {"make_learner", "make_actor"}  # whose types say all


def test_the_package_is_short() -> None:
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 150


# Every command, in a process that finds the package as an installed one

BACKEND = """
from quintet.envs.backends import Backend
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.toy import Contextual

def make(env, group):
    return GymnasiumVectorEnv(env, group, lambda _: Contextual())

BACKEND = Backend(
    title="Endless",
    make=make,
    ids=lambda: ["Endless-v0"],
    knows=lambda env_id: env_id == "Endless-v0",
)
"""

COMMANDS = f"""
import sys
from quintet.commands.cli import main

def quintet(*words):
    assert main([*words]) == 0, words

assert main(["--help"]) == 0
quintet("config", "a2c", "--env", "CartPole-v1")
assert "torch" in sys.modules or "quintet_a2c.learner" not in sys.modules
assert main(["train", "a2c", "--env", "CartPole-v1", "--gama", "0.5"]) == 2
small = "{SMALL}".split()
serial = ["--env", "CartPole-v1", "--total-env-steps", "640", "--run-dir", "serial", *small]
quintet("train", "a2c", *serial)
quintet("train", "a2c", *serial)
workers = "--runtime.kind lockstep --runtime.num-workers 2 --env.streams-per-group 2".split()
more = ["--replay-ratio", "1", "--init-from", "serial", *workers]
quintet("train", "a2c", *serial[:5], "workers", *small, *more)
quintet("eval", "workers", "--episodes", "2")
quintet("envs", "endless")
quintet("train", "a2c", "--env", "Endless-v0", *serial[2:4], "--run-dir", "theirs", *small)
quintet("eval", "theirs", "--episodes", "2", "--max-steps", "10")
assert main(["config", "a2c", "--env", "CartPole-v1", "--env.backend", "endles"]) == 2
sac = "train sac --env Pendulum-v1 --total-env-steps 320 --batch-size 16".split()
sac += ["--replay-start-steps", "64", "--model.policy-hidden", "8", *small[2:]]
quintet(*sac, "--run-dir", "sac")
quintet(*sac, "--run-dir", "sac")
quintet(*sac, "--run-dir", "sac-workers", "--env.num-streams", "4", *workers)
quintet("eval", "sac-workers", "--episodes", "2")
assert main(["train", "sac", "--env", "CartPole-v1"]) == 2
quintet("plot", "serial", "workers", "--metric", "loss/value", "--out", "plot.svg")
"""


@pytest.mark.slow
def test_it_works_in_every_command(tmp_path: Path) -> None:
    install_from(PACKAGE, tmp_path / "packages")
    install_from(SAC, tmp_path / "packages")
    points = "[quintet.environments]\nendless = endless_envs:BACKEND\n"
    files = {"endless_envs.py": BACKEND}
    install(tmp_path / "packages", "quintet-endless", points, files)
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Algorithms: ppo, impala, appo, ddpg, acer, a2c, sac." in done.stdout
    assert "sac must have Box actions, got the action space Discrete(2)" in done.stderr
    assert "env.num_streams: 16" in done.stdout
    assert "# preset CartPole-*" in done.stdout
    assert "unknown option 'gama' (command line); did you mean 'gamma'?" in done.stderr
    assert "Endless-v0  endless" in done.stdout
    assert "env.backend: input should be 'auto', 'envpool'" in done.stderr
    assert "'gymnasium' or 'endless'" in done.stderr
    for run in ("sac", "sac-workers"):
        last = read_metrics(tmp_path / run)[-1]
        assert last["env_steps"] == 320
        assert last["updates"] == 320 - 64
        meta = json.loads(max(tmp_path.glob(f"{run}/checkpoints/*/meta.json")).read_text())
        assert meta["system"]["learner"] == "quintet-rl-sac 0.3.0"
    for run, backend in (("serial", "envpool"), ("workers", "envpool"), ("theirs", "endless")):
        assert read_metrics(tmp_path / run)[-1]["env_steps"] == 640
        meta = json.loads(max(tmp_path.glob(f"{run}/checkpoints/*/meta.json")).read_text())
        assert meta["system"]["learner"] == "quintet-a2c 1.0"
        assert meta["system"]["backend"] == backend
    assert (tmp_path / "plot.svg").stat().st_size > 1000


@pytest.mark.slow
def test_sac_has_the_same_bytes_with_workers_and_runs_without_order(
    packages: Path, tmp_path: Path
) -> None:
    install_from(SAC, packages)
    config = {
        "replay_start_steps": 100, "batch_size": 16, "policy_delay": 2, "noise_correlation": 0.5,
        "env.num_streams": 4, "env.streams_per_group": 2, "eval.episodes": 0,
        "report.progress": False, "model.policy_hidden": [8],
    }  # fmt: skip
    kinds = {
        "serial": {"runtime.kind": "serial"},
        "lockstep": {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 2},
        "async": {"runtime.kind": "async", "runtime.num_workers": 2},
    }
    for name, kind in kinds.items():
        result = quintet.train("sac", "Pendulum-v1", 2_000, 1, tmp_path / name, config | kind)
        assert result.metrics["env_steps"] == 2_000
        assert result.metrics["updates"] == pytest.approx(1_900, abs=40)
    newest = [max((tmp_path / name / "checkpoints").iterdir()) for name in ("serial", "lockstep")]
    serial, lockstep = ((folder / "learner.safetensors").read_bytes() for folder in newest)
    assert serial == lockstep


@pytest.mark.slow
def test_sac_goes_on_with_the_temperature_of_another_run(packages: Path, tmp_path: Path) -> None:
    """Unless it is to begin with another."""
    install_from(SAC, packages)
    config = {
        "replay_start_steps": 16, "batch_size": 16, "model.policy_hidden": [8], "eval.episodes": 0,
        "report.progress": False, "report.interval_s": 0.0,
    }  # fmt: skip

    def temperatures(name: str, **options: object) -> list[float]:
        quintet.train("sac", "Pendulum-v1", 200, 1, tmp_path / name, config | options)
        reports = read_metrics(tmp_path / name)
        return [x["policy/temperature"] for x in reports if "policy/temperature" in x]

    donor = temperatures("donor", temperature_init=0.5, temperature_lr=0.1)[-1]
    assert abs(donor - 0.5) > 0.1
    more = {"init_from": str(tmp_path / "donor"), "temperature_lr": 1e-9}
    assert temperatures("same", temperature_init=0.5, **more)[0] == pytest.approx(donor, rel=0.1)
    assert temperatures("other", temperature_init=0.2, **more)[0] == pytest.approx(0.2)
    said = "temperature.* start fresh: temperature_init is 0.2 here and 0.5 in init_from"
    assert said in (tmp_path / "other" / "log.txt").read_text()


@pytest.mark.slow
def test_sac_trains_pendulum(packages: Path, tmp_path: Path) -> None:
    install_from(SAC, packages)
    config = {"eval.episodes": 0, "report.sinks": ["jsonl"], "runtime.threads": 1}
    quintet.train("sac", "Pendulum-v1", 10_000, 1, tmp_path / "run", config)
    scores = quintet.evaluate(quintet.load(tmp_path / "run"), episodes=20, seed=10_000)
    assert scores.mean > -250, scores.returns


@pytest.mark.slow
def test_a2c_trains_cartpole(packages: Path, tmp_path: Path) -> None:
    install_from(PACKAGE, packages)
    config = {"eval.episodes": 0, "report.sinks": ["jsonl"]}
    result = quintet.train("a2c", "CartPole-v1", 100_000, 1, tmp_path / "run", config)
    scores = quintet.evaluate(quintet.load(tmp_path / "run"), episodes=20)
    assert scores.mean > 400, scores.returns
    assert result.metrics["env_steps"] == 100_000


# Whatever else a record may hold

ODD = """
from dataclasses import replace
from pathlib import Path
from quintet.algorithms.ppo import ENTRY as PPO
from quintet.observe.metrics import Metric

ENTRY = replace(
    PPO,
    own_metrics={**PPO.own_metrics, "odd/length": Metric("m", "a length")},
    presets=Path(__file__).with_name("odd.yaml"),
)
"""


@pytest.fixture
def odd(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose learner is PPO with metrics and presets of its own."""
    files = {
        "odd.py": ODD,
        "odd.yaml": "named: {long: {unroll_steps: 512}}\n",
    }
    install(packages, "quintet-odd", "[quintet.learners]\nodd = odd:ENTRY\n", files)
    monkeypatch.setattr(registry.LEARNERS, "loaded", {})
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    return packages


def test_its_metrics_and_presets_are_known(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "odd", "--env", "CartPole-v1", "--preset", "long"]) == 0
    assert "unroll_steps: 512" in capsys.readouterr().out
    assert metrics.describe("odd/length") == ("m", "a length")
    tuned = ["--population.size", "2", "--population.objective", "odd/length", "--runtime.kind"]
    assert main(["config", "odd", "--env", "CartPole-v1", *tuned, "async"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("named: [", "must be readable, got"),
        ("- named", "must be a mapping of environments, kinds, named, race, got ['named'] in"),
        (
            "nmaed: {}",
            "must be a mapping of environments, kinds, named, race, got {'nmaed': {}} in",
        ),
        ("named: {long: 5}", "must be mappings of options, got {'long': 5} for named in"),
    ],
)
def test_broken_presets_are_named(
    odd: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (odd / "odd.yaml").write_text(text)
    assert main(["config", "odd", "--env", "CartPole-v1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: the presets of odd {said}")
    assert error.endswith(": mend the file, or use --preset none\n")


def test_broken_packages_do_not_stop_ppo(
    packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(packages, "quintet-broken", "[quintet.learners]\nbroken = no_such_module:ENTRY\n", {})
    install(packages, "quintet-thief", "[quintet.learners]\nppo = thief:ENTRY\n", {})
    taken = (
        "the name of a learner must not be one of quintet's own, got 'ppo' from quintet-thief 1.0"
    )
    assert main(["--help"]) == 0
    assert f"warning: {taken}" in capsys.readouterr().err
    small = {"eval.episodes": 0, "report.progress": False, "num_epochs": 1}
    run = tmp_path / "run"
    assert quintet.train("ppo", "CartPole-v1", 2048, run_dir=run, config=small).policy is not None
    assert taken in (run / "log.txt").read_text()
    capsys.readouterr()
    assert main(["train", "broken", "--env", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert (
        "error: learner 'broken' must be importable, but importing no_such_module:ENTRY of " in said
    )
    assert len(said.splitlines()) == 1
    assert main(["train", "ppo", "--env", "CartPole-v1", "--gama", "1"]) == 2
    assert "unknown option 'gama'" in capsys.readouterr().err


def test_a_saved_name_imports_nothing_that_is_not_installed(packages: Path) -> None:
    (packages / "stranger.py").write_text("raise SystemExit('imported')\n")
    for name in ("stranger", "stranger:ENTRY", "stranger:ENTRY [x]", ["stranger"]):
        with pytest.raises(ConfigError, match="the algorithm must be one of"):
            registry.find(name)  # type: ignore[arg-type]
    assert "stranger" not in sys.modules
