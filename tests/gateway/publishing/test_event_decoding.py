"""From a request's bytes to JSON lines."""

from __future__ import annotations

import base64
import json
import time

import msgspec
import pytest
from gateway_support import encode, event
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.yardstick import slowness

from fieldfare.gateway.publishing.events import (
    BatchTooLong,
    DecodedEvents,
    EventRefused,
    Limits,
    check_event,
    decode_array,
    decode_array_fast,
    decode_binary,
    decode_lines,
    decode_lines_fast,
    decode_single,
)
from fieldfare.gateway.text import Places

LIMITS = Limits()


def array(body: bytes, limits: Limits = LIMITS) -> DecodedEvents:
    return decode_array_fast(body, limits) or decode_array(body, limits)


def lines(body: bytes, limits: Limits = LIMITS) -> DecodedEvents:
    return decode_lines_fast(body, limits) or decode_lines(body, limits)


def test_a_compact_batch_becomes_lines_without_a_byte_changed():
    events = [encode(event(i, {"x": 1.10, "big": 2**70})) for i in range(3)]
    decoded = decode_array_fast(b"[" + b",".join(events) + b"]", LIMITS)
    assert decoded is not None
    assert decoded.payload == b"\n".join(events) + b"\n"
    assert list(decoded.accepted) == [0, 1, 2]
    assert decode_lines_fast(decoded.payload, LIMITS) == decoded


def test_an_event_over_several_lines_becomes_one_line_with_its_numbers_as_they_were():
    body = (
        b'[{"specversion":"1.0",\n "id":"1", "source":"s",\r\n "type":"t", "data": {"x": 1.50, "s": "a b"}}]'
    )
    decoded = array(body)
    assert (
        decoded.payload
        == b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"x":1.50,"s":"a b"}}\n'
    )


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"specversion": "0.3"}, "/specversion"),
        ({"specversion": None}, "/specversion"),
        ({"id": ""}, "/id"),
        ({"id": 7}, "/id"),
        ({"source": None}, "/source"),
        ({"type": []}, "/type"),
        ({"subject": ""}, "/subject"),
        ({"time": "yesterday"}, "/time"),
        ({"time": "2013-02-30T05:00:00Z"}, "/time"),
        ({"time": "2013-01-01T05:00:00"}, "/time"),
        ({"data_base64": "AAAA"}, "/data_base64"),
        ({"data": None, "data_base64": "not base64"}, "/data_base64"),
        ({"UPPER": "x"}, "/UPPER"),
        ({"ext": 1.5}, "/ext"),
        ({"ext": {"a": 1}}, "/ext"),
        ({"ext": 2**31}, "/ext"),
    ],
)
def test_a_wrong_attribute_is_refused_by_name_and_the_neighbours_are_taken(change, pointer):
    good = event("good", 1)
    decoded = array(msgspec.json.encode([good, event("bad", 1) | change, good]))
    assert list(decoded.accepted) == [0, 2]
    assert [(each.index, each.pointer) for each in decoded.refused] == [(1, pointer)]
    assert decoded.refused[0].detail
    one_line_each = b"".join(
        msgspec.json.encode(each) + b"\n" for each in (good, event("b", 1) | change, good)
    )
    assert [each.pointer for each in lines(one_line_each).refused] == [pointer]


@pytest.mark.parametrize("number", [b"1e999", b"-1E+400", b"9" * 5000])
def test_a_number_that_no_reader_can_hold_is_refused_where_it_stands(number):
    good = encode(event("good", "1e999"))
    bad = good.replace(b'"1e999"', b'{"text": "2e999", "x": ' + number + b"}")
    decoded = array(b"[" + good + b",\n" + bad + b"]")
    assert list(decoded.accepted) == [0]
    (refused,) = decoded.refused
    assert refused.line == 2 and refused.column == bad.index(number) + 1
    assert number[:5].decode() in refused.detail


@pytest.mark.parametrize(
    "change",
    [
        {"ext": "text", "flag": True, "count": -5, "nothing": None},
        {"data": None, "data_base64": base64.b64encode(b"\x00\xff").decode()},
        {"time": "2016-12-31T23:59:60Z"},
        {"time": "2013-01-01t05:00:00.123456789+05:30"},
        {"subject": None, "datacontenttype": "application/json", "dataschema": "https://example.com/schema"},
    ],
)
def test_what_cloudevents_allows_is_taken(change):
    body = encode([event("1", None) | change])
    assert array(body).payload == body[1:-1] + b"\n"


