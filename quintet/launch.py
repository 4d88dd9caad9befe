"""Composition root: from a configuration to environments, learner, runtime, sinks - and a
result.
"""

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, final

import torch
import yaml

from quintet.algorithms import registry
from quintet.algorithms.setup import Setup
from quintet.checkpoint import RunLock
from quintet.config.load import Layer, Loaded, compose, flatten, options, preset_layers
from quintet.config.run import AUTOMATIC, MAY_CHANGE_ON_RESUME, RunConfig
from quintet.envs.make import MakeEnv, make_group_env
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError
from quintet.models.build import resolve_model
from quintet.policy import Policy
from quintet.protocols import Learner
from quintet.runtime.seeds import Role, generator_seed
from quintet.runtime.serial import SerialSampling
from quintet.trainer import OnReport, Trainer
from quintet.types import Spaces

BEFORE_CONFIG = (".lock", "log.txt", ".config.yaml.tmp")
"""What a run that was killed at its very start may leave in its folder."""

COMPILE_FROM_UPDATES = 50_000
"""Optimizer steps from which on compiling is worth its seconds: a step saves about half a
millisecond.
"""


@final
@dataclass(frozen=True)
class Result:
    """What a call of `train` gives: the run's folder, its final policy, its last report."""

    run_dir: Path
    policy: Policy
    metrics: dict[str, float]
    status: Literal["finished", "stopped"]


