"""Exchanges between learners that share every batch, by torch.distributed."""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from quintet.runtime.batch import narrow, rollout_to_device
from quintet.types import Rollout

LOOK_EVERY_S = 0.5
"""Seconds between two checks of the other ranks during an exchange."""

_HERE = "127.0.0.1"

_CONNECT = timedelta(seconds=300)
"""Longest time for ranks to connect, after all processes are ready."""

_NEVER = timedelta(days=365)
"""Replaces torch's timeout, which can't tell a rank that hangs from one whose parent was stopped
for a while, and would end this process on a GPU.  The waiting rank watches instead.
"""

_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Settings by which PyTorch does not end the process of a rank that has lost another."""


class PeerGone(Exception):
    """Another learner, or the connection to it, is lost."""


@final
class RankGroup:
    """One of several learners: `quintet.protocols.Ranks` over gloo, or NCCL on GPUs.

    Gloo sums around a ring and NCCL along fixed paths: each element is summed in a fixed order in
    one place, so all ranks get the same bits in every run.
    """

    def __init__(
        self,
        index: int,
        size: int,
        device: torch.device,
        watch: Callable[[], None] | None = None,
        joined: Callable[[int], None] = lambda _: None,
    ):
        """watch: called every LOOK_EVERY_S while this rank waits for others, on a GPU in another
            thread; may raise.

        joined: called with the number of each exchange that this rank joins; 1 is `connect`.
        """
        self.index, self.size, self.device = index, size, device
        self.exchanges = 0
        self._watch, self._joined = watch or (lambda: None), joined
        self._group: Any = None
        guarded = device.type == "cuda" and watch is not None
        self._guard = Guard(self._watch, self._abort, LOOK_EVERY_S) if guarded else None

    def connect(self, store: Any) -> None:
        """Connects to all other ranks; raises PeerGone if one of them is not there."""
        self._join()
        # Not by init_process_group: the one group of a process may be in use by the user's code.
        try:
            self._group = _make_group(store, self.index, self.size, self.device)
        except RuntimeError as error:
            raise PeerGone(str(error)) from error

    def whole(self, batch: Rollout) -> Rollout:
        return rollout_to_device(batch, self.device)

    def shard(self, batch: Rollout) -> Rollout:
        columns, rest = divmod(batch.stream_id.numel(), self.size)
        assert not rest, "a run checks that its learners share batches evenly"
        return rollout_to_device(narrow(batch, self.index * columns, columns), self.device)

    def sum(self, x: Tensor) -> Tensor:
        self._exchange(lambda group: group.allreduce([x]))
        return x

    def gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._exchange(lambda group: group.allgather([parts], [x]))
        return torch.stack(parts)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Broadcasts all tensors in one exchange, as bytes."""
        tensors = list(tensors)
        if not tensors:
            return
        parts = [x.detach().contiguous().flatten().view(torch.uint8) for x in tensors]
        whole = torch.cat([part.to(self.device) for part in parts])
        self._exchange(lambda group: group.broadcast([whole], dist.BroadcastOptions()))
        self.settle()
        if self.index == 0:
            return
        with torch.no_grad():
            received = torch.split(whole, [part.numel() for part in parts])
            for x, part in zip(tensors, received, strict=True):
                x.copy_(part.clone().view(x.dtype).view(x.shape))  # a clone is aligned

    def settle(self) -> None:
        """Waits for all exchanges on a GPU; raises what the watch has found meanwhile."""
        if self.device.type == "cpu":
            return
        await_device(self.device)
        found = self.found()
        if found is not None:
            raise found

    def found(self) -> BaseException | None:
        """Ends the watch until the next exchange on a GPU; returns what it has raised."""
        return None if self._guard is None else self._guard.rest()

    def close(self) -> None:
        """Disconnects; ranks that wait for this rank notice it."""
        if self._guard is not None:
            self._guard.close()
        if self.device.type == "cuda":
            self._abort()  # does not wait for what hangs on the GPU
        self._group = None

    def _abort(self) -> None:
        if self._group is not None:
            self._group.abort()

    def _join(self) -> None:
        self.exchanges += 1
        self._joined(self.exchanges)

    def _exchange(self, begin: Callable[[Any], Any]) -> None:
        """Makes an exchange with all others; raises PeerGone if one of them is gone.

        On a GPU the host does not wait: work that it queues next runs after the exchange.
        """
        self._join()
        try:
            work = begin(self._group)
            if self.device.type == "cpu":
                while not self._ended_within(work, LOOK_EVERY_S):
                    self._watch()
                return
            work.wait()
        except RuntimeError as error:
            if self._guard is not None:
                self._guard.check()
            raise PeerGone(str(error)) from error
        if self._guard is not None:
            self._guard.check()
            self._guard.follow(passed(self.device))

    def _ended_within(self, work: Any, seconds: float) -> bool:
        """Whether an exchange ends in that time; raises RuntimeError if it has failed."""
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # raises the failure, unless the work ended just after the time was over
        return True


