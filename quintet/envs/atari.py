"""Atari games: one set of options, the same preprocessing on three backends.

EnvPool, ALE's vector environment and single environments of ale-py (backend ``gymnasium``) take the
same `AtariConfig` from ``env.kwargs`` and know a game as ``Pong-v5`` or ``ALE/Pong-v5``. Each gives
grey 84x84 frames, the maximum of the last two frames of a step, in stacks with the oldest first,
filled with the first frame at an episode's start. In the games compared, frames are equal bit by
bit from the same start. The remaining differences:

- Frames without action at the start: 1 to `noop_max` in EnvPool and here, 0 to ``noop_max - 1`` in
  ALE's vector environment; with `use_fire_reset` the last one presses FIRE.
- After a lost life (`episodic_life`) the game continues.  EnvPool keeps the earlier frames in the
  stack; the others start a new stack. The time limit counts over the game, with ``gymnasium`` over
  the life.  ``ale`` continues with one step, the others with the frames of a start.
- The final observation lacks the last frames where a game ends (``gymnasium``) or its time is up
  (``ale``); EnvPool's has them.
- Random numbers: a seed gives another episode on another backend.
- EnvPool takes its other options (``img_height``, ``gray_scale``, ...) in ``env.kwargs`` too.
"""

import difflib
import importlib.util
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Literal, final

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, TimeLimit
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintet.envs.config import EnvConfig
from quintet.errors import ConfigError

FAMILY = "atari"
"""EnvPool's name for these games."""

FRAMES_PER_S = 60
"""Frames per second of the console."""

INSTALL_LINE = 'pip install "quintet-rl[atari]"'

_OLD_NAMES = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v[0-5]")


@final
class AtariConfig(BaseModel):
    """Preprocessing of Atari games, with EnvPool's names and defaults."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        strict=True,
        use_attribute_docstrings=True,
    )

    stack_num: int = Field(4, ge=1)
    """newest frames in an observation"""
    frame_skip: int = Field(4, ge=1)
    """frames for which an action is repeated"""
    noop_max: int = Field(30, ge=1)
    """largest number of frames without action at the start of an episode"""
    episodic_life: bool = False
    """a lost life ends the episode but not the game"""
    full_action_space: bool = False
    """use all 18 actions, not only the game's own"""
    repeat_action_probability: float = Field(0.0, ge=0, le=1)
    """probability that the last action is repeated (sticky actions); Gymnasium's own v5 games have
    0.25
    """
    use_fire_reset: bool = True
    """press FIRE at the start of an episode, in games that have it"""
    max_episode_steps: int = Field(27_000, ge=1)
    """steps after which an episode is truncated"""


def is_installed() -> bool:
    """Whether ale-py can be imported, found out without importing it."""
    return importlib.util.find_spec("ale_py") is not None


def list_roms() -> dict[str, str]:
    """Every game as ``{"ALE/Pong-v5": "pong"}``; empty if ale-py isn't installed."""
    if not is_installed():
        return {}
    import ale_py  # noqa: F401  (it registers its games)

    return {
        env_id: str(spec.kwargs["game"])
        for env_id, spec in gymnasium.registry.items()
        if env_id.startswith("ALE/") and env_id.endswith("-v5")
    }


def rom_of(env_id: str) -> str | None:
    """The game that ``"ALE/Pong-v5"`` or ``"Pong-v5"`` names; None if ale-py lacks it."""
    if not env_id.endswith("-v5"):  # importing ale-py takes a while
        return None
    return list_roms().get(f"ALE/{env_id.removeprefix('ALE/')}")


def game_of(env_id: str) -> str:
    """``Pong`` of ``PongNoFrameskip-v4`` and of every other name of the game in Gym, else ""."""
    found = _OLD_NAMES.fullmatch(env_id)
    return found[1] if found else ""


def is_ales(env_id: str) -> bool:
    """Whether ale-py registered the id, which it does when it is imported."""
    return str(gymnasium.registry[env_id].entry_point).startswith("ale_py")


