"""The population of a run: considers its policies as they learn, and carries out decisions."""

import json
import math
from collections.abc import Callable, Sequence
from typing import final

from quintet.errors import NonFiniteError
from quintet.observe.lineage import EVENTS
from quintet.options.population import SHAPING, first_values, rules, shaping_of, with_values
from quintet.options.run import RunConfig
from quintet.population.controller import Controller, finite
from quintet.population.pbt import Decision
from quintet.run.folder import RunFolder
from quintet.run.policy_run import PolicyRun, leader, objectives
from quintet.runtime.delivery import Batch
from quintet.runtime.seed_tree import Role, generator_seed
from quintet.system import files


@final
class Population:
    """Tunes the hyperparameters of the policies of one run, from `begin` on."""

    def __init__(self, config: RunConfig, folder: RunFolder):
        own = config.population
        total = config.total_env_steps
        self.config, self.folder = config, folder
        first_values(config)  # options may have no effect in these spaces
        self.controller = Controller(
            rules(config),
            own.start(total),
            own.period(total),
            generator_seed(config.seed, Role.POPULATION, 0),
        )
        self.policies: Sequence[PolicyRun] = ()
        self._late_env_steps = self.controller.start + self.controller.period
        self._told_of_missing = set[tuple[int, ...]]()

    def begin(self, policies: Sequence[PolicyRun]) -> None:
        """Gives the policies, which are new, their first options."""
        self.policies = policies
        for policy, values in zip(policies, self.controller.values, strict=True):
            policy.configure(with_values(policy.config.learner, values))
        self.shape()

    def shape(self) -> None:
        """Sets each policy's values of reward shaping, if these are tuned."""
        for policy, values in zip(self.policies, self.controller.values, strict=True):
            policy.reward_shaping = shaping_of(self.config.env, values)

    def warnings(self) -> list[str]:
        """Doubts about what is tuned, one sentence each."""
        shaping = [name for name in self.controller.values[0] if name.startswith(SHAPING)]
        if not (shaping and self.config.population.pbt and self.policies[0].plan.replay):
            return []
        return [
            f"{self.config.algo} also learns from a replay, whose rewards stay as they were when "
            f"the population changes {', '.join(shaping)}: updates mix rewards of old and new "
            "weights. A learner without a replay has only rewards of the new "
            "ones"
        ]

    def rests(self, batch: Batch) -> bool:
        """Whether `consider` will do nothing after a batch that its policy has not counted yet."""
        before = self.policies[batch.policy].counters.env_steps
        return not self.controller.due(batch.policy, before + batch.env_steps)

    def consider(self, batch: Batch, of_run: int, say: Callable[[str], None]) -> bool:
        """Considers the policy that has just learned, if it is time and its objective is new;
        returns whether it was replaced.

        of_run: env_steps of all policies.
        """
        index, controller = batch.policy, self.controller
        policy = self.policies[index]
        env_steps = policy.counters.env_steps
        last = of_run >= self.config.total_env_steps
        if not batch.env_steps or last or not controller.due(index, env_steps):
            return False
        found = objectives(self.policies)
        self._tell_of_missing(found, say)
        several_ranked = sum(x is not None for x in found) > 1
        measured = policy.measured_env_steps >= controller.considered[index]
        if found[index] is None or not several_ranked or not measured:
            return False
        decision = controller.consider(index, found, env_steps, of_run)
        copied = decision.donor != index
        options = with_values(policy.config.learner, decision.after)
        if copied:
            policy.become(self.policies[decision.donor], options)
        elif decision.after != decision.before:
            policy.configure(options)
        self.shape()
        self.write()
        if copied or decision.after != decision.before:
            say(sentence_of(decision))
        return copied

    def replace(self, index: int, fault: str, of_run: int, warn: Callable[[str], None]) -> None:
        """Makes a diverged policy a copy of a sound one: one with finite weights that has been
        ranked since it diverged itself.  Raises NonFiniteError if there is none, or policies are
        not copied.

        fault: sign of the divergence; advice for a run that ends may follow a semicolon.
        """
        if not self.config.population.pbt:
            raise NonFiniteError(f"policy {index} has diverged: {fault}")
        found = objectives(self.policies)
        found[index] = -math.inf
        sound = [
            k
            for k, other in enumerate(self.policies)
            if k != index
            and (found[k] is not None or self.controller.recovered(k))
            and other.fault(whole=True) is None
        ]
        if not sound:
            raise NonFiniteError(
                f"policy {index} has diverged, and no finite policy is left to replace it: {fault}"
            )
        reason = fault.split(";")[0]
        policy = self.policies[index]
        decision = self.controller.replace(
            index, found, sound, (policy.counters.env_steps, of_run), reason
        )
        options = with_values(policy.config.learner, decision.after)
        policy.become(self.policies[decision.donor], options)
        self.shape()
        self.write()
        warn(f"policy {index} has diverged: {reason}; {sentence_of(decision)}")

    def _tell_of_missing(self, found: Sequence[float | None], say: Callable[[str], None]) -> None:
        """Says once which policies are late with their objective."""
        lacks = tuple(
            k
            for k, policy in enumerate(self.policies)
            if found[k] is None
            and policy.counters.env_steps - policy.record.since >= self._late_env_steps
        )
        if not lacks or lacks in self._told_of_missing:
            return
        self._told_of_missing.add(lacks)
        own = self.config.population
        span = f" of {own.min_episodes} episodes" if own.of_episodes else ""
        say(
            f"policies {', '.join(map(str, lacks))} have no {own.objective}{span} yet; until they "
            "have, they are neither copied nor replaced"
        )

    def winner(self) -> str:
        """A sentence about which policy becomes the run's own at the end, and why."""
        name, best = self.config.population.objective, leader(self.policies).folder.index
        found = [finite(x) for x in objectives(self.policies)]
        choice = f"policy {best} is the run's policy"
        if found[best] is None:
            return f"{choice}: no policy has a finite {name}, so it is the first"
        shown = ["none" if x is None else f"{x:.4g}" for x in found]
        others = ", ".join(f"policy {k} has {x}" for k, x in enumerate(shown) if k != best)
        return f"{choice}: it has the highest {name}, {found[best]:.4g} ({others})"

    def metrics(self) -> list[dict[str, float]]:
        """Metrics of each policy, by declared name without prefix."""
        by_policy = []
        for index, objective in enumerate(objectives(self.policies)):
            found = {f"hyperparameter/{k}": x for k, x in self.controller.values[index].items()}
            mine = [e for e in self.controller.events if e["policy"] == index]
            copies = sum(e.get("donor", index) != index for e in mine)
            found["population/copies"] = float(copies)
            if objective is not None:
                found["population/objective"] = objective
            by_policy.append(found)
        return by_policy

    def write(self) -> None:
        """Writes all decisions to the run's folder."""
        self.folder.check()
        lines = "".join(json.dumps(event) + "\n" for event in self.controller.events)
        files.write_whole(self.folder.path / EVENTS, lines.encode())


def sentence_of(decision: Decision) -> str:
    """A sentence for the user."""
    changed = [
        f"{name} {decision.before[name]:.3g} -> {x:.3g}"
        for name, x in decision.after.items()
        if x != decision.before[name]
    ]

    def scored(policy: int) -> str:
        objective = finite(decision.objectives[policy])
        return "no objective" if objective is None else f"objective {objective:.4g}"

    who = f"policy {decision.policy} ({scored(decision.policy)})"
    if decision.donor != decision.policy:
        donor = decision.donor
        who += f" becomes a copy of policy {donor} ({scored(donor)})"
    return f"{who}: {', '.join(changed) or 'the same hyperparameters'}"