def test_broken_json_in_one_event_does_not_cost_the_others():
    good = encode(event("good", {"text": 'brackets ]}" and \\ in a string'}))
    body = b"[" + good + b',\n {"id": "x", "oops"},' + good + b"]"
    decoded = array(body)
    assert list(decoded.accepted) == [0, 2]
    assert decoded.payload == (good + b"\n") * 2
    (refused,) = decoded.refused
    assert refused.index == 1
    assert refused.line == 2
    assert refused.byte is not None and body[refused.byte : refused.byte + 2] == b"},"


def test_when_the_balance_is_lost_the_rest_is_refused_as_one_with_its_place():
    good = encode(event("good"))
    decoded = array(b"[" + good + b",\n" + b'{"a": [}, ' + good + b"]")
    assert list(decoded.accepted) == [0]
    (refused,) = decoded.refused
    assert (refused.index, refused.line, refused.column) == (1, 2, 8)
    assert "has no matching" in refused.detail


def test_a_batch_cut_off_keeps_its_whole_events():
    good = encode(event("good"))
    decoded = array(b"[" + good + b"," + good + b"," + good[:20])
    assert list(decoded.accepted) == [0, 1]
    assert len(decoded.refused) == 1


def test_invalid_utf8_is_refused_where_it_stands():
    good = encode(event("good"))
    bad = good.replace(b"/test", b"/te\xffst")
    decoded = array(b"[" + good + b"," + bad + b"]")
    assert list(decoded.accepted) == [0]
    assert "UTF-8" in decoded.refused[0].detail
    by_line = lines(good + b"\n" + bad + b"\n" + good + b"\n")
    assert list(by_line.accepted) == [0, 2]
    assert by_line.refused[0].line == 2


def test_blank_lines_and_carriage_returns_between_events_are_harmless():
    good = encode(event("good"))
    decoded = lines(b"\r\n" + good + b"\r\n\n  \n" + good)
    assert decoded.payload == (good + b"\n") * 2
    assert list(decoded.accepted) == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"specversion":"1.0","id":"1","source":"s"\n,"type":"t"}\n%s%s\n',
        b'%s\n{"specversion":"1.0","id":"1","source":"s"}{\n"type":"t"}\n',
        b"%s%s\n\n",
    ],
)
def test_events_that_share_a_line_or_span_two_are_not_taken_for_lines(body):
    good = encode(event("good"))
    filled = body.replace(b"%s", good)
    decoded = decode_lines_fast(filled, LIMITS)
    assert decoded is None
    for line in decode_lines(filled, LIMITS).payload.splitlines():
        json.loads(line)


def test_limits_hold_for_each_event_and_for_the_batch():
    large = encode(event("large", "x" * 2000))
    limits = Limits(event_max_bytes=1000, batch_max_events=3)
    for decoded in (array(b"[" + large + b"]", limits), lines(large, limits), decode_single(large, limits)):
        assert decoded.count == 0
        assert decoded.refused[0].too_large
    with pytest.raises(BatchTooLong):
        array(encode([event(i) for i in range(4)]), limits)
    with pytest.raises(BatchTooLong):
        lines(encode(event()) + b"\n" + b"x\n" * 3, limits)


def test_deep_nesting_is_refused_before_it_can_hurt_a_reader():
    for depth in (99, 150, 5000):
        nested = (
            b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":'
            + b"[" * depth
            + b"]" * depth
            + b"}"
        )
        assert array(b"[" + nested + b"]").count == (depth < 100)
        assert lines(nested).count == (depth < 100)
    many_brackets_in_a_string = encode(event("1", "[" * 500))
    assert lines(many_brackets_in_a_string).count == 1


