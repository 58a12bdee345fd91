"""Filters: what a subscriber writes, checked, evaluated exactly, and prepared for the index.

``compile_filter`` gives a ``Filter``; docs/filters.md describes the language.
"""

from fieldfare.filters.encoding import decode_normal_form, encode_normal_form
from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.filter import Evaluation, Filter, compile_filter
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.sql.paths import format_path, parse_path
from fieldfare.filters.sql.printer import format_expression

__all__ = [
    "Conjunction",
    "Evaluation",
    "Filter",
    "FilterError",
    "NormalForm",
    "Problem",
    "compile_filter",
    "decode_normal_form",
    "encode_normal_form",
    "format_expression",
    "format_path",
    "parse_path",
]
