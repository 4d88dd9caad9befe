"""Connections between machines: messages, and blocks of bytes behind them."""

import pickle
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, final

_HEAD = struct.Struct("<QQ")
"""Sizes in bytes of a message, and of the blocks behind it."""

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""Seconds and counts after which a connection to a machine that is gone ends (Linux)."""

_LOOKS = 4
"""Number of waits in a row that make a silence: after a pause of this process, or of both ends,
only the first of them is over at once."""

Views = Sequence[memoryview]


def no_block(message: object) -> Views:
    """Refuses a block of a message that has none."""
    raise ConnectionError(f"{type(message).__name__} must have no data block")


@final
class Link:
    """One end of a connection, whose other end is trusted: messages are pickled.  One thread at a
    time may receive; any thread may send.
    """

    def __init__(self, connection: socket.socket, silence_s: float | None = None):
        """silence_s: seconds without a byte after which `receive` raises TimeoutError."""
        connection.settimeout(None)
        if silence_s is not None:
            seconds, rest = divmod(silence_s / _LOOKS, 1.0)
            timeval = struct.pack("@ll", int(seconds), int(1e6 * rest))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items() if sys.platform == "linux" else ():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connection
        self.bytes_in = self.bytes_out = 0
        self._sending, self._choosing = threading.Lock(), threading.Lock()
        self._outbox: SimpleQueue[tuple[Any, Views] | int | None] = SimpleQueue()
        self._latest: dict[int, tuple[Any, Views]] = {}  # waiting messages by key
        self._poster: threading.Thread | None = None

    def send(self, message: object, blocks: Views = ()) -> None:
        """Sends a message, as soon as the other end reads; raises OSError if it is gone."""
        data, size = pickle.dumps(message), sum(block.nbytes for block in blocks)
        with self._sending:
            self._socket.sendall(_HEAD.pack(len(data), size) + data)
            for block in blocks:
                self._socket.sendall(block)
            self.bytes_out += _HEAD.size + len(data) + size

    def post(self, message: object, blocks: Views = (), key: int | None = None) -> None:
        """Sends a message in another thread, in order; nothing happens if the other end is gone.

        key: the message takes the place of one with the same key that has not been sent yet.
        """
        if self._poster is None:
            self._poster = threading.Thread(target=self._send_posted, daemon=True)
            self._poster.start()
        if key is None:
            self._outbox.put((message, blocks))
            return
        with self._choosing:
            if key not in self._latest:
                self._outbox.put(key)
            self._latest[key] = message, blocks

    def _send_posted(self) -> None:
        with suppress(OSError):  # whoever receives from it will hear
            while (posted := self._outbox.get()) is not None:
                if isinstance(posted, int):
                    with self._choosing:
                        posted = self._latest.pop(posted)
                self.send(*posted)

    def receive(self, place: Callable[[Any], Views] = no_block) -> Any:
        """The next message, with its block written to the memory that `place` returns for it;
        raises OSError or EOFError if there can be no further one.
        """
        head = bytearray(_HEAD.size)
        self._fill(head)
        length, size = _HEAD.unpack(head)
        data = bytearray(length)
        self._fill(data)
        message = pickle.loads(data)
        views = place(message) if size else ()
        if (expected := sum(view.nbytes for view in views)) != size:
            kind = type(message).__name__
            raise ConnectionError(f"the block of {kind} must have {expected} bytes, got {size}")
        for view in views:
            self._fill(view)
        return message

    def _fill(self, view: bytearray | memoryview) -> None:
        for count in filling(self._socket, view):
            self.bytes_in += count

    def close(self) -> None:
        """Ends the connection; whoever receives or sends gets an error."""
        self._outbox.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Closes the socket, which must no longer be in use."""
        self.close()
        self._socket.close()


def filling(connection: socket.socket, view: bytearray | memoryview) -> Iterator[int]:
    """Fills memory from a connection; yields the number of bytes that came."""
    left, looks = memoryview(view).cast("B"), 0
    while left.nbytes:
        try:
            count = connection.recv_into(left)
        except BlockingIOError:
            looks += 1
            if looks == _LOOKS:
                raise TimeoutError("nothing came in time") from None
            continue
        if not count:
            raise EOFError("the connection was closed")
        looks = 0
        yield count
        left = left[count:]
