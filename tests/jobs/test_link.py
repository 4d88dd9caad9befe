"""Messages and blocks over a connection."""

import pickle
import socket
import struct
import threading
import time
from typing import Any

import numpy as np
import pytest

from quintet.jobs.link import Link


@pytest.fixture
def ends() -> Any:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    links = Link(one), Link(other)
    yield links
    for link in links:
        link.free()


def test_a_message_and_its_blocks_arrive_in_order(ends: Any) -> None:
    one, other = ends
    sent = [np.arange(300_000, dtype=np.int64), np.arange(7, dtype=np.uint8)]
    came = [np.zeros_like(each) for each in sent]
    one.post("first")
    one.post(("second", 2), [memoryview(each) for each in sent])
    one.post("third")
    asked: list[Any] = []

    def place(message: Any) -> list[memoryview]:
        asked.append(message)
        return [memoryview(each) for each in came]

    assert [other.receive(place) for _ in range(3)] == ["first", ("second", 2), "third"]
    assert asked == [("second", 2)]  # only where there is a block
    assert all((a == b).all() for a, b in zip(sent, came, strict=True))
    assert one.bytes_out == other.bytes_in > 2_400_000


def test_a_block_of_another_size_is_refused(ends: Any) -> None:
    one, other = ends
    one.send("weights", [memoryview(bytes(8))])
    with pytest.raises(ConnectionError, match="block of str must have 9 bytes, got 8"):
        other.receive(lambda _: [memoryview(bytearray(9))])


def test_a_block_that_nobody_expects_is_refused(ends: Any) -> None:
    one, other = ends
    one.send("weights", [memoryview(bytes(8))])
    with pytest.raises(ConnectionError, match="str must have no data block"):
        other.receive()


def test_an_end_that_reads_nothing_stops_nobody_who_posts(ends: Any) -> None:
    one, _ = ends
    for _ in range(10):  # more than sockets hold
        one.post("weights", [memoryview(bytes(1 << 24))])
    poster = one._poster
    assert poster.is_alive()
    one.close()
    poster.join(5.0)
    assert not poster.is_alive()


def test_what_is_outdated_before_it_is_sent_is_left_out(ends: Any) -> None:
    one, other = ends
    full = memoryview(bytes(1 << 24))  # more than sockets hold: the rest waits
    one.post("first", [full])
    for number in range(3):
        one.post(("weights", number), key=0)
        one.post(("other weights", number), key=1)
        one.post(("order", number))
    received = [other.receive(lambda _: [memoryview(bytearray(1 << 24))]) for _ in range(6)]
    assert received == [
        "first",
        ("weights", 2),
        ("other weights", 2),
        *(("order", number) for number in range(3)),
    ]
    one.post(("weights", 3), key=0)
    assert other.receive() == ("weights", 3)


def test_a_silent_end_is_noticed_and_a_slow_one_is_not() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    slow = socket.create_connection(listener.getsockname())
    link = Link(listener.accept()[0], silence_s=1.0)
    listener.close()
    told = Link(slow)
    told.send("the first")
    data = bytes(3)

    def send_slowly() -> None:
        slow.sendall(struct.pack("<QQ", len(pickle.dumps(data)), 0))
        for byte in pickle.dumps(data):
            time.sleep(0.06)
            slow.sendall(bytes([byte]))

    assert link.receive() == "the first"
    sending = threading.Thread(target=send_slowly)
    sending.start()
    begin_s = time.monotonic()
    assert link.receive() == data
    assert time.monotonic() - begin_s > 1.0
    begin_s = time.monotonic()
    with pytest.raises(TimeoutError):
        link.receive()
    assert 0.9 < time.monotonic() - begin_s < 10.0
    sending.join()
    told.free()
    link.free()
