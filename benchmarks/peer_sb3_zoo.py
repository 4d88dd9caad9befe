"""Stable-Baselines3 with the settings of its RL Zoo: the peers' cells of suite.py, and the peer's
side of time_to_threshold.py.

    python peer_sb3_zoo.py TASK                         (a `Task` of one_seed.py, as JSON)
    python peer_sb3_zoo.py threshold ALGO ENV THRESHOLD EPISODES SEED GIVE_UP_AT

Its Python needs `rl_zoo3`, which brings the settings; suite.py makes one.  MinAtar, for which the
zoo has no settings, has those of `MINATAR`.  Environments are Gymnasium's, in one process, as the
zoo makes them.
"""

import contextlib
import importlib.metadata
import io
import json
import sys
import time
from collections import deque
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from one_seed import POINTS, Task, commit, end_with_parent
from records import given, write_whole
from rl_zoo3.exp_manager import ExperimentManager
from rows import PEER
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

SNAPSHOTS = 20
"""Policies of a run that are kept beside its first, at equal distances, and played at its end."""

IDS = {"Pong-v5": "PongNoFrameskip-v4"}
"""Names of environments that the zoo knows by another one."""


class MinAtarNetwork(BaseFeaturesExtractor):
    """16 filters of 3 x 3 and 128 units.

    Source: Young and Tian 2019 (arXiv 1903.03176).
    """

    def __init__(self, observation_space: Any):
        super().__init__(observation_space, 128)
        channels = observation_space.shape[-1]
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU()
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(observation.permute(0, 3, 1, 2))
        return out


MINATAR: dict[str, dict[str, Any]] = {
    # The zoo's settings for Atari, without its wrappers and with a rate that does not fall to zero
    # in DQN; the network of MinAtar's paper.
    "ppo": {
        "policy": "MlpPolicy", "n_envs": 8, "n_steps": 128, "n_epochs": 4, "batch_size": 256,
        "learning_rate": "lin_2.5e-4", "clip_range": "lin_0.1", "vf_coef": 0.5, "ent_coef": 0.01,
        "policy_kwargs": {"features_extractor_class": MinAtarNetwork, "net_arch": []},
    },
    "dqn": {
        "policy": "MlpPolicy", "buffer_size": 100_000, "learning_rate": 1e-4, "batch_size": 32,
        "learning_starts": 5000, "target_update_interval": 1000, "train_freq": 4,
        "gradient_steps": 1, "exploration_fraction": 0.1, "exploration_final_eps": 0.01,
        "policy_kwargs": {"features_extractor_class": MinAtarNetwork, "net_arch": []},
    },
}  # fmt: skip


class Peer:
    """A model of the zoo's, with its environments and its settings."""

    def __init__(self, algo: str, env: str, seed: int, env_steps: int = 0):
        package, _, name = env.rpartition(":")
        env_id = IDS.get(name, name)
        is_minatar = package == "minatar"
        if is_minatar:
            import minatar.gym

            minatar.gym.register_envs()
        with contextlib.redirect_stdout(io.StringIO()):
            self.manager = ExperimentManager(
                SimpleNamespace(), algo, env_id, mkdtemp(), n_timesteps=env_steps, eval_freq=-1,
                seed=seed, verbose=0, device="cpu",
                hyperparams=dict(MINATAR[algo]) if is_minatar else None,
            )  # fmt: skip
            made = self.manager.setup_experiment()
        assert made is not None
        self.model: BaseAlgorithm = made[0]
        self.settings = {name: str(value) for name, value in made[1].items()}
        self.env_steps = env_steps or int(self.manager.n_timesteps)

    def learn(self, callback: BaseCallback) -> None:
        self.model.learn(self.env_steps, callback=callback)

    def evaluation_env(self) -> VecEnv:
        self.manager.seed = 10_000
        with contextlib.redirect_stdout(io.StringIO()):
            env = self.manager.create_envs(1, eval_env=True, no_log=True)
        env.seed(10_000)
        return env

    def state(self) -> tuple[dict[str, Any], Any]:
        """Copies of the policy's weights, and of statistics of observations."""
        weights = {k: x.clone() for k, x in self.model.policy.state_dict().items()}
        normalizer = self.model.get_vec_normalize_env()
        statistics = None if normalizer is None else normalizer.obs_rms
        return weights, statistics and _copied(statistics)

    def play(self, state: tuple[dict[str, Any], Any], episodes: int) -> tuple[list[Any], list[Any]]:
        """Returns and lengths of greedy episodes with a policy of `state()`."""
        weights, statistics = state
        self.model.policy.load_state_dict(weights)
        env = self.evaluation_env()
        if isinstance(env, VecNormalize):
            env.obs_rms = statistics
        found = evaluate_policy(
            self.model, env, episodes, deterministic=True, return_episode_rewards=True
        )
        env.close()
        return found  # type: ignore[return-value]


