"""Notebooks run from top to bottom, with plain lines as progress (slow)."""

import re
from pathlib import Path
from typing import Any

import pytest
from installed_helpers import need

need("notebooks are run by nbclient and ipykernel", "nbformat", "nbclient", "ipykernel")

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"


def outputs(notebook: Any) -> list[Any]:
    return [x for cell in notebook.cells if cell.cell_type == "code" for x in cell.outputs]


def test_there_are_three_without_outputs():
    import nbformat

    found = {path.stem: nbformat.read(path, as_version=4) for path in FOLDER.glob("*.ipynb")}
    assert set(found) == {"first_policy", "own_environment", "compare_learners"}
    for notebook in found.values():
        nbformat.validate(notebook)
        assert not outputs(notebook)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first_policy", "own_environment", "compare_learners"])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import nbclient
    import nbformat

    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    found = outputs(notebook)
    text = "".join(x.text for x in found if x.output_type == "stream")
    assert "\x1b" not in text, "escape codes of a terminal"
    assert re.search(r"100%  [\d,]+/[\d,]+ env steps", text), text  # progress is plain lines
    data = [x.data for x in found if "data" in x]
    if name == "first_policy":
        assert re.search(r"policy (4[5-9]\d|500)\.\d, random actions [12]\d\.", text), text
        assert any("video/mp4" in x.get("text/html", "") for x in data)
        assert any("image/png" in x for x in data)
    elif name == "own_environment":
        policy, random = map(
            float, re.findall(r"policy (-[\d.]+), random actions (-[\d.]+)", text)[0]
        )
        assert policy > random / 2, text
    else:
        assert len(re.findall(r"(?:ppo|acer): \d+\.\d \(", text)) == 2, text
        assert sum("image/png" in x for x in data) == 3
