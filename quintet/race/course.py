"""The course of a race: rungs in which entries fall out, and the last ones to the end."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from pydantic import ValidationError

from quintet.algorithms import registry
from quintet.config.facts import KindProbe, looks_kept
from quintet.config.resolve import Loaded, resolved
from quintet.config.saved import held_in, require_elsewhere, require_movable
from quintet.errors import CheckpointError, ConfigError, FileFault, QuintetError
from quintet.jobs import group
from quintet.jobs.child import how_ended, prepare
from quintet.jobs.job import BLAMELESS, Job, Limits, Outcome
from quintet.observe.pace import clock as in_minutes
from quintet.race import choosing, page, portfolio
from quintet.race import journal as journals
from quintet.race import plan as plans
from quintet.race.asked import Asked, as_asked
from quintet.race.choosing import Able, compiles, examined, load
from quintet.race.journal import FOLDER, Journal, Look, Runner
from quintet.race.portfolio import Entry
from quintet.race.score import better_sampled, score
from quintet.race.standing import (
    all_failed,
    behind,
    course_in_words,
    options_in_words,
    ranked,
    standing,
)
from quintet.run import seeds
from quintet.run.folder import move_aside
from quintet.run.time_budget import TimeBudget, least_run_s, look, rounded
from quintet.system import files, manifest
from quintet.system.cpus import usable_cores
from quintet.system.files import shown
from quintet.system.inside import await_left, run_lock
from quintet.system.printing import QuietStream

SEED = 30_000
"""First environment seed of the evaluations of a race; those of a rung begin 1,000 later."""

_PRELOAD = ("quintet.run.launch", "quintet.evaluation", "quintet.race.leg")
_FAST = {"pixels": 500.0, "atari": 500.0}
_USUAL = 10_000.0
"""env_steps per second, by kind, that schedules assume until the speed is known."""
_OF_TRAINING = 0.98  # share of the last leg, for which speeds are not exact
_READY_S = 300.0
_GRACE_S, _GRACE_SHARE = 20.0, 0.2  # an entry that does not stop is killed after this
_CATCH_UP_SHARE = 0.15  # share of the time left in which the default may catch up in env_steps
_MORE_THAN_WANTED = 1.3  # factor: the process starts, and speeds vary
_BATCH_SHARE = 0.15  # share of the first leg in which the environment makes at most a batch
_ALONE_SHARE = 0.4  # share of the time above which the least run leaves none for others
_PATIENCE, _PATIENCE_S = 10.0, 300.0  # times the time, and seconds, for the only entry


def race(asked: Asked) -> Journal:
    """Runs or continues a race in its folder; returns how it ended.

    Raises:
        ConfigError: any fault of the options, or the folder holds something else.
        CheckpointError: another process has the folder, or it was moved or removed.
        QuintetError: no entry trained.
    """
    asked.require()
    registry.declare_of(registry.LEARNERS.names())
    try:
        with looks_kept():
            return _Race(asked).run()
    except OSError as fault:
        raise QuintetError(
            f"the race in {asked.folder} can't go on: {files.reason(fault)}; "
            f"{files.advice(fault)}, and give the same command again"
        ) from fault


@final
class _Race:
    """One start of a race."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.folder = asked, asked.folder
        self.probe = KindProbe(asked.values, asked.source)
        self.out = QuietStream(sys.stdout)
        self.stopped, self.full = False, ""
        self.late: set[str] = set()  # entries that fell out because they had too little time
        self.journal = Journal(asked=dict(as_asked(asked)))
        self._since = time.monotonic()

    def say(self, line: str) -> None:
        self.out.line(f"[{in_minutes(self.spent_s)}] {line}")

    def quiet(self, _: str) -> None:
        """Drops a line of an entry, whose log.txt has it."""

    @property
    def spent_s(self) -> float:
        """Seconds of the race so far, without the time that a kill lost."""
        return self.journal.spent_s + time.monotonic() - self._since

    @property
    def left_s(self) -> float:
        return self.asked.total_s - self.spent_s

    def keep(self, **changes: Any) -> None:
        """Stores changes of the journal, and the time."""
        passed = time.monotonic() - self._since
        self._since = time.monotonic()
        own = {
            "spent_s": self.journal.spent_s + passed,
            "rung_s": self.journal.rung_s + passed,
            **changes,
        }
        self.journal = self.journal.model_copy(update=own)
        journals.write(self.folder, self.journal)

    def update(self, name: str, **changes: Any) -> None:
        """Changes what is known of an entry, without storing it yet."""
        runners = [
            each.model_copy(update=changes) if each.name == name else each
            for each in self.journal.runners
        ]
        self.journal = self.journal.model_copy(update={"runners": runners})

    def run(self) -> Journal:
        folder, able = self.folder, list[Able]()
        found = None if self.asked.overwrite else journals.read(folder)
        if self.asked.overwrite:
            if (folder / FOLDER / journals.FILE).is_file():
                require_elsewhere(folder)
            else:
                require_movable(folder)
            able = self._able()  # every refusal precedes any change of the folder
            if (place := move_aside(folder)) is not None:
                self.say(f"what was in {shown(folder)} is kept in {shown(place)}")
        elif found is not None:
            journals.require_same(folder, found, _as_read(self.journal.asked))
        elif held := held_in(folder) - _unbegun(folder):
            raise ConfigError(
                f"run_dir must be a new or empty folder, or one with a race, got {folder} with "
                f"{', '.join(sorted(held)[:3])}: give another --run-dir"
            )
        if found is None and not able:
            able = self._able()  # a refused race leaves no folder
        with run_lock(folder) as self.held:
            if not self.asked.overwrite and (found := journals.read(folder)) is not None:
                # Another process may have begun it meanwhile.
                journals.require_same(folder, found, _as_read(self.journal.asked))
                self.journal, self._since = found, time.monotonic()
                if found.state != "finished" and found.runners:
                    choosing.require_ours(self.asked, found.runners, self._able(quiet=True))
                self._count_killed()
                self._since = time.monotonic()
            if self.journal.state == "finished":
                self._require_won()
                return self.journal
            prepare(_PRELOAD, {})  # imports go on while the environment is examined
            if self.journal.runners:
                self._ready(_entry(self.journal.runners[0]))
            else:
                self._begin(able or self._able())
            while self.journal.state == "running" and not self.stopped:
                self._rung()
            if self.journal.state == "moving":
                self._move()
        return self.journal

    def _count_killed(self) -> None:
        """Adds the training time of legs that a kill cut short, up to their newest checkpoints."""
        journal, passed_s = self.journal, 0.0
        if not journal.runners:  # nor a plan
            return
        last = journal.rung == len(journal.counts) - 1
        most_s = self.left_s + journal.rung_s if last else self._leg_s
        for each in journal.runners:
            before_s = each.looks[-1].wall_s if each.looks else 0.0
            if each.out or len(each.looks) > journal.rung or before_s is None:
                continue
            run_dir = self.folder / FOLDER / each.name
            await_left(run_dir)  # the entry may still save a checkpoint
            had_s = min(_trained_s(run_dir) - before_s, most_s)
            if had_s > each.begun_s:
                passed_s = max(passed_s, had_s - each.begun_s)  # entries ran side by side
                self.update(each.name, begun_s=had_s)
        own = {"spent_s": journal.spent_s + passed_s, "rung_s": journal.rung_s + passed_s}
        self.journal = self.journal.model_copy(update=own)

    # Entries

    @property
    def _leg_s(self) -> float:
        """Seconds of a leg of this rung, by the plan."""
        return self.journal.leg_s[self.journal.rung]

    @property
    def _kind(self) -> str:
        try:
            return self.probe.kind
        except ValidationError:  # the entries tell it, with its name
            return "vector_discrete"

    def _able(self, *, quiet: bool = False) -> list[Able]:
        """The entries that can run; raises ConfigError for options that none of them can have."""
        listed = portfolio.entries(self._kind)
        self.asked.require_common(sorted({each.algo for each in listed}))
        return choosing.able(self.asked, listed, self.quiet if quiet else self.say)

    def _begin(self, able: list[Able]) -> None:
        """Chooses among the entries that can run, and makes the plan."""
        asked = self.asked
        able, told, step_s = examined(asked, able, self.say)
        self._ready(able[0].entry)
        if self.stopped:
            return
        # Two entries of one thread each learn faster than one of two (benchmarks/threads.py).
        given = {} if "runtime.threads" in asked.values else {"runtime.threads": 1}
        least = min(seeds.cores_of({**each.values, **given}) for each in able)
        jobs = min(len(able), asked.jobs or max(1, usable_cores() // least))
        left_s = max(self.left_s, plans.SHORTEST_S)
        if step_s is None and (alone := self._too_slow(able[0], left_s)):
            told.append(alone)
            able, jobs = able[:1], 1
        found = plans.plan(len(able), jobs, left_s, step_s or 0.0)
        count = found.counts[0]
        if late := [each.entry.name for each in able[count:]]:
            told.append(f"{', '.join(late)}: no time in {asked.minutes:g} minutes")
        able = able[:count]
        if step_s:
            most_steps = _BATCH_SHARE * plans.training_s(found.leg_s[0]) / step_s
            able, shorter = choosing.shortened(asked, able, most_steps)
            told += shorter
        for line in told:
            self.say(line)
        kind = self._kind.replace("_", ", ")
        self.say(
            f"{kind}: {count} candidate{'' if count == 1 else 's'}, {jobs} at a "
            f"time; {course_in_words(found)}"
        )
        runners = [
            Runner(name=x.name, algo=x.algo, options=dict(x.options), why=x.why[:2_000])
            for x, *_ in able
        ]
        for each in runners:
            self.say(f"{each.name}: {each.algo}{options_in_words(each.options)} ({each.why})")
        self.keep(
            runners=runners,
            told=[line[:2_000] for line in told],
            jobs=jobs,
            compiles={x.entry.name: compiles(x, found.leg_s) for x in able},
            counts=list(found.counts),
            leg_s=list(found.leg_s),
            rung_s=0.0,
        )

    def _too_slow(self, first: Able, left_s: float) -> str:
        """A sentence if the environment is so slow that only the first entry has time to learn."""
        budget = TimeBudget(left_s / 60.0)
        least_s = least_run_s(first.loaded, budget) if look(first.loaded, budget) else 0.0
        if least_s <= _ALONE_SHARE * left_s:
            return ""
        longer = ", and takes longer than that" if least_s > left_s else ""
        return (
            f"{first.entry.name} trains alone{longer}: the environment is slow, and the least run "
            f"of one batch and an evaluation takes about {least_s / 60:.2g} minutes"
        )

    def _ready(self, entry: Entry) -> None:
        """Waits until processes can begin at once, so that the first entries lose no time."""
        loaded = load(self.asked, entry, {}, beside=True)
        self._run([self._job("ready", loaded, {}, _READY_S)._replace(folder=None)])

    def _job(self, name: str, loaded: Loaded, more: Mapping[str, Any], most_s: float) -> Job:
        own = seeds.job(name, "quintet.race.leg", loaded, more)
        return own._replace(limits=Limits(most_s), preload=_PRELOAD)

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs processes; notes whether the user has stopped the race meanwhile.

        Raises CheckpointError if the folder of the race is not there before or after that.
        """
        self.held.check()
        stop = group.stop_request(self.say)
        ended = group.run_all(jobs, self.journal.jobs, self.quiet, stop=stop)
        self.stopped = stop.made or any(how.by_signal for how in ended)
        self.held.check()
        return ended

    # Rungs

    def _rung(self) -> None:
        """Runs the entries of a rung, and lets some fall out, or ends the race."""
        journal = self.journal
        last = journal.rung == len(journal.counts) - 1
        inside = [each for each in journal.runners if not each.out]
        waiting = [each for each in inside if len(each.looks) <= journal.rung]
        size = plans.batches(len(waiting), journal.jobs)
        whole_s = (
            self.left_s + journal.rung_s
            if last
            else self._leg_s * (plans.batches(journal.counts[journal.rung], journal.jobs))
        )
        # A failed entry's time is for the last ones: those after it would have more than those
        # before it.
        began = [
            *inside,
            *(x for x in journal.runners if x.failed and len(x.looks) == journal.rung),
        ]
        most_s = whole_s / max(1, plans.batches(len(began), journal.jobs))
        batches = [waiting[k * journal.jobs : (k + 1) * journal.jobs] for k in range(size)]
        had_s = [min(each.begun_s for each in batch) for batch in batches]
        for number, batch in enumerate(batches):
            left_s = whole_s - (self.journal.rung_s + time.monotonic() - self._since)
            each_s = min(most_s, (left_s + sum(had_s[number:])) / (size - number))
            self._batch(batch, max(plans.SHORTEST_S, each_s - had_s[number]), last=last)
            if self.stopped:
                return
        inside = [each for each in self.journal.runners if not each.out]
        if not inside and (late := [x for x in self.journal.runners if x.name in self.late]):
            last, inside = True, self._patiently(late[0].name)
            if self.stopped:
                return
        if not inside:
            raise QuintetError(all_failed(self.folder / FOLDER, self.journal.runners))
        if last:
            self._end(ranked(inside))
        else:
            self._drop(self.journal.counts[self.journal.rung + 1])

    def _patiently(self, name: str) -> list[Runner]:
        """Trains an entry once more, alone, so that the race ends with a policy."""
        self.say(f"{name} trains alone, as long as a batch takes, since no candidate had time")
        self.update(name, out="", failed=False, begun_s=0.0)
        self.keep(rung=len(self.journal.counts) - 1)
        self._batch(
            [x for x in self.journal.runners if x.name == name], plans.SHORTEST_S, last=True
        )
        return [each for each in self.journal.runners if not each.out]

    def _drop(self, stay: int) -> None:
        """Lets the entries fall out that can't go on in the time left or are worse than the best
        `stay`, and begins the next rung.

        The default does not fall out before it has had as many env_steps as those that stay: it
        trains until then where that takes little of the time, else it stays too.
        """
        first = self.journal.runners[0].name
        inside = [each for each in self.journal.runners if not each.out]
        short = {each.name: why for each in inside if (why := self._too_short(each))}
        for name, why in short.items() if len(short) < len(inside) else ():
            self.say(f"{name} falls out: {why.splitlines()[0]}")
            self.update(name, out=why[:2_000], out_at_s=self.spent_s)
        order = ranked([each for each in self.journal.runners if not each.out])
        if target := behind(order, stay, first):
            runner = next(each for each in order if each.name == first)
            look = runner.looks[-1]
            wants_s = (target - look.env_steps) / max(look.speed, 1e-6) + (look.evaluation_s or 0.0)
            leg_s = max(plans.SHORTEST_S, _MORE_THAN_WANTED * wants_s)
            if leg_s <= _CATCH_UP_SHARE * self.left_s:
                self.say(f"{first} trains on to {target:,} env_steps, as the others have had")
                self._batch([runner], leg_s, last=False)
                if self.stopped:
                    return
                order = ranked([each for each in self.journal.runners if not each.out])
        beside = first if behind(order, stay, first) else ""
        for place, each in enumerate(order):
            if place >= stay and each.name != beside:
                reason = f"place {place + 1} of {len(order)} in round {self.journal.rung + 1}"
                self.update(each.name, out=reason, out_at_s=self.spent_s)
        self.say(f"round {self.journal.rung + 1}: {standing(order, stay, beside)}")
        self.keep(rung=self.journal.rung + 1, rung_s=0.0)
        self._picture()

    def _batch(self, batch: Sequence[Runner], leg_s: float, *, last: bool) -> None:
        """Runs entries side by side for the time of a leg, and stores how they did."""
        jobs, begun, loaded = list[Job](), list[Runner](), list[Loaded]()
        if last:
            self.say(f"{', '.join(x.name for x in batch)}: to the end, {leg_s / 60:.2g} minutes")
        for each in batch:
            await_left(self.folder / FOLDER / each.name)
        for each in batch:
            try:
                loaded.append(self._for_leg(each, leg_s, last=last))
            except (ConfigError, FileFault, CheckpointError) as error:
                self._fails(each, str(error))
                continue
            begun.append(each)
        begin = time.monotonic()
        for each, own in zip(begun, loaded, strict=True):
            used_s = each.looks[-1].evaluation_s if each.looks else None
            training_s = plans.training_s(leg_s, used_s)
            payload = {
                "begin": begin,
                "training_s": training_s,
                "most_s": leg_s - min(1.0, 0.02 * leg_s),
                "seed": SEED + 1_000 * self.journal.rung,
                "ways": self.asked.ways,
                "last": last,
                "minutes": None,
                "patient": False,
            }
            most_s = leg_s + max(_GRACE_S, _GRACE_SHARE * leg_s)
            if last and not each.looks:
                payload["minutes"] = training_s / 60.0
                if len([x for x in self.journal.runners if not x.out]) == 1:  # nobody waits
                    payload["patient"] = True
                    most_s = max(_PATIENCE * self.asked.total_s, _PATIENCE_S)
            jobs.append(self._job(each.name, own, payload, most_s))
        ended = self._run(jobs)
        passed_s = time.monotonic() - begin
        for each, how in zip(begun, ended, strict=True):
            self._hear(each, how, leg_s, passed_s)
        self.keep()
        if self.full:
            raise QuintetError(self.full)

    def _for_leg(self, runner: Runner, leg_s: float, *, last: bool) -> Loaded:
        """The configuration of an entry's next leg."""
        journal = self.journal
        more: dict[str, Any] = {}
        if runner.name in journal.compiles:
            more["runtime.compile"] = journal.compiles[runner.name]
        if runner.looks:
            look = runner.looks[-1]
            legs = [leg_s] if last else journal.leg_s[journal.rung :]
            total = journal.totals.get(runner.name) or _fits(look, legs)
            if last and runner.name not in journal.totals:
                self.keep(totals={**journal.totals, runner.name: total})
            more["total_env_steps"] = total
        elif not last:
            speed = _FAST.get(self.probe.kind, _USUAL)
            more["total_env_steps"] = rounded(sum(journal.leg_s) * speed)
        loaded = load(self.asked, _entry(runner), more)
        if journal.jobs > 1:
            values = resolved(loaded)[0]
            loaded = seeds.sharing(loaded, values, journal.jobs)
        return loaded

    def _too_short(self, runner: Runner) -> str:
        """The reason why an entry can't be trained in the rungs that are left; "" without one."""
        total = _fits(runner.looks[-1], self.journal.leg_s[self.journal.rung + 1 :])
        try:
            load(self.asked, _entry(runner), {"total_env_steps": total})
        except (ConfigError, FileFault, CheckpointError) as error:
            return str(error)
        return ""

    def _hear(self, runner: Runner, how: Outcome, leg_s: float, passed_s: float) -> None:
        """Takes the answer of an entry's process."""
        answer = how.answer or {}
        if BLAMELESS in answer:  # no fault of the entry
            self.full = f"{runner.name}: {answer['error']}"
        if how.by_signal or BLAMELESS in answer:
            self.update(runner.name, begun_s=runner.begun_s + passed_s)
            return
        if answer.get("status") == "ran":
            look = self._look(runner, answer, passed_s)
            looks = [*runner.looks[: self.journal.rung], look]  # one of each rung
            self.update(runner.name, looks=looks, begun_s=0.0)
            self.say(f"{runner.name}: {score(look)} after {look.env_steps:,} env_steps")
            return
        if answer.get("status") == "late" or how.late:
            self.late.add(runner.name)
        if answer.get("status") == "late":
            self._fails(runner, f"it had not begun to train within its {leg_s:.0f} s")
        elif "error" in answer:
            self._fails(runner, answer["error"])
        elif how.late:
            self._fails(
                runner,
                f"it did not stop within {passed_s:.0f} s: a step, a reset or a batch is slow",
            )
        else:
            assert how.status is not None
            self._fails(runner, f"its process {how_ended(how.status)}")

    def _look(self, runner: Runner, answer: Mapping[str, Any], passed_s: float) -> Look:
        """Look of an entry whose process has ended; what it had no time for is as it was before."""
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
            at_s=self.spent_s,
            speed=speed or answer["env_steps"] / passed_s,
            training=training,
            wall_s=_trained_s(self.folder / FOLDER / runner.name),
            evaluation_s=answer["evaluation_s"] if evaluated else None,
        )

    def _fails(self, runner: Runner, reason: str) -> None:
        line = reason.splitlines()[0] if reason else "no reason"
        self.say(f"{runner.name} falls out: {line}")
        self.update(runner.name, out=reason[:2_000], failed=True, out_at_s=self.spent_s)

    # The end

    def _end(self, order: Sequence[Runner]) -> None:
        """The best of the finalists wins, and the files about the race are written."""
        first, *others = order
        for place, each in enumerate(others, 2):
            self.update(each.name, out=f"place {place} at the end", out_at_s=self.spent_s)
        self.say(f"at the end: {standing(order, 1)}")
        if said := better_sampled(first.looks[-1]):
            self.say(f"{first.name}: {said}")
        self.keep(winner=first.name, state="moving")

    def _move(self) -> None:
        """Makes the winner's run that of the folder; a kill in between loses nothing."""
        winner = self.journal.winner
        assert winner is not None
        place = self.folder / FOLDER / winner
        if place.is_dir():
            await_left(place)
            for name in sorted(path.name for path in place.iterdir()):
                if name != ".lock":
                    (place / name).rename(self.folder / name)
            with suppress(OSError):
                (place / ".lock").unlink(missing_ok=True)
                place.rmdir()
            files.sync_folder(self.folder)
        self._require_won()
        self.keep(state="finished")
        self._picture()

    def _require_won(self) -> None:
        """Raises FileFault where the winner's policy is not in the folder."""
        place = self.folder / "policy"
        try:
            with manifest.opened(place) as handle:
                manifest.read_manifest(handle, place)
        except CheckpointError as fault:
            raise FileFault(
                f"{self.folder / FOLDER / journals.FILE} says that {self.journal.winner} won, but "
                f"{fault}: give another --run-dir, or --overwrite for a new race"
            ) from fault

    def _picture(self) -> None:
        """Writes ``race.csv`` and, where the packages are there, ``race.html``."""
        for line in page.write(self.folder, self.journal):
            if self.journal.state == "finished":
                self.say(line)


def _fits(look: Look, legs: Sequence[float]) -> int:
    """The env_steps of a run that goes on for these seconds of legs."""
    left_s = sum(plans.training_s(each, look.evaluation_s) for each in legs)
    return look.env_steps + max(1, int(look.speed * left_s * _OF_TRAINING))


def _trained_s(folder: Path) -> float:
    """Seconds of a run's training until its newest checkpoint; 0 without one."""
    try:
        found = manifest.newest(folder / "checkpoints")
    except CheckpointError:  # the next leg fails with it
        found = None
    return 0.0 if found is None else float(found.meta.get("wall_s", 0.0))


def _unbegun(folder: Path) -> set[str]:
    """Names that a race leaves which could not store its first journal, as on a full disk."""
    with suppress(OSError):
        return set() if os.listdir(folder / FOLDER) else {FOLDER}
    return set()


def _entry(runner: Runner) -> Entry:
    return Entry(runner.name, runner.algo, runner.options, runner.why)


def _as_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a JSON file holds them."""
    held: dict[str, Any] = json.loads(json.dumps(values))
    return held
