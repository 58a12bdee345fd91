"""Encoding of normal forms as bytes (msgpack), for the registry: a filter is compiled once.

Format 1: ``[format, [[exact, [[path, atoms, numbers, strings], ...]], ...]]``; a set of ranges is
``[starts_inside, [[value, side], ...]]``. A number is an int if it is a whole number of 64 bits, else
its decimal text.

Format 2 adds needles: ``[exact, constraints, [[path, text, kind], ...]]``. Format 3 is format 2 for filters
with derived columns: ``IMPLIED`` is added to the atoms of attributes whose sets follow from those columns.
Each format is written only for filters that need it, so the bytes of other filters do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from fieldfare.filters.needles import Needle
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.values import ALL_ATOMS, EVERYTHING, NOTHING, Ranges, ValueSet

FORMAT, NEEDLES_FORMAT, DERIVED_FORMAT = 1, 2, 3
"""Versions of the layout: plain, with needles, with derived columns. Other versions are rejected."""
IMPLIED = ALL_ATOMS + 1

_Numbers = tuple[bool, tuple[tuple[Decimal, int], ...]]
_Strings = tuple[bool, tuple[tuple[str, int], ...]]
_Constraint = tuple[tuple[str | int, ...], int, _Numbers, _Strings]
_Needle = tuple[tuple[str | int, ...], str, int]
_Layout = tuple[int, tuple[tuple[bool, tuple[_Constraint, ...]], ...]]
_NeedlesLayout = tuple[int, tuple[tuple[bool, tuple[_Constraint, ...], tuple[_Needle, ...]], ...]]

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    FORMAT: msgspec.msgpack.Decoder(_Layout),
    NEEDLES_FORMAT: msgspec.msgpack.Decoder(_NeedlesLayout),
    DERIVED_FORMAT: msgspec.msgpack.Decoder(_NeedlesLayout),
}


def encode_normal_form(form: NormalForm) -> bytes:
    """Encode a normal form as bytes; equal forms give equal bytes."""
    derives = any(conjunction.derives for conjunction in form.conjunctions)
    if derives or any(conjunction.needles for conjunction in form.conjunctions):
        conjunctions = [(each.exact, _constraints(each), each.needles) for each in form.conjunctions]
        return _encoder.encode((DERIVED_FORMAT if derives else NEEDLES_FORMAT, conjunctions))
    return encode_layout([(each.exact, _constraints(each)) for each in form.conjunctions])


def _constraints(conjunction: Conjunction) -> list[Any]:
    return [
        (
            path,
            values.atoms + (IMPLIED if path in conjunction.implied else 0),
            _numbers(values.numbers),
            (values.strings.starts_inside, values.strings.cuts),
        )
        for path, values in conjunction.constraints
    ]


def encode_layout(conjunctions: Sequence[Any]) -> bytes:
    """Encode conjunctions without needles, given in the layout of format 1."""
    return _encoder.encode((FORMAT, conjunctions))


def decode_normal_form(data: bytes) -> NormalForm:
    """Decode a normal form; raise ValueError if the bytes are not one, or have an unknown format."""
    try:
        decoder = _decoders[data[1] if len(data) > 1 and data[1] in _decoders else FORMAT]
        version, conjunctions = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not an encoded normal form of format {FORMAT}: {error}") from error
    if version not in _decoders:
        raise ValueError(f"the normal form has format {version}, expected {FORMAT} to {DERIVED_FORMAT}")
    return NormalForm(tuple([_conjunction(*parts) for parts in conjunctions]))


def _conjunction(
    exact: bool, constraints: Sequence[_Constraint], needles: Sequence[_Needle] = ()
) -> Conjunction:
    return Conjunction(
        tuple(
            [
                (path, ValueSet(atoms & ALL_ATOMS, _ranges(numbers), _ranges(strings)))
                for path, atoms, numbers, strings in constraints
            ]
        ),
        exact,
        tuple([Needle(*needle) for needle in needles]),
        frozenset([path for path, atoms, _, _ in constraints if atoms & IMPLIED]),
    )


def _numbers(ranges: Ranges) -> tuple[bool, list[tuple[int | str, int]]]:
    return ranges.starts_inside, [(_number(value), side) for value, side in ranges.cuts]


def _number(value: Decimal) -> int | str:
    if -_INT64 <= value < _INT64 and value == (whole := int(value)):
        return whole
    return str(value)


_INT64 = 1 << 63


def _ranges(layout: tuple[bool, tuple[tuple[Any, int], ...]]) -> Ranges:
    starts_inside, cuts = layout
    if cuts:
        return Ranges(starts_inside, cuts)
    return EVERYTHING if starts_inside else NOTHING
