"""Checks of an environment before a run: its spaces, speed, and whether seeds reproduce it."""

import math
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import final

import numpy as np
from gymnasium import spaces

from quintet.envs.evidence import Evidence, RowsSeen
from quintet.envs.make import make_group_env
from quintet.envs.owners import made_for
from quintet.envs.random_play import Row, random_rows
from quintet.envs.repeating import (
    KEEPS,
    WAYS_ON,
    Hashes,
    difference,
    difference_again,
    first_difference,
)
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.settled import settled
from quintet.envs.vector import Array, EnvDescription, StepRow, VectorEnv, check_finite, coarse
from quintet.envs.wrappers import declared_by
from quintet.errors import EnvironmentFault
from quintet.findings.record import LIKELY, Finding
from quintet.spaces import observation_leaves
from quintet.system.user_code import no_exit
from quintet.types import Spaces

_COPIES = 2
_AGAIN = 200  # steps after a second restart
_WIDER = 1e-6  # relative room beyond a bound, for rounding


@final
@dataclass
class EnvCheck:
    """Results of a check; times in seconds of one environment, returns in raw reward units.

    reward_shaping: the values that the environment declares as tunable.
    steps: of both environments together, without resets.
    findings: faults, which have a weight and stop a run or make it learn wrongly, and remarks.
    evidence: sums over all rows, for doubts about choices.
    same_seeds: first difference of two copies with the same seeds and actions; "" if they are
        equal.
    same_again: the same for copies that are made after the first ones were used.
    keeps: the same for the used ones after a second reset with the same seeds, which then keep
        something over resets.
    """

    env: EnvDescription
    spaces: Spaces
    evidence: Evidence
    reward_shaping: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    step_s: float = 0.0
    slowest_step_s: float = 0.0
    reset_s: float = 0.0
    truncated: int = 0
    returns: list[float] = field(default_factory=list)
    reward_min: float = np.inf
    reward_max: float = -np.inf
    rewarded_frac: float = 0.0
    same_seeds: str = ""
    same_again: str = ""
    keeps: str = ""
    findings: list[Finding] = field(default_factory=list)

    def fault(self, name: str, text: str) -> None:
        self.findings.append(Finding(text, weight=LIKELY, name=name))

    def remark(self, text: str) -> None:
        self.findings.append(Finding(text))

    @property
    def faults(self) -> list[str]:
        return [each.said for each in self.findings if each.weight]

    @property
    def remarks(self) -> list[str]:
        return [each.said for each in self.findings if not each.weight]

    @property
    def lengths(self) -> list[int]:
        return self.evidence.lengths

    @property
    def terminated(self) -> int:
        return sum(self.evidence.terminated)

    @property
    def deterministic(self) -> bool:
        return not (self.same_seeds or self.same_again)


@no_exit()
def check_env(
    env: ResolvedEnv, steps: int = 1_000, seed: int = 0, most_s: float = math.inf
) -> EnvCheck:
    """Steps two copies of two environments with the same uniformly random actions.

    Args:
        steps: number for each environment, including reset rows.
        seed: seed of the first environment and of the actions.
        most_s: seconds after which no further step is taken; at least one is taken.

    Raises:
        ConfigError: the environment can't be made, or has unsupported spaces.
        EnvironmentFault: it raised an error, which names the step and the line.
    """
    streams = _COPIES * env.num_agents
    with closing(make_group_env(env, env.streams_of(1))) as first:
        env = settled(env, first.spaces)
    with (
        made_for("the check, which compares two copies"),
        closing(make_group_env(env, streams)) as one,
        closing(make_group_env(env, streams)) as two,
    ):
        remarks = [*env.backend.warnings(env), *one.description.remarks, *one.description.notes]
        seen = RowsSeen(one.spaces.observation, streams)
        found = EnvCheck(one.description, one.spaces, seen.evidence, returns=seen.returns)
        for each in remarks:
            found.remark(each)
        declared = [declared_by(single) for single in env.singles(one)]
        found.reward_shaping = dict(declared[0]) if declared else {}
        if any(each is declared[0] for each in declared[1:]) and declared[0]:
            found.remark(
                "its environments share one dict of reward_shaping, so env.reward_shaping can't "
                "set it (make it in __init__)"
            )
        statistics = _Statistics(found, seen, one, seed, clipped=env.config.reward_clip != "none")
        hashes: list[Hashes] = []
        begin = perf_counter()
        for a, b in zip(random_rows(one, steps, seed), random_rows(two, steps, seed), strict=True):
            hashes.append(a.hashes())
            found.same_seeds = found.same_seeds or difference(hashes[-1], b.hashes(), a.number)
            statistics.add(a)
            if a.number and perf_counter() - begin > most_s:
                found.remark(
                    f"it is slow: only {a.number:,} of {steps:,} steps were taken (--most-s)"
                )
                break
        statistics.end()
        late = perf_counter() - begin > most_s
        first_rows = hashes[: 2 if late else 1 + _AGAIN]

        def make() -> VectorEnv:
            return make_group_env(env, streams)

        found.keeps = difference_again(one, first_rows, seed, make)
        if found.keeps:
            with closing(make()) as three:
                found.same_again = first_difference(three, first_rows, seed)
    for each in env.remarks:
        found.fault("check-fault", each)
    _judge(found)
    return found


