"""Parsers of options that take a size or a time, with a unit where one is given."""

from __future__ import annotations

import math
from collections.abc import Callable

import typer

from fieldfare.units import parse_size, parse_time

Number = int | float


def size_option(*, min: int = 0) -> Callable[[str | int], int]:
    """The parser of an option that takes bytes."""

    def parse(text: str | int) -> int:
        return int(_bounded(text, parse_size, "bytes", min, math.inf))

    return parse


def time_option(*, min: float = 0, max: float = math.inf) -> Callable[[str | float], float]:
    """The parser of an option that takes seconds."""

    def parse(text: str | float) -> float:
        return _bounded(text, parse_time, "s", min, max)

    return parse


def _bounded(
    text: str | Number, parse: Callable[[str], Number], unit: str, least: Number, most: Number
) -> Number:
    try:
        found = parse(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if least <= found <= most:
        return found
    bounds = f"at least {least:g}" + (f" and at most {most:,.15g}" if math.isfinite(most) else "")
    raise typer.BadParameter(f"{text!r} is out of range: {bounds} {unit}")
