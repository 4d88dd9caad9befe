"""What an actor keeps to itself: exploration processes and perturbed weights, wherever it acts."""

from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import quick_helpers
import torch
from exploring_helpers import (
    ACTIONS,
    EXPLORER,
    MADE,
    OBS,
    SMALL,
    ExplorerActor,
    Wandering,
    means,
    perturbed,
    runtime,
    train,
)
from processes_helpers import processes_of
from small_run_helpers import newest
from torch import Tensor

import quintet
from quintet.algorithms import registry
from quintet.checkpoints import checkpoint
from quintet.envs.public import make_vector_env
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Place, ServerOptions, ServerWork, progress_specs
from quintet.runtime.processes.params import board_specs
from quintet.runtime.processes.remote import Mailbox, RemoteActor, Request, mailbox_specs
from quintet.runtime.processes.server import Server
from quintet.types import ActOutput, Publication, TensorSpec

slow = pytest.mark.slow
SCRIPT = Path(__file__).with_name("exploring_helpers.py")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LEARNERS.loaded, "explorer", EXPLORER)


def hashes(folder: Path) -> dict[str, str]:
    found = newest(folder)
    assert found.meta["counters"]["env_steps"] == 1_501
    return checkpoint.tensor_hashes(found)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(registry.LEARNERS.loaded, "explorer", EXPLORER)
        train(folder, "serial")
    assert MADE[-1].checked > 1_501
    return folder


@pytest.mark.parametrize("kind", [pytest.param("lockstep", marks=slow), "lockstep server"])
def test_lockstep_gives_the_bytes_of_serial(kind: str, serial: Path, tmp_path: Path) -> None:
    train(tmp_path, kind)
    assert MADE[-1].checked > 1_501
    assert hashes(tmp_path) == hashes(serial)


@slow
@pytest.mark.parametrize("kind", ["async", "async server"])
def test_async_actors_perturb_the_weights_published_by_then(kind: str, tmp_path: Path) -> None:
    """The learner checks every row; groups of different versions share forwards of the server."""
    train(tmp_path, kind)
    assert MADE[-1].checked > 1_200


@slow
def test_streams_begin_anew_where_the_server_that_had_their_private_state_is_gone(
    tmp_path: Path,
) -> None:
    """The learner would find an actor whose weights changed in the middle of an episode."""
    servers: list[psutil.Process] = []

    def kill(_: object) -> None:
        if not servers:
            mine = processes_of()
            servers.extend(p for p in mine if p.name().startswith("inference"))
            servers[0].kill()

    options = SMALL | runtime("async server")
    result = quintet.train("explorer", Wandering, 6_000, 7, tmp_path, options, on_report=kill)
    assert result.metrics["data/worker_restarts"] == 1
    assert MADE[-1].checked > 5_000


@pytest.mark.parametrize("kind", ["serial", pytest.param("lockstep server", marks=slow)])
def test_a_killed_run_goes_on_with_the_same_bytes(kind: str, serial: Path, tmp_path: Path) -> None:
    with quick_helpers.begin([SCRIPT, tmp_path / "run", kind, "4"]) as killed:
        killed.communicate()
    assert killed.returncode == -9
    train(tmp_path / "run", kind)
    assert "resumed at update 15" in (tmp_path / "run/log.txt").read_text()
    assert hashes(tmp_path / "run") == hashes(serial)


# Policies


def test_a_deterministic_policy_does_not_explore(serial: Path) -> None:
    policy = quintet.load(serial)
    theta = policy.publication.tensors["theta"]
    obs = torch.randn(4, OBS)
    action, state = policy.act(obs.numpy())
    assert torch.equal(torch.from_numpy(action), means(theta, obs))
    again, _ = policy.act(obs.numpy(), state)
    assert (again == action).all()


def test_a_policy_that_explores_keeps_its_weights_until_the_next_start(serial: Path) -> None:
    policy = quintet.load(serial)
    obs = torch.randn(4, OBS).numpy()
    _, first = policy.act(obs, deterministic=False)
    _, second = policy.act(obs, first, deterministic=False)
    begins = [False, True, False, False]
    _, third = policy.act(obs, second, deterministic=False, is_first=begins)
    theta, scale = policy.publication.tensors["theta"], policy.publication.tensors["scale"]
    for row in range(4):
        assert torch.equal(first["theta"][row], perturbed(theta, scale, int(first["seed"][row])))
    assert torch.equal(second["theta"], first["theta"])
    assert (third["theta"] != first["theta"]).flatten(1).any(1).tolist() == begins
    assert not torch.equal(second["process"], first["process"])