def _misplaced(row: StepRow, ended: Array, clipped: bool) -> str:
    """The first departure of a row from the layout of `quintet.envs.vector`, or "".

    ended: streams whose episode ended in the row before.
    clipped: whether rewards are clipped.
    """
    flags = row.terminated | row.truncated
    rules = {
        "terminated and truncated must not both be true": row.terminated & row.truncated,
        "the row after an ending must be a reset (valid and flags false, reward 0)": ended
        & (row.valid | flags | (row.raw_reward != 0.0)),
        "valid must be true in every row that is not a reset": ~ended & ~row.valid,
    }
    if not clipped:
        rules["reward must be equal to raw_reward"] = row.reward != row.raw_reward
    return next(
        (f"{rule}, which stream {np.argmax(x)} breaks" for rule, x in rules.items() if x.any()),
        "",
    )


@final
class _Statistics:
    """Counts and sums over the rows of both environments, for a check."""

    def __init__(
        self, found: EnvCheck, seen: RowsSeen, env: VectorEnv, seed: int, *, clipped: bool
    ):
        self.found, self.seen, self.count, self.clipped = found, seen, env.num_streams, clipped
        self.ended = np.zeros(self.count, np.bool_)
        self.agents = len(found.env.agents) or 1  # agents in each environment
        self.seeds = [seed + i for i in range(self.count)]
        self.leaves = observation_leaves(env.spaces.observation)
        self.changed = dict.fromkeys(self.leaves, False)
        self.span: dict[str, tuple[Array, Array]] = {}
        self.seconds: list[float] = []
        self.first: dict[str, bytes] = {}
        self.rewarded = 0

    def add(self, step: Row) -> None:
        """Takes a row."""
        row, found = step.row, self.found
        for name, x in row.obs.items():
            low, high = self.span.get(name, (x[0], x[0]))
            self.span[name] = np.minimum(low, x.min(0)), np.maximum(high, x.max(0))
        try:
            check_finite(
                {name: x[None] for name, x in row.obs.items()},
                row.raw_reward[None], 0, self.seeds, found.env, step.number,
            )  # fmt: skip
        except EnvironmentFault as fault:
            if not found.faults:
                found.fault("not-finite", str(fault))
        if not step.number:
            found.reset_s = step.seconds * self.agents / self.count
            half = self.count // _COPIES
            if all(x[:half].tobytes() == x[half:].tobytes() for x in row.obs.values()):
                found.remark("the first observation is the same with two different seeds")
            self.first = {name: x.tobytes() for name, x in row.obs.items()}
            return
        # Agents of a game may be absent, so their rows are not judged.
        rule = "" if found.faults or self.agents > 1 else _misplaced(row, self.ended, self.clipped)
        if rule:
            text = f"{rule} at step {step.number}: mend recv of backend {found.env.backend!r}"
            found.fault("check-fault", text)
        self.ended = row.terminated | row.truncated
        for name, x in row.obs.items():
            self.changed[name] = self.changed[name] or x.tobytes() != self.first[name]
        valid = row.valid
        if valid.reshape(-1, self.agents).any(1).all():  # no environment was reset
            self.seconds.append(step.seconds * self.agents / self.count)
        found.steps += int(valid.sum())
        self.seen.add(row)
        # A game in turns may pay an agent while others act.
        reward = row.raw_reward[valid | (row.raw_reward != 0.0)]
        if reward.size:
            found.reward_min = min(found.reward_min, float(reward.min()))
            found.reward_max = max(found.reward_max, float(reward.max()))
            self.rewarded += int(np.count_nonzero(reward))
        found.truncated += int(row.truncated.sum())

    def end(self) -> None:
        """Stores medians and shares, and remarks on leaves out of bounds or constant."""
        found = self.found
        if self.seconds:
            found.step_s = float(np.median(self.seconds))
            found.slowest_step_s = max(self.seconds)
        found.rewarded_frac = self.rewarded / max(found.steps, 1)
        for name, leaf in self.leaves.items():
            if isinstance(leaf, spaces.Box) and self._leaves_bounds(name, leaf):
                low, high = self.span[name]
                found.remark(
                    f"observation {name!r} leaves its declared bounds {leaf}: it was between "
                    f"{float(low.min()):.6g} and {float(high.max()):.6g}"
                )
        for name, changed in self.changed.items():
            rounding = coarse(name, *self.span[name], found.spaces, normalized=False)
            if rounding is not None:
                found.remark(rounding)
            elif not changed:
                found.remark(f"observation {name!r} never changed")

    def _leaves_bounds(self, name: str, leaf: spaces.Box) -> bool:
        low, high = (x.astype(np.float64) for x in self.span[name])
        least, most = (np.asarray(x, np.float64) for x in (leaf.low, leaf.high))
        room = _WIDER * np.maximum(1.0, np.abs(np.nan_to_num(most, posinf=1.0)))
        return bool((low < least - room).any() or (high > most + room).any())


def _judge(found: EnvCheck) -> None:
    """Adds the faults and remarks that follow from the check's measures."""
    if found.same_seeds:
        found.fault(
            "not-repeatable",
            f"two copies with the same seeds and actions differ: {found.same_seeds}; no run can be "
            "repeated (draw only from self.np_random, which reset(seed=seed) makes)",
        )
    elif found.keeps and not found.same_again:
        found.remark(f"{KEEPS} ({found.keeps}): resumes of a run are not exact; {WAYS_ON}")
    elif found.same_again:
        found.fault(
            "not-repeatable",
            f"new copies, made after others were used, differ with the same seeds: "
            f"{found.same_again}; an environment leaves something in a class, a module or a file",
        )
    if not found.lengths:
        found.remark(
            f"no episode ended in {found.steps:,} steps of random actions, of all streams together"
        )
    if found.reward_min == found.reward_max:
        found.remark(f"every reward was {found.reward_min:g} under random actions")
