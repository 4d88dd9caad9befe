"""Python starts with this file where the tests pretend to be on macOS: what only Linux has is gone.

What chooses its C code by the system is imported before.
"""

import os
import resource
import select
import signal
import socket
import sys

import envpool  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import psutil
import torch

LINUX_ONLY = {
    os: "memfd_create MFD_CLOEXEC sched_getaffinity sched_setaffinity sched_setscheduler "
    "sched_param SCHED_BATCH pidfd_open eventfd posix_fallocate posix_fadvise copy_file_range "
    "splice",
    resource: "RUSAGE_THREAD prlimit",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "SO_PEERCRED",
}
MAY_READ_PROC = (os.path.dirname(psutil.__file__), os.path.dirname(torch.__file__))


def _no_proc(event: str, arguments: tuple[object, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir"):
        return
    path, reader = arguments[0], sys._getframe(1).f_code.co_filename
    hidden = isinstance(path, str) and path.startswith(("/proc/", "/sys/fs/cgroup"))
    if hidden and not reader.startswith(MAY_READ_PROC):
        raise FileNotFoundError(2, os.strerror(2), path)


for module, names in LINUX_ONLY.items():
    for name in names.split():
        if name in vars(module):  # some are newer than the oldest Python
            delattr(module, name)
sys.addaudithook(_no_proc)
sys.platform = "darwin"
