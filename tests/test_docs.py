"""What the documents claim: tables are those of the records, links, commands and options exist,
code runs.
"""

import re
import shlex
import sys
import tomllib
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
import torch
import tyro

import quintet
from quintet.algorithms.acer import config as acer_config
from quintet.algorithms.acer import learner as acer
from quintet.algorithms.appo import config as appo_config
from quintet.algorithms.appo import learner as appo
from quintet.algorithms.ddpg import config as ddpg_config
from quintet.algorithms.ddpg import learner as ddpg
from quintet.algorithms.impala import config as impala_config
from quintet.algorithms.impala import learner as impala
from quintet.algorithms.ppo import config as ppo_config
from quintet.algorithms.ppo import learner as ppo
from quintet.commands import doctor, race, sweep
from quintet.commands.cli import COMMANDS, main
from quintet.envs.atari import AtariConfig
from quintet.envs.backends import BACKENDS
from quintet.envs.ids import resolve_backend
from quintet.envs.toy import Contextual
from quintet.options.command import parse
from quintet.options.layers import named_here, options, preset_layers
from quintet.options.resolve import compose
from quintet.options.run import ALIASES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "README")),
    ROOT / "SECURITY.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
QUOTED = DOCS / "adding-a-learner.md"
"""Its code is a package's, which tests/test_outside_learner.py runs."""

NO_OPTIONS = {"config", "seeds", "jobs", "env", "total_steps", "x", "metric", "kind", "video"}
NO_OPTIONS |= {
    "trust",
    "overwrite",
    "minutes",
    "n_envs",
    "ent_coef",
    "json",
    "most_s",
    "help",
    "equal",
}
"""Flags of commands that are no options of a run."""

HUB = ("push", "pull")
"""Commands of plugins/hub."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: .+ -->\n$")

TABLES = re.compile(r"<!-- table (\S+) -->.*?<!-- end \1 -->", re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language that are not marked ``<!-- not run: why -->``."""
    return [
        found[2]
        for found in FENCE.finditer(text)
        if found[1] == language and not NOT_RUN.search(text[: found.start()])
    ]


def commands(text: str) -> list[list[str]]:
    """The words of every ``quintet`` command in blocks without a language."""
    lines = "\n".join(blocks(text, "")).replace("\\\n", " ").splitlines()
    return [
        shlex.split(line, comments=True)[1:] for line in lines if re.match(r"\s*quintet ", line)
    ]


def hub_commands() -> ModuleType:
    """The commands of plugins/hub, which need not be installed to be read."""
    sys.path.append(str(ROOT / "plugins" / "hub"))
    try:
        return import_module("quintet_hub.commands")
    finally:
        sys.path.pop()


def check_command(words: list[str]) -> None:
    """Parses a command as the command line does; nothing is trained, played or drawn."""
    command, *rest = words
    if words == ["--version"]:
        return
    if command in HUB:
        tyro.cli(getattr(hub_commands(), command.capitalize()), args=rest)
        return
    assert command in COMMANDS, words
    if command in ("train", "config", "sweep"):
        if "--help" in rest:
            return
        if command == "sweep" or rest[0] == "auto":
            wanted = sweep.read(rest) if command == "sweep" else race.read(rest[1:])
            wanted.require()
            algo, layers = getattr(wanted, "algo", "ppo"), list(wanted.layers)
        else:
            asked = parse(command, rest)
            algo, layers = asked.algo, [*asked.files, asked.options]
        given = {name: x for layer in layers for name, x in layer.values.items()}
        preset = preset_layers(
            algo, given.get("env.id"), given.get("preset", "auto"), lambda: "vector_discrete"
        )
        # Given what makes it, an example's import string needs no module.
        compose(algo, [*preset, *layers], Contextual)
        if "env.id" in given:
            resolve_backend(given["env.id"], given.get("env.backend", "auto"))
    elif command == "envs":
        assert len(rest) <= 1, words
    elif command == "doctor":
        given_words = doctor.parse_arguments(rest)
        others = ["--env", given_words.targets[0], *given_words.others]
        assert parse("config", [given_words.algo, *others]).algo == given_words.algo
    elif command == "check-env":  # of an environment that is there
        resolve_backend(rest[0], "auto")
        assert main([command, "quintet.envs.toy:Contextual", *rest[1:]]) == 0, words
    else:  # wrong options end by SystemExit; a run that isn't there is an error of another kind
        assert main(words) == 1, words


