"""A trained policy as a thing of its own: load it, act with it, save it.

Loading runs no code from the file: weights are safetensors, the rest is JSON.  Only a policy whose
configuration names a module of the user's own imports that module.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from quintet import checkpoint, spaces
from quintet.algorithms import registry
from quintet.envs.config import EnvConfig
from quintet.errors import CheckpointError, QuintetError
from quintet.models.build import ModelConfig
from quintet.protocols import Actor
from quintet.types import Publication, Spaces, State

POLICY = "policy"
"""Key of the publication's tensors in a checkpoint, and name of the folder of a finished run's
policy.
"""


def describe(
    algo: str, learner: Any, model: ModelConfig, env: EnvConfig, of: Spaces
) -> dict[str, Any]:
    """All but the weights that a policy needs, as JSON."""
    return {
        "algo": algo,
        "learner": learner.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "env": env.model_dump(mode="json"),
        "observation_space": spaces.to_json(of.observation),
        "action_space": spaces.to_json(of.action),
    }


@final
class Policy:
    """What a learner learned, ready to act.

    env: the environment's configuration that it was trained with.
    spaces: of one stream, as the environment interface gives them (after frame stacking).
    """

    def __init__(self, description: Mapping[str, Any], publication: Publication):
        algorithm = registry.find(description["algo"])
        self.description = dict(description)
        self.spaces = Spaces(
            spaces.from_json(description["observation_space"]),
            spaces.from_json(description["action_space"]),
        )
        self.env = EnvConfig(**description["env"])
        self.publication = publication
        self.actor: Actor = algorithm.make_actor(
            algorithm.config(**description["learner"]),
            ModelConfig(**description["model"]),
            self.spaces,
        )
        self.actor.load(publication)
        self.generator = torch.Generator()
        self.generator.seed()

    def act(
        self,
        obs: NDArray[Any] | Mapping[str, Any] | tuple[Any, ...] | int,
        state: State | None = None,
        deterministic: bool = True,
        *,
        is_first: bool | NDArray[np.bool_] | Sequence[bool] | None = None,
    ) -> tuple[Any, State]:
        """Action for one observation, or for a batch of them with a leading dimension.

        Args:
            state: what the last call gave; its leaves are ``[B, ...]``, with B = 1 for one
                observation.  None: every episode begins here.
            is_first: where an episode begins with this observation, ``[B]`` or one for all, so
                that a recurrent policy forgets the one before.  None: everywhere without a state,
                else nowhere.

        Returns:
            The action in the environment's units and form: an array, or tuples and dicts of
            them as the action space has, each batched as the observation was; and the next state.
            Discrete values, observed and acted, count from 0: where a space has a
            ``start``, take it off before and add it after.

        Raises:
            QuintetError: the observation does not fit the observation space, or `state` or
                `is_first` not the number of observations.
        """
        leaves = spaces.observation_leaves(self.spaces.observation)
        given = {name: np.asarray(value) for name, value in _flat(obs).items()}
        if set(given) != set(leaves):
            raise QuintetError(
                f"an observation with the leaves {sorted(leaves)} is required, got {sorted(given)}"
            )
        extra = {name: given[name].ndim - len(leaf.shape or ()) for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            shape = tuple(leaf.shape or ())
            fits = given[name].shape[extra[name] :] == shape if extra[name] in (0, 1) else False
            if not fits or extra[name] != next(iter(extra.values())):
                raise QuintetError(
                    f"observation leaf {name!r} of shape {shape}, or [B, ...] of it, is required, "
                    f"got shape {given[name].shape}; the policy's space is "
                    f"{self.spaces.observation}"
                )
        single = next(iter(extra.values())) == 0
        tensors = {
            name: torch.as_tensor(x[None] if single else x).to(spaces.leaf_spec(leaves[name]).dtype)
            for name, x in given.items()
        }
        count = next(iter(tensors.values())).shape[0]
        first = np.asarray((state is None) if is_first is None else is_first, dtype=np.bool_)
        sizes = {tuple(x.shape[:1]) for x in (state or {}).values()}
        if first.shape not in ((), (count,)) or sizes - {(count,)}:
            raise QuintetError(
                f"state and is_first of {count} observations are required, got is_first of shape "
                f"{first.shape} and a state of {sorted(sizes)}; give the state that the last call "
                "returned, or None at the start"
            )
        noise = None
        if not deterministic:
            noise = self.actor.draw_noise(1, count, self.generator)[0]
        out = self.actor.act(
            tensors,
            self.actor.initial_state(count) if state is None else state,
            torch.from_numpy(np.broadcast_to(first, (count,)).copy()),
            noise,
        )
        packed = out.env_action.numpy()
        action = spaces.unpack_action(self.spaces.action, packed[0] if single else packed)
        return action, out.state

    def save(self, folder: str | Path) -> Path:
        """Writes the policy as a self-contained folder, which `load` reads; returns its path."""
        folder = Path(folder)
        stranger = folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
        if stranger and not (folder / "manifest.json").exists():
            raise CheckpointError(
                f"a new or empty folder, or one with a saved policy, is required; {folder} holds "
                "something else, which saving would remove; give another folder"
            )
        meta = {"policy": self.description, "version": self.publication.version}
        return checkpoint.write(
            folder.parent, folder.name, {POLICY: dict(self.publication.tensors)}, meta
        )


def _flat(obs: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(obs, Mapping):
        items = {str(key): value for key, value in obs.items()}
    elif isinstance(obs, tuple):
        items = {str(index): value for index, value in enumerate(obs)}
    else:
        return {prefix or "obs": obs}
    flat: dict[str, Any] = {}
    for key, value in items.items():
        flat |= _flat(value, f"{prefix}/{key}" if prefix else key)
    return flat


def load(path: str | Path, which: str = "latest") -> Policy:
    """The policy in a run folder, a checkpoint or a saved policy folder.

    which: of a run folder: ``latest``, ``best``, or the name of one of its checkpoints.

    Raises:
        CheckpointError: there is no readable policy at the path.
    """
    found = _find(Path(path), which)
    try:
        return Policy(*_parts(found))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _no_policy(found, error) from error


def find_policy(path: Path) -> tuple[dict[str, Any], Publication]:
    """Description and newest publication of what `load` would load, without building a network.

    Raises:
        CheckpointError: there is no readable policy at the path.
    """
    found = _find(path, "latest")
    try:
        return _parts(found)
    except (KeyError, TypeError, ValueError) as error:
        raise _no_policy(found, error) from error


def _parts(found: checkpoint.Checkpoint) -> tuple[dict[str, Any], Publication]:
    publication = Publication(int(found.meta["version"]), found.tensors[POLICY])
    return dict(found.meta["policy"]), publication


def _no_policy(found: checkpoint.Checkpoint, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"a policy of this version of quintet is required, {found.path} holds none ({error}); "
        "give a run folder, a checkpoint or a saved policy"
    )


def _find(path: Path, which: str) -> checkpoint.Checkpoint:
    if (path / "manifest.json").exists():
        if which != "latest":
            raise CheckpointError(
                f"a run folder is required to choose {which!r} from, {path} is one checkpoint or "
                "policy; leave --checkpoint out"
            )
        found: checkpoint.Checkpoint | None = checkpoint.read(path)
    elif which == "best":
        if not (path / "best").exists():
            raise CheckpointError(
                f"a run with a best policy is required, {path / 'best'} does not exist; "
                "evaluation may be off (--eval.episodes 0); use --checkpoint latest"
            )
        found = checkpoint.read(path / "best")
    elif which == "latest":
        found = checkpoint.latest(path / "checkpoints", warn=lambda message: print(message))
    else:
        inside = path / "checkpoints" / which
        found = checkpoint.read(inside if inside.exists() else Path(which))
    if found is None:
        raise CheckpointError(
            f"a run folder, a checkpoint or a policy folder is required, {path} "
            + ("holds no checkpoint yet" if path.exists() else "does not exist")
        )
    return found