def train(
    algo: str,
    env: str | MakeEnv,
    total_steps: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    on_report: OnReport | None = None,
) -> Result:
    """Trains a policy, or goes on with the run that is in `run_dir`.

    Args:
        env: an environment's id, or a callable that makes one Gymnasium environment.
        total_steps: agent decisions over all streams; None: the preset's, else 1,000,000.
        run_dir: None: ``runs/ALGO-ENV-sSEED``.
        config: any other option, nested or by dotted name: ``{"learning_rate": 1e-3,
        "env.num_streams": 4}``.
        on_report: called with every report.

    Raises:
        ConfigError: lists all that is wrong with the configuration.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config requires a mapping of options, got {config!r}")
    given = {"total_env_steps": total_steps, "seed": seed, "run_dir": run_dir}
    values = {name: value for name, value in given.items() if value is not None}
    values |= flatten(config or {}, options(algo))
    make_env = None
    if callable(env):
        make_env = env
        values["env.id"] = callable_name(env)
        if ":<" in callable_name(env) and "run_dir" not in values:
            raise ConfigError(
                "run_dir is required with an environment that has no name of its own (a lambda, "
                "a partial): two of them would share one folder; give run_dir or a named "
                "function"
            )
    elif isinstance(env, str):
        values["env.id"] = env
    else:
        raise ConfigError(
            f"env requires an id or a callable that makes one environment, got {env!r}"
        )
    loaded = load_config(algo, [], Layer("call", values), make_env)
    return run(loaded, make_env, on_report)


def callable_name(make_env: MakeEnv) -> str:
    """``module:name`` of what makes an environment, ``module:<...>`` where it has no name."""
    name = getattr(make_env, "__qualname__", "<callable>")
    module = getattr(make_env, "__module__", None) or "__main__"
    return f"{module}:<{name}>" if "<" in name else f"{module}:{name}"


def load_config(
    algo: str, files: list[Layer], command: Layer, make_env: MakeEnv | None = None
) -> Loaded:
    """The configuration of a run from all its layers, those of its folder included.

    Raises:
        ConfigError: any fault, or the folder holds a run of another configuration.
    """
    asked: dict[str, Any] = {}
    for layer in (*files, command):
        asked |= layer.values
    check_env = make_env is None
    run_dir = find_run_dir(algo, asked)
    place = Layer("default", {} if run_dir is None else {"run_dir": str(run_dir)})
    saved = None if run_dir is None else read_saved(run_dir)
    if run_dir is None or saved is None:
        presets = preset_layers(algo, asked.get("env.id"), str(asked.get("preset") or "auto"))
        return compose(algo, [place, *presets, *files, command], check_env=check_env)
    if asked.get("resume") == "never":
        raise ConfigError(
            f"--resume never requires a folder without a run, {run_dir} holds one; give another "
            "--run-dir or remove it"
        )
    if saved["algo"] != algo:
        raise _other_run(run_dir, [f"algo: the run has {saved['algo']}, asked is {algo}"])
    kept = {k: v for k, v in saved.items() if k not in ("algo", "run_dir", "resume")}
    base = [place, Layer("saved run", kept)]
    # An option that is asked to be automatic stays what it was resolved to when the run began.
    layers = [
        Layer(
            layer.source,
            {k: v for k, v in layer.values.items() if k not in AUTOMATIC or v != AUTOMATIC[k]},
        )
        for layer in (*files, command)
    ]
    loaded = compose(algo, [*base, *layers], check_env=check_env)
    was, wanted = compose(algo, base, check_env=check_env).config.flat(), loaded.config.flat()
    differ = [
        f"{name}: the run has {was[name]!r}, asked is {wanted[name]!r}"
        for name in wanted
        if wanted[name] != was[name]
        and name not in MAY_CHANGE_ON_RESUME
        and not name.startswith(("eval.", "report."))
    ]
    if differ:
        raise _other_run(run_dir, differ)
    # A file that says what the run has anyway is not where the value comes from.
    sources = {
        name: "saved run" if source.startswith("file ") and wanted[name] == was[name] else source
        for name, source in loaded.sources.items()
    }
    return Loaded(loaded.config, sources)


def _other_run(run_dir: Path, differ: list[str]) -> ConfigError:
    return ConfigError(
        f"{run_dir} holds a run of another configuration:\n"
        + "\n".join(f"  - {line}" for line in differ)
        + "\ngive another --run-dir to begin anew, or leave these options out to go on"
    )


def find_run_dir(algo: str, asked: Mapping[str, Any]) -> Path | None:
    """The folder asked for, else ``runs/ALGO-ENV-sSEED``; None while no environment is named.

    The same command thus finds its run again.
    """
    if asked.get("run_dir") is not None:
        return Path(asked["run_dir"])
    if "env.id" not in asked:
        return None
    name = re.sub(r"[^\w.-]+", "_", str(asked["env.id"]))
    return Path("runs") / f"{algo}-{name}-s{asked.get('seed', 0)}"


def read_saved(run_dir: Path) -> dict[str, Any] | None:
    """The resolved configuration in a run folder by dotted name, None where there is no run.

    Raises:
        ConfigError: the folder holds something else.
    """
    path = run_dir / "config.yaml"
    if not path.exists():
        others = (
            [p.name for p in run_dir.iterdir() if p.name not in BEFORE_CONFIG]
            if run_dir.is_dir()
            else []
        )
        if others:
            raise ConfigError(
                f"run_dir requires a new or empty folder, or one with a run; {run_dir} holds "
                f"{', '.join(sorted(others)[:3])} and no config.yaml; give another --run-dir"
            )
        return None
    try:
        values = yaml.safe_load(path.read_text())
        return flatten(values, options(values["algo"]))
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
        raise ConfigError(
            f"a readable config.yaml is required in {run_dir}, it is damaged ({error}); restore "
            "it or give another --run-dir"
        ) from error


def resolve(config: RunConfig, spaces: Spaces, backend: str) -> RunConfig:
    """Everything automatic replaced by what it means here."""
    model = resolve_model(config.model, spaces)
    pictures = model.encoder == "nature_cnn"
    device = config.runtime.device
    if device == "auto":
        device = "cuda" if pictures and torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"runtime.device={device} requires a CUDA GPU that PyTorch sees, there is none; use "
            "--runtime.device cpu"
        )
    threads = config.runtime.threads
    if threads is None:
        # A fixed rule: measured on small networks, a second thread costs more than it gives.
        threads = min(os.cpu_count() or 1, 8) if pictures else 1
    compiler = shutil.which(os.environ.get("CXX", "g++")) is not None
    compile_ = config.runtime.compile
    if compile_ == "auto":
        planned = registry.find(config.algo).planned_updates(
            config.learner, config.env.num_streams, config.total_env_steps
        )
        worth = not pictures and planned >= COMPILE_FROM_UPDATES
        compile_ = "on" if worth and compiler else "off"
    elif compile_ == "on" and not compiler:
        raise ConfigError(
            "runtime.compile=on requires a C++ compiler, g++ is not on the PATH and CXX names "
            "none; install one or use --runtime.compile auto, which goes on eagerly"
        )
    return config.model_copy(
        update={
            "model": model,
            "env": config.env.model_copy(
                update={"backend": backend, "streams_per_group": config.env.group_size}
            ),
            "runtime": config.runtime.model_copy(
                update={"device": device, "threads": threads, "compile": compile_}
            ),
        }
    )


def resolved(loaded: Loaded) -> tuple[dict[str, Any], dict[str, str]]:
    """Every option of a loaded configuration as a run would use it, and where its value comes
    from.
    """
    probe = make_group_env(loaded.config.env, 1)
    try:
        config = resolve(loaded.config, probe.spaces, probe.description.backend)
    finally:
        probe.close()
    before, values = loaded.config.flat(), config.flat()
    sources = {
        name: loaded.sources[name]
        if value == before[name]
        else f"resolved ({loaded.sources[name]})"
        for name, value in values.items()
    }
    return values, sources


def make_learner(config: RunConfig, spaces: Spaces) -> Learner:
    """The learner of a resolved configuration."""
    seeds = tuple(generator_seed(config.seed, Role.LEARNER, index) for index in range(2))
    setup = Setup(
        config.env.num_streams,
        config.total_env_steps,
        (seeds[0], seeds[1]),
        torch.device(config.runtime.device),
        compile=config.runtime.compile == "on",
    )
    return registry.find(config.algo).make_learner(config.learner, config.model, spaces, setup)


def make_groups(config: RunConfig, make_env: MakeEnv | None) -> list[VectorEnv]:
    """The environments of all groups."""
    envs: list[VectorEnv] = []
    size = config.env.group_size
    try:
        for group in range(config.env.num_groups):
            envs.append(make_group_env(config.env, size, make_env, first_stream=group * size))
    except BaseException:
        for env in envs:
            env.close()
        raise
    return envs


def run(
    loaded: Loaded, make_env: MakeEnv | None = None, on_report: OnReport | None = None
) -> Result:
    """Trains by a loaded configuration, from its folder's newest checkpoint if there is one.

    All that can be refused is refused before the folder is touched.
    """
    threads_before = torch.get_num_threads()
    envs = make_groups(loaded.config, make_env)
    try:
        spaces, env = envs[0].spaces, envs[0].description
        config = resolve(loaded.config, spaces, env.backend)
        assert config.run_dir is not None
        assert config.runtime.threads is not None
        torch.set_num_threads(config.runtime.threads)
        if config.runtime.device.startswith("cuda"):
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.allow_tf32 = False
        learner = make_learner(config, spaces)
        with RunLock(config.run_dir):
            trainer = Trainer(config, learner, spaces, env, on_report, make_env)
            with _stop_on_signals(trainer):
                return _train(trainer, envs, spaces)
    finally:
        torch.set_num_threads(threads_before)
        for each in envs:
            each.close()


def _train(trainer: Trainer, envs: list[VectorEnv], spaces: Spaces) -> Result:
    config, learner = trainer.config, trainer.learner
    status: Literal["finished", "stopped"] = "finished"
    trainer.open()
    try:
        if trainer.finished:
            trainer.say(
                f"this run is finished: {trainer.counters.env_steps:,} env_steps; raise "
                "--total-steps to go on, or give another --run-dir"
            )
            trainer.save_policy()  # a kill may have come between the last checkpoint and it
        else:
            algorithm = registry.find(config.algo)
            sampling = SerialSampling(
                envs,
                lambda: algorithm.make_actor(config.learner, config.model, spaces),
                learner.plan,
                config.seed,
                trainer.timer,
                torch.device(config.runtime.device),
            )
            status = trainer.train(sampling)
    finally:
        trainer.close()
    return Result(trainer.run_dir, trainer.policy(), trainer.last_report, status)


@contextmanager
def _stop_on_signals(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run after the current iteration; a second Ctrl-C at once.

    Signals reach only the main thread; elsewhere the caller keeps its own handling.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if trainer.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        trainer.request_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
