"""The parser of the ``eventbridge`` dialect: from JSON to an event pattern's syntax.

Patterns that event-ruler rejects are rejected here too, so an accepted pattern has the same meaning in both.
All mistakes are recorded, so that they are reported together.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from fieldfare.filters.errors import FilterError, Mistake, Problem, nearest
from fieldfare.filters.eventbridge.overlaps import refuse_overlaps
from fieldfare.filters.eventbridge.syntax import (
    AnythingBut,
    Cidr,
    Equals,
    EqualsIgnoreCase,
    Fields,
    Numeric,
    PatternExists,
    PatternValues,
    Prefix,
    Suffix,
    Test,
    Wildcard,
)
from fieldfare.filters.expression import Pattern, Wild
from fieldfare.filters.functions.networks import address_of, network_of
from fieldfare.filters.json_text import Findings, JsonValue, Member, place_in_string, read_json, shown
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX
from fieldfare.filters.text import PROBLEMS_MAX

OR = "$or"

TESTS = (
    *("exactly", "prefix", "suffix", "equals-ignore-case", "anything-but"),
    *("numeric", "cidr", "exists", "wildcard"),
)
"""The names of the tests: the names of objects in a field's list."""

RESERVED_IN_OR = frozenset(
    {
        *TESTS,
        *("=", "<", "<=", ">", ">=", "regex", "not-wildcard", "not-equals-ignore-case"),
        *("date-after", "date-on-or-after", "date-before", "date-on-or-before", "in-date-range"),
        *("ip-address-in-range", "ip-address-not-in-range"),
    }
)
"""Names that event-ruler does not allow for fields inside ``$or``."""


ENVELOPE = {"detail": "data", "detail-type": "type"}
"""Fields of EventBridge's envelope, with their names in a CloudEvent. Other names are not changed."""


def parse_pattern(text: str) -> tuple[Fields, tuple[Problem, ...]]:
    """Parse an event pattern; return its syntax, and warnings about text that is probably not intended.

    Raises
    ------
    FilterError
        The pattern is invalid; the problems are in the order of the text.
    """
    if not text.strip():
        hint = 'write what an event must have, as in {"source": ["aws.ec2"]}'
        raise FilterError(text, [Problem("the filter is empty", 1, 1, hint, 0)])
    document = read_json(text)
    parser = PatternParser(text)
    fields = parser.top(document)
    refuse_overlaps(document, parser.findings.add)
    parser.findings.refuse()
    return fields, tuple(mistake.problem(text) for mistake in parser.warnings[:PROBLEMS_MAX])


