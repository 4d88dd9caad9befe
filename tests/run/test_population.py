"""Populations through the front door: copies, decisions in reports and files, resumes."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run_helpers import newest

import quintet
from quintet.algorithms.appo.learner import APPOLearner
from quintet.commands import cli
from quintet.errors import ConfigError, QuintetError
from quintet.observe.lineage import EVENTS, lineage_figure, plot_lineage, read_events
from quintet.observe.plots import plot_runs
from quintet.observe.report_files import read_metrics
from quintet.population.scores import OF_EPISODES
from quintet.run.policy_run import PolicyRun
from quintet.run.trainer import Trainer
from quintet.runtime.delivery import Batch

TOTAL, START, PERIOD = 2_000, 200, 100
SMALL: dict[str, Any] = {
    "env.num_streams": 8,
    "unroll_steps": 16,
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "eval.episodes": 0,
    "checkpoint.interval_iterations": 6,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 100,
    "runtime.kind": "serial",
    "population.size": 3,
    "population.start_env_steps": START,
    "population.period_env_steps": PERIOD,
    "population.mutation_rate": 0.5,
    "population.min_episodes": 3,
}
OF = {
    "ppo": {"minibatch_steps": 48, "num_epochs": 2, "env.num_streams": 6},
    "appo": {"minibatch_steps": 64, "env.num_streams": 6},
    "impala": {"batch_unrolls": 4, "env.num_streams": 6},
    "ddpg": {
        "env.num_streams": 3, "unroll_steps": 16, "replay_capacity_steps": 500, "batch_size": 16,
        "updates_per_env_step": 0.1, "preset": "none", "checkpoint.interval_iterations": 1_000,
        "population.start_env_steps": 400, "population.period_env_steps": 150,
    },
    "acer": {
        "env.num_streams": 6, "replay_capacity_steps_per_stream": 320,
        "replay_start_steps_per_stream": 32, "replay_ratio": 1.0,
    },
}  # fmt: skip


def train(folder: Path, algo: str = "appo", total: int = TOTAL, **config: Any) -> Any:
    options = {name.replace("__", "."): x for name, x in config.items()}
    env = "Pendulum-v1" if algo == "ddpg" else "CartPole-v1"
    given = {**SMALL, **OF[algo], **options}
    on_report = given.pop("on_report", None)
    # A report takes as long as an update.
    given = {"report.interval_s": 1e6 if on_report is None else 0.0} | given
    if not given.get("population.objective", "episode/").startswith(OF_EPISODES):
        del given["population.min_episodes"]
    return quintet.train(
        algo, env, total_steps=total, seed=4, run_dir=folder, config=given, on_report=on_report
    )


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = newest(folder)
    tensors = found.tensors.items()
    return {f"{part}/{name}": x for part, held in tensors for name, x in held.items()}


def same(ours: Path, theirs: Path) -> bool:
    """Whether the newest checkpoints of two runs hold the same bytes."""
    left, right = weights(ours), weights(theirs)
    return left.keys() == right.keys() and all(torch.equal(x, right[k]) for k, x in left.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(folder).status == "finished"
    return folder


def test_decisions_are_in_the_file_the_reports_and_the_log(whole: Path) -> None:
    found = events(whole)
    begins = [event for event in found if event["event"] == "begins"]
    assert [event["policy"] for event in begins] == [0, 1, 2]
    assert any(begins[0]["values"] != event["values"] for event in begins[1:])
    copies = [event for event in found if event["event"] == "copied"]
    assert copies
    last = read_metrics(whole)[-1]
    for policy in range(3):
        mine = [event for event in found if event["policy"] == policy]
        now = mine[-1].get("after", mine[-1].get("values"))
        prefix = f"policy_{policy}/"
        for name, value in now.items():
            assert last[f"{prefix}hyperparameter/{name}"] == pytest.approx(value)
        own = [event for event in copies if event["policy"] == policy]
        assert last[f"{prefix}population/copies"] == len(own)
        assert last[f"{prefix}optim/learning_rate"] == pytest.approx(now["learning_rate"])
    said = (whole / "log.txt").read_text()
    assert said.count("becomes a copy of policy") == len(copies)


def test_each_considered_policy_had_made_its_steps(whole: Path) -> None:
    steps: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for event in events(whole)[3:]:
        steps[event["policy"]].append(event["policy_env_steps"])
    for own in steps.values():
        assert len(own) >= 3
        assert own[0] >= START
        assert all(b - a > PERIOD for a, b in pairwise(own))


def test_no_decision_follows_a_batch_after_which_others_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On several GPUs the next policy updates before such a batch is looked at."""
    learned, found = Trainer.learned, list[tuple[bool, bool]]()

    def looked_at(self: Trainer, batch: Batch) -> bool:
        quiet, population = self.quiet(batch), self.population
        assert population is not None
        before = [*population.controller.considered]
        replaced = learned(self, batch)
        found.append((quiet, before != population.controller.considered))
        return replaced

    monkeypatch.setattr(Trainer, "learned", looked_at)
    train(tmp_path, checkpoint__interval_iterations=1_000)
    assert {(True, False), (False, True)} <= {*found}
    assert (True, True) not in found