def written_files(text: str, folder: Path) -> None:
    """Writes YAML blocks that begin with their name."""
    for block in blocks(text, "yaml"):
        name = re.match(r"# (\S+\.yaml)\n", block)
        assert name, f"a YAML block must begin with its name: {block}"
        (folder / name[1]).write_text(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    written_files(text, tmp_path)
    if "Taxi-v4" in text and "Taxi-v4" not in gymnasium.registry:
        pytest.skip(f"Gymnasium {gymnasium.__version__} has no Taxi-v4")
    for words in commands(text):
        check_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "train ppo --env CartPole-v1 --learning-rat 1",
        "train ppo --env CartPole-v1 --minibatch-steps 100",
        "train dqn --env CartPole-v1",
        "train ppo --env Taxi-v2 --env.backend gymnasium",
        "eval runs/x --episode 3",
        "plot runs/x --out a.png --kind pies",
        "bench chess",
        "fly",
        "push runs/x you/y --publc",
    ],
)
def test_the_check_of_commands_can_fail(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, SystemExit, quintet.errors.QuintetError)):
        check_command(line.split())


@pytest.mark.parametrize(
    "path",
    [p for p in DOCUMENTS if p != QUOTED and blocks(p.read_text(), "python")],
    ids=lambda path: path.name,
)
def test_code_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Block after block, as a reader would paste them, with budgets cut down."""
    train, evaluate = quintet.train, quintet.evaluate

    @wraps(train)
    def trains(algo: str, env: Any, total_steps: int = 2048, *args: Any, **given: Any) -> Any:
        few = {"eval.episodes": 1, "report.progress": False, "num_epochs": 1}
        config = {**few, **(given.pop("config", None) or {})}
        return train(algo, env, min(total_steps, 2048), *args, config=config, **given)

    @wraps(evaluate)
    def evaluates(*args: Any, episodes: int = 3, **given: Any) -> Any:
        return evaluate(*args, episodes=min(episodes, 3), **given)

    monkeypatch.setattr(BACKENDS, "loaded", dict(BACKENDS.loaded))  # one document adds a backend
    monkeypatch.setattr(quintet, "train", trains)
    monkeypatch.setattr(quintet, "evaluate", evaluates)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "a_document"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other on a busy machine take minutes
    try:
        for block in blocks(path.read_text(), "python"):
            exec(compile(block, path.name, "exec"), names)
    finally:
        torch.set_num_threads(threads)


def test_documents_for_users_are_short(monkeypatch: pytest.MonkeyPatch):
    """33,100 words, counted as `wc -w` does, without what benchmarks/pages.py writes, which says
    what the code says, and the tables of benchmarks/tables.py, which say what records say."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import pages

    paths = [ROOT / x for x in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    texts = {path: path.read_text() for path in [*paths, *DOCS.rglob("*.md")]}
    words = {
        str(path): len(TABLES.sub("", text.partition(pages.MARK)[0]).split())
        for path, text in texts.items()
    }
    assert sum(words.values()) <= 33_100, words
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_block_is_of_a_known_language():
    for path in DOCUMENTS:
        # tests/run/test_preemption.py runs the script in bash.
        known = {"", "bash", "python", "toml", "yaml"}
        assert {found[1] for found in FENCE.finditer(path.read_text())} <= known, path.name
        for block in blocks(path.read_text(), "toml"):
            assert tomllib.loads(block)


LEARNERS = {
    "ppo": (ppo, ppo_config.PPOConfig),
    "impala": (impala, impala_config.ImpalaConfig),
    "appo": (appo, appo_config.APPOConfig),
    "ddpg": (ddpg, ddpg_config.DDPGConfig),
    "acer": (acer, acer_config.ACERConfig),
}


def test_options_named_in_prose_exist():
    documents = dict.fromkeys(("quick-start", "environments"), "ppo") | {x: x for x in LEARNERS}
    parts = "env|runtime|model|checkpoint|eval|report"
    for name, algo in documents.items():
        known = set(options(algo)) | {f"env.kwargs.{x}" for x in AtariConfig.model_fields}
        path = DOCS / f"{name}.md"
        text = path.read_text()
        named = set(re.findall(rf"`((?:{parts})\.[a-z_.]+)[ =`]", text))
        assert named <= known, path.name
        flags = {flag.replace("-", "_") for flag in re.findall(r"`--([a-z][\w.-]*)[ =`]", text)}
        assert flags <= known | NO_OPTIONS, path.name


def test_names_of_other_libraries_are_those_that_commands_answer():
    """A row names the options by which an unknown name of the other library is answered."""
    text = (DOCS / "coming-from.md").read_text()
    known = {algo: set(options(algo)) for algo in ("ppo", "appo", "ddpg")}
    parts = "env|runtime|model|checkpoint|eval|report|population"
    answered = 0
    for section in text.split("\n## ")[2:]:
        of_section = "appo" if section.startswith("Sample Factory") else "ppo"
        for theirs, ours in re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)[2:]:
            named = {ALIASES.get(x, x) for x in re.findall(r"`([a-z_.]+)", ours)}
            unknown = {n for n in named if re.match(rf"({parts})\.", n)} - known["ppo"]
            assert not unknown, (theirs, unknown)
            for name in re.findall(r"(?<![\w.])-{0,2}([a-z][a-z_-]+)(?=[`=,)])", theirs):
                algo = "ddpg" if theirs.startswith("`DDPG(") else of_section
                meant = set(named_here(algo, name.replace("-", "_")) or ())
                if meant:
                    answered += 1
                    assert meant & named, (theirs, name, meant)
    assert answered > 40


