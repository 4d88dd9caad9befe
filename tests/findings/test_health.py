"""Parts of a learner are judged by evidence: reliable, doubtful, or not known yet."""

import io

import pytest
from facts_helpers import FACTS

from quintet.findings import health
from quintet.findings.health import Herald, judged, sentences
from quintet.observe import progress
from quintet.observe.pace import Pace, Score
from quintet.observe.progress import make_progress
from quintet.observe.view import View
from quintet.protocols import Evidence, Part, Range

PACE = Evidence(
    "policy/kl", "KL", Range(1e-5, 0.06), Range(high=0.06), "it has hardly moved", "it is too fast",
    given=("optim/learning_rate", Range(low=1e-5)),
)  # fmt: skip
CLIP = Evidence("policy/clip_frac", "clipped share", Range(high=0.5), Range(high=0.5), above="most")
FIT = Evidence(
    "value/explained_variance", "explained variance", Range(low=0.1), Range(low=0.0),
    below="no better than a constant", after_updates=200,
)  # fmt: skip
SPREAD = Evidence(
    "normalizer/observation_unlike_frac", "unlike share", Range(high=0.3), needed=True
)
PARTS = (
    Part("policy", (PACE, CLIP)),
    Part("value_function", (FIT,)),
    Part("normalizers", (SPREAD,)),
)
GOOD = {
    "updates": 500.0,
    "optim/learning_rate": 3e-4,
    "policy/kl": 0.01,
    "policy/clip_frac": 0.1,
    "value/explained_variance": 0.9,
    "normalizer/observation_unlike_frac": 0.0,
}


def states(report: dict[str, float]) -> list[str]:
    return [each.state for each in judged(PARTS, report)]


def test_sound_by_all_of_the_evidence() -> None:
    assert states(GOOD) == ["reliable"] * 3
    assert judged(PARTS, GOOD)[0].reason == "KL 0.01, clipped share 0.1"
    assert health.metrics(PARTS, GOOD) == {
        "health/policy": 1.0, "health/value_function": 1.0, "health/normalizers": 1.0,
    }  # fmt: skip


def test_nothing_is_known_without_evidence() -> None:
    assert states({}) == states({"updates": 500.0, "loss/total": 5.0}) == ["not known yet"] * 3
    assert judged(PARTS, {})[2].reason == "no report has unlike share"
    assert set(health.metrics(PARTS, {}).values()) == {0.0}


@pytest.mark.parametrize(
    ("part", "change", "state", "reason"),
    [
        (0, {"policy/kl": 0.09}, "doubtful", "KL 0.09 above 0.06: it is too fast"),
        (0, {"policy/kl": 6e-8}, "not known yet", "KL 6e-08 below 1e-05: it has hardly moved"),
        (0, {"policy/kl": 6e-8, "optim/learning_rate": 1e-6}, "reliable", "clipped share 0.1"),
        (
            0,
            {"policy/kl": 0.09, "policy/clip_frac": 0.6},
            "doubtful",
            "KL 0.09 above 0.06, clipped share 0.6 above 0.5: it is too fast; most",
        ),
        (0, {"policy/kl": 6e-8, "policy/clip_frac": 0.6}, "doubtful", "clipped share 0.6"),
        (1, {"value/explained_variance": 0.0}, "not known yet", "explained variance 0 below 0.1"),
        (1, {"value/explained_variance": -0.1}, "doubtful", "explained variance -0.1 below 0: no"),
        (1, {"updates": 199.0}, "not known yet", "199 of the 200 updates"),
        (
            1,
            {"updates": 199.0, "value/explained_variance": -0.1},
            "not known yet",
            "199 of the 200",
        ),
        (2, {"normalizer/observation_unlike_frac": 0.4}, "not known yet", "unlike share 0.4 above"),
    ],
)
def test_the_reason_is_in_numbers(
    part: int, change: dict[str, float], state: str, reason: str
) -> None:
    found = judged(PARTS, GOOD | change)
    assert found[part].state == state
    assert found[part].reason.startswith(reason)
    assert all(each.state == "reliable" for each in found if each != found[part])


def test_policies_are_judged_one_by_one() -> None:
    report = {f"policy_{k}/{name}": x for k in range(3) for name, x in GOOD.items()}
    report |= {"env_steps": 5.0, "policy_1/policy/kl": 0.09}
    found = judged(PARTS[:1], report)
    assert [(each.policy, each.state) for each in found] == [
        (0, "reliable"), (1, "doubtful"), (2, "reliable"),
    ]  # fmt: skip
    assert sentences(found) == [
        ("reliable", "policy reliable in 2 of 3 (policy 0: KL 0.01, clipped share 0.1)"),
        ("doubtful", "policy doubtful in 1 of 3 (policy 1: KL 0.09 above 0.06: it is too fast)"),
    ]


def test_doubts_are_told_when_they_come_and_go_and_ever_more_rarely() -> None:
    herald, told = Herald(), []
    for second in range(2000):
        wrong = {"policy/kl": 0.09} if second % 2 else {}
        told += [(second, line) for line in herald.news(judged(PARTS, GOOD | wrong), second)]
    assert told[0] == (1, "health: policy is doubtful: KL 0.09 above 0.06: it is too fast")
    assert told[1][1].startswith("health: policy is reliable: KL 0.01")
    assert 3 <= len(told) <= 6
    assert Herald().news(judged(PARTS, GOOD), 0.0) == []
    assert Herald().news(judged(PARTS, {}), 0.0) == []


def test_plain_lines_tell_doubts_and_all_states_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    shown = make_progress(View("title", Pace(1000, 0), parts=PARTS), stream)
    for second in range(30):
        now = float(second)
        shown.update({**GOOD, "env_steps": 30.0 * second, "policy/kl": 0.09}, Score())
    shown.close()
    shown.close()
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("health")]
    assert lines == [
        "health: policy is doubtful: KL 0.09 above 0.06: it is too fast",
        "health: policy doubtful: KL 0.09 above 0.06: it is too fast",
        "health: value function reliable: explained variance 0.9",
        "health: normalizers reliable: unlike share 0",
    ]


def test_the_dashboard_shows_the_states() -> None:
    from rich.console import Console

    from quintet.observe.dashboard import layout

    view = View("title", Pace(1000, 0), "", FACTS, parts=PARTS)
    view.add({**GOOD, "policy/kl": 0.09, "updates": 10.0}, Score())
    console = Console(width=100, file=io.StringIO())
    with console.capture() as shown:
        console.print(layout(view, console, 40))
    text = " ".join(shown.get().split())
    for part in (
        "health policy doubtful: KL 0.09 above 0.06: it is too fast",
        "value function not known yet: 10 of the 200 updates that this takes",
        "normalizers reliable: unlike share 0",
    ):
        assert part in text
