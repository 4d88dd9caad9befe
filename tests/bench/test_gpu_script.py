"""`benchmarks/gpu.py` goes on after cases that fail, hang or end their process, and what it
measures is counted as it says."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import gpu  # noqa: E402
import gpu_measures  # noqa: E402
import gpu_peers  # noqa: E402
import gpu_session  # noqa: E402
import gpu_tables  # noqa: E402

CHILD = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--only", nargs="*")
parser.add_argument("--to")
args = parser.parse_args()
for name in args.only:
    with open(args.to, "a") as rows:
        print(json.dumps({"begin": name}), file=rows)
    if name == "ends":
        print("before its end", flush=True)
        os._exit(3)
    if name == "hangs":
        time.sleep(60)
    row = {"error": "no such thing"} if name == "fails" else {"result": {"env_steps_per_s": 2000.0}}
    with open(args.to, "a") as rows:
        print(json.dumps({"end": name, **row}), file=rows)
    if name == "spoils":
        os._exit(1)
"""


def run_cases(tmp_path: Path, limits: dict[str, float], seconds: float = 30) -> list[Any]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    record = gpu.Record(tmp_path / "out.json", ["gpu.py"])
    command = [sys.executable, str(script)]
    gpu.run_part("part", limits, command, record, time.monotonic() + seconds)
    written = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert written == record.rows
    return written


def test_the_cases_after_one_that_fails_hangs_or_ends_the_process_are_run(tmp_path: Path) -> None:
    limits = {"one": 30.0, "fails": 30.0, "ends": 30.0, "hangs": 0.5, "last": 30.0}
    rows = {row["case"]: row for row in run_cases(tmp_path, limits)}
    assert list(rows) == list(limits)
    assert rows["one"]["result"] == rows["last"]["result"] == {"env_steps_per_s": 2000.0}
    assert rows["fails"]["error"] == "no such thing"
    assert rows["ends"]["error"] == "the process ended with 3"
    assert "before its end" in rows["ends"]["log"]
    assert rows["hangs"]["error"].startswith("stopped after")
    told = gpu.table(list(rows.values()))
    assert "one                              2,000 env_steps/s" in told
    assert "FAILED: the process ended with 3" in told


def test_a_process_that_ends_after_a_case_is_no_fault_of_the_next(tmp_path: Path) -> None:
    rows = run_cases(tmp_path, {"spoils": 30.0, "last": 30.0})
    assert [(row["case"], "result" in row) for row in rows] == [("spoils", True), ("last", True)]


def test_cases_for_which_no_time_is_left_are_recorded(tmp_path: Path) -> None:
    rows = run_cases(tmp_path, {"hangs": 30.0, "last": 30.0}, seconds=1.0)
    assert [row["case"] for row in rows] == ["hangs", "last"]
    assert "all time was over" in rows[0]["error"]
    assert rows[1]["error"] == "not run: no time was left"


def test_a_part_that_can_not_begin_is_recorded_case_by_case(tmp_path: Path) -> None:
    record = gpu.Record(tmp_path / "out.json", ["gpu.py"])
    gpu.run_part(
        "part", {"a": 5.0, "b": 5.0}, [sys.executable, "-c", "1/0"], record, time.monotonic() + 30
    )
    assert [row["case"] for row in record.rows] == ["a", "b"]
    assert all("ZeroDivisionError" in row["log"] for row in record.rows)


@pytest.mark.parametrize(
    ("function", "phase"),
    [("update", "update"), ("_act", "act"), ("rollout_to_device", "batch"), ("helper", "other")],
)
def test_a_wait_belongs_to_quintets_line_and_phase(function: str, phase: str) -> None:
    waits = gpu_session.Waits()
    code = f"def {function}(add):\n    inner(add)\n"
    outer: dict[str, Any] = {}
    inner = "def inner(add):\n    add()\n"
    exec(compile(inner, f"{gpu_session.OWN}ops/sums.py", "exec"), outer)
    exec(compile(code, f"{gpu_session.OWN}algorithms/x/learner.py", "exec"), outer)
    outer[function](lambda: waits.add(sys._getframe(0)))
    assert waits.phases == {phase: 1}
    assert waits.lines == {f"{phase}: ops/sums.py:2": 1}