def test_binary_mode_gives_the_same_event_as_structured_mode():
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "a%20b%E2%82%AC",
        "ce-source": '"quoted"',
        "ce-type": "t",
        "ce-ext": "5",
    }
    decoded = decode_binary(headers | {"content-type": "application/json"}, b'{\n "x": 1.50}', LIMITS)
    assert json.loads(decoded.payload) == {
        "specversion": "1.0",
        "id": "a b€",
        "source": "quoted",
        "type": "t",
        "ext": "5",
        "datacontenttype": "application/json",
        "data": {"x": 1.5},
    }
    assert b"1.50" in decoded.payload and decoded.payload.count(b"\n") == 1
    text = decode_binary(headers | {"content-type": "text/plain"}, "café".encode(), LIMITS)
    assert json.loads(text.payload)["data"] == "café"
    other = decode_binary(headers | {"content-type": "image/png"}, b"\x00\x01", LIMITS)
    assert base64.b64decode(json.loads(other.payload)["data_base64"]) == b"\x00\x01"
    assert "data" not in json.loads(decode_binary(headers, b"", LIMITS).payload)


IN_BINARY = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("text/plain", "café".encode(), "café"),
        ("text/plain; charset=UTF-8", "café".encode(), "café"),
        ('text/plain; format=flowed; charset="utf8"', "café".encode(), "café"),
        ("text/plain; charset=iso-8859-1", b"cafe", "cafe"),
        ("text/plain; charset=windows-1252", b"cafe", "cafe"),
        ("application/json; charset=ISO-8859-1", b'{"x": 1}', {"x": 1}),
        ("text/plain; xcharset=utf-16", b"cafe", "cafe"),
        ("text/plain", b"caf\xe9", None),
        ("text/plain; charset=us-ascii", "café".encode(), None),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", None),
        ("text/plain; charset=iso-8859-1", "café".encode(), None),
        ("application/json; charset=iso-8859-1", '{"x": "é"}'.encode("latin-1"), None),
        ("text/plain; charset=utf-16", "cafe".encode("utf-16"), None),
        ("text/plain; charset=utf-7", b"+AGE-", None),
        ("text/plain; charset=punycode", b"caf-dma", None),
        ("text/plain; charset=undefined", b"cafe", None),
        ("text/plain; charset=unicode_escape", rb"a\n\u0041", None),
        ("text/plain; charset=rot13", b"cafe", None),
        ("text/plain; charset=idna", b"cafe", None),
        ("text/plain; charset=base64", b"Y2FmZQ==", None),
        ("text/plain; charset=", b"cafe", None),
        ("text/plain; charset=../../x", b"cafe", None),
    ],
)
def test_text_is_what_its_label_says_or_stays_bytes(content_type, body, data):
    """A publisher's charset named any of Python's codecs: some ran for hours, some rewrote the text, one was
    answered 500; and Latin-1 was delivered as UTF-8 with the label of Latin-1."""
    stored = json.loads(decode_binary(IN_BINARY | {"content-type": content_type}, body, LIMITS).payload)
    assert stored["datacontenttype"] == content_type
    if data is None:
        assert "data" not in stored and base64.b64decode(stored["data_base64"]) == body
    else:
        assert "data_base64" not in stored and stored["data"] == data


def test_data_larger_than_an_event_may_be_is_refused_before_it_is_read():
    headers = IN_BINARY | {"content-type": "application/json"}
    decoded = decode_binary(headers, b"[" * 2000, Limits(event_max_bytes=1000))
    assert decoded.refused[0].too_large and "2000 bytes" in decoded.refused[0].detail


@given(st.lists(st.sampled_from(["a", "é", "\u20ac", "\n", "\r\n", "", "\ufeff"]), max_size=30), st.data())
def test_places_found_in_one_go_are_those_found_one_by_one(parts, data):
    text = "".join(parts).encode()
    places = Places(text)
    for at in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8))):
        before = text[:at]
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "ignore"))
        line, found = places.find(at)
        assert line == before.count(b"\n") + 1
        assert column <= found - 1 <= column + 1  # a place inside of a character counts it


def test_places_cost_one_look_at_each_byte():
    """10,000 broken lines took half a second, 8 MB of them half a minute: each counted from the start."""

    class Counted(bytes):
        read = 0

        def __getitem__(self, place):
            found = bytes.__getitem__(self, place)
            Counted.read += len(found)
            return found

    body = b"[" + b'{"id": oops},' * 5_000 + b"1]"
    decoded = decode_array(body, LIMITS)
    assert len(decoded.refused) == 5_001
    last = decoded.refused[4_999]
    assert (last.byte, last.line, last.column) == (4_999 * 13 + 8, 1, 4_999 * 13 + 9)
    text = Counted(body)
    places = Places(text)
    for refusal in decoded.refused:
        places.find(refusal.byte or len(body))
    assert Counted.read <= len(body)


