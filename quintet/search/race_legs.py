"""Legs of a race: entries side by side for the time of a rung, each in a process of its own."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from quintet.checkpoints import manifest
from quintet.checkpoints.lock import await_left
from quintet.errors import CheckpointError, ConfigError, FileFault
from quintet.jobs.child_process import prepare
from quintet.jobs.job import Job, Limits, Outcome
from quintet.options.resolve import Loaded, resolved
from quintet.run.time_budget import rounded
from quintet.search import placement
from quintet.search import rungs as plans
from quintet.search.candidates import load
from quintet.search.engine import Engine, fault_of, is_blameless
from quintet.search.portfolio import Entry
from quintet.search.race_asked import Asked
from quintet.search.race_journal import FOLDER, Look, Runner
from quintet.search.race_state import State
from quintet.search.score import score

SEED = 30_000
"""First environment seed of the evaluations of a race; those of a rung begin 1,000 later."""

PRELOAD = ("quintet.search.leg", "quintet.search.trial")

_FAST = {"pixels": 500.0, "atari": 500.0}
_USUAL = 10_000.0
"""env_steps per second, by kind, that schedules assume until the speed is known."""
_OF_TRAINING = 0.98  # share of the last leg, for which speeds are not exact
_READY_S = 300.0
_GRACE_S, _GRACE_SHARE = 20.0, 0.2  # an entry that does not stop is killed after this
_PATIENCE, _PATIENCE_S = 10.0, 300.0  # times the time, and seconds, for the only entry


@final
class Legs:
    """Trains the entries of a race.

    late: names of those that fell out because they had too little time.
    """

    def __init__(self, asked: Asked, state: State, engine: Engine, kind: str) -> None:
        """kind: that of the environment, see `quintet.options.facts`."""
        self.asked, self.state, self.engine, self.kind = asked, state, engine, kind
        self.late: set[str] = set()

    def prepare(self) -> None:
        """Begins the imports of processes, which go on while the environment is examined."""
        prepare(PRELOAD, {})

    def ready(self, entry: Entry) -> None:
        """Waits until processes can begin at once, so that the first entries lose no time."""
        loaded = load(self.asked, entry, {}, beside=True)
        with self.engine.run([self._job("ready", loaded, {}, _READY_S)._replace(folder=None)]):
            pass

    def _job(self, name: str, loaded: Loaded, more: Mapping[str, Any], most_s: float) -> Job:
        train = f"quintet.search.leg:{'train' if more else 'ready'}_trial"
        own = placement.job(name, train, loaded, more)
        return own._replace(limits=Limits(most_s), preload=PRELOAD)

    def run(self, batch: Sequence[Runner], leg_s: float, *, last: bool) -> None:
        """Runs entries side by side for the time of a leg, and stores how they did."""
        jobs, started, loaded = list[Job](), list[Runner](), list[Loaded]()
        if last:
            names = ", ".join(each.name for each in batch)
            self.state.say(f"{names}: the last {leg_s / 60:.2g} minutes begin")
        for each in batch:
            await_left(self.state.folder / FOLDER / each.name)
        for each in batch:
            try:
                loaded.append(self._for_leg(each, leg_s, last=last))
            except (ConfigError, FileFault, CheckpointError) as error:
                self._fails(each, str(error))
                continue
            started.append(each)
        begin = time.monotonic()
        for each, own in zip(started, loaded, strict=True):
            used_s = each.looks[-1].evaluation_s if each.looks else None
            training_s = plans.training_s(leg_s, used_s)
            payload = {
                "begin": begin,
                "training_s": training_s,
                "most_s": leg_s - min(1.0, 0.02 * leg_s),
                "seed": SEED + 1_000 * self.state.journal.rung,
                "ways": self.asked.ways,
                "objective": self.asked.objective,
                "last": last,
                "minutes": None,
                "patient": False,
            }
            most_s = leg_s + max(_GRACE_S, _GRACE_SHARE * leg_s)
            if last and not each.looks:
                payload["minutes"] = training_s / 60.0
                if len(self.state.inside) == 1:  # nobody waits
                    payload["patient"] = True
                    most_s = max(_PATIENCE * self.asked.total_s, _PATIENCE_S)
            jobs.append(self._job(each.name, own, payload, most_s))
        self.engine.at_once = self.state.journal.jobs
        with self.engine.run(jobs) as ended:
            passed_s = time.monotonic() - begin
            for each, how in zip(started, ended, strict=True):
                self._hear(each, how, leg_s, passed_s)
            self.state.keep()

    def _for_leg(self, runner: Runner, leg_s: float, *, last: bool) -> Loaded:
        """The configuration of an entry's next leg."""
        journal = self.state.journal
        more: dict[str, Any] = {}
        if runner.name in journal.compiles:
            more["runtime.compile"] = journal.compiles[runner.name]
        if runner.looks:
            look = runner.looks[-1]
            legs = [leg_s] if last else journal.leg_s[journal.rung :]
            total = journal.totals.get(runner.name) or _fits(look, legs)
            if last and runner.name not in journal.totals:
                self.state.keep(totals={**journal.totals, runner.name: total})
            more["total_env_steps"] = total
        elif not last:
            speed = _FAST.get(self.kind, _USUAL)
            more["total_env_steps"] = rounded(sum(journal.leg_s) * speed)
        loaded = load(self.asked, entry_of(runner), more)
        if journal.jobs > 1:
            values = resolved(loaded)[0]
            loaded = placement.sharing(loaded, values, journal.jobs)
        return loaded

    def too_short(self, runner: Runner) -> str:
        """The reason why an entry can't be trained in the rungs that are left; "" without one."""
        total = _fits(runner.looks[-1], self.state.journal.leg_s[self.state.journal.rung + 1 :])
        try:
            load(self.asked, entry_of(runner), {"total_env_steps": total})
        except (ConfigError, FileFault, CheckpointError) as error:
            return str(error)
        return ""

    def _hear(self, runner: Runner, how: Outcome, leg_s: float, passed_s: float) -> None:
        """Takes the answer of an entry's process."""
        answer = how.answer or {}
        if how.by_signal or is_blameless(how):
            self.state.update(runner.name, begun_s=runner.begun_s + passed_s)
        elif answer.get("status") == "ran":
            look = self._look(runner, answer, passed_s)
            looks = [*runner.looks[: self.state.journal.rung], look]  # one of each rung
            self.state.update(runner.name, looks=looks, begun_s=0.0)
            self.state.say(f"{runner.name}: {score(look)} after {look.env_steps:,} env_steps")
        elif answer.get("status") == "late":
            self.late.add(runner.name)
            self._fails(runner, f"it had not begun to train within its {leg_s:.0f} s")
        elif how.late:
            self.late.add(runner.name)
            message = f"it did not stop within {passed_s:.0f} s: a step, a reset or a batch is slow"
            self._fails(runner, answer.get("error") or message)
        else:
            self._fails(runner, fault_of(how))

    def _look(self, runner: Runner, answer: Mapping[str, Any], passed_s: float) -> Look:
        """Look of an entry whose process has ended; parts without time stay as before."""
        speed, training = answer["speed"], answer["training"]
        if runner.looks:
            before = runner.looks[-1]
            speed = speed or before.speed
            if training is None:
                training = score(before).mean if before.training is None else before.training
        evaluated = answer["returns"] or answer["sampled"]
        return Look(
            returns=answer["returns"],
            sampled=answer["sampled"],
            env_steps=answer["env_steps"],
            at_s=self.state.spent_s,
            speed=speed or answer["env_steps"] / passed_s,
            training=training,
            wall_s=trained_s(self.state.folder / FOLDER / runner.name),
            evaluation_s=answer["evaluation_s"] if evaluated else None,
        )

    def _fails(self, runner: Runner, reason: str) -> None:
        line = reason.splitlines()[0] if reason else "no reason"
        self.state.say(f"{runner.name} falls out: {line}")
        self.state.update(runner.name, out=reason[:2_000], failed=True, out_at_s=self.state.spent_s)


def _fits(look: Look, legs: Sequence[float]) -> int:
    """The env_steps of a run that goes on for these seconds of legs."""
    left_s = sum(plans.training_s(each, look.evaluation_s) for each in legs)
    return look.env_steps + max(1, int(look.speed * left_s * _OF_TRAINING))


def trained_s(folder: Path) -> float:
    """Seconds of a run's training until its newest checkpoint; 0 without one."""
    try:
        found = manifest.newest(folder / "checkpoints")
    except CheckpointError:  # the next leg fails with it
        found = None
    return 0.0 if found is None else float(found.meta.get("wall_s", 0.0))


def entry_of(runner: Runner) -> Entry:
    return Entry(runner.name, runner.algo, runner.options, runner.why)
