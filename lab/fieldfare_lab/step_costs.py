"""The cost of a step of a filter's work (``fieldfare.filters.work``), for each kind of operation.

Each case is a condition on an event's attributes, evaluated by columns in a quantifier over an array, with
values that make it slow: long texts that nearly fit, characters of several bytes, long numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fieldfare.filters import compile_filter
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.functions.table import Function, Type
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.steps import count_steps
from fieldfare.matching.events.json_decoder import decode_json_lines

ELEMENTS_MAX = 20_000
"""Maximum elements of a case's array; an event has at most a mebibyte."""


class Cost(NamedTuple):
    """The measured cost of a case, in processor time."""

    steps: int
    evaluation_ns: float
    """Per step."""
    counting_ns: float
    """Per step."""


_FIRST = np.zeros(1, np.int64)

Values = Mapping[str, Any]

_A = "a" * 4_000
_LATE = "a" * 61 + "b"
_PARTLY = "a" * 2_000 + "b" + "a" * 1_500
_HAN = "".join(map(chr, range(0x4E00, 0x4E00 + 1_000)))
_MANY_DIGITS, _TINY, _HUGE = 1.5e-300, 10**300 + 1, 10**300

SEARCHES: dict[str, tuple[str, Values]] = {
    "LIKE, a piece that nearly fits": (f"data.t LIKE '%{_LATE}%'", {"t": _A}),
    "LIKE, a long piece that nearly fits": (f"data.t LIKE '%{_PARTLY}%'", {"t": _A}),
    "LIKE, _ before a piece": (f"data.t LIKE '%_{_LATE}%'", {"t": _A}),
    "LIKE, _ after a piece": (f"data.t LIKE '%{_LATE}_%'", {"t": _A}),
    "LIKE, _ in a piece": (f"data.t LIKE '%aa_{_LATE[4:]}%'", {"t": _A}),
    "LIKE, _ in a long piece": (f"data.t LIKE '%aa_{_PARTLY}%'", {"t": _A}),
    "LIKE, many _": (f"data.t LIKE '%{'_' * 3_000}b%'", {"t": _A}),
    "ILIKE": (f"data.t ILIKE '%{'ä' * 30}b%'", {"t": "Ä" * 2_000}),
    "CONTAINS of an attribute": ("CONTAINS(data.t, data.p)", {"t": _A, "p": _LATE}),
    "CONTAINS of a long attribute": ("CONTAINS(data.t, data.p)", {"t": _A, "p": _PARTLY}),
    "POSITION of a long attribute": ("POSITION(data.p, data.t) = 5", {"t": _A, "p": _PARTLY}),
    "REPLACE of a long attribute": ("REPLACE(data.t, data.p, 'x') = 'b'", {"t": _A, "p": _PARTLY}),
    "REPLACE of every character": ("REPLACE(data.t, 'a', 'b') = 'b'", {"t": _A}),
    "LIKE of a text that REPLACE makes longer": (
        f"REPLACE(data.t, 'a', '{'c' * 60}') LIKE '%_{'c' * 61}b%'",
        {"t": "a" * 63},
    ),
    "UPPER of a text that REPLACE makes longer": (
        f"UPPER(UPPER(REPLACE(data.t, 'a', '{'c' * 60}'))) = 'b'",
        {"t": "a" * 63},
    ),
    "TRIM of many characters": ("TRIM(data.t, data.c) = 'x'", {"t": _A, "c": _HAN + "a"}),
    "TRIM of 60 characters": (f"TRIM(data.t, '{_HAN[:20]}a') = 'x'", {"t": _A}),
    "CONCAT with a long literal": (f"CONCAT(data.t, '{_A}') = 'x'", {"t": "a"}),
}
CHARACTERS = {
    "ASCII": "aB",
    "two bytes": "äÖ",
    "three bytes": "龍ẞ",
    "four bytes": "😀",
    "sigma": "aΣ",
    "ΐ": "ΐ",
}
CHANGES = {
    f"{name} of {kind}": (f"{name}(data.t) = 'x'", {"t": text * 1_000})
    for kind, text in CHARACTERS.items()
    for name in ("UPPER", "LOWER", "CASEFOLD", "LENGTH", "TRIM")
}
FOLDED = {
    f"{name} of {kind}": (f"{name}(data.t, data.u)", {"t": text * 500, "u": text.upper() * 500})
    for kind, text in CHARACTERS.items()
    for name in ("EQUALS_IGNORE_CASE", "STARTS_WITH_IGNORE_CASE", "ENDS_WITH_IGNORE_CASE")
}
NUMBERS: dict[str, tuple[str, Values]] = {
    **{
        f"n {operator} m, {kind}": (f"data.n {operator} data.m = 5", {"n": n, "m": m})
        for kind, n, m in (
            ("short", 7, 3),
            ("digits", 0.1234567891, 12345678912),
            ("tiny", _MANY_DIGITS, 2.5e-300),
            ("huge", _TINY, _HUGE),
        )
        for operator in "+-*/%"
    },
    "comparison of exact numbers": ("data.n < data.m", {"n": _HUGE + 2, "m": _TINY}),
    "comparison of a float and a huge number": ("data.n > data.m", {"n": _MANY_DIGITS, "m": _HUGE}),
    "BETWEEN of exact numbers": ("data.n BETWEEN data.m AND 5", {"n": _HUGE, "m": _TINY}),
    "IN of an exact number": ("data.n IN (1, 2, 3)", {"n": _HUGE}),
    "text of a tiny number": ("CAST(data.n AS STRING) = 'x'", {"n": _MANY_DIGITS}),
    "LIKE of the text of a tiny number": (
        f"CAST(data.n AS STRING) LIKE '%_{'0' * 61}b%'",
        {"n": _MANY_DIGITS},
    ),
    "DECIMAL of an exponent": ("CAST(data.t AS DECIMAL(38, 10)) = 1", {"t": "1e-600"}),
    "DECIMAL": ("CAST(data.t AS DECIMAL(38, 10)) = 1", {"t": "1.5"}),
    **{
        f"NUMBER of {len(text)} characters": ("NUMBER(data.t) = 5", {"t": text})
        for text in ("15", "1e-600", "1" * 63, "1" * 999)
    },
    "INT": ("CAST(data.t AS INT) = 1", {"t": "1" * 63}),
    "a timestamp of many digits": (
        "TIMESTAMP(data.t) < TIMESTAMP('2020-01-01T00:00:00Z')",
        {"t": "2020-01-01T00:00:00.123456789012345Z"},
    ),
    "HOUR": ("HOUR(TIMESTAMP(data.t)) > 4", {"t": "2020-01-01T00:00:00Z"}),
    "IN_CIDR": ("IN_CIDR(data.t, 'fe80::/10')", {"t": "ee80:1:1:1:1:1:255.255.255.255"}),
    "IN_CIDR of no address": ("IN_CIDR(data.t, data.u)", {"t": "fe80:1:1:1:1:1:255.255.255.2x", "u": "::/1"}),
    "DISTANCE_KM": ("DISTANCE_KM(data.n, data.n, 1, i) < -5", {"n": 1.5}),
}
_PAIRS = list(range(200))
_DEEP = "abcdefghij" * 3
ELEMENTS: dict[str, tuple[str, Values]] = {
    "i = -1": ("ANY i IN data.a SATISFIES (i = -1)", {"a": list(range(20_000))}),
    "i[0] of arrays": ("ANY i IN data.a SATISFIES (i[0] = -1)", {"a": [[k] for k in range(20_000)]}),
    "i[0] of numbers": ("ANY i IN data.a SATISFIES (i[0] = -1)", {"a": list(range(20_000))}),
    "i.b": ("ANY i IN data.a SATISFIES (i.b = -1)", {"a": [{"b": k} for k in range(20_000)]}),
    "i.b[0]": ("ANY i IN data.a SATISFIES (i.b[0] = -1)", {"a": [{"b": [k]} for k in range(20_000)]}),
    "a deep path": (
        f"ANY i IN data.a SATISFIES (i.{'.'.join(_DEEP)} = -1)",
        {"a": [json.loads("".join(f'{{"{step}":' for step in _DEEP) + "1" + "}" * 30)] * 4_000},
    ),
    "pairs": ("ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (i < j AND j < i))", {"a": _PAIRS}),
    "pairs of texts": (
        "ANY i IN data.a SATISFIES (ANY j IN data.a SATISFIES (LENGTH(i) < LENGTH(j) AND i = j))",
        {"a": [f"ä{k:099}" for k in _PAIRS]},
    ),
    "ANY of each element": (
        "ANY i IN data.a SATISFIES (ANY j IN i SATISFIES (j = -1))",
        {"a": [[k] for k in range(20_000)]},
    ),
    "ANY of each number": (
        "ANY i IN data.a SATISFIES (ANY j IN i SATISFIES (j = -1))",
        {"a": list(range(20_000))},
    ),
    "three quantifiers": (
        "ANY i IN data.a SATISFIES (ANY j IN i SATISFIES (ANY k IN j SATISFIES (k = -1)))",
        {"a": [[[0] * 20] * 20] * 20},
    ),
    "five quantifiers": (
        "ANY i IN data.a SATISFIES (ANY j IN i SATISFIES (ANY k IN j SATISFIES "
        "(ANY l IN k SATISFIES (ANY m IN l SATISFIES (m = -1)))))",
        {"a": [[[[[0] * 5] * 5] * 5] * 5] * 20},
    ),
    "ELEMENT_AT": ("ANY i IN data.a SATISFIES (ELEMENT_AT(i, -1) = -1)", {"a": [[k] for k in range(20_000)]}),
    "ELEMENT_AT of ELEMENT_AT": (
        "ANY i IN data.a SATISFIES (ELEMENT_AT(ELEMENT_AT(i, 1), 1) = -1)",
        {"a": [[[k]] for k in range(20_000)]},
    ),
}

