"""The functions of the filter languages, by name: ``FUNCTIONS``."""

from __future__ import annotations

from fieldfare.filters.functions import (
    arrays,
    casts,
    cesql,
    choices,
    geography,
    matching,
    networks,
    numbers,
    strings,
    times,
)
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type

FUNCTIONS: dict[str, Function] = {
    function.name: function
    for module in (strings, numbers, casts, times, geography, networks, arrays, choices, matching, cesql)
    for function in module.FUNCTIONS
}

__all__ = ["FUNCTIONS", "Function", "Parameter", "Requirements", "Type"]
