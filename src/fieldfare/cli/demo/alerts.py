"""Travellers' alerts about the departures: filters drawn from the data's own distributions.

Each traveller knows one random flight among those that departed, so a route with many flights has many
alerts. The traveller's filter is from one of the families below, each a small function that writes a filter.
`FAMILIES` has their shares: most are narrow (one flight of a carrier, a route at some hour with a long
delay), a few are broad (every cancellation). Over the year an event matches about 30 of 100,000 alerts.

`FOLLOWED` has the families for connected subscribers: each filter matches one or two thousand flights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldfare.cli.demo.flights import CANCELLED, DEPARTED

SEED = 20130101


@dataclass(frozen=True, slots=True)
class Alert:
    """A filter (dialect `sql`) with the id of its subscription."""

    id: str
    filter: str
    family: str


@dataclass(slots=True)
class Traveller:
    """The input of a family's function: the flight that the traveller knows, and a random generator.

    ``trips`` has the flights of all travellers, ``sorted_values`` the sorted values of each numeric column.
    """

    trips: Sequence[dict[str, Any]]
    sorted_values: dict[str, np.ndarray]
    rng: random.Random
    trip: dict[str, Any]

    def quantile(self, name: str, low: float, high: float) -> str:
        """Return the column's quantile at a random share between ``low`` and ``high``, as text."""
        values = self.sorted_values[name]
        share = self.rng.uniform(low, high)
        return f"{values[int(share * (len(values) - 1))]:.6g}"

    def other(self, name: str, count: int) -> list[str]:
        """Return ``count`` different values of a text column, from the flights of other travellers."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.rng.choice(self.trips)[name]] = None
        return list(found)


Family = Callable[[Traveller], str]


def _same(trip: dict[str, Any], *names: str) -> str:
    """Return conditions that the named fields equal the trip's."""
    return " AND ".join(f"data.{name} = {_literal(trip[name])}" for name in names)


def _literal(value: str | int) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _list(values: Sequence[str]) -> str:
    return ", ".join(map(_literal, values))


def _subject(trip: dict[str, Any]) -> str:
    return f"{trip['carrier']}{trip['flight']}"


# ---- narrow: one flight, one aircraft, one route at some hour


def my_flight(who: Traveller) -> str:
    """One flight of a carrier, every day it goes."""
    return _same(who.trip, "carrier", "flight")


def my_flight_by_name(who: Traveller) -> str:
    """One flight by the name on the ticket, from one airport."""
    return f"subject = '{_subject(who.trip)}' AND source = '/airports/{who.trip['origin']}'"


def my_flight_late(who: Traveller) -> str:
    """One flight of a carrier, when it is late."""
    return (
        f"{_same(who.trip, 'carrier', 'flight')} AND data.dep_delay > {who.quantile('dep_delay', 0.7, 0.98)}"
    )


def my_aircraft(who: Traveller) -> str:
    """One aircraft, wherever it flies (a spotter)."""
    return _same(who.trip, "tailnum")


def aircraft_like_mine(who: Traveller) -> str:
    """Aircraft whose registration starts alike, late on one route."""
    start = who.trip["tailnum"][:4]
    delay = who.quantile("arr_delay", 0.5, 0.95)
    return f"data.tailnum LIKE '{start}%' AND {_same(who.trip, 'dest')} AND data.arr_delay > {delay}"


def commute(who: Traveller) -> str:
    """One route by one carrier around one hour, when it is late."""
    hour = who.trip["hour"]
    return (
        f"{_same(who.trip, 'origin', 'dest', 'carrier')} AND data.hour BETWEEN {hour - 1} AND {hour + 1} "
        f"AND data.dep_delay >= {who.quantile('dep_delay', 0.75, 0.99)}"
    )


def meeting_someone(who: Traveller) -> str:
    """Arrivals from New York within half an hour, when they are late."""
    delay = who.quantile("arr_delay", 0.6, 0.97)
    return (
        f"{_same(who.trip, 'dest', 'carrier')} AND data.sched_arr_time >= {who.trip['sched_arr_time']} "
        f"AND data.sched_arr_time < {who.trip['sched_arr_time'] + 30} AND data.arr_delay > {delay}"
    )


def weekend_anywhere(who: Traveller) -> str:
    """Three places to go at one hour, when the flights are late."""
    return (
        f"{_same(who.trip, 'origin', 'hour')} AND data.dest IN ({_list(who.other('dest', 3))}) "
        f"AND data.dep_delay > {who.quantile('dep_delay', 0.85, 0.99)}"
    )


def neighbouring_flights(who: Traveller) -> str:
    """Flights of a carrier whose numbers begin alike, on one route."""
    return f"subject LIKE '{_subject(who.trip)[:-1]}%' AND {_same(who.trip, 'origin', 'dest')}"


