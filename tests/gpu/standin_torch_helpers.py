"""torch.cuda on the stand-in: what PyTorch's build for CPUs leaves out of it, in Python."""

import ctypes
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any

import standin_helpers
import torch

_TELLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64)
_kept: list[object] = []  # what C has the address of
_here = threading.local()
_native: Any = None


class Stream(torch.Stream):
    """A stream; all do at once what they are told."""

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> "Stream":
        return super().__new__(cls, device=torch.device("cuda", _index(device)), priority=priority)  # type: ignore[no-any-return]


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False, blocking: bool = False, **given: Any) -> "Event":
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)  # type: ignore[no-any-return]


class Streaming:
    """torch.cuda.stream"""

    def __init__(self, stream: Stream | None) -> None:
        self._stream, self._before = stream, None

    def __enter__(self) -> None:
        self._before = getattr(_here, "stream", None)
        if self._stream is not None:
            _here.stream = self._stream

    def __exit__(self, *_: object) -> None:
        _here.stream = self._before


class CUDAGraph:
    """A captured graph: kernels that run again on the memory of the capture."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph: int | None = None

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **given: Any
    ) -> None:
        assert not _native.standin_capturing(), "one graph is captured at a time"
        _native.standin_capture_begin()

    def capture_end(self) -> None:
        self._graph = _native.standin_capture_end()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Does nothing: kernels that run again draw on."""

    def replay(self) -> None:
        assert self._graph is not None, "called replay without a captured graph"
        _native.standin_replay(self._graph)

    def num_kernels(self) -> int:
        """How many kernels and copies one replay runs, on the stand-in only."""
        assert self._graph is not None
        return int(_native.standin_steps(self._graph))

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def reset(self) -> None:
        if self._graph is not None:
            _native.standin_forget(self._graph)
            self._graph = None

    def __del__(self) -> None:
        self.reset()


class Capturing:
    """torch.cuda.graph"""

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Stream | None = None, **given: Any
    ) -> None:
        self._graph, self._stream = cuda_graph, Streaming(stream or Stream())

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self._stream.__enter__()
        self._graph.capture_begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._graph.capture_end()
        self._stream.__exit__()


class Work:
    """An exchange, whose results are on the GPU once it is over."""

    def __init__(self, work: Any, arrive: Callable[[], None]) -> None:
        self._work, self._arrive = work, arrive
        self._lock, self._arrived = threading.Lock(), False

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._settle()
        return done

    def wait(self, *timeout: Any) -> bool:
        """NCCL's makes the stream wait and not the host, which the stand-in tells of neither."""
        self._work.wait(*timeout)
        self._settle()
        return True

    def _settle(self) -> None:
        with self._lock:
            if not self._arrived:
                self._arrived = True
                self._arrive()


class ProcessGroupNCCL:
    """torch.distributed's, by gloo and copies that nobody hears of."""

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        gloo = torch.distributed.ProcessGroupGloo
        given = gloo._Options()
        given._devices, given._timeout = (
            [gloo.create_device(hostname="127.0.0.1")],
            options._timeout,
        )
        self._gloo = gloo(store, rank, size, given)

    def _set_default_timeout(self, timeout: Any) -> None:
        self._gloo._set_default_timeout(timeout)

    def allreduce(self, tensors: list[torch.Tensor], *options: Any) -> Work:
        return self._exchange(tensors, lambda host: self._gloo.allreduce(host))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        return self._exchange(tensors, lambda host: self._gloo.broadcast(host, options))

    def allgather(self, parts: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Work:
        host = [_host(x) for x in tensors]
        gathered = [[_host(x) for x in each] for each in parts]
        work = self._gloo.allgather(gathered, host)
        joined = [x for each in parts for x in each]
        return Work(work, lambda: _take(joined, [x for each in gathered for x in each]))

    def _exchange(self, tensors: list[torch.Tensor], begin: Callable[[Any], Any]) -> Work:
        host = [_host(x) for x in tensors]
        return Work(begin(host), lambda: _take(tensors, host))

    def abort(self) -> None: ...

    def shutdown(self) -> None: ...


def _host(x: torch.Tensor) -> torch.Tensor:
    with standin_helpers.unheard():
        return x.cpu()


def _take(there: list[torch.Tensor], host: list[torch.Tensor]) -> None:
    with standin_helpers.unheard():
        for x, y in zip(there, host, strict=True):
            x.copy_(y)


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return _native.standin_device(-1) if index is None else index


def _exchange(device: int) -> int:
    before = _native.standin_device(-1)
    _native.standin_device(device)
    return int(before)


def _synchronize(device: Any = None) -> None:
    if not _native.standin_synchronize():
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def _current_stream(device: Any = None) -> Stream:
    if getattr(_here, "stream", None) is None:
        _here.stream = Stream(device)
    return _here.stream  # type: ignore[no-any-return]


def _pin(pointer: int, size: int, flags: int) -> int:
    _native.standin_pin(ctypes.c_size_t(pointer), ctypes.c_size_t(size))
    return 0


def _unpin(pointer: int) -> int:
    _native.standin_unpin(ctypes.c_size_t(pointer))
    return 0


def _declare(native: Any) -> None:
    handle = ctypes.c_void_p
    native.standin_capture_end.restype = handle
    native.standin_steps.restype = ctypes.c_int64
    for name in ("standin_replay", "standin_forget", "standin_steps"):
        getattr(native, name).argtypes = (handle,)


def put_in_place(native: Any, told: Callable[[bytes, bytes, int], None]) -> None:
    """`told` hears of every kernel, copy and wait."""
    global _native
    _native = native
    _declare(native)
    _kept.append(_TELLER(told))
    native.standin_teller(_kept[-1])
    memory = 16 << 30
    gpus = max(1, int(os.environ.get("STANDIN_GPUS", "1")))
    properties = SimpleNamespace(
        name="Stand-in", total_memory=memory, major=9, minor=0, multi_processor_count=1
    )
    answers: dict[str, Any] = {
        **dict.fromkeys(("_lazy_init", "init", "empty_cache", "manual_seed", "manual_seed_all")),
        **dict.fromkeys(("check_error", "reset_peak_memory_stats")),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
        "_is_in_bad_fork": False,
        "device_count": gpus,
        "get_device_name": "Stand-in",
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "mem_get_info": (memory, memory),
        "graph_pool_handle": (0, 1),
        "cudart": SimpleNamespace(cudaHostRegister=_pin, cudaHostUnregister=_unpin),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(answer))
    replaced: dict[str, Any] = {
        "current_device": lambda: _index(),
        "set_device": lambda device: _native.standin_device(_index(device)) and None,
        "_exchange_device": _exchange,
        "_maybe_exchange_device": lambda device: _exchange(device),
        "synchronize": _synchronize,
        "current_stream": _current_stream,
        "default_stream": lambda device=None: _current_stream(device),
        "stream": Streaming,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": Capturing,
        "is_current_stream_capturing": lambda: bool(native.standin_capturing()),
    }
    for name, value in replaced.items():
        setattr(torch.cuda, name, value)
    if torch.distributed.is_available():
        torch.distributed.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[misc]


def _answering(answer: Any) -> Callable[..., Any]:
    """A function of its own for each name, as PyTorch tells them apart."""
    return lambda *_, **__: answer
