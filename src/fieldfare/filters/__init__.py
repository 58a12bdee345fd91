"""Subscription filters: parsing and checking, exact evaluation, and the normal form for the index.

``compile_filter`` returns a ``Filter``; docs/filters.md describes the language. ``region_of`` compiles a
filter for comparing it with others: ``covers``, ``intersects``, ``merge``.
"""

from fieldfare.filters.covering import FilterRegion, covers, intersects, region_of
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
    "FilterRegion",
    "NormalForm",
    "Problem",
    "compile_filter",
    "covers",
    "decode_normal_form",
    "encode_normal_form",
    "format_expression",
    "format_path",
    "intersects",
    "parse_path",
    "region_of",
]