class PatternParser:
    """A parser of one pattern; collects mistakes in ``findings``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.findings = Findings(text)
        self.warnings: list[Mistake] = []

    def record(self, value: JsonValue, message: str, hint: str = "") -> None:
        self.findings.add(Mistake(value.start, value.end, message, hint))

    def top(self, document: JsonValue) -> Fields:
        if document.kind != "object":
            hint = 'write what an event must have, as in {"source": ["aws.ec2"]}'
            self.record(document, f"an event pattern is an object, not {document.kind_text()}", hint)
            return Fields(())
        return self.fields(document, ENVELOPE, inside_or=False)

    def fields(self, value: JsonValue, renamed: dict[str, str], *, inside_or: bool) -> Fields:
        """Parse an object; ``renamed`` maps names of fields to their names in a CloudEvent."""
        if not value.value:
            hint = 'to test that there is a value, write {"name": [{"exists": true}]}'
            self.record(value, "an object of a pattern cannot be empty", hint)
        members: list[tuple[str, Fields | PatternValues]] = []
        named: set[str] = set()
        alternatives: tuple[Fields, ...] = ()
        for name, inner in value.value:
            if name.value == OR:
                alternatives = self.alternatives(inner, renamed)
            elif inside_or and name.value in RESERVED_IN_OR:
                hint = 'a test stands in the list of a field: {"name": [{"prefix": "a"}]}'
                self.record(name, f"inside $or no field can be named {name.value}", hint)
            else:
                field = renamed.get(name.value, name.value)
                if field in named:
                    other = next(other for other, meant in renamed.items() if meant == field)
                    self.record(name, f"{other} means {field} in a CloudEvent, so one of them is enough")
                named.add(field)
                if "." in field:
                    message = f"{shown(field)} is one name with a dot in it, not a path"
                    hint = 'to name a field of a field, write {"a": {"b": [...]}}'
                    self.warnings.append(Mistake(name.start, name.end, message, hint))
                members.append((field, self.field(name, inner, inside_or)))
        return Fields(tuple(members), alternatives)

    def field(self, name: JsonValue, value: JsonValue, inside_or: bool) -> Fields | PatternValues:
        if value.kind == "object":
            test = value.value[0].name if len(value.value) == 1 else None
            if (
                test is not None
                and test.value in TESTS
                and value.value[0].value.kind not in ("object", "array")
            ):
                written = self.text[value.start : value.end]
                hint = f"write [{written}]" if len(written) <= 60 else "put it in brackets"
                self.record(value, f"the test {test.value} must stand in a list", hint)
                return PatternValues(())
            return self.fields(value, {}, inside_or=inside_or)
        if value.kind == "array":
            return self.values(value)
        written = self.text[value.start : value.end]
        hint = f"write [{written}]" if len(written) <= 60 else "put it in brackets"
        self.record(value, f"the values of {shown(name.value)} must stand in a list", hint)
        return PatternValues(())

    def alternatives(self, value: JsonValue, renamed: dict[str, str]) -> tuple[Fields, ...]:
        if value.kind != "array":
            hint = 'write "$or": [{...}, {...}]'
            self.record(value, f"$or takes a list of patterns, not {value.kind_text()}", hint)
            return ()
        if len(value.value) < 2:
            hint = "write the only alternative without $or" if value.value else ""
            self.record(value, "$or needs at least two alternatives", hint)
        found: list[Fields] = []
        for item in value.value:
            if item.kind != "object":
                self.record(item, f"an alternative of $or is an object, not {item.kind_text()}")
            else:
                found.append(self.fields(item, renamed, inside_or=True))
        return tuple(found)

    def values(self, value: JsonValue) -> PatternValues:
        """Parse the list of a field's values and tests."""
        if not value.value:
            hint = 'to match any value, write [{"exists": true}]'
            self.record(value, "a list of values cannot be empty", hint)
        tests: list[Test] = []
        for item in value.value:
            if item.kind == "object":
                test = self.test(item)
                if test is not None:
                    tests.append(test)
            elif item.kind == "array":
                self.record(
                    item, "a list of values cannot hold a list", "write its values without the brackets"
                )
            else:
                tests.append(Equals(item.value, any_spelling=_is_ipv6(item.value)))
        return PatternValues(tuple(tests))

    def only_member(self, value: JsonValue, what: str, names: tuple[str, ...]) -> Member | None:
        """Return the only member of an object, which names a test; record a mistake for other objects."""
        if len(value.value) != 1:
            hint = f"there are {', '.join(names)}"
            if value.value:
                hint = "put each into an object of its own; one of them must then hold"
            self.record(value, f"{what} is an object with one name, this has {len(value.value)}", hint)
            return None
        member: Member = value.value[0]
        if member.name.value not in names:
            guess = nearest(member.name.value, [name.upper() for name in names]).lower()
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join(names)}"
            self.record(member.name, f"there is no {what} named {shown(member.name.value)}", hint)
            return None
        return member

    def test(self, value: JsonValue) -> Test | None:
        member = self.only_member(value, "test", TESTS)
        return None if member is None else _READERS[member.name.value](self, member.value)

    def string(self, value: JsonValue, test: str) -> str | None:
        if value.kind == "string":
            return str(value.value)
        self.record(value, f"{test} takes a string, not {value.kind_text()}")
        return None

    def exactly(self, value: JsonValue) -> Test | None:
        text = self.string(value, "exactly")
        return None if text is None else Equals(text)

    def equals_ignore_case(self, value: JsonValue) -> Test | None:
        text = self.string(value, "equals-ignore-case")
        return None if text is None else EqualsIgnoreCase(text)

    def prefix(self, value: JsonValue) -> Test | None:
        found = self.text_or_ignoring_case(value, "prefix")
        return None if found is None else Prefix(*found)

    def suffix(self, value: JsonValue) -> Test | None:
        found = self.text_or_ignoring_case(value, "suffix")
        return None if found is None else Suffix(*found)

    def text_or_ignoring_case(self, value: JsonValue, test: str) -> tuple[str, bool] | None:
        if value.kind != "object":
            text = self.string(value, test)
            return None if text is None else (text, False)
        member = self.only_member(value, f"kind of {test}", ("equals-ignore-case",))
        if member is None:
            return None
        text = self.string(member.value, "equals-ignore-case")
        return None if text is None else (text, True)

    def wildcard(self, value: JsonValue) -> Wildcard | None:
        if self.string(value, "wildcard") is None:
            return None
        try:
            return Wildcard(_wildcard_pattern(self.text, value))
        except Mistake as mistake:
            self.findings.add(mistake)
            return None

    def exists(self, value: JsonValue) -> Test | None:
        if value.kind != "boolean":
            self.record(value, f"exists takes true or false, not {value.kind_text()}")
            return None
        return PatternExists(value.value)

    def cidr(self, value: JsonValue) -> Test | None:
        block = self.string(value, "cidr")
        if block is None:
            return None
        if "/" not in block or network_of(block) is None:
            hint = "as in 10.0.0.0/8 or 2001:db8::/32; /32 or /128 is a single address"
            self.record(value, f"{shown(block)} is not a block of addresses", hint)
            return None
        return Cidr(block)

    def numeric(self, value: JsonValue) -> Test | None:
        if value.kind != "array":
            hint = 'as in ["=", 5] or [">", 0, "<=", 5]'
            self.record(
                value, f"numeric takes a list of operators and numbers, not {value.kind_text()}", hint
            )
            return None
        try:
            return Numeric(_comparisons(value))
        except Mistake as mistake:
            self.findings.add(mistake)
            return None

    def anything_but(self, value: JsonValue) -> Test | None:
        if value.kind == "object":
            member = self.only_member(value, "kind of anything-but", tuple(_EXCLUDED))
            if member is None:
                return None
            return self.excluded(member.value, member.name.value)
        values = value.value if value.kind == "array" else [value]
        if not values:
            self.record(value, "a list of values cannot be empty")
        kinds = {item.kind for item in values}
        for item in values:
            if item.kind not in ("string", "number"):
                hint = 'to match all but null, true or false, list what may be: ["a", {"numeric": [">", 0]}]'
                self.record(item, f"anything-but takes strings or numbers, not {item.kind_text()}", hint)
        if {"string", "number"} <= kinds:
            other = next(item for item in values if item.kind != values[0].kind)
            hint = "strings alone already let all numbers pass, and numbers alone all strings"
            self.record(other, "anything-but takes strings or numbers, not both", hint)
        return AnythingBut(tuple(Equals(item.value) for item in values))

    def excluded(self, value: JsonValue, name: str) -> Test | None:
        """Parse an anything-but that excludes by prefix, suffix, wildcard or equality ignoring case."""
        values = value.value if value.kind == "array" else [value]
        if not values:
            self.record(value, "a list of values cannot be empty")
        tests = []
        for item in values:
            text = self.string(item, name)
            if text == "" and name in ("prefix", "suffix"):
                self.record(
                    item, f"an empty {name} fits every string", 'to exclude the empty string, write ""'
                )
            if text is not None and (test := _EXCLUDED[name](self, item)) is not None:
                tests.append(test)
        return AnythingBut(tuple(tests))


