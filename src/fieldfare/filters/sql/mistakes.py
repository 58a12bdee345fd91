"""Messages for mistakes in the ``sql`` dialect, with hints for corrections."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.filters.errors import Mistake, nearest
from fieldfare.filters.expression import Arithmetic, Expression, Literal
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.times import timestamp
from fieldfare.filters.sql.lexer import KEYWORDS, Token
from fieldfare.filters.sql.paths import unquoted

_OPERATORS = ("AND", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "BETWEEN", "ESCAPE")
_BEFORE_LIST = ("IN", "BETWEEN", "LIKE")
_FUNCTIONS = ("EXISTS", "CAST", *(name for name in FUNCTIONS if not name.startswith("CESQL_")))

MEANT_BETWEEN = "did you mean BETWEEN?"
"""The hint after which the next AND is that of BETWEEN, and does not join two conditions."""

UNOPENED = "remove it, or add a ("

_SWAPPED = {"=>": "write >=", "=<": "write <=", "><": "write <>"}
_SWAPPED |= dict.fromkeys(("<<", ">>"), "bits have no operators; there are + - * / %")
_AFTER_A_NAME = ("=", "<>", "<=>", "<", "<=", ">", ">=", "IS", "IN", "LIKE", "ILIKE", "BETWEEN", ".", "[")

NO_SUBQUERY = "a filter sees one event only; write the values: IN (1, 2, 3)"
NO_TUPLES = "there are no tuples; compare one value after the other, as in data.a = 1 AND data.b = 2"
EPOCH = "write TIMESTAMP '1970-01-01T00:00:00Z' + INTERVAL(...) around a number of seconds"
NO_TIME = {
    Type.TIMESTAMP: "write (time - TIMESTAMP '1970-01-01T00:00:00Z') / INTERVAL '1' SECOND for a number",
    Type.INTERVAL: "divide it by INTERVAL '1' SECOND for a number",
}
"""Hints for timestamps and intervals as operands of functions that do not take them."""

_NO_CLOCK = "a filter knows no current time; compare with attributes of the event or with TIMESTAMP '...'"
_NO_PATTERN = "there are no regular expressions; write LIKE with % and _"
_NO_STATEMENT = "a filter is only the condition, without SELECT or WHERE"
_CASE = "write CASE WHEN data.a > 5 THEN 1 ELSE 0 END"
EACH = "write ANY item IN data.items SATISFIES (item > 5)"
_EVERY = "write ALL item IN data.items SATISFIES (item > 5)"
_JOINED = "test the elements of an array with ANY or ALL; it cannot be converted to another value"
_MONTHS = "a month has no fixed length; add days, as in time + INTERVAL '30' DAY"
_ONE_EVENT = "a filter sees one event, and computes with its values only"
_NO_FORMAT = "times have the format 2026-01-31T12:00:00Z and no other; publish them in this format"
_NOT_EXACT = "the result would not be exact; publish it as an attribute"
_TEXTS = "for texts there are LIKE, SUBSTRING, REPLACE and POSITION; publish other results as an attribute"
_NOT_HERE = {
    "ADD_MONTHS": _MONTHS,
    "ALL": "write it on the right of a comparison, as in 5 < ALL(data.items)",
    "ANY": "write it on the right of a comparison, as in 'red' = ANY(data.tags)",
    "ARRAY_JOIN": _JOINED,
    "ARRAY_MAX": "write ANY item IN data.items SATISFIES (item > 5) for what is above 5",
    "ARRAY_MIN": "write ANY item IN data.items SATISFIES (item < 5) for what is below 5",
    **dict.fromkeys(
        ("ARRAY_HAS", "ARRAY_POSITION", "LIST_CONTAINS"), "write ARRAY_CONTAINS(data.tags, 'red')"
    ),
    **dict.fromkeys(("ARRAY_LENGTH", "LIST_LENGTH", "JSON_ARRAY_LENGTH"), "write CARDINALITY(data.tags)"),
    **dict.fromkeys(("ANY_MATCH", "ARRAYS_OVERLAP", "FILTER", "LIST_FILTER", "TRANSFORM"), EACH),
    **dict.fromkeys(("EXPLODE", "UNNEST"), EACH),
    **dict.fromkeys(("ALL_MATCH", "EVERY", "FORALL"), _EVERY),
    **dict.fromkeys(("CHARINDEX", "INSTR", "LOCATE", "STRPOS"), "write POSITION('x' IN data.name)"),
    "CONCAT_WS": "write CONCAT with the text between, or data.a || '-' || data.b",
    **dict.fromkeys(("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP"), _NO_CLOCK),
    **dict.fromkeys(("LOCALTIME", "LOCALTIMESTAMP", "GETDATE", "NOW", "SYSDATE"), _NO_CLOCK),
    "DATE_PART": "write HOUR(time), WEEKDAY(time), YEAR(time) and so on",
    **dict.fromkeys(("DATE_FORMAT", "TO_CHAR", "STRFTIME"), "write YEAR(time) = 2026 AND MONTH(time) = 1"),
    "DATE_TRUNC": "write DATE(time) for the day; for parts of it HOUR(time) and so on",
    **dict.fromkeys(("TRUNC", "TRUNCATE"), "write BIGINT(data.a) for a number, DATE(time) for the day"),
    "DAYOFMONTH": "write DAY(time), which counts from the month's first",
    "DAYOFYEAR": "write MONTH(time) = 3 AND DAY(time) BETWEEN 1 AND 15",
    **dict.fromkeys(("DAYOFWEEK", "ISODOW"), "write WEEKDAY(time): 1 is Monday, 7 is Sunday"),
    "EXTRACT": "write HOUR(time), WEEKDAY(time), YEAR(time) and so on",
    **dict.fromkeys(("FROM_UNIXTIME", "TIMESTAMP_SECONDS"), EPOCH),
    **dict.fromkeys(("GET_JSON_OBJECT", "JSON_VALUE", "JSON_EXTRACT"), "write data.a.b"),
    **dict.fromkeys(("HAVERSINE", "ST_DISTANCE"), "write DISTANCE_KM(latitude, longitude, 52.5, 13.4)"),
    **dict.fromkeys(("IF", "IFF", "IIF", "NVL2", "DECODE"), _CASE),
    "INITCAP": "write LOWER(...) on both sides, or ILIKE",
    "ISNAN": "NaN is not a number here; write data.a IS NULL, or compare",
    "ISNOTNULL": "write data.a IS NOT NULL",
    "ISNULL": "write data.a IS NULL",
    **dict.fromkeys(
        ("MAP_CONTAINS_KEY", "MAP_KEYS"), "write EXISTS(data.names.x) to test whether an object has a member"
    ),
    "MAX": "a filter sees one event; the greatest of several values is GREATEST(data.a, data.b)",
    "MIN": "a filter sees one event; the least of several values is LEAST(data.a, data.b)",
    **dict.fromkeys(("AVG", "COUNT", "LAG", "LEAD", "RANK", "ROW_NUMBER", "SUM"), _ONE_EVENT),
    **dict.fromkeys(("COS", "EXP", "LN", "LOG", "LOG10", "LOG2", "SIN", "TAN"), _NOT_EXACT),
    **dict.fromkeys(("LPAD", "REPEAT", "REVERSE", "RPAD", "TRANSLATE"), _TEXTS),
    **dict.fromkeys(
        ("MONTHS_BETWEEN", "AGE"), "a month has no fixed length; DATEDIFF(end, start) counts days"
    ),
    "NONE_MATCH": "write NOT ANY item IN data.items SATISFIES (item > 5)",
    "NULLIFZERO": "write NULLIF(data.a, 0)",
    "QUARTER": "write MONTH(time) BETWEEN 4 AND 6",
    **dict.fromkeys(("RAND", "RANDOM", "UUID"), "whether an event matches depends on it and the filter only"),
    **dict.fromkeys(("WEEK", "WEEKOFYEAR"), "write time >= DATE '2026-03-02' AND time < DATE '2026-03-09'"),
    "MOD": "write data.a % 2",
    **dict.fromkeys(("POW", "POWER"), "write data.a * data.a"),
    **dict.fromkeys(("REGEXP", "REGEXP_LIKE", "REGEXP_EXTRACT", "REGEXP_REPLACE", "RLIKE"), _NO_PATTERN),
    **dict.fromkeys(("SIGN", "SIGNUM"), "compare with 0, as in data.a < 0"),
    "SMALLINT": "write INT(...)",
    "SPLIT": "write LIKE, or POSITION and SUBSTRING",
    "SPLIT_PART": "write LIKE, or POSITION and SUBSTRING",
    "STRCMP": "compare the texts with =, < and >",
    "STR_TO_DATE": _NO_FORMAT,
    "SQRT": "compare the square, as in data.a * data.a + data.b * data.b < 25",
    "TIMESTAMPADD": "write time + INTERVAL '3' HOUR",
    "TIMESTAMPDIFF": "write (time - data.placed) / INTERVAL '1' HOUR > 3",
    "TINYINT": "write INT(...)",
    "TO_NUMBER": "write NUMBER(data.a)",
    **dict.fromkeys(
        ("TO_UNIXTIME", "UNIX_TIMESTAMP", "TO_UNIX_TIMESTAMP"), "write TIMESTAMP(time) and compare it"
    ),
    "TYPEOF": "write NUMBER(data.a) = data.a for a number, data.a LIKE '%' for a string",
    "VALUES": NO_SUBQUERY,
    "XOR": "write (data.a = 1) <> (data.b = 2)",
    "ZEROIFNULL": "write COALESCE(data.a, 0)",
}
"""Hints for functions that SQL has and filters do not have."""

_NO_OPERATORS = {
    "AT": "write HOUR(time, '+01:00') for a clock with that offset; the text of a TIMESTAMP has its offset",
    **dict.fromkeys(("COLLATE", "BINARY"), "strings are compared by code point; write LOWER(...) or ILIKE"),
    "CONTAINS": "write CONTAINS(data.name, 'x')",
    "DIV": "write FLOOR(data.a / 2)",
    **dict.fromkeys(("ENDS", "ENDSWITH"), "write ENDS_WITH(data.name, 'x')"),
    **dict.fromkeys(("GLOB", "MATCH", "MATCHES", "REGEXP", "RLIKE", "SIMILAR"), _NO_PATTERN),
    **dict.fromkeys(
        ("GROUP", "HAVING", "LIMIT", "ORDER", "UNION"), "a filter is only the condition of a statement"
    ),
    "ISNULL": "write IS NULL",
    "MOD": "write %, as in data.a % 2",
    "NOTNULL": "write IS NOT NULL",
    **dict.fromkeys(("OVER", "FILTER"), _ONE_EVENT),
    "OVERLAPS": "write data.start < data.stop_2 AND data.start_2 < data.stop",
    **dict.fromkeys(("STARTS", "STARTSWITH"), "write STARTS_WITH(data.name, 'x')"),
    "WHEN": "write CASE WHEN data.a > 5 THEN 1 END, or the value in parentheses: CASE (-data.a) WHEN 5",
    **dict.fromkeys(("THEN", "ELSE", "END"), _CASE),
    "XOR": "write <> between two conditions in parentheses: (data.a = 1) <> (data.b = 2)",
}
"""Hints for words that are operators in other languages."""

_TYPES = "the types are BIGINT, INT, DOUBLE, DECIMAL, STRING, BOOLEAN, TIMESTAMP and DATE"
ARITIES = {
    "TIMESTAMP": _NO_FORMAT,
    "DATEDIFF": "DATEDIFF(end, start) counts days; for hours write (time - data.placed) / INTERVAL '1' HOUR",
}
"""Hints for calls with the wrong number of operands, where the signature does not suffice."""

_TIMES = {
    "DATE": "DATE '2026-01-31'",
    "TIME": "TIME '09:30'",
    "TIMESTAMP": "TIMESTAMP '2026-01-31T12:00:00Z'",
}
_STATEMENTS = ("SELECT", "WITH", "FROM", "WHERE", "DELETE", "UPDATE", "INSERT")


_NO_INFINITY = "there is no such constant; compare with a large number"
_NULL = "write IS NULL to test for null or missing"
MISTAKEN_NAMES = {
    **dict.fromkeys(("current_date", "current_time", "current_timestamp"), _NO_CLOCK),
    **dict.fromkeys(("localtime", "localtimestamp", "sysdate", "systimestamp"), _NO_CLOCK),
    "nan": "NaN is not a number here, and cannot be compared; a condition on numbers is unknown for it",
    **dict.fromkeys(("inf", "infinity"), _NO_INFINITY),
    **dict.fromkeys(("nil", "none", "undefined"), _NULL),
}
"""Hints for unquoted names that are constants in other languages."""


def chained(token: Token, *, joined: bool) -> Mistake:
    """Return the mistake of ``1 < a < 3`` at its second operator; ``joined``: whether a || precedes it."""
    message = f"{shown(token)} cannot follow another comparison"
    hint = "join two comparisons with AND, as in 1 < data.a AND data.a < 5, or put one in parentheses"
    if joined:
        hint = "|| joins strings; write OR to join conditions"
    return Mistake(token.start, token.end, message, hint)


def missing_operator(tokens: Sequence[Token], index: int, *, inside: bool) -> Mistake:
    """Return the mistake of a token after a complete condition that is not an operator.

    ``inside``: whether a parenthesis is open.
    """
    token, before, first = tokens[index], tokens[index - 1], tokens[0]
    message = f"expected an operator, found {shown(token)}"
    if first.text.upper() in _STATEMENTS and first.kind == "path":
        message = f"unexpected {shortened(first.text)!r}"
        return Mistake(first.start, first.end, message, _NO_STATEMENT, fatal=True)
    hint = "join two conditions with AND or OR"
    if before.kind == "string" and before.end == token.start:
        hint = "write '' for a quote inside a string"
    elif token.kind == "string" and before.kind == "path" and before.end == token.start:
        hint = "a string has no letter before it"
    elif before.kind == "path" and token.kind == "number" and before.text.upper() in _TIMES:
        hint = f"write it in single quotes: {_TIMES[before.text.upper()]}"
    elif token.kind == "NOT":
        hint = "write <> for 'not equal', or NOT before the whole condition"
    elif token.kind == "path" and (known := _NO_OPERATORS.get(token.text.upper())):
        message, hint = f"there is no operator {token.text.upper()}", known
    elif before.kind == "path" and (known := _NO_OPERATORS.get(before.text.upper())):
        token, message, hint = before, f"there is no operator {before.text.upper()}", known
    elif token.kind == "[":
        hint = "brackets stand after the name of an attribute only"
    elif token.kind == "path" and before.kind == "path" and before.text.upper() == "INTERVAL":
        hint = "write INTERVAL '5' MINUTE"
    elif token.kind == "path" and (guess := nearest(token.text[:40], _OPERATORS)):
        hint = f"did you mean {guess}?"
    elif before.kind == "path" and (guess := nearest(before.text[:40], (*KEYWORDS, "WHERE", "SELECT"))):
        token, message, hint = before, f"unexpected {shortened(before.text)!r}", f"did you mean {guess}?"
        if guess in ("WHERE", "SELECT"):
            hint = _NO_STATEMENT
    elif token.kind in ("string", "number", "quoted") and before.kind in ("path", "quoted"):
        hint = "write = between an attribute and its value"
    elif token.kind == ",":
        hint = NO_TUPLES if inside else "a list of values stands in parentheses after IN"
        after = tokens[index + 1]
        if not inside and before.kind == after.kind == "number" and before.end + 1 == after.start:
            hint = f"write {before.text[:20]}_{after.text[:20]} for a large number; " + hint
    return Mistake(token.start, token.end, message, hint)


def missing_operand(tokens: Sequence[Token], index: int, *, inside: bool) -> Mistake:
    """Return the mistake of a token in place of a value; ``inside``: whether a parenthesis is open."""
    token = tokens[index]
    before = tokens[index - 1] if index else None
    message = f"expected a value or the name of an attribute, found {shown(token)}"
    if before and (pair := before.text + token.text) in _SWAPPED:
        return Mistake(before.start, token.end, f"{pair!r} is not an operator", _SWAPPED[pair])
    if token.kind == ")" and not inside:
        return Mistake(token.start, token.end, "this ) has no matching (", UNOPENED)
    hint = f"a value is missing before {shown(token)}"
    if token.kind in KEYWORDS and tokens[index + 1].kind in _AFTER_A_NAME:
        hint = (
            f'to name an attribute {shortened(token.text)}, write "{shortened(token.text)}" in double quotes'
        )
    elif before:
        hint = f"a value is missing between {shown(before)} and {shown(token)}"
    return Mistake(token.start, token.end, message, hint)


def unknown_function(token: Token) -> Mistake:
    """Return the mistake of a call of a function that does not exist."""
    name = token.text.upper()
    hint = _NOT_HERE.get(name)
    if hint is None:
        guess = nearest(name[:40], (*_FUNCTIONS, *_BEFORE_LIST), 0.75)
        hint = f"did you mean {guess}?" if guess else "docs/filter-functions.md lists the functions"
    return Mistake(token.start, token.end, f"there is no function {shortened(token.text)}", hint)


def after_is(token: Token, words: Sequence[str]) -> str:
    """Return a hint for a word that is not allowed after IS."""
    if token.kind == "path" and (known := MISTAKEN_NAMES.get(token.text.lower())):
        return known
    guess = nearest(token.text[:40], words) if token.kind == "path" else ""
    return f"did you mean {guess}?" if guess else "write = to compare with a value"


def word_of_case(token: Token) -> Mistake:
    """Return the mistake of a word of CASE in place of a value."""
    message = f"expected a value, found {token.text.upper()}, which continues the CASE"
    hint = f'to name an attribute {token.text} inside of a CASE, write "{token.text}" in double quotes'
    return Mistake(token.start, token.end, message, hint)


def cast_hint(token: Token) -> str:
    """Return a hint for a type that CAST does not support."""
    word = token.text.upper()
    if word in ("TINYINT", "SMALLINT", "BYTE", "SHORT"):
        return "write INT"
    if word == "TIME":
        return "write TIME(data.opens) for a time of day"
    if word == "INTERVAL":
        return "write INTERVAL(data.wait_s) around a number of seconds"
    return _TYPES


def conversion_hint(wanted: Type, operand: Expression) -> str:
    """Return a hint for an operand of the wrong type; "" if there is none."""
    text = operand.value if isinstance(operand, Literal) else None
    if wanted in (Type.TIMESTAMP, Type.INTERVAL) and isinstance(text, str):
        if wanted is Type.INTERVAL:
            return "write TIME '09:30' for a time of day, INTERVAL '5' MINUTE for a length of time"
        return "write TIMESTAMP before it" if timestamp(text) is not None else _TIMESTAMP
    if wanted is Type.TIMESTAMP:
        is_moved = isinstance(operand, Arithmetic) and operand.operator in ("+", "-")
        return "write time + INTERVAL '1' DAY to add days" if is_moved else _TIMESTAMP
    if wanted is Type.INTERVAL:
        return "write INTERVAL '5' MINUTE, or INTERVAL(...) around a number of seconds"
    if wanted is Type.NUMBER and isinstance(text, str):
        return "write NUMBER(...) around a string that contains a number"
    return ""


_TIMESTAMP = "write TIMESTAMP '2026-01-31T12:00:00Z'"


def joining_hint(found: Type) -> str:
    """Return a hint for arithmetic with strings; "" for other types."""
    return "|| joins strings" if found is Type.STRING else ""


def time_hint(left: Type, right: Type) -> str:
    """Return a hint for arithmetic with timestamps or intervals that has no result."""
    if Type.TIMESTAMP in (left, right):
        return "timestamps can be subtracted, and have an INTERVAL added or subtracted"
    return "intervals can be added, subtracted, multiplied and divided"


def as_string(token: Token) -> str:
    """Return the string that a name in double quotes was probably meant to be, as a literal."""
    return "'" + unquoted(token.text).replace("'", "''") + "'"


def shown(token: Token) -> str:
    """Format a token for a message."""
    if token.kind == "end":
        return "the end of the filter"
    text = shortened(token.text)
    return text if token.kind in ("string", "quoted") else f"'{text}'"


def shortened(text: str) -> str:
    """Return a text, cut if it is longer than 40 characters."""
    return text if len(text) <= 40 else text[:37] + "..."