PRESETS = {
    "ppo": (
        10,
        (
            "clip",
            "kl_penalty",
            "tf_agents_base",
            "vector_discrete",
            "small_pixels",
            "pixels",
            "atari",
        ),
    ),
    "impala": (5, ("vector_discrete", "vector_continuous", "pixels", "atari")),
    "appo": (6, ("vector_discrete", "vector_continuous", "pixels", "atari", "grid")),
    "ddpg": (11, ("vector_continuous", "pixels")),
    "acer": (11, ("vector_discrete", "vector_continuous", "pixels", "atari")),
}


@pytest.mark.parametrize("algo", LEARNERS)
def test_every_departure_and_preset_of_a_learner_is_documented(algo: str):
    text, (departures, presets) = (DOCS / f"{algo}.md").read_text(), PRESETS[algo]
    listed = re.findall(r"^ ?(\d+)\. (\w+ \w+)", LEARNERS[algo][0].__doc__ or "", re.M)
    headings = re.findall(r"^### (\d+)\. (\w+ \w+)", text, re.M)
    assert len(listed) == departures
    assert [number for number, _ in headings] == [number for number, _ in listed]
    for preset in presets:
        assert preset_layers(algo, None, preset)
        assert f"`{preset}`" in text


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path):
    for target, heading in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", path.read_text()):
        if target.startswith("http"):
            continue
        place = path.parent / target if target else path
        assert place.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", place.read_text(), re.M)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading[1:] in anchors, heading


@pytest.mark.slow
def test_tables_are_what_the_records_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import tables

    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 0, capsys.readouterr().out
    text = (DOCS / "benchmarks.md").read_text()
    other = tmp_path / "benchmarks.md"
    other.write_text(text.replace("| Acrobot-v1 |", "| Nowhere |"))
    monkeypatch.setattr(tables, "DOCUMENTS", (other,))
    assert tables.main() == 1
    assert f"{other} is not what records and presets say" in capsys.readouterr().out
    assert other.read_text() != text  # a check writes nothing
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    assert tables.main() == 0
    assert other.read_text() == text
