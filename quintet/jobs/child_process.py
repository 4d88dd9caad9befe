"""Child processes: their start, their payload, their output, and their end with the parent.

A child runs a module's `main` through `quintet.jobs.entry`, with a payload on its standard input,
which stays open while the parent lives; its output goes to the parent's `say`.

PyTorch takes about 2 s of a core to import.  On Linux a fork server imports what several children
need, and forks them, which have it at once and share its memory.  It computes nothing and has one
thread, so its forks are safe.  It ends with the process that began it, and its forks end with it.
"""

import atexit
import errno
import gc
import importlib
import io
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, NoReturn, final

from quintet.jobs import entry
from quintet.system.memory import limit_told
from quintet.system.printing import plain

AVAILABLE = sys.platform == "linux"

# Prefixes of environment variables that libraries read when they are loaded.
_READ_AT_LOAD = (
    "ATEN_", "BLIS_", "CUBLAS_", "CUDA_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "LD_", "MALLOC_",
    "MKL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH_",
)  # fmt: skip

_NUMBER_BYTES = 8

_MOST_LINE_BYTES = 2**16  # longer lines are said in pieces

_NOT_BEGUN = -1
"""Sent instead of a pid if the fork failed."""

_MOST_FILES = 253  # one message carries no more on Linux

_BEGIN_S = 30.0  # allowed to a server to begin a process

FOR_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that a service manager sends to all processes of a run: forks end with
their server, so it ignores these signals, and the parent stops the forks in good order.
"""


def prepare(preload: Sequence[str], environ: Mapping[str, str]) -> None:
    """Lets a fork server import modules (Linux) for children that will start soon."""
    if AVAILABLE:
        _server_for(preload, _full_environ(environ), 2)


def _full_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **environ}


def how_ended(status: int) -> str:
    """A process's end in words, from its exit status, negative for a signal."""
    if status >= 0:
        return f"ended with status {status}"
    how = f"was ended by {signal.Signals(-status).name}"
    if -status in (signal.SIGKILL, signal.SIGABRT):  # PyTorch's way where there is no memory
        how += f" (was there enough memory?{limit_told()})"
    return how


