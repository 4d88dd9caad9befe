"""Time of one action of an MLP of 64 x 64 on one thread: `Policy.act`, its exports, and
Stable-Baselines3's `predict` and its network in ONNX; time and memory from the start to the first
action.

python benchmarks/export_speed.py [--sb3 PYTHON]

--sb3: a Python with stable-baselines3, onnx, onnxscript and onnxruntime; without it these rows are
left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SIZE, ACTIONS = 8, 4
CALLS, BLOCKS = 2000, 15

TIMED = """
import time
def timed(act):
    for _ in range(200):
        act()
    best = []
    for _ in range({blocks}):
        begin = time.perf_counter()
        for _ in range({calls}):
            act()
        best.append((time.perf_counter() - begin) / {calls})
    return sorted(best)[len(best) // 2]
"""

START = """
import json, re, sys, time
begin = time.perf_counter()
import numpy as np
obs = np.linspace(-1, 1, {size}).astype(np.float32)
{load}
{act}
first_s = time.perf_counter() - begin
{timed}
seconds = timed(lambda: {act})
peak = int(re.search("VmHWM: *\t*(.*) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps([seconds * 1e3, first_s, peak]))
"""

WAYS = {
    "`policy.act`": (
        "import torch; torch.set_num_threads(1); import quintet; "
        "policy = quintet.load('{root}/policy')",
        "policy.act(obs)",
    ),
    "`policy.onnx`, onnxruntime": (
        "import onnxruntime as ort; options = ort.SessionOptions(); "
        "options.intra_op_num_threads, options.log_severity_level = 1, 3; "
        "session = ort.InferenceSession('{root}/onnx/policy.onnx', options)",
        "session.run(['action'], {{'obs': obs[None]}})",
    ),
    "`policy.npz`, NumPy": (
        "sys.path.insert(0, '{root}/numpy'); from numpy_policy import Program; "
        "program = Program('{root}/numpy/policy.npz', ['action'])",
        "program({{'obs': obs[None]}})",
    ),
}
SB3 = {
    "Stable-Baselines3, `predict`": (
        "import torch; torch.set_num_threads(1); from stable_baselines3 import PPO; "
        "model = PPO.load('{root}/sb3.zip', device='cpu')",
        "model.predict(obs, deterministic=True)",
    ),
    "Stable-Baselines3, its actor in ONNX, onnxruntime": (
        "import onnxruntime as ort; options = ort.SessionOptions(); "
        "options.intra_op_num_threads, options.log_severity_level = 1, 3; "
        "session = ort.InferenceSession('{root}/sb3.onnx', options)",
        "session.run(None, {{'input': obs[None]}})",
    ),
}

MAKE_SB3 = """
import gymnasium, numpy as np, torch
from stable_baselines3 import PPO
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, ({size},), np.float32)
    action_space = gymnasium.spaces.Discrete({actions})
    def reset(self, seed=None, options=None):
        return np.zeros({size}, np.float32), {{}}
    def step(self, action):
        return np.zeros({size}, np.float32), 0.0, False, False, {{}}
layers = dict(net_arch=dict(pi=[64, 64], vf=[64, 64]))
model = PPO("MlpPolicy", Env(), device="cpu", policy_kwargs=layers)
model.save("{root}/sb3.zip")
class Network(torch.nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy
    def forward(self, x):
        hidden = self.policy.mlp_extractor.forward_actor(x)
        return self.policy.action_net(hidden).argmax(1)
torch.onnx.export(Network(model.policy), (torch.zeros(1, {size}),), "{root}/sb3.onnx",
                  input_names=["input"], dynamo=True, external_data=False)
"""


def make(root: Path) -> None:
    """A policy of quintet and its exports."""
    import gymnasium

    import quintet

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        action_space = gymnasium.spaces.Discrete(ACTIONS)

        def reset(self, seed=None, options=None):  # noqa: ARG002
            super().reset(seed=seed)
            self.left = 50
            return self.np_random.normal(size=SIZE).astype(np.float32), {}

        def step(self, action):  # noqa: ARG002
            self.left -= 1
            obs = self.np_random.normal(size=SIZE).astype(np.float32)
            return obs, 0.0, self.left == 0, False, {}

    config = {"normalize_observations": True, "eval.episodes": 0, "report.progress": False}
    policy = quintet.train("ppo", Env, 4096, run_dir=root / "run", config=config).policy
    policy.save(root / "policy")
    for format in ("onnx", "numpy"):
        policy.export(root / format, format, steps=1000, observations="space")


def measure(python: str, root: Path, load: str, act: str) -> list[float]:
    """Milliseconds of an action, seconds to the first one, peak memory in MiB."""
    parts = {"load": load.format(root=root), "act": act.format(), "size": SIZE}
    parts["timed"] = TIMED.format(blocks=BLOCKS, calls=CALLS)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", START.format(**parts)], env=env, capture_output=True, text=True, check=True
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sb3", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root)
        rows = [(name, sys.executable, *way) for name, way in WAYS.items()]
        if given.sb3:
            code = MAKE_SB3.format(root=root, size=SIZE, actions=ACTIONS)
            subprocess.run([given.sb3, "-c", code], check=True, capture_output=True)
            rows += [(name, given.sb3, *way) for name, way in SB3.items()]
        print("| | one action | to the first action | peak memory |\n|---|---|---|---|")
        for name, python, load, act in rows:
            ms, first_s, peak = measure(python, root, load, act)
            print(f"| {name} | {ms:.3f} ms | {first_s:.2f} s | {peak:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
