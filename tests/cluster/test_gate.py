"""Who may take part in a run on a cluster."""

from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from quintet.cluster import gate as gates
from quintet.cluster.config import ClusterConfig
from quintet.cluster.gate import Entry, Gate
from quintet.jobs import on_ray
from quintet.jobs.on_ray import Machine
from quintet.options.layers import Layer
from quintet.options.resolve import compose, resolved

HERE = {"quintet": "0.3", "python": "3.11.2", "torch": "2.13", "numpy": "2.1", "processor": "A"}


def fault(there: Any, exact: bool) -> tuple[str | None, list[str]]:
    gate, said = Gate.__new__(Gate), []
    gate._entry, gate._say = Entry(None, HERE, exact, ClusterConfig(), 1), said.append
    return gate._fault(there, Machine("id", "10.0.0.2", 4)), said


def test_equal_nodes_take_part() -> None:
    assert fault(HERE, exact=True) == (None, [])


@pytest.mark.parametrize("name", [*HERE, "simulator"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_node_that_differs_is_refused_or_told(name: str, exact: bool) -> None:
    found, said = fault({**HERE, name: "other"}, exact)
    if exact or name in ("quintet", "python", "torch"):
        assert f"got {name} other, here {HERE.get(name)}" in str(found)
        assert said == []
    else:
        assert found is None
        assert f"{name} other" in said[0]


def test_a_node_says_itself_why_it_can_not() -> None:
    assert fault("must have the package x", exact=False) == ("must have the package x", [])


class Asked:
    """An actor that has not connected, or whose process failed."""

    killed = 0

    def __init__(self, machine: Machine, *_: Any) -> None:
        self.machine, self.why = machine, None

    def failure(self) -> str | None:
        return self.why

    def kill(self) -> None:
        Asked.killed += 1


@pytest.mark.parametrize("why", ["silent", "its process died", "No module named 'quintet'"])
def test_a_node_without_an_answer_is_tried_again_unless_quintet_is_missing(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "Actor", Asked)
    monkeypatch.setattr(on_ray, "here", lambda: "127.0.0.1")
    monkeypatch.setattr(on_ray, "machines", lambda: [Machine("id", "10.0.0.2", 4)])
    monkeypatch.setattr(Asked, "killed", 0)
    refused: list[str] = []
    said: list[str] = []
    entry = Entry(None, HERE, False, ClusterConfig(), 1)
    gate = Gate(entry, lambda *_: None, refused.append, said.append)
    try:
        (first,) = gate._visitors.values()
        if why == "silent":
            first.begun_s -= 121.0
        else:
            first.actor.why = why  # type: ignore[attr-defined]
        gate._look()
        (now,) = gate._visitors.values()
        assert Asked.killed == 1
        if "No module" in why:
            assert now is first
            assert first.unfit
            assert "the node 10.0.0.2 must have quintet installed" in refused[0]
            assert said == []
        else:
            assert now is not first
            assert refused == []
            told = "did not answer within 120 s" if why == "silent" else why
            assert "the node 10.0.0.2 can't be used yet" in said[0]
            assert told in said[0]
    finally:
        gate.close()


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
