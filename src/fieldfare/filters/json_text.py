"""A JSON parser whose values have positions in the text, for filters that are written in JSON.

Parsing takes linear time and raises nothing but FilterError. Length, nesting and digits are bounded; lone
surrogates are rejected, and so are objects with a duplicate name, which would be ambiguous. NUL is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

from fieldfare.filters.errors import FilterError, Mistake, Problem, problem_at
from fieldfare.filters.expression import DEPTH_MAX
from fieldfare.filters.text import DIGITS_MAX, PROBLEMS_MAX, refuse_unreadable


class JsonValue(NamedTuple):
    """A value of a JSON text.

    Attributes
    ----------
    kind
        ``object``, ``array``, ``string``, ``number``, ``boolean`` or ``null``.
    value
        A list of Members, a list of JsonValues, a str, an int or Decimal, a bool, or None.
    start, end
        The value is ``text[start:end]``.
    """

    kind: str
    value: Any
    start: int
    end: int

    def kind_text(self) -> str:
        """Return the kind with its article, for messages."""
        article = "an" if self.kind in ("array", "object") else "a"
        return "null" if self.kind == "null" else f"{article} {self.kind}"


class Member(NamedTuple):
    """A member of an object; its name is a JsonValue, which has its place."""

    name: JsonValue
    value: JsonValue


def read_json(text: str) -> JsonValue:
    """Parse a JSON text.

    Raises
    ------
    FilterError
        The text is empty, not JSON, or beyond a limit.
    """
    refuse_unreadable(text)
    reader = _Reader(text)
    try:
        value = reader.value(0)
        if reader.kind != "end":
            hint = "a filter is one JSON value" if reader.kind not in "]}" else "remove it"
            raise reader.unexpected("after the filter's end", hint)
    except Mistake as mistake:
        problems = [*reader.problems, mistake.problem(text)]
        raise FilterError(text, problems[:PROBLEMS_MAX]) from None
    if reader.problems:
        raise FilterError(text, reader.problems[:PROBLEMS_MAX])
    return value


_SCANNER = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<string>"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")
    | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-]))
    | (?P<word>[\w.+-]+)
    | (?P<sign>[][{},:])
    | (?P<end>\Z)
    | (?P<wrong>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: dict[str, tuple[str, bool | None]] = {
    "true": ("boolean", True),
    "false": ("boolean", False),
    "null": ("null", None),
}
_DUPLICATES_MAX = 10
_new = tuple.__new__  # the plain constructor of a named tuple takes twice as long


class _Reader:
    """A cursor over the text: ``kind``, ``start`` and ``end`` describe the current token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self.kind = ""
        self.start = self.end = 0
        self.advance()

    def advance(self) -> None:
        found = _SCANNER.match(self.text, self.end)
        assert found is not None  # `wrong` takes any character, `end` the end
        kind: str = found.lastgroup  # type: ignore[assignment]
        self.start, self.end = found.span(kind)
        self.kind = self.text[self.start] if kind == "sign" else kind

    def value(self, depth: int) -> JsonValue:
        kind, start, end = self.kind, self.start, self.end
        if kind == "string":
            self.advance()
            return _new(JsonValue, ("string", _decoded(self.text, start, end), start, end))
        if kind == "number":
            self.advance()
            return _new(JsonValue, ("number", _number(self.text, start, end), start, end))
        if kind == "[" or kind == "{":
            if depth >= DEPTH_MAX:
                message = f"the filter is nested too deeply, at most {DEPTH_MAX} levels are allowed"
                raise Mistake(start, end, message)
            self.advance()
            return self.array(start, depth + 1) if kind == "[" else self.object(start, depth + 1)
        if kind == "word" and (known := _WORDS.get(self.text[start:end])):
            self.advance()
            return _new(JsonValue, (*known, start, end))
        raise self.no_value()

    def array(self, start: int, depth: int) -> JsonValue:
        items: list[JsonValue] = []
        if self.kind != "]":
            while True:
                items.append(self.value(depth))
                if self.kind != ",":
                    break
                self.comma("]", "[")
            self.closing("]", start)
        end = self.end
        self.advance()
        return _new(JsonValue, ("array", items, start, end))

    def object(self, start: int, depth: int) -> JsonValue:
        members: list[Member] = []
        names: set[str] = set()
        if self.kind != "}":
            while True:
                name = self.name()
                if name.value in names and len(self.problems) < _DUPLICATES_MAX:
                    hint = "keep one, or put what both say into one value"
                    message = f"{self.text[name.start : name.end]} stands here twice"
                    self.problems.append(problem_at(self.text, name.start, name.end, message, hint))
                names.add(name.value)
                if self.kind != ":":
                    raise self.unexpected("where a : must follow the name", 'write "name": value')
                self.advance()
                members.append(_new(Member, (name, self.value(depth))))
                if self.kind != ",":
                    break
                self.comma("}", "{")
            self.closing("}", start)
        end = self.end
        self.advance()
        return _new(JsonValue, ("object", members, start, end))

    def name(self) -> JsonValue:
        start, end = self.start, self.end
        if self.kind != "string":
            if self.kind == "word":
                word = self.text[start:end]
                raise Mistake(start, end, f"the name {word} has no quotes", f'write "{word}"')
            raise self.unexpected("where a name must stand", 'a name is a string, as in "type"')
        self.advance()
        return _new(JsonValue, ("string", _decoded(self.text, start, end), start, end))

    def comma(self, closing: str, opening: str) -> None:
        start, end = self.start, self.end
        self.advance()
        if self.kind == closing:
            what = "list" if closing == "]" else "object"
            raise Mistake(start, end, f"this comma is the last thing in the {what}", "remove it")

    def closing(self, sign: str, start: int) -> None:
        if self.kind == sign:
            return
        if self.kind == "end":
            opening = self.text[start]
            raise Mistake(start, start + 1, f"this {opening} is never closed", f"add a {sign}")
        hint = "put a comma between two values" if self.kind in _STARTS else ""
        raise self.unexpected(f"where , or {sign} must stand", hint)

    def unexpected(self, where: str, hint: str = "") -> Mistake:
        if self.kind == "wrong":
            return self.no_value()
        found = "the end of the text" if self.kind == "end" else shown(self.text[self.start : self.end])
        return Mistake(self.start, self.end, f"unexpected {found} {where}", hint)

    def no_value(self) -> Mistake:
        """Return the mistake of a token that cannot begin a value."""
        start, end = self.start, self.end
        word = self.text[start:end]
        if self.kind == "end":
            return Mistake(start, end, "the filter ends where a value must stand")
        if word == "'":
            return Mistake(start, end, "a string has double quotes in JSON", 'write "..."')
        if word == '"':
            return _invalid_string(self.text, start)
        if self.kind == "word":
            if word in _LIKELY:
                return Mistake(start, end, f"{word} is not a value of JSON", f"write {_LIKELY[word]}")
            if word[0] in "0123456789+-.":
                hint = "as in 5, -0.25 or 1e3; a date is a string"
                return Mistake(start, end, f"{shown(word)} is not a number", hint)
            return Mistake(start, end, f"{shown(word)} is not a value", "a string has double quotes")
        if word == "/":
            return Mistake(start, end, "unexpected '/'", "there are no comments in JSON")
        if word == "\ufeff":
            return Mistake(start, end, "unexpected byte order mark", "remove it")
        return Mistake(start, end, f"unexpected {shown(word)}")


