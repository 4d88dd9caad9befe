"""The connection of a node's process."""

import socket
import threading
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from quintet.cluster import peer as peers
from quintet.cluster.peer import Peer
from quintet.errors import WorkerFault
from quintet.jobs import on_ray
from quintet.jobs.link import Link
from quintet.jobs.on_ray import Machine
from quintet.jobs.roster import Node


class Hosted:
    """A node's process, which connects in a thread, behind a stranger, and gives this answer."""

    answers: Any = None
    ended: str | None = None
    killed = 0

    def __init__(self, machine: Machine, kind: type, cores: int, threads: int):
        assert cores == 4  # it has no more

    def ask(self, method: str, address: tuple[str, int], token: bytes) -> None:
        if self.ended is None:
            threading.Thread(target=self.serve, args=(address, token)).start()

    def serve(self, address: tuple[str, int], token: bytes) -> None:
        with socket.create_connection(address) as stranger:
            stranger.sendall(bytes(len(token)))
            assert stranger.recv(1) == b""  # closed, and nothing was unpickled
        connection = socket.create_connection(address)
        connection.sendall(token)
        link = Link(connection)
        assert link.receive() == "work"
        link.send(Hosted.answers)
        link.free()

    def answer(self) -> str | None:
        return self.ended

    def kill(self) -> None:
        Hosted.killed += 1


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(peers, "Hosted", Hosted)
    monkeypatch.setattr(on_ray, "here", lambda: "127.0.0.1")
    return Peer(Node(3, Machine("id", "10.0.0.2", 4)), cores=9)


@pytest.mark.parametrize("fault", [None, "must have the package x"])
def test_only_who_has_the_token_is_connected(
    fault: str | None, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hosted, "answers", fault)
    assert peer.connect("work", 30.0, threading.Event()) == fault
    assert peer.name == "node 3 (10.0.0.2)"
    with pytest.raises(EOFError):
        peer.link.receive()
    peer.free()


@pytest.mark.parametrize("why", ["late", "its process died", "the run ends"])
def test_a_process_that_does_not_connect_is_given_up(
    why: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(peers, "ANSWER_S", 0.05)
    monkeypatch.setattr(Hosted, "ask", lambda *_: None)
    ending = threading.Event()
    if why == "the run ends":
        ending.set()
    elif why != "late":
        monkeypatch.setattr(Hosted, "ended", why)
    words = r"did not answer within 0\.05 s; others may use its cores" if why == "late" else why
    with pytest.raises(WorkerFault, match=words):
        peer.connect("work", 30.0, ending)
    before = Hosted.killed
    peer.free()
    assert Hosted.killed == before + 1
