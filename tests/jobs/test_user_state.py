"""What a user's code has set up reaches the processes that make environments."""

import locale
import logging
import os
import pickle
import sys
import threading
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from toys_helpers import EndlessPay

import quintet
from quintet.errors import ConfigError
from quintet.jobs import user_state

SMALL = {
    "env.num_streams": 2, "unroll_steps": 16, "runtime.kind": "lockstep", "runtime.num_workers": 1,
    "runtime.threads": 1, "runtime.compile": "off", "eval.episodes": 0, "report.progress": False,
}  # fmt: skip


class OwnWarning(UserWarning):
    pass


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    registered, before = dict(gymnasium.registry), user_state.capture()
    monkeypatch.setattr(user_state, "lacking", [])
    with warnings.catch_warnings():
        yield
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)
    user_state.restore(before | {"filters": {}})


def set_up(folder: Path) -> None:
    gymnasium.register("Set-v0", entry_point=lambda n=3: EndlessPay(n))
    gymnasium.register("Named-v0", entry_point="toys_helpers:EndlessPay", max_episode_steps=4)
    sys.path.append(str(folder))
    os.environ["OWN_VARIABLE"] = "there"
    warnings.simplefilter("error", OwnWarning)
    logging.getLogger("own.logger").setLevel(logging.ERROR)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    np.seterr(divide="raise")
    sys.setrecursionlimit(2345)


def seen(folder: Path) -> list[str]:
    """What of it this process lacks."""
    try:
        warnings.warn("own", OwnWarning, stacklevel=1)
        raised = False
    except OwnWarning:
        raised = True
    there = {
        "registrations": {"Set-v0", "Named-v0"} <= gymnasium.registry.keys(),
        "sys.path": str(folder) in sys.path,
        "sys.argv": sys.argv[1:] == ["--level", "3"],
        "variables": os.environ.get("OWN_VARIABLE") == "there",
        "warnings": raised,
        "logging": logging.getLogger("own.logger").level == logging.ERROR,
        "gymnasium's logger": gymnasium.logger.min_level == gymnasium.logger.ERROR,
        "numpy": np.geterr()["divide"] == "raise",
        "recursion": sys.getrecursionlimit() == 2345,
        "locale": locale.setlocale(locale.LC_NUMERIC) == "C.UTF-8",
        "working folder": Path.cwd() == folder,
    }
    return [name for name, has in there.items() if not has]


def test_workers_find_all_that_was_set_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--level", "3"])
    monkeypatch.setenv("OWN_VARIABLE", "")
    monkeypatch.chdir(tmp_path)
    set_up(tmp_path)
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")

    def make():
        lacking = seen(tmp_path)
        if lacking:
            raise ValueError(f"lacks {lacking}")
        return gymnasium.make("Set-v0", n=5)

    try:
        assert quintet.train("ppo", make, 64, 3, "run", SMALL).status == "finished"
    finally:
        locale.setlocale(locale.LC_NUMERIC, "C")


def test_what_can_not_be_sent_is_named_where_an_environment_can_not_be_made(tmp_path):
    lock = threading.Lock()

    def held():
        with lock:
            return EndlessPay()

    gymnasium.register("Held-v0", entry_point=held)
    words = (
        r"in the function that makes it.* this one lacks: .*the registration of Held-v0 \(TypeError"
    )
    with pytest.raises(ConfigError, match=words):
        quintet.train("ppo", lambda: gymnasium.make("Held-v0"), 64, 3, tmp_path, SMALL)


def test_a_registration_in_place_of_another_counts():
    gymnasium.registry["CartPole-v1"] = gymnasium.spec("Acrobot-v1")
    given = pickle.loads(pickle.dumps(user_state.capture()))
    gymnasium.registry["CartPole-v1"] = gymnasium.spec("Pendulum-v1")
    user_state.restore(given)
    assert gymnasium.registry["CartPole-v1"].id == "Acrobot-v1"