_READERS: dict[str, Callable[[PatternParser, JsonValue], Test | None]] = {
    "exactly": PatternParser.exactly,
    "prefix": PatternParser.prefix,
    "suffix": PatternParser.suffix,
    "equals-ignore-case": PatternParser.equals_ignore_case,
    "anything-but": PatternParser.anything_but,
    "numeric": PatternParser.numeric,
    "cidr": PatternParser.cidr,
    "exists": PatternParser.exists,
    "wildcard": PatternParser.wildcard,
}
_EXCLUDED: dict[
    str, Callable[[PatternParser, JsonValue], EqualsIgnoreCase | Prefix | Suffix | Wildcard | None]
] = {
    "prefix": lambda parser, value: Prefix(value.value),
    "suffix": lambda parser, value: Suffix(value.value),
    "equals-ignore-case": lambda parser, value: EqualsIgnoreCase(value.value),
    "wildcard": PatternParser.wildcard,
}


def _is_ipv6(value: Any) -> bool:
    """Return whether a constant is an IPv6 address; event-ruler matches all of its spellings."""
    return isinstance(value, str) and ":" in value and "." not in value and address_of(value) is not None


def _wildcard_pattern(text: str, string: JsonValue) -> Pattern:
    r"""Parse a wildcard's string: ``\*`` is an asterisk, ``\\`` a backslash."""
    written = string.value
    if len(written) > PATTERN_CHARACTERS_MAX:
        message = f"a wildcard has at most {PATTERN_CHARACTERS_MAX:,} characters"
        raise Mistake(string.start, string.end, message)

    def mistake(index: int, message: str, hint: str) -> Mistake:
        place = place_in_string(text, string, index)
        return Mistake(place, place_in_string(text, string, index + 1), message, hint)

    parts: list[str | Wild] = []
    literal: list[str] = []
    index = 0
    while index < len(written):
        character = written[index]
        if character == "\\":
            if written[index + 1 : index + 2] not in ("\\", "*"):
                hint = r"a backslash is written \\ (in JSON: \\\\), an asterisk \* (in JSON: \\*)"
                raise mistake(index, r"only * or \ can follow a backslash in a wildcard", hint)
            literal.append(written[index + 1])
            index += 1
        elif character == "*":
            if written[index + 1 : index + 2] == "*":
                raise mistake(index + 1, "a second * right after a * means nothing", "remove it")
            if literal:
                parts.append("".join(literal))
                literal = []
            parts.append(Wild.RUN)
        else:
            literal.append(character)
        index += 1
    return (*parts, "".join(literal)) if literal else tuple(parts)


