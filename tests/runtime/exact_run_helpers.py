"""One training run in a process of its own, for the exactness tests:
`exact_run_helpers.py KIND RUN_DIR`.

With RESUME=exact in the environment it goes on from the newest exact checkpoint.  With
KILL_IN_WRITE=N the process kills itself inside its N-th checkpoint write, when the files are there
and the folder has not got its name yet.
"""

import os
import signal
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from corridor_helpers import CURRICULA, Corridor

import quintet
from quintet.checkpoints import checkpoint

COMMON = {"eval.episodes": 0, "report.interval_s": 0.0, "report.sinks": ["jsonl"]}
SMALL = {"env.num_streams": 4, "unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 2}
DDPG = {
    "unroll_steps": 10,
    "batch_size": 32,
    "updates_per_env_step": 0.25,
    "replay_capacity_steps": 2_000,
    "replay_start_steps": 200,
    "exploration": "adaptive-param_0.2,ou_0.1",
    "normalize_returns": True,
    "popart": True,
}
ACER = {
    "env.num_streams": 4,
    "unroll_steps": 10,
    "replay_ratio": 1.5,
    "replay_capacity_steps_per_stream": 500,
    "replay_start_steps_per_stream": 50,
    "normalize_observations": True,
    "reward_normalizer": "return_std",
}


class Drifting(gymnasium.Env):
    """A plain Python environment whose episodes end both ways, when depends on the seed."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float64)
    action_space: gymnasium.Space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3)
        self.steps = 0
        return self.place.clip(-10, 10), {}

    def step(self, action):
        self.steps += 1
        self.place = 0.9 * self.place + 0.3 * self.np_random.normal(size=3) + 0.2 * (action - 1)
        terminated = bool(self.place.sum() > 3.0)
        return (
            self.place.clip(-10, 10),
            float(-abs(self.place[0])),
            terminated,
            self.steps >= 40,
            {},
        )


class Pushed(Drifting):
    """With a continuous action."""

    action_space = gymnasium.spaces.Box(0.0, 2.0, (), np.float64)


KINDS = {
    "atari": ("Pong-v5", 3200, SMALL | {"model.shared_torso": True, "runtime.threads": 2}),
    "mujoco": ("HalfCheetah-v4", 12_801, SMALL | {"env.num_streams": 8}),
    "python": (None, 12_801, SMALL | {"env.num_streams": 8}),
    # evaluations between the checkpoints must leave no trace, nor may compiling
    "recurrent": (
        None,
        12_801,
        SMALL
        | {"env.num_streams": 8, "model.core": "lstm", "model.core_size": 8, "bptt_steps": 8}
        | {"eval.episodes": 2, "eval.interval": 1_500},
    ),
    # as Atari games are trained by default
    "compiled_atari": (
        "Pong-v5",
        3200,
        SMALL
        | {"model.shared_torso": True, "runtime.threads": 2}
        | {"runtime.compile": "on", "runtime.precision": "bf16"},
    ),
    # whatever the workers do meanwhile, and whichever of them is killed
    "lockstep": (
        None,
        12_801,
        SMALL | {"env.num_streams": 8, "runtime.kind": "lockstep", "runtime.num_workers": 2},
    ),
    "lockstep_pool": (
        "HalfCheetah-v4",
        12_801,
        SMALL
        | {"env.num_streams": 8, "runtime.kind": "lockstep", "runtime.num_workers": 2}
        | {"runtime.inference": "server", "model.core": "gru", "model.core_size": 8}
        | {"bptt_steps": 8},
    ),
    # with a replay, noises that go on from step to step, and weights of a stream's own
    "ddpg": (None, 8_001, DDPG | {"env.num_streams": 4}),
    "ddpg_lockstep": (
        None,
        8_001,
        DDPG
        | {"env.num_streams": 4, "runtime.kind": "lockstep", "runtime.num_workers": 2}
        | {"runtime.inference": "server"},
    ),
    # unrolls of old weights with their states, and actions that updates draw
    "acer": (None, 8_001, ACER | {"model.core": "lstm", "model.core_size": 8}),
    "acer_lockstep": (
        Pushed,
        8_001,
        ACER | {"runtime.kind": "lockstep", "runtime.num_workers": 2},
    ),
    # exact checkpoints come where few steps are cut, others in between
    "seldom": (None, 25_601, SMALL | {"env.num_streams": 8, "checkpoint.max_cut_frac": 0.01}),
    # options of resets that change, of which environments know by grants
    **{
        f"{kind}{'_lockstep' * several}": (
            Corridor,
            12_801,
            SMALL
            | {"env.num_streams": 8, "env.curriculum": record, "env.success": "info:won"}
            | ({"runtime.kind": "lockstep", "runtime.num_workers": 2} if several else {}),
        )
        for kind, record in CURRICULA.items()
        for several in (False, True)
    },
    "compiled": ("CartPole-v1", 12_801, SMALL | {"env.num_streams": 8, "runtime.compile": "on"}),
}


def kill_in_write(number: int) -> None:
    """Kills this process inside its `number`-th checkpoint write."""
    whole, count = checkpoint._put_in_place, 0

    def dying(temporary: Path, place: Path) -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        whole(temporary, place)

    checkpoint._put_in_place = dying


def main(kind: str, run_dir: str) -> None:
    env, total, config = KINDS[kind]
    if number := os.environ.get("KILL_IN_WRITE"):
        kill_in_write(int(number))
    # Sleeping gives the killer time between two checkpoints; it must not matter for the bytes.
    pause_s = float(os.environ.get("PAUSE_S", "0"))
    named = kind.partition("_")[0]
    algo = named if named in ("ddpg", "acer") else "ppo"
    result = quintet.train(
        algo,
        env or (Pushed if algo == "ddpg" else Drifting),
        total_steps=total,
        seed=7,
        run_dir=run_dir,
        config=COMMON
        | {"checkpoint.interval_iterations": 5, "checkpoint.max_cut_frac": 1.0}
        | {"resume": os.environ.get("RESUME", "latest")}
        | config,
        on_report=lambda _: time.sleep(pause_s),
    )
    print("updates", int(result.metrics.get("updates", 0)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
