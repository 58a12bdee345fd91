"""Literals of the ``sql`` dialect: conversion of tokens to exact values."""

from __future__ import annotations

import re
from decimal import Context, Decimal

from fieldfare.filters.errors import Mistake
from fieldfare.filters.expression import Literal
from fieldfare.filters.functions import Type
from fieldfare.filters.sql.lexer import Tokens
from fieldfare.filters.sql.mistakes import shortened
from fieldfare.filters.sql.paths import unquoted
from fieldfare.filters.text import DIGITS_MAX

INTERVAL_UNITS = {
    "SECOND": 1,
    "SECONDS": 1,
    "MINUTE": 60,
    "MINUTES": 60,
    "HOUR": 3600,
    "HOURS": 3600,
    "DAY": 86_400,
    "DAYS": 86_400,
    "WEEK": 604_800,
    "WEEKS": 604_800,
}
"""The units of intervals, in seconds."""

_EXACT = Context(prec=2 * DIGITS_MAX)
_PLAIN = re.compile(r"(?:0|[1-9][0-9]*)?\.[0-9]+")
_NUMERAL = re.compile(r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_DIGITS = r"[0-9]++(?:_[0-9]++)*+"
_GROUPED = re.compile(rf"(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,32}")
_TYPED = re.compile(r"([0-9.]++)(?:[LSYDF]|BD)", re.IGNORECASE)
_INTERVAL = re.compile(r"\s*+(-?[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*+([A-Za-z]*+)\s*+")
_UNITS = "SECOND, MINUTE, HOUR, DAY or WEEK"


def number(tokens: Tokens, index: int) -> int | Decimal:
    """Return the exact value of a numeral: an int if it is whole; raise Mistake if it is invalid."""
    text = tokens.texts[index]
    if text.isdigit() and text.isascii() and len(text) <= DIGITS_MAX and (text[0] != "0" or len(text) == 1):
        return int(text)
    if text[-1] in "123456789" and len(text) <= 40 and _PLAIN.fullmatch(text):
        return Decimal(text)
    start, end = tokens.start(index), tokens.end(index)
    if "_" in text and _GROUPED.fullmatch(text):  # 1_000_000
        text = text.replace("_", "")
    if len(text) > 1 and text[0] == "0" and text[1].isdigit():
        hint = "a date is written DATE '2026-01-31'; a number has no leading zeros"
        raise Mistake(start, end, f"{shortened(text)!r} is not a number", hint)
    if not _NUMERAL.fullmatch(text):
        raise Mistake(start, end, f"{shortened(text)!r} is not a number", _no_number_hint(text))
    mantissa, _, exponent = text.lower().partition("e")
    digits = mantissa.replace(".", "").lstrip("0")
    value = Decimal()
    too_long = len(digits) > DIGITS_MAX or len(exponent) > len("-99999")
    if not too_long:
        value = Decimal(text).normalize(_EXACT)
        too_long = abs(value.adjusted()) > DIGITS_MAX
    if too_long:
        least, most = f"1e-{DIGITS_MAX}", f"1e{DIGITS_MAX}"
        message = f"a number has at most {DIGITS_MAX:,} digits and lies between {least} and {most}"
        raise Mistake(start, end, message)
    return int(value) if value == value.to_integral_value() else value


def _no_number_hint(text: str) -> str:
    """Return a hint for a numeral with other characters in it."""
    if _HEXADECIMAL.fullmatch(text):
        return f"numbers are decimal; write {int(text, 16)}"
    if (typed := _TYPED.fullmatch(text)) and _NUMERAL.fullmatch(typed[1]):
        return f"a number has no type suffix; write {shortened(typed[1])}"
    return "a string has single quotes"


def interval(text: str, unit: str, tokens: Tokens, index: int, end: int) -> int | Decimal:
    """Return the seconds of ``INTERVAL '5' MINUTE`` or ``INTERVAL '5 minutes'``."""
    found = _INTERVAL.fullmatch(text)
    start, stop = tokens.start(index), tokens.end(index)
    if not found or (unit and found[2]):
        hint = "write one as INTERVAL '1.5' HOUR or INTERVAL '5 minutes'"
        raise Mistake(start, stop, "this is not an interval", hint)
    unit = unit or found[2].upper()
    if unit not in INTERVAL_UNITS:
        if not unit:
            start, stop = tokens.start(end), tokens.end(end)
            unit = tokens.texts[end].upper() if tokens.kinds[end] == "path" else ""
        hint = f"the units are {_UNITS}"
        if unit.removesuffix("S") in ("MONTH", "YEAR"):
            hint += "; a month or a year has no fixed length"
        raise Mistake(start, stop, "an interval needs a unit", hint)
    seconds = _EXACT.multiply(Decimal(found[1]), Decimal(INTERVAL_UNITS[unit])).normalize(_EXACT)
    return int(seconds) if seconds == seconds.to_integral_value() else seconds


def literals_of_list(
    tokens: Tokens, start: int, known: dict[str, Literal]
) -> tuple[list[Literal], list[Type], int]:
    """Return the comma-separated literals from `start` on, their types, and the index of their end.

    A fast path for long lists: each distinct text becomes one literal, once.

    Parameters
    ----------
    known
        The literals of the list up to here, by text.
    """
    kinds, texts = tokens.kinds, tokens.texts
    literals: list[Literal] = []
    types: list[Type] = []
    index = start
    while (kind := _TYPES.get(kinds[index])) is not None and kinds[index + 1] in (",", ")"):
        text = texts[index]
        literal = known.get(text)
        if literal is None:
            value = unquoted(text) if kind is Type.STRING else number(tokens, index)
            literal = known[text] = Literal(value)
        literals.append(literal)
        types.append(kind)
        index += 2
        if kinds[index - 1] == ")":
            break
    return literals, types, index - 1


_TYPES = {"number": Type.NUMBER, "string": Type.STRING}
