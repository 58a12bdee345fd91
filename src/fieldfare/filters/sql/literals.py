"""Literals of the ``sql`` dialect: from a token to the exact value."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal

from fieldfare.filters.errors import Mistake
from fieldfare.filters.sql.lexer import Token
from fieldfare.filters.sql.paths import unquoted

MAX_DIGITS = 1_000
"""How many digits a number may have, and how many powers of ten it may be away from 1."""

_EXACT = Context(prec=2 * MAX_DIGITS)
_NUMERAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def number(token: Token) -> int | Decimal:
    """The exact value of a numeral: an int if it is whole."""
    text = token.text
    if len(text) > 1 and text[0] == "0" and text[1].isdigit():
        hint = "a date is a string: '2026-01-31'; a number has no zeros in front"
        raise Mistake(token.start, token.end, f"{text!r} is not a number", hint)
    if text.isdecimal() and text.isascii() and len(text) <= MAX_DIGITS:
        return int(text)
    if not _NUMERAL.fullmatch(text):
        raise Mistake(token.start, token.end, f"{text!r} is not a number", "a string has single quotes")
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.replace(".", "").lstrip("0")
    value = Decimal()
    too_long = len(digits) > MAX_DIGITS or len(exponent) > len("-99999")
    if not too_long:
        value = Decimal(text).normalize(_EXACT)
        too_long = abs(value.adjusted()) > MAX_DIGITS
    if too_long:
        least, most = f"1e-{MAX_DIGITS}", f"1e{MAX_DIGITS}"
        message = f"a number has at most {MAX_DIGITS:,} digits and lies between {least} and {most}"
        raise Mistake(token.start, token.end, message)
    return int(value) if value == value.to_integral_value() else value


PLAIN_LITERALS: dict[str, Callable[[Token], int | Decimal | str]] = {
    "number": number,
    "string": lambda token: unquoted(token.text),
}
