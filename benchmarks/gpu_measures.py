"""What the cases of `gpu_cases.py` measure; heavy packages are imported where they are used."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

Options = Mapping[str, Any]
Result = dict[str, Any]

TOLERANCE = 1e-4

ROUND = 32
"""Steps of all streams between two looks at the clock."""

SERIAL: Options = {"runtime.kind": "serial"}

SMALL: Options = {
    **SERIAL,
    "preset": "none",
    "env.num_streams": 8,
    "env.streams_per_group": 8,
    "model.policy_hidden": [32],
    "runtime.precision": "fp32",
    "runtime.actor_precision": "fp32",
    "runtime.threads": 1,
    "runtime.actor_threads": 1,
}


class Learned(NamedTuple):
    """A short run for comparisons; `env_steps` are those of about three updates."""

    algo: str
    env: str
    env_steps: int
    options: Options


class Asked(NamedTuple):
    """What all cases are given.

    seconds: length of a speed measurement.
    """

    device: str
    seconds: float
    peers: Path | None


def environment(asked: Asked) -> Result:
    """The machine, the versions, and how long the host takes for a launch and for a wait."""
    import torch

    from quintet.system.provenance import revision

    names = ("torch", "triton", "numpy", "gymnasium", "envpool", "pydantic", "tensordict")
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    found: Result = {
        "python": platform.python_version(),
        "versions": versions,
        "commit": revision(Path(__file__).parent, 12),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "device": asked.device,
    }
    if torch.device(asked.device).type == "cuda":
        found |= _card(torch.device(asked.device))
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "?")


def _card(device: Any) -> Result:
    import torch

    card = torch.cuda.get_device_properties(device)
    x = torch.ones(64, 64, device=device)
    for _ in range(20):
        (x + x).sum().item()

    def microseconds(call: Callable[[], object], calls: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return round((time.perf_counter() - begin) / calls * 1e6, 2)

    return {
        "card": card.name,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "launch_us": microseconds(lambda: x + x, 2000),
        "item_us": microseconds(lambda: x[0, 0].item(), 500),
    }


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.split("\n")[0].strip()


def same_as_cpu(asked: Asked, run: Learned) -> Result:
    """The largest difference of the tensors after a short run on the device and on the CPU."""
    from gpu_session import trained

    options = {**SMALL, **run.options, "runtime.compile": "off"}
    (ours, updates), (cpu, _) = (
        trained(run.algo, run.env, run.env_steps, options, device)
        for device in (asked.device, "cpu")
    )
    return {**differences(ours, cpu), "updates": updates}


def differences(ours: Mapping[str, Any], cpu: Mapping[str, Any]) -> Result:
    """Absolute differences, those of numbers above 1 as fractions of them."""
    worst, where, over, count = 0.0, "", 0, 0
    for name, x in cpu.items():
        if not x.is_floating_point():
            continue
        y = ours[name].double()
        gap = (y - x.double()).abs() / x.double().abs().clamp(min=1)
        over, count = over + int((gap > TOLERANCE).sum()), count + gap.numel()
        if gap.numel() and float(gap.max()) > worst:
            worst, where = float(gap.max()), name
    return {
        "worst": worst,
        "where": where,
        "numbers_over_tolerance": over,
        "numbers": count,
        "equal": over == 0,
    }


def same_twice(asked: Asked, run: Learned, compile_: str) -> Result:
    """Whether two runs give the same bytes, and with graphs those of the eager run."""
    from gpu_session import trained

    options = {**SMALL, **run.options, "runtime.compile": compile_}
    (first, updates), (second, _) = (
        trained(run.algo, run.env, run.env_steps, options, asked.device) for _ in range(2)
    )
    result: Result = {"same_twice": _equal(first, second), "updates": updates}
    if compile_ != "off":
        eager = {**options, "runtime.compile": "off"}
        other, _ = trained(run.algo, run.env, run.env_steps, eager, asked.device)
        result["same_as_eager"] = _equal(first, other)
    return result


def _equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def watch(asked: Asked, algo: str, env: str, options: Options) -> Result:
    """Time, launches and kernels per update, and waits per iteration."""
    from gpu_session import watched

    part = asked.seconds / 6
    regions = {"warmup": 2 * part, "speed": 2 * part, "kernels": part, "waits": part}
    return watched(algo, env, {**SERIAL, **options}, regions, asked.device)


def speed(asked: Asked, algo: str, env: str, options: Options, device: str) -> Result:
    """env_steps per second of training, after a warm-up."""
    from gpu_session import watched

    regions = {"warmup": asked.seconds / 3, "speed": asked.seconds}
    return watched(algo, env, options, regions, device)


def peer(
    asked: Asked, file: str, arguments: tuple[str, ...], env: str, seconds: float | None = None
) -> Result:
    """env_steps per second of a file of CleanRL or LeanRL."""
    if asked.peers is None or not (asked.peers / file).is_file():
        raise FileNotFoundError(f"{file} is not there: name the folder that has it by --peers")
    # Both take a GPU if there is one; each has its own way to leave it.
    on = ("--no-cuda",) if "torchcompile" in file else ("--cuda", "false")
    on = on if asked.device == "cpu" else ()
    with TemporaryDirectory() as folder:
        to = Path(folder) / "rates.json"
        command = [
            sys.executable,
            str(Path(__file__).with_name("gpu_peers.py")),
            str((asked.peers / file).resolve()),
            "--seconds",
            str(asked.seconds if seconds is None else seconds),
            "--to",
            str(to),
            "--",
            "--env-id",
            env,
            *arguments,
            *on,
        ]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        print(ended.stdout[-3000:], ended.stderr[-8000:], flush=True)
        if ended.returncode or not to.exists():
            said = " ".join(ended.stderr.splitlines()[-12:])[-500:]
            raise RuntimeError(f"it ended with {ended.returncode}: ...{said}")
        return dict(json.loads(to.read_text()))


def random_steps(asked: Asked, num_streams: int, as_graph: bool = False) -> Result:
    """env_steps per second of CartPole in PyTorch with random actions, nothing else.

    as_graph: whether ROUND steps are one CUDA graph, as the steps of a training unroll are.
    """
    import torch

    from quintet.envs.torch_toys import CartPole
    from quintet.runtime.device_rows import recorded

    device = torch.device(asked.device)
    env, draws = CartPole(num_streams, device), torch.Generator(device)
    env.restart(1)

    def steps() -> None:
        for _ in range(ROUND):
            env.step(torch.randint(2, (num_streams,), generator=draws, device=device))

    steps()
    run = recorded(steps, device, (*env.generators, draws)) if as_graph else steps

    def seconds(rounds: int) -> float:
        begin = time.perf_counter()
        for _ in range(rounds):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds(5)
    rounds = max(5, int(asked.seconds / 2 / seconds(1)))
    return {"env_steps_per_s": round(rounds * ROUND * num_streams / seconds(rounds), 0)}
