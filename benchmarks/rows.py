"""The rows of the learning tables: what is trained, on which seeds it counts, what it is held
against.
"""

from typing import Literal, NamedTuple

SEEDS = (11, 12, 13)
"""What results are reported on; presets are tuned on seeds from 100 on."""


class Row(NamedTuple):
    """One row, and the record behind it.

    options: of the run beside the preset's, with a label that tells the record from the preset's.
    until: env_steps at which the run is ended before its budget.
    must, aim: what the score is held against; None: nothing is asked.
    beside: the name of the row in whose panel it is drawn, where it has none of its own.
    score: what of a record counts; a rate lies between 0 and 1.
    seeds: on which it is reported: SEEDS, or the next three where the preset was changed after
        those had been seen.
    seen: seeds whose scores had been seen when the preset was changed for the last time.
    busy: processes that keep cores busy beside the training.
    """

    algo: str
    env: str
    must: float | None = None
    aim: float | None = None
    reference: str = ""
    title: str = ""
    label: str = ""
    options: tuple[str, ...] = ()
    until: int | None = None
    beside: str = ""
    score: Literal["return_mean", "success_rate"] = "return_mean"
    seeds: tuple[int, ...] = SEEDS
    seen: tuple[int, ...] = ()
    busy: int = 0

    @property
    def name(self) -> str:
        """Of the record: benchmarks/results/NAME.json."""
        return "-".join(filter(None, [self.algo, self.env.replace(":", "."), self.label]))

    @property
    def told(self) -> str:
        """As tables and pictures call it."""
        return self.title or self.env


TOY = "quintet.envs.toy:cartpole_without_velocities"
RED_BALL, LOCAL = "BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0"
CAR, FIVE, OTHERS = "MountainCarContinuous-v0", (11, 12, 13, 14, 15), (16, 17, 18, 19, 20)
NEXT = (14, 15, 16)
DOOM = "vizdoom.gymnasium_wrapper:Vizdoom{}-v1"
CHEETAH = "Tianshou 5784 ± 1244 (best within the run), CleanRL 1443"

