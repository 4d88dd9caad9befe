"""What the learners' configurations share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from pydantic import AfterValidator, BaseModel

from quintet.errors import ConfigError, IdleOptions
from quintet.models.config import ModelConfig, picture_leaves
from quintet.models.leaves import normalized_leaves
from quintet.system.importing import is_code_name
from quintet.types import Spaces

if TYPE_CHECKING:
    from torch import Tensor

Knob = Union[float, "Tensor"]
"""A number that may change from step to step: a float for `Trained.step`, a scalar tensor for the
loss.
"""


def schedule_check(*words: str) -> AfterValidator:
    """Accepts these words and the names of functions of the user's own."""

    def check(value: str) -> str:
        if value in words or is_code_name(value):
            return value
        raise ValueError(f"must be {', '.join(words)} or an import string 'pkg.module:function'")

    return AfterValidator(check)


class Idle(NamedTuple):
    """An option that does nothing in some spaces.

    rest: the value that says so.
    required: what the option needs for an effect.
    """

    rest: Any
    required: str


def require_tunable(old: BaseModel, new: BaseModel, tunable: frozenset[str]) -> None:
    """Requires that only tunable options differ, and none between a number and 0 or none, which is
    another loss.

    Raises:
        ConfigError: names the options.
    """
    before, after = old.model_dump(), new.model_dump()
    changed = {name for name in before if before[name] != after[name]}
    fixed = changed - tunable
    fixed |= {name for name in changed & tunable if bool(before[name]) != bool(after[name])}
    if fixed:
        raise ConfigError(
            f"only numbers of {', '.join(sorted(tunable))} can change during a run, and not to or "
            f"from 0 or none; got another {', '.join(sorted(fixed))}; begin a new run"
        )


class Shared(NamedTuple):
    """What several learners share out evenly.

    option: that says how much of it there is.
    unit: so many stay together.
    """

    option: str
    given: int
    unit: int = 1


def refuse_idle(
    config: BaseModel, requirements: Mapping[str, tuple[bool, str]], prefix: str = ""
) -> None:
    """Refuses options that the others have left without effect; defaults are never told off.

    requirements: by option, whether it has an effect beside the others, and what it needs for that.
    prefix: of the options' names, for messages.

    Raises:
        IdleOptions: names all of them.
    """
    fields = type(config).model_fields
    idle = {
        name: f"{prefix}{name}={getattr(config, name)} has no effect without {what}"
        for name, (effective, what) in requirements.items()
        if not effective and getattr(config, name) != fields[name].default
    }
    if idle:
        raise IdleOptions(idle)


def refuse_aux_losses(algo: str, model: ModelConfig, names: tuple[str, ...]) -> None:
    """Refuses an encoder's auxiliary losses of these names, for learners that have no use for them.

    Raises:
        ConfigError: names them.
    """
    if names:
        raise ConfigError(
            f"{algo} requires an encoder without auxiliary losses, model.encoder={model.encoder} "
            f"gives {', '.join(names)}; return the features alone, or train with impala"
        )


def idle_normalizers(
    options: type[BaseModel],
    wanted: tuple[bool, bool],
    model: ModelConfig,
    spaces: Spaces,
    *,
    others: bool,
) -> dict[str, Idle]:
    """Of the options of normalising those without effect on a resolved network in these spaces.

    wanted: normalize_observations and normalize_pictures.
    others: whether there is a normaliser of something else.
    """
    floats = bool(normalized_leaves(spaces.observation))
    pictures = bool(picture_leaves(model, spaces))
    idle = {}
    if not floats:
        hint = "; normalize_pictures is for these" if pictures else ""
        idle["normalize_observations"] = Idle(
            False, f"floats in the observation, which is {spaces.observation}{hint}"
        )
    if not pictures:
        idle["normalize_pictures"] = Idle(
            False,
            f"a picture that model.encoder={model.encoder} is given as one, the observation is "
            f"{spaces.observation}",
        )
    normalizes = (wanted[0] and floats) or (wanted[1] and pictures)
    of_any = () if normalizes or others else ("normalizer_variance_epsilon", "update_normalizers")
    for name in of_any if normalizes else ("observation_clip", *of_any):
        required = "something in the observation that is normalised"
        idle[name] = Idle(options.model_fields[name].default, required)
    return idle


def size_faults(
    minibatch_steps: int, unroll_steps: int, num_streams: int, drop_last: bool
) -> list[str]:
    """What is wrong with the size of minibatches, a sentence."""
    batch = num_streams * unroll_steps
    words = f"the batch of {num_streams} streams x {unroll_steps} steps = {batch}"
    if minibatch_steps > batch:
        return [
            f"minibatch_steps must be at most {words}, got {minibatch_steps}; lower it or raise "
            "unroll_steps"
        ]
    if batch % minibatch_steps and not drop_last:
        return [
            f"minibatch_steps must divide {words}, got {minibatch_steps}; change one of them or "
            "set --drop-last true"
        ]
    return []


def chunk_faults(bptt_steps: int, unroll_steps: int, minibatch_steps: int | None) -> list[str]:
    """Which sizes are no multiple of a recurrent network's chunk, a sentence each."""
    sizes = {"unroll_steps": unroll_steps, "minibatch_steps": minibatch_steps}
    return [
        f"{name} must be a multiple of bptt_steps={bptt_steps} with a recurrent model.core, got "
        f"{size}; change one of them"
        for name, size in sizes.items()
        if size is not None and size % bptt_steps
    ]
