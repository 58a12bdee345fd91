"""Parsing of JSON that the usual parser rejects: lone surrogates, and numbers of any length."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

INT_DIGITS_MAX = 4300
"""Maximum digits of an int that Python parses, in quadratic time; longer ones become a Decimal, equally
exact."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_odd_json(text: bytes) -> Any:
    """Parse a JSON text as the decoder parses the parts of it that filters name.

    Raises
    ------
    ValueError
        The text is not JSON.
    """
    return _mended(json.loads(text.decode(), parse_int=_integer, parse_constant=_refuse))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= INT_DIGITS_MAX else Decimal(digits)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