@final
class Child:
    """A child process, seen by the parent."""

    def __init__(
        self,
        name: str,
        module: str,
        say: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """name: for lists of processes. say: receives the child's lines, in a separate thread.

        pass_fds: files whose numbers in the child it gets as arguments.
        preload: modules for a fork server to import, whose fork the child is (Linux).  The system
            ends the child when this process ends, also while modules are imported.
        """
        self.printed = False  # whether it has said anything
        full = _full_environ(environ or {})
        self._process: subprocess.Popen[bytes] | Forked
        if preload and AVAILABLE:
            self._process = Forked(preload, [name, module], pass_fds, full)
        else:
            numbers = [str(number) for number in pass_fds]
            self._process = subprocess.Popen(
                entry.command(["", name, module, *numbers]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                # Ctrl-C in a terminal reaches the parent alone, which passes it on, once.  A
                # session of its own would do that too, but Linux shares the cores out evenly among
                # sessions.
                process_group=0,
                env=full,
            )
        self._speaker = threading.Thread(target=self._speak, args=(say,), daemon=True)
        self._speaker.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, payload: bytes) -> None:
        """Sends the payload for which the child waits at its start; called once."""
        assert self._process.stdin is not None
        with suppress(
            BrokenPipeError, ValueError
        ):  # the child is gone already; its status will tell
            self._process.stdin.write(entry.LENGTH.pack(len(payload)) + payload)
            self._process.stdin.flush()

    def _speak(self, say: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        # Reads to the end, or the child would block; a progress bar may have no end of line.
        for line in iter(partial(self._process.stdout.readline, _MOST_LINE_BYTES), b""):
            self.printed = True
            say(plain(line.decode(errors="replace").rstrip().rpartition("\r")[2]))

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ended(self) -> bool:
        return self.status is not None

    def terminate(self) -> None:
        """Sends SIGTERM, which unlike SIGINT leaves no traceback of a process that is starting."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends the child and its own children at once; `wait` releases the rest."""
        if isinstance(self._process, Forked) and self._process.refused:
            return  # only the server runs, and serves others
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit status, negative for a signal; raises subprocess.TimeoutExpired."""
        status = self._process.wait(timeout_s)
        # A grandchild may hold standard output open; what it says is not waited for.
        self._speaker.join(timeout=1.0)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, RuntimeError):  # a thread may be writing to it still
            self._process.stdin.close()
        if not self._speaker.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()
        return status


# The fork server


@final
class Forked:
    """A process that a fork server begins, used as a `subprocess.Popen`."""

    def __init__(
        self, preload: Sequence[str], arguments: Sequence[str], files: Sequence[int],
        environ: Mapping[str, str],
    ):  # fmt: skip
        """preload: modules that the server imports; arguments: name, module and others, to which
        the numbers of the files are added.
        """
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self._status_file, theirs_told = os.pipe()
        os.set_blocking(self._status_file, False)
        self.stdin: IO[bytes] = os.fdopen(ours_in, "wb")
        self.stdout: IO[bytes] = os.fdopen(ours_out, "rb")
        self.returncode: int | None = None
        self._pid: int | None = None
        self._hearing = threading.Lock()
        request = os.memfd_create(
            "request"
        )  # a pipe may be too small, and nobody may read it for seconds
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # also where that has been removed
        passed = [request, theirs_in, theirs_out, theirs_told, here]
        try:
            with os.fdopen(os.dup(request), "wb") as file:
                pickle.dump((list(arguments), dict(environ), sys.path), file)
            self._server = _server_for(preload, environ, theirs_out)
            self._ask([*passed, *files])
        finally:
            for number in passed:
                os.close(number)

    def _ask(self, files: Sequence[int]) -> None:
        """Sends the request, whose own files are gone with an error if the server can't have it."""
        server = self._server
        while server.process.poll() is None:
            try:
                socket.send_fds(server.channel, [b"+"], files)
                return
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # until the server has read earlier ones
                    time.sleep(0.05)
                elif server.process.poll() is None and error.errno != errno.EPIPE:
                    self._end(os.EX_OSERR)
                    return
                else:  # the server is ending, as `poll` tells
                    return

    @property
    def pid(self) -> int:
        """The pid of the process; the server's own as long as it has not begun the process."""
        self._hear(0.0)
        return self._pid or self._server.process.pid

    @property
    def refused(self) -> bool:
        """Whether the system refused to begin the process."""
        return self._pid is None and self.returncode is not None

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs or has yet to begin."""
        self._hear(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, as soon as it has ended; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left_s = 1.0 if deadline is None else deadline - time.monotonic()
            if timeout is not None and left_s <= 0.0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._hear(min(left_s, 1.0))
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        deadline = time.monotonic() + _BEGIN_S
        while self._pid is None and self.returncode is None and time.monotonic() < deadline:
            self._hear(0.1)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def _hear(self, timeout_s: float) -> None:
        """Messages of the server: the pid of the process, then its exit status."""
        if self.returncode is not None:
            return
        if timeout_s:
            waiting = select.poll()
            waiting.register(self._status_file, select.POLLIN)
            waiting.poll(1000.0 * timeout_s)
        with self._hearing, suppress(BlockingIOError):
            while self.returncode is None:
                number = os.read(self._status_file, _NUMBER_BYTES)
                if not number:  # the server has ended, and what it has begun with it
                    status = self._server.process.wait()
                    self._end(status if self._pid is None else -signal.SIGKILL)
                    continue
                number_read = int.from_bytes(number, "little", signed=True)
                if self._pid is not None:
                    self._end(number_read)
                elif number_read == _NOT_BEGUN:
                    self._end(os.EX_OSERR)
                else:
                    self._pid = number_read

    def _end(self, status: int) -> None:
        self.returncode = status
        os.close(self._status_file)  # only now may another process get its number


@final
class _Server:
    """The fork server, seen by the process that started it."""

    def __init__(self, preload: Sequence[str], environ: Mapping[str, str], output: int):
        """output: receives its output before it can fork."""
        self.channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(os.getpid()), "fork server", __name__, *preload]
        with child_end:
            self.process = subprocess.Popen(
                entry.command([*arguments, str(child_end.fileno())]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[child_end.fileno()],
                process_group=0,
                env=environ,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        with suppress(OSError):  # users' code has closed it (`system.forks`)
            self.channel.close()
        self.process.wait()


_servers: dict[tuple[Any, ...], _Server] = {}
_choosing = threading.Lock()


def _forget() -> None:
    """Closes the channels in a fork of this process, which would keep the servers alive."""
    for server in _servers.values():
        server.channel.close()
    _servers.clear()


if AVAILABLE:
    os.register_at_fork(after_in_child=_forget)


def _server_for(preload: Sequence[str], environ: Mapping[str, str], output: int) -> _Server:
    """The fork server of this process's limits, cores and variables, which forks can't change."""
    import resource

    limits = (resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n[:7] == "RLIMIT_")
    loaded = (item for item in environ.items() if item[0].startswith(_READ_AT_LOAD))
    cores = frozenset(os.sched_getaffinity(0))
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    key = (os.getpid(), *preload, tuple(sorted(loaded)), cores, priority, tuple(limits))
    with _choosing:
        server = _servers.get(key)
        if server is None or server.process.poll() is not None:
            server = _servers[key] = _Server(preload, environ, output)
        return server


# The server's side


def main() -> NoReturn:
    """Serves until the parent is gone; in a fork, runs the main function of its module."""
    *preload, number = sys.argv[1:]
    channel = socket.socket(fileno=int(number))
    before = {each: signal.signal(each, signal.SIG_IGN) for each in FOR_PARENT}
    for module in preload:
        importlib.import_module(module)
    # The thread that began this process may end before the forks; the channel tells from here on.
    entry.outlive_parent()
    with open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    gc.collect()
    gc.freeze()  # nothing of it is written to by a fork's collections, so its memory stays shared
    server = os.getpid()
    try:
        files = _serve(channel)
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_PARENT)
        status = _become(files, server)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    _leave(status)


def _serve(channel: socket.socket) -> list[int]:
    """Returns in forks only, with the files of the request."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    events = select.poll()
    events.register(channel, select.POLLIN)
    events.register(woken, select.POLLIN)
    running: dict[int, int] = {}  # processes by the file on which their end is told
    ended: dict[int, int] = {}
    while True:
        for file, _ in events.poll():
            if file == channel.fileno():
                word, files, *_ = socket.recv_fds(channel, 1, _MOST_FILES)
                if not word:
                    os._exit(0)  # without the seconds that libraries take to end
                status_file = files[3]
                # One that comes before the fork has its handlers waits until then.
                signal.pthread_sigmask(signal.SIG_BLOCK, FOR_PARENT)
                try:
                    pid = os.fork()
                except OSError as error:  # no memory, or too many processes
                    with suppress(OSError):
                        os.write(files[2], f"it could not be forked: {error.strerror}\n".encode())
                    _tell(status_file, _NOT_BEGUN)
                    for other in files:
                        os.close(other)
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_PARENT)
                    continue
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.setpgid(0, 0)
                    channel.close()
                    for other in (woken, wake, *running, *ended):
                        os.close(other)
                    return list(files)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_PARENT)
                with suppress(OSError):  # the fork was quicker
                    os.setpgid(pid, pid)
                running[status_file] = pid
                _tell(status_file, pid)
                events.register(status_file, 0)  # an error where its reader closes it
                for other in set(files) - {status_file}:
                    os.close(other)
            elif file == woken:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                for status_file, pid in list(running.items()):
                    # The process keeps its number until the reader has closed the file.
                    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if found is not None:
                        code = found.si_status
                        _tell(status_file, code if found.si_code == os.CLD_EXITED else -code)
                        ended[status_file] = running.pop(status_file)
            else:
                events.unregister(file)
                os.close(file)
                os.waitpid((running | ended)[file], os.WNOHANG)
                running.pop(file, None)
                ended.pop(file, None)


