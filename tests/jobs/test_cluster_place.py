"""Groups of runs on nodes that are played by this process; tests/cluster has real ones."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

import quintet
from quintet.checkpoints.lock import run_lock
from quintet.errors import ConfigError, WorkerFault
from quintet.jobs import cluster_place, group, local, on_ray, roster, shared, user_state
from quintet.jobs.cluster_place import ClusterPlace, Demand
from quintet.jobs.group import run_all
from quintet.jobs.host import Heard, Host
from quintet.jobs.job import Job, Outcome
from quintet.jobs.on_ray import Machine
from quintet.jobs.roster import Questions, Terms
from quintet.options import machine
from quintet.system import provenance

FACTS = {"quintet": "1", "python": "3", "torch": "2", "processor": "x"}
DONE = Outcome(0, {"status": "finished", "metrics": {}})
SILENT = "silent"


class World:
    """Nodes, and what is asked of them.

    does: what a run does, by (name, number of its start), as `heard` answers; else it is done.
    """

    def __init__(self) -> None:
        self.machines = [Machine("a", "10.0.0.1", 2), Machine("b", "10.0.0.2", 2)]
        self.facts: dict[str, Any] = {}
        self.does: dict[tuple[str, int], Callable[[], Any]] = {}
        self.starts: list[tuple[str, str]] = []  # names of runs and machines
        self.on: dict[str, int] = {}  # runs there
        self.most: dict[str, int] = {}
        self.most_at_once = 0
        self.told: list[tuple[str, str]] = []
        self.said: list[str] = []

    def place(self, tmp_path: Path, cores: int = 1, most: int = 2, **options: Any) -> ClusterPlace:
        terms = Terms("auto", 1, None, 60.0, 30.0)._replace(**options)

        def check(folders: Any, who: str) -> Job:
            return Job("check", "check", pickle.dumps((folders, who)))

        asked = Questions(check, FACTS, True, os.getcwd(), [tmp_path / "runs"])
        return ClusterPlace(terms, asked, Demand(cores, 0, most), self.said.append)

    def run(self, tmp_path: Path, names: str = "abc", jobs: int = 9, **options: Any) -> Any:
        all_ = [Job(name, "module", b"", tmp_path / "runs" / name) for name in names]
        with self.place(tmp_path, **options) as place:
            return run_all(all_, jobs, self.said.append, place)

    def count(self, words: str) -> int:
        return sum(words in line for line in self.said)


class Hosted:
    """A host of the world."""

    world: World

    def __init__(self, machine: Machine, kind: type, cores: int, gpus: int = 0):
        self.machine, self.name = machine, ""
        self.asked: tuple[Any, ...] = ()
        self.stopped, self.checks = False, b""

    def ask(self, *asked: Any) -> None:
        self.asked = asked
        if asked[0] == "begin" and asked[1].module == "check":
            self.checks = asked[1].payload
        elif asked[0] == "begin":
            world, self.name = self.world, asked[1].name
            world.starts.append((self.name, self.machine.id))
            self.start = sum(name == self.name for name, _ in world.starts)
            world.on[self.machine.id] = world.on.get(self.machine.id, 0) + 1
            world.most_at_once = max(world.most_at_once, sum(world.on.values()))
            world.most = {k: max(n, world.most.get(k, 0)) for k, n in world.on.items()}

    def tell(self, method: str) -> None:
        self.world.told.append((self.name, method))
        self.stopped = method == "stop"

    def answer(self) -> Any:
        what, *_ = self.asked
        if what == "begin":
            return True
        if self.checks and self.world.facts.get(self.machine.id) == SILENT:
            return None
        if self.checks:
            folders, who = pickle.loads(self.checks)
            for folder, token in folders:
                assert shared.fault_there(folder, token, who) is None
            facts = self.world.facts.get(self.machine.id, FACTS)
            if isinstance(facts, Exception):
                raise facts
            if isinstance(facts, int):
                return Heard([], Outcome(facts, None))
            return Heard([], Outcome(0, {"fault" if isinstance(facts, str) else "facts": facts}))
        if self.stopped:
            return Heard([], Outcome(130, {"status": "stopped", "metrics": {"env_steps": 5.0}}))
        done = self.world.does.get((self.name, self.start), lambda: Heard(["bye"], DONE))
        return done()

    def kill(self) -> None:
        if self.name:
            self.world.on[self.machine.id] -= 1
            self.name = ""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    Hosted.world = found
    monkeypatch.setattr(on_ray, "connect", lambda _: False)
    monkeypatch.setattr(on_ray, "machines", lambda: list(found.machines))
    monkeypatch.setattr(group, "_POLL_S", 0.001)
    monkeypatch.setattr(roster, "Hosted", Hosted)
    monkeypatch.setattr(cluster_place, "POLL_S", 0.001)
    monkeypatch.setattr(roster, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(cluster_place, "_TRY_EVERY_S", 0.001)
    monkeypatch.setattr(cluster_place, "_KILLED_S", 0.0)
    return found


def after(seconds: float, then: Callable[[], Any] = lambda: Heard([], DONE)) -> Callable[[], Any]:
    """Silent until that time has passed, then `then`."""
    begin: list[float] = []

    def answer() -> Any:
        begin[:] = begin or [time.monotonic()]
        return then() if time.monotonic() - begin[0] > seconds else None

    return answer


def fails(why: str = "the actor died") -> Any:
    raise WorkerFault(why)


def test_runs_are_placed_by_their_cores_and_say_where_they_are(
    world: World, tmp_path: Path
) -> None:
    for name in "abcde":
        world.does[name, 1] = after(0.05)
    assert world.run(tmp_path, "abcde") == [DONE] * 5
    assert world.most == {"a": 2, "b": 2}
    assert [machine for _, machine in world.starts[:4]] == ["a", "b", "a", "b"]
    assert "each run takes 1 core of one node: node 0 (10.0.0.1) with 2, node 1" in world.said[0]
    assert world.count("[a] runs on node 0 (10.0.0.1)") == 1
    assert list(tmp_path.iterdir()) == []  # no trace of the checks


def test_no_more_than_so_many_at_once(world: World, tmp_path: Path) -> None:
    for name in "abc":
        world.does[name, 1] = after(0.02)
    world.run(tmp_path, jobs=1)
    assert world.most_at_once == 1
    assert sum(world.on.values()) == 0


def test_a_run_whose_node_dies_starts_again_on_another(world: World, tmp_path: Path) -> None:
    world.does = {("b", 1): fails, ("a", 1): after(0.1)}
    assert world.run(tmp_path, "ab") == [DONE] * 2
    where = [machine for name, machine in world.starts if name == "b"]
    assert len({*where}) == len(where) == 2
    said = "[b] node 1 (10.0.0.2) was lost: the actor died; the run starts again on another node"
    assert world.count(said) == 1
    assert world.count("(1 of at most 2 times)") == 1


def test_a_run_starts_again_only_so_often(world: World, tmp_path: Path) -> None:
    world.does = {("b", k): fails for k in range(1, 9)}
    a, b, c = world.run(tmp_path, most=2)
    assert (a, c) == (DONE, DONE)
    assert [name for name, _ in world.starts].count("b") == 3
    assert "was lost: the actor died, after 2 others (runtime.max_restarts)" in b.answer["error"]


def test_a_host_that_is_silent_counts_as_lost(world: World, tmp_path: Path) -> None:
    world.does["a", 1] = after(1_000)
    assert world.run(tmp_path, "a", node_timeout_s=0.1) == [DONE]
    assert world.count("it sent nothing for 0.1 s (cluster.node_timeout_s)") == 1


def test_a_node_that_leaves_gets_no_runs_and_one_that_joins_does(
    world: World, tmp_path: Path
) -> None:
    new = Machine("c", "10.0.0.3", 8)

    def lost() -> Any:
        world.machines = [new]
        raise WorkerFault("its machine ended")

    world.does["b", 1] = lost
    world.does["a", 1] = after(0.2)
    assert world.run(tmp_path, "abcd", jobs=2) == [DONE] * 4
    assert world.starts[:2] == [("a", "a"), ("b", "b")]
    later = {machine for _, machine in world.starts[2:]}
    assert "b" not in later
    assert "c" in later


def test_without_a_node_that_could_have_them_runs_end(world: World, tmp_path: Path) -> None:
    def lost() -> Any:
        world.machines = []
        raise WorkerFault("all is dark")

    world.does["a", 1] = world.does["b", 1] = lost
    a, b = world.run(tmp_path, "ab", wait_s=0.2)
    assert "no node was left with 1 cores for 0.2 s (cluster.wait_s)" in a.answer["error"]
    assert "no node was left" in b.answer["error"]
    assert a.answer["blameless"]  # so no fault of the run


def test_a_stop_reaches_all_runs_and_begins_no_others(world: World, tmp_path: Path) -> None:
    def interrupt() -> None:
        while len(world.starts) < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    world.does = {(name, 1): after(1_000) for name in "abc"}
    thread = threading.Thread(target=interrupt)
    thread.start()
    a, b, c = world.run(tmp_path, jobs=2)
    thread.join()
    assert a.answer == b.answer == {"status": "stopped", "metrics": {"env_steps": 5.0}}
    assert c == Outcome(None, None)
    assert sorted(world.told) == [("a", "stop"), ("b", "stop")]


def test_an_error_ends_all_runs(world: World, tmp_path: Path) -> None:
    def broken() -> Any:
        raise KeyboardInterrupt  # as a second Ctrl-C

    world.does = {("a", 1): after(1_000), ("b", 1): after(0.05, broken)}
    with pytest.raises(KeyboardInterrupt):
        world.run(tmp_path, "ab")
    assert sorted(world.told) == [("a", "kill"), ("b", "kill")]


def test_a_folder_that_another_process_uses_is_waited_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def hold() -> None:
        with run_lock(tmp_path / "runs/a"):
            held.set()
            time.sleep(0.3)
            world.starts.append(("free", ""))

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    world.run(tmp_path, "a")
    thread.join()
    assert [name for name, _ in world.starts] == ["free", "a"]
    assert world.count(f"waits for the process with pid {os.getpid()}") == 1

    monkeypatch.setattr(cluster_place, "_LEFT_S", 0.1)
    world.starts.clear()
    with run_lock(tmp_path / "runs/a"):  # the run itself says so, then
        world.run(tmp_path, "a")
    assert [name for name, _ in world.starts] == ["a"]


@pytest.mark.parametrize(
    ("facts", "options", "words"),
    [
        (
            {"b": FACTS | {"torch": "3"}},
            {},
            r"the node 10\.0\.0\.2 must have the learner's .*torch",
        ),
        ({"b": "must have the package m"}, {}, r"the node 10\.0\.0\.2 must have the package m"),
        (
            {"b": -9},
            {},
            r"10\.0\.0\.2 must answer, but the process of its check was ended by SIGKI",
        ),
        ({"a": WorkerFault("No module named 'quintet'")}, {}, "must have quintet installed, got"),
        ({}, {"cores": 3}, r"must have 3 cores of one node .*, got node 0 \(10.0.0.1\) with 2, "),
        ({}, {"nodes_min": 3, "wait_s": 0.1}, r"cluster\.nodes_min=3 must be met within 0\.1 s"),
    ],
)
def test_what_a_node_can_not_do_is_refused_before_anything_begins(
    world: World, tmp_path: Path, facts: Any, options: Any, words: str
) -> None:
    world.facts = facts
    with pytest.raises(ConfigError, match=words):
        world.run(tmp_path, **options)
    assert world.starts == []
    assert list(tmp_path.iterdir()) == []


def test_a_node_whose_check_fails_is_tried_again(world: World, tmp_path: Path) -> None:
    class Died(WorkerFault):
        def __str__(self) -> str:
            if world.count("it is tried again") == 2:
                world.facts.clear()
            return "its process died"

    world.facts["b"] = Died()
    world.run(tmp_path, nodes_min=2)
    assert "node 1 (10.0.0.2) can't be used yet (its process died); it is tried again" in world.said
    assert {machine for _, machine in world.starts} == {"a", "b"}


def test_a_node_whose_check_says_nothing_is_refused_with_its_own_limit(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the limit of nodes that have runs, which is shorter."""
    monkeypatch.setattr(roster, "ANSWER_S", 0.1)
    world.facts["b"] = SILENT
    with pytest.raises(ConfigError, match=r"10\.0\.0\.2 must answer within 0\.1 s, got nothing"):
        world.run(tmp_path, node_timeout_s=0.01)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", ["quintet", "python", "torch", "processor", "simulator"])