_STARTS = {"string", "number", "word", "[", "{"}
_LIKELY = {
    **dict.fromkeys(("True", "TRUE"), "true"),
    **dict.fromkeys(("False", "FALSE"), "false"),
    **dict.fromkeys(("None", "NULL", "Null", "nil", "undefined"), "null"),
}


def shown(text: str) -> str:
    """Quote a piece of the text for a message; longer than 40 characters, it is cut."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL
)
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _decoded(text: str, start: int, end: int) -> str:
    """Decode the JSON string at ``text[start:end]``."""
    if text.find("\\", start, end) < 0:
        return text[start + 1 : end - 1]
    pieces: list[str] = []
    position = start + 1
    for found in _ESCAPE.finditer(text, start + 1, end - 1):
        pieces += [text[position : found.start()], _escaped(found)]
        position = found.end()
    return "".join(pieces) + text[position : end - 1]


def _escaped(found: re.Match[str]) -> str:
    """Return the character that an escape stands for; raise Mistake if there is none."""
    high, low, code, letter = found.groups()
    if letter is not None:
        if letter not in _ESCAPED:
            hint = (
                'write \\\\ for a backslash; there are \\" \\/ \\b \\f \\n \\r \\t and \\u with four digits'
            )
            raise Mistake(found.start(), found.end(), f"unknown escape \\{letter}", hint)
        return _ESCAPED[letter]
    if high is not None:
        return chr(0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00)
    if 0xD800 <= int(code, 16) < 0xE000:
        raise Mistake(found.start(), found.end(), "this is half of a character (a lone surrogate)")
    return chr(int(code, 16))


def place_in_string(text: str, string: JsonValue, index: int) -> int:
    """Return the position in the text of a string's character at `index`, or of its end for its length."""
    position = string.start + 1
    for found in _ESCAPE.finditer(text, position, string.end - 1):
        plain = found.start() - position
        if index <= plain:
            break
        index -= plain + 1
        position = found.end()
    return min(position + index, string.end - 1)


