"""Sound environments by which no threshold of `quintet doctor` was chosen.

Those of packages are named by their ids.  The others are small tasks of other kinds than
`doctor_faults`: finite horizons with an observed end, random rewards, sparse goals, wide
MultiDiscrete actions, prices, games.  Each is right as it stands: it shows its whole state, draws
from its seed, and pays for what it asks.
"""
# ruff: noqa: ARG002

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PACKAGED = [
    "CliffWalkingSlippery-v1",
    "Taxi-v4",
    "BipedalWalkerHardcore-v3",
    "Ant-v4",
    "Reacher-v4",
    "Hopper-v4",
    "CartpoleSwingup-v1",
    "FingerSpin-v1",
    "WalkerWalk-v1",
    "ReacherEasy-v1",
    "MiniGrid-Empty-Random-6x6-v0",
    "MiniGrid-Fetch-5x5-N2-v0",
    "Jumanji/Game2048-v1",
    "Jumanji/Snake-v1",
    "ALE/Freeway-v5",
    "pettingzoo.classic.tictactoe_v3:env",
]


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def row(*parts: Any) -> Any:
    return np.concatenate([np.atleast_1d(np.asarray(x, np.float32)).ravel() for x in parts])


class Own(gymnasium.Env[Any, Any]):
    """An environment given by three functions: begin(rng), step(rng, state, action), shown(state).

    A state is a dict; step returns reward, terminated, truncated.
    """

    def __init__(self, name: str) -> None:
        self.rules = RULES[name]()
        self.observation_space, self.action_space = self.rules.obs, self.rules.act

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.state: dict[str, Any] = {"t": 0} | self.rules.begin(self.np_random)
        return self.rules.shown(self.state), {}

    def step(self, action: Any) -> Any:
        self.state["t"] += 1
        reward, terminated, truncated = self.rules.step(self.np_random, self.state, action)
        shown = self.rules.shown(self.state)
        return shown, float(reward), bool(terminated), bool(truncated), {}


class Inventory:
    """Orders for a shop of 30 days with Poisson demand; the days left are shown."""

    obs, act = box(3), spaces.Discrete(8)

    def begin(self, rng: Any) -> Any:
        return {"stock": 5, "season": float(rng.uniform(2, 6)), "days": 30}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        demand = rng.poisson(s["season"])
        have = s["stock"] + int(a)
        sold = min(have, demand)
        s["stock"], s["days"] = min(have - sold, 20), s["days"] - 1
        return 3.0 * sold - 1.0 * int(a) - 0.2 * s["stock"], s["days"] == 0, False

    def shown(self, s: Any) -> Any:
        return row(s["stock"] / 20, s["season"] / 6, s["days"] / 30)


class Tickets:
    """Prices of a flight's 40 seats over 50 periods; periods left and seats left are shown."""

    obs, act = box(2), spaces.Discrete(10)

    def begin(self, rng: Any) -> Any:
        return {"seats": 40, "left": 50}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        price = 20.0 + 10.0 * int(a)
        wanted = rng.binomial(3, float(np.exp(-price / 60)))
        sold = min(wanted, s["seats"])
        s["seats"] -= sold
        s["left"] -= 1
        return price * sold / 50, s["left"] == 0 or s["seats"] == 0, False

    def shown(self, s: Any) -> Any:
        return row(s["seats"] / 40, s["left"] / 50)


class Liquidation:
    """Sells 100 shares in 25 periods with an impact on the price; what remains is sold cheaply."""

    obs, act = box(3), spaces.Box(0.0, 1.0, (1,), np.float32)

    def begin(self, rng: Any) -> Any:
        return {"shares": 100.0, "price": 10.0}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        sold = s["shares"] * float(np.clip(a[0], 0, 1))
        got = sold * (s["price"] - 0.03 * sold)
        s["shares"] -= sold
        s["price"] = max(1.0, s["price"] + rng.normal(0, 0.2))
        last = s["t"] == 25
        if last:
            got += s["shares"] * 0.5 * s["price"]
        return got / 100, last, False

    def shown(self, s: Any) -> Any:
        return row(s["shares"] / 100, s["price"] / 10, (25 - s["t"]) / 25)


class Trader:
    """Long, flat or short in a price that returns to its mean; 120 steps, then cut."""

    obs, act = box(3), spaces.Discrete(3)

    def begin(self, rng: Any) -> Any:
        return {"gap": float(rng.normal(0, 1)), "held": 0}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        held = int(a) - 1
        cost = 0.05 * abs(held - s["held"])
        new = 0.9 * s["gap"] + float(rng.normal(0, 0.5))
        gain = held * (new - s["gap"])
        s["gap"], s["held"] = new, held
        return gain - cost, False, s["t"] == 120

    def shown(self, s: Any) -> Any:
        return row(s["gap"], s["held"], abs(s["gap"]))


