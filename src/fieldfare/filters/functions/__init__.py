"""The functions of the filter languages: ``FUNCTIONS``, by name."""

from __future__ import annotations

from fieldfare.filters.functions import cesql, geography, matching, networks, numbers, strings, times
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type

FUNCTIONS: dict[str, Function] = {
    function.name: function
    for module in (strings, numbers, times, geography, networks, matching, cesql)
    for function in module.FUNCTIONS
}

__all__ = ["FUNCTIONS", "Function", "Parameter", "Requirements", "Type"]
