"""The environment of evaluations where it is another than that of training."""

from collections.abc import Mapping
from typing import Annotated, Any, final

from pydantic import BaseModel, ConfigDict, Field, WrapValidator

from quintet.bounds import MOST_TASKS, MOST_THREADS
from quintet.envs.backends import BACKENDS
from quintet.envs.config import BackendName, EnvConfig, require_json, require_rule
from quintet.envs.given import EnvSource
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.success import key_of
from quintet.system.importing import Given, nameless

OWN_OPTIONS = ("kwargs", "backend", "success", "num_processes", "num_threads")
"""Options of the environment that an evaluation may have other values of than the training."""

_Name = Annotated[
    str | None, WrapValidator(lambda x, check: x if isinstance(x, Given) else check(x))
]


@final
class EvalEnvConfig(BaseModel):
    """The environment of a run's evaluations: what differs from that of the training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: _Name = Field(
        None,
        description="evaluate in another environment than env.id, named in the same ways; it must "
        "have the same spaces. Unless it has the name of env.id, it gets no env.kwargs and no "
        "env.reward_shaping, and a rule of env.success about info is dropped; all else is as in "
        "env.*",
    )
    backend: BackendName | None = Field(
        None,
        description="as env.backend, in evaluations; not given: env.backend, but auto where "
        "eval.env.id is another id",
    )
    kwargs: dict[str, Any] | None = Field(
        None, description="as env.kwargs, in evaluations, which then have these alone"
    )
    success: str | None = Field(None, description="as env.success, in evaluations")
    num_threads: int | None = Field(
        None, ge=1, le=MOST_THREADS, description="as env.num_threads, in evaluations"
    )
    num_processes: int | None = Field(
        None, ge=1, le=MOST_TASKS, description="as env.num_processes, in evaluations"
    )

    _kwargs_can_be_stored = require_json
    _success_is_a_rule = require_rule

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from those of the training, by name."""
        return {name: value for name, value in self if value is not None}


def of_another(config: EnvConfig, says: Mapping[str, Any]) -> EnvConfig:
    """The options of another environment than that of training, `config`.

    says: options that it determines, its id among them; it has the arguments of the training's only
        where it has its name.
    """
    same = says["id"] == config.id
    options = {
        "backend": config.backend if same and _makers_only(config.backend) else "auto",
        "kwargs": config.kwargs if same else {},
        "success": config.success if same or key_of(config.success) is None else None,
        "reward_shaping": config.reward_shaping if same else {},
    }
    return config.model_copy(update=options | dict(says))


def _makers_only(backend: str) -> bool:
    """Whether a backend takes no ids, so that it must be named where it does not claim a maker."""
    return backend != "auto" and BACKENDS.find(backend).ids is None


def evaluated_env(trained: ResolvedEnv, own: EvalEnvConfig) -> ResolvedEnv | None:
    """The environment of a run's evaluations, resolved; None: that of the training.  Raises
    ConfigError as `resolve_env` does.
    """
    given = own.given
    if not given:
        return None
    name = given.pop("id", trained.config.id)
    source: EnvSource | None
    if isinstance(name, Given):
        config, source = of_another(trained.config, {"id": str(name)}), name.function
    elif name == trained.config.id:
        config, source = trained.config, trained.source
    elif ":<" in name:
        raise nameless("eval.env.id", name, 'config={"eval.env.id": ...} of quintet.train')
    else:
        config, source = of_another(trained.config, {"id": name}), None
    return resolve_env(config.model_copy(update=given), source)


def without_effect(env: ResolvedEnv, own: Mapping[str, Any]) -> list[str]:
    """Which of an evaluation's own options do nothing in `env`, where they are in force.

    Imports the module of an import string.
    """
    given = env.source is not None
    idle = {
        "num_threads": env.backend.in_python,
        "num_processes": not env.can_be_spread,
        "backend": given and not _makers_only(own.get("backend", "auto")),
        "kwargs": given and not callable(env.source),
    }
    return [name for name in own if idle.get(name)]