def test_where_versions_may_differ(name: str, exact: bool) -> None:
    fault, told = provenance.compared({**FACTS, name: "other"}, FACTS, exact)
    if exact or name in ("quintet", "python", "torch"):
        assert f"got {name} other, here {FACTS.get(name)}" in str(fault)
        assert told is None
    else:
        assert fault is None
        assert f"{name} other" in str(told)


def test_a_node_that_does_not_see_the_folder_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "fault_there", lambda *_: None)  # it wrote elsewhere
    with pytest.raises(ConfigError, match=r"the node 10\.0\.0\.\d must share the folder of the "):
        world.run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_so_many_nodes_are_used(world: World, tmp_path: Path) -> None:
    world.run(tmp_path, nodes_max=1)
    assert {machine for _, machine in world.starts} == {"a"}


WIDE = {"model.policy_hidden": (256, 256), "env.num_streams": 8, "runtime.device": "cpu"}


@pytest.mark.parametrize(
    ("options", "cores", "resolved"),
    [
        ({}, 4, (4, 1, None)),
        ({"runtime.threads": 3}, 3, (3, 3, None)),
        ({"runtime.kind": "lockstep"}, 6, (2, 1, 4)),
        ({"runtime.kind": "async", "runtime.num_workers": 2, "runtime.threads": 1}, 3, (1, 1, 2)),
        ({"runtime.num_learners": 2, "minibatch_steps": 512}, 4, (2, 1, None)),
    ],
)
def test_what_a_run_takes_follows_from_the_machine_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: Any, cores: int, resolved: Any
) -> None:
    """Not from the node, which may have other numbers of cores: its bytes depend on them."""
    demands: list[tuple[Questions, Demand]] = []
    sent: list[Any] = []

    class Fake:
        def __init__(self, terms: Terms, asked: Questions, demand: Demand, say: Any) -> None:
            demands.append((asked, demand))

        def __enter__(self) -> "Fake":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def run(jobs: Any, at_once: int, say: Any, place: Any) -> list[Outcome]:
        assert at_once == 2
        assert isinstance(place, Fake)
        sent.extend(pickle.loads(pickle.loads(each.payload)["run"]) for each in jobs)
        return [Outcome(None, None)] * len(jobs)

    monkeypatch.setattr(group, "run_all", run)
    monkeypatch.setattr(cluster_place, "ClusterPlace", Fake)
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    config = WIDE | options
    quintet.train(
        "ppo", "CartPole-v1", 10**5, None, tmp_path / "g", config, seeds=[1, 2], cluster="auto"
    )
    ((asked, demand),) = demands
    assert (demand.cores, demand.gpus) == (cores, 0)
    assert asked.folders == [tmp_path / "g"]
    assert asked.exact == (options.get("runtime.kind") != "async")
    assert asked.facts["torch"]
    for each in sent:
        runtime = each.config.runtime
        assert (runtime.threads, runtime.actor_threads, runtime.num_workers) == resolved
        assert each.config.cluster.address is None
        assert each.placing is None
        if "runtime.threads" not in options:
            assert each.sources["runtime.threads"] == "resolved (default)"


def _outcome(host: Host) -> Outcome:
    while (outcome := host.heard().outcome) is None:
        pass
    return outcome


JOB = Job("a", "module", b"", state=user_state.capture())


def test_a_run_that_can_t_begin_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(local, "Child", refused)
    host = Host()
    assert host.begin(JOB, os.getcwd())
    answer = _outcome(host).answer
    assert answer is not None
    assert answer["error"].startswith("its process can't be started: ")


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_stop_is_heard_while_the_run_begins(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_begin = list[str](), threading.Event()

    class Begun:
        def give(self, payload: bytes) -> None:
            pass

        def terminate(self) -> None:
            asked.append("terminate")

        def kill(self) -> None:
            asked.append("kill")

        @property
        def ended(self) -> bool:
            return bool(asked)

        def wait(self) -> int:
            return 130

    def slowly(*_: Any, **__: Any) -> Begun:
        may_begin.wait()
        return Begun()

    monkeypatch.setattr(local, "Child", slowly)
    host = Host()
    host.begin(JOB, os.getcwd())
    host.stop() if how == "terminate" else host.kill()
    may_begin.set()
    assert _outcome(host).status == 130
    assert asked == [how]
