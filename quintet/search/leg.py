"""One leg of an entry: the process that trains it for the time of a rung and then evaluates it."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from quintet.checkpoints import manifest
from quintet.errors import ConfigError
from quintet.observe.metrics import ENV, signed
from quintet.observe.pace import Meter
from quintet.options.resolve import Loaded, batch_steps
from quintet.policies.episodes import How
from quintet.policies.evaluation import Scores, evaluate_in
from quintet.policies.policy import Policy
from quintet.run import launch
from quintet.run.launch import Result
from quintet.search import minutes
from quintet.search.race_asked import RETURN, of_training

_BLOCK, _MOST_EPISODES = 5, 100
_MOST_BATCH_SHARE = 0.25  # share of the time by which training stops earlier at most
_LOOK_EVERY_S = 0.1
_MOST_CUT_SHARE = 0.5  # share of the env_steps in episodes that have not ended


@final
class _Clock:
    """Stops the training of this process a batch before its time is over, since a run ends with its
    batch.

    begin: when its parent began it, by `time.monotonic`, which processes of one machine share.
    over: whether it has stopped the training.  batch_s: seconds of a batch, as far as known.
    """

    def __init__(self, begin: float, seconds: float) -> None:
        self.begin = begin
        self.over = False
        self.batch_s = 0.0
        self._seconds, self._cancelled = seconds, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        most_s = _MOST_BATCH_SHARE * self._seconds
        while (left_s := self._seconds - min(self.batch_s, most_s) - self.passed_s) > 0.0:
            if self._cancelled.wait(min(left_s, _LOOK_EVERY_S)):
                return
        self.over = True
        os.kill(os.getpid(), signal.SIGTERM)

    def cancel(self) -> None:
        """Returns when the thread has ended, and sends no signal any more."""
        self._cancelled.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.begin


@final
class _Listener:
    """Speed and returns from the reports of this process; tells the clock a batch's time."""

    def __init__(self, clock: _Clock, before: int, objective: str = RETURN) -> None:
        """The env_steps `before` were trained by earlier processes; objective: of the race."""
        self._clock, (self._name, self._sign) = clock, of_training(objective)
        self._before = self._steps = float(before)
        self._ended_steps = 0.0
        self._episodes: list[tuple[float, float]] = []
        self.meter = Meter()

    def __call__(self, report: dict[str, float]) -> None:
        steps, now = report["env_steps"], report["wall_s"]
        self._steps = steps
        self.meter.advance(steps, now)
        speed = self.meter.steps_per_s or steps / max(now, 1e-9)
        self._clock.batch_s = steps / max(1.0, report["iterations"]) / speed
        if "episode/return_mean" in report:
            count = report["episode/count"]
            if self._name in report:
                self._episodes.append((count, self._sign * report[self._name]))
            self._ended_steps += count * report["episode/length_mean"]

    @property
    def any(self) -> bool:
        """Whether there was one."""
        return self.meter.first is not None

    @property
    def training(self) -> float | None:
        """Mean objective of the last episodes, over so many reports that they have enough episodes;
        the newest report alone may have none, or an untypical one.

        None where most env_steps are of episodes that have not ended: those that have are the
        short ones, whose returns do not stand for all.
        """
        if self._ended_steps < (1.0 - _MOST_CUT_SHARE) * (self._steps - self._before):
            return None
        count = total = 0.0
        for more, mean in reversed(self._episodes):
            count, total = count + more, total + more * mean
            if count >= _MOST_EPISODES:
                break
        return total / count if count else None


def ready_trial(_: Loaded, __: Mapping[str, Any]) -> dict[str, Any]:
    """Only shows that a process can begin; see `quintet.search.trial`."""
    return {"status": "ready"}


