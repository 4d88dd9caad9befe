"""The course of a race: rungs in which entries fall out, and the last ones to the end."""

from collections.abc import Sequence
from contextlib import suppress
from typing import final

from pydantic import ValidationError

from quintet.algorithms import registry
from quintet.checkpoints import manifest
from quintet.checkpoints.lock import await_left, run_lock
from quintet.errors import CheckpointError, ConfigError, FileFault, QuintetError
from quintet.options.facts import KindProbe, looks_kept
from quintet.options.saved import (
    held_in,
    require_as_begun,
    require_elsewhere,
    require_movable,
)
from quintet.run.folder import move_aside
from quintet.run.time_budget import TimeBudget
from quintet.search import candidates, placement, portfolio
from quintet.search import race_journal as journals
from quintet.search import race_page as page
from quintet.search import rungs as plans
from quintet.search.candidates import Able, compiles, examined
from quintet.search.engine import Engine, Stopped
from quintet.search.journal import as_read
from quintet.search.minutes import least_run_s, look
from quintet.search.race_asked import Asked, as_asked
from quintet.search.race_journal import FOLDER, Journal, Runner
from quintet.search.race_legs import Legs, entry_of, trained_s
from quintet.search.race_state import State
from quintet.search.score import better_sampled
from quintet.search.standing import (
    all_failed,
    behind,
    course_in_words,
    options_in_words,
    ranked,
    standing,
)
from quintet.system import files
from quintet.system.cpus import usable_cores
from quintet.system.files import shown

