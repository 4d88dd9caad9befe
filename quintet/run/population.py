"""The population of a run: considers its policies as they learn, and does what is decided."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from quintet.config.population import first_values, rules, shaping_of, with_values
from quintet.config.run import RunConfig
from quintet.observe.lineage import EVENTS
from quintet.population.controller import Controller
from quintet.population.pbt import Decision
from quintet.run.folder import RunFolder
from quintet.run.policy_run import PolicyRun
from quintet.runtime.delivery import Batch
from quintet.runtime.seeds import Role, generator_seed
from quintet.system import files


@final
class Population:
    """Tunes the hyperparameters of the policies of one run.

    options: the learner's, of each policy at the start; the caller gives the policies theirs.
    """

    def __init__(self, config: RunConfig, folder: RunFolder):
        own = config.population
        share = config.total_env_steps // own.size
        start, period = own.start_env_steps, own.period_env_steps
        self.config, self.folder = config, folder
        first_values(config)  # options may have no effect in these spaces
        self.controller = Controller(
            rules(config),
            share // 10 if start is None else start,
            max(1, share // 20) if period is None else period,
            generator_seed(config.seed, Role.POPULATION, 0),
        )
        self.options = [with_values(config.learner, each) for each in self.controller.values]
        self._late_env_steps = self.controller.start + self.controller.period
        self._told_of_missing = set[tuple[int, ...]]()

    def shape(self, policies: Sequence[PolicyRun]) -> None:
        """Gives each policy its values of reward shaping, where these are tuned."""
        for policy, values in zip(policies, self.controller.values, strict=True):
            policy.reward_shaping = shaping_of(self.config.env, values)

    def consider(
        self, batch: Batch, policies: Sequence[PolicyRun], of_run: int, say: Callable[[str], None]
    ) -> bool:
        """Considers the policy that has just learned, if it is time and its objective was measured
        since the last time; whether it has the weights of another one now.

        of_run: env_steps of all policies.
        """
        index, controller = batch.policy, self.controller
        policy = policies[index]
        env_steps = policy.counters.env_steps
        last = of_run >= self.config.total_env_steps
        if not batch.env_steps or last or not controller.due(index, env_steps):
            return False
        found = [each.objective for each in policies]
        objectives = [x for x in found if x is not None and math.isfinite(x)]
        if len(objectives) < len(policies):
            self._tell_of_missing(found, policies, say)
            return False
        if policy.measured_env_steps < controller.considered[index]:
            return False
        decision = controller.consider(index, objectives, env_steps, of_run)
        copied = decision.donor != index
        options = with_values(policy.config.learner, decision.after)
        if copied:
            policy.become(policies[decision.donor], options)
        elif decision.after != decision.before:
            policy.configure(options)
        self.shape(policies)
        self.write()
        if copied or decision.after != decision.before:
            say(told(decision))
        return copied

    def _tell_of_missing(
        self,
        found: Sequence[float | None],
        policies: Sequence[PolicyRun],
        say: Callable[[str], None],
    ) -> None:
        """Says once that no policy has an objective; and once which have none, or one that is not
        finite, when all have made the steps of a further period.
        """
        lacks = tuple(k for k, x in enumerate(found) if x is None or not math.isfinite(x))
        late = all(each.counters.env_steps >= self._late_env_steps for each in policies)
        if lacks in self._told_of_missing or not (late or len(lacks) == len(found)):
            return
        self._told_of_missing.add(lacks)
        numbers = ", ".join(map(str, lacks))
        if len(lacks) == len(found):
            who = "no policy has a"
        else:
            who = f"policies {numbers} have no" if len(lacks) > 1 else f"policy {numbers} has no"
        name = self.config.population.objective
        say(f"{who} finite {name} yet: until all have it, none is copied or changed")

    def metrics(self, index: int, policy: PolicyRun) -> dict[str, float]:
        """Of one policy, by declared name without its prefix."""
        found = {f"hyperparameter/{k}": x for k, x in self.controller.values[index].items()}
        mine = [e for e in self.controller.events if e["policy"] == index]
        found["population/copies"] = float(sum(e["event"] == "copied" for e in mine))
        if policy.objective is not None:
            found["population/objective"] = policy.objective
        return found

    def write(self) -> None:
        """Writes all decisions to the run's folder."""
        self.folder.check()
        lines = "".join(json.dumps(event) + "\n" for event in self.controller.events)
        files.write_whole(self.folder.path / EVENTS, lines.encode())

    def save(self) -> dict[str, Any]:
        """For a checkpoint's meta."""
        return self.controller.save()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave; the policies load their options by themselves."""
        self.controller.load(saved)


def told(decision: Decision) -> str:
    """A sentence for the person."""
    changed = [
        f"{name} {decision.before[name]:.3g} -> {x:.3g}"
        for name, x in decision.after.items()
        if x != decision.before[name]
    ]
    own, theirs = decision.objectives[decision.policy], decision.objectives[decision.donor]
    who = f"policy {decision.policy} (objective {own:.4g})"
    if decision.donor != decision.policy:
        who += f" becomes a copy of policy {decision.donor} ({theirs:.4g})"
    return f"{who}: {', '.join(changed) or 'the same hyperparameters'}"
