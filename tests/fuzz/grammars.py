"""Grammars of the dialects, for inputs that are nearly always valid filters.

A grammar's texts start from its ``condition``; a part in braces is replaced by one of its alternatives.
"""

from __future__ import annotations

import random
import re

Grammar = dict[str, list[str]]

SQL: Grammar = {
    "condition": [
        *("{value} {compare} {value}", "{value} {compare} {literal}", "{name} {compare} {literal}"),
        *(
            "{name} IN ({literal}, {literal})",
            "{value} NOT IN ({value}, {literal}, {value})",
            "{name} IS NOT NULL",
        ),
        *(
            "{text} LIKE {string}",
            "{text} NOT LIKE '%a_b!%' ESCAPE '!'",
            "{text} ILIKE {string}",
            "EXISTS({name})",
        ),
        *("{value} BETWEEN {value} AND {value}", "NOT {condition}", "({condition}) IS NOT UNKNOWN", "{name}"),
        *("({condition} AND {condition})", "({condition} OR {condition})", "{condition} AND {condition}"),
        *("{condition} OR {condition}", "TRUE", "{time} {compare} {time}", "{span} {compare} {span}"),
        *("ANY i IN {name} SATISFIES ({condition} OR i.x = {literal})", "{literal} {compare} ANY({name})"),
        *("ALL j IN {name} SATISFIES (j {compare} {literal})", "{name} {compare} ALL({name})"),
        *("STARTS_WITH({text}, {string})", "CONTAINS({text}, {text})", "ENDS_WITH({name}, {string})"),
        "WITHIN_BOX({name}, {number}, -45, {degrees}, 40.5, {degrees})",
        *("{value} IS DISTINCT FROM {value}", "{time} IS NOT DISTINCT FROM {time}", "{value} <=> {literal}"),
        *(
            "{text} LIKE ANY ({string}, {string})",
            "{text} NOT ILIKE ALL ({string})",
            "{literal} NOT IN {name}",
        ),
        *("ARRAY_CONTAINS({name}, {value})", "BOOLEAN({value})", "{name} <=> ANY({name}) -- {string}\n"),
        *("CASE WHEN {condition} THEN {condition} ELSE {condition} END", "EQUAL_NULL({value}, {value})"),
    ],
    "value": [
        *("{name}", "{literal}", "{number}", "{text}", "COALESCE({value}, {value})", "({condition})"),
        *("CASE {value} WHEN {literal} THEN {value} WHEN {value} THEN {literal} END", "{name}[-1]['x']"),
        *("CASE WHEN {condition} THEN {value} ELSE {value} END", "NULLIF({value}, {literal})"),
        *("GREATEST({value}, {value}, {literal})", "LEAST({value}, {value})", "ELEMENT_AT({value}, {value})"),
    ],
    "number": [
        *(
            "{name}",
            "{digits}",
            "({number} + {number})",
            "{number} - {number}",
            "({number} * {number})",
            "-{name}",
        ),
        *(
            "({number}) / {number}",
            "LENGTH({text})",
            "ABS({number})",
            "ROUND({number}, {digits})",
            "FLOOR({number})",
        ),
        *("DISTANCE_KM({name}, {name}, 40.7, {degrees})", "POSITION({string} IN {text})", "NUMBER({value})"),
        *("CARDINALITY({value})", "CAST({value} AS BIGINT)", "TRY_CAST({text} AS DECIMAL(5, 2))", "1_000"),
        *("DATEDIFF({time}, {time})", "ELEMENT_AT({name}, -1)", "/* {text} */ 5"),
        *("WEEKDAY({time}, '+02:00')", "YEAR({time})", "SECOND({name})"),
    ],
    "text": [
        *(
            "{name}",
            "{string}",
            "LOWER({text})",
            "UPPER({text})",
            "TRIM({text})",
            "SUBSTRING({text}, {digits}, 5)",
        ),
        *(
            "({text} || {text})",
            "REPLACE({text}, 'a', {text})",
            "LEFT({text}, {digits})",
            "CAST({value} AS STRING)",
            "CONCAT({text}, {text})",
        ),
    ],
    "time": [
        *(
            "{name}",
            "TIMESTAMP '2026-01-31T12:00:00Z'",
            "TIMESTAMP({name})",
            "({time} + {span})",
            "DATE '2026-02-28'",
            "DATE({time}, '+02:00')",
            "DATE_ADD({time}, {number})",
            "CAST({name} AS DATE)",
        ),
    ],
    "span": [
        *(
            "INTERVAL '5' MINUTE",
            "INTERVAL 2 DAYS",
            "({time} - {time})",
            "INTERVAL '1.5 days'",
            "TIME_OF_DAY({time})",
            "TIME '09:30'",
        ),
    ],
    "compare": ["=", "<>", "<", "<=", ">", ">=", "!="],
    "literal": ["{digits}", "{string}", "TRUE", "FALSE", "NULL", "{digits}"],
    "string": ["'a'", "''", "'a''b'", "'A%'", "'%a%b%'", "'_x'", "'Straße'", "'2026-01-31T12:00:00Z'"],
    "digits": [
        "0",
        "1",
        "-1",
        "5",
        "2.5",
        "1e3",
        "0.1",
        "1e-300",
        "9007199254740993",
        "99999999999999999999",
    ],
    "degrees": ["-180", "-74", "0", "170", "180"],
    "name": ["a", "b", "data.x", "data.items[0].y", 'data."odd name"', "time", "i", "j.x", "data.tags"],
}

