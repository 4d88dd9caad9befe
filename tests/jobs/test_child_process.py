"""Processes that are forked from one that has imported what they need."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from quintet.jobs.child_process import AVAILABLE, Child, _full_environ, _server_for, _servers

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="Linux only")

PRELOAD = ["json"]


@pytest.fixture
def begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Child, list[str]]]:
    """Begins a process whose `main` has the given lines; with what it prints."""
    monkeypatch.syspath_prepend(tmp_path)

    def made(name: str, *lines: str, preload: list[str] = PRELOAD) -> tuple[Child, list[str]]:
        body = "\n".join(f"    {line}" for line in lines)
        text = f"import os, random, sys, time\nimport numpy as np\ndef main():\n{body}\n"
        (tmp_path / f"{name}.py").write_text(text)
        said: list[str] = []
        return Child(name, name, said.append, preload=preload), said

    return made


def server_of(child: Child) -> psutil.Process:
    end = time.monotonic() + 30
    while child._process._pid is None:  # type: ignore[union-attr]
        child.status  # noqa: B018
        assert time.monotonic() < end
        time.sleep(0.01)
    parent = psutil.Process(child.pid).parent()
    assert parent is not None
    return parent


def test_they_have_one_parent_which_has_imported_what_they_need(begin) -> None:
    lines = ("print(os.getppid(), 'json' in sys.modules)", "return 0")
    (one, first), (two, second) = begin("one", *lines), begin("two", *lines)
    assert (one.wait(30), two.wait(30)) == (0, 0)
    assert first == second
    server, imported = first[0].split()
    assert imported == "True"
    assert psutil.Process(int(server)).ppid() == os.getpid()


def test_one_that_cant_be_forked_is_told_and_the_others_go_on(begin, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(
        "import errno, os\n"
        "fork, left = os.fork, [1]\n"
        "def limited():\n"
        "    if not left:\n"
        "        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "    left.pop()\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    first, _ = begin("first", "sys.stdin.read()", "return 4", preload=["full"])
    server = server_of(first)
    second, said = begin("second", "return 0", preload=["full"])
    assert second.wait(30) == second.status == os.EX_OSERR
    second.kill()
    time.sleep(0.2)
    assert "it could not be forked: Resource temporarily unavailable" in said
    assert server.is_running()
    assert first.status is None
    first.kill()
    first.wait(30)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("return 7", 7),
        ("sys.exit(3)", 3),
        ("raise ValueError('no')", 1),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_how_one_has_ended(begin, line: str, status: int) -> None:
    child, said = begin("ends", line)
    assert child.wait(30) == child.status == status
    assert ("ValueError: no" in said) == ("ValueError" in line)


def test_what_is_left_for_the_end_is_done(begin) -> None:
    child, said = begin(
        "tidies",
        "import atexit, threading",
        "atexit.register(print, 'tidied up')",
        "threading.Thread(target=lambda: (time.sleep(0.2), print('was awaited'))).start()",
        "sys.exit(300)",
    )
    assert child.wait(30) == 300 % 256
    assert said == ["was awaited", "tidied up"]


def test_its_output_is_a_pipe_though_the_server_began_with_a_file(begin, tmp_path: Path) -> None:
    preload = ["json", "html"]
    with (tmp_path / "said").open("w") as file:
        _server_for(preload, _full_environ({}), file.fileno())
    lines = ("sys.stdout.reconfigure(errors='replace')", "print('done')", "return 0")
    child, said = begin("piped", *lines, preload=preload)
    assert child.wait(30) == 0
    assert said == ["done"]


def test_draws_of_the_global_generators_differ(begin) -> None:
    lines = ("print(np.random.random(), random.random())", "return 0")
    children = [begin(f"draws{k}", *lines) for k in range(3)]
    for child, _ in children:
        assert child.wait(30) == 0
    draws = [said[0].split() for _, said in children]
    assert len({draw[0] for draw in draws}) == len({draw[1] for draw in draws}) == 3


def test_variables_and_folder_are_those_of_the_moment(
    begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin("earlier", "return 0")[0].wait(30)
    monkeypatch.setenv("QUINTET_TEST", "now")
    monkeypatch.chdir(tmp_path)
    child, said = begin("later", "print(os.environ['QUINTET_TEST'], os.getcwd())", "return 0")
    assert child.wait(30) == 0
    assert said == [f"now {tmp_path}"]


def test_a_variable_that_libraries_read_when_they_are_loaded_has_another_server(
    begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("print(os.getppid())", "return 0")
    (one, first) = begin("one", *lines)
    monkeypatch.setenv("OMP_DYNAMIC", "FALSE")
    (two, second) = begin("two", *lines)
    assert (one.wait(30), two.wait(30)) == (0, 0)
    assert first != second


def test_a_kill_takes_what_it_has_begun_itself(begin) -> None:
    child, said = begin(
        "begins",
        "import subprocess",
        "other = subprocess.Popen(['sleep', '1000'])",
        "print(other.pid)",
        "return 0",
    )
    assert child._process.wait(30) == 0
    end = time.monotonic() + 10
    while not said:
        assert time.monotonic() < end
        time.sleep(0.01)
    other = psutil.Process(int(said[0]))
    child.kill()
    child.wait()
    while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_is_killed_takes_its_forks_and_is_replaced(begin) -> None:
    child, _ = begin("waits", "time.sleep(1000)")
    server_of(child).kill()
    assert child.wait(30) == -signal.SIGKILL
    child, _ = begin("next", "return 5")
    assert child.wait(30) == 5


def test_a_server_that_can_not_import_says_so(begin, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('no such library')\n")
    child, said = begin("never", "return 0", preload=["broken"])
    assert child.wait(30) == 1
    assert "ImportError: no such library" in said


def test_one_that_has_yet_to_begin_can_be_killed(begin, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1000)\n")
    child, _ = begin("never", "return 0", preload=["slow"])
    assert child.status is None
    with pytest.raises(subprocess.TimeoutExpired):
        child._process.wait(0.1)
    child.kill()
    assert child.wait(10) == -signal.SIGKILL


def test_no_file_of_another_is_open(begin) -> None:
    """A file that another holds open would hide its end from who reads it."""
    waits, _ = begin("waits", "time.sleep(1000)")
    server_of(waits)
    child, said = begin("lists", "print(sorted(map(int, os.listdir('/proc/self/fd'))))", "return 0")
    assert child.wait(30) == 0
    assert said == ["[0, 1, 2, 3]"]  # 3: of the list itself
    waits.kill()
    waits.wait()


def test_signals_to_all_processes_leave_the_server_and_are_heeded_by_its_forks(begin) -> None:
    child, _ = begin("one", "sys.stdin.read()", "return 0")
    server = server_of(child)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        server.send_signal(number)
    other, said = begin(
        "two", "import signal", "print(repr(signal.getsignal(signal.SIGTERM)))", "return 3"
    )
    assert other.wait(30) == 3
    assert "SIG_DFL" in said[0]
    assert server.is_running()
    child.terminate()
    assert child.wait(30) == -signal.SIGTERM


def test_a_signal_waits_for_one_that_has_yet_to_begin(begin, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(1)\n")
    child, _ = begin("one", "sys.stdin.read()", "return 0", preload=["slow_to_import"])
    child.terminate()
    assert child.wait(30) == -signal.SIGTERM
    other, _ = begin("two", "return 5", preload=["slow_to_import"])
    assert other.wait(30) == 5


def test_a_request_waits_until_the_kernel_takes_it(begin, monkeypatch) -> None:
    begin("first", "return 0")[0].wait(30)
    send, faults = socket.send_fds, [errno.ETOOMANYREFS, errno.ETOOMANYREFS]

    def refused(*arguments):
        if faults:
            raise OSError(faults.pop(), "not now")
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", refused)
    assert begin("one", "return 6")[0].wait(30) == 6
    faults.append(errno.ENOBUFS)
    assert begin("two", "return 7")[0].wait(30) == os.EX_OSERR


def test_forks_of_this_process_keep_no_server_alive(begin) -> None:
    begin("one", "return 0")[0].wait(30)
    assert _servers
    if not (pid := os.fork()):
        os._exit(len(_servers))
    assert os.waitpid(pid, 0)[1] == 0
    assert begin("two", "return 8")[0].wait(30) == 8


def test_output_without_an_end_of_line_is_told_in_parts(begin) -> None:
    lines = ("sys.stdout.write('x' * 200_000)", "sys.stdout.flush()", "sys.stdin.read()")
    child, said = begin("one", *lines, "return 0")
    end = time.monotonic() + 30
    while sum(map(len, said)) < 2**17 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(said) >= 2
    child.kill()
    child.wait(30)


def test_it_ends_with_the_process_that_began_it(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom quintet.jobs.child_process import Child\n"
        "child = Child('waits', 'waits', print, preload=['json'])\nsys.stdin.read()\n"
    )
    (tmp_path / "waits.py").write_text(
        "import os, time\ndef main():\n    print(os.getpid(), os.getppid(), flush=True)\n"
        "    time.sleep(1000)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    both = [psutil.Process(int(number)) for number in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 5
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in both):
        assert time.monotonic() < end
        time.sleep(0.01)
