"""Examination of runs by what is in their folders."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.spaces import Box
from pydantic import ValidationError

from quintet.algorithms import registry
from quintet.checkpoints.spaces_as_json import from_json
from quintet.doctor.curves import Level, RunSeen, of_policies, threshold_of
from quintet.errors import ConfigError, QuintetError
from quintet.findings.engine import Again, by_cause, evaluate, is_known, ranked
from quintet.findings.record import MOST_WEIGHT, Finding
from quintet.findings.scores import failed
from quintet.models.config import ModelConfig, network_facts, resolve_model
from quintet.observe.run_summary import RunSummary, group_key
from quintet.options import layers
from quintet.options.declaration import Facts, about, idle
from quintet.options.facts import kind_by_spaces
from quintet.protocols import Part
from quintet.spaces import action_leaves
from quintet.system.files import shown
from quintet.types import Spaces

_MODEL = "model."
_ANYHOW = {"run-failed", "evaluation-differs", "best-long-ago", "seeds-differ"}
"""Findings that also count in a run that learns, or does well."""
NOTE, LEARNS = 0.19, 0.45  # most weights of others there: they explain nothing that is missing

_AS_FAR = 0.1  # part of the env_steps by which runs that are compared may differ


def examine_runs(runs: Sequence[RunSummary], *, policies: bool = False) -> dict[str, list[Finding]]:
    """The findings of each run by its folder that its user does not know, the likeliest first.

    policies: also examine the newest policies in the folders.
    """
    seen = {str(run.folder): seen_of(run) for run in runs}
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(group_key(run.options, run.sources), []).append(str(run.folder))
    found: dict[str, list[Finding]] = {}
    for run in runs:
        own = str(run.folder)
        group = groups[group_key(run.options, run.sources)]
        others = [x for folder in group if folder != own for x in seen[folder]]
        each = [replace(x, others=_as_far(x, others)) for x in seen[own]]
        found[own] = ranked([*_merged(each), *failed(run), *_of_folder(run)])
        if policies and not does_well(run):
            from quintet.doctor.units import dead_units

            found[own] = ranked([*found[own], *dead_units(run.folder)])
        known = run.options.get("doctor.known")
        found[own] = [x for x in found[own] if not is_known(known, x.name, x.subject)]
    return found


def does_well(run: RunSummary) -> str:
    """A sentence that shows that a run does well, or that it learns; "": it is not known to."""
    seen = seen_of(run)
    for said in ([x.well for x in seen], [x.better for x in seen]):
        if said and all(said):
            return said[0]
    return ""


def _as_far(seen: RunSeen, others: Iterable[RunSeen]) -> list[Level]:
    """The last levels of other runs that trained about as long, for the policy of this index."""
    steps, found = seen.last("env_steps"), list[Level]()
    for each in others:
        end, gap = each.last_level, abs(each.last("env_steps") - steps)
        if end is not None and each.policy == seen.policy and gap <= _AS_FAR * steps:
            found.append(end)
    return found


def findings(seen: RunSeen) -> list[Finding]:
    """All findings about a policy of a run, the likeliest first."""
    symptoms = ranked(evaluate("run", seen))
    options = evaluate("options", replace(seen, symptoms=symptoms))
    most = NOTE if seen.well else LEARNS if seen.learns else MOST_WEIGHT
    return ranked(
        replace(
            each,
            weight=min(each.weight, MOST_WEIGHT if each.name in _ANYHOW else most),
            command=seen.again.command(each),
        )
        for each in by_cause(ranked([*options, *symptoms]))
    )


def _merged(policies: Sequence[RunSeen]) -> list[Finding]:
    """The findings of all policies, each once, with the number of policies that have it."""
    by_name: dict[tuple[str, str], list[tuple[Finding, int]]] = {}
    for seen in policies:
        for each in findings(seen):
            by_name.setdefault((each.name, each.subject), []).append((each, seen.policy))
    found = []
    for members in by_name.values():
        first, policy = max(members, key=lambda each: each[0].weight)
        if len(policies) > 1 and not first.name.startswith("option-"):
            where = f"in {len(members)} of {len(policies)} policies, most of all in policy {policy}"
            first = replace(first, said=f"{first.said} ({where})")
        found.append(first)
    return found


def _of_folder(run: RunSummary) -> Iterable[Finding]:
    """The finding that a folder can't be read whole."""
    if run.state == "damaged" or not run.reports:
        why = run.faults[0] if run.faults else "it has no reports"
        yield Finding(
            f"not all of {shown(run.folder)} can be read: {why}",
            {"reports": float(len(run.reports))},
            "let it train and report, or look at its log.txt",
            weight=0.1 if run.reports else 0.3,
            name="run-unreadable",
        )