_OPERANDS = {
    Type.NUMBER: "i",
    Type.INTERVAL: "INTERVAL(i)",
    Type.TIMESTAMP: "TIMESTAMP(data.w)",
    Type.STRING: "data.t",
    Type.BOOLEAN: "(i > 5)",
    Type.ANY: "i",
}
_WRITTEN_OTHERWISE = frozenset(("CASE",))
_LITERALS = {"offset": "'+02:00'", "precision": "20", "scale": "5"}
_ORDINARY = {"n": 5, "w": "2020-01-01T00:00:00Z", "t": "some text"}


def every_function() -> Iterator[tuple[str, str, Values]]:
    """Yield a condition with each function of the filter language, on ordinary values."""
    for name, function in sorted(FUNCTIONS.items()):
        if name in _WRITTEN_OTHERWISE or name.startswith("CESQL"):
            continue
        call = f"{name}({', '.join(_operands(function))})"
        condition = call if function.result is Type.BOOLEAN else f"{call} IS NULL"
        yield name, condition, _ORDINARY


def _operands(function: Function) -> Iterator[str]:
    for place in range(max(function.operands_min, 1)):
        parameter = function.parameter(place)
        number = "1" if parameter.literal else _OPERANDS[parameter.type]
        yield _LITERALS.get(parameter.name, number)


