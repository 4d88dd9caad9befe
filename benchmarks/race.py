"""`quintet train auto` beside Stable-Baselines3's defaults and quintet's, each for the same time.

    python benchmarks/race.py PEER_PYTHON --minutes 10 --out race.json ENV [ENV ...]
    PEER_PYTHON benchmarks/race.py --peer ppo --env CartPole-v1 --minutes 10

PEER_PYTHON is a Python with stable-baselines3.  ENV is an id of Gymnasium, or ``module:callable``,
which both Pythons can import from --path.  On every environment there is a cell for the race, for
`quintet train ppo`, and for PPO, A2C and DQN (discrete actions) or SAC (continuous ones) of the
peer: trained for the minutes from the start of the process, then 100 greedy episodes of the final
policy on environment seeds from 10,000 on.  The peer's PPO, A2C and DQN are as fast on one core as
on two (within 3% on MinAtar), so two of these cells run at a time, each on a core of its own; every
other cell has the machine for itself.  Of MiniGrid's observations the peer sees the image, as it
can't read their text.  Killed at any moment, the same command goes on with the cells that are not
in the file.  At the end there is a line for each environment: the race beside the best of the peer.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import entry_points
from itertools import product
from math import hypot, sqrt
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from children import WITH_PARENT

BEGIN = time.monotonic()
ROOT = Path(__file__).parent.parent
EPISODES, SEED, MOST_STEPS = 100, 10_000, 10_000
PEERS = ("ppo", "a2c", "dqn", "sac")
OF_ONE_CORE = ("sb3-ppo", "sb3-a2c", "sb3-dqn")
WHO = ("auto", "ppo", *(f"sb3-{each}" for each in PEERS))


def make_env(name: str) -> Any:
    import gymnasium

    module, colon, attribute = name.partition(":")
    if colon and (made := getattr(import_module(module), attribute, None)) is not None:
        return made()
    for point in entry_points(group="gymnasium.envs"):  # Gymnasium 1 loads these no more
        if colon and point.module.partition(".")[0] == module:
            point.load()()
    return gymnasium.make(name)


def agents_apart(env: Any) -> Any:
    """A vector environment of the peer in which each agent of one PettingZoo game is a stream.

    All agents must stay to the end of the game.
    """
    import numpy as np
    from stable_baselines3.common.vec_env import VecEnv

    names = env.possible_agents

    class Agents(VecEnv):
        def __init__(self) -> None:
            super().__init__(
                len(names), env.observation_space(names[0]), env.action_space(names[0])
            )

        def reset(self) -> Any:
            obs, _ = env.reset(seed=self._seeds[0])
            self._seeds = [None] * self.num_envs
            return np.stack([obs[name] for name in names])

        def step_async(self, actions: Any) -> None:
            self.result = env.step(dict(zip(names, actions, strict=True)))

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, _ = self.result
            rows, infos = np.stack([obs[name] for name in names]), [{} for _ in names]
            ended = np.array([terminated[name] or truncated[name] for name in names])
            if ended.any():
                assert ended.all(), "all agents must stay to the end of the game"
                for row, info, name in zip(rows, infos, names, strict=True):
                    cut = truncated[name] and not terminated[name]
                    info |= {"terminal_observation": row, "TimeLimit.truncated": cut}
                rows = self.reset()
            return rows, np.array([reward[name] for name in names], np.float32), ended, infos

        def close(self) -> None:
            env.close()

        def get_attr(self, attr_name: str, *_: Any) -> list[Any]:
            return [getattr(env, attr_name, None)] * self.num_envs

        def set_attr(self, *_: Any) -> None:
            raise NotImplementedError

        def env_method(self, *_: Any, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, *_: Any) -> list[bool]:
            return [False] * self.num_envs

    return Agents()


def returns_of_episode(learner: Any, env: Any, seed: int) -> list[float]:
    """The return of one greedy episode, in a game that of each agent."""
    obs, _ = env.reset(seed=seed)
    names = getattr(env, "possible_agents", None)
    totals, over, length = dict.fromkeys(names or [""], 0.0), False, 0
    while not over and length < MOST_STEPS:
        if names:
            acts = {name: learner.predict(obs[name], deterministic=True)[0] for name in names}
            obs, reward, terminated, truncated, _ = env.step(acts)
            over = not env.agents
        else:
            action, _ = learner.predict(obs, deterministic=True)
            obs, own, terminated, truncated, _ = env.step(action)
            reward, over = {"": own}, terminated or truncated
        totals = {name: total + float(reward[name]) for name, total in totals.items()}
        length += 1
    return list(totals.values())


def peer(args: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates one learner of the peer, in the peer's own Python."""
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.preprocessing import is_image_space

    env = make_env(args.env)
    held = getattr(env.observation_space, "spaces", {})
    if "mission" in held:  # as MiniGrid's own ImgObsWrapper does
        env = gymnasium.wrappers.TransformObservation(env, lambda x: x["image"], held["image"])
    trained = agents_apart(env) if hasattr(env, "possible_agents") else env
    until = BEGIN + 60.0 * args.minutes
    space = trained.observation_space

    class UntilLate(BaseCallback):
        def _on_step(self) -> bool:
            return time.monotonic() < until

    policy = "MlpPolicy"
    if isinstance(space, gymnasium.spaces.Dict):
        policy = "MultiInputPolicy"
    elif is_image_space(space) and min(sorted(space.shape)[1:]) >= 36:
        policy = "CnnPolicy"
    try:
        learner = getattr(stable_baselines3, args.peer.upper())(policy, trained, seed=args.seed)
    except (AssertionError, ValueError, NotImplementedError) as error:  # spaces without support
        return {"unfit": str(error).splitlines()[0][:300]}
    begin = time.monotonic()

    def passes(*_: int) -> None:
        """Schedules, as that of DQN's exploration, go by the time, which is the budget here."""
        share = (time.monotonic() - begin) / (until - begin)
        learner._current_progress_remaining = max(0.0, 1.0 - share)

    learner._update_current_progress_remaining = passes
    learner.learn(10**12, callback=UntilLate())
    trained_s, steps = time.monotonic() - BEGIN, learner.num_timesteps
    seeds = range(SEED, SEED + EPISODES)
    returns = [each for seed in seeds for each in returns_of_episode(learner, env, seed)]
    cell = {"mean": mean(returns), "std": pstdev(returns), "episodes": EPISODES}
    return cell | {"env_steps": steps, "wall_s": trained_s}


def ours(algo: str, env: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains by `quintet train ALGO` in a folder that the same cell continues."""
    place = env.replace(":", "_").replace("/", "_")
    run = args.folder / f"{algo}-{place}-{args.minutes:g}min-s{args.seed}"
    quintet, begin = [sys.executable, "-m", "quintet"], time.monotonic()
    options = ["--env", env, "--minutes", str(args.minutes), "--seed", str(args.seed)]
    called([*quintet, "train", algo, *options, "--run-dir", str(run)], args)
    wall_s = time.monotonic() - begin
    played = ["--episodes", str(EPISODES), "--seed", str(SEED), "--json"]
    found = json.loads(called([*quintet, "eval", str(run), *played], args).splitlines()[-1])
    journal = run / "race" / "race.json"
    winner = json.loads(journal.read_text())["winner"] if journal.exists() else algo
    cell = {"mean": found["return_mean"], "std": found["return_std"], "episodes": EPISODES}
    return cell | {"wall_s": wall_s, "winner": winner}


def called(command: list[str], args: argparse.Namespace, core: int | None = None) -> str:
    paths = [str(args.path), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if core is not None:
        command, env["OMP_NUM_THREADS"] = ["taskset", "-c", str(core), *command], "1"
    command = [*WITH_PARENT, *command]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-1000:]}")
    return done.stdout


def cell(env: str, who: str, args: argparse.Namespace, core: int | None) -> dict[str, Any]:
    """Trains and evaluates on all cores or on one; what went wrong is the cell's "error"."""
    load = os.getloadavg()[0]
    try:
        if not who.startswith("sb3-"):
            return ours(who, env, args) | {"load": load}
        words = ["--peer", who.removeprefix("sb3-"), "--env", env, "--seed", str(args.seed)]
        command = [args.python, __file__, *words, "--minutes", str(args.minutes)]
        found = json.loads(called(command, args, core).splitlines()[-1])
        return dict(found) | {"load": load, "cores": 1 if core is not None else os.cpu_count()}
    except (RuntimeError, ValueError, OSError) as error:
        return {"error": str(error)}


def groups(args: argparse.Namespace, cells: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The cells that are not in the file, in groups that run at the same time."""
    narrow: list[tuple[str, str]] = []
    for env, who in product(args.envs, args.only or WHO):
        done = cells.get(key(env, who, args), {"error": "not run"})
        if "error" not in done:
            continue
        if who not in OF_ONE_CORE:
            yield [(env, who)]
            continue
        narrow.append((env, who))
        if len(narrow) == min(2, os.cpu_count() or 1):
            yield narrow
            narrow = []
    if narrow:
        yield narrow


def key(env: str, who: str, args: argparse.Namespace) -> str:
    return f"{env} {who} {args.minutes:g}min s{args.seed}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="?", metavar="PEER_PYTHON")
    parser.add_argument("envs", nargs="*", metavar="ENV")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("race.json"), help="file of all cells")
    parser.add_argument("--folder", type=Path, default=Path("race-runs"), help="of quintet's runs")
    parser.add_argument("--path", type=Path, default=ROOT / "examples", help="modules of ENV")
    parser.add_argument("--only", nargs="*", choices=WHO, help="cells of each environment")
    parser.add_argument("--peer", choices=PEERS, help="one learner of the peer, in this Python")
    parser.add_argument("--env")
    args = parser.parse_intermixed_args()
    if args.peer:
        print(json.dumps(peer(args)))
        return 0
    if not args.python or not args.envs:
        parser.error("PEER_PYTHON and ENV are required")
    cells: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for group in groups(args, dict(cells)):
        with ThreadPoolExecutor() as threads:
            begun = {
                key(*each, args): threads.submit(
                    cell, *each, args, core if each[1] in OF_ONE_CORE else None
                )
                for core, each in enumerate(group)
            }
        found = {each: run.result() for each, run in begun.items()}
        cells |= found
        beside = args.out.with_suffix(".tmp")
        beside.write_text(json.dumps(cells, indent=1) + "\n")
        beside.replace(args.out)
        print("\n".join(f"{each}: {json.dumps(cells[each])}" for each in found), flush=True)
    for env in args.envs:
        print(verdict(env, cells, args))
    return 0


def told(cells: dict[str, Any] | None) -> str:
    """The table of a record: the race of each environment beside each learner of the peer."""
    lines = [
        "| environment | `train auto` (the winner) | PPO | A2C | DQN or SAC |",
        "|---|---|---|---|---|",
    ]
    by_env: dict[str, dict[str, Any]] = {}
    for name, cell in (cells or {}).items():
        env, who, minutes, seed = name.split()
        asked = "" if (minutes, seed) == ("10min", "s11") else f", {minutes} {seed}"
        by_env.setdefault(f"{env}{asked}", {})[who] = cell

    def score(of: dict[str, Any], who: str) -> str:
        """The mean, in bold type where it is the highest of an environment."""
        if "mean" in of.get(who, {}):
            mean = of[who]["mean"]
            said = f"{mean:,.0f}" if abs(mean) >= 10_000 else f"{mean:.4g}"
            highest = mean == max(x["mean"] for x in of.values() if "mean" in x)
            return f"**{said}**" if highest else said
        return next((x for x in ("unfit", "error") if x in of.get(who, {})), "not run")

    for env, of in by_env.items():
        third = score(of, "sb3-sac" if "sb3-sac" in of else "sb3-dqn")
        winner = of.get("auto", {}).get("winner")
        own = score(of, "auto") if winner is None else f"{score(of, 'auto')} ({winner})"
        columns = [env, own, score(of, "sb3-ppo"), score(of, "sb3-a2c"), third]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)


def verdict(env: str, cells: dict[str, Any], args: argparse.Namespace) -> str:
    """The race on an environment beside the best of the peer; says what is missing."""
    of = {x: cells.get(key(env, x, args), {}) for x in WHO}
    # The peer has DQN for discrete actions and SAC for Boxes: one of them is enough.
    needed = ["auto", "sb3-ppo", "sb3-a2c"]
    lacking = [x for x in needed if not of[x].keys() & {"mean", "unfit"}]
    if not any(of[x].keys() & {"mean", "unfit"} for x in ("sb3-dqn", "sb3-sac")):
        lacking.append("sb3-dqn or sb3-sac")
    if lacking:
        return f"{env}: no verdict, as {', '.join(lacking)} failed or did not run"
    late = [x for x in WHO if of[x].get("wall_s", 0.0) > 60.0 * args.minutes + 20.0]
    peers = {x: of[x]["mean"] for x in WHO if x.startswith("sb3-") and "mean" in of[x]}
    own = of["auto"]["mean"]
    if not peers:
        return f"{env}: {own:.4g} by {of['auto']['winner']}; no learner of the peer fits it"
    best = max(peers, key=lambda x: peers[x])
    how = "above" if own > peers[best] else "not below" if own == peers[best] else "below"
    words = f"{env}: {own:.4g} by {of['auto']['winner']}, {how} {best}'s {peers[best]:.4g}"
    errors = (x["std"] / sqrt(x["episodes"]) for x in (of["auto"], of[best]))
    alike = abs(own - peers[best]) <= 2.0 * hypot(*errors)
    words += " (within two standard errors of the difference)" if alike else ""
    return words + (f"; too long: {', '.join(late)}" if late else "")


if __name__ == "__main__":
    sys.exit(main())