def train_trial(loaded: Loaded, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trains until `training_s`, or to the end of the run, and plays episodes until `most_s`, both
    seconds after `begin`; the answer of the process.

    payload: also `seed`, of the episodes; `ways` to act in them, ``greedy`` or ``sampled``;
    `objective`, the metric of episodes by which entries are ranked;
    `last`, whether the run has to be finished; `minutes`, of a run whose number of env_steps is
    not known; and `patient`, whether such a run has the time for at least a batch.
    """
    clock = _Clock(payload["begin"], payload["training_s"])
    listener = _Listener(clock, _trained(loaded), payload.get("objective", RETURN))

    def handle(*_: object) -> None:
        # The run handles signals while it trains.  One of the clock that comes right after that
        # finds nothing to stop.
        if not (clock.over and listener.any):
            raise KeyboardInterrupt

    # Raise instead of exiting: an exit here would look like sys.exit() in the environment.
    signal.signal(signal.SIGTERM, handle)
    try:
        if not payload["patient"]:
            clock.start()
        result: Result | None = (
            launch.run(loaded, listener)
            if payload["minutes"] is None
            else minutes.train(loaded, payload["minutes"], listener)
        )
    except KeyboardInterrupt:
        if not clock.over or listener.any:
            raise
        result = None  # the time was over before there was anything to stop
    finally:
        clock.cancel()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if result is not None and result.status == "stopped" and not clock.over:
        return {"status": "stopped"}
    metrics = {} if result is None else result.metrics
    if result is None or not metrics or (payload["last"] and result.status == "stopped"):
        env_steps = metrics.get("env_steps") or _trained(loaded)
        if not env_steps:
            return {"status": "late"}
        result = launch.run(_ends_after(loaded, int(env_steps)), listener)
        if result.status == "stopped":  # stopped by the user
            return {"status": "stopped"}
    begin = clock.passed_s
    returns = _returns(result.policy, loaded, payload, clock)
    return {
        "status": "ran",
        "returns": returns.get("greedy", []),
        "sampled": returns.get("sampled", []),
        "evaluation_s": clock.passed_s - begin,
        "env_steps": int(result.metrics["env_steps"]),
        "speed": listener.meter.steps_per_s,
        "training": listener.training,
    }


def _trained(loaded: Loaded) -> int:
    """The env_steps of an earlier start of the run, which has had no time for more."""
    assert loaded.config.run_dir is not None
    found = manifest.newest(loaded.config.run_dir / "checkpoints")
    return 0 if found is None or loaded.overwrite else int(found.meta["env_steps"])


def _ends_after(loaded: Loaded, env_steps: int) -> Loaded:
    """The configuration of a run that ends after one more batch, as usual with a last report,
    evaluation and policy.
    """
    config = loaded.config
    total = env_steps + max(batch_steps(config), config.env.num_streams)
    if config.total_env_steps > env_steps:  # a resume asks for that again
        total = min(total, config.total_env_steps)
    config = config.model_copy(update={"total_env_steps": total})
    return replace(loaded, config=config, overwrite=False)


def _returns(
    policy: Policy, loaded: Loaded, payload: Mapping[str, Any], clock: _Clock
) -> dict[str, list[float]]:
    """Objectives (such as returns) of whole episodes, by the way to act.  The ways take turns with
    blocks of episodes on the same seeds, while there is time.  A block that has no time to end
    does not count: its short episodes would stand for all.
    """
    most_s: float = payload["most_s"]
    found: dict[str, list[float]] = {each: [] for each in payload["ways"]}
    played = dict.fromkeys(found, 0)
    env, objective = loaded.evaluated, payload.get("objective", RETURN)
    if objective != RETURN:
        env = env.with_options({"metrics": policy.env.metrics})
    begin = clock.passed_s
    while played[way := min(played, key=lambda each: played[each])] < _MOST_EPISODES:
        how = How(
            policy.player_on("cpu"),
            _BLOCK,
            payload["seed"] + played[way],
            way == "greedy",
            lambda: clock.passed_s > most_s,
            loaded.config.runtime.worker_timeout_s,
            threads=policy.threads,
        )
        scores = evaluate_in(policy, env, how, loaded.config.eval.max_steps)
        if not scores.complete:
            break
        found[way] += _values(scores, objective)
        played[way] += len(scores.returns)
        block_s = (clock.passed_s - begin) * _BLOCK / sum(played.values())
        if clock.passed_s + block_s > most_s:
            break
    return found


def _values(scores: Scores, objective: str) -> list[float]:
    """The episodes' values of an objective, signed to be maximised; raises ConfigError if none."""
    name, sign = signed(objective)
    own = {RETURN: "returns", "eval/length_mean": "lengths", "eval/success_rate": "success"}
    values: Any = (
        getattr(scores, own[name])
        if name in own
        else scores.metrics.get(name.removeprefix("eval/").removeprefix(ENV))
    )
    found = [] if values is None else [sign * float(x) for x in values if x == x]
    if not found:
        raise ConfigError(
            f"--metric must be one that episodes report, got {objective}, but {len(scores.returns)}"
            f" episodes reported {', '.join(map(str, scores.metrics)) or 'no own metrics'}: "
            "correct it, or give env.metrics"
        )
    return found
