"""Which functions, classes and constants of a package its programs reach, by its sources alone.

A definition reaches the names in its text: those of its own module, and imported ones. A module's other
statements, and its functions that a decorator registers (a command of the CLI), run when anything of it is
reached. What a package's `__init__` only re-exports is reached if a module imports it from there. A module
that is used as a value (in a list of modules) may be read in any way: all of it is reached.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Definition = tuple[str, str]
"""(module, name); the name is empty for a module's other statements, and `ALL` for all that it defines."""

ALL = "*"
REGISTERING = {"command", "callback"}
"""Methods that, called as decorators, register a function."""


class Source:
    """A module's definitions and imports.

    Attributes
    ----------
    definitions
        The top-level statements that define each name.
    imports
        What each imported name is.
    statements
        The top-level statements that run with the module and define nothing.
    """

    def __init__(self, name: str, path: Path, package: str, modules: Iterable[str]) -> None:
        self._name = name
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, Definition] = {}
        self.statements: list[ast.stmt] = []
        self._registered: list[str] = []
        tree = ast.parse(path.read_text())
        for statement in tree.body:
            names = list(_defined_by(statement))
            for each in names:
                self.definitions.setdefault(each, []).append(statement)
            if not names:
                self.statements.append(statement)
            elif _is_registered(statement) or names[0] in ("__getattr__", "__dir__"):
                self._registered += names
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
                module = str(node.module).removeprefix(package).removeprefix(".") or "__init__"
                for alias in node.names:
                    inner = alias.name if module == "__init__" else f"{module}.{alias.name}"
                    found = (inner, "") if inner in modules else (module, alias.name)
                    self.imports[alias.asname or alias.name] = found

    def reached_from(self, name: str) -> Iterator[Definition]:
        """Yield what a definition's text names; of the module's other statements without a name."""
        if name in self.imports:
            yield self.imports[name]
        if not name:
            yield from ((self._name, each) for each in self._registered)
        for statement in self.definitions.get(name, ()) if name else self.statements:
            yield from self._named_in(statement)

    def all(self) -> Iterator[Definition]:
        yield from ((self._name, name) for name in ("", *self.definitions))

    def _named_in(self, statement: ast.AST) -> Iterator[Definition]:
        owners = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                if node.id in self.definitions:
                    yield self._name, node.id
                module, name = self.imports.get(node.id, ("", ""))
                if module:
                    yield module, name or ("" if id(node) in owners else ALL)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = self.imports.get(node.value.id, ("", ""))
                if module and not name:
                    yield module, node.attr
            elif (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.value, ast.Constant)
                and ast.unparse(node.annotation) == "TypeAlias"
            ):
                yield from self._named_in(ast.parse(str(node.value.value), mode="eval"))  # a quoted type


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_registered(statement: ast.stmt) -> bool:
    calls = (each.func for each in getattr(statement, "decorator_list", ()) if isinstance(each, ast.Call))
    return any(isinstance(each, ast.Attribute) and each.attr in REGISTERING for each in calls)


def unreached(
    package: str, modules: Mapping[str, Path], programs: Iterable[str], public: Iterable[Definition]
) -> set[str]:
    """Return the definitions that nothing reaches, as ``module.name``; a module without any by its own name.

    Parameters
    ----------
    package
        The package's name.
    modules
        The files by the modules' names, which are without the package's.
    programs
        Modules of which everything is reached.
    public
        Definitions that are called from outside; for the name ``__all__`` those that it lists.
    """
    sources = {name: Source(name, path, package, modules) for name, path in modules.items()}
    waiting = [each for program in programs for each in sources[program].all()]
    for module, name in public:
        exported = sources[module].definitions.get(name, ()) if name == "__all__" else ()
        constants = (node for each in exported for node in ast.walk(each) if isinstance(node, ast.Constant))
        waiting += [(module, name), *((module, str(node.value)) for node in constants)]
    reached: set[Definition] = set()
    while waiting:
        module, name = waiting.pop()
        if module in sources and (module, name) not in reached:
            reached.add((module, name))
            waiting += sources[module].all() if name == ALL else sources[module].reached_from(name)
            waiting.append((module, ""))
    found = set()
    for module, source in sources.items():
        left = {name for name in source.definitions if (module, name) not in reached} - {"__all__"}
        is_whole = (module, "") not in reached and left
        found |= {module} if is_whole else {f"{module}.{name}" for name in left}
    return found
