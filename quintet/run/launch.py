"""Composition root: puts together all parts of a run and trains by its configuration."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from quintet.checkpoints import checkpoint
from quintet.checkpoints.lock import require_free, run_lock
from quintet.errors import BudgetChanged, ConfigError, LearnerFault, WorkerFault
from quintet.findings.engine import evaluate
from quintet.findings.start import Start
from quintet.observe.metrics import policy_prefix
from quintet.options.machine import require_networks
from quintet.options.resolve import (
    Loaded,
    require_evaluated,
    resolve,
    sources_of,
    with_observation_dtype,
)
from quintet.options.run import RunConfig
from quintet.policies.policy import Policy
from quintet.run.callbacks import Callbacks, OnReport, UserCode
from quintet.run.device_envs import in_this_process, on_their_device, through_host
from quintet.run.folder import RunFolder, move_aside
from quintet.run.learners import make_policies, several
from quintet.run.policy_run import PolicyRun, leader
from quintet.run.sampling import (
    Source,
    assignment_of,
    make_sampling,
    open_source,
    require_rows,
    row_specs,
)
from quintet.run.trainer import Trainer
from quintet.runtime.loop import Sampling
from quintet.runtime.sampler import SerialSampling
from quintet.runtime.slots import RowSpecs
from quintet.runtime.spread import spread_envs
from quintet.runtime.torch_settings import OwnTorch, inexact_told, torch_settings
from quintet.system import provenance, trust
from quintet.system.memory import memory_fault
from quintet.system.signals import interrupts_for_us_alone, save_on_signal, stop_on_signals
from quintet.system.user_code import no_exit, slow_notice, traced
from quintet.types import Spaces

if TYPE_CHECKING:
    from quintet.run.population import Population
    from quintet.run.time_budget import TimeBudget
    from quintet.runtime.parallel.learners import Learners


@final
@dataclass(frozen=True)
class Result:
    """The result of `train`: the run's folder, its final policy (of several policies the one with
    the highest objective) and its last report, where this policy's metrics also have plain names.
    """

    run_dir: Path
    policy: Policy
    metrics: dict[str, float]
    status: Literal["finished", "stopped"]


@contextmanager
def memory_told() -> Iterator[None]:
    """Replaces a library's error about memory by one that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        fault = memory_fault(error)
        if fault is None:
            raise
        raise traced(fault, error) from error


@no_exit()
@memory_told()
def run(
    loaded: Loaded,
    on_report: OnReport | None = None,
    callbacks: Callbacks | None = None,
    budget: "TimeBudget | None" = None,
    here: Path | None = None,
    *,
    measures: bool = False,
) -> Result:
    """Trains by a loaded configuration, from the newest checkpoint in its folder if there is one.
    Every refusal precedes any change of the folder.

    budget: its time, see `quintet.search.minutes`; None: only its env_steps bound it.
    here: folder of the user's code; None: the working folder.
    measures: whether the run only measures a speed: it never goes back to a checkpoint.

    Raises:
        BudgetChanged: another number of env_steps fits the time of the budget.
        TimeIsOver: it is over before there was a batch.
        KeyboardInterrupt: a signal stopped a run that measures.
    """
    user = UserCode(on_report, callbacks or Callbacks())
    here = here or Path.cwd()  # environments may change it
    # Once on one machine, where a fault that always occurs would occur again.
    clustered = loaded.config.cluster.address is not None
    left = 0 if measures else loaded.config.runtime.max_restarts if clustered else 1
    while True:
        try:
            return _run(loaded, user, here, may_go_back=left > 0, budget=budget, measures=measures)
        except _GoesBack as back:
            (resume,) = back.args
        again = loaded.config.model_copy(update={"resume": resume})
        loaded, budget, left = replace(loaded, config=again, overwrite=False), None, left - 1
        gc.collect()  # frees the shared memory that the traceback held


class _GoesBack(Exception):
    """A process of an exact run died.  Argument: `resume`."""


