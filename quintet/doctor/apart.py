"""Examination of an environment in a process of its own, which it may hang, crash or end."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from quintet.errors import ConfigError
from quintet.findings.record import Finding
from quintet.jobs.child_process import how_ended
from quintet.jobs.group import run_one
from quintet.jobs.job import Job, Limits, Outcome
from quintet.jobs.work import ONE_THREAD

_GRACE_S = 5.0  # a process ends itself at the deadline
_STAGES = {
    "making it": "it was made",
    "check": "it was checked",
    "play": "random actions were played",
    "pairs": "episodes with other actions were compared",
    "remembers": "an episode was repeated",
    "predict": "predictions were fitted",
}


@final
@dataclass(frozen=True)
class Examined:
    """Findings as JSON-able values, the likeliest first.

    unmade: the reason for each measurement that could not be made.
    whole: whether no measurement is left to make.
    step_s: seconds of a step of one environment, if known.
    """

    found: Sequence[dict[str, Any]]
    unmade: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    step_s: float | None = None


def examine_apart(
    algo: str,
    words: Sequence[str],
    typed: str,
    seed: int,
    most_s: float,
    say: Callable[[str], None],
    own: Mapping[str, Any] | None = None,
) -> Examined:
    """Examines an environment within `most_s` seconds.

    words: options as for ``quintet train``, with the environment; typed: options to repeat in
        commands.
    say: receives what the environment prints.
    own: what only this process has: `state` as of `user_state.capture`, and `source`, pickled,
        which makes the environment in place of its id.

    Raises:
        ConfigError: an option is wrong, or the environment can't be made.
    """
    own = own or {}
    payload = {
        "source": own.get("source"),
        "algo": algo,
        "words": list(words),
        "typed": typed,
        "seed": seed,
        "seconds": 0.8 * most_s,
        "deadline_s": most_s,
    }
    job = Job(
        "doctor", "quintet.doctor.child", pickle.dumps(payload), None, Limits(most_s + _GRACE_S),
        own.get("state"), environ=ONE_THREAD,
    )  # fmt: skip
    return _examined(run_one(job, say), most_s)


def failure(text: str, stage: str) -> Finding:
    """The finding about an error of the environment, from its text."""
    name = "not-finite" if "must be finite" in text else "raises"
    said = f"while {stage}, {text}"
    return Finding(said, {}, "mend the environment", weight=0.99, name=name)


def _examined(ended: Outcome, most_s: float) -> Examined:
    """Findings by the answer of the process and by its end."""
    last, late = ended.answer or {}, ended.late
    if "error" in last:
        raise ConfigError(str(last["error"]))
    found = list(last.get("found", []))
    unmade, step_s = dict(last.get("unmade", {})), last.get("step_s")
    if "done" in last:
        return Examined(found, unmade, step_s=step_s)
    stage = _STAGES.get(str(last.get("stage")), "it was made")
    if "failed" in last:
        own = failure(str(last["failed"]), stage)
        found = [each for each in found if each["name"] != own.name]
    elif (late or "hangs" in last) and last.get("stage") == "predict":  # no code of the user's
        unmade["predict"] = "no time was left"
        return Examined(found, unmade, whole=False, step_s=step_s)
    elif late or "hangs" in last:
        place = last.get("hangs")
        own = Finding(
            f"{stage.replace('was', 'was being', 1)}, but that did not end in {most_s:.0f} s"
            + (f" (at {place})" if place else ""),
            {"seconds": most_s},
            "check whether a step or a reset waits for something; a slow environment needs a "
            "larger --most-s",
            weight=0.95,
            name="hangs",
        )
    else:
        own = Finding(
            f"while {stage}, its process {how_ended(ended.status or 0)}",
            {},
            "look for os._exit, a crash of a library, and too little memory",
            weight=0.98,
            name="dies",
        )
    return Examined([own.as_json(), *found], unmade, whole=False, step_s=step_s)
