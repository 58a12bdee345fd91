"""Which package may import which: the table of layers, no circles, no code that no program reaches."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.reachability import unreached

from fieldfare.cli.app import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fieldfare"

LAYERS = {
    # What everything stands on.
    "model": "",
    "effects": "",
    "files": "",
    "free_memory": "",
    "encodings": "",
    "units": "",
    # The pure core, from the filters up to the pipeline.
    "filters": "model",
    "matching": "files filters model",
    "arrow_events": "matching",
    "partitioning": "filters matching model",
    "forwarding": "partitioning",
    "planning": "filters forwarding matching model partitioning",
    "elasticity": "effects",
    "balancing": "effects",
    "routing": "",
    "pipeline": "arrow_events filters forwarding matching model partitioning",
    "publishing": "effects",
    "delivery": "effects model",
    # What touches disks, networks and clocks.
    "storage": "arrow_events elasticity files matching model pipeline",
    "client": "effects encodings filters model publishing",
    "gateway": (
        "arrow_events balancing delivery effects encodings files filters free_memory model routing"
        " runtimes.machines runtimes.process storage units"
    ),
    "runtimes.files": "arrow_events encodings matching",
    "runtimes.machines": "effects",
    "runtimes.process": "files storage",
    "runtimes.service": "files runtimes.process storage",
    "runtimes.indexer": (
        "files filters free_memory matching model partitioning pipeline planning runtimes.process storage"
    ),
    "runtimes.spark": (
        "arrow_events effects elasticity files filters forwarding free_memory matching model partitioning"
        " pipeline planning runtimes.files runtimes.machines runtimes.process storage"
    ),
    "spark": "runtimes.spark",
    # For the unit tests of users.
    "testing": "client filters gateway model runtimes.process runtimes.spark storage",
    "cli": (
        "arrow_events client elasticity files filters forwarding gateway matching model pipeline planning"
        " runtimes spark storage units"
    ),
}
"""Which packages each one may import."""

PROGRAMS = {
    *("__main__", "gateway.__main__", "runtimes.indexer.__main__", "runtimes.spark.driver", "spark"),
    *("runtimes.spark.worker_daemon", "runtimes.spark.class_archive", "client.metrics"),
}
"""Modules that are run, or imported by users, and by no other module."""

PUBLIC = ("__init__", "client", "spark", "testing")
"""Packages whose `__all__` users import from."""

CALLED_BY_NAME = ("runtimes.spark.warmup.run_seldom_kernels_once",)
"""Definitions that a process of its own calls, by a text."""


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


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports."""
    return {name: imported_by(path) for name, path in MODULES.items()}


def is_below(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def crossing(importers: str, imported: str) -> set[str]:
    """The modules below one package that import something below another."""
    return {
        name
        for name, found in imports().items()
        if is_below(name, importers) and any(is_below(each, imported) for each in found)
    }


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_only_those_below_it(layer: str) -> None:
    allowed = (*LAYERS[layer].split(), layer)
    beyond = {
        f"{name} imports {each}"
        for name, found in imports().items()
        if is_below(name, layer)
        for each in found
        if not any(is_below(each, package) for package in allowed)
    }
    assert beyond == set()


def test_every_module_has_its_place_in_the_table() -> None:
    placed = {name for name in MODULES if any(is_below(name, layer) for layer in LAYERS)}
    assert set(MODULES) - placed == {"__init__", "__main__", "runtimes"}


def test_nobody_outside_knows_a_library_by_its_insides() -> None:
    outside = {name for name in imports() if not is_below(name, "matching")}
    assert {
        name for name in outside if any(is_below(each, "matching.plain") for each in imports()[name])
    } == set()


def test_versions_and_parts_know_a_library_by_its_name_only() -> None:
    around = {name for name in crossing("matching", "matching.plain") if not is_below(name, "matching.plain")}
    assert around == {"matching.libraries"}


def test_building_and_searching_do_not_know_each_other() -> None:
    assert crossing("matching.plain.building", "matching.plain.search") == set()
    assert crossing("matching.plain.search", "matching.plain.building") == set()


def test_events_and_their_evaluation_know_no_index() -> None:
    beside = {"calendar", "compiled", "events", "evaluation"}
    for package in ("matching.events", "matching.evaluation"):
        for name in (name for name in imports() if is_below(name, package)):
            known = {each.split(".")[1] for each in imports()[name] if each.startswith("matching.")}
            assert known <= beside, name


def test_no_imports_go_in_a_circle() -> None:
    """Nor one that only a type checker walks: who must know each other is one thing."""
    circles = {name for name in imports() if name in reached_from(name)}
    assert circles == set()


def reached_from(name: str) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        new = imports().get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def test_programs_commands_and_public_names_reach_all_product_code() -> None:
    """Code that only experiments and tests use is in lab/: re-exported by a package, it looked used."""
    commands = [
        (f"cli.{module}", name) for module, name in (place.split(":") for place, _ in COMMANDS.values())
    ]
    public = [
        *((each, "__all__") for each in PUBLIC),
        *commands,
        *(each.rsplit(".", 1) for each in CALLED_BY_NAME),
    ]
    assert unreached("fieldfare", MODULES, PROGRAMS, [(module, name) for module, name in public]) == set()


def test_a_definition_that_only_a_package_exports_is_not_reached(tmp_path: Path) -> None:
    texts = {
        "__init__": "",
        "a": "from p.b import used\nfrom p import d\n\ndef main():\n    used()\n    d.of_d()\n",
        "b": "from p.b.c import exported, used\n__all__ = ['exported', 'used']\n",
        "b.c": "def exported(): ...\n\ndef used(): inner()\n\ndef inner(): ...\n\nN = 1\n",
        "d": "def of_d(): ...\n\ndef other(): ...\n",
        "e": "from p.d import other\n\ndef alone(): other()\n",
    }
    modules = {}
    for name, text in texts.items():
        modules[name] = tmp_path / f"{name}.py"
        modules[name].write_text(text)
    assert unreached("p", modules, ["a"], []) == {"b.c.exported", "b.c.N", "d.other", "e"}
    assert unreached("p", modules, ["a"], [("b", "__all__"), ("b.c", "N")]) == {"d.other", "e"}


def test_what_programs_import_exists() -> None:
    """Benchmarks and experiments are run seldom, and are to run then."""
    root = PACKAGE.parents[1]
    missing = []
    for folder in ("benchmarks", "examples", "experiments", "lab", "tools"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fieldfare"):
                    try:
                        exec(ast.unparse(node), {})
                    except ImportError as error:
                        missing.append(f"{path.relative_to(root)}:{node.lineno} {error}")
    assert not missing, "\n".join(missing)
