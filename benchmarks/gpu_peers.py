"""Runs a PPO file of CleanRL or LeanRL, unchanged, on the EnvPool and Gymnasium that are installed.

    python benchmarks/gpu_peers.py FILE --seconds 30 --to RATES.json -- --env-id Pong-v5

The files were written for gym 0.23, distutils, wandb and torchrl's timer.  Stand-ins for these take
their places: environments with that gym's four results per step, loggers that log nothing, and a
progress bar that only tells the time of each iteration.  The network, the update, `torch.compile`
and CUDA graphs are the file's own.  FILE is, for instance, LeanRL's
`leanrl/ppo_atari_envpool_torchcompile.py` or CleanRL's `cleanrl/ppo_atari_envpool.py`.
"""

import argparse
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, final

ITERATIONS, WARM_S = 5, 2.0


@final
class OldGym:
    """An EnvPool of Gymnasium's interface, with that of gym 0.23."""

    def __init__(self, env: Any, stepped: Callable[[int], None]) -> None:
        """stepped: receives the number of environments at each step."""
        self.env, self._stepped = env, stepped
        self.action_space, self.observation_space = env.action_space, env.observation_space

    def reset(self) -> Any:
        return self.env.reset()[0]

    def step(self, action: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stepped(len(reward))
        return obs, reward, terminated | truncated, info

    def close(self) -> None:
        self.env.close()


class Wrapper:
    """gym's wrapper, as far as these files use it."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    def reset(self) -> Any:
        return self.env.reset()

    def step(self, action: Any) -> Any:
        return self.env.step(action)


@final
class Marks:
    """The time and the env_steps at each iteration; ends the program when it was measured.

    The first ITERATIONS do not count, in which there is compilation, nor the next WARM_S.
    """

    def __init__(self, seconds: float, to: Path) -> None:
        self.seconds, self.to = seconds, to
        self.begin = time.perf_counter()
        self.env_steps = self.iterations = 0
        self.pairs: list[tuple[float, int]] = []

    def stepped(self, env_steps: int) -> None:
        self.env_steps += env_steps

    def iteration(self) -> None:
        """Called at the end of each."""
        self.iterations += 1
        if self.iterations < ITERATIONS:
            return
        now = time.perf_counter() - self.begin
        self.pairs.append((now, self.env_steps))
        self.to.write_text(json.dumps(self.rates()))
        if now - self._begin()[0] >= self.seconds:
            raise SystemExit(0)

    def _begin(self) -> tuple[float, int]:
        """The first mark that counts; the last, if none does yet."""
        first_s = self.pairs[0][0]
        return next((p for p in self.pairs if p[0] - first_s >= WARM_S), self.pairs[-1])

    def rates(self) -> dict[str, Any]:
        (first_s, _), (last_s, last) = self.pairs[0], self.pairs[-1]
        begin_s, begin = self._begin()
        passed = last_s - begin_s
        return {
            "env_steps_per_s": round((last - begin) / passed, 1) if passed else None,
            "seconds": round(passed, 2),
            "first_iterations_s": round(first_s, 1),
            "env_steps": last,
        }


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
    return module


@final
class _Timer:
    """torchrl's `timeit`, which measures nothing here."""

    def __init__(self, _: str) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    @staticmethod
    def print() -> None:
        pass


def stand_in(marks: Marks) -> None:
    """Puts the stand-ins into their places."""
    import envpool
    import gymnasium
    import tqdm

    make = envpool.make

    def make_old(name: str, env_type: str, **options: Any) -> OldGym:
        assert env_type == "gym"
        return OldGym(make(name, "gymnasium", **options), marks.stepped)

    envpool.make = make_old
    _module("gym", Wrapper=Wrapper, spaces=gymnasium.spaces)

    def nothing(*_: object, **__: object) -> None:
        pass

    class Bar:
        def __init__(self, numbers: Iterable[int]) -> None:
            self.numbers = numbers

        def __iter__(self) -> Iterator[int]:
            for number in self.numbers:
                yield number
                marks.iteration()

        set_description = nothing

    of_others = tqdm.tqdm  # PyTorch's compiler has bars of its own

    def bar(*given: Any, **more: Any) -> Any:
        return of_others(*given, **more) if more or len(given) != 1 else Bar(*given)

    tqdm.tqdm = bar
    _module("wandb", init=nothing, log=nothing)
    utils = _module("torchrl._utils", timeit=_Timer)
    _module("torchrl", _utils=utils)
    strtobool = _module("distutils.util", strtobool=lambda x: x.lower() in ("1", "true", "yes"))
    _module("distutils", util=strtobool)

    class Writer:
        def __init__(self, _: str) -> None:
            pass

        def add_scalar(self, name: str, *_: object) -> None:
            if name == "charts/SPS":
                marks.iteration()

        add_text = close = nothing

    _module("torch.utils.tensorboard", SummaryWriter=Writer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="run a PPO file of CleanRL or LeanRL; its own arguments follow --"
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=20, help="time that is measured")
    parser.add_argument("--to", type=Path, required=True, help="JSON file of the speed")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    sys.argv, own = sys.argv[:cut], sys.argv[cut + 1 :]
    args = parser.parse_args()
    stand_in(Marks(args.seconds, args.to))
    sys.argv = [str(args.file), *own]
    runpy.run_path(str(args.file), run_name="__main__")


if __name__ == "__main__":
    main()
