"""A user's code that leaves by sys.exit(), another BaseException or os.fork()."""

import json
import os
import re
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import quick_helpers
from leaver_helpers import Leaver, LeavingEncoder

import quintet
from quintet.commands import cli
from quintet.envs.check import check_env
from quintet.envs.config import EnvConfig
from quintet.envs.resolved import resolve_env
from quintet.errors import ConfigError, EnvironmentFault, QuintetError, WorkerFault

HERE = Path(__file__).parent
SMALL = {
    "env.num_streams": 2,
    "env.streams_per_group": 1,
    "unroll_steps": 16,
    "runtime.threads": 1,
    "runtime.compile": "off",
    "eval.episodes": 0,
    "report.progress": False,
}
OF_KIND = {
    "serial": {"env.num_processes": 1},
    "steppers": {"env.streams_per_group": 2, "env.num_processes": 2},
    "lockstep": {"runtime.kind": "lockstep", "runtime.num_workers": 1},
    "async": {"runtime.kind": "async", "runtime.num_workers": 1},
}
KINDS = [each if each in ("serial", "lockstep") else pytest.param(each, marks=pytest.mark.slow)
         for each in OF_KIND]  # fmt: skip


def train(folder, env, kind="serial", **more):
    config = SMALL | OF_KIND[kind] | more.pop("config", {})
    return quintet.train("ppo", env, 256, 3, folder, config, **more)


@pytest.mark.usefixtures("checked_apart")
@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_calls_sys_exit_has_failed_in_every_kind(tmp_path, kind):
    env = partial(Leaver, "exit")
    words = (  # of two streams in two processes, either may be heard first
        r"stream [01], step 5 of its episode, .* the environment called sys.exit\(0\) "
        r"\(.*leaver_helpers.py:\d+ in leave"
    )
    with pytest.raises(EnvironmentFault, match=words):
        train(tmp_path, env, kind)
    assert "sys.exit" in json.loads((tmp_path / "run.json").read_text())["error"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("generator", "raised GeneratorExit: "),
        ("cancelled", "raised CancelledError: "),
        ("own", "raised Own: "),
        ("mute", r"raised Mute: \(without its text, which raised ValueError\)"),
    ],
)
def test_whatever_an_environment_raises_is_its_fault(tmp_path, how, words):
    with pytest.raises(EnvironmentFault, match=f"the environment {words}"):
        train(tmp_path, partial(Leaver, how))


@pytest.mark.parametrize("where", ["make", "reset", "close"])
def test_sys_exit_is_an_error_wherever_it_is_called(tmp_path, where):
    with pytest.raises(QuintetError, match=r"called sys.exit\(0\)"):
        train(tmp_path, partial(Leaver, "exit", where))


def test_ctrl_c_and_a_second_fault_at_the_close_hide_no_first_one(tmp_path):
    def env():
        made = Leaver("own")
        made.close = lambda: sys.exit(1) if made.calls >= 10 else None  # not in a look
        return made

    with (
        pytest.raises(EnvironmentFault, match="raised Own"),
        pytest.warns(RuntimeWarning, match=r"called sys.exit\(1\) in close"),
    ):
        train(tmp_path, env)


def test_evaluations_films_and_checks_name_it_too(tmp_path):
    result = train(tmp_path / "run", partial(Leaver, "exit", "never"))
    exits = partial(Leaver, "exit")
    with pytest.raises(EnvironmentFault, match=r"called sys\.exit"):
        quintet.evaluate(result.policy, exits, 64)
    drawn = partial(Leaver, "exit", "render")
    with pytest.warns(RuntimeWarning, match=r"no video: .*called sys\.exit"):
        quintet.evaluate(result.policy, drawn, 1, video=tmp_path / "film.mp4")
    config = EnvConfig(id="leaver_helpers:Leaver", kwargs={"how": "exit"})
    with pytest.raises(EnvironmentFault, match=r"called sys\.exit"):
        check_env(resolve_env(config), 50, 0, 10.0)


def test_own_encoders_and_callbacks_are_named(tmp_path):
    def leave(_report):
        sys.exit()

    never = partial(Leaver, "exit", "never")
    with pytest.raises(QuintetError, match=r"called sys\.exit\(0?\) \(.*leaving.py:\d+ in leave"):
        train(tmp_path / "a", never, on_report=leave)
    for most in (1, 30):  # as it is built; as it acts
        config = {"model.encoder_kwargs": {"most": most}}
        with pytest.raises(QuintetError, match=r"called sys\.exit\(0?\)"):
            train(tmp_path / f"b{most}", never, model=LeavingEncoder, config=config)


def test_a_module_that_ends_its_process_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "ender.py").write_text("import sys\nsys.exit()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check-env", "ender:Env"]) == 2
    # Weights & Biases, where a test has used it, gives sys.exit() the code 0.
    assert re.search(r"importing it called sys\.exit\(0?\)", capsys.readouterr().err)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("serial", "fork"),
        *(pytest.param(*each, marks=pytest.mark.slow)
          for each in product(OF_KIND, ("fork", "fork and exit")) if each != ("serial", "fork")),
    ],
)  # fmt: skip
def test_a_child_of_a_fork_ends_and_its_parent_trains_on(tmp_path, kind, how):
    code = (
        "import sys, quintet, leaver_helpers, json\n"
        "from functools import partial\n"
        f"env = partial(leaver_helpers.Leaver, {how!r}, once={str(tmp_path / 'once')!r})\n"
        f"quintet.train('ppo', env, 256, 3, {str(tmp_path / 'run')!r}, {SMALL | OF_KIND[kind]!r})\n"
        "print('trained', flush=True)\n"
    )
    with quick_helpers.begin(["-c", code], {"PYTHONPATH": str(HERE)}) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert said.count("trained\n") == 1
    said += (tmp_path / "run" / "log.txt").read_text()
    assert ("did not end in its code" in said) == (how == "fork")
    reports = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["env_steps"] for line in reports]
    assert steps == sorted(set(steps))


def test_a_process_that_closes_its_channel_is_named_by_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("quintet.runtime.processes.process.STOP_GRACE_S", 0.2)
    with pytest.raises(WorkerFault, match=r"closed its channel, did not end .* and was killed"):
        train(tmp_path, partial(Leaver, "close all files"), "lockstep")


def test_a_package_that_ends_its_process_as_a_learner_is_asked_for_refuses(tmp_path):
    def env(**kwargs):
        raise SystemExit("no display")

    with pytest.raises(ConfigError, match=r"called sys.exit\('no display'\)"):
        train(tmp_path, env)