def _run(
    loaded: Loaded,
    user: UserCode,
    here: Path,
    *,
    may_go_back: bool,
    budget: "TimeBudget | None",
    measures: bool,
) -> Result:
    """One start of `run`."""
    with ExitStack() as ends:
        began = time.monotonic()
        source = open_source(loaded.config, loaded.env)
        if budget is not None:
            budget.run_begins(began)
        if (other := in_this_process(loaded, source.envs[0])) is not loaded:
            source.close()
            loaded, source = other, open_source(other.config, other.env)
        ends.callback(source.close)
        loaded = on_their_device(with_observation_dtype(loaded, source.env), source.envs[0])
        env = source.envs[0].description
        found = resolve(loaded, source.spaces)
        require_evaluated(loaded, source.spaces)
        config = found.config
        assert config.run_dir is not None
        if "wandb" in config.report.sinks:
            from quintet.observe.wandb_sink import require_wandb

            require_wandb()
        runtime = config.runtime
        assert runtime.threads is not None
        ends.enter_context(torch_settings(runtime.threads, runtime.device, runtime.gpu_math))
        if runtime.kind != "serial" or runtime.num_learners > 1:
            from quintet.runtime.processes.process import prepare

            prepare()  # imports go on while learners are made, with the variables of these settings
        unrepeatable, doubts = _unrepeatable(config, source)
        # The caller gave, or vouched for, all code that the configuration names.
        folder = RunFolder(config.run_dir, signed=not trust.names_no_code(config.flat()))
        folder.sources, folder.revision = sources_of(loaded, found), provenance.revision(here)
        policies, population = _make_policies(config, source.spaces, folder)
        for each in several(policies):
            ends.callback(each.close)
        trainer = Trainer(config, folder, policies, env, user, loaded, population)
        trainer.saving.unrepeatable, trainer.budget = unrepeatable, budget
        trainer.saving.notes += doubts + ([] if budget is None else budget.notes)
        _remark(trainer, loaded, source)
        trainer.warm_start(anew=loaded.overwrite)
        rows = row_specs(config, source.spaces, len(source.env.terms))
        require_rows(config, rows, policies[0].plan)
        _make_replays(trainer, source, rows)
        log = trainer.log
        for env_of_group in spread_envs(source.envs):
            env_of_group.tell(log.say, log.waiting, log.note)
        require_free(config.run_dir)  # refuses at once: the process that uses it may hold the nodes
        sampling = make_sampling(
            config, source, policies, trainer.timer, log.say, log.warn, log.waiting
        )
        ends.callback(sampling.close)
        if budget is not None and isinstance(sampling, SerialSampling):
            sampling.on_row = budget.row
        if loaded.overwrite and (place := move_aside(config.run_dir)) is not None:
            trainer.saving.notes.append(f"the run that was in {config.run_dir} is kept in {place}")
        with (
            run_lock(config.run_dir),
            stop_on_signals(trainer.stop),
            save_on_signal(trainer.request_save),
            _ends_told(trainer, sampling, source),
        ):
            if trainer.finished:
                trainer.say_finished()
                status: Literal["finished", "stopped"] = "finished"
            else:
                with _going_back(trainer, may_go_back):
                    status = trainer.train(sampling)
            trainer.ended(status)
            if measures and trainer.stop.signalled:
                raise KeyboardInterrupt
        return _result(trainer, status)


def _unrepeatable(config: RunConfig, source: Source) -> tuple[str, list[str]]:
    """A reason why resumes of an exact kind can't be exact, or "", and notes on that; raises
    ConfigError if one is asked for.
    """
    from quintet.envs.repeating import unrepeatable

    notes: list[str] = []
    if not config.runtime.exact:
        return "", notes
    with interrupts_for_us_alone(), slow_notice(f"{config.env.id} is tried"):
        env = source.env
        here = config.runtime.kind == "serial" or env.of_tensors or not env.backend.in_python
        if here or not env.can_be_made_again:
            found = unrepeatable(env, None, notes.append)
        else:
            from quintet.run.repeat_check import unrepeatable_apart

            timeout_s = config.runtime.worker_timeout_s
            found = unrepeatable_apart(env, timeout_s, notes.append)
    if found and config.resume == "exact":
        raise ConfigError(
            f"resume=exact needs environments whose episodes repeat: {found}; or use "
            "--resume latest"
        )
    return found, notes


def _make_policies(
    config: RunConfig, spaces: Spaces, folder: RunFolder
) -> "tuple[Sequence[PolicyRun], Population | None]":
    """The policies of a run, and the population that they are, if any."""
    require_networks(config, spaces)
    if not config.population.several:
        return make_policies(config, spaces, folder), None
    from quintet.run.population import Population

    population = Population(config, folder)
    population.begin(make_policies(config, spaces, folder))
    return population.policies, population


