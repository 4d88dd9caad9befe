"""Every number among the options has a least and a greatest value, and what is beyond is told."""

import io
import math
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

import quintet
from quintet.algorithms import registry
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.options.run import PARTS, RunConfig

MODELS: dict[str, type[BaseModel]] = {
    "run": RunConfig,
    **PARTS,
    **{name: each.config for name, each in registry.LEARNERS.usable()},
}
WITHOUT_BOUNDS: dict[str, str] = {}
"""Options whose numbers need no bounds, each with the reason."""

HUGE = ["9" * 400, "1e30", "nan", "inf", "-inf", 10**400, 10**5000, 1e30, 1e300, math.inf, math.nan]
CARTPOLE = ["ppo", "--env", "quintet.envs.toy:Contextual"]


def numbers(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a JSON schema that is a number, and every list of numbers."""
    if isinstance(node, list):
        for each in node:
            yield from numbers(each, where)
    if not isinstance(node, dict):
        return
    if node.get("type") in ("integer", "number"):
        yield where, node
    if node.get("type") == "array" and "prefixItems" not in node:
        inside = [*numbers(node.get("items"), where)]
        assert not inside or "maxItems" in node, f"{where}: how many numbers, at most?"
    for key, child in node.items():
        if key == "properties":
            for name, each in child.items():
                yield from numbers(each, f"{where}.{name}")
        elif key not in ("$defs", "default"):
            yield from numbers(child, where)


@pytest.mark.parametrize("name", MODELS)
def test_every_number_has_bounds(name: str) -> None:
    schema = MODELS[name].model_json_schema()
    found = [*numbers(schema["properties"], name)]
    for part, properties in schema["properties"].items():
        found += numbers(properties, f"{name}.{part}")
    assert found or name in ("run", "doctor")  # they have no numbers of their own
    for where, node in found:
        low, high = (
            {"minimum", "exclusiveMinimum"} & {*node},
            {*node}
            & {
                "maximum",
                "exclusiveMaximum",
            },
        )
        told = node.get("const") is not None or "enum" in node  # one of a few
        assert told or where in WITHOUT_BOUNDS or (low and high), f"{where}: {node}"


@pytest.mark.parametrize("name", [each for each in MODELS if each != "run"])
def test_no_number_raises_anything_else_than_a_fault_of_its_option(name: str) -> None:
    model = MODELS[name]
    needed = {"id": "CartPole-v1"} if name == "env" else {}
    for field in model.model_fields:
        for value in (*HUGE, 0, -1, 10**9, [10**400], {"a": 10**400}, {"a": [math.nan]}):
            try:
                model(**{**needed, field: value})
            except ValidationError:
                continue


def said(words: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return status, err.getvalue()


@pytest.mark.parametrize(
    ("option", "value", "tells"),
    [
        ("total-steps", "9" * 400, "total_env_steps: input should be less than or equal to"),
        ("env.frame-stack", "true", "env.frame_stack: input should be a number, got True"),
        ("gamma", "true", "gamma: input should be a number, got True"),
        ("runtime.threads", "false", "runtime.threads: input should be a number, got False"),
        ("total-steps", "1e30", "total_env_steps: input should be a whole number"),
        ("env.frame-stack", "1000000000", "env.frame_stack: input should be less"),
        ("env.num-threads", "20000", "env.num_threads: input should be less"),
        ("runtime.threads", "1000000", "runtime.threads: input should be less"),
        ("checkpoint.milestones", "1000000000", "checkpoint.milestones: input should be less"),
        ("learning-rate", "1e300", "learning_rate: input should be less"),
        ("gamma", "nan", "gamma: input should be a finite number"),
        ("model.policy-hidden", "[1000000, 1000000]", "bytes of memory"),
        ("model.policy-hidden", "[" + ", ".join(["1"] * 2000) + "]", "at most 1000 items"),
    ],
)
def test_giant_numbers_are_refused_in_a_sentence(option: str, value: str, tells: str) -> None:
    status, told = said(["config", *CARTPOLE, f"--{option}", value])
    assert status == 2
    assert tells in told
    assert "Traceback" not in told
    assert len(told) < 700


def test_a_file_and_python_are_asked_alike(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "huge.yaml").write_text(yaml.safe_dump({"total_env_steps": 10**400}))
    status, told = said(["config", *CARTPOLE, "--config", "huge.yaml"])
    assert status == 2
    assert "total_env_steps: input should be less" in told
    for value in (10**400, 10**5000, 1e300):
        with pytest.raises(ConfigError, match="total_env_steps: input should be"):
            quintet.train("ppo", "quintet.envs.toy:Contextual", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algo", "options", "tells"),
    [
        ("ppo", {"unroll_steps": 100_000, "env.num_streams": 2_000}, "unrolls of 100000 steps"),
        ("ddpg", {"n_step": 100_000, "batch_size": 10**6}, "a batch that is drawn from replay"),
        ("ddpg", {"replay_capacity_steps": 10**14}, "replay must have room"),
    ],
)
def test_what_memory_has_no_room_for_is_refused_before_it_is_allocated(
    algo: str, options: dict[str, Any], tells: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("quintet.system.memory.free_bytes", lambda: 2.0**33)
    env = "quintet.envs.toy:Target" if algo == "ddpg" else "quintet.envs.toy:Contextual"
    options |= {"minibatch_steps": None} if algo == "ppo" else {}
    with pytest.raises(ConfigError, match=tells):
        quintet.train(algo, env, 10**12, run_dir=tmp_path / "run", config=options)
    assert not (tmp_path / "run" / "checkpoints").exists()