CESQL: Grammar = {
    "condition": [
        *("{name} = {string}", "{name} {compare} {integer}", "{value} {compare} {value}"),
        *("EXISTS {name}", "NOT {condition}", "NOT ({condition})", "({condition}) {logic} {condition}"),
        *("{condition} {logic} ({condition})", "({condition} {logic} {condition})"),
        *("{text} LIKE {string}", "{text} NOT LIKE {string}", "{value} IN ({value}, {value}, {string})"),
        *("{name} NOT IN ({string}, {integer})", "BOOL({value})"),
        *("TRUE", "{name}", "{value} = ({condition})", "{condition} AND {condition} AND {condition}"),
    ],
    "value": ["{name}", "{integer}", "{string}", "{text}", "{number}", "({condition})", "TRUE"],
    "number": [
        *("{name}", "{integer}", "({number} + {number})", "{number} * {number}", "{number} - {number}"),
        *("({number}) / {number}", "{number} % {number}", "-{name}", "- {number}", "LENGTH({text})"),
        *("ABS({number})", "INT({value})", "INT({text})"),
    ],
    "text": [
        *("{name}", "{string}", "LOWER({text})", "UPPER({text})", "TRIM({text})", "LEFT({text}, {integer})"),
        *("RIGHT({text}, {number})", "SUBSTRING({text}, {integer})", "SUBSTRING({text}, {number}, 2)"),
        *("CONCAT({text}, {text})", "CONCAT_WS({string}, {text}, {value})", "STRING({value})"),
    ],
    "name": ["a", "b", "type", "source", "time", "SUBJECT", "x1"],
    "integer": ["0", "1", "-1", "5", "2147483647", "1000000"],
    "string": ["'a'", '"b"', "''", "'A%'", "'%a_b%'", r"'a\'b'", r"'10\%'", "'1'", "'true'", "'Straße'"],
    "compare": ["=", "!=", "<>", "<", "<=", ">", ">="],
    "logic": ["AND", "OR", "XOR"],
}

SUBSCRIPTIONS: Grammar = {
    "condition": ["[{filter}]", "{filter}", "[]", "[{filter}, {filter}]", "[{filter}, {filter}, {filter}]"],
    "filter": [
        *('{"exact": {{attribute}}}', '{"prefix": {{attribute}}}', '{"suffix": {{attribute}, {other}}}'),
        *('{"all": [{filter}]}', '{"all": [{filter}, {filter}]}', '{"any": [{filter}, {filter}]}'),
        *('{"any": [{filter}, {filter}, {filter}]}', '{"not": {filter}}', '{"not": {filter}}'),
        *('{"sql": "{cesql}"}', '{"cesql": "{cesql}"}', '{"cesql": "{cesql} OR {cesql}"}'),
    ],
    "attribute": ['"type": {word}', '"source": {word}', '"a": {word}'],
    "other": ['"subject": {word}', '"b": {word}', '"time": {word}'],
    "cesql": ["type = 'a'", "EXISTS b", "a > 1", "NOT b", "LENGTH(type) < 3", "a LIKE 'A%'", "TRUE"],
    "word": ['"a"', '"b"', '"Abc"', '"A%"', '"é"', '"2026-01-31T12:00:00Z"', r'"\u0000\n"', '"a*"'],
}

