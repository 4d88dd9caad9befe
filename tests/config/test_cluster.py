"""Options that a cluster changes."""

from typing import Any

import pytest

from quintet.config.layers import Layer
from quintet.config.resolve import FOR_CLUSTER, Loaded
from quintet.config.saved import load_config
from quintet.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)


def load(algo: str, **values: Any) -> Loaded:
    env = "Pendulum-v1" if algo == "ddpg" else "CartPole-v1"
    options = {"env.id": env} | {name.replace("__", "."): x for name, x in values.items()}
    return load_config(algo, [], Layer("call", options))


@pytest.mark.parametrize(
    ("algo", "kind", "source"),
    [
        ("ppo", "lockstep", FOR_CLUSTER),
        ("ddpg", "lockstep", FOR_CLUSTER),
        ("acer", "lockstep", FOR_CLUSTER),
        ("impala", "async", "default of impala"),
        ("appo", "async", "default of appo"),
    ],
)
def test_a_run_on_a_cluster_has_workers(algo: str, kind: str, source: str) -> None:
    loaded = load(algo, cluster__address="auto")
    assert (loaded.config.runtime.kind, loaded.sources["runtime.kind"]) == (kind, source)
    assert loaded.config.cluster.address == "auto"


def test_only_a_cluster_chooses_a_kind_and_only_where_nobody_did() -> None:
    assert load("ppo").config.runtime.kind == "serial"
    assert load("ppo", cluster__address="auto", runtime__kind="async").config.runtime.exact is False
    with pytest.raises(ConfigError, match=r"cluster\.address=auto has no effect without runtime\."):
        load("ppo", cluster__address="auto", runtime__kind="serial")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime__inference": "server"}, r"^runtime\.inference must be local[^\n]*$"),
        ({"cluster__nodes_min": 0}, r"^cluster\.nodes_min: input should be[^\n]*$"),
        ({"cluster__address": "nowhere"}, r"^cluster\.address: [^\n]*$"),
        ({"resume": "exact", "runtime__kind": "async"}, r"^resume=exact must have[^\n]*$"),
    ],
)
def test_what_is_wrong_is_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load("ppo", **{"cluster__address": "auto"} | options)