def test_evaluation_plays_such_a_policy(serial: Path) -> None:
    policy = quintet.load(serial)
    scores = [
        quintet.evaluate(policy, Wandering, episodes=20, seed=3, deterministic=deterministic)
        for deterministic in (True, True, False)
    ]
    assert scores[0].mean == scores[1].mean != scores[2].mean


# The server


class Served:
    """A server of two groups and what a sampler has of it, in one process."""

    def __init__(self, assignment: Assignment) -> None:
        spaces = make_vector_env(Wandering, 1).spaces
        self.places, local = (Place(0, 0, 2), Place(1, 2, 3)), assignment.make_actor(ExplorerActor)
        specs = progress_specs("inference server") | {
            "inference server/served": TensorSpec((2,), torch.float64)
        }
        for policy in range(assignment.num_policies):
            specs |= board_specs(policy, published(policy))
        for place in self.places:
            specs |= mailbox_specs(spaces, local, place)
        self.arena = Arena.create(specs)
        options = ServerOptions(ExplorerActor, exact=True)
        work = ServerWork(options, self.places, assignment, b"", 5)
        self.server = Server(work, self.arena, None, None)  # type: ignore[arg-type]
        self.actors = []
        for group, place in enumerate(self.places):
            policies, box = assignment.of(group), Mailbox(self.arena, group)
            actor = RemoteActor(local, policies, box, self, group)  # type: ignore[arg-type]
            self.actors.append((actor, place.num_streams, policies))
        for policy in range(assignment.num_policies):
            self.server.boards[policy].write(published(policy))

    def ask(self, request: Request) -> None:
        """As a `ServerLine`, whose other end serves at once."""
        self.server.waiting.append((Request.unpacked(request.packed()), self))  # type: ignore[arg-type]
        self.server._serve()

    def wait(self, group: int) -> None: ...

    def send_bytes(self, said: bytes) -> None: ...


def published(policy: int) -> Publication:
    theta = torch.randn(ACTIONS, OBS, generator=torch.Generator().manual_seed(policy))
    return Publication(policy + 3, {"theta": theta, "scale": torch.tensor(0.3)}, policy)


def same(one: ActOutput, other: ActOutput, recorded: Sequence[str]) -> bool:
    given = (one.action, one.env_action, *one.record.values(), *(one.state[k] for k in recorded))
    taken = [other.record[name] for name in one.record]
    found = (other.action, other.env_action, *taken, *(other.state[k] for k in recorded))
    return all(torch.equal(a, b) for a, b in zip(given, found, strict=True))


@pytest.mark.parametrize(
    "assignment", [ONE_POLICY, Assignment(2), Assignment(2, mixed=True)], ids=["one", "two", "mix"]
)
def test_a_server_computes_what_a_local_actor_does(assignment: Assignment) -> None:
    """Acts whose outcome is not gone on with, of which an unroll that ends early makes one, and
    restarts included.
    """
    served, generator = Served(assignment), torch.Generator().manual_seed(1)
    for remote, streams, policies in served.actors:
        local = assignment.make_actor(ExplorerActor)
        for policy in policies:
            local.load(published(policy))
            remote.load(published(policy))
        seen: list[Tensor] = []
        for t in range(12):
            if t % 6 == 0:  # a restart, at 6 in the middle of episodes
                here, there = local.initial_state(streams), remote.initial_state(streams)
            obs = {"obs": torch.randn(streams, OBS, generator=generator)}
            is_first = torch.rand(streams, generator=generator) < (0.3 if t % 6 else 2.0)
            noise = local.draw_noise(2, streams, generator)
            there = {name: x.clone() for name, x in there.items()}
            for trial in noise:
                mine = local.act(obs, here, is_first, trial)
                theirs = remote.act(obs, there, is_first, trial)
                assert same(mine, theirs, list(local.state_specs))
                seen.append(theirs.action.clone())
            here, there = mine.state, theirs.state
        assert not torch.equal(seen[0], seen[1])


def test_nothing_private_crosses_to_the_server() -> None:
    for assignment in (ONE_POLICY, Assignment(2, mixed=True)):
        served = Served(assignment)
        for group, (actor, streams, _) in enumerate(served.actors):
            assert set(Mailbox(served.arena, group).state) == {"seen"}
            state = actor.initial_state(streams)
            assert sum(x.numel() for x in state.values()) == streams * OBS + 1
