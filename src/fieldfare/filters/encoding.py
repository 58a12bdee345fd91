"""Normal forms as bytes (msgpack), for the registry: what was compiled once is not compiled again.

Layout: ``[FORMAT, [[exact, [[path, atoms, numbers, strings], ...]], ...]]``; a set of ranges is
``[starts_inside, [[value, side], ...]]``. A number is an int if it is a whole one of 64 bits, else
its decimal text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.values import EVERYTHING, NOTHING, Ranges, ValueSet

FORMAT = 1
"""The version of the layout; any other is refused."""

_Numbers = tuple[bool, tuple[tuple[Decimal, int], ...]]
_Strings = tuple[bool, tuple[tuple[str, int], ...]]
_Constraint = tuple[tuple[str | int, ...], int, _Numbers, _Strings]
_Layout = tuple[int, tuple[tuple[bool, tuple[_Constraint, ...]], ...]]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Layout)


def encode_normal_form(form: NormalForm) -> bytes:
    """A normal form as bytes; equal forms give equal bytes."""
    return encode_layout(
        [
            (
                conjunction.exact,
                [
                    (
                        path,
                        values.atoms,
                        _numbers(values.numbers),
                        (values.strings.starts_inside, values.strings.cuts),
                    )
                    for path, values in conjunction.constraints
                ],
            )
            for conjunction in form.conjunctions
        ]
    )


def encode_layout(conjunctions: Sequence[Any]) -> bytes:
    """Conjunctions as the layout has them, as bytes."""
    return _encoder.encode((FORMAT, conjunctions))


def decode_normal_form(data: bytes) -> NormalForm:
    """The normal form that was encoded; ValueError if the bytes are no such, or of another format."""
    try:
        version, conjunctions = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not an encoded normal form of format {FORMAT}: {error}") from error
    if version != FORMAT:
        raise ValueError(f"the normal form has format {version}, expected {FORMAT}")
    return NormalForm(
        tuple(
            [
                Conjunction(
                    tuple(
                        [
                            (path, ValueSet(atoms, _ranges(numbers), _ranges(strings)))
                            for path, atoms, numbers, strings in constraints
                        ]
                    ),
                    exact,
                )
                for exact, constraints in conjunctions
            ]
        )
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
