"""Functions over places on the Earth, given by latitude and longitude in degrees.

Latitudes lie between -90 (the South Pole) and 90, longitudes between -180 and 180; a longitude of
-180 is the same as one of 180. Distances are great circles on a sphere.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.expression import And, Between, Expression, Literal, Or
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet

RADIUS_KM = 6371.0088
"""The mean radius of the Earth (Moritz 2000, R1 of GRS 80)."""

DISTANCE_KM_MAX = math.pi * RADIUS_KM

Number = int | Fraction

_MARGIN_KM = 0.001
_MARGIN_DEGREES = 1e-6


def distance_km(
    latitude: Number, longitude: Number, latitude_2: Number, longitude_2: Number
) -> Decimal | None:
    """Return the distance of two places in km, to a millimetre, by the haversine formula.

    None if a latitude or longitude is out of range.
    """
    if not all(-90 <= each <= 90 for each in (latitude, latitude_2)):
        return None
    if not all(-180 <= each <= 180 for each in (longitude, longitude_2)):
        return None
    phi, phi_2 = math.radians(float(latitude)), math.radians(float(latitude_2))
    across = math.radians(float(longitude_2 - longitude)) / 2
    h = math.sin((phi_2 - phi) / 2) ** 2 + math.cos(phi) * math.cos(phi_2) * math.sin(across) ** 2
    return Decimal(f"{2 * RADIUS_KM * math.asin(math.sqrt(min(1.0, h))):.6f}")


def _implied_distance(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    """Return the latitudes and longitudes within a distance of a place that is constant in the filter."""
    cuts = wanted.numbers.cuts
    unbounded = wanted.numbers.starts_inside ^ bool(len(cuts) & 1)
    radius = DISTANCE_KM_MAX if unbounded or not cuts else float(min(cuts[-1][0], Decimal(30_000)))
    for place, other in ((operands[:2], operands[2:]), (operands[2:], operands[:2])):
        center = _degrees(place[0], 90), _degrees(place[1], 180)
        if center[0] is None or center[1] is None:
            continue
        if radius < 0:
            return [(other[0], sets.NO_VALUES)], True
        latitude, longitude = box_around(center[0], center[1], radius)
        return [(other[0], latitude), (other[1], longitude)], False
    return None


def _degrees(operand: Expression, most: int) -> float | None:
    value = operand.value if isinstance(operand, Literal) else None
    if value is None or isinstance(value, str | bool):
        return None
    return float(value) if -most <= value <= most else None


def box_around(latitude: float, longitude: float, radius_km: float) -> tuple[ValueSet, ValueSet]:
    """Return the latitudes and the longitudes of all places within a distance of a place."""
    angle = min((radius_km + _MARGIN_KM) / RADIUS_KM, math.pi)
    half_height = math.degrees(angle) + _MARGIN_DEGREES
    south, north = max(-90.0, latitude - half_height), min(90.0, latitude + half_height)
    half_width = 180.0
    if south > -90 and north < 90:  # otherwise a pole is inside, and every longitude
        narrowing = math.sin(angle) / math.cos(math.radians(latitude))
        if narrowing < 1 - 1e-9:
            half_width = min(180.0, math.degrees(math.asin(narrowing)) + _MARGIN_DEGREES)
    west, east = longitude - half_width, longitude + half_width
    longitudes = _span(-180, 180)
    if half_width < 180:
        if west < -180:
            longitudes = _span(-180, east).union(_span(west + 360, 180))
        elif east > 180:
            longitudes = _span(-180, east - 360).union(_span(west, 180))
        else:
            longitudes = _span(west, east)
        if west <= -180 or east >= 180:  # the antimeridian is both -180 and 180
            longitudes = longitudes.union(_span(-180, -180)).union(_span(180, 180))
    return ValueSet(numbers=_span(south, north)), ValueSet(numbers=longitudes)


def _span(low: float, high: float) -> Ranges:
    return Ranges(False, ((Decimal(repr(low)), BEFORE), (Decimal(repr(high)), AFTER)))


def _expand_box(operands: tuple[Expression, ...]) -> Expression:
    latitude, longitude, south, west, north, east = operands
    within = Between(latitude, south, north)
    low, high = _number(west), _number(east)
    spans = [(low, high)] if low <= high else [(low, 180), (-180, high)]
    if low <= high and (low == -180) != (high == 180):  # the antimeridian is both -180 and 180
        spans.append((180, 180) if low == -180 else (-180, -180))
    between = tuple([Between(longitude, Literal(low), Literal(high)) for low, high in spans])
    return And((within, between[0] if len(between) == 1 else Or(between)))


def _number(operand: Expression) -> Any:
    return operand.value if isinstance(operand, Literal) else 0


def _check_box(operands: tuple[Expression, ...]) -> str:
    _, _, south, _, north, _ = operands
    if _number(south) > _number(north):
        return "the box's south is north of its north; the order is south, west, north, east"
    return ""


def _check_latitude(value: Any) -> str:
    return "" if abs(value) <= 90 else "a latitude lies between -90 and 90"


def _check_longitude(value: Any) -> str:
    return "" if abs(value) <= 180 else "a longitude lies between -180 and 180"


def _latitude(name: str, literal: bool = False) -> Parameter:
    return Parameter(name, Type.NUMBER, literal=literal, check=_check_latitude)


def _longitude(name: str, literal: bool = False) -> Parameter:
    return Parameter(name, Type.NUMBER, literal=literal, check=_check_longitude)


FUNCTIONS = [
    Function(
        name="WITHIN_BOX",
        parameters=(
            *(_latitude("latitude"), _longitude("longitude")),
            *(_latitude("south", True), _longitude("west", True)),
            *(_latitude("north", True), _longitude("east", True)),
        ),
        result=Type.BOOLEAN,
        summary="whether a place is in the box or on its edge; if `west` is above `east`, the box lies "
        "across the antimeridian",
        group="Places",
        expand=_expand_box,
        check=_check_box,
    ),
    Function(
        name="DISTANCE_KM",
        parameters=(
            *(_latitude("latitude"), _longitude("longitude")),
            *(_latitude("latitude_2"), _longitude("longitude_2")),
        ),
        result=Type.NUMBER,
        summary=f"the distance of two places along a great circle, on a sphere of radius {RADIUS_KM} km",
        group="Places",
        compute=distance_km,
        implied=_implied_distance,
    ),
]
