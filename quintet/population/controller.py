"""Considers the policies of a population from time to time, and records the decisions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from quintet.population import pbt
from quintet.population.pbt import Decision, Rules, Values


def finite(objective: float | None) -> float | None:
    """The objective; None if JSON can't hold it."""
    return objective if objective is not None and math.isfinite(objective) else None


@final
class Controller:
    """Decides for a run when and how its policies change.

    events: the decisions, beginning with the first values of all policies; JSON-able.
    """

    def __init__(self, rules: Rules, start: int, period: int, seed: int):
        """start, period: in env_steps of a policy, see `PopulationConfig`."""
        self.rules, self.start, self.period = rules, start, period
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.values = pbt.begin(rules, self.rng)
        self.considered = [0] * len(self.values)  # env_steps of each policy then
        self.events: list[dict[str, Any]] = [
            {"event": "begins", "policy": k, "values": values}
            for k, values in enumerate(self.values)
        ]

    def due(self, policy: int, env_steps: int) -> bool:
        """Whether a policy's consideration is due after this many of its env_steps."""
        begun = self.rules.config.pbt and env_steps >= self.start
        return begun and env_steps - self.considered[policy] > self.period

    def consider(
        self, policy: int, objectives: Sequence[float | None], env_steps: int, of_run: int
    ) -> Decision:
        """Decides about a policy, and records the decision.

        env_steps: env_steps of the policy; of_run: env_steps of all policies.
        """
        decision = pbt.decide(policy, objectives, self.values, self.rules, self.rng)
        what = "copied" if decision.donor != policy else "considered"
        self._take_down(what, decision, env_steps, of_run)
        return decision

    def recovered(self, policy: int) -> bool:
        """Whether a policy never diverged, or has been ranked since."""
        for event in reversed(self.events):
            if event["event"] == "diverged" and event["policy"] == policy:
                return False
            objectives = event.get("objectives", ())
            if policy < len(objectives) and objectives[policy] is not None:
                return True
        return True

    def replace(
        self,
        policy: int,
        objectives: Sequence[float | None],
        sound: Sequence[int],
        steps: tuple[int, int],
        reason: str,
    ) -> Decision:
        """Decides which sound policy replaces a diverged one.

        steps: env_steps of the policy and of all policies.
        """
        decision = pbt.replace(policy, objectives, sound, self.values, self.rules, self.rng)
        self._take_down("diverged", decision, *steps)
        self.events[-1]["reason"] = reason
        return decision

    def _take_down(self, what: str, decision: Decision, env_steps: int, of_run: int) -> None:
        self.considered[decision.policy] = env_steps
        self.values[decision.policy] = decision.after
        self.events.append(
            {
                "event": what,
                "env_steps": of_run,
                "policy_env_steps": env_steps,
                **decision._asdict(),
                "objectives": [finite(x) for x in decision.objectives],
            }
        )

    def save(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "values": self.values,
            "considered": self.considered,
            "events": self.events,
            "generator": self.rng.bit_generator.state,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of `save`; raises KeyError or ValueError for anything else."""
        values: list[Values] = saved["values"]
        sound = len(values) == len(self.values) == len(saved["considered"])
        if not sound or any(each.keys() != self.values[0].keys() for each in values):
            raise ValueError("the values of its population belong to other policies or options")
        if any(event["policy"] >= len(values) for event in saved["events"]):
            raise ValueError("the events of its population belong to other policies")
        self.values = [dict(each) for each in values]
        self.considered, self.events = list(saved["considered"]), list(saved["events"])
        self.rng.bit_generator.state = saved["generator"]
