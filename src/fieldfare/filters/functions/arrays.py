"""Functions over entire arrays and objects. (Quantifiers test elements one by one.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldfare.filters import exact
from fieldfare.filters import values as sets
from fieldfare.filters.expression import Expression
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import ValueSet, is_array


def cardinality(value: Any) -> int | None:
    """Return the number of an array's elements or an object's members; None for other values."""
    return len(value) if isinstance(value, Mapping) or is_array(value) else None


def element_at(value: Any, place: Any) -> Any:
    """Return an array's element, counted from 1, or from -1 at its end; or an object's member by name.

    None if there is no such element or member.
    """
    if isinstance(place, str):
        return value.get(place) if isinstance(value, Mapping) else None
    place = exact.rational(place)
    if type(place) is not int or not is_array(value):
        return None
    place = place - 1 if place > 0 else place + len(value) if place else -1
    return value[place] if 0 <= place < len(value) else None


def _is_compound(operands: tuple[Expression, ...], _wanted: ValueSet) -> Requirements:
    return [(operands[0], ValueSet(sets.OTHER))], False


_ARRAY = Parameter("array", Type.ANY, no_time=True)

READS_ARRAYS = frozenset(("CARDINALITY", "ELEMENT_AT"))
"""Functions that read an array, which must be decoded first."""

FUNCTIONS = [
    Function(
        name="CARDINALITY",
        parameters=(_ARRAY,),
        result=Type.NUMBER,
        summary="the number of elements of an array, or of members of an object",
        group="Arrays",
        compute=cardinality,
        implied=_is_compound,
    ),
    Function(
        name="ELEMENT_AT",
        parameters=(_ARRAY, Parameter("place", Type.ANY, no_time=True)),
        result=Type.ANY,
        summary="the element at a place, counted from 1, or from -1 at the end; an object's member by name",
        group="Arrays",
        compute=element_at,
        implied=_is_compound,
    ),
]