class Battery:
    """Charges and discharges by the price of the hour, which is shown; 5 days."""

    obs, act = box(4), spaces.Box(-1.0, 1.0, (1,), np.float32)

    def begin(self, rng: Any) -> Any:
        return {"charge": 0.5, "hour": int(rng.integers(24)), "noise": 0.0}

    def price(self, s: Any) -> float:
        return 1.0 + 0.5 * float(np.sin(2 * np.pi * s["hour"] / 24)) + s["noise"]

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        wanted = 0.25 * float(np.clip(a[0], -1, 1))
        new = float(np.clip(s["charge"] + wanted, 0, 1))
        reward = -(new - s["charge"]) * self.price(s)
        s["charge"], s["hour"] = new, (s["hour"] + 1) % 24
        s["noise"] = 0.7 * s["noise"] + float(rng.normal(0, 0.1))
        return reward, False, s["t"] == 120

    def shown(self, s: Any) -> Any:
        angle = 2 * np.pi * s["hour"] / 24
        return row(s["charge"], np.sin(angle), np.cos(angle), self.price(s))


class Machines:
    """Settings of 12 machines of 5 levels each, which wear and are repaired."""

    obs, act = box(24), spaces.MultiDiscrete([5] * 12)

    def begin(self, rng: Any) -> Any:
        return {"wear": rng.uniform(0, 0.5, 12), "order": rng.uniform(0, 1, 12)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        speed = np.asarray(a) / 4
        made = speed * (1 - s["wear"]) * s["order"]
        s["wear"] = np.clip(s["wear"] + 0.1 * speed - 0.05 * (speed == 0), 0, 1)
        s["order"] = rng.uniform(0, 1, 12)
        return made.sum() - 0.2 * s["wear"].sum(), False, s["t"] == 60

    def shown(self, s: Any) -> Any:
        return row(s["wear"], s["order"])


class Lights:
    """Traffic lights of 16 crossings: each lets one of two queues pass."""

    obs, act = box(32), spaces.MultiDiscrete([2] * 16)

    def begin(self, rng: Any) -> Any:
        return {"queues": rng.poisson(2, (16, 2)).astype(float)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        chosen = np.arange(16), np.asarray(a, int)
        s["queues"][chosen] = np.maximum(0, s["queues"][chosen] - 3)
        s["queues"] = np.minimum(s["queues"] + rng.poisson(1.0, (16, 2)), 20)
        return -s["queues"].mean(), False, s["t"] == 100

    def shown(self, s: Any) -> Any:
        return row(s["queues"] / 20)


class Clicks:
    """One of six advertisements for each of 20 visitors; a click pays 1 at random."""

    obs, act = box(5), spaces.Discrete(6)

    def begin(self, rng: Any) -> Any:
        return {"visitor": rng.normal(0, 1, 4)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        angle = int(a) * np.pi / 3
        liking = s["visitor"][0] * np.cos(angle) + s["visitor"][1] * np.sin(angle)
        click = rng.random() < 1 / (1 + np.exp(2 - 1.5 * liking))
        s["visitor"] = rng.normal(0, 1, 4)
        return click, s["t"] == 20, False

    def shown(self, s: Any) -> Any:
        return row(s["visitor"], (20 - s["t"]) / 20)


class Arms:
    """A bandit with four arms of unknown chances; counts of wins and pulls are shown; 25 pulls."""

    obs, act = box(8), spaces.Discrete(4)

    def begin(self, rng: Any) -> Any:
        return {"chance": rng.uniform(0, 1, 4), "wins": np.zeros(4), "pulls": np.zeros(4)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        won = rng.random() < s["chance"][int(a)]
        s["wins"][int(a)] += won
        s["pulls"][int(a)] += 1
        return won, s["t"] == 25, False

    def shown(self, s: Any) -> Any:
        return row(s["wins"] / 25, s["pulls"] / 25)


class Rooms:
    """A goal in a grid of 9 x 9 with walls; only the goal pays, which is met at times."""

    obs, act = box(4), spaces.Discrete(4)
    moves = ((0, 1), (0, -1), (1, 0), (-1, 0))

    def begin(self, rng: Any) -> Any:
        return {"at": rng.integers(0, 9, 2), "goal": rng.integers(0, 9, 2)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        new = np.clip(s["at"] + self.moves[int(a)], 0, 8)
        if new[0] != 4 or new[1] in (2, 6):  # a wall with two doors
            s["at"] = new
        there = bool((s["at"] == s["goal"]).all())
        return there, there, s["t"] == 150

    def shown(self, s: Any) -> Any:
        return row(s["at"] / 8, s["goal"] / 8)


class Chase:
    """A picture of 10 x 10 with three planes: a player, a wandering monster, and coins."""

    obs, act = spaces.Box(0, 1, (10, 10, 3), np.float32), spaces.Discrete(5)
    moves = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))

    def begin(self, rng: Any) -> Any:
        coins = np.zeros((10, 10))
        coins[tuple(rng.integers(0, 10, (2, 8)))] = 1
        return {"me": np.array([0, 0]), "foe": np.array([9, 9]), "coins": coins}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        s["me"] = np.clip(s["me"] + self.moves[int(a)], 0, 9)
        way = np.sign(s["me"] - s["foe"]) if rng.random() < 0.5 else rng.integers(-1, 2, 2)
        s["foe"] = np.clip(s["foe"] + way, 0, 9)
        got = s["coins"][tuple(s["me"])]
        s["coins"][tuple(s["me"])] = 0
        caught = bool((s["me"] == s["foe"]).all())
        return got - caught, caught or not s["coins"].any(), s["t"] == 200

    def shown(self, s: Any) -> Any:
        planes = np.zeros((10, 10, 3), np.float32)
        planes[(*s["me"], 0)] = planes[(*s["foe"], 1)] = 1
        planes[..., 2] = s["coins"]
        return planes


class Falling:
    """Catches things that fall through a board of 8 x 8, one after the other; ten of them."""

    obs, act = spaces.Box(0, 1, (8, 8, 2), np.uint8), spaces.Discrete(3)

    def begin(self, rng: Any) -> Any:
        return {"x": 4, "fall": [0, int(rng.integers(8))], "count": 0}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        s["x"] = int(np.clip(s["x"] + int(a) - 1, 0, 7))
        s["fall"][0] += 1
        reward = 0.0
        if s["fall"][0] == 7:
            reward = 1.0 if s["fall"][1] == s["x"] else -1.0
            s["fall"], s["count"] = [0, int(rng.integers(8))], s["count"] + 1
        return reward, False, s["count"] == 10

    def shown(self, s: Any) -> Any:
        board = np.zeros((8, 8, 2), np.uint8)
        board[(*s["fall"], 0)] = board[7, s["x"], 1] = 1
        return board


class Tank:
    """Holds the level of a tank at a shown target by a valve against random inflow."""

    obs, act = box(3), spaces.Box(0.0, 1.0, (1,), np.float32)

    def begin(self, rng: Any) -> Any:
        level, target = rng.uniform(0.2, 0.8, 2)
        return {"level": level, "target": target, "inflow": 0.1}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        out = 0.3 * float(np.clip(a[0], 0, 1)) * np.sqrt(s["level"])
        s["level"] = float(np.clip(s["level"] + s["inflow"] - out, 0, 1))
        s["inflow"] = float(np.clip(s["inflow"] + rng.normal(0, 0.02), 0, 0.2))
        empty = s["level"] in (0.0, 1.0)
        return 1 - 2 * abs(s["level"] - s["target"]) - empty, empty, s["t"] == 150

    def shown(self, s: Any) -> Any:
        return row(s["level"], s["target"], s["inflow"])


class Landing:
    """Brings a mass to 0 by the last of 40 steps, with fuel that costs; the time left is shown."""

    obs, act = box(3), spaces.Box(-1.0, 1.0, (1,), np.float32)

    def begin(self, rng: Any) -> Any:
        return {"x": float(rng.uniform(-2, 2)), "v": 0.0}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        push = float(np.clip(a[0], -1, 1))
        s["v"] += 0.1 * push
        s["x"] += 0.2 * s["v"]
        last = s["t"] == 40
        return -0.01 * push**2 - (s["x"] ** 2 + s["v"] ** 2 if last else 0), last, False

    def shown(self, s: Any) -> Any:
        return row(s["x"], s["v"], (40 - s["t"]) / 40)


class Auction:
    """Bids for ten goods of shown worth with a purse; the rounds left are one-hot."""

    act = spaces.Discrete(6)
    obs = spaces.Dict({"numbers": box(2), "left": spaces.Discrete(11)})

    def begin(self, rng: Any) -> Any:
        return {"purse": 3.0, "worth": float(rng.uniform(0, 1)), "left": 10}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        bid = min(int(a) / 5, s["purse"])
        won = bid > rng.uniform(0, 1)
        reward = s["worth"] - bid if won else 0.0
        s["purse"] -= bid if won else 0.0
        s["worth"], s["left"] = float(rng.uniform(0, 1)), s["left"] - 1
        return reward, s["left"] == 0, False

    def shown(self, s: Any) -> Any:
        return {"numbers": row(s["purse"] / 3, s["worth"]), "left": s["left"]}


class Arm:
    """An arm with two joints and a gripper: actions are a Dict of a Box and a switch."""

    obs = box(7)
    act = spaces.Dict(
        {"grip": spaces.Discrete(2), "joints": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    )

    def begin(self, rng: Any) -> Any:
        return {"q": rng.uniform(-1, 1, 2), "thing": rng.uniform(-1.5, 1.5, 2), "held": 0.0}

    def hand(self, s: Any) -> Any:
        a, b = s["q"][0], s["q"].sum()
        return np.array([np.cos(a) + np.cos(b), np.sin(a) + np.sin(b)])

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        s["q"] = s["q"] + 0.2 * np.clip(a["joints"], -1, 1)
        gap = float(np.linalg.norm(self.hand(s) - s["thing"]))
        s["held"] = float(a["grip"] and gap < 0.3)
        return -0.1 * gap + s["held"], s["held"] > 0, s["t"] == 100

    def shown(self, s: Any) -> Any:
        return row(np.sin(s["q"]), np.cos(s["q"]), s["thing"], s["held"])


class Nim:
    """Takes one to three of the matches against a random player; who takes the last one wins."""

    obs = spaces.Dict({"matches": spaces.Discrete(22), "action_mask": spaces.MultiBinary(3)})
    act = spaces.Discrete(3)

    def begin(self, rng: Any) -> Any:
        return {"matches": int(rng.integers(12, 22))}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        s["matches"] -= int(a) + 1
        if s["matches"] <= 0:
            return 1.0, True, False
        s["matches"] -= int(rng.integers(1, min(3, s["matches"]) + 1))
        lost = s["matches"] <= 0
        return -float(lost), lost, False

    def shown(self, s: Any) -> Any:
        left = max(0, s["matches"])
        mask = np.arange(1, 4) <= max(1, left)
        return {"matches": left, "action_mask": mask.astype(np.int8)}


class Draw:
    """A card game: draw up to a sum of 15 or stand; one reward at the end."""

    obs, act = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11))), spaces.Discrete(2)

    def begin(self, rng: Any) -> Any:
        return {"sum": int(rng.integers(1, 11)), "bank": int(rng.integers(1, 11))}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        if int(a):
            s["sum"] += int(rng.integers(1, 11))
            return -float(s["sum"] > 15), s["sum"] > 15, False
        bank = s["bank"]
        while bank < 12:
            bank += int(rng.integers(1, 11))
        better = bank > 15 or s["sum"] > bank
        return 1.0 if better else -1.0, True, False

    def shown(self, s: Any) -> Any:
        return s["sum"], s["bank"]


class Once:
    """A bandit with contexts: each episode is one decision."""

    obs, act = box(3), spaces.Discrete(4)

    def begin(self, rng: Any) -> Any:
        return {"x": rng.normal(0, 1, 3)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        weight = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, 0]])[int(a)]
        return float(weight @ s["x"] + rng.normal(0, 0.3)), True, False

    def shown(self, s: Any) -> Any:
        return row(s["x"])


