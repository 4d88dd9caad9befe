"""A backend of your own: environments that all step in NumPy at once.

    python examples/custom_backend.py

A package names `BACKEND` as an entry point of the group ``quintet.environments``; then every
command knows ``--env Walk-v0``.
"""

import gymnasium
import numpy as np

import quintet
from quintet.envs.backends import BACKENDS, Backend
from quintet.envs.vector import CannotRender, EnvDescription, allocate_row, check_seeds
from quintet.types import Spaces


class Walk:
    """A group of points on a line, which walk to its left or right end, as they are told."""

    def __init__(self, env, group):  # a ResolvedEnv and a backends.Group
        self.num_streams, self.limit = group.num_streams, env.config.kwargs.get("limit", 30)
        place = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        both = gymnasium.spaces.Dict({"place": place, "end": gymnasium.spaces.Discrete(2)})
        self.spaces = Spaces(both, gymnasium.spaces.Discrete(2))
        self.description = EnvDescription(env.config.id, "mine", max_steps=self.limit)

    def begin(self, streams):
        for i in streams:
            self.place[i], self.end[i] = 0.0, self.random[i].integers(2)
        self.steps[streams] = 0

    def restart(self, seeds, out):
        n = self.num_streams
        self.random = [np.random.default_rng(seed) for seed in check_seeds(seeds, n)]
        self.place, self.end, self.steps = np.zeros(n), np.zeros(n, int), np.zeros(n, int)
        self.over = np.zeros(n, bool)
        self.begin(range(n))
        out["place"][:, 0], out["end"][:] = self.place, self.end

    def send(self, action):
        self.action = action

    def recv(self, out):
        goes = ~self.over  # a stream whose episode has ended does not step, but begins anew
        self.place += np.where(goes, 0.1 * (2 * self.action - 1), 0.0)
        self.steps += goes
        self.begin(np.flatnonzero(self.over))
        out.terminated[:] = goes & (np.abs(self.place) > 0.95)
        out.truncated[:] = goes & ~out.terminated & (self.steps >= self.limit)
        right = (self.place > 0.0) == (self.end == 1)
        out.raw_reward[:] = out.reward[:] = np.where(
            out.terminated, np.where(right, 1.0, -1.0), 0.0
        )
        out.valid[:] = goes
        out.obs["place"][:, 0], out.obs["end"][:] = self.place, self.end
        self.over = out.terminated | out.truncated

    def render(self, stream):
        raise CannotRender("it has no picture")

    def close(self): ...


BACKEND = Backend(title="Walk", make=Walk, ids=lambda: ["Walk-v0"], knows=lambda i: i == "Walk-v0")


def main() -> None:
    BACKENDS.register("mine", BACKEND)  # in this process only; an entry point does it for good
    env = quintet.make_vector_env("Walk-v0", num_streams=4)
    row = allocate_row(env.spaces.observation, 4)
    env.restart([1, 2, 3, 4], row.obs)
    env.send(np.ones(4, np.int64))
    env.recv(row)
    print(row.obs["place"][:, 0], row.valid)
    result = quintet.train("ppo", "Walk-v0", 20_000, config={"gamma": 0.9})
    print(quintet.evaluate(result.policy, episodes=20).mean)  # 1 is the optimum


if __name__ == "__main__":
    main()
