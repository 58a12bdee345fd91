"""JSON that the usual parser refuses: surrogates without a partner, and numbers of any length."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

MOST_INT_DIGITS = 4300
"""Python refuses to read a longer int (it takes quadratic time); as a Decimal it is as exact."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_odd_json(text: bytes) -> Any:
    """The value that a JSON text means, as the decoder reads the parts of it that filters name.

    Raises
    ------
    ValueError
        It is no JSON.
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
    return int(digits) if len(digits) <= MOST_INT_DIGITS else Decimal(digits)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
