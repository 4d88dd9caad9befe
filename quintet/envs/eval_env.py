"""The environment of evaluations, if it differs from training's."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, final

from pydantic import WrapValidator

from quintet.envs.backends import BACKENDS
from quintet.envs.config import BackendName, EnvConfig, Success
from quintet.envs.env_source import EnvSource
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.success import key_of
from quintet.options.bounds import EpisodeSteps, Tasks, Threads
from quintet.options.declaration import Kwargs, Needs, Options, option
from quintet.system.importing import Given, nameless, same_code

OWN_OPTIONS = (
    *("kwargs", "max_episode_steps", "backend", "success", "metrics"),
    *("num_processes", "num_threads"),
)
"""Options of the environment that may differ in an evaluation."""

_Name = Annotated[
    str | None, WrapValidator(lambda x, check: x if isinstance(x, Given) else check(x))
]


_EVALUATES = "eval.episodes > 0"


def _used(met: Callable[[Any, Any], bool]) -> Needs:
    """Condition of an option that the environment of evaluations can use."""
    return Needs("an environment that can use it, which {f.evaluated.config.id} can't", met)


@final
class EvalEnvConfig(Options):
    """The environment of a run's evaluations: its differences from training's."""

    id: _Name = option(None, needs=_EVALUATES, also="eval_env eval_env_id")
    """environment of evaluations, if not env.id, with the same spaces; another id gets no
    env.kwargs, env.reward_shaping or env.curriculum, and no env.success about info; everything else
    is as in env.*
    """
    backend: BackendName | None = option(
        None,
        needs=(
            _EVALUATES,
            _used(lambda o, f: f.evaluated.source is None or _makers_only(o.backend)),
        ),
    )
    """env.backend of evaluations; none: env.backend, or auto for another id"""
    kwargs: Kwargs | None = option(
        None,
        needs=(
            _EVALUATES,
            _used(lambda _, f: f.evaluated.source is None or callable(f.evaluated.source)),
        ),
    )
    """env.kwargs of evaluations, in place of env.kwargs"""
    max_episode_steps: EpisodeSteps | None = option(None, needs=_EVALUATES)
    """env.max_episode_steps of evaluations"""
    success: Success | None = option(None, needs=_EVALUATES)
    """env.success of evaluations"""
    num_threads: Threads | None = option(
        None, needs=(_EVALUATES, _used(lambda _, f: f.evaluated.backend.cost is not None))
    )
    """env.num_threads of evaluations"""
    num_processes: Tasks | None = option(
        None, needs=(_EVALUATES, _used(lambda _, f: f.evaluated.can_be_spread))
    )
    """env.num_processes of evaluations"""

    @property
    def overrides(self) -> dict[str, Any]:
        """The options that differ from training's, by name."""
        return {name: value for name, value in self if value is not None}


def of_another(config: EnvConfig, says: Mapping[str, Any]) -> EnvConfig:
    """The options of an environment other than training's, `config`.

    says: options that it determines, including its id; it keeps training's arguments only if it has
        the same name.
    """
    same = same_code(config.id, says["id"])
    options = {
        "backend": config.backend if same and _makers_only(config.backend) else "auto",
        "kwargs": config.kwargs if same else {},
        "success": config.success if same or key_of(config.success) is None else None,
        "reward_shaping": config.reward_shaping if same else {},
        "curriculum": config.curriculum if same else None,
    }
    return config.model_copy(update=options | dict(says))


def _makers_only(backend: str | None) -> bool:
    """Whether a backend takes no ids and has to be named for a maker that it does not claim."""
    return backend not in (None, "auto") and BACKENDS.find(backend).ids is None


def evaluated_env(trained: ResolvedEnv, own: EvalEnvConfig) -> ResolvedEnv | None:
    """The environment of a run's evaluations, resolved; None: training's."""
    overrides = own.overrides
    if not overrides:
        return None
    name = overrides.pop("id", trained.config.id)
    source: EnvSource | None
    if isinstance(name, Given):
        config, source = of_another(trained.config, {"id": str(name)}), name.function
    elif name == trained.config.id:
        config, source = trained.config, trained.source
    elif ":<" in name:
        raise nameless("eval.env.id", name, 'config={"eval.env.id": ...} of quintet.train')
    else:
        config, source = of_another(trained.config, {"id": name}), None
    return resolve_env(config.model_copy(update=overrides), source)
