"""Findings about runs: each where it is planted, and not where it is absent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quintet.algorithms import registry
from quintet.checkpoints.run_record import Choice
from quintet.checkpoints.spaces_as_json import as_json
from quintet.doctor import run as run_doctor
from quintet.doctor import units
from quintet.doctor.curves import Level, RunSeen, as_word
from quintet.doctor.run import examine_runs
from quintet.findings import engine, learning, scores
from quintet.findings.engine import Again, evaluate
from quintet.findings.record import Finding
from quintet.observe.run_summary import RunSummary
from quintet.options.declaration import Facts, about, idle
from quintet.options.layers import Layer
from quintet.options.layers import options as fields
from quintet.options.resolve import resolved
from quintet.options.saved import load_config
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

USUAL = {
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.5,
    "num_epochs": 10,
    "clip_epsilon": 0.2,
    "update_normalizers": True,
    "total_env_steps": 100_000,
    "replay_capacity_steps": 1_000_000,
    "value_coef": 0.5,
    "updates_per_env_step": 0.5,
}
ROLES = {
    "learning_rate": ("learning_rate",),
    "ent_coef": ("entropy_coef",),
    "vf_coef": ("value_coef",),
    "grad_clip": ("max_grad_norm",),
    "buffer_size": ("replay_capacity_steps",),
    "gradient_steps": ("updates_per_env_step",),
    "total_timesteps": ("total_env_steps",),
}
PART = Part("policy", (Evidence("policy/kl", "KL", Range(high=0.06), Range(high=0.06), above="x"),))


def reports(count: int = 20, **series: Sequence[float] | float) -> list[dict[str, float]]:
    """Reports of a run that learns, with other metrics; a list gives a value for each report, or
    the values at the first and the last one."""
    usual: dict[str, Any] = {
        "env_steps": [5_000.0, 100_000.0],
        "updates": [200.0, 4_000.0],
        "episode/return_mean": np.minimum(np.linspace(10.0, 130.0, count), 100.0),
        "episode/return_std": 5.0,
        "episode/return_min": 0.0,
        "episode/return_max": 110.0,
        "episode/count": 20.0,
        "policy/entropy": [0.69, 0.2],
        "policy/kl": 0.01,
        "optim/grad_norm": 1.0,
        "optim/grad_clip_frac": 0.5,
        "optim/learning_rate": 3e-4,
        "time/learning_frac": 0.7,
        "time/stepping_frac": 0.3,
    } | {name.replace("__", "/"): x for name, x in series.items()}
    rows: list[dict[str, float]] = [{} for _ in range(count)]
    for name, given in usual.items():
        values = np.atleast_1d(np.asarray(given, float))
        if len(values) == 2 and count != 2:
            values = np.linspace(values[0], values[1], count)
        if len(values) == 1:
            values = np.repeat(values, count)
        for row, x in zip(rows, values, strict=True):
            if np.isfinite(x):
                row[name] = float(x)
    return rows


def seen(
    series: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    given: tuple[str, ...] = (),
    parts: tuple[Part, ...] = (),
    others: Sequence[Level] = (),
    **run: Any,
) -> RunSeen:
    rows = reports(**(series or {}))
    values = USUAL | {"algo": "ppo", "env.id": "CartPole-v1"} | dict(options or {})
    summary = RunSummary(Path("runs/a"), **({"state": "finished"} | run))
    summary = replace(summary, options=values, reports=rows)
    names = frozenset(given) | frozenset(options or {})
    again, tuned = Again("quintet train ppo", "runs/a-"), frozenset(USUAL)
    return RunSeen(summary, -1, rows, USUAL, names, parts, again, ROLES, others, tuned)


def one(name: str, run: RunSeen) -> Finding | None:
    """The finding of a name; further words after a space say how it is planted."""
    found = [*evaluate("run", run), *options_of(run)]
    return next((each for each in found if each.name == name.partition(" ")[0]), None)


def options_of(run: RunSeen, symptoms: Sequence[Finding] = ()) -> list[Finding]:
    return evaluate("options", replace(run, symptoms=symptoms))


def health(run: RunSeen) -> list[Finding]:
    return [each for each in evaluate("run", run) if each.name.startswith("health-")]


FLAT = {"episode__return_mean": 10.0}
FALLS = {"episode__return_mean": [*np.linspace(10, 100, 8), *np.linspace(100, 20, 12)]}
TERMS = {**FLAT, "env__reward/run": 10.1, "env__reward/ctrl": -0.1}
NOTHING = {"env__reward/run": 0.0, "env__reward/ctrl": 0.0}
NO_EPISODES = {f"episode__{name}": float("nan") for name in ("return_mean", "return_std", "count")}


PLANTED: dict[str, Callable[[], RunSeen]] = {
    "health-policy": lambda: seen({"policy__kl": 0.5}, parts=(PART,)),
    "entropy-gone": lambda: seen({**FLAT, "policy__entropy": [0.69, 0.1, *[1e-3] * 18]}),
    "entropy-gone of real numbers": lambda: replace(
        seen({**FLAT, "policy__std_mean": [1.0, 0.5, *[1e-2] * 18]}), continuous=True
    ),
    "entropy-stuck": lambda: seen({**FLAT, "policy__entropy": 0.693}),
    "entropy-stuck by its bonus": lambda: seen(
        {**FLAT, "policy__entropy": 0.693}, {"entropy_coef": 0.05}
    ),
    "policy-still": lambda: seen({**FLAT, "policy__kl": 1e-8}),
    "actions-saturated": lambda: seen({**FLAT, "policy__mode_saturation_frac": 0.95}),
    "gradient-clipped": lambda: seen({"optim__grad_norm": 500.0, "optim__grad_clip_frac": 1.0}),
    "gradient-spikes": lambda: seen({"optim__grad_norm": [*[1.0] * 10, 400.0, *[1.0] * 9]}),
    "gradient-spikes of a part": lambda: seen(
        {"optim__critic_grad_norm": [*[1.0] * 10, 400.0, *[1.0] * 9]}
    ),
    "few-updates": lambda: seen({"updates": [1.0, 30.0]}),
    "replay-small": lambda: seen({"replay__size": 300.0}, {"replay_capacity_steps": 300}),
    "replay-use": lambda: seen({"replay__draws_per_env_step": 0.01}),
    "data-discarded": lambda: seen(
        {"data__executed_env_steps": 1e5, "data__discarded_env_steps": 6e4}
    ),
    "lag-high": lambda: seen({"policy_lag__mean": 40.0, "policy__kl": 0.2}),
    "values-scale": lambda: seen({"value__prediction_mean": 0.01, "value__target_mean": 50.0}),
    "gamma": lambda: seen(
        choices=[Choice(choice="gamma", said="it is short", option="--gamma 0.999")]
    ),
    "run-failed": lambda: seen(state="failed", error="loss is NaN"),
    "no-episode": lambda: seen(NO_EPISODES),
    "returns-equal": lambda: seen({**FLAT, "episode__return_min": 0.1, "episode__return_max": 0.1}),
    "evaluation-differs": lambda: seen(
        {"eval__return_mean": 10.0, "eval__return_std": 3.0, "eval__episodes": 10.0}
    ),
    "best-long-ago": lambda: seen(FALLS),
    "cost-rises": lambda: seen({"env__cost": [1.0, 9.0]}),
    "reward-term": lambda: seen(TERMS, {"env.metrics": "reward/run:sum, reward/ctrl:sum"}),
    "reward-term beside other numbers": lambda: seen(
        {**TERMS, "env__cost": 3.0},
        {"env.metrics": "cost:sum, reward/run:sum, reward/ctrl:sum"},
    ),
    "budget-short": lambda: seen({"episode__return_mean": [10.0, 100.0]}),
    "budget-short by the preset": lambda: seen(FLAT, {"total_env_steps": 2_000}),
    "seeds-differ": lambda: seen(others=[Level(10.0, 5.0, 100.0)]),
    "not-learning": lambda: seen(FLAT),
    "plateau": lambda: seen(
        {"episode__return_mean": np.minimum(np.linspace(10.0, 500.0, 20), 100.0)}
    ),
    "slow": lambda: seen({"time__stepping_frac": 0.9, "time__learning_frac": 0.1}),
    "slow by its evaluations": lambda: seen(
        {"time__evaluation_frac": 0.9}, {"eval.interval": 1_000_000}
    ),
    "option-far": lambda: seen(FLAT, {"learning_rate": 0.3}),
    "option-other": lambda: seen(FLAT, {"update_normalizers": False}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_found_where_it_is_planted(name: str):
    found = one(name, PLANTED[name]())
    assert found is not None
    assert 0.0 < found.weight < 1.0
    assert found.said
    assert found.advice


COMMANDS = {
    "entropy-gone": "--entropy-coef 0.05",
    "entropy-stuck": "--learning-rate 0.0009",
    "entropy-stuck by its bonus": "--entropy-coef 0.0025",
    "policy-still": "--learning-rate 0.003",
    "few-updates": "--total-env-steps 1000000",
    "replay-small": "--replay-capacity-steps 100000",
    "replay-use": "--updates-per-env-step 5",
    "values-scale": "--value-coef 5",
    "seeds-differ": "--entropy-coef 0.03",
    "slow by its evaluations": "--eval.interval 5000000",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_changes_the_option_in_the_right_direction(name: str) -> None:
    found = one(name, PLANTED[name]())
    assert found is not None
    assert found.option == COMMANDS[name]


def test_the_usual_names_of_options_are_those_of_learners() -> None:
    known = {
        role: name
        for algo in ("ppo", "ddpg")
        for name, info in fields(algo).items()
        for role in {name, *about(info).also}
    }
    assert ROLES.keys() <= known.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_not_found_where_it_is_absent(name: str):
    series = {
        "episode__return_mean": np.minimum(np.linspace(10.0, 190.0, 20), 100.0),
        "eval__return_mean": [10.0, 100.0],
        "eval__return_std": 3.0,
        "eval__episodes": 10.0,
        "policy__mode_saturation_frac": 0.95,  # the best may be to push as far as possible
        "replay__size": 1e5,
        "replay__draws_per_env_step": 64.0,
        "policy_lag__mean": 0.0,
        "value__prediction_mean": 45.0,
        "value__target_mean": 50.0,
        "data__executed_env_steps": 1e5,
        "data__discarded_env_steps": 0.0,
    }
    sound = seen(series, parts=(PART,), others=[Level(100.0, 5.0, 100.0)])
    assert one(name, sound) is None


def test_parameter_noise_off_its_distance_is_found():
    record = registry.find("ddpg")
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    parts = record.symptoms(record.config(), Spaces(space, space))  # a distance of 0.2
    for distance, wanted in ((0.2, None), (5.0, "health-part"), (0.001, "health-part")):
        run = seen({"exploration__param_noise_distance": distance}, parts=parts)
        found = health(run)
        assert [each.name for each in found] == ([wanted] if wanted else [])
    without = record.config(exploration="normal_0.1")
    assert not record.symptoms(without, Spaces(space, space))


def test_policies_of_a_population_are_told_together():
    rows = [
        {"env_steps": x["env_steps"]}
        | {f"policy_{k}/{name}": y for k in range(3) for name, y in x.items()}
        for x in reports(**FLAT)
    ]
    options = USUAL | {"algo": "ppo", "env.id": "CartPole-v1"}
    summary = RunSummary(Path("runs/a"), "finished", options=options, reports=rows)
    (found,) = examine_runs([summary]).values()
    (stays,) = [each for each in found if each.name == "not-learning"]
    assert stays.said.endswith("(in 3 of 3 policies, most of all in policy 0)")


def test_seeds_of_one_group_are_compared():
    options = USUAL | {"algo": "ppo", "env.id": "CartPole-v1"}
    runs = [
        RunSummary(Path(f"runs/{i}"), "finished", options=options | {"seed": i}, reports=rows)
        for i, rows in enumerate([reports(), reports(**FLAT)])
    ]
    assert "seeds-differ" in {x.name for x in examine_runs(runs)["runs/0"]}
    other = replace(runs[1], options=runs[1].options | {"gamma": 0.9})
    assert "seeds-differ" not in {x.name for x in examine_runs([runs[0], other])["runs/0"]}


def test_seeds_are_compared_where_they_have_trained_as_long():
    options = USUAL | {"algo": "ppo", "env.id": "CartPole-v1"}
    short = [{**x, "env_steps": x["env_steps"] / 10} for x in reports(**FLAT)]
    runs = [
        RunSummary(Path(f"runs/{i}"), "running", options=options | {"seed": i}, reports=rows)
        for i, rows in enumerate([reports(), short])
    ]
    assert "seeds-differ" not in {x.name for x in examine_runs(runs)["runs/0"]}


@pytest.mark.parametrize("algo", ["ppo", "a plugin that is not installed"])
def test_a_run_that_failed_before_its_first_report_is_told(algo: str):
    run = RunSummary(Path("runs/a"), "failed", options={"algo": algo}, error="reset() is broken")
    first, *_ = examine_runs([run])["runs/a"]
    assert first.name == "run-failed"
    assert "reset() is broken" in first.said


@pytest.mark.parametrize(
    ("error", "numbers"),
    [
        ("the loss must be finite, got nan", True),
        ("observation 'x' is -inf", True),
        ("KeyError: 'maintenance' (finance/env.py, line 12)", False),
        ("not a definite state", False),
        ("EnvironmentFault: observations and rewards must be finite, got nan", False),
    ],
)
def test_errors_about_numbers_are_told_from_words_that_hold_their_letters(
    error: str, numbers: bool
):
    run = RunSummary(Path("runs/a"), "failed", error=error)
    (found,) = scores.failed(run, "slower")
    assert (found.option == "slower") is numbers


def test_after_nan_from_the_environment_the_environment_is_examined():
    error = "EnvironmentFault: observations and rewards must be finite, got nan"
    (found,) = scores.failed(RunSummary(Path("runs/a"), "failed", error=error), "slower")
    assert found.command.startswith("quintet doctor ")
    assert found.advice == "mend the environment"


def test_an_empty_list_is_a_word_of_a_command():
    assert as_word([]) == "none"


def test_first_episodes_of_many_streams_may_be_long():
    def found(state: str, streams: int) -> str | None:
        own = seen(NO_EPISODES)
        options = own.run.options | {"env.num_streams": streams}
        own = replace(own, run=replace(own.run, state=state, options=options))
        each = one("no-episode", own)
        return None if each is None else each.degree

    assert found("running", 8) == "likely"
    assert found("running", 64) is None
    assert found("finished", 64) == "possible"


def test_the_size_of_a_replay_is_that_of_all_streams():
    name = "replay_capacity_steps_per_stream"
    own = seen({"replay__size": 1_000.0}, {name: 1_000, "env.num_streams": 16})
    own = replace(own, roles={"buffer_size": (name,)})
    assert one("replay-small", own) is None
    few = replace(own, run=replace(own.run, options=own.run.options | {"env.num_streams": 1}))
    assert one("replay-small", few) is not None


def test_every_row_is_planted():
    rows = [*learning.finding.rows, *scores.finding.rows, *learning.option.rows]
    planted = {name.partition(" ")[0] for name in PLANTED}
    assert {name for row in rows for name in row.names[:1]} <= planted


def test_a_run_that_learns_is_doubted_less():
    far = {"learning_rate": 0.3}
    (learns,), (stays,) = (options_of(seen(x, far), []) for x in ({}, FLAT))
    assert learns.weight < stays.weight
    assert learns.degree != "likely"


def test_a_run_that_lost_what_it_learned_is_doubted_as_much():
    rises = [*np.linspace(10, 400, 10), *np.linspace(400, 60, 10)]
    lost, kept = (seen({"episode__return_mean": x}) for x in (rises, sorted(rises)))
    assert (lost.rise or 0.0) > 1.0
    assert (lost.learns, kept.learns) == (False, True)
    assert (lost.doubt, kept.doubt) == (1.0, 0.5)
    random_again = [*np.linspace(0.69, 0.2, 10), *np.linspace(0.2, 0.69, 10)]
    both = {"episode__return_mean": rises, "policy__entropy": random_again}
    assert one("entropy-stuck", seen(both)) is None


@pytest.mark.parametrize(
    "means",
    [
        [*np.linspace(10, 60, 10), *np.linspace(60, 90, 10)],
        [10.0] * 4 + [60.0] * 6 + [40.0] * 5 + [62.0] * 5,
    ],
)
def test_what_still_moves_is_no_plateau(means: list[float]):
    noisy = seen({"episode__return_mean": means, "episode__return_std": 50.0, "episode__count": 3})
    assert one("plateau", noisy) is None
    assert one("plateau", seen({"episode__return_mean": means})) is None


def test_a_short_interval_is_made_longer():
    short = {"time__checkpoint_frac": 0.9}
    found = one("slow", seen(short, {"checkpoint.interval_s": 0.15}))
    assert found is not None
    assert found.option == "--checkpoint.interval-s 0.75"


@pytest.mark.parametrize(("part", "name"), [("normalizers", "normalizers"), ("noise", "part")])
def test_every_part_of_a_learner_has_a_finding(part: str, name: str):
    evidence = Evidence("own/x", "x", Range(high=1.0), Range(high=2.0), above="y")
    far, near = (seen({"own__x": x}, parts=(Part(part, (evidence,)),)) for x in (5.0, 0.5))
    (found,) = health(far)
    assert found.name == f"health-{name}"
    assert not health(near)


@pytest.mark.parametrize(("state", "rows"), [("damaged", True), ("finished", False)])
def test_a_folder_that_can_not_be_read_is_told(state: Any, rows: bool):
    own = {"algo": "ppo", "env.id": "CartPole-v1"}
    run = RunSummary(Path("runs/a"), state, ("x.json is cut",) * (state == "damaged"), options=own)
    run = replace(run, reports=reports() if rows else [])
    (found,) = [x for x in examine_runs([run])["runs/a"] if x.name == "run-unreadable"]
    assert ("x.json is cut" if state == "damaged" else "it has no reports") in found.said
    whole = replace(run, state="finished", reports=reports())
    assert "run-unreadable" not in {x.name for x in examine_runs([whole])["runs/a"]}


def test_the_evidence_of_a_part_is_the_share_beyond_the_bound_that_is_named():
    part = Part("value_function", (Evidence("value/x", "x", Range(0.1), Range(-0.01), below="y"),))
    (found,) = health(seen({"value__x": 0.05}, parts=(part,)))
    assert found.name == "health-value-function"
    assert found.evidence == {"x": 0.05, "bound": 0.1, "share of the reports": 1.0}


def test_a_symptom_makes_an_option_likelier():
    run = seen(FLAT, {"learning_rate": 0.03})
    symptom = Finding("KL was high", weight=0.6, name="health-policy")
    (alone,), (together,) = options_of(run, []), options_of(run, [symptom])
    assert together.weight > alone.weight
    assert "health-policy" in together.said


def test_the_command_of_an_option_has_the_presets_value():
    (found,) = options_of(seen(FLAT, {"learning_rate": 0.03}), [])
    assert found.option == "--learning-rate 0.0003"


@pytest.mark.parametrize(
    ("name", "value", "usual", "near_1", "wanted"),
    [
        ("learning_rate", 0.03, 0.0003, False, 2.0),
        ("gamma", 0.9, 0.99, True, -1.0),
        ("entropy_coef", 1.0, 0.0, False, 2.0),
        ("entropy_coef", 0.001, 0.0, False, 0.0),
        ("clip_epsilon", None, 0.2, False, None),
        ("model.policy_hidden", [1, 1], [10, 10], False, -2.0),
    ],
)
def test_distances(name: str, value: Any, usual: Any, near_1: bool, wanted: float | None):
    found = learning.decades(name, value, usual, near_1)
    assert found == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("name", "series", "options"),
    [
        ("cost-rises", {**FLAT, "env__cost": [1.0, 9.0]}, {}),  # nothing rises with it
        ("cost-rises", {"env__cost": [9.0, 1.0]}, {}),
        ("cost-rises", {"env__costume": [1.0, 9.0]}, {}),
        ("cost-rises", {"env__cost": [5.0, 9.0] * 10}, {}),  # noise
        ("cost-rises", {"env__cost": [-9.0, -1.0]}, {}),  # less of it
        ("reward-term", {**FLAT, "episode__return_mean": 0.0, **NOTHING}, {}),
        ("reward-term", TERMS, {"env.metrics": "a:b"}),
        ("reward-term", {**TERMS, "env__reward/run": 7.0}, {}),  # they are not the whole reward
        ("reward-term", {**TERMS, "episode__return_mean": np.linspace(1, 90, 20)}, {}),
        ("reward-term", {**TERMS, "env__reward/run": 12.0, "env__reward/ctrl": -2.0}, {}),
        ("reward-term", TERMS, {"env.metrics": "reward/run:mean, reward/ctrl:mean"}),
    ],
)
def test_healthy_numbers_of_an_environment_are_no_finding(
    name: str, series: dict[str, Any], options: dict[str, Any]
):
    usual = {"env.metrics": "reward/run:sum, reward/ctrl:sum"}
    assert one(name, seen(series, usual | options)) is None


LONG = np.concatenate([np.linspace(1_000.0, 10_000.0, 15), np.linspace(20_000.0, 100_000.0, 5)])
"""env_steps of reports that crowd at the beginning, as those of long runs do."""


def test_parts_of_a_run_are_parts_of_its_env_steps():
    run = seen({"env_steps": LONG})
    assert [x["env_steps"] for x in run.part(0.5, 1.0)] == [60_000.0, 80_000.0, 100_000.0]
    assert [x["env_steps"] for x in run.part(0.0, 0.05)] == [*LONG[LONG <= 5_000.0]]


def test_what_happens_late_is_found_where_reports_crowd_at_the_beginning():
    falls = seen(
        {"env_steps": LONG, "episode__return_mean": [*np.linspace(10, 100, 16), 100, *[20] * 3]}
    )
    assert one("best-long-ago", falls) is not None
    settled = seen({**FLAT, "env_steps": LONG, "policy__entropy": [*[0.69] * 15, *[1e-3] * 5]})
    assert one("entropy-gone", settled) is not None
    rose_early = seen({"env_steps": LONG, "episode__return_mean": [*[10] * 12, *[100] * 8]})
    assert one("budget-short", rose_early) is None


def test_first_episodes_are_pooled_where_a_report_has_few():
    """One episode shows no spread, so that every later change would be beyond the noise."""
    returns = [10.0, -30.0, 20.0, -10.0, 0.0] * 4
    few = {"episode__return_mean": returns, "episode__return_std": 0.0, "episode__count": 1.0}
    run = seen(few)
    assert run.first_level == Level(-2.0, pytest.approx(17.2, abs=0.1), 5)
    assert one("best-long-ago", run) is None
    assert not run.learns
    assert seen().first_level.count == 20


def test_too_few_episodes_say_nothing():
    run = seen({"episode__count": 0.2})
    assert run.level(0.75, 1.0) is None
    assert run.rise is None


@pytest.mark.parametrize("continuous", [False, True])
def test_entropies_of_real_actions_have_no_least_value(continuous: bool):
    gone = {**FLAT, "policy__entropy": [2.0, 0.1, *[1e-3] * 18]}
    stuck = {**FLAT, "policy__entropy": 2.0}
    for name, series in (("entropy-gone", gone), ("entropy-stuck", stuck)):
        assert (one(name, replace(seen(series), continuous=continuous)) is None) is continuous
    still = replace(seen({**stuck, "policy__std_mean": 1.0}), continuous=True)
    assert one("entropy-stuck", still) is not None


def _run(algo: str, env_id: str, series: Mapping[str, Any], **options: Any) -> RunSummary:
    record = registry.find(algo)
    values = record.config().model_dump() | {"algo": algo, "env.id": env_id} | options
    sources = dict.fromkeys(options, "command line")
    rows = reports(**series)
    return RunSummary(Path("runs/a"), "finished", options=values, sources=sources, reports=rows)


def test_every_command_trains_into_a_folder_of_its_own():
    run = _run("ppo", "CartPole-v1", FALLS, learning_rate=0.3, gamma=0.5)
    (found,) = examine_runs([run]).values()
    commands = [x.command for x in found if x.command.startswith("quintet train")]
    folders = {command.split(" --run-dir ")[1] for command in commands}
    assert {"runs/a-option-far-gamma", "runs/a-option-far-learning_rate"} <= folders
    assert len(folders) == len(commands)


ODD = {"learning_rate": 0.1, "gamma": 0.5}
WINS = {"episode__return_mean": [0.2, 1.0], "episode__success_rate": [0.2, 0.995]}


@pytest.mark.parametrize(
    ("series", "env", "most", "named"),
    [
        pytest.param(FLAT, "CartPole-v1", "likely", True, id="flat"),
        pytest.param({}, "CartPole-v1", "possible", True, id="learns"),
        pytest.param(WINS, "CartPole-v1", "note", False, id="wins"),
        pytest.param(
            {"episode__return_mean": [*np.linspace(20, 498, 8), *[498] * 12]},
            "CartPole-v1", "note", False, id="solves",
        ),
        pytest.param(
            {"episode__return_mean": [20, 498]}, "module:Own", "possible", True, id="no threshold"
        ),
    ],
)  # fmt: skip
def test_options_count_less_in_a_run_that_learns_and_not_where_it_does_well(
    series: Mapping[str, Any], env: str, most: str, named: bool
):
    run = _run("ppo", env, {"policy__entropy": 0.69, **series}, **ODD)
    (found,) = examine_runs([run]).values()
    about_options = [each for each in found if each.name.startswith("option-")]
    assert bool(about_options) is named
    order = ["note", "possible", "likely"]
    assert all(order.index(each.degree) <= order.index(most) for each in found)
    said = run_doctor.does_well(run)
    assert bool(said) is (most != "likely")
    assert ("succeeded" in said) is (series is WINS)


@pytest.mark.parametrize("source", ["sweep", "preset tuned of the race", "file x/best.yaml"])
def test_what_a_search_has_found_is_not_undone(source: str):
    run = _run("ppo", "CartPole-v1", FLAT, **ODD)
    searched = replace(run, sources=dict.fromkeys(ODD, source))
    for each, there in ((run, True), (searched, False)):
        (found,) = examine_runs([each]).values()
        assert any(x.name.startswith("option-") for x in found) is there


def test_what_has_no_effect_under_the_other_options_is_not_named():
    """A standard deviation means nothing to choices."""
    odd = {"model.action_std_init": 30.0}
    run = _run("ppo", "CartPole-v1", FLAT, **odd)
    for space, there in ((spaces.MultiDiscrete([3] * 4), False), (spaces.Box(-1, 1, (2,)), True)):
        own = Spaces(spaces.Box(-1, 1, (3,)), space)
        (found,) = examine_runs([replace(run, spaces=as_json(own))]).values()
        assert any(x.subject == "model.action_std_init" for x in found) is there


def test_symptoms_stand_with_their_cause():
    series = {**FLAT, "optim__grad_norm": 1e4, "optim__grad_clip_frac": 1.0}
    tiny = _run("ppo", "CartPole-v1", series, max_grad_norm=1e-4)
    (found,) = examine_runs([tiny]).values()
    assert (found[0].name, found[0].subject) == ("option-far", "max_grad_norm")
    assert "gradient-clipped" in found[0].said
    assert "gradient-clipped" not in {each.name for each in found}
    sizes = [
        Choice(choice=name, said=name, option="", env_steps=1)
        for name in ("observation_scale", "reward_size")
    ]
    scaled = replace(_run("ppo", "CartPole-v1", series), choices=sizes)
    (found,) = examine_runs([scaled]).values()
    names = [each.name for each in found]
    assert names[0] == "reward-size"
    assert not {"gradient-clipped", "observation-scale"} & {*names}
    assert "it explains gradient-clipped, observation-scale" in found[0].said


def test_commands_are_printed_where_their_kind_has_helped(monkeypatch: pytest.MonkeyPatch):
    stuck = {**FLAT, "policy__entropy": 0.69}
    (found,) = examine_runs([_run("ppo", "CartPole-v1", stuck, gamma=0.5)]).values()
    commands = {each.name: each.command for each in found}
    assert commands["option-far"].startswith("quintet train")
    assert commands["not-learning"].startswith("quintet doctor")
    assert commands["entropy-stuck"] == ""
    monkeypatch.setitem(engine.TRIED, "entropy-stuck", engine.Tried(8, 7, 0))
    for tried, told in ((engine.Tried(8, 7, 0), True), (engine.Tried(8, 7, 1), False)):
        monkeypatch.setitem(engine.TRIED, "entropy-stuck", tried)
        (found,) = examine_runs([_run("ppo", "CartPole-v1", stuck, gamma=0.5)]).values()
        assert any(each.name == "entropy-stuck" and each.command for each in found) is told


def test_what_the_user_knows_is_not_said():
    run = _run("ppo", "CartPole-v1", FLAT, **ODD)
    for known, left in (
        (["not-learning"], {"learning_rate", "gamma"}),
        (["option-far:gamma"], {"learning_rate"}),
        (["option-far"], set()),
        ("option-far", {"learning_rate", "gamma"}),  # a damaged file
    ):
        own = replace(run, options={**run.options, "doctor.known": known})
        (found,) = examine_runs([own]).values()
        assert {x.subject for x in found if x.name == "option-far"} == left
        assert ("not-learning" in {x.name for x in found}) is (known != ["not-learning"])


def test_shares_of_time_are_those_of_the_whole_run():
    """The last report, right after an evaluation, says little."""
    rows = reports(
        time__learning_frac=[*[0.9] * 19, 0.1], time__evaluation_frac=[*[0.05] * 19, 0.89]
    )
    rows = [{**row, "wall_s": 100.0 + 10.0 * i} for i, row in enumerate(rows)]
    rows[-1]["wall_s"] = rows[-2]["wall_s"] + 3.0
    run = seen()
    assert one("slow", replace(run, reports=rows)) is None
    rows[-1]["wall_s"] = rows[-2]["wall_s"] + 1e4
    found = one("slow", replace(run, reports=rows))
    assert found is not None
    assert "of the run's time went into evaluation" in found.said


def test_the_command_that_examines_the_environment_has_the_runs_options():
    command = scores.doctor_of_env(seen().run)
    assert command == "quintet doctor CartPole-v1 --algo ppo --config runs/a/config.yaml"


def test_options_without_effect_are_in_no_command():
    """`exploration_std_end` is refused where the noise does not fall."""
    record = registry.find("ddpg")
    still = idle(record.config(), Facts())
    assert still
    name = next(iter(still))
    (found,) = run_doctor.seen_of(_run("ddpg", "Pendulum-v1", {}))
    assert not any(name in names for names in found.roles.values())
    assert any("actor_lr" in names for names in found.roles.values())


@pytest.mark.parametrize(("last", "falls"), [(0.0, True), (3e-4, False)])
def test_a_new_run_is_advised_where_rates_fell(last: float, falls: bool):
    rising = {"episode__return_mean": [10.0, 100.0], "optim__learning_rate": [3e-4, last]}
    found = one("budget-short", seen(rising))
    assert found is not None
    assert ("new run" in found.advice) is falls


@pytest.mark.parametrize("cut", [0.0, 4.0])
def test_cut_evaluations_are_told(cut: float):
    low = {"eval__return_mean": 10.0, "eval__return_std": 3.0, "eval__episodes": 10.0}
    found = one("evaluation-differs", seen({**low, "eval__cut_episodes": cut}))
    assert found is not None
    assert ("eval.max_steps" in found.said) is bool(cut)


def test_a_replay_that_is_not_drawn_from_is_not_judged():
    assert one("replay-use", seen({"replay__draws_per_env_step": 0.0})) is None


def test_dead_units_are_looked_at_where_policies_are_asked_for(monkeypatch):
    dead = Finding("all are off", weight=0.65, name="dead-units")
    monkeypatch.setattr(units, "dead_units", lambda folder: [dead])
    (learns,) = examine_runs([_run("ppo", "CartPole-v1", {})], policies=True).values()
    assert dead not in learns
    run = _run("ppo", "CartPole-v1", FLAT)
    without, looked = (examine_runs([run], policies=on)["runs/a"] for on in (False, True))
    assert dead not in without
    assert looked[0] == dead


@pytest.mark.parametrize("spoil", ["none has it", "the last lacks it"])
def test_reports_without_env_steps_are_left_out(spoil: str):
    run = _run("ppo", "CartPole-v1", FALLS)
    rows = [dict(each) for each in run.reports]
    for each in rows if spoil == "none has it" else rows[-1:]:
        del each["env_steps"]
    (found,) = examine_runs([replace(run, reports=rows)]).values()
    assert ("best-long-ago" in {each.name for each in found}) is (spoil != "none has it")


def test_reports_that_go_back_hide_no_others():
    rows = reports(**FALLS)
    rows.append({"env_steps": 10.0})
    run = seen()
    run = replace(run, reports=rows)
    assert one("best-long-ago", run) is not None
    assert one("budget-short", run) is None


def test_few_first_episodes_have_the_spread_of_all():
    """Of many streams with long first episodes three ended early, the others all at once."""
    series = {
        "episode__return_mean": [50.0] * 9 + [960.0] * 11,
        "episode__count": [0.0] * 3 + [1.0] * 3 + [0.0] * 3 + [60.0] * 11,
        "policy__entropy": [0.69, 0.1, *[1e-3] * 18],
        "policy__kl": 1e-8,
    }
    run = seen(series)
    assert run.first_level is not None
    assert (run.first_level.mean, run.first_level.count) == (50.0, 2.0)
    assert run.first_level.std > 50.0
    assert run.learns
    silent = seen({**series, "episode__count": 0.0})
    assert silent.rise is None
    for name in ("entropy-gone", "entropy-stuck", "policy-still"):
        assert one(name, run) is None
        assert one(name, silent) is None


@pytest.mark.parametrize("known", [False, True])
def test_real_actions_are_known_by_spaces_or_reports(known: bool):
    series = {"policy__std_mean": float("nan") if known else 1.0}
    run = _run("ppo", "Pendulum-v1", series)
    if known:
        box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        run = replace(run, spaces=as_json(Spaces(box, box)))
    (found,) = run_doctor.seen_of(run)
    assert found.continuous
    (discrete,) = run_doctor.seen_of(_run("ppo", "CartPole-v1", {}))
    assert not discrete.continuous


def test_a_run_in_the_working_folder_has_its_next_one_beside_it(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    run = replace(_run("ppo", "CartPole-v1", {}, gamma=0.5), folder=Path())
    (found,) = examine_runs([run]).values()
    (command,) = (each.command for each in found if each.subject == "gamma")
    assert command.endswith(f" --run-dir {tmp_path / 'run-option-far-gamma'}")


def test_a_file_with_all_options_gives_none_that_nobody_chose():
    """As the commands of findings do: the file holds resolved options, such as the encoder."""
    run = _run("ppo", "CartPole-v1", FLAT)
    loaded = load_config("ppo", [], Layer("x", {"env.id": "CartPole-v1", "run_dir": "runs/a"}))
    options = resolved(loaded)[0]
    of = Spaces(spaces.Box(-5.0, 5.0, (4,)), spaces.Discrete(2))
    sources = dict.fromkeys(options, "file config.yaml")
    own = replace(run, options=options, sources=sources, spaces=as_json(of))
    (found,) = examine_runs([own]).values()
    assert not [each.said for each in found if each.name.startswith("option-")]
    other = replace(own, options=options | {"model.encoder": "small_cnn"})
    (found,) = examine_runs([other]).values()
    assert [each.subject for each in found if each.name == "option-other"] == ["model.encoder"]
