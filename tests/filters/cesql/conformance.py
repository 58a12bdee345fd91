"""A reader of CESQL's conformance tests, which are in a folder beside the checkout.

They are YAML files and use little of it: one list of cases per file, each with scalars and one
level of scalars below ``event`` and ``eventOverrides``. Other YAML is rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("FIELDFARE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
FOLDER = SHARED / "cesql_tck"

_LINE = re.compile(r"(?P<indent> *)(?P<dash>- )?(?P<key>\w+):(?: +(?P<value>.*?))? *")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_SINGLE_QUOTED = re.compile(r"'((?:[^']|'')*)'")


@dataclass
class Case:
    """One case: an expression, an event, and the expected result."""

    file: str
    name: str = ""
    expression: str = ""
    has_result: bool = False
    result: Any = None
    error: str | None = None
    event: dict[str, Any] = field(
        default_factory=lambda: {"specversion": "1.0", "id": "i", "source": "s", "type": "t"}
    )


def cases() -> list[Case]:
    """Return all cases; none if the folder is missing."""
    return [case for path in sorted(FOLDER.glob("*.yaml")) for case in _cases_of(path)]


def _cases_of(path: Path) -> Iterator[Case]:
    case: Case | None = None
    inner: dict[str, Any] | None = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line)
        assert found, f"{path}:{number}: {line!r}"
        indent, key, value = len(found["indent"]), found["key"], found["value"]
        if indent == 0:
            continue
        if found["dash"]:
            if case:
                yield case
            case, inner = Case(path.stem), None
        assert case is not None
        if indent > 4:
            assert inner is not None and value is not None, f"{path}:{number}"
            inner[key] = _typed(value)
            continue
        inner = None
        if key == "event":
            inner = case.event = {}
        elif key == "eventOverrides":
            inner = case.event
        elif key == "result":
            case.has_result, case.result = True, _typed(value)
        elif key in ("name", "expression", "error"):
            setattr(case, key, _text(value))
        else:
            raise AssertionError(f"{path}:{number}: {key}")
    if case:
        yield case


def _quoted(value: str) -> str | None:
    if found := _DOUBLE_QUOTED.fullmatch(value):
        return re.sub(r"\\(.)", r"\1", found[1])
    if found := _SINGLE_QUOTED.fullmatch(value):
        return found[1].replace("''", "'")
    assert value[0] not in "\"'{[|>&*!", value
    return None


def _text(value: str) -> str:
    quoted = _quoted(value)
    return value if quoted is None else quoted


def _typed(value: str) -> Any:
    quoted = _quoted(value)
    if quoted is not None:
        return quoted
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if re.fullmatch(r"-?[0-9]+", value) else value
