"""Trained policies: load one, act with it, save it.

Loading runs no code from files: weights are safetensors, everything else is JSON.  Import strings
in them are imported and called only under the rules of `quintet.system.trust`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet import spaces
from quintet.algorithms import registry
from quintet.algorithms.parts.acting import as_trained
from quintet.algorithms.parts.setup import Compute, Recorded
from quintet.checkpoints import checkpoint
from quintet.checkpoints.spaces_as_json import as_json, from_json
from quintet.envs.config import EnvConfig
from quintet.envs.gymnasium import Leaf, leaf_of
from quintet.envs.masks import possible
from quintet.envs.policy_input import flat_observation, leaf_array, with_mask
from quintet.errors import CheckpointError, ConfigError, QuintetError
from quintet.models.build import weights_bytes
from quintet.models.config import ModelConfig, critic_leaves, uses_pictures
from quintet.policies.folders import (
    ENVIRONMENTS,
    FIRST,
    POLICY,
    find_policy_folder,
    first_state,
    no_policy,
    policy_parts,
)
from quintet.protocols import Actor
from quintet.runtime.gpu_actor import GpuActor, SharedGpuActor
from quintet.runtime.torch_settings import OwnTorch
from quintet.system import files, memory
from quintet.system.cpus import usable_cores
from quintet.system.importing import same_code, script_of, way_to_script
from quintet.system.places import run_path
from quintet.system.trust import UNKNOWN, Origin, calls_of
from quintet.system.user_code import known_arguments, no_exit
from quintet.types import ACTION_MASK, Obs, Publication, Spaces, State

if TYPE_CHECKING:
    from quintet.export.interface import Format
    from quintet.export.steps import Observations
    from quintet.export.verification import Verified
    from quintet.models.custom import Maker

LEAST_BOUND = 1_000
"""Least step limit of evaluated episodes without a known time limit."""

_EXPORT = registry.Late("quintet.export.make:export")  # makes exports, in a room above policies

_UNFIT = (
    *(LookupError, TypeError, AttributeError, ValueError),
    *(RuntimeError, ArithmeticError, AssertionError),
)
"""Errors of an invalid description, including those of Gymnasium's checks."""


def describe(
    algo: str, learner: Any, model: ModelConfig, env: EnvConfig, of: Spaces
) -> dict[str, Any]:
    """Everything that a policy needs except its weights, as JSON; also the name of the script that
    defines its environment or its encoder, if that is in no module.
    """
    script = script_of(env.id) or script_of(model.encoder)
    of_user = ":" in (env.curriculum or {}).get("kind", "")
    return ({} if script is None else {"script": script}) | {
        "algo": algo,
        "learner": learner.model_dump(mode="json"),
        # An encoder that was given as a function stays one; JSON keeps only its name.
        "model": model.model_dump(mode="json") | {"encoder": model.encoder},
        # Evaluations play the end of quintet's own kinds, and no code of the user's.
        "env": env.model_dump(mode="json") | ({"curriculum": None} if of_user else {}),
        **as_json(of),
        "own": as_json(of.own or of),
    }


def _spaces_from_json(data: Mapping[str, Any]) -> Spaces:
    """The spaces of a description; raises ValueError where the environment's own spaces have other
    shapes."""
    own = _spaces_from_json(data["own"]) if "own" in data else None
    of = Spaces(from_json(data["observation_space"]), from_json(data["action_space"]), own)
    if own is not None and _form(own) != _form(of):
        raise ValueError("the given spaces must have the shapes of the stored spaces")
    return of


def _form(of: Spaces) -> tuple[Any, ...]:
    """Shapes that spaces must share with the spaces stored for them."""
    shapes = {path: leaf.shape for path, leaf in spaces.observation_leaves(of.observation).items()}
    return shapes, spaces.action_shape(of.action), spaces.mask_sizes(of.action)