def test_a_large_batch_is_decoded_as_a_small_one_is():
    """Beyond half a megabyte events are decoded one by one, so that other requests get their turns."""
    one = encode(event("x" * 1000, {"x": 1}))
    body = b"[" + b",".join([one] * 1_000) + b"]"
    decoded = decode_array_fast(body, LIMITS)
    assert decoded is not None and decoded.payload == (one + b"\n") * 1_000
    broken = decode_array(body[:-2] + b"]", LIMITS)
    assert (broken.count, len(broken.refused)) == (999, 1)
    dense = encode(event("y", list(range(300_000))))
    both = decode_array_fast(b"[" + dense + b"," + one + b"]", Limits(4 << 20))
    assert both is None and array(b"[" + dense + b"," + one + b"]", Limits(4 << 20)).count == 2
    with pytest.raises(BatchTooLong):
        array(b"[" + b"1," * 2_000_000 + b"1]")


def test_binary_mode_names_what_is_wrong():
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}
    for change, body, pointer in [
        ({"ce-id": ""}, b"", "/id"),
        ({"ce-time": "now"}, b"", "/time"),
        ({"ce-id": "%ff"}, b"", "/id"),
        ({"ce-data": "x"}, b"", "/data"),
        ({"content-type": "application/json"}, b"{", "/data"),
    ]:
        decoded = decode_binary(headers | change, body, LIMITS)
        assert [each.pointer for each in decoded.refused] == [pointer]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=drawn(150))
@given(st.lists(JSON, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_any_events_come_out_as_they_went_in_by_every_way(payloads, extended, indent):
    events = [event(i, data) | ({"ext": "x"} if extended else {}) for i, data in enumerate(payloads)]
    by_array = array(json.dumps(events, indent=indent).encode())
    by_lines = lines(b"".join(json.dumps(each).encode() + b"\n" for each in events))
    for decoded in (by_array, by_lines):
        assert not decoded.refused
        assert [json.loads(line) for line in decoded.payload.split(b"\n")[:-1]] == events


@settings(max_examples=drawn(400))
@given(st.data())
def test_whatever_bytes_come_every_line_taken_is_a_valid_event(data):
    good = encode([event(1, {"a": [1, "x"]}), event(2, "y", ext="z"), event(3)])
    body = bytearray(good if data.draw(st.booleans()) else data.draw(st.binary(max_size=200)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for decode in (array, lines, lambda raw: decode_single(raw, LIMITS)):
        decoded = decode(bytes(body))
        taken = decoded.payload.split(b"\n")
        assert taken.pop() == b""
        assert len(taken) == decoded.count
        for line in taken:
            assert check_event(line, 1 << 20) == line
        indexes = [*decoded.accepted, *(each.index for each in decoded.refused)]
        assert len(set(indexes)) == len(indexes)


def test_check_event_says_what_an_event_is_not():
    for text, said in [(b"[]", "an array"), (b"5", "a number"), (b"null", "null"), (b"", "no event")]:
        with pytest.raises(EventRefused, match=said):
            check_event(text, 100)


@pytest.mark.parametrize("decode", [decode_array_fast, decode_lines_fast])
def test_a_batch_of_a_thousand_events_costs_a_few_milliseconds(decode):
    """400 bytes each: 3 ms on a quiet core, and up to three times that on one that others share."""
    data = {f"field{i}": i * 1.5 if i % 2 else f"value {i}" for i in range(16)}
    one = encode(event("abc-123456", data, time="2013-01-01T05:00:00Z", subject="UA1545"))
    assert 380 <= len(one) <= 420, len(one)
    body = b"[" + b",".join([one] * 1000) + b"]" if decode is decode_array_fast else (one + b"\n") * 1000
    best_s = 1.0
    for _ in range(20):
        start_s = time.thread_time()
        decoded = decode(body, LIMITS)
        best_s = min(best_s, time.thread_time() - start_s)
    assert decoded is not None and decoded.count == 1000
    assert best_s <= 0.012 or best_s <= 0.012 * slowness()
