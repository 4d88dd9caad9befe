"""Pages of the API reference, from signatures and docstrings; nothing of them is imported.

Records name their fields in lines ``field: meaning``; formulas stand in lines of their own;
``Returns:``, ``Raises:`` and ``Source:`` may be followed by a sentence.
"""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from records import ROOT

Definition = ast.FunctionDef | ast.ClassDef

OPS = re.findall(
    r"\w+",
    "returns vtrace retrace scan policy_losses value_losses trust_region reduce schedules "
    "distributions discrete gaussian policy_statistics adam rmsprop",
)
"""Modules of quintet.ops in the order in which they are read."""

PAGES = {
    "quintet": {
        "quintet.api.train": "quintet.train",
        "quintet.policies.policy.load": "quintet.load",
        "quintet.policies.evaluation.evaluate": "quintet.evaluate",
        "quintet.envs.public.make_vector_env": "quintet.make_vector_env",
        "quintet.policies.policy.Policy": "quintet.Policy act value predict save export",
        "quintet.run.launch.Result": "",
        "quintet.policies.evaluation.Scores": "",
        "quintet.run.callbacks.Callbacks": "quintet.Callbacks",
        "quintet.run.callbacks.LiveRun": "quintet.run.callbacks.LiveRun env_steps policy log",
    },
    "ops": {f"quintet.ops.{name}": "" for name in OPS},
    "protocols": {"quintet.protocols": "", "quintet.types": ""},
    "environments": {
        "quintet.envs.vector.VectorEnv": "",
        "quintet.envs.vector.StepRow": "",
        "quintet.envs.tensor.TensorVectorEnv": "",
        "quintet.envs.tensor.TensorStep": "",
        "quintet.envs.vector.EnvDescription": "",
        "quintet.envs.vector.allocate_row": "",
        "quintet.envs.vector.check_seeds": "",
        "quintet.envs.backends.Backend": "",
        "quintet.envs.backends.Group": "",
        "quintet.envs.fixed_shape.FixedShape": "",
        "quintet.models.text.TextEncoder": "",
    },
    "learners": {
        "quintet.algorithms.registry.Algorithm": "",
        "quintet.algorithms.registry.Late": "",
        "quintet.options.declaration.option": "",
        "quintet.options.declaration.Options": "",
    },
    "errors": {"quintet.errors": ""},
}
"""Objects and modules of each page; after an object's title the members that it shows, if these are
not all of its public ones."""

SHARED = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n {8}.*)*)", re.M)
FIELD = re.compile(r"^(\w+(?:, \w+)*): \S")
SENTENCE = re.compile(r"^(Returns|Raises|Source|Yields): (\S.*)$")
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Source):$")
WIDTH = 88


def page(name: str) -> str:
    """The generated part of a page."""
    return "".join(_shown(where, told) for where, told in PAGES[name].items())


class Place(NamedTuple):
    """A module, and the definition of an object in it; None: the module itself."""

    module: ast.Module
    definition: Definition | None


def _place(where: str) -> Place:
    path, _, name = where.rpartition(".")
    for module, inside in ((where, ""), (path, name)):
        file = ROOT / f"{module.replace('.', '/')}.py"
        if file.is_file():
            tree = ast.parse(file.read_text())
            return Place(tree, _last(tree.body, inside) if inside else None)
    raise LookupError(where)


def _last(body: list[ast.stmt], name: str) -> Definition:
    """The definition of that name: after its overloads, if there are any."""
    return [x for x in body if isinstance(x, Definition) and x.name == name][-1]


def _shown(where: str, told: str) -> str:
    title, *members = told.split() or [where]
    module, definition = _place(where)
    if definition is not None:
        return "".join(_object(definition, title, "##", members, module.body))
    parts = [f"\n## `{title}`\n", markdown(ast.get_docstring(module) or "")]
    parts += _values(module.body)
    for each in module.body:
        if isinstance(each, Definition) and each.name[0] != "_" and each in _unique(module.body):
            parts += _object(each, f"{title}.{each.name}", "###", [], module.body)
    return "".join(parts)


def _unique(body: list[ast.stmt]) -> list[Definition]:
    """The definitions, without overloads."""
    return [x for x in body if isinstance(x, Definition) and not _is(x, "overload")]


def _is(definition: Definition, decorator: str) -> bool:
    return any(ast.unparse(x).split("(")[0] == decorator for x in definition.decorator_list)