def cases() -> Iterator[tuple[str, str, Values]]:
    """Yield the name, the filter and the data of each case."""
    for name, (text, data) in ELEMENTS.items():
        yield name, text, data
    conditions = [*every_function()]
    for group in (SEARCHES, CHANGES, FOLDED, NUMBERS):
        conditions += [(name, text, data) for name, (text, data) in group.items()]
    for name, condition, data in conditions:
        text = f"ANY i IN data.a SATISFIES ({condition})"
        yield name, text, {"a": [0], **data}


def _steps(text: str, data: Values) -> int:
    work = compile_filter(text).work
    assert work is not None
    return work.steps(lambda path: event_getter(path)({"data": data}))


def cost_of(text: str, data: Values, steps: int, turns: int) -> Cost:
    """Measure a case; an array of one element is repeated until it takes a number of steps."""
    condition = compile_filter(text)
    work = condition.work
    assert work is not None
    if len(data["a"]) == 1:
        one = _steps(text, {**data, "a": list(range(100))}) / 100
        data = {**data, "a": list(range(min(ELEMENTS_MAX, max(100, int(steps / one)))))}
    line = json.dumps({"data": data}, ensure_ascii=False).encode() + b"\n"
    prepared, evaluated, counted = BatchFilter(condition), list[float](), list[float]()
    for _ in range(turns + 1):
        columns = decode_json_lines(line, 1, list(condition.column_paths))
        start_s = time.thread_time()
        prepared.decides(columns)
        evaluated.append(time.thread_time() - start_s)
        count_steps(columns, work, _FIRST)  # the filters of a space share what it measures
        start_s = time.thread_time()
        (found,) = count_steps(columns, work, _FIRST).tolist()
        counted.append(time.thread_time() - start_s)
    return Cost(found, 1e9 * min(evaluated[1:]) / found, 1e9 * min(counted[1:]) / found)
