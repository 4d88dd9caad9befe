"""What a stranger may write into a run's folder so that quintet runs code of theirs.

Each attack leaves a mark where it succeeds; `MODULE` is the name of a module that does so when it
is imported, by whatever it is asked for afterwards.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import yaml

MODULE = "strangers_module"
IMPORTING = "ImportsWhatItIsTold-v0"
"""Registered as a package's environment is; like some of these it imports what arguments say."""

_OF_LAYERS = ("policy_hidden", "value_hidden", "activation")

_CODE = """
from pathlib import Path

Path({mark!r}).touch()


class Encoder:
    class Inner:
        pass


def make(**kwargs):
    raise RuntimeError("never made")
"""


@dataclass(frozen=True)
class Attack:
    """What the folder says; ``MARK`` and ``HERE`` in its texts stand for the mark and the folder.

    encoder: "": the run's own.
    """

    env: str = "CartPole-v1"
    kwargs: dict[str, Any] = field(default_factory=dict)
    encoder: str = ""
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def of_encoder(self) -> bool:
        return self.encoder != ""


ATTACKS = {
    "function": Attack("os:system", {"command": "touch MARK"}),
    "builtin": Attack("builtins:open", {"file": "MARK", "mode": "w"}),
    "class": Attack("logging:FileHandler", {"filename": "MARK"}),
    "process": Attack("subprocess:run", {"args": "touch MARK", "shell": True}),
    "file": Attack("runpy:run_path", {"path_name": f"HERE/{MODULE}.py"}),
    "module": Attack(f"{MODULE}:make"),
    "module that lacks it": Attack(f"{MODULE}:nothing"),
    "nested attribute": Attack(f"{MODULE}:make.__globals__"),
    "Gymnasium's module:Id": Attack(f"{MODULE}:Stranger-v0"),
    "our own importer": Attack(
        "quintet.system.importing:import_module", {"module_name": MODULE, "name": ""}
    ),
    "Gymnasium's maker": Attack("gymnasium:make", {"id": f"{MODULE}:Stranger-v0"}),
    "argument": Attack(IMPORTING, {"hook": f"{MODULE}:make"}),
    "argument with a dot": Attack(IMPORTING, {"hook": f"{MODULE}.make"}),
    "argument within": Attack(IMPORTING, {"options": [{"behaviour": {"class": f"{MODULE}.make"}}]}),
    "argument's name": Attack(IMPORTING, {"options": {f"{MODULE}.make": 1}}),
    "encoder": Attack(encoder=f"{MODULE}:Encoder"),
    "encoder that lacks it": Attack(encoder=f"{MODULE}:nothing"),
    "nested encoder": Attack(encoder=f"{MODULE}:Encoder.Inner", encoder_kwargs={"x": 1}),
    "encoder in a package": Attack(encoder=f"{MODULE}.part:Encoder"),
}  # fmt: skip


class ImportsWhatItIsTold(gymnasium.Env):
    """As highway-env does: the classes that it is made of come by name."""

    def __init__(self, hook: str | None = None, options: Any = None):
        if hook is not None or options is not None:
            __import__(MODULE)
        raise RuntimeError("never made")


def register() -> None:
    if IMPORTING not in gymnasium.registry:
        gymnasium.register(IMPORTING, entry_point=ImportsWhatItIsTold)


def plant(folder: Path, mark: Path) -> None:
    """Puts the stranger's module into a folder."""
    (folder / f"{MODULE}.py").write_text(_CODE.format(mark=str(mark)))


def forget() -> None:
    """Has a further import of the stranger's module run it again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
        del sys.modules[name]


def strangers_copy(run: Path, place: Path, attack: Attack, mark: Path) -> Path:
    """A copy of a run whose files all say what the attack does, with sums that fit; signatures
    stay where there were any.
    """
    shutil.copytree(run, place)
    plant(place, mark)
    told = json.dumps([attack.kwargs, attack.encoder_kwargs])
    kwargs, encoder_kwargs = json.loads(told.replace("MARK", str(mark)).replace("HERE", str(place)))

    def say(env: dict[str, Any], model: dict[str, Any], prefix: tuple[str, str]) -> None:
        env |= {f"{prefix[0]}id": attack.env, f"{prefix[0]}kwargs": kwargs}
        if attack.encoder:
            model[f"{prefix[1]}encoder"] = attack.encoder
            model[f"{prefix[1]}encoder_kwargs"] = encoder_kwargs
            # Options that such an encoder has no use for would be refused before it is imported.
            model |= {f"{prefix[1]}{name}": None for name in _OF_LAYERS}

    def describe(meta: dict[str, Any]) -> None:
        say(meta["policy"]["env"], meta["policy"]["model"], ("", ""))

    change_options(place, lambda options: say(options, options, ("env.", "model.")))
    for folder in [*(place / "checkpoints").iterdir(), place / "policy", place / "best"]:
        change_meta(folder, describe)
    return place


def change_options(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes what ``config.yaml`` and the checkpoints say of a run's options, and mends the sums;
    signatures stay where there were any.
    """
    file = run / "config.yaml"
    options = yaml.safe_load(file.read_text())
    change(options)
    file.write_text(yaml.safe_dump(options))
    for folder in (run / "checkpoints").iterdir():
        change_meta(folder, lambda meta: change(meta["config"]))


def change_meta(folder: Path, change: Any) -> None:
    """Changes a checkpoint's ``meta.json`` and mends its sums."""
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    data = json.dumps(meta).encode()
    (folder / "meta.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    sums = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["meta.json"] = sums
    (folder / "manifest.json").write_text(json.dumps(manifest))
