"""What a run tells its environments: its curriculum's options, and values that callbacks set."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from corridor_helpers import CURRICULA, LENGTHS, Corridor, Longer
from small_run_helpers import SMALL, hashes, newest

import quintet
from quintet.commands.cli import main
from quintet.envs.tasks import set_task, task_text
from quintet.errors import ConfigError, EnvironmentFault
from quintet.observe.report_files import read_metrics

QUICK: dict[str, Any] = SMALL | {
    "report.interval_s": 0.0,
    "report.sinks": ("jsonl",),
    "preset": "none",
    "env.streams_per_group": 2,
    "env.success": "info:won",
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
}
LOCKSTEP = {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 0}


def train(folder: Path, kind: Any, steps: int = 1600, env: Any = Corridor, **more: Any) -> Any:
    record = CURRICULA[kind] if isinstance(kind, str) else kind
    config = QUICK | ({} if record is None else {"env.curriculum": record})
    config |= more.pop("config", {})
    return quintet.train("ppo", env, steps, seed=7, run_dir=folder, config=config, **more)


@pytest.mark.parametrize("kind", CURRICULA)
def test_processes_that_step_and_workers_change_no_byte(kind: str, tmp_path: Path) -> None:
    alone = train(tmp_path / "serial", kind)
    others = {"stages": LOCKSTEP, "own": LOCKSTEP | {"runtime.num_workers": 1}}
    train(tmp_path / "other", kind, config=others.get(kind, {"env.num_processes": 2}))
    assert hashes(tmp_path / "other") == hashes(tmp_path / "serial")
    tasks = [newest(tmp_path / name).meta["tasks"] for name in ("serial", "other")]
    assert tasks[0] == tasks[1]
    assert any(name.startswith("curriculum/") for name in alone.metrics)


@pytest.mark.parametrize("kind", CURRICULA)
def test_a_run_that_was_stopped_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", kind)
    saved: list[Path] = []

    def stop(_: Any, path: Path) -> bool:
        saved.append(path)
        return len(saved) == 2

    stopped = train(tmp_path / "two", kind, callbacks=quintet.Callbacks(checkpoint=stop))
    assert stopped.status == "stopped"
    train(tmp_path / "two", kind, config={"resume": "exact"})
    assert hashes(tmp_path / "two") == hashes(tmp_path / "whole")
    assert newest(tmp_path / "two").meta["tasks"] == newest(tmp_path / "whole").meta["tasks"]


def test_stages_by_the_environments_own_numbers(tmp_path: Path) -> None:
    stages = CURRICULA["stages"] | {"metric": "env/reached", "bar": 0.3, "back": None}
    config = {"env.metrics": "reached:max"}
    for name, kind in (("serial", {}), ("lockstep", LOCKSTEP)):
        result = train(tmp_path / name, stages, config=config | kind)
        assert result.metrics["curriculum/stage"] > 1.0
        assert 0.0 < result.metrics["env/reached"] <= 1.0
    assert hashes(tmp_path / "lockstep") == hashes(tmp_path / "serial")


def test_an_async_run_goes_through_the_stages(tmp_path: Path, capsys: Any) -> None:
    config = {"runtime.kind": "async", "runtime.num_workers": 2, "report.progress": True}
    config |= {"eval.episodes": 2}
    record = CURRICULA["stages"] | {"bar": 0.2}
    result = quintet.train(
        "appo", Corridor, 3200, run_dir=tmp_path, config=QUICK | config | {"env.curriculum": record}
    )
    assert result.metrics["curriculum/stage"] == 4.0
    said = capsys.readouterr().out
    assert 'curriculum: stage 2 of 4, {"length": 2}' in said
    assert "played in corridor_helpers:Corridor (gymnasium) at the end of the curriculum" in said


def test_the_policy_remembers_the_end_and_no_code(tmp_path: Path) -> None:
    result = train(tmp_path / "stages", "stages", 64)
    scores = quintet.evaluate(result.policy, episodes=4, seed=1)
    assert all(n <= 3 * 4 for n in scores.lengths)  # the last stage's, not the default of 9
    assert scores.env.curriculum == "at the end of the curriculum"
    own = train(tmp_path / "own", "own", 64)
    assert own.policy.env.curriculum is None


@pytest.mark.parametrize("given", [Longer, Longer(4), lambda: Longer(3)])
def test_a_curriculum_of_ones_own_is_given_in_python(given: Any, tmp_path: Path) -> None:
    won = train(tmp_path, None, 640, curriculum=given).metrics["curriculum/won"]
    assert won > 0
    again = train(tmp_path, None, 960, curriculum=given, config={"seed": 7})
    assert again.metrics["curriculum/won"] > won


class Lacking:
    def options(self, stream: int, rng: Any) -> Any:
        return {}


class Wrong(Longer):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def options(self, stream: int, rng: Any) -> Any:
        return {"text": "long", "key": {}, "type": {"size": 3}}.get(self.what) or super().options(
            stream, rng
        )

    def state(self) -> Any:
        return {"won": self.won, "set": {1}} if self.what == "state" else super().state()

    def ended(self, episode: Any) -> None:
        if self.what == "ended":
            raise ValueError("it is lost")
        super().ended(episode)


@pytest.mark.parametrize(
    ("given", "kind", "fault"),
    [
        (Lacking, ConfigError, r"got Lacking without ended, state, load: add them"),
        (Wrong("text"), ConfigError, r"must return a dict, got str"),
        (Wrong("state"), ConfigError, r"state\(\) of env.curriculum must be dicts.*set"),
        (Wrong("ended"), ConfigError, r"raised in ended ValueError: it is lost"),
        (
            Wrong("type"),
            EnvironmentFault,
            r"raised in reset\(options={.size.: 3} of env.curriculum\) KeyError",
        ),
        ({"kind": "no_module:X"}, ConfigError, r"needs module 'no_module'"),
        (3, ConfigError, r"must be an object with the methods options, ended, .*got 3: add"),
    ],
)
def test_faults_of_curricula_are_one_sentence(
    given: Any, kind: type[Exception], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=fault):
        train(tmp_path, None, 64, curriculum=given)


def test_options_that_an_environment_refuses_are_told_with_workers(tmp_path: Path) -> None:
    record = {"kind": "stages", "stages": [{"size": 3}]}
    with pytest.raises(
        EnvironmentFault, match=r"reset\(options={'size': 3} of env.*KeyError: 'length'"
    ):
        train(tmp_path, record, 64, config=LOCKSTEP)


@pytest.mark.parametrize("algo", ["impala", "acer"])
def test_a_learner_without_advantages_refuses_levels(
    algo: str, tmp_path: Path, capsys: Any
) -> None:
    words = f"train {algo} --env corridor_helpers:Corridor --total-steps 64000 --run-dir {tmp_path}"
    assert main([*words.split(), "--env.curriculum", json.dumps(CURRICULA["levels"])]) == 2
    assert "one learner that estimates advantages of whole batches" in capsys.readouterr().err


def test_backends_that_reset_themselves_refuse(tmp_path: Path) -> None:
    vector = gymnasium.vector.AsyncVectorEnv
    with pytest.raises(ConfigError, match=r"whose resets take options, got .* of Gymnasium, which"):
        train(tmp_path, "schedule", 64, env=lambda num_envs: vector([Corridor] * num_envs))
    pytest.importorskip("envpool")
    config = {"env.success": None, "env.backend": "envpool"}
    with pytest.raises(ConfigError, match=r"got CartPole-v1 of EnvPool, which resets its streams"):
        train(tmp_path, "schedule", 64, env="CartPole-v1", config=config)


def test_a_vector_environment_that_waits_for_resets_gets_options(tmp_path: Path) -> None:
    def make(num_envs: int) -> Any:
        mode = gymnasium.vector.AutoresetMode.DISABLED
        return gymnasium.vector.AsyncVectorEnv([Corridor] * num_envs, autoreset_mode=mode)

    record = {"kind": "levels", "levels": LENGTHS}
    result = train(tmp_path, record, 640, env=make)
    assert result.metrics["curriculum/levels_seen_frac"] == 1.0
    assert result.metrics["episode/length_mean"] < 12


def setter(name: str, value: Any) -> quintet.Callbacks:
    """Sets it once, after half of 1,280 env_steps."""
    called: list[int] = []

    def report(run: Any, _: Any) -> None:
        if run.env_steps >= 640 and not called:
            called.append(run.env_steps)
            run.set_env(name, value)

    return quintet.Callbacks(report=report)


@pytest.mark.parametrize("config", [{}, {"env.num_processes": 2}, LOCKSTEP])
def test_callbacks_set_attributes_of_all_environments(config: Any, tmp_path: Path) -> None:
    train(tmp_path, None, 1280, callbacks=setter("slope", 1.0), config=config)
    reports = [x for x in read_metrics(tmp_path) if "episode/return_min" in x]
    assert min(x["episode/return_min"] for x in reports if x["env_steps"] <= 640) >= 0.0
    assert max(x["episode/return_max"] for x in reports if x["env_steps"] >= 1000) < -1.0
    assert '"slope":[1,1.0]' in newest(tmp_path).meta["tasks"]
    train(tmp_path, None, 1920, config=config)  # without the callback
    assert max(x.get("episode/return_max", -9.0) for x in read_metrics(tmp_path)[-9:]) < -1.0


def test_an_environment_without_the_attribute_gets_set_task() -> None:
    env = quintet.make_vector_env(Corridor, 2)
    set_task(env, task_text(None, {"map": (1, [1, 2]), "slope": (2, 0.5)}))
    set_task(env, task_text(None, {"map": (1, [1, 2]), "task": (3, "hard")}))
    for each in env.envs:
        assert each.tasks == [("map", [1, 2]), ("task", "hard")]
        assert each.slope == 0.5
    env.close()


@pytest.mark.parametrize(
    ("when", "name", "fault"),
    [
        ("report", "gold", "set_env must name an attribute of the environments"),
        ("report", "x", "the value of set_env must be dicts"),
        ("checkpoint", "slope", "set_env must be called in the callbacks begin"),
    ],
)
def test_faults_of_set_env(when: str, name: str, fault: str, tmp_path: Path) -> None:
    def call(run: Any, _: Any) -> None:
        run.set_env(name, {1} if name == "x" else 1)

    class Plain(Corridor):
        set_task = None

    with pytest.raises(ConfigError, match=fault):
        train(tmp_path, None, 320, env=lambda: Plain(), callbacks=quintet.Callbacks(**{when: call}))
    assert json.loads(newest(tmp_path).meta.get("tasks", '{"values": {}}'))["values"] == {}
