"""Events become complete CloudEvents, exactly, or are refused before anything is sent."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from fieldfare.client.encoding import decode_event, encode_event
from fieldfare.client.errors import InvalidEvent


def test_what_every_cloudevent_needs_is_filled_in() -> None:
    event = json.loads(encode_event({"source": "/quotes", "type": "quote"}))
    assert event["specversion"] == "1.0"
    assert uuid.UUID(event["id"]).version == 4
    assert datetime.fromisoformat(event["time"]).tzinfo is not None


def test_what_the_program_has_set_is_kept() -> None:
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


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "b"}, "an event needs 'source'"),
        ({"source": "a"}, "an event needs 'type'"),
        ({"source": "", "type": "b"}, "an event's 'source' is a non-empty string, not ''"),
        ({"source": "a", "type": 7}, "an event's 'type' is a non-empty string, not 7"),
        ({"source": "a", "type": "b", "data": object()}, "cannot be written as JSON"),
        ({"source": "a", "type": "b", "data": Decimal("NaN")}, "no NaN or infinity"),
        (b"", "this one is empty"),
        ("{\n oops", "is not JSON"),
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
