"""What the learners' configurations share."""

from collections.abc import Mapping

from pydantic import BaseModel

from quintet.errors import IdleOptions


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
