"""Writes scores and what rliable, the implementation of Agarwal et al. 2021, says of them, to
``rliable.json`` beside this file.  It runs where rliable is installed, which quintet never needs:

    python -m venv build/rliable && build/rliable/bin/pip install rliable==1.2.0 "pandas<3"
    build/rliable/bin/python tests/golden/rliable_reference.py
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "benchmarks" / "results"
REPS = 20_000
RNG = np.random.default_rng(0)


def recorded(algo: str) -> np.ndarray:
    """Scores ``[runs, tasks]`` of the first three seeds of some records."""
    tasks = ("Acrobot-v1", "CartPole-v1", "LunarLander-v3", "MountainCar-v0")
    files = [json.loads((RESULTS / f"{algo}-{task}.json").read_text()) for task in tasks]
    return np.array([[run["return_mean"] for run in each["runs"][:3]] for each in files]).T


def scaled(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of both sides between 0 and 1 by the lowest and the highest of each task."""
    low, high = np.minimum(a.min(0), b.min(0)), np.maximum(a.max(0), b.max(0))
    width = np.where(high > low, high - low, 1.0)
    return (a - low) / width, (b - low) / width


def interval(scores: object, statistic: object) -> list[float]:
    seed = np.random.RandomState(0)
    _, found = library.get_interval_estimates(
        {"x": scores}, statistic, reps=REPS, random_state=seed
    )
    return np.ravel(found["x"]).tolist()


def reference(a: np.ndarray, b: np.ndarray) -> dict[str, object]:
    sides = []
    taus = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()), 6)[1:-1]
    for own in (a, b):
        profile, ends = library.create_performance_profile({"x": own}, taus, reps=REPS)
        sides.append(
            {
                "scores": own.tolist(),
                "mean": float(metrics.aggregate_mean(own)),
                "iqm": float(metrics.aggregate_iqm(own)),
                "iqm_interval": interval(own, lambda x: np.array([metrics.aggregate_iqm(x)])),
                "profile": profile["x"].tolist(),
                "profile_interval": np.asarray(ends["x"]).tolist(),
            }
        )
    return {
        "taus": taus.tolist(),
        "sides": sides,
        "improvement": float(metrics.probability_of_improvement(a, b)),
        "improvement_interval": interval(
            (a, b), lambda x, y: np.array([metrics.probability_of_improvement(x, y)])
        ),
    }


CASES = {
    "five runs of tasks far apart": (
        RNG.normal((0.1, 0.4, 0.9, 3.0), 0.1, (5, 4)),
        RNG.normal((0.1, 0.3, 0.8, 2.0), 0.1, (5, 4)),
    ),
    "three runs of recorded tasks": scaled(recorded("ppo"), recorded("acer")),
    "ties of ten and seven runs": (RNG.integers(0, 5, (10, 2)) / 4, RNG.integers(0, 4, (7, 2)) / 4),
}

if __name__ == "__main__":
    found = {name: reference(*sides) for name, sides in CASES.items()}
    text = json.dumps(found)
    (HERE / "rliable.json").write_text(f"{text}\n")