def _tell(file: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(file, number.to_bytes(_NUMBER_BYTES, "little", signed=True))


def _become(files: list[int], server: int) -> int:
    """Prepares a fork as `entry.main` expects, and calls it."""
    import numpy as np

    request, stdin, stdout, status_file, here, *given = files
    os.fchdir(here)
    for source, stream in ((stdin, 0), (stdout, 1), (stdout, 2)):
        os.dup2(source, stream)
    for number, name in ((1, "stdout"), (2, "stderr")):
        # The server's streams may have been made for a file, whose place a pipe can't tell.
        old = getattr(sys, name)
        made = io.FileIO(number, "w", closefd=False)
        new = io.TextIOWrapper(made, old.encoding, old.errors, write_through=True)
        setattr(sys, name, new)
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        arguments, environ, sys.path[:] = pickle.load(file)
    for number in (stdin, stdout, status_file, here):
        os.close(number)
    os.environ.clear()
    os.environ.update(environ)
    np.random.seed()  # else all forks would draw the same numbers; `random` sees to that itself
    sys.argv[1:] = [str(server), *arguments, *map(str, given)]
    return entry.main()


def _leave(status: int) -> NoReturn:
    """Ends a fork as `sys.exit` does, but leaves modules and their memory, which is shared with the
    server, as they are: taking PyTorch apart takes a fork 0.2 s of a core and 120 MB.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits, as multiprocessing's forks do
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads, or it was closed
            stream.flush()
    os._exit(status & 0xFF)