def refuse_endless_resets(env: Any, mode: AutoresetMode, env_id: str) -> None:
    """Raises ConfigError for a vector environment of ale-py 0.12.0 whose streams are reset one by
    one: it waits for the observations of all of them, for ever.
    """
    if mode == AutoresetMode.NEXT_STEP or env.num_envs == 1:
        return
    if not type(env.unwrapped).__module__.startswith("ale_py"):
        return
    if metadata.version("ale-py") == "0.12.0":
        raise ConfigError(
            f"{env_id}: a vector environment of ale-py 0.12.0 must have autoreset_mode="
            f"AutoresetMode.NEXT_STEP, got {mode.name}: install ale-py 0.12.1 or later"
        )


def hint(env_id: str) -> str:
    """A hint for ids of games when ale-py isn't installed."""
    if not env_id.startswith("ALE/") or is_installed():
        return ""
    return f"Atari games of ale-py, not installed: {INSTALL_LINE}"


def read_config(env_id: str, kwargs: Mapping[str, Any]) -> AtariConfig:
    """The options in ``env.kwargs``; raises ConfigError, with the nearest names, for unknown
    options and for values out of range.
    """
    known = sorted(AtariConfig.model_fields)
    if unknown := sorted(set(kwargs) - set(known)):
        near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.5) for name in unknown}
        hints = "".join(f"{k!r}: did you mean {v[0]!r}? " for k, v in near.items() if v)
        raise ConfigError(
            f"{env_id}: env.kwargs of an Atari game must be among {known}; got {unknown}; "
            f"{hints}remove them, or use backend 'envpool', which has more"
        )
    try:
        return AtariConfig(**kwargs)
    except ValidationError as error:
        faults = "; ".join(f"{e['loc'][0]}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise ConfigError(f"{env_id}: env.kwargs can't be used: {faults}; correct them") from error


def require_one_stack(config: EnvConfig, frames: int) -> None:
    """Refuses ``env.frame_stack`` if the backend already stacks frames."""
    if config.frame_stack > 1 and frames > 1:
        raise ConfigError(
            f"{config.id} already stacks {frames} frames; leave frame_stack at 1 and set "
            f"kwargs.stack_num, or set kwargs.stack_num to 1"
        )


def make_single(
    rom: str, config: AtariConfig, render_mode: Literal["rgb_array"] | None = None
) -> gymnasium.Env[Any, Any]:
    """One game of ale-py (`rom`: ``"ms_pacman"``), its frames not yet stacked."""
    from ale_py.env import AtariEnv

    env: gymnasium.Env[Any, Any] = AtariEnv(
        game=rom,
        frameskip=1,
        repeat_action_probability=config.repeat_action_probability,
        full_action_space=config.full_action_space,
        max_num_frames_per_episode=None,
        render_mode=render_mode,
    )
    # AtariEnv says 30, however many frames are skipped.
    env.metadata = {**env.metadata, "render_fps": FRAMES_PER_S / config.frame_skip}
    env = AtariPreprocessing(
        AtariStart(env, config),
        noop_max=0,
        frame_skip=config.frame_skip,
        terminal_on_life_loss=config.episodic_life,
    )
    return TimeLimit(env, config.max_episode_steps)


@final
class AtariStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins an episode as EnvPool does: 1 to `noop_max` frames without action, the last of which
    presses FIRE where `use_fire_reset` is set and the game has it. With `episodic_life` the same
    game continues after a lost life.  Single frames are counted, so wrappers that skip frames go
    around it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: AtariConfig) -> None:
        super().__init__(env)
        meanings: list[str] = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        fire = config.use_fire_reset and "FIRE" in meanings
        self._fire = meanings.index("FIRE") if fire else None
        self._config, self._lives, self._goes_on = config, 0, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        life_lost = info["lives"] < self._lives
        self._lives = info["lives"]
        self._goes_on = self._config.episodic_life and life_lost and not terminated
        return obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None or not self._goes_on:
            self.env.reset(seed=seed, options=options)
        frames = int(self.env.unwrapped.np_random.integers(1, self._config.noop_max + 1))
        actions = [0] * frames
        if self._fire is not None:
            actions[-1] = self._fire
        for action in actions:
            obs, _, terminated, _, info = self.env.step(action)
            if terminated:
                obs, info = self.env.reset()
        self._lives = info["lives"]
        self._goes_on = False
        return obs, info
