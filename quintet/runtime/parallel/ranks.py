"""Exchanges between learners that share every batch, by torch.distributed."""

import os
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from quintet.runtime.batch import narrow, to_device
from quintet.types import Rollout

LOOK_EVERY_S = 0.5
"""Seconds between two checks of the other ranks during an exchange."""

POLL_EVERY_S = 1e-4

_HERE = "127.0.0.1"

_CONNECT = timedelta(seconds=300)
"""Longest time for ranks to connect, after all processes are ready."""

_NEVER = timedelta(days=365)
"""Replaces torch's timeout, which can't tell a rank that hangs from one whose parent was stopped
for a while, and would end this process on a GPU.  The waiting rank watches instead.
"""


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
        watch: Callable[[], None] = lambda: None,
        joined: Callable[[int], None] = lambda _: None,
    ):
        """watch: called every LOOK_EVERY_S while this rank waits for others; may raise.

        joined: called with the number of each exchange that this rank joins; 1 is `connect`.
        """
        self.index, self.size, self.device = index, size, device
        self.exchanges = 0
        self._watch, self._joined = watch, joined
        self._group: Any = None

    def connect(self, store: Any) -> None:
        """Connects to all other ranks; raises PeerGone if one of them is not there."""
        self._join()
        # Not by init_process_group: the one group of a process may be in use by the user's code.
        try:
            self._group = _make_group(store, self.index, self.size, self.device)
        except RuntimeError as error:
            raise PeerGone(str(error)) from error

    def whole(self, batch: Rollout) -> Rollout:
        return to_device(batch, self.device)

    def shard(self, batch: Rollout) -> Rollout:
        columns, rest = divmod(batch.stream_id.numel(), self.size)
        assert not rest, "a run checks that its learners share batches evenly"
        return to_device(narrow(batch, self.index * columns, columns), self.device)

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
        if self.index == 0:
            return
        with torch.no_grad():
            received = torch.split(whole, [part.numel() for part in parts])
            for x, part in zip(tensors, received, strict=True):
                x.copy_(part.clone().view(x.dtype).view(x.shape))  # a clone is aligned

    def close(self) -> None:
        """Disconnects; ranks that wait for this rank notice it."""
        group, self._group = self._group, None
        if group is not None and self.device.type == "cuda":
            group.abort()  # which does not wait for what hangs on the GPU

    def _join(self) -> None:
        self.exchanges += 1
        self._joined(self.exchanges)

    def _exchange(self, begin: Callable[[Any], Any]) -> None:
        """Makes an exchange with all others; raises PeerGone if one of them is gone."""
        self._join()
        try:
            work = begin(self._group)
            while not self._ended_within(work, LOOK_EVERY_S):
                self._watch()
        except RuntimeError as error:
            raise PeerGone(str(error)) from error

    def _ended_within(self, work: Any, seconds: float) -> bool:
        """Whether an exchange ends in that time; raises RuntimeError if it has failed."""
        if self.device.type == "cpu":
            try:
                work.wait(timedelta(seconds=seconds))
            except RuntimeError:
                if not work.is_completed():
                    return False
                work.wait()  # what it failed by, unless it ended just after the time was over
            return True
        # NCCL's own wait would give the exchange up at its timeout.
        deadline = time.monotonic() + seconds
        while not work.is_completed():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_EVERY_S)
        work.wait()
        return True


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
    made = group(store, index, size, options)
    made._set_default_timeout(_NEVER)
    return made


def host_store() -> tuple[Any, int]:
    """A store in which ranks find each other's addresses, and its port."""
    try:
        return _store_of({})
    except NotImplementedError:  # of PyTorch 2.7, whose newer store takes no socket
        return _store_of({"use_libuv": False})


def _store_of(more: dict[str, bool]) -> tuple[Any, int]:
    listener = socket.create_server((_HERE, 0))  # the store's own listens to other machines too
    port, file = listener.getsockname()[1], listener.detach()
    try:
        made: Any = dist.TCPStore(  # type: ignore[attr-defined]
            _HERE, port, is_master=True, timeout=_CONNECT, wait_for_workers=False,
            master_listen_fd=file, **more,
        )  # fmt: skip
    except NotImplementedError:
        os.close(file)  # which the store has not taken
        raise
    return made, port


def reach_store(port: int) -> Any:
    """Connects to the store that `host_store` made in another process."""
    return dist.TCPStore(_HERE, port, is_master=False, timeout=_CONNECT)  # type: ignore[attr-defined]
