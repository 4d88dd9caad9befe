"""A hook of MkDocs: files outside of docs/ that pages link to are pages of the site too.

Markdown stays Markdown, other texts are shown as code, folders as lists of their files.  Links in
docs/ can so be those that also work in a checkout, and the site leads nowhere else.  README.md is
the home page.
"""

import json
import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^(`{3,}).*?^\2$)", re.M | re.S)
FIRST = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/tuning.md", "benchmarks/parts.md")
"""Pages of the navigation."""

LANGUAGES = {".py": "python", ".ipynb": "json", ".yaml": "yaml", ".toml": "toml", ".json": "json"}

MOST_LISTED = 20
"""Files of a folder that have pages of their own."""


def place(uri: str) -> str:
    """A page's path in the repository."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith("outside/"):
        path = uri.removeprefix("outside/")
        return path if (ROOT / path).is_file() else path.removesuffix(".md")
    return f"docs/{uri}"


def page_of(path: str) -> str:
    """The page that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    if path.endswith(".md"):
        return f"outside/{path}"
    return f"outside/{path}/index.md" if (ROOT / path).is_dir() else f"outside/{path}.md"


def linked(text: str, path: str) -> set[str]:
    """Files of the repository outside of docs/ that a Markdown file links to."""
    folder = Path(path).parent.as_posix()
    found = {normpath(f"{folder}/{target}") for target, _ in LINK.findall(CODE.sub("", text))}
    return {
        x for x in found if not x.startswith("docs/") and x != "README.md" and (ROOT / x).exists()
    }


def shown(path: str) -> str:
    """A file or folder as Markdown."""
    at = ROOT / path
    if at.suffix == ".md":
        return at.read_text()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {at.name}\n\n`{path}`\n\n"
    if at.is_dir():
        files = sorted(x for x in at.rglob("*") if x.suffix in LANGUAGES and x.is_file())
        names = [x.relative_to(at).as_posix() for x in files]
        if len(names) > MOST_LISTED:
            return head + "\n".join(f"- `{name}`" for name in names) + "\n"
        return head + "\n".join(f"- [`{name}`]({name})" for name in names) + "\n"
    if at.suffix == ".ipynb":
        return "\n\n".join([head, *map(cell_as_markdown, json.loads(at.read_text())["cells"])])
    return f"{head}````{LANGUAGES.get(at.suffix, '')}\n{at.read_text()}\n````\n"


def cell_as_markdown(cell: dict[str, Any]) -> str:
    """A notebook's cell without its outputs."""
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every file outside of docs/ that some page links to."""
    readme = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=readme))
    waiting = {*FIRST, *linked(readme, "README.md")}
    for file in files.documentation_pages():
        waiting |= linked(file.content_string, place(file.src_uri))
    done: set[str] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        content = shown(path)
        listed = InclusionLevel.UNDEFINED if path in FIRST else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page_of(path), content=content, inclusion=listed))
        if path.endswith(".md") or (ROOT / path).is_dir():
            waiting |= linked(content, path if path.endswith(".md") else f"{path}/x") - done
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links of a page to the pages that show their files."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]
    path = place(uri)
    folder, here = Path(path).parent.as_posix(), Path(uri).parent.as_posix()

    def led(link: re.Match[str]) -> str:
        target = normpath(f"{folder}/{link[1]}")
        return f"]({relpath(page_of(target), here)}{link[2] or ''})"

    # Every third part is code, every third one the fence of the code before it.
    parts = CODE.split(markdown)
    return "".join(x if at % 3 else LINK.sub(led, x) for at, x in enumerate(parts) if at % 3 < 2)
