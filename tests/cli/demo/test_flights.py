from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from fieldfare.cli.demo import flights

pytestmark = pytest.mark.long


def test_every_flight_of_the_year_is_one_event(events: list[bytes]) -> None:
    identities = {(event["source"], event["id"]) for event in map(msgspec.json.decode, events[::7])}
    assert len(events) == 336_776
    assert len(identities) == len(events[::7])


def test_the_events_are_the_same_bytes_everywhere(events: list[bytes]) -> None:
    """Figures of different machines can be compared only if they were measured on the same events."""
    digest = hashlib.sha256(b"".join(event + b"\n" for event in events)).hexdigest()
    assert digest == "6510ecbba50f35a81712389a5800365caf528346d6f493a0abe4c17252fe77ef"


def test_events_come_in_the_order_of_departure(departures: pa.Table) -> None:
    times = departures["time"].to_pylist()
    assert times == sorted(times)


def test_an_event_says_what_the_package_says(events: list[bytes]) -> None:
    """The encoder works column by column; here each field of some flights is read again row by row."""
    rows = {_identity(row): row for row in _read_rows("flights", every=1009)}
    weather = {(row["origin"], row["time_hour"]): row for row in _read_rows("weather")}
    found = 0
    for event in map(msgspec.json.decode, events):
        row = rows.get(event["id"])
        if row is None:
            continue
        found += 1
        expected = {name: _value(row[name]) for name in flights.FLIGHT_FIELDS if row[name] != "NA"}
        sky = weather.get((row["origin"], row["time_hour"]))
        if sky is not None:
            expected["weather"] = {
                name: _value(sky[name]) for name in flights.WEATHER_FIELDS if sky[name] != "NA"
            }
        assert event["data"] == expected
        assert event["source"] == f"/airports/{row['origin']}"
        assert event["subject"] == row["carrier"] + row["flight"]
        assert event["type"] == (flights.CANCELLED if row["dep_time"] == "NA" else flights.DEPARTED)
    assert found == len(rows) > 300


def test_a_flight_leaves_its_delay_after_its_schedule(departures: pa.Table, events: list[bytes]) -> None:
    first = msgspec.json.decode(events[0])
    assert first["time"] == "2013-01-01T10:17:00Z"
    assert (first["data"]["sched_dep_time"], first["data"]["dep_delay"]) == (515, 2)


def test_only_the_earliest_are_kept_when_few_are_asked_for(events: list[bytes]) -> None:
    few = flights.encode_departures(flights.read_departures(limit=50))
    assert few.to_pylist() == events[:50]


def test_a_missing_package_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(flights.FlightsMissingError, match=r"pip install 'fieldfare\[demo\]'"):
        flights.flights_folder()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "flights.csv.zip").write_bytes(b"not an archive")
    with pytest.raises(flights.FlightsMissingError, match=r"flights\.csv\.zip cannot be read"):
        flights.read_departures(tmp_path)


def _read_rows(name: str, every: int = 1) -> Iterator[dict[str, str]]:
    folder = flights.flights_folder()
    packed = folder / f"{name}.csv.zip"
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            text = archive.read(f"{name}.csv").decode()
    else:
        text = (folder / f"{name}.csv").read_text()
    for i, row in enumerate(csv.DictReader(io.StringIO(text))):
        if i % every == 0:
            yield row


def _identity(row: dict[str, str]) -> str:
    date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    return f"{date}-{row['origin']}-{row['carrier']}{row['flight']}"


def _value(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
