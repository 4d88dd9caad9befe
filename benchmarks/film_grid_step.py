"""Rows that film_grid reads in a second, forward and with its gradient.

    python benchmarks/film_grid_step.py [--threads N]

Policy and value share the encoder; the batch is random grids of 7 x 7 with one of 36 missions of
BabyAI-GoToLocal, 14 to 21 bytes, in leaves of 512.  The variants take turns; printed is the best of
five rounds.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym_spaces

from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.heads import action_family
from quintet.models.precision import Precision
from quintet.types import Obs, Spaces

SPACES = Spaces(
    gym_spaces.Dict(
        {
            "direction": gym_spaces.Discrete(4),
            "image": gym_spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": gym_spaces.Box(0, 255, (512,), np.uint8),
        }
    ),
    gym_spaces.Discrete(7),
)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
MISSIONS = [
    f"go to {a} {b} {c}" for a, b, c in product(("a", "the"), COLOURS, ("ball", "box", "key"))
]
ROUNDS, SECONDS, ROWS = 5, 0.2, (64, 1920)
BYTES = {"tokenizer": "bytes"}
VARIANTS: dict[str, tuple[Precision, dict[str, Any]]] = {
    "bytes": ("fp32", BYTES),
    "bytes, bf16": ("bf16", BYTES),
    "bytes, each row read": ("fp32", BYTES | {"deduplicate_text": False}),
    "bytes, attention": ("fp32", BYTES | {"text_pooling": "attention"}),
    "bytes, bidirectional": ("fp32", BYTES | {"bidirectional_film": True}),
    "words": ("fp32", {}),
    "words, bf16": ("bf16", {}),
    "no text": ("fp32", {"tokenizer": "none"}),
    "no text, bf16": ("bf16", {"tokenizer": "none"}),
}


def batch(rows: int) -> Obs:
    g = torch.Generator().manual_seed(0)
    missions = torch.zeros((len(MISSIONS), 512), dtype=torch.uint8)
    for row, text in zip(missions, MISSIONS, strict=True):
        row[: len(text)] = torch.tensor(list(text.encode()))
    ids = [torch.randint(0, n, (rows, 7, 7), generator=g) for n in (11, 6, 4)]
    return {
        "direction": torch.randint(0, 4, (rows,), generator=g),
        "image": torch.stack(ids, -1).to(torch.uint8),
        "mission": missions[torch.randint(0, len(MISSIONS), (rows,), generator=g)],
    }


def calls(precision: Precision, options: dict[str, Any], rows: int) -> list[Callable[[], None]]:
    """One forward, and one with its gradient."""
    model = resolve_model(ModelConfig(shared_torso=True, encoder_kwargs=options), SPACES)
    family = action_family(SPACES.action, "clip")
    generator = torch.Generator().manual_seed(0)
    acts, learns = (ActorCritic(SPACES, family, model, generator, precision) for _ in range(2))
    acts.freeze_precision()
    obs, parameters = batch(rows), list(learns.parameters())

    def forward() -> None:
        with torch.inference_mode():
            acts(obs)

    def gradient() -> None:
        params, value, _ = learns(obs)
        torch.autograd.grad(params.square().sum() + value.square().sum(), parameters)

    return [forward, gradient]


def seconds(call: Callable[[], None]) -> float:
    """Of the fastest call within a while."""
    call()
    times, end = [time.perf_counter()], time.perf_counter() + SECONDS
    while len(times) < 3 or times[-1] < end:
        call()
        times.append(time.perf_counter())
    return min(after - before for before, after in pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    made = {
        (name, rows): calls(*variant, rows) for rows in ROWS for name, variant in VARIANTS.items()
    }
    best: dict[tuple[str, int], list[float]] = {key: [float("inf")] * 2 for key in made}
    for _ in range(ROUNDS):
        for key, pair in made.items():
            best[key] = [min(*x) for x in zip(best[key], map(seconds, pair), strict=True)]
    for (name, rows), (forward, gradient) in best.items():
        print(f"{rows:5} rows  {name:22} {rows / forward:9,.0f} /s {rows / gradient:9,.0f} /s")


if __name__ == "__main__":
    main()