def seen_of(run: RunSummary) -> list[RunSeen]:
    """The facts of each policy of a run; empty where its learner or reports are unknown."""
    try:
        algo = run.learner
        if algo not in registry.LEARNERS:
            return []
        registry.LEARNERS.find_safely(algo)  # nobody has named it
        fields = layers.options(algo)
    except (QuintetError, ValueError):
        return []
    dated = [each for each in run.reports if "env_steps" in each]
    if not dated:
        return []
    spaces = _spaces(run)
    usual, tuned = _usual(run, algo, spaces)
    config = _config(run, algo)
    idle_options = _idle(run, config, spaces)
    roles: dict[str, list[str]] = {}
    for name, info in fields.items():
        if name in idle_options:
            continue
        for role in {name, *about(info).also}:
            roles.setdefault(role, []).append(name)
    if not roles.keys() & {"learning_rate"} and "lr" in roles:
        roles["learning_rate"] = roles["lr"]
    chosen = frozenset(x for x in run.options if _is_given(run, x) and x not in idle_options)
    train = shlex.join(["quintet", "train", algo, "--config", f"{shown(run.folder)}/config.yaml"])
    folder = run.folder.absolute()  # the path may be "."
    command = Again(train, str(shown(folder.with_name(f"{folder.name}-"))))
    actions = [] if spaces is None else action_leaves(spaces.action)
    boxes = any(isinstance(leaf, Box) for leaf in actions)
    return [
        RunSeen(
            run,
            policy,
            reports,
            usual,
            chosen,
            _parts(algo, config, spaces),
            command,
            {role: tuple(names) for role, names in roles.items()},
            tuned=tuned,
            continuous=boxes or any("policy/std_mean" in each for each in reports),
            threshold=threshold_of(gymnasium.registry.get(run.environment)),
        )
        for policy, reports in of_policies(dated).items()
    ]


def _is_given(run: RunSummary, name: str) -> bool:
    """Whether the user chose the option; values of presets or of a search don't count."""
    source = run.sources.get(name)
    if source is None:
        return not run.sources
    searched = source == "sweep" or source.endswith(" of the race") or "best.yaml" in source
    free = layers.is_free(source) or source.startswith(("resolved", "saved run"))
    return not (free or searched)


def _idle(run: RunSummary, config: Any, spaces: Spaces | None) -> set[str]:
    """Options of learner and network that have no effect under the run's others."""
    known, found = Facts(), set[str]()
    with suppress(ValidationError, QuintetError, KeyError, TypeError):
        model = _model(run.options)
        known = Facts(**network_facts(model, spaces))
        found |= {f"{_MODEL}{name}" for name in idle(model, known, _MODEL)}
    return found if config is None else found | {*idle(config, known)}


def _spaces(run: RunSummary) -> Spaces | None:
    with suppress(QuintetError, KeyError, TypeError, ValueError):
        return Spaces(
            from_json(run.spaces["observation_space"]), from_json(run.spaces["action_space"])
        )
    return None


def _usual(
    run: RunSummary, algo: str, spaces: Spaces | None
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The options of the preset and the defaults, and the names of those that the preset sets."""
    tuned = frozenset[str]()
    values = {
        name: info.get_default(call_default_factory=True)
        for name, info in layers.options(algo).items()
        if not info.is_required()
    }
    preset = run.options.get("preset", "auto")
    with suppress(ConfigError):
        chosen = layers.preset_layers(
            algo,
            run.environment,
            preset if isinstance(preset, str) else "auto",
            lambda: None if spaces is None else kind_by_spaces(spaces),
        )
        values |= layers.merged(algo, chosen)[0]
        tuned = frozenset(name for layer in chosen for name in layer.values)
    if spaces is not None:  # a run's own are resolved for its spaces too
        with suppress(ValidationError, QuintetError):
            model = resolve_model(_model(values), spaces)
            own = [name for name in values if name.startswith(_MODEL)]
            values |= {name: getattr(model, name.removeprefix(_MODEL)) for name in own}
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}, tuned


def _model(values: Mapping[str, Any]) -> ModelConfig:
    own = {k.removeprefix(_MODEL): x for k, x in values.items() if k.startswith(_MODEL)}
    return ModelConfig.model_validate(own)


def _config(run: RunSummary, algo: str) -> Any:
    """The options of the learner; None if they can't be read."""
    record = registry.find(algo)
    own = {name: run.options[name] for name in record.config.model_fields if name in run.options}
    with suppress(ValidationError, QuintetError):
        return record.config(**own)
    return None


def _parts(algo: str, config: Any, spaces: Spaces | None) -> tuple[Part, ...]:
    """The parts of the learner with their evidence; none where its options can't be read."""
    if spaces is None or config is None:
        return ()
    record = registry.find(algo)
    with suppress(QuintetError):
        return (*record.judged(config, spaces), *record.symptoms(config, spaces))
    return ()