ROWS = (
    Row("ppo", "CartPole-v1", 495, 500, "SB3 zoo 500"),
    Row("ppo", "Acrobot-v1", -86, -82, "CleanRL -86.4"),
    Row("ppo", "MountainCar-v0", -120, -112),
    Row("ppo", "LunarLander-v3", 225, 245, "SB3 zoo 242 (v2)"),
    Row("ppo", TOY, 475, 500, "SB3 contrib 500", "CartPole-v1 without velocities, LSTM"),
    Row(
        "ppo", TOY, title="the same without a memory",
        label="feed-forward", options=("model.core=none",),
    ),
    Row("ppo", "HalfCheetah-v4", 4000, 5000, CHEETAH, seen=(1, 2, 3)),
    Row("ppo", "Hopper-v4", 2200, 2600, "Tianshou 2609, CleanRL 2383"),
    Row("ppo", "Walker2d-v4", 2800, 3500, "Tianshou 3589, CleanRL 2288"),
    Row("ppo", "InvertedPendulum-v4", 950),
    Row("ppo", "BipedalWalker-v3", 250),
    Row("ppo", "Pong-v5", 17, 19, seen=(1,)),
    Row(
        "ppo", "Pong-v5", title="the same in float32, ended early", label="fp32", until=1_000_000,
        options=("runtime.precision=fp32", "runtime.threads=1"), beside="ppo-Pong-v5", seen=(1,),
    ),
    Row("ppo", "Breakout-v5"),
    Row("impala", "CartPole-v1", 475, 495, seeds=NEXT, seen=SEEDS),
    Row(
        "impala", TOY, 450, 490, title="CartPole-v1 without velocities, LSTM",
        seeds=(23, 24, 25), seen=(1, 2, 3, *range(11, 23)),
    ),
    Row("impala", "Pong-v5", 18, 19.5, seen=(1,)),
    Row(
        "impala", "HalfCheetah-v4", 4500, 6000, seeds=NEXT, seen=SEEDS,
    ),
    Row("impala", "InvertedPendulum-v4", 950),
    Row(
        "impala", RED_BALL, 0.85, title=f"{RED_BALL}, success", score="success_rate",
        label="2M", options=("total_env_steps=2000000",), seeds=(11,), seen=(1,),
    ),
    Row(
        "impala", RED_BALL, 0.95, title=f"{RED_BALL}, success", score="success_rate",
        label="6M", options=("total_env_steps=6000000",), seen=(1,),
    ),
    Row(
        "impala", LOCAL, 0.7, title=f"{LOCAL}, success", score="success_rate",
        label="10M", options=("total_env_steps=10000000",), seen=(1,),
    ),
    Row(
        "impala", LOCAL, title="the same, blind to the mission", score="success_rate",
        label="10M-blind", beside=f"impala-{LOCAL}-10M", seen=(1,),
        options=("total_env_steps=10000000", 'model.encoder_kwargs={"tokenizer": "none"}'),
    ),
    Row("appo", "CartPole-v1", 495, 500),
    Row("appo", TOY, 475, 495, title="CartPole-v1 without velocities, GRU"),
    Row(
        "appo", TOY, 450, title="the same beside four busy processes", label="busy", busy=4,
        beside=f"appo-{TOY.replace(':', '.')}",
    ),
    Row(
        "appo", "HalfCheetah-v4", 5500, 7000, "Sample Factory's best model 6263", seeds=(11, 12),
        options=("total_env_steps=10000000",), label="10M",
    ),
    Row(
        "appo", "Hopper-v4", 2800, 3400, "Sample Factory 2793", seeds=(11,),
        options=("total_env_steps=10000000",), label="10M",
    ),
    Row(
        "appo", "Walker2d-v4", 4000, 5500, "Sample Factory 5488", seeds=(11,),
        options=("total_env_steps=10000000",), label="10M",
    ),
    Row(
        "appo", "Pong-v5", 18, 20, seeds=(11,),
        options=("total_env_steps=10000000",), label="10M",
    ),
    Row(
        "appo", DOOM.format("Basic"), 75, None, seeds=(11,),
        title="ViZDoom Basic",
    ),
    Row(
        "appo", DOOM.format("HealthGathering"), None, None,
        seeds=(11,), title="ViZDoom HealthGathering",
    ),
    Row("ddpg", "Pendulum-v1", -175, -160, "SB3 zoo -152 (1 run)", seeds=FIVE),
    Row(
        "ddpg", "Pendulum-v1", -179, title="the same, rewards times 1,000, PopArt",
        label="x1000-popart",
        options=("reward_scale=1000", "normalize_returns=true", "popart=true"),
        beside="ddpg-Pendulum-v1",
    ),
    Row(
        "ddpg", "Pendulum-v1", title="the same, rewards times 1,000", label="x1000",
        options=("reward_scale=1000",), beside="ddpg-Pendulum-v1",
    ),
    Row("ddpg", CAR, 90, None, "SB3 zoo 93.5", seeds=OTHERS, seen=FIVE[:2]),
    Row(
        "ddpg", CAR, title="the same, Gaussian noise", label="gaussian",
        options=("exploration=normal_0.2",), beside=f"ddpg-{CAR}", seeds=OTHERS,
    ),
    Row(
        "ddpg", CAR, title="the same, OU noise", label="ou",
        options=("exploration=ou_0.2",), beside=f"ddpg-{CAR}", seeds=OTHERS,
    ),
    Row(
        "ddpg", CAR, title="the same without noise", label="none",
        options=("exploration=none",), beside=f"ddpg-{CAR}", seeds=OTHERS,
    ),
    Row("ddpg", "LunarLanderContinuous-v3", 180, 230, "SB3 zoo 230"),
    Row("ddpg", "InvertedPendulum-v4", 950, 1000, "Tianshou 1000 at 1M"),
    Row(
        "ddpg", "HalfCheetah-v4", 9500, 10500, "CleanRL 10374 ± 157 (v4, training)", seeds=(11, 12)
    ),
    Row(
        "ddpg", "HalfCheetah-v4", title="the same in bf16, ended early", label="bf16",
        until=400_000, options=("runtime.precision=bf16",), beside="ddpg-HalfCheetah-v4",
        seeds=(11,),
    ),
    Row(
        "ddpg", "HalfCheetah-v4", 3300, 5000, "baselines in the TD3 paper 3306",
        "HalfCheetah-v4, the original's settings", "original", ("preset=original",), seeds=(11,),
    ),
    Row(
        "ddpg", "Hopper-v4", 1577, 2200,
        "CleanRL 1577 ± 819, Tianshou 2197; it falls after 319 of 1,000 steps",
        seeds=(16,), seen=(11, 14, 15),
    ),
    Row(
        "ddpg", "Walker2d-v4", 1240, 2000, "CleanRL 1240 ± 390, Tianshou 1401",
        seeds=(15,), seen=(11, 14),
    ),
    Row(
        "ddpg", "quintet.envs.toy:DotToTarget", title="DotToTarget, pictures",
        reference="optimum -0.85", seeds=(17, 18, 19), seen=(11, 12, *NEXT),
    ),
    Row("acer", "CartPole-v1", 475, 495, "SB2 zoo 498.6 at 500k", seeds=NEXT, seen=SEEDS),
    Row("acer", "Acrobot-v1", -95, -85, "SB2 zoo -90.9", seeds=NEXT, seen=SEEDS),
    Row("acer", "LunarLander-v3", 165, 230, "SB2 zoo 185 (v2)", seeds=NEXT, seen=SEEDS),
    Row("acer", "MountainCar-v0", -145, -120, "SB2 zoo -131"),
    Row("acer", "Pong-v5", 17, 19.5, "baselines 19.5 to 20 at 10M", seeds=(11,)),
    Row("acer", "Breakout-v5", reference="baselines 439 at 10M", seeds=(11,)),
    Row(
        "acer", TOY, 450, 490, title="CartPole-v1 without velocities, LSTM",
        seeds=NEXT, seen=SEEDS,
    ),
    Row("acer", "Pendulum-v1", -250, -170, seeds=NEXT, seen=SEEDS),
    Row("acer", "HalfCheetah-v4", None, 3000, seeds=(11,)),
    Row("acer", "Hopper-v4", None, 1500, seeds=(11,)),
)  # fmt: skip
