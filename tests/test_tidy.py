"""The house rules that a machine can check: sizes, and a core without clocks, chance and I/O."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fieldfare"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PROGRAMS = sorted(
    path
    for folder in ("src", "lab", "tests", "benchmarks", "examples", "experiments", "tools")
    for path in (ROOT / folder).rglob("*.py")
)

MODULE_LINES = 600
FUNCTION_LINES = 70

OUTER_FOLDERS = {"runtimes", "storage", "gateway", "client", "cli", "testing"}
"""The only folders that may read a clock, draw unseeded random numbers, sleep, or do I/O."""

FILE_READERS = {"files.py", "matching/compiled.py", "matching/files.py", "spark.py"}
"""Modules of the core whose purpose is a file (written whole, mapped, cached), and one of names only."""

OUTSIDE_MODULES = {
    *("asyncio", "concurrent", "http", "httpx", "multiprocessing", "os", "requests", "sched", "secrets"),
    *("select", "shutil", "signal", "socket", "sqlalchemy", "sqlite3", "starlette", "subprocess"),
    *("tempfile", "threading", "time", "urllib", "uuid", "uvicorn"),
}
OUTSIDE_CALLS = {"open", "input", "print"}
CLOCK_CALLS = {"now", "utcnow", "today"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_core(path: Path) -> bool:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] not in OUTER_FOLDERS and relative.as_posix() not in FILE_READERS


CORE = [path for path in SOURCES if is_core(path)]


def test_modules_and_functions_stay_small() -> None:
    large = []
    for path in PROGRAMS:
        text = path.read_text()
        if text.count("\n") > MODULE_LINES:
            large.append(f"{name_of(path)} holds more than one idea")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    large.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not large, "\n".join(large)


def impurities(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OUTSIDE_MODULES:
                    yield node.lineno, f"imports {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module.split(".")[0] in OUTSIDE_MODULES:
                yield node.lineno, f"imports from {node.module}"
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in OUTSIDE_CALLS:
                yield node.lineno, f"calls {function.id}()"
            if isinstance(function, ast.Attribute) and function.attr in CLOCK_CALLS and not node.args:
                yield node.lineno, f"reads a clock: {function.attr}()"
            if draws_from_the_module(function) and not (is_generator(function) and node.args):
                yield node.lineno, f"draws an unseeded number: {ast.unparse(function)}"


def draws_from_the_module(function: ast.expr) -> bool:
    return bool(re.fullmatch(r"(np\.)?random\.\w+", ast.unparse(function)))


def is_generator(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in {"Random", "default_rng"}


def test_test_files_outside_of_packages_have_names_of_their_own() -> None:
    """Pytest imports them by name alone: two of one name end a run of all tests, but not of one folder."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        if not (path.parent / "__init__.py").exists():
            found.setdefault(path.name, []).append(name_of(path))
    assert not [names for names in found.values() if len(names) > 1]


def test_the_core_has_no_clock_no_chance_and_no_io() -> None:
    found = [
        f"{name_of(path)}:{line} {what}"
        for path in CORE
        for line, what in impurities(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_the_purity_check_itself_finds_what_it_looks_for() -> None:
    clocks = ["import time", "datetime.now()", "from os import path"]
    lines = [*clocks, "open('x')", "random.random()", "np.random.default_rng()"]
    sample = "\n".join(lines)
    assert {line for line, _ in impurities(ast.parse(sample))} == {1, 2, 3, 4, 5, 6}


def modules_loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_spark_workers_load_no_web_framework_and_no_event_loop() -> None:
    """A Python worker of Spark starts often and holds little: matching and pipeline drag nothing else in."""
    loaded = modules_loaded_by("import fieldfare.matching.index, fieldfare.pipeline.match_batch")
    assert not loaded & {"asyncio", "simpy", "starlette", "uvicorn", "sqlalchemy", "httpx"}


def test_a_client_program_loads_no_numpy_and_no_spark() -> None:
    loaded = modules_loaded_by("from fieldfare import AsyncClient, Client\nimport fieldfare.filters")
    assert not loaded & {"numpy", "numba", "pyarrow", "pyspark", "pandas", "sqlalchemy", "starlette"}


def test_no_task_waits_in_a_way_that_loses_its_cancellation() -> None:
    """In Python 3.11 ``asyncio.wait_for`` returns a result that is there as its task is cancelled.

    The task then goes on for ever, and whoever ends it waits for it: ``asyncio.timeout`` does not do that.
    """
    assert [name_of(path) for path in SOURCES if "asyncio.wait_for(" in path.read_text()] == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git says what belongs here")
def test_no_text_names_a_place_that_exists_on_one_machine_only() -> None:
    local = re.compile(
        r"(?<![\w.])/(?:work|farm|root)/\w+|https?://\S+\.(?:whl|tar\.gz|jar)\b|--(?:extra-)?index-url"
    )
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT).stdout.split("\n")
    for name in filter(None, listed):
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".txt", ".yml", ".cfg", ""}
            and path.is_file()
            and path != Path(__file__)
        ):
            for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
                assert not local.search(line), f"{name}:{number} {line.strip()[:80]}"


SECTION = re.compile(r"\n(?:Parameters|Attributes)\n-{3,}\n(.*?)(?=\n\n\w[^\n]*\n-{3,}|\Z)", re.DOTALL)


def test_docstrings_say_what_a_thing_is_below_its_name() -> None:
    """numpydoc: behind the name and a colon stands its type, and nothing else."""
    no_types = [
        f"{name_of(path)}:{node.lineno} {entry}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for section in SECTION.findall(ast.get_docstring(node) or "")
        for entry in re.findall(r"^\w.* : (.*)$", section, re.MULTILINE)
        if re.match(r"(the|how|what|whether|where|which|when|who|its) ", entry) or entry.endswith(".")
    ]
    assert not no_types, "\n".join(no_types)


STANDS_ONCE = {
    *("AGES_NOTED", "BLOCK_EVENTS_MAX", "INT_DIGITS_MAX", "LENGTH_BITS", "OPEN_BLOCKS", "OPEN_BLOCKS_MAX"),
    *("OPEN_TRIES", "PROBLEMS_MAX", "RECORD_EVENTS_MAX", "REMEMBERED_SEQUENCES", "SIZE_MAX"),
}
"""Constants that stood in several modules."""


def test_a_constant_that_is_one_thing_stands_once() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for statement in ast.parse(path.read_text()).body:
            for target in statement.targets if isinstance(statement, ast.Assign) else ():
                if isinstance(target, ast.Name) and target.id.strip("_") in STANDS_ONCE:
                    found.setdefault(target.id.strip("_"), []).append(name_of(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