_CATCH_UP_SHARE = 0.15  # share of the time left in which the default may catch up in env_steps
_MORE_THAN_WANTED = 1.3  # factor: the process starts, and speeds vary
_BATCH_SHARE = 0.15  # share of the first leg in which the environment makes at most a batch
_ALONE_SHARE = 0.4  # share of the time above which the least run leaves none for others


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
        self.asked = asked
        self.probe = KindProbe(asked.values, asked.source)
        self.state = State(asked.folder, asked.total_s, Journal(asked=as_read(as_asked(asked))))

    def run(self) -> Journal:
        """Begins or continues the race; every refusal precedes a change of the folder."""
        folder, able = self.state.folder, list[Able]()
        found = None if self.asked.overwrite else journals.read(folder)
        if self.asked.overwrite:
            if (folder / FOLDER / journals.FILE).is_file():
                require_elsewhere(folder)
            else:
                require_movable(folder)
            able = self._able()  # every refusal precedes any change of the folder
            if (place := move_aside(folder)) is not None:
                self.state.say(f"what was in {shown(folder)} is kept in {shown(place)}")
        elif found is not None:
            self._require_same(found)
        # A race that could not store its first journal, as on a full disk, leaves its folder empty.
        elif names := held_in(folder) - ({FOLDER} if not held_in(folder / FOLDER) else set()):
            raise ConfigError(
                f"run_dir must be a new or empty folder, or one with a race, got {folder} with "
                f"{', '.join(sorted(names)[:3])}: give another --run-dir"
            )
        if found is None and not able:
            able = self._able()  # a refused race leaves no folder
        with run_lock(folder) as own:
            if not self.asked.overwrite and (found := journals.read(folder)) is not None:
                # Another process may have begun it meanwhile.
                self._require_same(found)
                self.state.go_on(found)
                if found.state != "finished" and found.runners:
                    candidates.require_ours(self.asked, found.runners, self._able(quiet=True))
                self._count_killed()
            if self.state.journal.state == "finished":
                self._require_won()
                return self.state.journal
            engine = Engine(own, 1, self.state.say, _quiet)
            self.legs = Legs(self.asked, self.state, engine, self._kind)
            self.legs.prepare()
            with suppress(Stopped):
                if self.state.journal.runners:
                    self.legs.ready(entry_of(self.state.journal.runners[0]))
                else:
                    self._begin(able or self._able())
                while self.state.journal.state == "running":
                    self._rung()
                self._move()
        return self.state.journal

    def _require_same(self, found: Journal) -> None:
        instead = "another --run-dir, --overwrite"
        now = self.state.journal.asked
        require_as_begun("race", self.state.folder, found.asked, now, instead)

    def _count_killed(self) -> None:
        """Adds the training time of legs that a kill cut short, up to their newest checkpoints."""
        journal, passed_s = self.state.journal, 0.0
        if not journal.runners:  # nor a plan
            return
        last = journal.rung == len(journal.counts) - 1
        most_s = self.state.left_s + journal.rung_s if last else self._leg_s
        for each in journal.runners:
            before_s = each.looks[-1].wall_s if each.looks else 0.0
            if each.out or len(each.looks) > journal.rung or before_s is None:
                continue
            run_dir = self.state.folder / FOLDER / each.name
            await_left(run_dir)  # the entry may still save a checkpoint
            had_s = min(trained_s(run_dir) - before_s, most_s)
            if had_s > each.begun_s:
                passed_s = max(passed_s, had_s - each.begun_s)  # entries ran side by side
                self.state.update(each.name, begun_s=had_s)
        own = {"spent_s": journal.spent_s + passed_s, "rung_s": journal.rung_s + passed_s}
        self.state.go_on(self.state.journal.model_copy(update=own))

    # Entries

    @property
    def _leg_s(self) -> float:
        """Seconds of a leg of this rung, by the plan."""
        return self.state.journal.leg_s[self.state.journal.rung]

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
        return candidates.able(self.asked, listed, _quiet if quiet else self.state.say)

    def _begin(self, able: list[Able]) -> None:
        """Chooses among the entries that can run, and makes the plan."""
        asked = self.asked
        able, lines, step_s = examined(asked, able, self.state.say)
        self.legs.ready(able[0].entry)
        # Two entries of one thread each learn faster than one of two (benchmarks/threads.py).
        extra = {} if "runtime.threads" in asked.values else {"runtime.threads": 1}
        least = min(placement.cores_of({**each.values, **extra}) for each in able)
        jobs = min(len(able), asked.jobs or max(1, usable_cores() // least))
        left_s = max(self.state.left_s, plans.SHORTEST_S)
        if step_s is None and (alone := self._too_slow(able[0], left_s)):
            lines.append(alone)
            able, jobs = able[:1], 1
        found = plans.plan(len(able), jobs, left_s, step_s or 0.0)
        count = found.counts[0]
        if late := [each.entry.name for each in able[count:]]:
            lines.append(f"{asked.minutes:g} minutes have no time for {', '.join(late)}")
        able = able[:count]
        if step_s:
            most_steps = _BATCH_SHARE * plans.training_s(found.leg_s[0]) / step_s
            able, shorter = candidates.shortened(asked, able, most_steps)
            lines += shorter
        for line in lines:
            self.state.say(line)
        kind = self._kind.replace("_", ", ")
        self.state.say(
            f"{kind}: {count} candidate{'' if count == 1 else 's'}, {jobs} at a "
            f"time; {course_in_words(found)}"
        )
        runners = [
            Runner(name=x.name, algo=x.algo, options=dict(x.options), why=x.why[:2_000])
            for x, *_ in able
        ]
        for each in runners:
            self.state.say(f"{each.name}: {each.algo}{options_in_words(each.options)} ({each.why})")
        self.state.keep(
            runners=runners,
            told=[line[:2_000] for line in lines],
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
        longer = ", more than is left" if least_s > left_s else ""
        return (
            f"{first.entry.name} trains alone: the environment is slow, and one batch and an "
            f"evaluation take about {least_s / 60:.2g} minutes{longer}"
        )

    # Rungs

    def _rung(self) -> None:
        """Runs the entries of a rung, and lets some fall out, or ends the race."""
        journal = self.state.journal
        last = journal.rung == len(journal.counts) - 1
        inside = [each for each in journal.runners if not each.out]
        waiting = [each for each in inside if len(each.looks) <= journal.rung]
        size = plans.batches(len(waiting), journal.jobs)
        whole_s = (
            self.state.left_s + journal.rung_s
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
            left_s = whole_s - (self.state.rung_s)
            each_s = min(most_s, (left_s + sum(had_s[number:])) / (size - number))
            self.legs.run(batch, max(plans.SHORTEST_S, each_s - had_s[number]), last=last)
        inside = self.state.inside
        if not inside and (
            late := [x for x in self.state.journal.runners if x.name in self.legs.late]
        ):
            last, inside = True, self._patiently(late[0].name)
        if not inside:
            raise QuintetError(all_failed(self.state.folder / FOLDER, self.state.journal.runners))
        if last:
            self._end(ranked(inside))
        else:
            self._drop(self.state.journal.counts[self.state.journal.rung + 1])

    def _patiently(self, name: str) -> list[Runner]:
        """Trains an entry once more, alone, so that the race ends with a policy."""
        why = "until it has learned from a batch, since no candidate had time for that"
        self.state.say(f"{name} trains alone, {why}")
        self.state.update(name, out="", failed=False, begun_s=0.0)
        self.state.keep(rung=len(self.state.journal.counts) - 1)
        self.legs.run(
            [x for x in self.state.journal.runners if x.name == name], plans.SHORTEST_S, last=True
        )
        return self.state.inside

    def _drop(self, stay: int) -> None:
        """Lets the entries fall out that can't go on in the time left or are worse than the best
        `stay`, and begins the next rung.

        The default does not fall out before it has had as many env_steps as those that stay: it
        trains until then where that takes little of the time, else it stays too.
        """
        first = self.state.journal.runners[0].name
        inside = self.state.inside
        short = {each.name: why for each in inside if (why := self.legs.too_short(each))}
        for name, why in short.items() if len(short) < len(inside) else ():
            self.state.say(f"{name} falls out: {why.splitlines()[0]}")
            self.state.update(name, out=why[:2_000], out_at_s=self.state.spent_s)
        order = ranked(self.state.inside)
        if target := behind(order, stay, first):
            runner = next(each for each in order if each.name == first)
            look = runner.looks[-1]
            wants_s = (target - look.env_steps) / max(look.speed, 1e-6) + (look.evaluation_s or 0.0)
            leg_s = max(plans.SHORTEST_S, _MORE_THAN_WANTED * wants_s)
            if leg_s <= _CATCH_UP_SHARE * self.state.left_s:
                self.state.say(f"{first} trains on to {target:,} env_steps, as many as others had")
                self.legs.run([runner], leg_s, last=False)
                order = ranked(self.state.inside)
        spared = first if behind(order, stay, first) else ""
        for place, each in enumerate(order):
            if place >= stay and each.name != spared:
                reason = f"place {place + 1} of {len(order)} in round {self.state.journal.rung + 1}"
                self.state.update(each.name, out=reason, out_at_s=self.state.spent_s)
        self.state.say(f"round {self.state.journal.rung + 1}: {standing(order, stay, spared)}")
        self.state.keep(rung=self.state.journal.rung + 1, rung_s=0.0)
        self._picture()

    # The end

    def _end(self, order: Sequence[Runner]) -> None:
        """The best of the finalists wins, and the files about the race are written."""
        first, *others = order
        for place, each in enumerate(others, 2):
            self.state.update(
                each.name, out=f"place {place} at the end", out_at_s=self.state.spent_s
            )
        self.state.say(f"at the end: {standing(order, 1)}")
        if said := better_sampled(first.looks[-1]):
            self.state.say(f"{first.name}: {said}")
        self.state.keep(winner=first.name, state="moving")

    def _move(self) -> None:
        """Makes the winner's run the run of the race's folder; a kill in between loses nothing."""
        winner = self.state.journal.winner
        assert winner is not None
        place = self.state.folder / FOLDER / winner
        if place.is_dir():
            await_left(place)
            for name in sorted(path.name for path in place.iterdir()):
                if name != ".lock":
                    (place / name).rename(self.state.folder / name)
            with suppress(OSError):
                (place / ".lock").unlink(missing_ok=True)
                place.rmdir()
            files.sync_folder(self.state.folder)
        self._require_won()
        self.state.keep(state="finished")
        self._picture()

    def _require_won(self) -> None:
        """Raises FileFault where the winner's policy is not in the folder."""
        place = self.state.folder / "policy"
        try:
            with manifest.opened(place) as handle:
                manifest.read_manifest(handle, place)
        except CheckpointError as fault:
            raise FileFault(
                f"{self.state.folder / FOLDER / journals.FILE} says that "
                f"{self.state.journal.winner} won, but {fault}: give another --run-dir, or "
                "--overwrite for a new race"
            ) from fault

    def _picture(self) -> None:
        """Writes ``race.csv`` and, where the packages are there, ``race.html``."""
        for line in page.write(self.state.folder, self.state.journal):
            if self.state.journal.state == "finished":
                self.state.say(line)


def _quiet(_: str) -> None:
    """Drops a line of an entry, whose log.txt has it."""