def _object(
    made: Definition, title: str, head: str, members: list[str], around: list[ast.stmt]
) -> Iterator[str]:
    """Heading, signature, meaning and members of a function or a class."""
    yield f"\n{head} `{title}`\n"
    short = title.rpartition(".")[2]
    if isinstance(made, ast.FunctionDef):
        overloads = [
            x
            for x in around
            if isinstance(x, ast.FunctionDef) and x.name == made.name and _is(x, "overload")
        ]
        if not _is(made, "property"):
            yield _code(_signature(short, each) for each in overloads or [made])
        yield markdown(ast.get_docstring(made) or "")
        return
    start = next((x for x in _functions(made) if x.name == "__init__"), None)
    if start is not None:
        yield _code([_signature(short, start)])
    elif fields := list(_fields(made.body)):
        yield _code([_call(short, fields, "")])
    yield markdown(ast.get_docstring(made) or "")
    if start is not None:
        yield markdown(ast.get_docstring(start) or "")
    if not members:
        yield from _values(made.body)
    for each in _functions(made):
        if each.name in members or not (members or each.name[0] == "_"):
            yield from _object(each, f"{short}.{each.name}", f"{head}#", [], made.body)


def _functions(made: ast.ClassDef) -> list[ast.FunctionDef]:
    return [x for x in _unique(made.body) if isinstance(x, ast.FunctionDef)]


def _values(body: list[ast.stmt]) -> Iterator[str]:
    """Fields and constants with the text below them, as a list."""
    lines = []
    for each, below in zip(body, [*body[1:], None], strict=True):
        target = each.target if isinstance(each, ast.AnnAssign) else None
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            target = each.targets[0]
        if not isinstance(target, ast.Name) or target.id[0] == "_":
            continue
        meaning = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            meaning = f": {' '.join(str(below.value.value).split())}"
        if meaning:
            lines.append(f"- `{target.id}`{meaning}\n")
    if lines:
        yield "\n" + "".join(lines)


def _fields(body: list[ast.stmt]) -> Iterator[str]:
    """The fields of a record with their types and defaults."""
    for each in body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            default = "" if each.value is None else f" = {ast.unparse(each.value)}"
            if each.target.id[0] != "_" and "init=False" not in default:
                yield f"{each.target.id}: {_plain(each.annotation)}{default}"


def _signature(name: str, made: ast.FunctionDef) -> str:
    args = made.args
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    words = [_argument(arg, x) for arg, x in zip(plain, defaults, strict=True)]
    words = words[1:] if plain and plain[0].arg in ("self", "cls") else words
    if args.posonlyargs:
        words.append("/")
    if args.vararg is not None:
        words.append(f"*{_argument(args.vararg, None)}")
    elif args.kwonlyargs:
        words.append("*")
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    words += [_argument(arg, x) for arg, x in named]
    if args.kwarg is not None:
        words.append(f"**{_argument(args.kwarg, None)}")
    result = "" if made.returns is None else f" -> {_plain(made.returns)}"
    return _call(name, words, result)


def _call(name: str, words: list[str], result: str) -> str:
    """A call with the types of its arguments, on one line or one line each."""
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= WIDTH or not words:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    typed = arg.arg if arg.annotation is None else f"{arg.arg}: {_plain(arg.annotation)}"
    if default is None:
        return typed
    return f"{typed} = {_plain(default, quoted=True)}"


def _plain(of: ast.expr, *, quoted: bool = False) -> str:
    """An expression as it stands, annotations without the quotes of later names."""
    if not quoted and isinstance(of, ast.Constant) and isinstance(of.value, str):
        return of.value
    return ast.unparse(of)


def _code(signatures: Iterable[str]) -> str:
    return "\n```python\n" + "\n".join(signatures) + "\n```\n"


def markdown(text: str) -> str:
    """A docstring as Markdown: lists of fields, arguments and errors, names of sections in bold."""
    lines: list[str] = []
    inside = ""
    # Arguments that share a meaning get a line each.
    for line in SHARED.sub(_each, text).split("\n"):
        if inside and not line.startswith(" ") and line.strip():
            inside = ""
        if found := SECTION.match(line):
            inside = "section"
            lines += ["", f"**{found[1]}:**", ""]
        elif inside == "section" and line.strip():
            item = re.match(r"^    (\w+): (.*)$", line)
            rest = f"  {line[8:]}" if line.startswith(" " * 8) else line[4:]
            lines.append(f"- `{item[1]}`: {item[2]}" if item else rest)
        elif inside and line.strip():
            lines.append(("  " if inside == "field" else "") + line.strip())
        elif found := SENTENCE.match(line):
            inside = "sentence"
            lines += ["", f"**{found[1]}:** {found[2]}"]
        elif lines and (found := FIELD.match(line)):
            inside = "field"
            if not lines[-1].startswith(("- `", "  ")):
                lines.append("")
            lines.append(f"- `{found[1]}`: {line[len(found[1]) + 2 :]}")
        elif line.startswith("``") and lines and lines[-1].startswith("``"):
            lines[-1] += "  "
            lines.append(line)
        else:
            lines.append(re.sub(r"::$", ":", line))
    shown = re.sub(r"\n{3,}", "\n\n", textwrap.dedent("\n".join(lines))).strip()
    return f"\n{shown}\n" if shown else ""


def _each(found: re.Match[str]) -> str:
    return "\n".join(f"    {name}: {found[2]}" for name in found[1].split(", "))
