"""Who may import whom, in and around `matching`: a library is known by its protocol alone."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "fieldfare"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imported_by(path: Path) -> set[str]:
    """The modules of the package that one imports, also within functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fieldfare."):
            module = str(node.module).removeprefix("fieldfare.")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in MODULES else module)
        elif isinstance(node, ast.Import):
            names = (alias.name.removeprefix("fieldfare.") for alias in node.names)
            found |= {name for name in names if name in MODULES}
    return found


IMPORTS = {name: imported_by(path) for name, path in MODULES.items()}


def crossing(importers: str, imported: str) -> set[str]:
    """The modules below one package that import something below another."""
    return {
        name
        for name, found in IMPORTS.items()
        if f"{name}.".startswith(f"{importers}.")
        and any(f"{each}.".startswith(f"{imported}.") for each in found)
    }


def test_filters_know_nothing_of_the_index() -> None:
    assert crossing("filters", "matching") == set()


def test_nobody_outside_knows_a_library_by_its_insides() -> None:
    assert {
        name for name, found in IMPORTS.items() if any(each.startswith("matching.plain") for each in found)
    } - {name for name in IMPORTS if name.startswith("matching.")} == set()


def test_versions_and_parts_know_a_library_by_its_name_only() -> None:
    around = {
        name for name in crossing("matching", "matching.plain") if not name.startswith("matching.plain")
    }
    assert around == {"matching.libraries"}


def test_building_and_searching_do_not_know_each_other() -> None:
    assert crossing("matching.plain.build", "matching.plain.search") == set()
    assert crossing("matching.plain.search", "matching.plain.build") == set()


def test_events_and_their_evaluation_know_no_index() -> None:
    beside = {"compiled", "events", "evaluation"}
    for package in ("matching.events", "matching.evaluation"):
        for name in (name for name in IMPORTS if f"{name}.".startswith(f"{package}.")):
            known = {each.split(".")[1] for each in IMPORTS[name] if each.startswith("matching.")}
            assert known <= beside, name


def test_no_imports_go_in_a_circle() -> None:
    for package in ("filters", "matching", "pipeline"):
        for name in IMPORTS:
            if name.startswith(f"{package}."):
                assert name not in reached_from(name), f"{name} imports itself, by way of others"


def reached_from(name: str) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        new = IMPORTS.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached
