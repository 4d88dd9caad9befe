"""``quintet check-env``: what an environment returns, its speed, and whether a seed makes it
reproducible."""

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from pydantic import ValidationError
from tyro.conf import Positional, arg

from quintet.envs.config import BackendName
from quintet.errors import ConfigError
from quintet.options.command import mapping
from quintet.options.declaration import faults
from quintet.system.printing import say

if TYPE_CHECKING:
    from quintet.envs.check import EnvCheck
    from quintet.findings.record import Finding


def main(arguments: list[str]) -> int:
    """Checks one environment; returns 0, or 1 if it has a fault."""
    status = 0

    def check(
        env: Annotated[
            Positional[str | None], arg(help="id, or module:name of a maker", metavar="ID")
        ] = None,
        steps: Annotated[int, arg(help="number of steps of each of two environments")] = 1_000,
        most_s: Annotated[float, arg(help="seconds after which the check stops stepping")] = 30.0,
        seed: Annotated[int, arg(help="seed of the first environment and of the actions")] = 0,
        backend: Annotated[
            BackendName, arg(name="env.backend", help="backend of the environment")
        ] = "auto",
        kwargs: Annotated[
            str, arg(name="env.kwargs", help="arguments of the environment", metavar="JSON")
        ] = "{}",
        max_episode_steps: Annotated[
            int | None,
            arg(name="env.max-episode-steps", help="steps after which an episode is truncated"),
        ] = None,
        mask_from_info: Annotated[
            Literal["auto", "true", "false"],
            arg(name="env.mask-from-info", help="source of action masks"),
        ] = "auto",
        as_json: Annotated[bool, arg(name="json", help="print one JSON object")] = False,
    ) -> None:
        nonlocal status
        if env is None:
            raise ConfigError("quintet check-env needs an environment: quintet check-env ID")
        if steps < 1:
            raise ConfigError(f"--steps must be at least 1, got {steps}")
        if not most_s > 0:
            raise ConfigError(f"--most-s must be above 0, got {most_s}")
        if not 0 <= seed < 2**31 - 1:
            raise ConfigError(f"--seed must be in 0 .. {2**31 - 2}, got {seed}")
        from quintet.envs.config import EnvConfig
        from quintet.envs.resolved import resolve_env

        try:
            config = EnvConfig(
                id=env,
                backend=backend,
                kwargs=mapping("--env.kwargs", kwargs),
                max_episode_steps=max_episode_steps,
                mask_from_info=mask_from_info,
            )
        except ValidationError as error:
            raise ConfigError("; ".join(faults(error, "env."))) from error
        resolved = resolve_env(config)
        from quintet.envs.check import check_env  # PyTorch

        found = check_env(resolved, steps, seed, most_s)
        doubts = _doubts(found)
        say(json.dumps(_as_json(found, doubts)) if as_json else _in_words(found, doubts))
        status = 1 if found.faults else 0

    description = (
        "Steps two copies of an environment by the same random actions, compares them, and prints "
        "its spaces, its speed, its rewards and its faults."
    )
    tyro.cli(check, prog="quintet check-env", description=description, args=arguments)
    return status


def _doubts(found: "EnvCheck") -> "list[Finding]":
    """Choices of quintet that are doubtful in this environment, by the defaults of the learners."""
    from quintet.algorithms import registry
    from quintet.findings.choices import Chosen, Learning
    from quintet.findings.engine import evaluate
    from quintet.models.config import ModelConfig, resolve_model

    asked, spaces = ModelConfig(), found.spaces
    records = dict(registry.LEARNERS.usable())
    ways = {name: record.reward_scaling(record.config()) for name, record in records.items()}
    unscaled = {name: way for name, way in ways.items() if way}
    usual = Learning.of(registry.DEFAULT, records[registry.DEFAULT].config())
    if registry.DEFAULT not in unscaled:
        of_way: dict[str, list[str]] = {}
        for name, way in unscaled.items():
            of_way.setdefault(way, []).append(name)
        said = "; ".join(f"{way} in {', '.join(names)}" for way, names in of_way.items())
        usual = replace(usual, scaling=said, scaling_of=", ".join(unscaled))
    model = resolve_model(asked, spaces)
    return evaluate("choices", Chosen(asked, model, spaces, usual, evidence=found.evidence))


def _as_json(found: "EnvCheck", doubts: "list[Finding]") -> dict[str, Any]:
    from quintet.checkpoints.spaces_as_json import to_json
    from quintet.findings.choices import as_choice

    names = (
        "reward_shaping steps step_s slowest_step_s reset_s terminated truncated lengths "
        "rewarded_frac deterministic faults remarks"
    )
    return {
        "env": found.env.id,
        "backend": found.env.backend,
        "observation_space": to_json(found.spaces.observation),
        "action_space": to_json(found.spaces.action),
        "returns": [_finite(each) for each in found.returns],
        "reward_min": _finite(found.reward_min),
        "reward_max": _finite(found.reward_max),
        **{name: getattr(found, name) for name in names.split()},
        "choices": [*map(as_choice, doubts)],
    }


def _in_words(found: "EnvCheck", doubts: "list[Finding]") -> str:
    ended = len(found.lengths)
    if ended:
        episodes = (
            f"{ended} ended ({found.terminated} terminated, {found.truncated} truncated), length "
            f"{min(found.lengths)} to {max(found.lengths)}, random return "
            f"{sum(found.returns) / ended:.2f} ({min(found.returns):.2f} to "
            f"{max(found.returns):.2f})"
        )
    else:
        episodes = "none ended"
    rewards = "-"
    if found.reward_min <= found.reward_max:
        rewards = f"{found.reward_min:g} to {found.reward_max:g}"
    shaping = ", ".join(f"{name} {value:g}" for name, value in found.reward_shaping.items())
    same = "identical" if found.deterministic else "different"
    lines = [
        f"{found.env.id} ({found.env.backend})",
        f"  observation  {found.spaces.observation}",
        f"  action       {found.spaces.action}",
        *([f"  shaping      {shaping}"] if shaping else []),
        f"  step         {_time(found.step_s)}, the slowest {_time(found.slowest_step_s)}; "
        f"a reset {_time(found.reset_s)}",
        f"  reward       {rewards}, not 0 in {100 * found.rewarded_frac:.3g}% of the steps",
        f"  episodes     {episodes}",
        f"  seeds        the same seeds and actions give {same} episodes",
    ]
    lines += [f"remark: {each}" for each in found.remarks]
    lines += [f"choice: {each}" for each in doubts]
    lines += [f"fault: {each}" for each in found.faults]
    if not found.faults:
        lines.append(f"no fault found in {found.steps:,} steps")
    return "\n".join(lines)


def _finite(number: float) -> float | None:
    """Replaces values that JSON can't hold by None."""
    return number if math.isfinite(number) else None


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
