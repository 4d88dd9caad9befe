"""The package stays within the figures of `benchmarks/budget.toml`."""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import quintet
from quintet.algorithms import registry
from quintet.options.layers import options

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "quintet"
BUDGET = tomllib.loads((ROOT / "benchmarks" / "budget.toml").read_text())

Graph = Mapping[str, set[str]]


def check(part: str, figures: Mapping[str, int]) -> None:
    """What is above its figure, and what has none."""
    most = BUDGET[part]
    above = {name: (n, most.get(name, 0)) for name, n in figures.items() if n > most.get(name, 0)}
    assert not above, f"above [{part}] of benchmarks/budget.toml, as (is, allowed): {above}"
    assert most.keys() <= figures.keys(), f"[{part}] has figures of what there is not"


def lines(package: Path) -> dict[str, int]:
    """Lines of Python by folder of the package; `root` for its own files."""
    found: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        inside = path.relative_to(package).parts
        found[inside[0] if len(inside) > 1 else "root"] += path.read_text().count("\n")
    return dict(found)


def imported(tree: ast.Module, late: bool) -> Iterator[str]:
    """Names that a module imports, without those for types alone.

    late: also those that functions import when they are called.
    """
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif late or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += (each for each in ast.iter_child_nodes(node) if isinstance(each, HOLDERS))


HOLDERS = ast.stmt | ast.excepthandler | ast.match_case
"""Nodes that are or hold statements, as imports are."""


def trees(package: Path) -> dict[str, ast.Module]:
    """The modules of a package by name."""
    files = {path.relative_to(package.parent): path for path in package.rglob("*.py")}
    return {
        ".".join(short.with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for short, path in files.items()
    }


def imports(modules: Mapping[str, ast.Module], late: bool) -> Graph:
    """The modules that each of them imports."""
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        graph[module] = set()
        for name in imported(tree, late):
            while name and name not in modules:  # a function or a class of a module
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    return graph


def in_circles(graph: Graph) -> set[str]:
    """The modules that import themselves by way of others."""

    def reached(start: str) -> set[str]:
        seen, newest = set[str](), {start}
        while newest:
            newest = set[str]().union(*(graph[name] for name in newest)) - seen
            seen |= newest
        return seen

    return {name for name in graph if name in reached(name)}


def circles(package: Path) -> dict[str, int]:
    modules = trees(package)
    return {
        "when_loaded": len(in_circles(imports(modules, late=False))),
        "with_imports_in_functions": len(in_circles(imports(modules, late=True))),
    }


def test_lines_of_packages() -> None:
    check("lines", lines(PACKAGE))


def test_circles() -> None:
    check("modules_in_circles", circles(PACKAGE))


def test_names() -> None:
    files = {path.name for path in PACKAGE.glob("*.py")}
    check("names", {"root_files": len(files), "public": len(quintet.__all__)})


def test_options() -> None:
    own = {
        name: len(one.config.model_fields)
        for name, one in registry.LEARNERS.usable()
        if one.config.__module__.startswith("quintet.")
    }
    check("options", own | {"of_every_run": len(options("ppo")) - own["ppo"]})


SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_steps": 16},
    "appo": {"minibatch_steps": 16, "runtime.kind": "serial"},
    "impala": {"batch_unrolls": 2, "runtime.kind": "serial"},
    "acer": {"replay_start_steps_per_stream": 8},
    "ddpg": {"batch_size": 8, "replay_start_steps": 16},
}


def frames(learner: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Functions of quintet that run between `quintet.train` and the loss, both counted."""
    kind: Any = registry.find(learner).make_learner.get()  # type: ignore[attr-defined]
    loss: Callable[..., Any] = kind.loss
    found: set[int] = set()

    def counted(*arguments: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        count = 1  # the loss
        while frame is not None and frame.f_code is not quintet.train.__code__:
            count += frame.f_code.co_filename.startswith(str(PACKAGE))
            frame = frame.f_back
        found.add(count + 1)
        return loss(*arguments)

    monkeypatch.setattr(kind, "loss", counted)
    env = "Pendulum-v1" if learner == "ddpg" else "CartPole-v1"
    config = {
        "preset": "none", "env.backend": "gymnasium", "env.num_streams": 2, "unroll_steps": 8,
        "runtime.compile": "off", "eval.episodes": 0, "report.progress": False,
        "report.sinks": ["jsonl"], **SMALL[learner],
    }  # fmt: skip
    quintet.train(learner, env, 32, seed=1, run_dir=folder / "run", config=config)
    return max(found)


@pytest.mark.parametrize("learner", SMALL)
def test_frames_from_train_to_a_loss(
    learner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, found = BUDGET["frames_to_loss"][learner], frames(learner, tmp_path, monkeypatch)
    assert found <= most, f"benchmarks/budget.toml allows {most}, there are {found}"


def test_planted_faults_are_seen(tmp_path: Path) -> None:
    """A circle, one through a function, and lines."""
    package = tmp_path / "planted"
    (package / "inside").mkdir(parents=True)
    texts = {
        "__init__": "", "inside/__init__": "",
        "inside/a": "from planted.inside import b\n",
        "inside/b": "import planted.c\n",
        "c": "def f():\n    from planted.inside.a import g\n",
        "d": "if TYPE_CHECKING:\n    from planted import e\n",
        "e": "from planted.d import x\n",
    }  # fmt: skip
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    assert lines(package) == {"root": 5, "inside": 2}
    assert circles(package) == {"when_loaded": 0, "with_imports_in_functions": 3}
    (package / "c.py").write_text("from planted.inside.a import g\n")
    assert circles(package) == {"when_loaded": 3, "with_imports_in_functions": 3}
