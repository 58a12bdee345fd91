"""The functions of the filter languages: ``FUNCTIONS``, by name."""

from __future__ import annotations

from fieldfare.filters.functions import geography, numbers, strings, times
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type

FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (*strings.FUNCTIONS, *numbers.FUNCTIONS, *times.FUNCTIONS, *geography.FUNCTIONS)
}

__all__ = ["FUNCTIONS", "Function", "Parameter", "Requirements", "Type"]