@final
class Policy:
    """A trained policy, ready to act.

    env: the configuration of its training environment.
    spaces: spaces of one stream in the environment interface (after frame stacking), and the
        environment's own spaces.
    origin: origin of the description, which decides whether its code may be imported.
    threads: threads of PyTorch's CPU kernels in its computations; None: the process's setting.
    own_state: what training's first environment offered, see `quintet.envs.own_state`, with which
        evaluations begin.
    leaves: the leaves of the environment's own observations by which it acts, in the dtypes in
        which they are stored.
    critic_leaves: paths of the leaves that only its value function reads.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        publication: Publication,
        origin: Origin = UNKNOWN,
        threads: int | None = None,
        own_state: bytes = b"",
    ):
        """Raises UntrustedError if the encoder is code that may not run."""
        algorithm = registry.find(description["algo"])
        self.origin, self.own_state = origin, own_state
        self.description = dict(description)
        self.spaces = _spaces_from_json(description)
        self._own = self.spaces.own or self.spaces
        self.env = EnvConfig(**description["env"])
        self.publication = as_trained(publication)
        model = ModelConfig(**description["model"])
        own = {f"env.{name}": x for name, x in self.env}
        self._calls = calls_of(own | {f"model.{name}": x for name, x in model})
        origin.check(next(call for call in self._calls if call.option == "model.encoder"))
        memory.require(weights_bytes(model, self.spaces), "its network", "use another policy")
        known = description.get("threads") or (None if uses_pictures(model, self.spaces) else 1)
        self.threads = threads or (known and min(known, usable_cores()))
        # Not compiled, so that the first act does not wait for a compiler.
        self._make_actor = partial(
            algorithm.make_actor, algorithm.config(**description["learner"]), model, self.spaces
        )
        stored = spaces.observation_leaves(self.spaces.observation)
        self._every = [
            replace(leaf_of(path, *found), dtype=spaces.leaf_dtype(stored[path]))
            for path, found in spaces.leaf_keys(self._own.observation).items()
        ]
        self.critic_leaves = critic_leaves(model, self.spaces)
        self._value_remembers = model.core != "none"
        self.leaves: list[Leaf] = [x for x in self._every if x.path not in self.critic_leaves]
        self.generator = torch.Generator("cpu")
        self.generator.seed()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the parts of the policy; its networks are built again."""
        given = self.description, self.publication, self.origin, self.threads, self.own_state
        return Policy, given

    @property
    def acting_spaces(self) -> Spaces:
        """Spaces without the leaves that only the value function reads."""
        return spaces.without_leaves(self.spaces, self.critic_leaves)

    def act(
        self,
        obs: NDArray[Any] | Mapping[str, Any] | tuple[Any, ...] | int | str,
        state: State | None = None,
        deterministic: bool = True,
        *,
        is_first: bool | NDArray[np.bool_] | Sequence[bool] | None = None,
    ) -> tuple[Any, State]:
        """The action for one observation, or for a batch with a leading dimension.

        Args:
            obs: observation as the environment returns it; a text as a string or as its bytes.
            state: the state that the last call returned; its leaves are ``[B, ...]``, with B = 1
                for one observation.  None: every episode begins with this observation.
            is_first: whether an episode begins with this observation, ``[B]`` or one value for all;
                a recurrent policy then resets its state.  None: True without a state, else False.

        Returns:
            The action in the environment's units and form: an array, or tuples and dicts of arrays
            like the action space, batched like the observation; and the next state.

        Raises:
            QuintetError: an observation is not in the observation space (wrong shape, numbers that
                its dtype can't hold, not finite, no allowed action), or `state` or `is_first` do
                not fit the policy and the number of observations.
        """
        tensors, single = self._observe(obs)
        actor = self.actor
        with OwnTorch(self.threads):
            first = self._is_first(is_first, state, tensors)
            noise = None if deterministic else actor.draw_noise(1, len(first), self.generator)[0]
            out = actor.act(tensors, self._state(state, len(first)), first, noise)
        packed = out.env_action.numpy()
        action = spaces.unpack_action(self._own.action, packed[0] if single else packed)
        return action, out.state

    def value(
        self,
        obs: NDArray[Any] | Mapping[str, Any] | tuple[Any, ...] | int | str,
        state: State | None = None,
        *,
        is_first: bool | NDArray[np.bool_] | Sequence[bool] | None = None,
    ) -> NDArray[np.float32]:
        """The value of one observation ``[]``, or of a batch ``[B]``: the expected discounted sum
        of the following rewards if the policy samples its actions.

        Rewards are as the learner saw them: after `env.reward_clip`, and divided by the reward
        normaliser's standard deviation if there is one (``reward_normalizer``).

        Args:
            obs, state, is_first: as for `act`; `state` is the state before this observation.

        Raises:
            QuintetError: as for `act`, and if the learner saves no value function of observations
                alone.
        """
        if "value" not in self._valuer.record_specs:
            raise QuintetError(
                "value must have a policy with a state-value function, got one of "
                f"{self.description['algo']}, which has none: use act"
            )
        tensors, single = self._observe(obs, self._every)
        with OwnTorch(self.threads):
            first = self._is_first(is_first, state, tensors)
            out = self._valuer.act(tensors, self._state(state, first.shape[0]), first, None)
        value: NDArray[np.float32] = out.record["value"].numpy()
        return value[0] if single else value

    def predict(
        self,
        observation: NDArray[Any] | Mapping[str, Any] | tuple[Any, ...] | int | str,
        state: State | None = None,
        episode_start: bool | NDArray[np.bool_] | Sequence[bool] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[Any, State]:
        """`act` with the arguments and defaults of Stable-Baselines3: samples by default.

        action_masks: what the environment's method ``action_masks()`` returns, if the observation
            has no leaf ``action_mask``.
        """
        if action_masks is not None:
            observation = {**flat_observation(observation), ACTION_MASK: action_masks}
        return self.act(observation, state, deterministic, is_first=episode_start)

    @cached_property
    def actor(self) -> Actor:
        """The actor of `act`, which is built when it is first used."""
        return self.recorder()

    @cached_property
    def player(self) -> Actor:
        """The actor for evaluations, which records the entropy of its distribution."""
        return self.recorder("entropy")

    def player_on(self, device: str) -> Actor:
        """`player`, computing on `device`; rows, actions and state are on the CPU.  A policy with
        private state, as of correlated noise, computes on the CPU.
        """
        private = self.player.initial_state(1).keys() - self.player.state_specs
        if device == "cpu" or private:
            return self.player
        actor = self.recorder("entropy", act_on=device)
        return GpuActor(SharedGpuActor(actor, torch.device(device)))

    @cached_property
    def _valuer(self) -> Actor:
        return self.recorder("value")

    def recorder(self, *records: Recorded, act_on: str = "cpu") -> Actor:
        """A new actor with the policy's weights that records these, where its learner has them."""
        try:
            with OwnTorch():
                actor: Actor = self._make_actor(Compute(act_on=act_on, records=records))
                actor.load(self.publication)
        except RuntimeError as error:
            raise misfit(self.description["model"]["encoder"], error) from error
        return actor

    def _is_first(self, given: Any, state: State | None, obs: Obs) -> Tensor:
        """Starts of episodes ``[B]``, as passed; by default all true without a state."""
        count = next(iter(obs.values())).shape[0]
        if given is None:
            return torch.full((count,), state is None)
        first = np.asarray(given)
        if first.shape not in ((), (count,)) or first.dtype.kind not in "biu":
            raise QuintetError(
                f"is_first of {count} observations must be one truth value or one for each, "
                f"got shape {first.shape}, dtype {first.dtype}"
            )
        return torch.from_numpy(np.broadcast_to(first.astype(np.bool_), (count,)).copy())

    def _observe(self, obs: Any, leaves: Sequence[Leaf] = ()) -> tuple[Obs, bool]:
        """The leaves as tensors ``[B, ...]``, and whether a single observation was passed.

        leaves: leaves to read; none: those by which it acts; leaves of its critic may be there.
        """
        hidden = self.critic_leaves
        if hidden and not leaves and self._value_remembers and hidden <= {*flat_observation(obs)}:
            leaves = self._every
        leaves, optional = leaves or self.leaves, () if leaves else hidden
        leaf = leaves[0]
        if leaf.is_plain and type(obs) is np.ndarray and obs.dtype == leaf.dtype:  # the usual case
            single = obs.shape == leaf.shape
            fits = single or (obs.shape[1:] == leaf.shape and len(obs) > 0)
            if fits and (leaf.dtype.kind != "f" or np.isfinite(obs).all()):
                own = (obs[None] if single else obs).copy()
                return {leaf.path: torch.from_numpy(own)}, single
        flat = flat_observation(obs)
        if any(leaf.path == ACTION_MASK for leaf in leaves):
            flat = with_mask(flat)
        given = {k: x for k, x in flat.items() if k not in optional}
        required = sorted(leaf.path for leaf in leaves)
        if sorted(given) != required:
            how = ""
            if any(path.split("/")[-1] == "count" for path in required):
                how = "; give sequences as quintet.envs.fixed_shape.FixedShape makes them"
            raise QuintetError(
                f"an observation must have the leaves {required}, got {sorted(given)}{how}"
            )
        arrays = {leaf.path: leaf_array(given[leaf.path], leaf) for leaf in leaves}
        extra = set[int]()  # axes before those of a leaf
        for leaf in leaves:
            x = arrays[leaf.path]
            extra.add(more := x.ndim - len(leaf.shape))
            if more not in (0, 1) or x.shape[more:] != leaf.shape:
                raise QuintetError(
                    f"observation leaf {leaf.path!r} must be of shape {leaf.shape}, or [B, "
                    f"...] of it, got shape {x.shape}; the policy's space is "
                    f"{self._own.observation}"
                )
            if leaf.path == ACTION_MASK and not possible(x, self.spaces.action).all():
                raise QuintetError(
                    f"{ACTION_MASK} must allow at least one action in each choice, of sizes "
                    f"{spaces.mask_sizes(self.spaces.action)}, got {x}; where an episode has "
                    "ended, allow all"
                )
        if len(extra) > 1:
            raise QuintetError(
                "the leaves of an observation must all be of one observation, or all be batches "
                f"[B, ...], got shapes { {path: x.shape for path, x in arrays.items()} }"
            )
        single = 0 in extra
        sizes = {path: 1 if single else len(x) for path, x in arrays.items()}
        if len({*sizes.values()}) > 1 or 0 in sizes.values():
            raise QuintetError(
                "observations must be a single one, or a batch with the same number, at least 1, "
                f"in every leaf, got {sizes}"
            )
        return {
            path: torch.from_numpy(x[None] if single else x) for path, x in arrays.items()
        }, single

    def _state(self, given: State | None, count: int) -> State:
        """The state `given`, checked against an initial state; the initial state if none was
        given."""
        initial = self.actor.initial_state(count)
        if given is None:
            return initial

        def refuse(got: str) -> NoReturn:
            wanted = {name: f"{x.dtype} {tuple(x.shape)}" for name, x in initial.items()}
            raise QuintetError(
                f"a state of {count} observations must have the leaves {wanted}, got {got}; "
                "give the state that the last call returned, or None at the start"
            )

        if not isinstance(given, Mapping) or set(given) != set(initial):
            refuse(str(sorted(given)) if isinstance(given, Mapping) else type(given).__name__)
        state: State = {}
        for name, begin in initial.items():
            try:
                x = state[name] = torch.as_tensor(given[name])
            except (TypeError, ValueError, RuntimeError) as error:
                refuse(f"{name}: {error}")
            if (x.shape, x.dtype) != (begin.shape, begin.dtype):
                refuse(f"{name}: {x.dtype} {tuple(x.shape)}")
        return state

    def save(self, folder: str | Path) -> Path:
        """Writes the policy as a self-contained folder, which `load` reads; returns its path.

        A policy that names users' code is signed if it may run that code.
        """
        folder, other = files.given_path(folder), ""
        if any(folder.glob("learner*.safetensors")):  # learner_0 of several policies
            other = "is a checkpoint of a run, which could then not resume"
        elif not (folder / "manifest.json").exists() and (
            folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
        ):
            other = "holds something else, which saving would remove"
        if other:
            raise CheckpointError(
                "folder must be new or empty, or have a saved policy, got "
                f"{folder}: it {other}; give another folder"
            )
        try:
            files.make_folder(folder.parent)
        except OSError as fault:
            raise CheckpointError(
                f"can't write policy {folder.name} to {folder.parent}: {files.reason(fault)}; "
                f"{files.advice(fault)}, or give another folder"
            ) from fault
        return checkpoint.write(folder.parent, folder.name, *self.contents(), signed=self.signed)

    def export(
        self, folder: str | Path, format: "Format" = "onnx", *, steps: int = 10_000,
        observations: "Observations" = "environment", env: Any = None, tolerance: float = 1e-5,
    ) -> "Verified":  # fmt: skip
        """Writes the policy for use without quintet; see `quintet.export.make.export`."""
        made: Verified = _EXPORT(self, folder, format, steps, observations, env, tolerance)
        return made

    def contents(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """Tensors and meta of the policy's folder."""
        meta = {"policy": self.description, "version": self.publication.version}
        tensors = {POLICY: dict(self.publication.tensors)}
        if self.own_state:
            state = torch.from_numpy(np.frombuffer(self.own_state, np.uint8).copy())
            tensors[ENVIRONMENTS] = {FIRST: state}
        return tensors, meta

    @property
    def signed(self) -> bool:
        """Whether its folder gets this user's signature: if it names code and may run it."""
        return self.origin.fault is None and not all(call.harmless for call in self._calls)


def misfit(encoder: str, error: Exception) -> CheckpointError:
    """The error for stored weights that do not fit the network; `error` has the details."""
    made = f"the class that model.encoder={encoder} names" if ":" in encoder else "quintet"
    return CheckpointError(
        f"the network must be that of the training, got another one from {made}: "
        f"{' '.join(str(error).split())}; use the version with which it was trained, or train again"
    )


@no_exit()
@known_arguments({"env": "it to quintet.evaluate", "device": "it to quintet.evaluate"})
def load(
    path: str | Path,
    which: str = "latest",
    *,
    trust: bool = False,
    encoder: "str | Maker | None" = None,
    threads: int | None = None,
) -> Policy:
    """The policy in a run folder, a checkpoint or a saved policy folder.

    Args:
        which: for a run folder: ``latest``, ``best``, or the name of a checkpoint.
        trust: whether code that the folder names may be imported and called; in `evaluate` also the
            environment's.  False: only if this user made the folder on this machine.
        encoder: the class of the policy's encoder, the function that makes it, or its import
            string, which is then imported whatever the folder's origin.  A function without an
            import string (a lambda) must be given.
        threads: threads of PyTorch's CPU kernels while the policy computes; the process's setting
            is restored after each call.  None: the run's number, at most the number of cores.

    Raises:
        CheckpointError: there is no readable policy at the path, or its weights are not finite.
        UntrustedError: its encoder is code that may not run.
        ConfigError: `encoder` is not the policy's.
    """
    if threads is not None and (isinstance(threads, bool) or threads not in range(1, 1025)):
        raise ConfigError(f"threads must be a whole number from 1 to 1024, got {threads!r}")
    if not isinstance(path, (str, Path)):
        raise CheckpointError(f"path must be that of a run or a policy, got {path!r}")
    found = find_policy_folder(run_path(path), which)
    try:
        description, publication, _ = policy_parts(found)
        from quintet.models.custom import encoder_name

        named = description["model"]["encoder"]
        given = encoder if encoder is None or isinstance(encoder, str) else encoder_name(encoder)
        if given is None:
            lost = {"model.encoder": named, "env": description["env"]["id"]}
            way = way_to_script(lost, description.get("script"), found.path)
            if named and way.startswith(named):  # the environment alone is not needed here
                raise ConfigError(way)
        elif not same_code(named, given):
            raise ConfigError(
                f"model.encoder must be the one that the policy in {found.path} was trained with, "
                f"{named!r}; got {given!r}; leave it out, or correct it"
            )
        else:
            description = {**description, "model": {**description["model"], "encoder": given}}
        again = calls_of({"model.encoder": given})  # none without a name
        origin = Origin(str(found.path), None if trust else found.not_own, again)
        policy = Policy(description, publication, origin, threads, first_state(found))
        _ = policy.actor  # fails if the weights don't fit
        return policy
    except _UNFIT as error:
        raise no_policy(found, error) from error
