"""Races learners on an inventory, and compares the winner with a rule of thumb.

    python examples/inventory.py

The same from the command line, in the folder of this file:

    quintet train auto --env inventory:Inventory --minutes 10
"""

import gymnasium
import numpy as np

PRODUCTS, LEAD_WEEKS, LOT = 3, 3, 20
PRICE = np.array([90.0, 60.0, 150.0])
COST = np.array([50.0, 30.0, 90.0])
HOLDING = np.array([1.5, 1.0, 3.0])  # for each piece and week
LOST = np.array([20.0, 10.0, 40.0])  # for each piece that a customer wanted and did not get
DEMAND = np.array([60.0, 80.0, 40.0])  # mean pieces of a week
ORDER = 300.0  # for each order of a product


class Inventory(gymnasium.Env):
    """Order three products every week; they arrive three weeks later.  Rewards are profits."""

    observation_space = gymnasium.spaces.Dict(
        {
            "stock": gymnasium.spaces.Box(0, 1e5, (PRODUCTS,), np.float32),
            "on_order": gymnasium.spaces.Box(0, 1e5, (LEAD_WEEKS, PRODUCTS), np.float32),
            "season": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([11] * PRODUCTS)

    def _observation(self):
        angle = 2 * np.pi * self.week / 52
        return {
            "stock": self.stock.astype(np.float32),
            "on_order": self.on_order.astype(np.float32),
            "season": np.array([np.sin(angle), np.cos(angle)], np.float32),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin = self.week = int(self.np_random.integers(52))
        self.stock = self.np_random.integers(0, 300, PRODUCTS).astype(float)
        self.on_order = np.zeros((LEAD_WEEKS, PRODUCTS))
        return self._observation(), {}

    def step(self, action):
        ordered = LOT * np.asarray(action, float)
        self.stock += self.on_order[0]
        self.on_order = np.concatenate([self.on_order[1:], ordered[None]])
        season = 1 + 0.4 * np.sin(2 * np.pi * self.week / 52)
        wanted = self.np_random.poisson(DEMAND * season).astype(float)
        sold = np.minimum(wanted, self.stock)
        self.stock -= sold
        profit = PRICE @ sold - COST @ ordered - ORDER * np.count_nonzero(ordered)
        profit -= HOLDING @ self.stock + LOST @ (wanted - sold)
        self.week += 1
        return self._observation(), float(profit), False, self.week - self.begin >= 104, {}


def base_stock(weeks: float, episodes: int = 100) -> float:
    """Mean profit of the rule that orders up to the mean demand of so many weeks."""
    total = 0.0
    for seed in range(10_000, 10_000 + episodes):
        env = Inventory()
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            missing = weeks * DEMAND - obs["stock"] - obs["on_order"].sum(0)
            obs, reward, _, over, _ = env.step(np.clip(np.round(missing / LOT), 0, 10))
            total += reward
    return total / episodes


if __name__ == "__main__":
    import quintet

    rule = max(base_stock(weeks) for weeks in np.arange(3.0, 7.0, 0.5))
    result = quintet.train("auto", Inventory, minutes=10)
    scores = quintet.evaluate(result.policy, env=Inventory, episodes=100)
    print(f"profit {scores.mean:,.0f}, of the best base-stock rule {rule:,.0f}; {result.run_dir}")
