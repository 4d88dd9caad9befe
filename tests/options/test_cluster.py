"""Options that a cluster changes."""

from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import save_options

from quintet.cluster.config import ClusterConfig
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.resolve import FOR_CLUSTER, Loaded, compose, resolved
from quintet.options.saved import load_config, load_seeds


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


# Groups


def group(algo: str, **values: Any) -> list[Loaded]:
    options = {"env.id": "CartPole-v1"} | {n.replace("__", "."): x for n, x in values.items()}
    file = Layer("file f", {"cluster.wait_s": 5, "cluster.nodes_min": 7})
    command = Layer("call", {"cluster.address": "auto"} | options)
    loaded = load_seeds(algo, [file], command, [1, 2])
    assert all(isinstance(each, Loaded) for each in loaded)
    return [each for each in loaded if isinstance(each, Loaded)]


def test_a_cluster_is_a_group_s_and_its_runs_are_as_on_one_machine() -> None:
    here = [load("ppo", seed=seed) for seed in (1, 2)]
    for there, one in zip(group("ppo", cluster__nodes_min=2), here, strict=True):
        assert (there.config, there.sources) == (one.config, one.sources)
        assert there.placing is not None
        assert (there.placing.cluster.wait_s, there.placing.cluster.nodes_min) == (5, 2)
        assert there.placing.max_restarts == 3
        assert one.placing is None


def test_restarts_are_the_group_s_and_those_of_runs_with_workers() -> None:
    for there in (
        *group("ppo", runtime__max_restarts=1),
        *group("impala", runtime__max_restarts=1),
    ):
        assert there.placing is not None
        assert there.placing.max_restarts == 1
        assert there.config.runtime.max_restarts == (1 if there.config.algo == "impala" else 3)


def test_a_run_that_began_over_several_nodes_goes_on_in_one(tmp_path: Path) -> None:
    began = load("ppo", seed=1, cluster__address="auto", cluster__nodes_max=2)
    assert began.config.run_dir is not None
    save_options(began.config.run_dir, began.config.flat())
    first, second = group("ppo")
    assert first.sources["runtime.kind"] == "saved run"
    assert first.config.runtime.kind == "lockstep"
    assert first.config.cluster == second.config.cluster == ClusterConfig()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster__nodes_max": 0}, r"^cluster\.nodes_max: input should be"),
        (
            {"cluster__nodes_min": 3, "cluster__nodes_max": 2},
            r"^cluster\.nodes_min must be|^nodes_min",
        ),
        ({"runtime__max_restarts": -1}, r"^runtime\.max_restarts: input should be"),
        ({"cluster__nodes_mni": 2}, r"^unknown option 'cluster\.nodes_mni'.*did you mean"),
        ({"cluster__address": "here"}, r"^cluster\.address: "),
    ],
)
def test_what_is_wrong_with_a_group_s_options_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        group("ppo", **options)


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({}, 1),
        ({"cluster.address": "auto"}, 1),
        ({"cluster.address": "auto", "cluster.nodes_min": 3}, 3),
        ({"cluster.address": "auto", "cluster.nodes_min": 3, "cluster.nodes_max": 5}, 5),
        ({"cluster.address": "auto", "cluster.nodes_max": 5, "runtime.num_workers": 2}, 2),
        ({"cluster.address": "auto", "cluster.nodes_max": 500}, 20),  # there are no more streams
    ],
)
def test_the_number_of_workers_follows_from_options(
    options: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.options.machine.usable_cores", lambda: 1)
    given = {"env.id": "CartPole-v1", "env.num_streams": 20, "runtime.kind": "async"} | options
    values, _ = resolved(compose("appo", [Layer("test", given)]))
    assert values["runtime.num_workers"] == workers
    assert 20 // values["env.streams_per_group"] >= workers