def either_way(who: Traveller) -> str:
    """One of two flights, when it is very late."""
    mine, other = who.trip, who.rng.choice(who.trips)
    delay = who.quantile("dep_delay", 0.85, 0.99)
    return (
        f"({_same(mine, 'carrier', 'flight')} OR {_same(other, 'carrier', 'flight', 'origin')}) "
        f"AND data.dep_delay > {delay}"
    )


def two_legs(who: Traveller) -> str:
    """A late arrival on the first leg, or a late departure on the second."""
    first, second = who.trip, who.rng.choice(who.trips)
    late, later = who.quantile("arr_delay", 0.8, 0.95), who.quantile("dep_delay", 0.8, 0.95)
    return (
        f"{_same(first, 'origin', 'dest', 'hour')} AND data.arr_delay > {late} "
        f"OR {_same(second, 'origin', 'dest', 'hour')} AND data.dep_delay > {later}"
    )


def any_other_carrier(who: Traveller) -> str:
    """A route at one hour by any carrier but two, when not nearly on time."""
    return (
        f"{_same(who.trip, 'origin', 'dest', 'hour')} "
        f"AND NOT data.carrier IN ({_list(who.other('carrier', 2))}) "
        f"AND NOT data.dep_delay <= {who.quantile('dep_delay', 0.8, 0.98)}"
    )


def long_haul(who: Traveller) -> str:
    """Far flights of a carrier at one hour, when very late."""
    return (
        f"data.distance > {who.quantile('distance', 0.8, 0.97)} AND {_same(who.trip, 'carrier', 'hour')} "
        f"AND data.dep_delay > {who.quantile('dep_delay', 0.9, 0.99)}"
    )


def diverted(who: Traveller) -> str:
    """Flights that left for one place and did not land there."""
    return f"type = '{DEPARTED}' AND {_same(who.trip, 'dest', 'carrier')} AND data.air_time IS NULL"


def cancelled_route(who: Traveller) -> str:
    """Cancellations of a carrier on one route."""
    return f"type = '{CANCELLED}' AND {_same(who.trip, 'origin', 'dest', 'carrier')}"


# ---- the weather at departure


def storm(who: Traveller) -> str:
    """A route at one hour in gusts or in fog."""
    return (
        f"{_same(who.trip, 'origin', 'dest', 'hour')} AND (data.weather.wind_gust > "
        f"{who.quantile('wind_gust', 0.6, 0.99)} OR data.weather.visib < {who.quantile('visib', 0.01, 0.08)})"
    )


def rain(who: Traveller) -> str:
    """Late flights to one place by one carrier in the rain."""
    return (
        f"{_same(who.trip, 'dest', 'carrier')} "
        f"AND data.weather.precip > {who.quantile('precip', 0.94, 0.995)} "
        f"AND data.dep_delay > {who.quantile('dep_delay', 0.6, 0.95)}"
    )


def frost(who: Traveller) -> str:
    """Early departures in dry or damp frost, when late."""
    return (
        f"{_same(who.trip, 'origin', 'carrier')} "
        f"AND data.weather.temp <= {who.quantile('temp', 0.01, 0.1)} AND data.weather.humid "
        f"BETWEEN {who.quantile('humid', 0.3, 0.5)} AND {who.quantile('humid', 0.6, 0.9)} "
        f"AND data.hour <= 8 AND data.dep_delay > {who.quantile('dep_delay', 0.5, 0.9)}"
    )


def crosswind(who: Traveller) -> str:
    """A route of a carrier in strong wind from one side."""
    start = who.rng.randrange(0, 330, 10)
    return (
        f"{_same(who.trip, 'origin', 'dest', 'carrier')} "
        f"AND data.weather.wind_dir BETWEEN {start} AND {start + 30} "
        f"AND data.weather.wind_speed > {who.quantile('wind_speed', 0.7, 0.97)}"
    )


def low_pressure(who: Traveller) -> str:
    """A route at one hour in a gusty low."""
    return (
        f"{_same(who.trip, 'origin', 'dest', 'hour')} AND data.weather.pressure < "
        f"{who.quantile('pressure', 0.01, 0.15)} AND data.weather.wind_gust IS NOT NULL"
    )


# ---- arithmetic, which the index narrows and the evaluator decides


def lost_in_the_air(who: Traveller) -> str:
    """One flight, when it lands late and lost time after take-off."""
    minutes = who.rng.randrange(5, 40, 5)
    return (
        f"{_same(who.trip, 'carrier', 'flight')} AND data.arr_delay >= {who.quantile('arr_delay', 0.8, 0.9)} "
        f"AND data.arr_delay - data.dep_delay > {minutes}"
    )


def slow_flight(who: Traveller) -> str:
    """A place and a carrier, when a flight is very late and slow (miles per minute)."""
    miles_a_minute = who.rng.choice(("5.5", "6", "6.25", "7"))
    return (
        f"{_same(who.trip, 'carrier', 'dest')} AND data.arr_delay > {who.quantile('arr_delay', 0.97, 0.999)} "
        f"AND data.distance < {miles_a_minute} * data.air_time"
    )