EVENTBRIDGE: Grammar = {
    "condition": ["{fields}"],
    "fields": [
        *("{{first}: {field}}", "{{second}: {field}}", "{{first}: {field}, {second}: {field}}"),
        "{{first}: {field}, {second}: {field}, {third}: {field}}",
        '{"$or": [{{first}: {field}}, {{second}: {field}, {third}: {field}}]}',
        '{{first}: {field}, "$or": [{{second}: {field}}, {{third}: {field}}, {{second}: {field}}]}',
    ],
    "field": ["[{test}]", "{fields}", "[{test}, {test}]", "[{test}, {test}, {test}]", '["a"]', "[1]"],
    "test": [
        *("{string}", "{number}", "null", "true", "false", '"a"', '{"exists": true}', '{"exists": false}'),
        *('{"prefix": {string}}', '{"suffix": {string}}', '{"equals-ignore-case": {string}}'),
        *('{"prefix": {"equals-ignore-case": {string}}}', '{"suffix": {"equals-ignore-case": {string}}}'),
        *('{"wildcard": {wildcard}}', '{"cidr": {block}}', '{"exactly": {string}}'),
        *('{"numeric": [{compare}, {number}]}', '{"numeric": [">", {low}, "<=", {high}]}'),
        *('{"anything-but": {string}}', '{"anything-but": [{number}, {number}]}'),
        *('{"anything-but": {"prefix": {word}}}', '{"anything-but": {"suffix": [{word}, {word}]}}'),
        *('{"anything-but": {"wildcard": [{wildcard}]}}', '{"anything-but": {"equals-ignore-case": {word}}}'),
    ],
    "first": ['"a"', '"type"', '"source"', '"x"'],
    "second": ['"b"', '"data"', '"time"', '"y"'],
    "third": ['"i"', '"odd name"', '"tags"', '"items"'],
    "string": ["{word}", '""', '"10.0.0.1"', '"::1"', r'"a\u00e9"'],
    "word": ['"a"', '"b"', '"Abc"', '"ß"', '"red"'],
    "wildcard": ['"*"', '"a*"', '"*a*b*"', r'"a\\*b"', '"a*b*c"'],
    "block": ['"10.0.0.0/24"', '"0.0.0.0/0"', '"2001:db8::/32"', '"::/0"'],
    "number": ["{low}", "{high}", "1", "2.5", "1e-300", "9007199254740993"],
    "low": ["0", "-1", "-2.5", "1e-7"],
    "high": ["5", "7.25", "1e10", "9007199254740991"],
    "compare": ['"="', '"<"', '"<="', '">"', '">="'],
}

GRAMMARS = {"sql": SQL, "cesql": CESQL, "subscriptions": SUBSCRIPTIONS, "eventbridge": EVENTBRIDGE}

_PART = re.compile(r"\{(\w+)\}")


def text_of(grammar: Grammar, rng: random.Random) -> str:
    """A text by a grammar; large ones are cut short by taking alternatives without parts."""
    left = rng.choice([3, 10, 30, 80])

    def expand(name: str, depth: int) -> str:
        nonlocal left
        left -= 1
        options = grammar[name]
        if left < 0 or depth > 25:
            short = [option for option in options if not _PART.search(option) or option in _SHORT]
            options = short or options[:3]
        return _PART.sub(lambda part: expand(part[1], depth + 1), rng.choice(options))

    return expand("condition", 0)


_SHORT = ("{name}", "{digits}", "{string}", "{integer}")
