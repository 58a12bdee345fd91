"""Events become complete CloudEvents, exactly, or are refused before anything is sent."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as Version1CloudEvent
from cloudevents.v1.http import to_json
from cloudevents.v1.pydantic import CloudEvent as PydanticCloudEvent

from fieldfare.client.encoding import decode_event, encode_event
from fieldfare.client.errors import InvalidEvent


def test_required_attributes_are_filled_in() -> None:
    event = json.loads(encode_event({"source": "/quotes", "type": "quote"}))
    assert event["specversion"] == "1.0"
    assert uuid.UUID(event["id"]).version == 4
    assert datetime.fromisoformat(event["time"]).tzinfo is not None


def test_trace_context_set_by_the_program_is_kept() -> None:
    given = {
        "source": "/a",
        "type": "b",
        "id": "7",
        "time": "2020-01-01T00:00:00Z",
        "specversion": "1.0",
        "mine": 1,
    }
    assert json.loads(encode_event(given)) == given


def test_decimals_are_written_digit_by_digit() -> None:
    line = encode_event({"source": "a", "type": "b", "data": {"price": Decimal("18.50"), "n": 2**80}})
    assert b'"price":18.50' in line
    assert b'"n":1208925819614629174706176' in line


def test_dates_and_uuids_have_their_usual_text() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    key = uuid.uuid4()
    line = encode_event({"source": "a", "type": "b", "data": [moment, date(2026, 1, 2), key]})
    assert json.loads(line)["data"] == ["2026-01-02T03:04:05Z", "2026-01-02", str(key)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_data_of_bytes_is_sent_as_data_base64(kind: type) -> None:
    """A picture was published as a JSON string of base64: to a subscriber it was a text."""
    picture = bytes(range(256))
    event = json.loads(encode_event({"source": "a", "type": "b", "data": kind(picture)}))
    assert event["data_base64"] == b64encode(picture).decode() and "data" not in event
    with pytest.raises(InvalidEvent, match="data or data_base64, not both"):
        encode_event({"source": "a", "type": "b", "data": picture, "data_base64": "AA=="})
    empty = json.loads(encode_event({"source": "a", "type": "b", "data": b""}))
    assert empty["data_base64"] == ""


SDK_ATTRIBUTES = {"source": "/a", "type": "b", "id": "7", "specversion": "1.0", "subject": "s", "mine": "x"}


@pytest.mark.parametrize("data", [{"price": 18.5}, ["x", None], "text", b"\x00\xff", None, 0])
def test_events_of_the_cloudevents_sdk_are_sent_as_the_sdk_writes_them(data: Any) -> None:
    """A program that makes its events with the SDK had to take each one apart for `publish`."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    new = CloudEvent({**SDK_ATTRIBUTES, "time": moment}, data)
    assert read_moments(encode_event(new)) == read_moments(JSONFormat().write(new))
    old = Version1CloudEvent({**SDK_ATTRIBUTES, "time": moment.isoformat()}, data)
    assert read_moments(encode_event(old)) == without_nulls(read_moments(to_json(old)))
    typed = PydanticCloudEvent.create({**SDK_ATTRIBUTES, "time": moment}, data)
    assert read_moments(encode_event(typed)) == read_moments(encode_event(new))


def read_moments(line: bytes) -> dict[str, Any]:
    """An event whose `time` is a datetime: there are several texts for one moment."""
    event = json.loads(line)
    return {**event, "time": datetime.fromisoformat(event["time"])}


def without_nulls(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if value is not None}


def nested(levels: int) -> list[Any]:
    """Lists within lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "b"}, "an event needs 'source'"),
        ({"source": "a"}, "an event needs 'type'"),
        ({"source": "", "type": "b"}, "an event's 'source' is a non-empty string, not ''"),
        ({"source": "a", "type": 7}, "an event's 'type' is a non-empty string, not a value of type int"),
        ({"source": "a", "type": 10**5_000}, "not a value of type int"),
        ({"source": nested(5_000), "type": "b"}, "not a value of type list"),
        ({"source": "a", "type": "b", "data": object()}, "cannot be written as JSON"),
        ({"source": "a", "type": "b", "data": Decimal("NaN")}, "no NaN or infinity"),
        (b"", "this one is empty"),
        ("{\n oops", "is not JSON"),
        (b'{\n"a":' + b"[" * 5000, "is not JSON"),
        ('{"a": "\ud800"}', "is not Unicode"),
        (17, "not int"),
    ],
)
def test_an_event_that_cannot_be_sent_is_refused_in_words(event: object, message: str) -> None:
    with pytest.raises(InvalidEvent, match=message):
        encode_event(event)  # type: ignore[arg-type]


def test_the_word_nan_in_a_text_is_no_error() -> None:
    assert b"NaN" in encode_event({"source": "a", "type": "b", "data": "NaN and Infinity"})


def test_encoded_events_travel_as_they_are() -> None:
    line = b'{"source":"a", "odd" : 1}'
    assert encode_event(line) is line
    assert encode_event(bytearray(line)) == line
    assert encode_event(line.decode()) == line


def test_encoded_events_over_several_lines_become_one_line() -> None:
    assert encode_event(b'{\n  "source": "a",\n  "data": "x\\ny"\n}\n') == b'{"source":"a","data":"x\\ny"}'


def test_integers_of_any_size_are_read_exactly() -> None:
    assert decode_event(b'{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}


def test_a_number_beyond_floats_is_read_as_a_decimal() -> None:
    assert decode_event(b'{"a": 1e400, "b": 1.5}') == {"a": Decimal("1e400"), "b": 1.5}