def _copied(statistics: Any) -> Any:
    if isinstance(statistics, dict):
        return {name: each.copy() for name, each in statistics.items()}
    return statistics.copy()


class Watch(BaseCallback):
    """Notes the episodes that end, with the time, and keeps copies of the policy.

    Copying takes no part of the noted time.
    """

    def __init__(self, peer: Peer, started: float):
        super().__init__()
        self.peer, self.started, self.copying_s = peer, started, 0.0
        self.episodes: list[tuple[int, float, float]] = []
        self.policies: list[tuple[int, tuple[dict[str, Any], Any]]] = []

    def now_s(self) -> float:
        return time.monotonic() - self.started - self.copying_s

    def _on_training_start(self) -> None:
        self._keep()

    def _keep(self) -> None:
        begin = time.monotonic()
        self.policies.append((self.num_timesteps, self.peer.state()))
        self.copying_s += time.monotonic() - begin

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episodes.append((self.num_timesteps, self.now_s(), info["episode"]["r"]))
        if self.num_timesteps >= len(self.policies) * self.peer.env_steps / SNAPSHOTS:
            self._keep()
        return True


class Until(BaseCallback):
    """Stops when the last `episodes` of training have the return."""

    def __init__(self, threshold: float, episodes: int, give_up_at: float):
        super().__init__()
        self.threshold, self.give_up_at = threshold, give_up_at
        self.returns: deque[float] = deque(maxlen=episodes)
        self.reached = False

    def _on_step(self) -> bool:
        found = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns.extend(found)
        if found and len(self.returns) == self.returns.maxlen:
            self.reached = self.reached or bool(np.mean(self.returns) >= self.threshold)
        return not self.reached and time.time() < self.give_up_at


def curve_of(watch: Watch) -> list[dict[str, float]]:
    """Mean return of the episodes that ended in each 1/POINTS of the run."""
    curve, size = [], watch.peer.env_steps / POINTS
    parts: dict[int, list[tuple[int, float, float]]] = {}
    for each in watch.episodes:
        parts.setdefault(int((each[0] - 1) // size), []).append(each)
    for part in parts.values():
        steps, wall_s, _ = part[-1]
        mean = float(np.mean([each[2] for each in part]))
        curve.append(
            {"env_steps": steps, "wall_s": round(wall_s, 3), "episode/return_mean": round(mean, 3)}
        )
    return curve


def part_of(task: Task) -> dict[str, Any]:
    """The seed's part of the record, as `one_seed.part_of` has it for quintet."""
    torch.set_num_threads(1)  # two wait for each other on networks as small as the zoo's
    options = given(task.row)
    started = time.monotonic()
    algo = task.row.algo.removeprefix(PEER)
    peer = Peer(algo, task.row.env, task.seed, options.get("total_env_steps", 0))
    watch = Watch(peer, started)
    peer.learn(watch)
    train_s = watch.now_s()
    returns, lengths = peer.play(peer.state(), 100)
    evaluations = [
        [steps, round(float(np.mean(peer.play(state, 10)[0])), 3)]
        for steps, state in watch.policies
    ]
    versions = {
        name: importlib.metadata.version(name)
        for name in ("stable_baselines3", "rl_zoo3", "gymnasium", "torch")
    }
    return {
        "seed": task.seed,
        "return_mean": round(float(np.mean(returns)), 3),
        "return_std": round(float(np.std(returns)), 3),
        "length_mean": round(float(np.mean(lengths)), 1),
        "train_s": round(train_s, 1),
        "commit": commit(),
        "jobs": task.jobs,
        "cores": torch.get_num_threads(),
        "config": {
            "env.id": task.row.env, "env.backend": "gymnasium", "total_env_steps": peer.env_steps,
            **{f"zoo.{name}": value for name, value in peer.settings.items()},
            **{f"version.{name}": value for name, value in versions.items()},
        },
        "curve": curve_of(watch),
        "evaluations": evaluations,
    }  # fmt: skip


def main() -> None:
    if sys.argv[1] != "threshold":
        task = Task.of(sys.argv[1])
        end_with_parent()
        task.folder.mkdir(parents=True, exist_ok=True)
        write_whole(Path(task.part), json.dumps(part_of(task)) + "\n")
        return
    algo, env, threshold, episodes, seed, give_up_at = sys.argv[2:]
    peer = Peer(algo, env, int(seed))
    until = Until(float(threshold), int(episodes), float(give_up_at))
    peer.learn(until)
    done = {"reached": until.reached, "at": time.time(), "env_steps": peer.model.num_timesteps}
    print(json.dumps(done))


if __name__ == "__main__":
    main()
