"""Environments of several agents with PettingZoo's APIs: every agent is a stream.

A game has one stream for each of its possible agents, in their order; games are stepped one after
another.  An agent that acts has ordinary rows.  Where it is absent - from its own ending until the
next game begins, or before it joins a game - its rows are not valid and repeat its last
observation, or, before the first one, zeros within the space's bounds; the last of these rows has
the observation with which the agent comes in.  So each agent's presence in a game is an episode.

In games of the AEC API agents act in turn: the selected agent acts while the others are absent, see
`EnvDescription.turns`.  Rewards before an agent's first decision count for that decision; a game in
which it makes no decision is not an episode of that agent.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
from gymnasium import spaces

from quintet.envs import other_apis
from quintet.envs.backends import Group
from quintet.envs.gymnasium import action_rows, leaf_of, read_leaf, steps_per_s
from quintet.envs.masks import (
    MaskReader,
    check_mask_from_info,
    is_in,
    leaf_note,
    mask_leaves,
    with_mask,
)
from quintet.envs.other_apis import Unfit, fault_of
from quintet.envs.own_state import OwnState
from quintet.envs.owners import claim, made_for, purpose, release
from quintet.envs.pettingzoo_games import agents_of, close_games, equal_spaces, make_game
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import (
    Array,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    allocate_obs,
    check_seeds,
)
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import (
    action_remarks,
    action_shape,
    in_float64,
    observation_leaves,
    stored_spaces,
    unpack_action,
)
from quintet.system import forks
from quintet.system.signals import STOPS
from quintet.system.user_code import described, raised
from quintet.types import ACTION_MASK

if TYPE_CHECKING:
    from quintet.envs.tasks import Tasks


@final
class ParallelVectorEnv:
    """Games made by one callable, each with one stream per agent.

    infos: reads success and the episodes' own numbers.
    """

    def __init__(self, env: ResolvedEnv, group: Group) -> None:
        """Makes the games.

        Raises:
            ConfigError: they are not games, their agents have different spaces, or the streams are
                not a multiple of the agents.
        """
        env_id, num_streams = env.config.id, group.num_streams
        self._id, self.num_streams, self._first_stream = env_id, num_streams, group.first_stream
        self.infos = env.info_reader(num_streams)
        self._make_env: Callable[[], Any] = partial(make_game, env)
        self._games: list[Any] = []
        self._purpose, self._limit = purpose(), env.config.max_episode_steps
        self.tasks: Tasks | None = None
        try:
            self._add_game()
            self.agents = agents_of(self._games[0], env_id)
            size = len(self.agents)
            if num_streams % size:
                raise ConfigError(
                    f"{env_id} has {size} agents, each of which is a stream, so env.num_streams "
                    f"and env.streams_per_group must be multiples of {size}, got {num_streams}; "
                    f"use --env.num-streams {-(-num_streams // size) * size}, or leave them out"
                )
            for _ in range(num_streams // size - 1):
                self._add_game()
            self._turns = callable(getattr(self._games[0], "last", None))  # the AEC API
            observation, self._action_space = equal_spaces(self._games, self.agents, env_id)
            choice = env.config.mask_from_info
            seen, found = mask_leaves(observation, self._action_space, choice)
            self._leaves = [leaf_of(path, *each) for path, each in found.items()]
            self._masks = MaskReader(self._action_space) if choice is True else None
            if self._masks is not None:
                check_mask_from_info(observation, self._action_space, env_id)
                seen = with_mask(observation, self._masks.space)
            self.spaces = stored_spaces(seen, self._action_space, env_id)
        except BaseException:
            self.close()
            raise
        self.description = EnvDescription(
            env_id,
            "pettingzoo",
            success=env.config.success,
            agents=tuple(map(str, self.agents)),
            max_steps=self._limit,
            notes=leaf_note(found) if self._masks is None else (self._masks.note,),
            remarks=action_remarks(self._action_space),
            turns=self._turns,
        )
        self._action_shape = (num_streams, *action_shape(self._action_space))
        self._seeds = [0] * num_streams
        self._game_step = [0] * len(self._games)
        self._present = np.zeros(num_streams, np.bool_)
        # Streams whose agents have ended and were not seen to leave the game yet.
        self._leaving = np.zeros(num_streams, np.bool_)
        # Games in turns: streams that have acted in the game, and rewards that they got before.
        self._acted = np.zeros(num_streams, np.bool_)
        self._owed = np.zeros(num_streams)
        self._last = allocate_obs(in_float64(self.spaces).observation, (num_streams,))
        self._fresh, self._used = env.config.fresh_at_checkpoints, False
        self._told: Mapping[Any, Any] = {}  # the newest step's infos
        self._action: Array | None = None

    @property
    def own(self) -> OwnState:
        """Access to the state that the games keep."""
        return OwnState(lambda: self._games, self._id)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Resets every game with the seed of its first agent's stream; later resets have none."""
        self._seeds = check_seeds(seeds, self.num_streams)
        self._action = None
        if self._used and self._fresh:
            count = len(self._games)
            self.close()
            for _ in range(count):
                self._add_game()
        self._used = True
        if self.infos is not None:
            self.infos.clear()
        self._forget()
        for index in range(len(self._games)):
            self._reset(index, self._seeds[index * len(self.agents)])
        self._show(out)

    def send(self, action: Array) -> None:
        """Stores the action; `recv` makes the step."""
        assert self._action is None, "recv before the next send"
        assert action.shape == self._action_shape, (action.shape, self._action_shape)
        self._action = action

    def recv(self, out: StepRow) -> None:
        assert self._action is not None, "send before recv"
        action, self._action = unpack_action(self._action_space, self._action), None
        out.valid[:] = self._present
        out.reward[:] = 0.0
        out.terminated[:] = out.truncated[:] = False
        step = self._take_turn if self._turns else self._step
        actions = list(action_rows(action, self.num_streams))
        size = len(self.agents)
        for index in range(len(self._games)):
            streams = range(index * size, (index + 1) * size)
            if self._present[streams.start : streams.stop].any():
                step(index, streams, actions, out)
                if self._game_step[index] == self._limit:
                    try:
                        self._cut(index, streams, out)
                    except Unfit as error:
                        raise self._fault(streams.start, str(error), error) from error
            else:
                self._reset(index, None)
        np.logical_and(out.truncated, ~out.terminated, out=out.truncated)
        out.raw_reward[:] = out.reward
        if self.infos is not None:
            self.infos.write(out)
        self._show(out.obs)

    def render(self, stream: int) -> Rendered:
        game = self._games[stream // len(self.agents)]
        return Rendered(game.render(), steps_per_s(getattr(game, "metadata", {})))

    def close(self) -> None:
        games, self._games = self._games, []
        for game in games:
            release(game, self)
        close_games(games, self._id)

    def _add_game(self) -> None:
        with made_for(self._purpose, f"game {len(self._games)}"):
            game = self._make_env()
        claim(game, self, self._id)
        self._games.append(game)

    def place_of(self, stream: int) -> str:
        """A stream's number, agent, step and seed, for a message."""
        index, agent = divmod(stream, len(self.agents))
        step = self._game_step[index]
        when = f"step {step} of its game" if step else "reset"
        seed = self._seeds[index * len(self.agents)]
        who = f"stream {self._first_stream + stream} (agent {self.agents[agent]!r})"
        return f"{who}, {when}, seed {seed}"

    def _forget(self) -> None:
        """Sets placeholder observations for agents that were not seen yet."""
        for path, leaf in observation_leaves(self.spaces.observation).items():
            inside = np.clip(0, leaf.low, leaf.high) if isinstance(leaf, spaces.Box) else 0
            self._last[path][:] = inside

    def _show(self, out: ObsArrays) -> None:
        for path, x in self._last.items():
            out[path][:] = x

    def _step(self, index: int, streams: range, actions: Sequence[Any], out: StepRow) -> None:
        """Steps a game with the actions of the agents that are present."""
        game, stream = self._games[index], streams.start
        acting = {
            agent: actions[stream]
            for agent, stream in zip(self.agents, streams, strict=True)
            if self._present[stream]
        }
        self._game_step[index] += 1
        result = self._call(stream, "step", lambda: game.step(acting))
        present = self._present_agents(stream, game)
        try:
            five = isinstance(result, tuple) and len(result) == 5
            if not five or not all(isinstance(part, Mapping) for part in result):
                raise Unfit(
                    "must return five dicts by agent from step: observations, rewards, "
                    "terminations, truncations, infos"
                )
            obs, rewards, terminations, truncations, infos = result
            self._told = infos
            for agent, stream in zip(self.agents, streams, strict=True):
                if not self._present[stream]:
                    self._leaving[stream] &= agent in present
                    if agent in present and not self._leaving[stream]:
                        self._write(stream, obs, agent, infos.get(agent))
                        self._present[stream] = True
                    continue
                try:
                    own = rewards[agent], terminations[agent], truncations[agent]
                except KeyError as error:
                    raise Unfit(
                        f"must give each acting agent a reward and two flags: {described(error)}"
                    ) from error
                out.reward[stream] = other_apis.reward_of(own[0])
                terminated = other_apis.flag_of(own[1], "terminations")
                truncated = other_apis.flag_of(own[2], "truncations")
                out.terminated[stream], out.truncated[stream] = terminated, truncated
                over = terminated or truncated
                self._write(stream, obs, agent, infos.get(agent), over=over)
                self._read_info(stream, infos.get(agent), agent, ended=over)
                if over:
                    self._present[stream], self._leaving[stream] = False, agent in present
                elif agent not in present:
                    raise Unfit("must end an agent's episode before it leaves the list agents")
        except Unfit as error:
            raise self._fault(stream, str(error), error) from error

    def _take_turn(self, index: int, streams: range, actions: Sequence[Any], out: StepRow) -> None:
        """Steps a game with the action of the selected agent."""
        game = self._games[index]
        stream = streams.start + int(self._present[streams.start : streams.stop].argmax())
        self._game_step[index] += 1
        self._acted[stream] = True
        self._call(stream, "step", lambda: game.step(actions[stream]))
        self._next_turn(index, out)

    def _next_turn(self, index: int, out: StepRow | None) -> None:
        """Moves to the agent that acts next, past agents whose episode has ended; writes what all
        of them received since they acted.  Without such an agent the game is over.

        out: None after a reset.
        """
        game, size = self._games[index], len(self.agents)
        first = stream = index * size
        self._present[first : first + size] = False
        try:
            for _ in range(size + 1):
                present = self._present_agents(first, game)
                for place in np.flatnonzero(self._acted[first : first + size]):
                    stream = first + int(place)
                    if self.agents[place] not in present:
                        raise Unfit(
                            "must show an agent that it has ended before it leaves the list agents"
                        )
                if not present:
                    return
                stream = first
                agent = self._call(first, "agent_selection", lambda: game.agent_selection)
                if agent not in self.agents:
                    raise Unfit(f"has agent_selection {agent!r}, which is not in possible_agents")
                stream = first + self.agents.index(agent)
                last = self._call(stream, "last", game.last)
                try:
                    obs, reward, terminated, truncated, info = last
                    gain = other_apis.reward_of(reward)
                    terminated = other_apis.flag_of(terminated, "termination")
                    truncated = other_apis.flag_of(truncated, "truncation")
                except (TypeError, ValueError) as error:
                    raise Unfit(
                        "must give five values from last: observation, reward, termination, "
                        f"truncation, info: {described(error)}"
                    ) from error
                ended = terminated or truncated
                if not ended or obs is not None:
                    self._write(stream, {agent: obs}, agent, info, over=ended)
                self._owed[stream] += gain
                if out is not None and self._acted[stream]:
                    out.reward[stream] = self._owed[stream]
                    out.terminated[stream], out.truncated[stream] = terminated, truncated
                    self._owed[stream] = 0.0
                    self._read_info(stream, info, agent, ended=ended)
                if not ended:
                    self._present[stream] = True
                    return
                self._acted[stream], self._owed[stream] = False, 0.0
                self._call(stream, "step", lambda: game.step(None))
            stream = first
            raise Unfit("must remove an agent from its list agents at the step(None) after its end")
        except Unfit as error:
            raise self._fault(stream, str(error), error) from error

    def _cut(self, index: int, streams: range, out: StepRow) -> None:
        """Truncates a game after its last step, with the agents that have acted in it."""
        game = self._games[index]
        infos = getattr(game, "infos", {}) if self._turns else self._told
        for agent, stream in zip(self.agents, streams, strict=True):
            present = bool(self._present[stream])
            ends = self._acted[stream] if self._turns else present and out.valid[stream]
            if ends and self._turns and not present:  # has not observed yet where its action led
                seen = self._call(stream, "observe", partial(game.observe, agent))
                self._write(stream, {agent: seen}, agent, infos.get(agent), over=True)
                gains = getattr(game, "_cumulative_rewards", {})  # `last` would give these
                out.reward[stream] = self._owed[stream] + other_apis.reward_of(gains.get(agent, 0))
            if ends:
                out.truncated[stream] = True
                self._read_info(stream, infos.get(agent), agent, ended=True)
            self._acted[stream], self._owed[stream] = False, 0.0
            self._present[stream] = self._leaving[stream] = False

    def _read_info(self, stream: int, info: Any, agent: Any, *, ended: bool) -> None:
        if self.infos is not None:
            self.infos.add(stream, info, ended=ended, agent=f", agent {agent!r}")

    def _reset(self, index: int, seed: int | None) -> None:
        """Begins a new game; the agents that are present at once join."""
        game, size = self._games[index], len(self.agents)
        first = stream = index * size
        self._game_step[index] = 0
        given = {"seed": seed} if self.tasks is None else self.tasks.draw(first, seed)
        what = other_apis.reset_by(given) or "reset"
        result = self._call(first, what, partial(game.reset, **given))
        streams = slice(first, first + size)
        if self._turns:
            self._acted[streams], self._owed[streams] = False, 0.0
            self._next_turn(index, None)
        try:
            if not self._turns:
                pair = isinstance(result, tuple) and len(result) == 2
                if not pair or not isinstance(result[0], Mapping):
                    raise Unfit("must return two dicts by agent from reset: observations, infos")
                present, infos = self._present_agents(first, game), other_apis.info_of(result[1])
                for stream, agent in enumerate(self.agents, first):
                    self._leaving[stream], self._present[stream] = False, agent in present
                    if agent in present:
                        self._write(stream, result[0], agent, infos.get(agent))
                stream = first
            if not self._present[streams].any():
                raise Unfit("must have agents after a reset; it has none")
        except Unfit as error:
            raise self._fault(stream, str(error), error) from error

    def _present_agents(self, stream: int, game: Any) -> set[Any]:
        """The agents that are in the game."""
        present: set[Any] = self._call(stream, "agents", lambda: set(game.agents))
        if strangers := present - set(self.agents):
            raise self._fault(stream, f"has agents {strangers} that are not in possible_agents")
        return present

    def _write(
        self, stream: int, observations: Any, agent: Any, info: Any, *, over: bool = False
    ) -> None:
        """Keeps what an agent observes; over: whether its episode has ended."""
        if agent not in observations:
            raise Unfit(
                f"gave no observation for {agent!r}; reset must give one to each agent in the list "
                "agents, and step to these and to each agent that acted (also at its end)"
            )
        obs = observations[agent]
        for leaf in self._leaves:
            value = leaf.of(obs)
            stored = value if leaf.is_met(value) else read_leaf(obs, leaf)
            self._last[leaf.path][stream] = stored
        if (masks := self._masks) is not None:
            about = other_apis.info_of(info)
            self._last[ACTION_MASK][stream] = self._call(
                stream, "infos", lambda: masks.in_info(about, over=over)
            )

    def _call(self, stream: int, what: str, function: Callable[[], Any]) -> Any:
        """The result of the game's code; its errors become faults of the stream's game."""
        try:
            with forks.kept_out(self._id):
                return function()
        except STOPS:
            raise
        except BaseException as error:
            game = self._games[stream // len(self.agents)]
            fault = str(error) if isinstance(error, Unfit) else raised(error, what)
            seedless = isinstance(error, TypeError) and "'seed'" in str(error)
            if seedless and not other_apis.takes_seed(game):
                fault = "has a reset that takes no seed; it must be reset(seed=None, options=None)"
            raise self._fault(stream, fault, error) from error

    def gives_mask(self) -> bool:
        """Whether a reset of the first game gives its first agent a mask in info."""
        game, first = self._games[0], self.agents[0]
        result = game.reset(seed=0)
        info = game.last()[4] if self._turns else result[1].get(first)
        return is_in(info, self._action_space)

    def _fault(
        self, stream: int, what: str, cause: BaseException | None = None
    ) -> EnvironmentFault:
        who = f"{self._id} ({self.description.backend}), {self.place_of(stream)}"
        return fault_of(who, cause or Unfit(what), what)
