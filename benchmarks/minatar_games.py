"""PPO with its default options on games of MinAtar.

    python benchmarks/minatar_games.py [GAME ...] [--seeds 11 12 13] [--folder DIR]

Needs the package minatar.  Trains GAME-SEED-COMMIT in --folder, for a million env_steps, as
`quintet train ppo --env minatar:MinAtar/GAME-v1` does; a killed run goes on.  A seed's score is the
mean return of 100 greedy episodes of the final policy, on environment seeds from 10,000 on.
Finished games are written to benchmarks/results/minatar.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from one_seed import commit
from records import write_whole

import quintet

GAMES = ("Breakout", "Asterix", "SpaceInvaders", "Freeway")
STEPS, EPISODES, FIRST_SEED = 1_000_000, 100, 10_000
RECORD = Path(__file__).parent / "results" / "minatar.json"


def trained(game: str, seed: int, folder: Path) -> quintet.Policy:
    """The final policy; a run that is there goes on."""
    env, run = f"minatar:MinAtar/{game}-v1", folder / f"{game}-{seed}-{commit()}"
    return quintet.train("ppo", env, STEPS, seed=seed, run_dir=run).policy


def score(policy: quintet.Policy, random: bool = False) -> dict[str, float]:
    found = quintet.evaluate(policy, episodes=EPISODES, seed=FIRST_SEED, random=random)
    return {"return_mean": found.mean, "return_std": found.std}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("games", nargs="*", metavar="GAME", default=GAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--folder", type=Path, default=Path("runs/minatar"))
    args = parser.parse_args()
    for game in args.games:
        seeds: dict[str, Any] = {}
        for seed in args.seeds:
            policy = trained(game, seed, args.folder)
            seeds[str(seed)] = score(policy)
            print(game, seed, seeds[str(seed)], flush=True)
        chance = score(policy, random=True)["return_mean"]
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        record[game] = {"env_steps": STEPS, "commit": commit(), "random": chance, "seeds": seeds}
        write_whole(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
