"""Partitionings as JSON, for manifests.

    {"kind": "hash", "matchers": 3, "slices": 0}              0 slices: one for each matcher
    {"kind": "replicated", "matchers": 3}
    {"kind": "attribute_space", "axes": [{"path": ["data", "x"], "boundaries": [[5, "1.5", 0], [6]]}],
     "owners": [[0, 1, 2]], "hash_owners": [], "wide_share": 0.75, "replicated": false}

A place of an axis is its region, or its region, value and side (see ``axis``). Values are texts: numbers as
they are printed, strings as Python's ``unicode_escape`` has them, which may hold halves of surrogate pairs.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

import msgspec

from fieldfare.partitioning.attribute_space import AttributeSpace
from fieldfare.partitioning.axis import END, NUMBERS, STRINGS, Axis, Place
from fieldfare.partitioning.baselines import HashPartitioning, Replicated
from fieldfare.partitioning.strategy import Partitioning


class _Hash(msgspec.Struct, tag_field="kind", tag="hash", forbid_unknown_fields=True):
    matchers: int
    slices: int


class _Replicated(msgspec.Struct, tag_field="kind", tag="replicated", forbid_unknown_fields=True):
    matchers: int


class _Axis(msgspec.Struct, forbid_unknown_fields=True):
    path: list[str | int]
    boundaries: list[list[int | str]]


class _AttributeSpace(msgspec.Struct, tag_field="kind", tag="attribute_space", forbid_unknown_fields=True):
    axes: list[_Axis]
    owners: list[list[int]]
    hash_owners: list[int]
    wide_share: float
    replicated: bool = False  # always; earlier versions read it


EncodedPartitioning: TypeAlias = _Hash | _Replicated | _AttributeSpace
"""A partitioning in the form that msgspec encodes as JSON and decodes."""


def kind_of(partitioning: Partitioning) -> str:
    """Return the name of a partitioning's kind."""
    return str(type(encoded_partitioning(partitioning)).__struct_config__.tag)


def encoded_partitioning(partitioning: Partitioning) -> EncodedPartitioning:
    """Return a partitioning in encodable form; ValueError for an unknown kind."""
    match partitioning:
        case HashPartitioning():
            return _Hash(partitioning.matcher_count, partitioning.slice_count)
        case Replicated():
            return _Replicated(partitioning.matcher_count)
        case AttributeSpace():
            return _AttributeSpace(
                [_Axis(list(axis.path), [*map(_encoded, axis.boundaries)]) for axis in partitioning.axes],
                [list(owners) for owners in partitioning.owners],
                list(partitioning.hash_owners),
                partitioning.wide_share,
            )
    raise ValueError(f"{type(partitioning).__name__} cannot be stored in a manifest")


def decoded_partitioning(encoded: EncodedPartitioning) -> Partitioning:
    """Decode a partitioning; ValueError explains an invalid one."""
    match encoded:
        case _Hash():
            if encoded.matchers < 1 or encoded.slices < 0:
                raise ValueError("a hash partitioning needs at least one matcher")
            return HashPartitioning(encoded.matchers, encoded.slices)
        case _Replicated():
            if encoded.matchers < 1:
                raise ValueError("a replicated partitioning needs at least one matcher")
            return Replicated(encoded.matchers)
    axes = tuple(Axis(tuple(axis.path), tuple(map(_decoded, axis.boundaries))) for axis in encoded.axes)
    owners = tuple(map(tuple, encoded.owners))
    if encoded.replicated:
        raise ValueError("an attribute space's slices have no replicas")
    return AttributeSpace(axes, owners, tuple(encoded.hash_owners), encoded.wide_share)


def _encoded(place: Place) -> list[int | str]:
    if len(place) == 1:
        return [place[0]]
    region, value, side = place
    text = value.encode("unicode_escape").decode("ascii") if region == STRINGS else str(value)
    return [region, text, side]


def _decoded(place: list[int | str]) -> Place:
    match place:
        case [int(region)] if 0 <= region <= END:
            return (region,)
        case [int(region), str(text), 0 | 1 as side] if region == STRINGS:
            return (region, text.encode("ascii").decode("unicode_escape"), side)
        case [int(region), str(text), 0 | 1 as side] if region == NUMBERS:
            with suppress(InvalidOperation):
                number = Decimal(text)
                if number.is_finite():
                    return (region, number, side)
    raise ValueError(f"{place} is not a place of an axis")
