"""The population of a run: considers its policies as they learn, and does what is decided."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.config.run import RunConfig
from quintet.errors import ConfigError
from quintet.observe.lineage import EVENTS
from quintet.population.controller import Controller
from quintet.population.pbt import Bounds, Decision, Rules
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
        names = registry.find(config.algo).tuned_options(config.learner, own.tuned)
        first = {name: float(getattr(config.learner, name)) for name in names}
        rules = Rules(own, first, bounds_of(type(config.learner), names))
        self.config, self.folder = config, folder
        self.controller = Controller(
            rules,
            share // 10 if start is None else start,
            max(1, share // 20) if period is None else period,
            generator_seed(config.seed, Role.POPULATION, 0),
        )
        self.options = [with_values(config.learner, each) for each in self.controller.values]
        self.copies = [0] * own.size

    def consider(
        self, batch: Batch, policies: Sequence[PolicyRun], of_run: int, say: Callable[[str], None]
    ) -> bool:
        """Considers the policy that has just learned, if it is time; whether it has the weights of
        another one now.

        of_run: env_steps of all policies.
        """
        index, controller = batch.policy, self.controller
        policy = policies[index]
        env_steps = policy.counters.env_steps
        if not batch.env_steps or not controller.due(index, env_steps):
            return False
        found = [each.objective for each in policies]
        objectives = [x for x in found if x is not None and math.isfinite(x)]
        if len(objectives) < len(policies):
            return False
        decision = controller.consider(index, objectives, env_steps, of_run)
        copied = decision.donor != index
        options = with_values(policy.config.learner, decision.after)
        if copied:
            policy.become(policies[decision.donor], options)
            self.copies[index] += 1
        elif decision.after != decision.before:
            policy.configure(options)
        self.write()
        if copied or decision.after != decision.before:
            say(told(decision))
        return copied

    def metrics(self, index: int, policy: PolicyRun) -> dict[str, float]:
        """Of one policy, by declared name without its prefix."""
        found = {f"hyperparameter/{k}": x for k, x in self.controller.values[index].items()}
        found["population/copies"] = float(self.copies[index])
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
        return self.controller.save() | {"copies": self.copies}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave; the policies load their options by themselves."""
        self.controller.load(saved)
        self.copies = list(saved["copies"])


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


def with_values(options: BaseModel, values: Mapping[str, float]) -> BaseModel:
    """The options with these values; raises ConfigError where one of them is out of bounds."""
    try:
        return type(options).model_validate(options.model_dump() | dict(values))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors()]
        raise ConfigError(f"a population can't have these values: {'; '.join(faults)}") from error


def bounds_of(options: type[BaseModel], names: Sequence[str]) -> dict[str, Bounds]:
    """What the options' fields allow."""
    found = {}
    for name in names:
        low, high = -math.inf, math.inf
        for limit in options.model_fields[name].metadata:
            match limit:
                case Ge(ge=x):
                    low = float(x)  # type: ignore[arg-type]
                case Gt(gt=x):
                    low = math.nextafter(float(x), math.inf)  # type: ignore[arg-type]
                case Le(le=x):
                    high = float(x)  # type: ignore[arg-type]
                case Lt(lt=x):
                    high = math.nextafter(float(x), -math.inf)  # type: ignore[arg-type]
        found[name] = Bounds(low, high)
    return found