def _comparisons(value: JsonValue) -> tuple[tuple[str, int | Decimal], ...]:
    """Parse ``[operator, number]``, or a range: lower bound first, which must be below the upper bound."""
    items: list[JsonValue] = value.value
    if len(items) not in (2, 4):
        hint = 'write one operator and number, as in ["<", 5], or a range: [">", 0, "<=", 5]'
        raise Mistake(
            value.start, value.end, f"numeric takes two or four values, this has {len(items)}", hint
        )
    found = []
    for operator, number in zip(items[::2], items[1::2], strict=True):
        if operator.kind != "string" or operator.value not in ("=", "<", "<=", ">", ">="):
            message = "the operators of numeric are = < <= > >="
            hint = "the operator comes first, then the number" if operator.kind == "number" else ""
            raise Mistake(operator.start, operator.end, message, hint)
        if number.kind != "number":
            hint = "write it without quotes" if number.kind == "string" else ""
            raise Mistake(
                number.start, number.end, f"{operator.value} takes a number, not {number.kind_text()}", hint
            )
        found.append((operator.value, number.value))
    if len(found) == 2:
        first, second = items[0], items[2]
        if first.value not in (">", ">="):
            raise Mistake(first.start, first.end, "a range starts with its lower bound, > or >=", _RANGE)
        if second.value not in ("<", "<="):
            raise Mistake(second.start, second.end, "a range ends with its upper bound, < or <=", _RANGE)
        if found[0][1] >= found[1][1]:
            hint = "for a single number write =" if found[0][1] == found[1][1] else "exchange them"
            message = "the lower bound of a range must be below the upper one"
            raise Mistake(items[1].start, items[3].end, message, hint)
    return tuple(found)


_RANGE = 'as in [">", 0, "<=", 5]'