def passed(device: torch.device) -> Callable[[], bool]:
    """Returns a function that tells whether the GPU has finished all work that this thread has
    queued so far.  An exchange that has failed calls itself completed, although the GPU still waits
    for it.
    """
    make_event: Any = torch.cuda.Event
    event = make_event()
    event.record(torch.cuda.current_stream(device))
    return lambda: bool(event.query())


def await_device(device: torch.device) -> None:
    """Waits until the GPU has finished all work that this thread has queued."""
    torch.cuda.current_stream(device).synchronize()


def _make_group(store: Any, index: int, size: int, device: torch.device) -> Any:
    """A torch process group other than the process's default one."""
    group: Any
    options: Any
    if device.type == "cpu":
        group = dist.ProcessGroupGloo
        options = group._Options()
        # All ranks are on this machine, whatever its name resolves to.
        options._devices = [group.create_device(hostname=_HERE)]
    else:
        group = dist.ProcessGroupNCCL
        options = group.Options()
        torch.cuda.set_device(device)
    options._timeout = _CONNECT
    with _without_nccl_s_end():
        made = group(store, index, size, options)
    made._set_default_timeout(_NEVER)
    return made


@contextmanager
def _without_nccl_s_end() -> Iterator[None]:
    """Process groups made in the block leave this process running when another rank is gone."""
    before = {name: os.environ.get(name) for name in _NCCL}
    os.environ.update(_NCCL)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def host_store() -> tuple[Any, int]:
    """A store in which ranks find each other's addresses, and its port."""
    try:
        return _store_of({})
    except NotImplementedError:  # PyTorch 2.7, whose newer store takes no socket
        return _store_of({"use_libuv": False})


def _store_of(more: dict[str, bool]) -> tuple[Any, int]:
    """A store for ranks of this machine, and its port."""
    listener = socket.create_server((_HERE, 0))  # the store's own listens to other machines too
    port, file = listener.getsockname()[1], listener.detach()
    try:
        made: Any = dist.TCPStore(  # type: ignore[attr-defined]
            _HERE, port, is_master=True, timeout=_CONNECT, wait_for_workers=False,
            master_listen_fd=file, **more,
        )  # fmt: skip
    except NotImplementedError:
        os.close(file)  # the store has not taken it
        raise
    return made, port


def reach_store(port: int) -> Any:
    """Connects to the store that `host_store` made in another process."""
    return dist.TCPStore(_HERE, port, is_master=False, timeout=_CONNECT)  # type: ignore[attr-defined]


@final
class Guard:
    """A thread that watches the other ranks while an exchange on a GPU has not ended.

    The host continues after it has begun an exchange; when it next needs a result it waits, and
    nothing can interrupt this wait.  If the watch raises then, the guard ends the exchange, so that
    the wait ends too, and keeps the error.
    """

    def __init__(
        self, watch: Callable[[], None], end: Callable[[], None], look_every_s: float
    ) -> None:
        """watch: raises if another rank is gone; end: ends all exchanges, whatever they wait for.

        The guard's thread calls both.
        """
        self.error: BaseException | None = None
        self._watch, self._end, self._look_every_s = watch, end, look_every_s
        self._lock, self._over = threading.Lock(), threading.Event()
        self._ended: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None

    def follow(self, ended: Callable[[], bool]) -> None:
        """Watches until an exchange, and so every earlier one, has ended.

        ended: whether it has ended and its result was written.
        """
        self._ended = ended
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ranks' guard", daemon=True)
            self._thread.start()

    def rest(self) -> BaseException | None:
        """Ends the watch until the next exchange; returns what it has raised."""
        with self._lock:
            self._ended = None
        return self.error

    def check(self) -> None:
        """Raises what the watch has raised."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Watches the other ranks whenever an exchange takes longer than a look."""
        seen: Callable[[], bool] | None = None
        while not self._over.wait(self._look_every_s):
            with self._lock:
                ended = self._ended
                # All ranks are there while exchanges follow each other.
                if ended is None or ended is not seen or ended():
                    seen = ended
                    continue
                try:
                    self._watch()
                except BaseException as error:
                    self.error = error
                    self._end()
                    return