def _invalid_string(text: str, start: int) -> Mistake:
    """Return the mistake in a string that the scanner could not read."""
    found = _READABLE.match(text, start + 1)
    assert found is not None
    place = found.end()
    if place < len(text) and text[place] < " " and text.find('"', place) >= 0:
        escape = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(text[place], f"\\u{ord(text[place]):04x}")
        return Mistake(
            place, place + 1, "a string has no line breaks or control characters", f"write {escape}"
        )
    return Mistake(start, start + 1, "this string never ends", 'end it with "')


_READABLE = re.compile(r'[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*', re.DOTALL)
_EXACT = Context(prec=2 * DIGITS_MAX)


def _number(text: str, start: int, end: int) -> int | Decimal:
    word = text[start:end]
    if len(word) <= DIGITS_MAX and word.lstrip("-").isdigit():
        return int(word)
    mantissa, _, exponent = word.lower().partition("e")
    digits = mantissa.lstrip("-").replace(".", "").lstrip("0")
    if len(digits) <= DIGITS_MAX and len(exponent) <= len("-99999"):
        value = _EXACT.create_decimal(word)
        if not value:
            return 0
        if abs(value.adjusted()) <= DIGITS_MAX:
            whole = value == value.to_integral_value(context=_EXACT)
            return int(value) if whole else value.normalize(_EXACT)
    message = (
        f"a number has at most {DIGITS_MAX:,} digits and lies between 1e-{DIGITS_MAX} and 1e{DIGITS_MAX}"
    )
    raise Mistake(start, end, message)


@dataclass
class Findings:
    """Semantic mistakes found in a filter's JSON, collected to be raised together."""

    text: str

    def __post_init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def add(self, mistake: Mistake) -> None:
        self.mistakes.append(mistake)

    def refuse(self) -> None:
        """Raise FilterError if there are mistakes: the first ``PROBLEMS_MAX``, in the order of the text."""
        if self.mistakes:
            first = sorted(self.mistakes, key=lambda mistake: mistake.start)[:PROBLEMS_MAX]
            raise FilterError(self.text, [mistake.problem(self.text) for mistake in first])