# ---- broad: for an airline's desk or a newspaper


def every_cancellation(who: Traveller) -> str:
    """All cancellations."""
    return f"type = '{CANCELLED}'"


def very_late_anywhere(who: Traveller) -> str:
    """Long delays of anyone anywhere."""
    return f"data.dep_delay > {who.quantile('dep_delay', 0.92, 0.995)}"


def airport_in_a_storm(who: Traveller) -> str:
    """All departures of one airport in strong gusts."""
    return f"{_same(who.trip, 'origin')} AND data.weather.wind_gust > {who.quantile('wind_gust', 0.8, 0.99)}"


# ---- followed live


def my_route(who: Traveller) -> str:
    """All flights of a carrier on one route."""
    return _same(who.trip, "origin", "dest", "carrier")


def my_route_in_the_rain(who: Traveller) -> str:
    """All flights on one route while it rains."""
    return f"{_same(who.trip, 'origin', 'dest')} AND data.weather.precip > 0"


def my_carrier_late(who: Traveller) -> str:
    """Very late flights of a carrier from one airport."""
    return (
        f"{_same(who.trip, 'origin', 'carrier')} AND data.dep_delay > {who.quantile('dep_delay', 0.96, 0.99)}"
    )


def airport_cancellations(who: Traveller) -> str:
    """Cancellations at one airport."""
    return f"type = '{CANCELLED}' AND source = '/airports/{who.trip['origin']}'"


FAMILIES: tuple[tuple[int, Family], ...] = (
    (1600, my_flight),
    (400, my_flight_by_name),
    (2200, my_flight_late),
    (500, my_aircraft),
    (300, aircraft_like_mine),
    (2000, commute),
    (600, meeting_someone),
    (300, weekend_anywhere),
    (300, neighbouring_flights),
    (250, either_way),
    (200, two_legs),
    (250, any_other_carrier),
    (100, long_haul),
    (100, diverted),
    (250, cancelled_route),
    (150, storm),
    (150, rain),
    (50, frost),
    (100, crosswind),
    (130, low_pressure),
    (40, lost_in_the_air),
    (20, slow_flight),
    (2, every_cancellation),
    (4, very_late_anywhere),
    (4, airport_in_a_storm),
)
"""Number of alerts of each family, per 10,000."""

FOLLOWED: tuple[tuple[int, Family], ...] = (
    (70, my_route),
    (10, my_route_in_the_rain),
    (15, my_carrier_late),
    (5, airport_cancellations),
)
"""Number of connected subscribers of each family, per 100."""


def draw_alerts(
    departures: pa.Table, count: int, followed: int = 0, seed: int = SEED
) -> tuple[list[Alert], list[Alert]]:
    """Draw ``count`` alerts, of which the first ``followed`` belong to connected subscribers.

    The same departures, counts and seed give the same alerts, with any version of Python or NumPy.

    Parameters
    ----------
    departures
        From `fieldfare.cli.demo.flights.read_departures`; all of them, even if only some will be replayed,
        so that the alerts do not depend on that number.
    count, followed
        Number of alerts, and how many of them have a connected subscriber.

    Returns
    -------
    (followed, others)
        Both ordered by id.
    """
    if not 0 <= followed <= count:
        raise ValueError(f"{followed} followed alerts are not among {count}")
    rng = random.Random(seed)
    known = _flights_that_travellers_know(departures)
    rows = [rng.randrange(known.num_rows) for _ in range(count)]
    trips = known.take(pa.array(rows)).to_pylist()
    values = _sorted_values(departures)
    followed_table = ("follower", FOLLOWED, trips[:followed])
    others_table = ("traveller", FAMILIES, trips[followed:])
    drawn = []
    for prefix, families, own_trips in (followed_table, others_table):
        weights, functions = [share for share, _ in families], [family for _, family in families]
        chosen = rng.choices(functions, weights, k=len(own_trips))
        alerts = [
            Alert(f"{prefix}-{i:06d}", family(Traveller(trips, values, rng, trip)), family.__name__)
            for i, (family, trip) in enumerate(zip(chosen, own_trips, strict=True))
        ]
        drawn.append(alerts)
    return drawn[0], drawn[1]


_TRIP_FIELDS = ("origin", "dest", "carrier", "flight", "tailnum", "sched_arr_time", "hour")
_QUANTILE_FIELDS = (
    "dep_delay",
    "arr_delay",
    "distance",
    "temp",
    "humid",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)


def _flights_that_travellers_know(departures: pa.Table) -> pa.Table:
    """Return the flights that departed with a known aircraft."""
    left = pc.and_(pc.is_valid(departures["dep_time"]), pc.is_valid(departures["tailnum"]))
    return departures.filter(left).select(list(_TRIP_FIELDS))


def _sorted_values(departures: pa.Table) -> dict[str, np.ndarray]:
    return {name: np.sort(departures[name].drop_null().to_numpy()) for name in _QUANTILE_FIELDS}