def test_the_same_run_twice_has_the_same_decisions_and_bytes(whole: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    train(again, runtime__kind="lockstep", runtime__lag=0, runtime__num_workers=2)
    assert events(again) == events(whole)
    assert same(again, whole)


@pytest.mark.slow
def test_lockstep_that_lags_has_the_same_bytes_twice(tmp_path: Path) -> None:
    """Copies drop rows of their former weights that fly while they are made."""
    ours, theirs = tmp_path / "two", tmp_path / "three"
    for folder, workers in ((ours, 2), (theirs, 3)):
        lags = {"runtime.kind": "lockstep", "runtime.lag": 1, "runtime.num_workers": workers}
        result = train(folder, total=2 * TOTAL, **lags)
        assert result.metrics["data/discarded_env_steps"] > 0
    assert any(event["event"] == "copied" for event in events(ours))
    assert events(ours) == events(theirs)
    assert same(ours, theirs)


def test_a_resumed_run_goes_on_with_the_same_lineage(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, on_report=lambda report: report["env_steps"] > TOTAL / 2)
    half = events(folder)
    assert 3 < len(half) < len(events(whole))
    # What a kill would leave: decisions that no checkpoint holds.
    with (folder / EVENTS).open("a") as file:
        file.write('{"event": "considered"}\n')
    train(folder, resume="exact")
    assert events(folder) == events(whole)
    assert same(folder, whole)


def test_a_resume_changes_nothing_at_once(tmp_path: Path) -> None:
    """It is stopped where the next batch makes nobody due, whoever it is for."""
    folder = tmp_path / "run"

    def nobody_is_due(report: dict[str, float]) -> bool:
        for policy in range(3):
            own = [event for event in events(folder)[3:] if event["policy"] == policy]
            made = report[f"policy_{policy}/env_steps"]
            if not own or made + 64 - own[-1]["policy_env_steps"] > PERIOD:
                return False
        return True

    train(folder, on_report=nobody_is_due)
    before = events(folder)
    assert len(before) > 3
    train(folder, on_report=lambda report: True)
    assert events(folder) == before


def test_a_copy_has_the_donors_weights_and_optimizer_and_its_own_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    become = PolicyRun.become

    def watched(self: PolicyRun, donor: PolicyRun, options: Any) -> None:
        updates, version = self.learner.updates, self.learner.version
        counters = vars(self.counters).copy()
        become(self, donor, options)
        mine, theirs = self.learner.save().tensors, donor.learner.save().tensors
        shared = [name for name in mine if name != "shuffle"]
        assert all(torch.equal(mine[name], theirs[name]) for name in shared)
        assert not any(
            mine[name].data_ptr() == theirs[name].data_ptr()
            for name in shared
            if mine[name].numel()
        )
        assert (self.learner.updates, self.learner.version) == (updates, version)
        assert vars(self.counters) == counters
        assert self.episodes.recent_return is None
        assert self.config.learner == options
        seen.append((self.folder.index, donor.folder.index))

    monkeypatch.setattr(PolicyRun, "become", watched)
    train(tmp_path / "run")
    copies = [e for e in events(tmp_path / "run") if e["event"] == "copied"]
    assert seen == [(event["policy"], event["donor"]) for event in copies]


def test_a_copy_is_published_at_once(tmp_path: Path) -> None:
    """Whatever the interval, as rows of the former weights would be dropped."""
    result = train(tmp_path / "run", runtime__publish_interval_iterations=3)
    copies = [e["env_steps"] for e in events(tmp_path / "run") if e["event"] == "copied"]
    assert copies
    # The last row of the budget may be of more streams than are left in it.
    assert result.metrics["data/discarded_env_steps"] < OF["appo"]["env.num_streams"]


KINDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "lockstep": {"runtime__kind": "lockstep", "runtime__lag": 1, "runtime__num_workers": 2},
    "async": {"runtime__kind": "async", "runtime__num_workers": 2},
    "mixed": {"env__num_streams": 4, "env__streams_per_group": 4},  # one group for three policies
}


