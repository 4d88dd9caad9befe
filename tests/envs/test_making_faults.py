"""What is said where an environment can't be made: for what it was, and advice by the cause."""

import argparse
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from small_run_helpers import SMALL

import quintet
from quintet.envs.public import make_vector_env
from quintet.envs.toy import Contextual
from quintet.errors import ConfigError, EnvironmentFault, QuintetError


class Sized(Contextual):
    def __init__(self, size: int, speed: float = 1.0) -> None:
        super().__init__()
        if size < 0:
            raise TypeError("size must be a whole number")


class OnPort(Contextual):
    """One simulator, whose port the next one can't have."""

    taken: ClassVar[list[socket.socket]] = []

    def __init__(self) -> None:
        super().__init__()
        place = self.taken[0].getsockname() if self.taken else ("127.0.0.1", 0)
        self.socket = socket.socket()
        try:
            self.socket.bind(place)
            self.socket.listen()
        except OSError:
            self.socket.close()
            raise
        self.taken.append(self.socket)

    def close(self) -> None:
        self.taken.remove(self.socket)
        self.socket.close()


class Only(Contextual):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        if Only.count:
            raise RuntimeError("the simulator runs already")
        Only.count += 1

    def close(self) -> None:
        Only.count -= 1


def from_words() -> Contextual:
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, required=True)
    parser.parse_args()
    return Contextual()


def from_argv() -> Contextual:
    int(sys.argv[99])
    return Contextual()


def fails() -> Contextual:
    raise ValueError("no map")


@pytest.mark.parametrize(
    ("maker", "kwargs", "advice"),
    [
        (Sized, {}, "correct env.kwargs: it takes size, speed"),
        (Sized, {"size": 1, "mass": 2}, "correct env.kwargs: it takes size, speed"),
        (Sized, {"size": -1}, "correct env.kwargs or the environment"),
        (fails, {"level": 1}, "correct env.kwargs: it takes no arguments"),
        (fails, {}, "mend the environment"),
        (partial(quintet.train, seed=3), {"max_episode_steps": 5}, "is env.max_episode_steps"),
        ("CartPole-v1", {"mass": 3}, "correct env.kwargs: it does not take mass"),
        (OnPort, {}, "each of them counts anew"),
        (Only, {}, "1 more of these environments: if only one may exist at a time, train with"),
        (from_words, {}, "it reads sys.argv, the command line of this process"),
        (from_argv, {}, "it reads sys.argv, the command line of this process"),
    ],
)
def test_the_advice_follows_the_cause(maker: Any, kwargs: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError) as fault:
        make_vector_env(maker, 2, backend="gymnasium", kwargs=kwargs)
    asked, _, advised = str(fault.value).partition(", but it ")
    assert f"must make an environment from the arguments {kwargs}" in asked
    assert advice in advised
    assert ("correct env.kwargs" in advised) == ("correct env.kwargs" in advice or bool(kwargs))


class InStep(Contextual):
    """Reads the command line in a step, by a parser or by itself."""

    def __init__(self, parses: bool) -> None:
        super().__init__()
        self.parses = parses

    def step(self, action: Any) -> Any:
        _ = from_words() if self.parses else from_argv()
        return super().step(action)


@pytest.mark.parametrize("parses", [False, True])
@pytest.mark.parametrize(
    "kind", ["serial", *(pytest.param(x, marks=pytest.mark.slow) for x in ("lockstep", "async"))]
)
def test_a_step_that_reads_the_command_line_is_told(
    parses: bool, kind: str, tmp_path: Path
) -> None:
    options = {**SMALL, "runtime.kind": kind}
    if kind != "serial":
        options["runtime.num_workers"] = 2
    algo = "ppo"
    if kind == "async":
        algo, options["batch_unrolls"] = "impala", 4
        del options["minibatch_steps"], options["num_epochs"]
    with pytest.raises(EnvironmentFault, match=r"it reads sys\.argv, .*\(docs/runtimes\.md\)"):
        quintet.train(algo, partial(InStep, parses), 128, run_dir=tmp_path, config=options)


@pytest.mark.parametrize("parses", [False, True])
def test_a_callback_that_reads_the_command_line_is_told(parses: bool, tmp_path: Path) -> None:
    def begin(run: Any) -> None:
        _ = from_words() if parses else from_argv()

    with pytest.raises((IndexError, QuintetError)) as fault:
        quintet.train(
            "ppo", Contextual, 64, run_dir=tmp_path, config=SMALL,
            callbacks=quintet.Callbacks(begin=begin),
        )  # fmt: skip
    told = f"{fault.value} {getattr(fault.value, '__notes__', '')}"
    assert "it reads sys.argv, the command line" in told


def test_the_evaluation_of_a_run_is_named_where_only_one_may_exist(tmp_path: Path) -> None:
    options = {**SMALL, "env.num_streams": 1, "eval.episodes": 1, "minibatch_steps": 16}
    with pytest.raises(
        ConfigError, match=r"for an evaluation, stream 0, but .*--eval\.episodes 0\n"
    ):
        quintet.train("ppo", Only, 64, run_dir=tmp_path / "evaluated", config=options)
    options["eval.episodes"] = 0
    alone = quintet.train("ppo", Only, 64, run_dir=tmp_path / "alone", config=options)
    assert alone.status == "finished"


def only_in(process: int) -> Contextual:
    if os.getpid() != process:
        raise ValueError("not here")
    return Contextual()


@pytest.mark.slow
def test_workers_say_that_they_make_it(tmp_path: Path) -> None:
    options = {**SMALL, "runtime.kind": "lockstep", "runtime.num_workers": 1}
    with pytest.raises(
        ConfigError, match=r"for training in a worker process, stream 0, but it raised"
    ):
        quintet.train("ppo", partial(only_in, os.getpid()), 64, run_dir=tmp_path, config=options)
