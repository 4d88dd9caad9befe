"""A check whether PyTorch's compiler can make code for CPUs."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

_OLDEST = (2, 13)
"""The oldest PyTorch that was seen to compile a method ahead (`models.compiled`); 2.10 can't."""

_MOST_S = 60.0

_NEEDED = "#include <Python.h>\n#include <omp.h>\nint trial() { return omp_get_max_threads(); }\n"
_OPTIONS = ["-shared", "-fPIC", "-fopenmp"]


def compiler_fault() -> str | None:
    """Reason why acts and updates can't be compiled here, and what to install; None if PyTorch is
    new enough and the C++ compiler makes a small library, which takes a fraction of a second.
    """
    return too_old() or _fault(os.environ.get("CXX", "g++"), os.environ.get("PATH"))


def cuda_compiler_fault() -> str | None:
    """Reason why PyTorch's compiler can't make code for a CUDA GPU here, and what to install."""
    if importlib.util.find_spec("triton") is None:
        return "there is no Triton; install it (pip install triton)"
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named or shutil.which("nvcc") or Path("/usr/local/cuda").is_dir():
        return None
    return "there is no CUDA toolkit; install one that has nvcc, or name its folder in CUDA_HOME"


def too_old() -> str | None:
    """Reason why the installed PyTorch can't compile acts and updates, and what to install."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # made from its sources: of today, most likely
        return None
    digits = re.match(r"(\d+)\.(\d+)", version)
    if digits is None or (int(digits[1]), int(digits[2])) >= _OLDEST:
        return None
    oldest = ".".join(map(str, _OLDEST))
    return f"PyTorch {version} can't compile ahead of time; install PyTorch {oldest} or later"


@cache
def _fault(name: str, path: str | None) -> str | None:
    """Reason why a compiler can't build PyTorch's code, with advice; None: it can."""
    if shutil.which(name, path=path) is None:
        return f"there is no C++ compiler {name!r}; install g++, or name yours in CXX"
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    headers = Path(found.origin).parent / "include" / "torch" / "csrc" / "inductor"
    if not headers.is_dir():
        return f"PyTorch's headers are missing, {headers}; install a PyTorch that has them"
    if sys.platform != "linux":  # compilers elsewhere want other options
        return None
    command = [name, *_OPTIONS, "-I", sysconfig.get_path("include"), "-x", "c++", "-", "-o"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [*command, os.path.join(folder, "trial.so")],
                input=_NEEDED, capture_output=True, text=True, errors="replace", timeout=_MOST_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            return f"{name} can't be run ({error}); install g++, or name another in CXX"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    said = next((line for line in lines if "error" in line), (lines or ["it says nothing"])[-1])
    install = "install g++, or name another in CXX"
    if "Python.h" in said:
        install = "install Python's headers (python3-dev, or python3-devel)"
    return f"{name} can't compile ({said.strip()[:200]}); {install}"
