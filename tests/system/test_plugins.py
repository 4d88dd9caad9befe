"""Records of installed packages: found by name without an import; broken packages are named."""

import sys
from pathlib import Path

import pytest
from installed_helpers import install

from quintet.errors import ConfigError
from quintet.system.plugins import Catalog


@pytest.fixture
def catalog() -> Catalog[int]:
    return Catalog(
        "quintet.tests",
        "number",
        int,
        {"ten": "numbers_of_ours:TEN"},
        "quintet.jobs.imports:import_apart",
    )


@pytest.fixture(autouse=True)
def _ours(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "numbers_of_ours.py").write_text("TEN = 10\n")
    for name in ("numbers_of_ours", "three_of_others", "others"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def offer(folder: Path, package: str, line: str, **files: str) -> None:
    """An installed package with an entry point of the group."""
    texts = {f"{name}.py": text for name, text in files.items()}
    install(folder, package, f"[quintet.tests]\n{line}\n", texts)


def test_names_are_read_without_an_import(catalog: Catalog[int], packages: Path) -> None:
    assert catalog.names() == ["ten"]
    offer(packages, "num-three", "three = three_of_others:N", three_of_others="N = 3\n")
    assert catalog.names() == ["ten", "three"]
    assert "three" in catalog
    assert catalog.package_of("three") == "num-three 1.0"
    assert catalog.package_of("ten") == ""
    assert not {"three_of_others", "numbers_of_ours"} & sys.modules.keys()
    assert catalog.find("three") == 3
    assert dict(catalog.usable()) == {"ten": 10, "three": 3}
    assert catalog.faults() == []


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        (
            "three = others:N",
            "import no_such_module\n",
            "number 'three' must be importable, but importing others:N of num-three 1.0 raised "
            "ModuleNotFoundError: No module named 'no_such_module' (",
        ),
        (
            "three = others:N",
            "raise SystemExit(3)\n",
            "number 'three' must be importable, but importing others:N of num-three 1.0 called "
            "sys.exit(3) (",
        ),
        (
            "three = others:M",
            "N = 3\n",
            "number 'three' must be importable, but importing others:M of num-three 1.0 raised "
            "AttributeError: module 'others' has no attribute 'M'",
        ),
        (
            "three = others:N",
            "N = 'three'\n",
            "number 'three' must be a builtins.int, got 'three', which is others:N of num-three "
            "1.0: mend it there",
        ),
        (
            "Th-ree = others:N",
            "N = 3\n",
            "the name of a number must be a word in lower case, got 'Th-ree', which is others:N "
            "of num-three 1.0: rename it there",
        ),
    ],
)
def test_a_broken_package_is_named_and_stops_nobody_else(
    catalog: Catalog[int],
    packages: Path,
    line: str,
    text: str,
    said: str,
) -> None:
    offer(packages, "num-three", line, others=text)
    name = line.partition(" ")[0]
    with pytest.raises(ConfigError) as raised:
        catalog.find(name)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
    assert dict(catalog.usable()) == {"ten": 10}


def test_a_name_of_two_packages_is_nobody_s(catalog: Catalog[int], packages: Path) -> None:
    offer(packages, "num-a", "three = others:A", others="A, B = 3, 4\n")
    offer(packages, "num-b", "three = others:B")
    said = (
        "the name of a number must be of one package, got 'three' from num-a 1.0 and num-b 1.0: "
        "uninstall all but one"
    )
    assert catalog.faults() == [said]
    with pytest.raises(ConfigError) as raised:
        catalog.find("three")
    assert str(raised.value) == said
    assert "others" not in sys.modules
    assert dict(catalog.usable()) == {"ten": 10}


def test_nobody_takes_a_name_of_ours(catalog: Catalog[int], packages: Path) -> None:
    offer(packages, "num-a", "ten = others:A", others="A = 3\n")
    assert catalog.faults() == [
        "the name of a number must not be one of quintet's own, got 'ten' from num-a 1.0: "
        "quintet's own is used, uninstall that package or rename it there"
    ]
    assert catalog.find("ten") == 10
    assert "others" not in sys.modules
    with pytest.raises(ConfigError, match="must not be in use, got 'ten': choose another one"):
        catalog.register("ten", 3)


def test_what_is_registered_is_of_this_process(catalog: Catalog[int]) -> None:
    catalog.register("four", 4)
    assert catalog.names() == ["ten", "four"]
    assert catalog.find("four") == 4
    with pytest.raises(
        ConfigError, match=r"must be a builtins\.int, got '5', which is what is reg"
    ):
        catalog.register("five", "5")  # type: ignore[arg-type]


def test_metadata_that_can_t_be_read_stop_nobody(
    catalog: Catalog[int],
    packages: Path,
) -> None:
    (packages / "odd-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    (packages / "file-1.0.dist-info").write_text("")
    assert catalog.names() == ["ten"]