@pytest.mark.parametrize(
    "kind",
    [
        "serial",
        pytest.param("async", marks=pytest.mark.slow),
        pytest.param("lockstep", marks=pytest.mark.slow),
        pytest.param("mixed", marks=pytest.mark.slow),
    ],
)
def test_rows_and_episodes_of_the_former_weights_do_not_count(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since: dict[int, tuple[int, int]] = {}  # version and env_steps at a policy's last copy
    become, update, add = PolicyRun.become, APPOLearner.update, PolicyRun.add_episodes

    def becomes(self: PolicyRun, donor: PolicyRun, options: Any) -> None:
        become(self, donor, options)
        assert "loss/policy" not in self.learner.metrics()  # of the former weights' updates
        since[id(self.learner)] = self.learner.version, self.counters.env_steps

    def updates(self: APPOLearner, batch: Any, env_steps: int) -> None:
        version, _ = since.get(id(self), (0, 0))
        assert (batch.version[batch.valid] >= version).all()
        update(self, batch, env_steps)

    def adds(self: PolicyRun, episodes: Any) -> None:
        add(self, episodes)
        _, steps = since.get(id(self.learner), (0, 0))
        made = self.counters.env_steps - steps
        lengths = [sums[3] / sums[1] for sums in self.record.save()["sums"]]
        assert not steps or kind == "async" or max(lengths, default=0) <= made + 64

    monkeypatch.setattr(PolicyRun, "become", becomes)
    monkeypatch.setattr(APPOLearner, "update", updates)
    monkeypatch.setattr(PolicyRun, "add_episodes", adds)
    result = train(tmp_path / "run", total=4_000, **KINDS[kind])
    assert since
    if kind != "serial":  # where each batch is of one round, no row waits for a copy
        assert result.metrics["data/discarded_env_steps"] > 0


@pytest.mark.parametrize(
    "algo", ["ddpg", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ppo", "impala", "acer"))]
)
def test_every_learner_trains_as_a_population(algo: str, tmp_path: Path) -> None:
    folder = tmp_path / algo
    assert train(folder, algo).status == "finished"
    found = events(folder)
    assert any(event["event"] != "begins" for event in found)
    assert any(event["before"] != event["after"] for event in found if event["event"] != "begins")
    if algo in ("ddpg", "acer"):  # each learns from a replay of its own streams
        said = (folder / "log.txt").read_text()
        assert said.count("replay of ") == 3
        assert "takes at least" not in said
        told = [x for x in read_metrics(folder) if "policy_0/replay/size" in x]
        for policy in range(3):
            assert told[-1][f"policy_{policy}/replay/draws_per_env_step"] > 0
            assert algo == "acer" or told[-1][f"policy_{policy}/replay/size"] > 450


def test_a_policy_needs_its_share_of_the_budget(tmp_path: Path) -> None:
    """Of 3,000 steps three policies have 1,000 each."""
    replay = {"replay_start_steps": 1_200, "replay_capacity_steps": 1_500}
    with pytest.raises(
        ConfigError, match=r"each of the 3 policies has its share of 3,000 env_steps"
    ):
        train(tmp_path / "run", "ddpg", 3_000, **replay)
    assert not (tmp_path / "run").exists()


def test_without_pbt_policies_are_trained_side_by_side(tmp_path: Path) -> None:
    options = {name: x for name, x in SMALL.items() if not name.startswith("population.")}
    own = {
        "population": 2,
        "population.pbt": False,
        "population.initial": {"learning_rate": [0.1, 0.2]},
    }
    result = quintet.train(
        "appo", "CartPole-v1", total_steps=1_500, run_dir=tmp_path / "run",
        config={**options, **OF["appo"], **own},
    )  # fmt: skip
    assert [event["event"] for event in events(tmp_path / "run")] == ["begins", "begins"]
    for policy, rate in enumerate((0.1, 0.2)):
        assert result.metrics[f"policy_{policy}/env_steps"] > 0
        assert result.metrics[f"policy_{policy}/optim/learning_rate"] == rate
        assert result.metrics[f"policy_{policy}/hyperparameter/learning_rate"] == rate


def test_first_values_on_the_command_line(tmp_path: Path) -> None:
    command = [
        "train",
        "appo",
        "--env",
        "CartPole-v1",
        "--total-steps",
        "2048",
        "--population",
        "2",
    ]
    given = ["--population.initial", '{"learning_rate": [1e-2, 1e-6]}', "--eval.episodes", "0"]
    folder = ["--run-dir", str(tmp_path / "run"), "--runtime.kind", "serial"]
    assert cli.main([*command, *given, *folder]) == 0
    begins = [event for event in events(tmp_path / "run") if event["event"] == "begins"]
    assert [event["values"]["learning_rate"] for event in begins] == [1e-2, 1e-6]


def test_a_cap_that_is_tuned_alone_stays_on_its_side_of_the_other(tmp_path: Path) -> None:
    own = {"population__tuned": ["rho_bar"], "population__mutation_rate": 1.0}
    train(tmp_path / "run", **own)
    found = [e for e in events(tmp_path / "run") if e["event"] != "begins"]
    assert found
    assert all(event["after"]["rho_bar"] >= 1.0 for event in found)


def test_gamma_is_tuned_beside_a_normaliser_of_returns(tmp_path: Path) -> None:
    own = {"population__tuned": ["gamma"], "population__mutation_rate": 1.0}
    train(tmp_path / "run", reward_normalizer="return_std", **own)
    gammas = {e["after"]["gamma"] for e in events(tmp_path / "run") if e["event"] != "begins"}
    assert len(gammas) > 3


def test_an_objective_that_nobody_has_is_told_once(tmp_path: Path) -> None:
    train(tmp_path / "run", population__min_episodes=5_000)
    assert all(event["event"] == "begins" for event in events(tmp_path / "run"))
    said = (tmp_path / "run" / "log.txt").read_text()
    told = (
        "policies 0, 1, 2 have no episode/return_mean of 5000 episodes yet; until they have, they"
    )
    assert said.count(f"{told} are neither copied nor replaced") == 1


def test_a_finished_run_keeps_its_leader_whatever_the_objective(tmp_path: Path) -> None:
    own = {"population__pbt": False, "population__objective": "optim/learning_rate"}
    given = {name: x for name, x in SMALL.items() if not name.startswith("population.")}
    given |= {**OF["appo"], "runtime.kind": "async", "population.size": 3}
    given |= {name.replace("__", "."): x for name, x in own.items()}
    given["population.initial"] = {"learning_rate": [1e-3, 3e-3, 2e-3]}
    for _ in range(2):
        quintet.train("appo", "CartPole-v1", total_steps=1_500, run_dir=tmp_path, config=given)
        best = quintet.load(tmp_path / "policy_1" / "policy").publication.tensors
        ours = quintet.load(tmp_path / "policy").publication.tensors
        assert all(torch.equal(x, best[name]) for name, x in ours.items())


OTHERS: dict[str, Any] = {
    "size": 2,
    "window_env_steps": 400,
    "min_episodes": 6,
    "start_env_steps": 400,
    "period_env_steps": 60,
    "tuned": ["learning_rate"],
}
"""Options of a run; tests/population/test_pbt.py has those of decisions, and others above are of
`objective`, `pbt` and `initial`.
"""


@pytest.mark.parametrize("name", OTHERS)
def test_every_option_has_an_effect(name: str, whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", **{f"population__{name}": OTHERS[name]})
    assert events(tmp_path / "run") != events(whole)


# What a person does with it


def test_the_policy_of_a_run_is_that_of_the_highest_objective(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = newest(whole)
    last = read_metrics(whole)[-1]
    objectives = [last.get(f"policy_{k}/population/objective", 0.0) for k in range(3)]
    leader = objectives.index(max(objectives))
    assert found.meta["leader"] == leader
    theirs = quintet.load(whole / f"policy_{leader}" / "policy").publication.tensors
    for path in (whole, whole / "policy"):
        ours = quintet.load(path).publication.tensors
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert cli.main(["eval", str(whole), "--episodes", "2"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


@pytest.mark.slow
def test_pictures(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "objective" in plot_lineage(whole, tmp_path / "lineage.svg").read_text()
    said = (whole / "log.txt").read_text()
    assert said.count("is the run's policy: it has the highest episode/return_mean, ") == 1
    assert plot_runs([whole], tmp_path / "curves.png").exists()
    assert cli.main(["plot", str(whole), "--lineage", "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 10_000
    out = str(tmp_path / "b.png")
    assert cli.main(["plot", str(tmp_path), "--lineage", "--out", out]) == 1
    assert "the run must have a population" in capsys.readouterr().err
    begins = '{"event": "begins", "policy": 0, "values": {"a": 1.0}}'
    copied = '{"event": "copied", "policy": 0, "after": {"a": 1.0}}'
    huge = f"1{'0' * 400}"
    unusual = (
        begins.replace("1.0", huge),
        begins.replace('"policy"', f'"env_steps": {huge}, "policy"'),
    )
    text = begins.replace('"policy"', '"env_steps": "x", "policy"')
    for damaged in (
        "",
        '{"event": "begins", "policy": 0}',
        copied,
        f"{begins}\n{copied}",
        "[[[",
        *unusual,
        text,
    ):
        (tmp_path / EVENTS).write_text(damaged)
        with pytest.raises(QuintetError, match="is damaged"):
            plot_lineage(tmp_path, Path(out))


def test_of_many_tuned_options_the_first_are_drawn(tmp_path: Path) -> None:
    values = {f"option_{number:02}": 1.0 for number in range(15)}
    event = {"event": "begins", "policy": 0, "values": values, "objectives": []}
    (tmp_path / EVENTS).write_text(json.dumps(event))
    axes = lineage_figure(read_events(tmp_path)).axes
    assert [each.get_ylabel() for each in axes[2:]] == [*values][:12]
    assert axes[-1].get_xlabel().endswith(" (3 more options are not drawn)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"population.tuned": ["seed"]}, "population.tuned must name options"),
        ({"population.tuned": ["entropy_coef"], "entropy_coef": 0.0}, "entropy_coef=0.0"),
        ({"population.tuned": ["gae_lambda"]}, "that have an effect"),
        ({"population.tuned": ["rho_bar"], "use_vtrace": False}, r"got rho_bar=1\.0"),
        ({"population.objective": "no/such"}, "population.objective must be"),
        ({"population.objective": "episode/success_rate"}, "needs env.success"),
        (
            {
                "population.objective": "eval/success_rate",
                "runtime.kind": "async",
                "eval.episodes": 1,
            },
            "needs env.success",
        ),
        ({"population.objective": "value/target_mean"}, "runtime.kind=async"),
        ({"population.initial": {"gamma": [0.9, 0.8, 0.7]}}, "must name options that are tuned"),
        ({"population.initial": {"learning_rate": [-1.0, 1.0, 1.0]}}, "learning_rate"),
        ({"population.tuned": ["num_epochs"]}, "rho_bar, value_coef.*got num_epochs=2"),
        ({"population.tuned": ["gamma"], "gamma": 1.0}, "must have first values below 1 for gamma"),
        ({"population.start_env_steps": 1_000}, "start_env_steps must be below 666, each policy"),
        ({"population.period_env_steps": 2_000}, "period_env_steps must be below .* got 2,000"),
        ({"population.size": 1}, "has no effect without population.size > 1"),
        ({"population.objective": "policy_lag/mean"}, "must be a metric of the policies"),
        ({"population.objective": "eval/return_mean"}, "must have eval.episodes > 0"),
        ({"population.initial": {"learning_rate": [0.0, 0.1, 0.1]}}, "that are not 0"),
    ],
)
def test_refusals(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "run", **{name.replace(".", "__"): x for name, x in options.items()})
    assert not (tmp_path / "run").exists()


def test_a_first_value_that_the_action_space_leaves_without_effect_is_refused(
    tmp_path: Path,
) -> None:
    initial = {"population.initial": {"entropy_coef": [0.01, 0.02, 0.03]}}
    config = SMALL | OF["acer"] | {"preset": "none"} | initial
    with pytest.raises(ConfigError, match=r"must name options that are tuned .*got entropy_coef"):
        quintet.train("acer", "Pendulum-v1", TOTAL, 4, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_cap_that_is_not_given_follows_the_one_that_is(tmp_path: Path) -> None:
    """The first stays at most the second (rho_bar at least c_bar)."""
    own = {"population__tuned": ["rho_bar", "c_bar"]}
    first = {"rho_bar": [0.9, 1.0, 1.1]}
    train(tmp_path / "run", **own, population__initial=first, on_report=lambda _: True)
    begins = [e["values"] for e in events(tmp_path / "run") if e["event"] == "begins"]
    assert [each["rho_bar"] for each in begins] == [0.9, 1.0, 1.1]
    assert all(each["c_bar"] <= each["rho_bar"] for each in begins)
    assert begins[0]["c_bar"] == 0.9


def test_first_values_below_1_may_be_given_where_the_learner_has_1(tmp_path: Path) -> None:
    own = {"population__tuned": ["gamma"], "population__initial": {"gamma": [0.9, 0.99, 0.95]}}
    train(tmp_path / "run", gamma=1.0, **own, on_report=lambda _: True)
    begins = [e["values"]["gamma"] for e in events(tmp_path / "run") if e["event"] == "begins"]
    assert begins == [0.9, 0.99, 0.95]


def test_any_metric_is_an_objective_where_the_clock_may_decide(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        runtime__kind="async",
        runtime__num_workers=2,
        population__objective="value/target_mean",
        report__interval_s=0.0,
    )
    assert any(event["event"] != "begins" for event in events(tmp_path / "run"))