class Epidemic:
    """Measures against an epidemic over 52 weeks; the week is shown, and the season's strength."""

    obs, act = box(5), spaces.Discrete(4)

    def begin(self, rng: Any) -> Any:
        return {"sick": 0.01, "safe": 0.0, "season": float(rng.uniform(0, 2 * np.pi))}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        strength = 1.5 + 0.5 * np.sin(s["season"] + 2 * np.pi * s["t"] / 52)
        new = strength * (1 - 0.25 * int(a)) * s["sick"] * (1 - s["sick"] - s["safe"])
        new *= float(np.exp(rng.normal(0, 0.1)))
        healed = 0.5 * s["sick"]
        s["sick"] = float(np.clip(s["sick"] + new - healed, 1e-4, 1))
        s["safe"] = float(np.clip(0.98 * s["safe"] + healed, 0, 1))
        return -10 * s["sick"] - 0.3 * int(a), s["t"] == 52, False

    def shown(self, s: Any) -> Any:
        angle = s["season"] + 2 * np.pi * s["t"] / 52
        return row(s["sick"], s["safe"], np.sin(angle), np.cos(angle), s["t"] / 52)


class Elevator:
    """An elevator among eight floors that fetches and delivers; calls come at random."""

    obs, act = spaces.MultiBinary(24), spaces.Discrete(3)

    def begin(self, rng: Any) -> Any:
        return {"floor": 0, "calls": np.zeros(8, bool), "wanted": np.zeros(8, bool)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        s["floor"] = int(np.clip(s["floor"] + int(a) - 1, 0, 7))
        reward = -0.1 * (s["calls"].sum() + s["wanted"].sum())
        here = s["floor"]
        if int(a) == 1:
            reward += s["wanted"][here]
            s["wanted"][here] = False
            if s["calls"][here]:
                s["calls"][here] = False
                s["wanted"][int(rng.integers(8))] = True
        if rng.random() < 0.15:
            s["calls"][int(rng.integers(8))] = True
        return reward, False, s["t"] == 150

    def shown(self, s: Any) -> Any:
        return np.concatenate([np.arange(8) == s["floor"], s["calls"], s["wanted"]]).astype(np.int8)


class Pipes:
    """Flips cells of a board of 5 x 5 until all are off; a step costs; 60 steps."""

    obs, act = spaces.MultiBinary((5, 5)), spaces.Discrete(25)

    def begin(self, rng: Any) -> Any:
        s = {"cells": np.zeros((5, 5), bool)}
        for place in rng.integers(0, 25, 4):
            self.flip(s, int(place))
        return s

    def flip(self, s: Any, place: int) -> None:
        i, j = divmod(place, 5)
        s["cells"][i, j] ^= True
        s["cells"][i, (j + 1) % 5] ^= True

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        before = s["cells"].sum()
        self.flip(s, int(a))
        done = not s["cells"].any()
        return 0.1 * float(before - s["cells"].sum()) - 0.01 + done, done, s["t"] == 60

    def shown(self, s: Any) -> Any:
        return s["cells"].astype(np.int8)


class Hedge:
    """Hedges an option over 20 days of a random price: the gain of each day, less costs."""

    obs, act = box(3), spaces.Box(0.0, 1.0, (1,), np.float32)

    def begin(self, rng: Any) -> Any:
        return {"price": 1.0, "held": 0.0, "value": self.worth(1.0, 20)}

    def worth(self, price: float, left: int) -> float:
        width = 0.02 * np.sqrt(left) + 1e-3
        x = (price - 1.0) / width
        return float(width * np.log1p(np.exp(np.clip(1.7 * x, -50, 50))) / 1.7)

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        held = float(np.clip(a[0], 0, 1))
        new = s["price"] * float(np.exp(rng.normal(0, 0.02)))
        value = self.worth(new, 20 - s["t"])
        gain = held * (new - s["price"]) - (value - s["value"])
        cost = 0.001 * abs(held - s["held"])
        s |= {"price": new, "held": held, "value": value}
        return -100 * abs(gain) - 100 * cost, s["t"] == 20, False

    def shown(self, s: Any) -> Any:
        return row(10 * (s["price"] - 1), s["held"], (20 - s["t"]) / 20)


class Swarm:
    """Six drones that are to spread over a line; each action is a vector of six speeds."""

    obs, act = box(6), spaces.Box(-1.0, 1.0, (6,), np.float32)

    def begin(self, rng: Any) -> Any:
        return {"x": rng.uniform(-1, 1, 6)}

    def step(self, rng: Any, s: Any, a: Any) -> Any:
        wind = rng.normal(0, 0.02, 6)
        s["x"] = np.clip(s["x"] + 0.1 * np.clip(a, -1, 1) + wind, -1, 1)
        wanted = np.linspace(-1, 1, 6)
        return -float(np.abs(np.sort(s["x"]) - wanted).sum()), False, s["t"] == 50

    def shown(self, s: Any) -> Any:
        return row(s["x"])


RULES: dict[str, Any] = {
    rules.__name__: rules
    for rules in (
        Inventory, Tickets, Liquidation, Trader, Battery, Machines, Lights, Clicks, Arms, Rooms,
        Chase, Falling, Tank, Landing, Auction, Arm, Nim, Draw, Once, Epidemic, Elevator, Pipes,
        Hedge, Swarm,
    )
}  # fmt: skip


def make(name: str) -> gymnasium.Env[Any, Any]:
    """One of the own environments."""
    return Own(name)
