"""Numbers out of range are found in JSON of which only the syntax was checked."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from gateway_support import encode, event
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.yardstick import slowness

from fieldfare.gateway.publishing import large_numbers
from fieldfare.gateway.publishing.events import (
    Limits,
    check_event,
    decode_array,
    decode_array_fast,
    decode_lines,
    decode_lines_fast,
)
from fieldfare.gateway.publishing.large_numbers import may_have_large_number

LIMITS = Limits()
DIGITS = st.text("0123456789", min_size=1, max_size=3)
NUMBERS = st.builds(
    lambda sign, first, zeros, fraction, exponent: f"{sign}{first}{'7' * zeros}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    st.sampled_from("123456789"),
    st.sampled_from([0, 1, 18, 19, 98, 99, 100, 198, 199, 208, 250, 307, 308, 309, 400]),
    st.one_of(st.just(""), DIGITS.map(lambda digits: "." + digits)),
    st.one_of(
        st.just(""),
        st.builds(
            lambda e, sign, digits: f"{e}{sign}{digits}",
            st.sampled_from("eE"),
            st.sampled_from(["", "+", "-"]),
            DIGITS,
        ),
    ),
)
TEXTS = st.text("eE+-0123456789 .", max_size=40)


def is_out_of_range(number: str) -> bool:
    try:
        msgspec.json.decode(number)
    except msgspec.ValidationError:
        return True
    return False


@settings(max_examples=drawn(300))
@given(NUMBERS, st.integers(0, 250), st.integers(0, 250))
@example("1e309", 0, 0)
@example("1E+309", 3, 1)
@example("1" * 310 + ".5", 0, 0)
def test_every_number_that_is_out_of_range_is_found(number: str, before: int, behind: int) -> None:
    text = b" " * before + f'{{"x":{number}}}'.encode() + b" " * behind
    if is_out_of_range(number):
        assert may_have_large_number(text)


@settings(max_examples=drawn(300))
@given(
    st.lists(st.one_of(NUMBERS, TEXTS.map(json.dumps)), min_size=1, max_size=20),
    st.sampled_from([",", " , ", "\n"]),
)
def test_one_of_many_values_that_is_out_of_range_is_found(values: list[str], between: str) -> None:
    if any(map(is_out_of_range, values)):
        assert may_have_large_number(f"[{between.join(values)}]".encode())


@pytest.mark.parametrize("number", ["1e309", "1E+309"])
def test_a_number_is_found_across_the_parts_of_a_text(number: str) -> None:
    edge = large_numbers._PART_BYTES
    for start in range(edge - len(number) - 3, edge + 3):
        text = b" " * start + number.encode() + b" " * 9
        assert may_have_large_number(text), start


def test_usual_events_have_none() -> None:
    data = {"id": "2013-01-01-JFK-9E3538", "flight": "9E4105", "uuid": "6f1e4567-e89b-12d3-a456-426614174000"}
    body = b"\n".join(encode(event(n, data | {"x": n / 7, "large": 10**80})) for n in range(200))
    assert not may_have_large_number(body)


def test_a_text_that_is_full_of_what_looks_like_large_numbers_is_decoded_at_once() -> None:
    """Looking at each place took tens of milliseconds of the event loop for a text of 256 KB."""
    for piece in ("x1e111", "x" + "1" * 190 + "e111", "x1e111" + "y" * 60):
        text = encode(event(1, {"s": piece * (200_000 // len(piece))}))
        began_s = time.process_time()
        assert may_have_large_number(text) == ("y" not in piece)
        assert time.process_time() - began_s < 0.02 * slowness()
        assert decode_lines_fast(text, LIMITS) is not None


VALUES = st.recursive(
    st.one_of(
        NUMBERS,
        TEXTS.map(json.dumps),
        st.sampled_from(["null", "true", '"\\u00e9"', '"é"', '"\\ud83d\\ude00"']),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.dictionaries(st.sampled_from("abé"), inner, max_size=2).map(
            lambda members: "{" + ",".join(f"{json.dumps(k)}:{v}" for k, v in members.items()) + "}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=drawn(300))
@given(
    st.lists(VALUES, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=2),
    st.booleans(),
)
def test_what_the_fast_decoders_accept_each_event_alone_is_accepted_as(
    values: list[str], flips: list[tuple[int, int]], is_long: bool
) -> None:
    """Also with bytes that are changed at random."""
    pieces = []
    for number, value in enumerate(values):
        subject = "s" * 2_000 if is_long else "s"
        head = {"specversion": "1.0", "id": str(number), "source": "s", "type": "t", "subject": subject}
        piece = bytearray(json.dumps(head)[:-1].encode() + f', "data": {value}}}'.encode())
        for place, byte in flips:
            piece[place % len(piece)] = byte
        pieces.append(bytes(piece).replace(b"\n", b" "))
    body = b"\n".join(pieces) + b"\n"
    array = b"[" + b",".join(pieces) + b"]"
    for fast, exact, text in (
        (decode_lines_fast, decode_lines, body),
        (decode_array_fast, decode_array, array),
    ):
        decoded = fast(text, LIMITS)
        if decoded is not None:
            judged = exact(text, LIMITS)
            assert decoded.payload == judged.payload and list(decoded.accepted) == judged.accepted
            assert not judged.refused
            for line in decoded.payload.splitlines():
                check_event(line, LIMITS.event_max_bytes)


@pytest.mark.parametrize("value", ["1e999", "-1E+400", "9" * 320, '"' + "\udcff" + '"', '{"\udcff":1}'])
def test_a_value_that_no_reader_can_use_is_refused_in_a_batch_of_any_size(value: str) -> None:
    bad = (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":'
        + value.encode(errors="surrogateescape")
        + b"}"
    )
    for good in (1, 40):
        pieces = [encode(event(n, {"x": n})) for n in range(good)] + [bad]
        assert decode_lines_fast(b"\n".join(pieces), LIMITS) is None or value == "9" * 320
        assert decode_array_fast(b"[" + b",".join(pieces) + b"]", LIMITS) is None or value == "9" * 320
        accepted = decode_lines(b"\n".join(pieces), LIMITS).count
        assert accepted == good or value == "9" * 320