def _remark(trainer: Trainer, loaded: Loaded, source: Source) -> None:
    """Adds warnings and notes about a run, which the user should read before it begins."""
    population, first = trainer.saving.population, source.envs[0]
    warnings = [] if population is None else population.warnings()
    facts = Start(
        loaded,
        trainer.config,
        source.env,
        first.description,
        source.spaces,
        tuple(warnings),
        through_host(trainer.config, first, trainer.policies[0].plan),
    )
    for remark in evaluate("start", facts):
        remarks = trainer.saving.warnings if remark.weight else trainer.saving.notes
        remarks.append(remark.said)


def _result(trainer: Trainer, status: Literal["finished", "stopped"]) -> Result:
    first = leader(trainer.policies)
    last = trainer.reports.last
    if not first.alone:  # the leader's metrics under plain names too
        prefix = policy_prefix(first.folder.index, len(trainer.policies))
        own = {k.removeprefix(prefix): x for k, x in last.items() if k.startswith(prefix)}
        last = {**own, **last}
    return Result(trainer.folder.path, first.policy(), last, status)


@OwnTorch()
def _make_replays(trainer: Trainer, source: Source, rows: RowSpecs) -> None:
    """Makes the policies' replays; raises ConfigError where one can't fit."""
    plan = trainer.policies[0].plan
    if plan.replay is None:
        return
    from quintet.run.policy_replay import RunReplay

    assignment = assignment_of(trainer.config, source.env, plan, len(trainer.policies))
    for each in trainer.policies:
        interval = trainer.saving.interval
        each.replay = RunReplay(plan, each.config, assignment, interval, rows, each.folder)
        each.replay.draw_on(each.device, each.config.runtime.replay_device)


@contextmanager
def _ends_told(trainer: Trainer, sampling: Sampling, source: Source) -> Iterator[None]:
    """Opens the trainer for the block, records how the run ends, and closes everything."""
    others: "list[Sampling | Learners]" = [sampling, *several(trainer.policies)]
    try:
        trainer.open()
        with no_exit():
            yield
    except _GoesBack as back:  # going back may be refused; the new start says that it runs
        steps = trainer.counters.env_steps
        trainer.folder.end_record("failed", steps, back.__cause__, in_log=False)
        raise
    except BudgetChanged:
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted and trainer.stop.made:  # the second Ctrl-C, which waits for nobody
            for each in others:
                each.kill()
        trainer.ended("stopped" if interrupted else "failed", error)
        raise
    finally:
        try:
            _close(others)  # first, as the trainer prints the processes' last lines
            source.close()
        finally:
            trainer.close()


def _close(others: "Sequence[Sampling | Learners]") -> None:
    """Closes everything that has processes; a Ctrl-C meanwhile ends them at once."""
    try:
        for each in others:
            each.close()
    except KeyboardInterrupt:
        for each in others:
            each.kill()
        for each in others:
            each.close()
        raise


@contextmanager
def _going_back(trainer: Trainer, may_go_back: bool) -> Iterator[None]:
    """Starts further learners and the watch of environments; raises _GoesBack if a process died and
    the run can restart from a checkpoint.
    """
    try:
        for each in several(trainer.policies):
            each.start(trainer.log.say, trainer.log.waiting)
        runtime = trainer.config.runtime
        on_gpu = runtime.gpu_math.deterministic and runtime.device.startswith("cuda")
        with trainer.watched(), inexact_told(trainer.log.say) if on_gpu else nullcontext():
            yield
    except WorkerFault as error:
        # An async run has replaced workers already; a run that was asked to stop starts nothing.
        asynchronous = trainer.config.runtime.kind == "async"
        replaced = asynchronous and not isinstance(error, LearnerFault)
        if not may_go_back or replaced or trainer.stop.made:
            raise
        trainer.folder.check()  # a folder that is gone has no checkpoint to go back to
        # Off the uninterrupted run's path the newest checkpoint loses least.
        exact = _goes_back_exactly(trainer)
        damaged = trainer.folder.damaged_exact() if exact else []
        exact = exact and not damaged
        kind = "exact checkpoint" if exact else "checkpoint"
        trainer.log.warn(f"{error}; going back to the last {kind}")
        if damaged:
            trainer.log.warn(f"passed over damaged checkpoints: {'; '.join(damaged)}")
        raise _GoesBack("exact" if exact else "latest") from error


def _goes_back_exactly(trainer: Trainer) -> bool:
    """Whether training again from the last exact checkpoint, or from the beginning, gives the same
    bytes."""
    saving = trainer.saving
    if trainer.config.runtime.kind == "async" or not saving.on_path or saving.unrepeatable:
        return False
    if not checkpoint.any_of_run(trainer.folder.checkpoints):
        return True
    return trainer.long_episodes.goes_back_exactly(trainer.counters)