def test_a_run_goes_through_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(gpu_session.time, "perf_counter", lambda: now)
    watch = gpu_session.Watch({"warmup": 1.0, "speed": 2.0, "kernels": 1.0, "waits": 1.0}, "cpu")

    def report(seconds: float, env_steps: int, updates: int, learning: float) -> bool:
        nonlocal now
        now += seconds
        counts = {"env_steps": env_steps, "updates": updates, "iterations": env_steps // 100}
        return watch({**counts, "time/learning_frac": learning})

    assert not report(5.0, 100, 0, 0.0)  # a replay that fills is no warm-up
    assert not report(0.5, 150, 5, 1.0)
    assert not report(0.6, 200, 10, 1.0)
    assert not report(1.0, 400, 20, 0.5)
    assert report(1.0, 800, 40, 0.25)
    told = watch.result
    assert told["env_steps_per_s"] == 300.0
    assert told["updates"] == 30
    assert told["learning_us_per_update"] == pytest.approx(0.75 / 30 * 1e6)
    assert told["shares"] == {"learning": 0.375}
    assert "waits" not in told  # the CPU has none


def test_kernels_and_waits_are_given_per_update_and_iteration() -> None:
    passed = gpu_session.Passed(seconds=0.001)
    passed.counts.update({"updates": 4, "iterations": 2})
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU

    def event(key: str, count: int, device: Any, us: float = 0.0) -> Any:
        return SimpleNamespace(key=key, count=count, device_type=device, self_device_time_total=us)

    events = [
        event("cudaLaunchKernelExC", 8, cpu),
        event("cudaGraphLaunch", 4, cpu),
        event("cudaMemcpyAsync", 2, cpu),
        event("gemm", 40, cuda, 400.0),
    ]
    told = gpu_session.kernels(events, passed)
    assert told["launches_per_update"] == 3.0
    assert told["graphs_per_update"] == 1.0
    assert told["copies_per_update"] == 0.5
    assert told["kernels_per_update"] == 10.0
    assert told["gpu_us_per_update"] == 100.0
    assert told["gpu_busy_share"] == 0.4
    seen = gpu_session.Waits()
    seen.phases.update({"update": 6, "act": 3})
    told = gpu_session.waits(seen, passed)
    assert told["per_iteration"] == {"update": 3.0, "act": 1.5}
    assert told["per_update"] == 1.5


def test_differences_count_large_numbers_by_their_size() -> None:
    cpu = {"w": torch.tensor([0.01, 1000.0]), "count": torch.tensor([3])}
    near = {"w": torch.tensor([0.01 + 5e-5, 1000.05]), "count": torch.tensor([4])}
    assert gpu_measures.differences(near, cpu)["equal"]
    far = {"w": torch.tensor([0.01, 1000.2]), "count": torch.tensor([3])}
    told = gpu_measures.differences(far, cpu)
    assert not told["equal"]
    assert told["numbers_over_tolerance"] == 1
    assert told["where"] == "w"


@pytest.mark.slow
def test_the_whole_command_measures_on_the_cpu(tmp_path: Path) -> None:
    parts = ["equality:ddpg", "steps:appo CartPole"]
    command = ["--device", "cpu", "--each", "1", "--to", str(tmp_path / "gpu.json")]
    told = subprocess.run(
        [sys.executable, str(FOLDER / "gpu.py"), *command, "--parts", *parts],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    equal, eager, graphs = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert equal["result"]["equal"]
    assert equal["result"]["updates"] >= 3
    assert eager["result"]["env_steps_per_s"] > 0
    assert eager["result"]["options"]["runtime.device"] == "cpu"
    assert eager["result"]["options"]["env.streams_per_group"] > 0
    assert "graph" in graphs["error"]  # only on a GPU
    assert "ddpg mlp                         equal" in told.stdout


@pytest.mark.slow
def test_two_runs_have_the_same_bytes() -> None:
    asked = gpu_measures.Asked("cpu", 1.0, None)
    run = gpu_measures.Learned("appo", "CartPole-v1", 1500, {})
    assert gpu_measures.same_twice(asked, run, "off") == {"same_twice": True, "updates": 2}


def test_parts_and_cases_are_chosen_by_words() -> None:
    parts = {
        "a": [SimpleNamespace(name=name, limit_s=1.0) for name in ("one", "two", "three")],
        "b": [SimpleNamespace(name="four", limit_s=2.0)],
    }
    assert list(gpu.chosen([], parts)) == ["a", "b"]
    assert gpu.chosen(["b", "a:wo,ee"], parts) == {"b": {"four": 2.0}, "a": {"two": 1, "three": 1}}
    exact = {"a": [SimpleNamespace(name=name, limit_s=1.0) for name in ("appo", "ppo")]}
    assert gpu.chosen(["a:ppo"], exact) == {"a": {"ppo": 1.0}}
    for wrong in ("c", "a:five", "a:one,five"):
        with pytest.raises(ValueError, match=f"{wrong!r} must name a part"):
            gpu.chosen([wrong], parts)


PEER = """
import sys
from distutils.util import strtobool
import envpool, gym, tqdm, wandb
from torchrl._utils import timeit
from torch.utils.tensorboard import SummaryWriter

class Counted(gym.Wrapper):
    def step(self, action):
        obs, reward, done, info = super().step(action)
        return obs, reward, done, info

envs = Counted(envpool.make(sys.argv[1], env_type="gym", num_envs=2, seed=1))
assert isinstance(envs.action_space, gym.spaces.Discrete) and strtobool("true")
assert envs.reset().shape == (2, 4)
wandb.init(project="p")
writer = SummaryWriter("runs")
assert list(tqdm.tqdm(total=3, iterable=range(3), disable=True)) == [0, 1, 2]
bar = tqdm.tqdm(range(10**9)) if "bar" in sys.argv else range(10**9)
for step in bar:
    with timeit("step"):
        _, _, done, _ = envs.step(envs.reset()[:, 0].astype(int) * 0)
    assert done.shape == (2,)
    wandb.log({"speed": 1.0}, step=2 * step)
    if "bar" in sys.argv:
        bar.set_description("fast")
    else:
        writer.add_text("a", "b")
        writer.add_scalar("losses", 1, 2 * step)
        writer.add_scalar("charts/SPS", 1, 2 * step)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bar", "writer"])
def test_a_peers_file_runs_unchanged(way: str, tmp_path: Path) -> None:
    pytest.importorskip("envpool", reason="peers' files use EnvPool")
    pytest.importorskip("tqdm", reason="peers' files use tqdm")
    (tmp_path / "peer.py").write_text(PEER)
    to = tmp_path / "rates.json"
    command = [sys.executable, str(FOLDER / "gpu_peers.py"), "peer.py", "--seconds", "0.3"]
    subprocess.run(
        [*command, "--to", str(to), "--", "CartPole-v1", way], cwd=tmp_path, timeout=120, check=True
    )
    told = json.loads(to.read_text())
    assert told["env_steps_per_s"] > 0
    assert told["env_steps"] % 2 == 0


def test_a_peers_first_iterations_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(gpu_peers.time, "perf_counter", lambda: now)
    marks = gpu_peers.Marks(3.0, tmp_path / "rates.json")

    def iteration(seconds: float, env_steps: int) -> Any:
        nonlocal now
        now += seconds
        marks.stepped(env_steps)
        marks.iteration()
        return json.loads((tmp_path / "rates.json").read_text())

    marks.iterations = gpu_peers.ITERATIONS - 2
    with pytest.raises(FileNotFoundError):
        iteration(50.0, 500)
    assert iteration(10.0, 500)["env_steps_per_s"] is None
    assert iteration(1.5, 1000)["first_iterations_s"] == 60.0
    assert iteration(1.0, 1000)["env_steps_per_s"] is None
    told = iteration(2.0, 2000)
    assert told["env_steps_per_s"] == 1000.0
    assert told["seconds"] == 2.0
    with pytest.raises(SystemExit):
        iteration(1.5, 4000)
    told = json.loads((tmp_path / "rates.json").read_text())
    assert told["env_steps_per_s"] == round(6000 / 3.5, 1)


def test_a_record_is_kept_without_logs_and_paths_and_told_in_tables() -> None:
    speed = {
        "env_steps_per_s": 6800.0,
        "learning_us_per_update": 400.0,
        "shares": {"learning": 0.5, "acting": 0.25},
        "gpu_gib": 0.5,
    }
    seen = {
        "launches_per_update": 3.0,
        "kernels_per_update": 210.0,
        "gpu_us_per_update": 300.0,
        "gpu_busy_share": 0.75,
    }
    equal = {"worst": 2e-4, "equal": False, "numbers_over_tolerance": 3, "updates": 4}
    failed = {
        "error": "RuntimeError: it ended with 1: ... File /home/me/peer.py",
        "log": "/home/me: long",
    }
    rows = [
        {"part": "pong", "case": "ppo", "result": speed},
        {"part": "peers", "case": "CleanRL", "result": {"env_steps_per_s": None}},
        {
            "part": "steps",
            "case": "ppo graph",
            "result": {**speed, "kernels": seen, "waits": {"per_iteration": {"update": 2.0}}},
        },
        {"part": "equality", "case": "ppo mlp", "result": equal},
        {
            "part": "exactness",
            "case": "ppo mlp graph",
            "result": {"same_twice": True, "same_as_eager": False, "updates": 4},
        },
        {"part": "peers", "case": "LeanRL", **failed},
    ]
    record = gpu_tables.kept({"command": ["/home/me/gpu.py"], "rows": rows})
    assert "/home" not in json.dumps(record)
    assert gpu_tables.told(record).splitlines() == [
        "| part | run | env_steps/s | us per update | learning | acting | stepping | waiting |"
        " GPU GiB |",
        "|---|---|---|---|---|---|---|---|---|",
        "| pong | ppo | 6,800 | 400 | 50% | 25% |  |  | 0.50 |",
        "| peers | CleanRL | too short |  |  |  |  |  |  |",
        "",
        "| updates | us | launches | kernels | GPU us | GPU busy | waits of an iteration |",
        "|---|---|---|---|---|---|---|",
        "| ppo graph | 400 | 3.0 | 210.0 | 300.0 | 75% | update 2 |",
        "",
        "| run | updates | farthest from the CPU | the same bytes twice | as graphs: those of"
        " eager |",
        "|---|---|---|---|---|",
        "| ppo mlp | 4 | 2.0e-04 (**3 over 1e-4**) |  |  |",
        "| ppo mlp graph | 4 |  | yes | **no** |",
        "",
        "Ended without a result: peers: LeanRL (RuntimeError: it ended with 1: ... File).",
    ]
    assert gpu_tables.told(None) == gpu_tables.NOTHING
