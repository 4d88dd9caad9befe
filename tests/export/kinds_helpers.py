"""The matrix: cells that together hold every kind of everything; a few of them for every day."""

from typing import Any

from cells_helpers import ACTIONS, OBSERVATIONS, Cell

LEARNERS = ("ppo", "impala", "appo", "ddpg", "acer")
CORES = ("none", "lstm", "gru")
BOUNDS = ("clip", "squash", "mean_tanh")
STDS = ("state_independent", "softplus", "state_dependent")
PICTURES = {
    "picture": "nature_cnn",
    "small_picture": "impala_cnn",
    "grid": "film_grid",
    "bools": "small_cnn",
}

NORMALIZED = {"normalize_observations": True}


def network(action: str, number: int) -> dict[str, Any]:
    """Options of a Gaussian in turn, for actions that have one."""
    if action not in ("box", "doubles", "tuple", "nested", "unbounded"):
        return {}
    bounds = "clip" if action == "unbounded" else BOUNDS[number % 3]
    return {"action_bounds": bounds, "action_std": STDS[number // 2 % 3]}


def matrix() -> dict[str, Cell]:
    """Every learner with every observation, action, core and encoder at least once; `number` turns
    the rest: layers of cores, torsos, normalisers, frame stacks, masks.
    """
    found: dict[str, Cell] = {}
    for number, algo in enumerate(LEARNERS):
        actions = ["box", "doubles"] if algo == "ddpg" else [*ACTIONS]
        for k, observation in enumerate(OBSERVATIONS):
            action = actions[(k + number) % len(actions)]
            core = "none" if algo == "ddpg" else CORES[(k + number) % 3]
            net = {"encoder": PICTURES.get(observation, "mlp")}
            if algo != "ddpg":
                net |= network(action, k)
            if core != "none":
                net |= {"core": core, "core_layers": 1 + k % 2, "core_skip": k % 4 == 1}
            if algo != "ddpg":
                net["shared_torso"] = k % 2 == 0
            net["layer_norm"] = k % 5 == 1
            if net["encoder"] == "mlp":
                net["activation"] = ("tanh", "relu")[k % 3 == 2]
            if observation == "grid":
                net["encoder_kwargs"] = _grid(number)
            options: dict[str, Any] = dict(NORMALIZED) if k % 3 != 1 else {}
            if observation in ("picture", "small_picture") and algo == "ppo":
                options["normalize_pictures"] = True
            env = {"frame_stack": 2} if k % 4 == 2 and observation != "grid" else {}
            if k % 5 == 3:
                env = {**env, "observe_last": True}
            masked = action == "discrete" and k % 2 == 1
            name = f"{algo}-{observation}-{action}-{core}"
            found[name] = Cell(algo, observation, action, net, options, env, masked)
    return found


def _grid(number: int) -> dict[str, Any]:
    """Kinds of text encoders in turn."""
    kinds: list[dict[str, Any]] = [
        {"vocabulary": ["go", "to", "ab"], "text_pooling": "attention"},
        {"tokenizer": "bytes", "bidirectional_film": True},
        {"hash_buckets": 7},
        {"tokenizer": "none"},
        {"bidirectional_film": True, "text_pooling": "attention", "tokenizer": "bytes"},
    ]
    small: dict[str, Any] = {"image_channels": 4, "film_blocks": 1}
    if kinds[number].get("tokenizer") == "none":
        return small | kinds[number]
    return small | {"text_hidden": 6, "text_embedding": 3} | kinds[number]


DAILY = {
    "ppo": Cell("ppo", "nested", "nested", network("nested", 1), NORMALIZED),
    "impala": Cell(
        "impala",
        "doubles",
        "discrete",
        {"core": "lstm", "shared_torso": True},
        NORMALIZED,
        masked=True,
    ),
    "appo": Cell("appo", "bytes", "bits", {"core": "gru", "shared_torso": True}),
    "ddpg": Cell("ddpg", "discrete", "doubles"),
    "acer": Cell("acer", "picture", "multi_discrete", {"encoder": "nature_cnn"}),
}
"""One of each learner, with other kinds of the rest."""
