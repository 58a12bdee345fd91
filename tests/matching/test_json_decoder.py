"""The fast JSON decoder agrees with json.loads, and never reads or accepts invalid input."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_decoder import decode_json_lines_naive
from tests.doses import drawn

from fieldfare.filters.values import ABSENT
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_OTHER,
    KIND_STRING,
    ColumnBatch,
)
from fieldfare.matching.events.json_decoder import DecodeError, decode_json_lines

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
FEW, MANY = map(drawn, (100, 400) if COMPILED else (15, 40))

KEYS = ["a", "b", "data", "x", "0", "é", "a longer key than eight bytes", "a longer key than eight_bytes", ""]
PATHS: list[tuple[str | int, ...]] = [
    (),
    ("a",),
    ("b",),
    ("é",),
    ("",),
    ("data",),
    ("data", "a"),
    ("data", "x"),
    ("data", "0"),
    ("data", "data", "b"),
    ("a longer key than eight bytes",),
    ("a longer key than eight_bytes", "a"),
    ("x", 0),
    ("x", 2),
    ("x", 2, "a"),
    ("x", 1, 1),
    ("x", -1),
    (0,),
    ("never",),
    ("\ud800",),
]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False),
    st.floats(0, 1000, width=32),
    st.text(st.characters(codec=None), max_size=12),
    st.text(st.sampled_from('"\\/\n\tAé€😀\ud83d\ude00'), max_size=12),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)
events = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\r: ")])


def write(event: dict[str, Any], ascii_only: bool, marks: tuple[str, str]) -> bytes:
    line = json.dumps(event, ensure_ascii=ascii_only, separators=marks, allow_nan=True)
    line = line.replace("-Infinity", "-1e999").replace("Infinity", "1e999")
    return line.encode("utf-8", "replace") + b"\n"


lines_of_events = st.lists(st.builds(write, events, st.booleans(), separators), max_size=5)


def cells(batch: ColumnBatch, path: tuple[str | int, ...]) -> list[Any]:
    """Kind and value of every event, floats by their bits."""
    column = batch.columns.get(path)
    if column is None:
        return [(KIND_MISSING, ABSENT)] * batch.size
    found: list[Any] = []
    for event, kind in enumerate(column.kinds.tolist()):
        value = batch.value(path, event)
        if kind == KIND_OTHER:
            value = repr(value)  # distinguishes 1 from 1.0 and True, and -0.0 from 0.0
        elif kind == KIND_FLOAT:
            value = struct.pack("<d", value)
        found.append((kind, value))
    assert repr(batch.values(path)) == repr([batch.value(path, event) for event in range(batch.size)])
    return found


def assert_same(fast: ColumnBatch, naive: ColumnBatch, paths: Any = PATHS) -> None:
    assert fast.size == naive.size
    assert set(fast.columns) == set(naive.columns)
    for path in paths:
        assert cells(fast, path) == cells(naive, path), path


def decode(text: str | bytes, *paths: tuple[str | int, ...]) -> list[Any]:
    """The values of some paths in one event."""
    line = text.encode() if isinstance(text, str) else text
    batch = decode_json_lines(line + b"\n", 1, paths)
    assert_same(batch, decode_json_lines_naive(line + b"\n", 1, paths), paths)
    return [batch.value(path, 0) for path in paths]


@settings(max_examples=MANY)
@given(lines_of_events)
def test_any_json_decodes_like_json_loads(lines: list[bytes]) -> None:
    payload = b"".join(lines)
    assert_same(
        decode_json_lines(payload, len(lines), PATHS), decode_json_lines_naive(payload, len(lines), PATHS)
    )


raw_members = st.recursive(
    st.sampled_from(["1", "-0", "1e5", '"s"', '"\\u0061"', "null", "true", "[]", "{}", "[1, 2,[3]]"]),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(['"a"', '"b"', '"data"', '"\\u0064ata"', '"x"']), inner), max_size=4
    ).map(lambda pairs: "{" + ",".join(f"{key} :{value}" for key, value in pairs) + "}"),
    max_leaves=15,
).filter(lambda text: text.startswith("{"))


@settings(max_examples=MANY)
@given(st.lists(raw_members, max_size=4))
def test_the_last_of_repeated_and_escaped_keys_counts(lines: list[str]) -> None:
    payload = "".join(line + "\n" for line in lines).encode()
    assert_same(
        decode_json_lines(payload, len(lines), PATHS), decode_json_lines_naive(payload, len(lines), PATHS)
    )


def test_a_scalar_that_replaces_an_object_removes_its_members() -> None:
    assert decode('{"data":{"a":1},"data":2}', ("data", "a"), ("data",)) == [ABSENT, 2]
    assert decode('{"data":{"a":1},"data":{"b":2}}', ("data", "a"), ("data", "b")) == [ABSENT, 2]
    assert decode('{"data":7,"data":{"b":2}}', ("data", "b")) == [2]


@settings(max_examples=MANY)
@given(
    lines_of_events,
    st.lists(
        st.tuples(st.integers(0, 1 << 16), st.sampled_from(b'"\\{}[],:\n\t 0a-u\x00\xff'), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_damaged_payload_is_rejected_or_read_without_overrun(
    lines: list[bytes], damages: list[tuple[int, int, int]]
) -> None:
    """With bytes replaced, inserted, or removed, the decoder agrees with json.loads wherever that accepts the
    text."""
    payload = bytearray(b"".join(lines))
    for place, byte, action in damages:
        at = place % (len(payload) + 1)
        payload[at : at + (action != 1)] = b"" if action == 2 else bytes([byte])
    try:
        naive = decode_json_lines_naive(payload, len(lines), PATHS)
    except DecodeError as refused:
        try:
            fast = decode_json_lines(payload, len(lines), PATHS)
        except DecodeError as error:
            assert error.line >= refused.line or payload[-1:] != b"\n"
        else:
            assert fast.size == len(lines)
    else:
        assert_same(decode_json_lines(payload, len(lines), PATHS), naive)


@settings(max_examples=MANY)
@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.integers(-(2**70), 2**70).map(str),
        st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    )
)
@example("1e23")
@example("9007199254740993.0")
@example("9007199254740992.99999999999999999999")
@example("2.2250738585072011e-308")
@example("4.9406564584124654e-324")
@example("2.4703282292062327e-324")
@example("2.4703282292062328e-324")
@example("1.7976931348623158e308")
@example("1.7976931348623159e308")
@example("7.3177701707893310e+15")
@example("0.000000000000000000000000000000000000000000001")
@example("0e999999999999999999")
@example("-0.0")
@example("-0")
@example("9223372036854775807")
@example("9223372036854775808")
@example("-9223372036854775808")
@example("-9223372036854775809")
def test_numbers_are_exact_integers_or_correctly_rounded_floats(number: str) -> None:
    number = number.strip()
    [value] = decode(f'{{"a":{number}}}', ("a",))
    expected = json.loads(number)
    assert type(value) is type(expected)
    assert repr(value) == repr(expected)


def test_an_integer_too_long_for_pythons_int_is_exact() -> None:
    digits = "9" * 5000
    batch = decode_json_lines(f'{{"a":{digits}}}\n'.encode(), 1, [("a",)])
    assert batch.columns[("a",)].kinds[0] == KIND_EXACT
    assert f"{batch.value(('a',), 0):f}" == digits


def test_the_kind_depends_on_the_notation_of_a_number() -> None:
    payload = b'{"a":1}\n{"a":1.0}\n{"a":1e0}\n{"a":12345678901234567890}\n'
    kinds = decode_json_lines(payload, 4, [("a",)]).columns[("a",)].kinds
    assert kinds.tolist() == [KIND_INT, KIND_FLOAT, KIND_FLOAT, KIND_EXACT]


def test_strings_without_escapes_stay_in_the_payload() -> None:
    payload = b'{"a":"plain","b":"esc\\naped"}\n'
    batch = decode_json_lines(payload, 1, [("a",)])
    assert np.shares_memory(batch.text, np.frombuffer(payload, np.uint8))
    batch = decode_json_lines(payload, 1, [("a",), ("b",)])
    assert batch.text.tobytes() == payload + b"esc\naped"
    assert batch.columns[("b",)].kinds[0] == KIND_STRING


def test_surrogates_pair_up_and_lone_ones_become_the_replacement_character() -> None:
    assert decode(r'{"a":"\ud83d\ude00"}', ("a",)) == ["😀"]
    assert decode(r'{"a":"\ud83dx"}', ("a",)) == ["\ufffdx"]
    assert decode(r'{"a":"\ude00\ud83d"}', ("a",)) == ["\ufffd\ufffd"]
    assert decode(r'{"a":"\ud83d\ud83d\ude00"}', ("a",)) == ["\ufffd😀"]
    assert decode(r'{"\ud83d\ude00":1,"\u0064\u0061ta":{"\/":2}}', ("😀",), ("data", "/")) == [1, 2]


def test_array_elements_are_found_by_their_index_only() -> None:
    text = '{"x":[10,{"y":[1,2,3]},[],"last"],"0":5,"o":{"0":6}}'
    paths = [("x", 0), ("x", 1, "y", 2), ("x", 2), ("x", 3), ("x", 4), ("o", 0), ("o", "0"), ("x", "0")]
    assert decode(text, *paths) == [10, 3, [], "last", ABSENT, ABSENT, 6, ABSENT]


def test_complete_arrays_and_objects_are_read() -> None:
    """Also where members of them are named, with white space around them, and with repeated keys."""
    text = ' { "x" : [ 10 , {"y":[1,2]} ] ,"o":{"a":{"b":null} , "a":{"b" : [true] }} , "e":{} }'
    paths = [
        (),
        ("x",),
        ("x", 1),
        ("x", 1, "y"),
        ("o",),
        ("o", "a"),
        ("o", "a", "b"),
        ("o", "a", "b", 0),
        ("e",),
    ]
    inner = {"a": {"b": [True]}}
    whole = {"x": [10, {"y": [1, 2]}], "o": inner, "e": {}}
    assert decode(text, *paths) == [
        whole,
        whole["x"],
        {"y": [1, 2]},
        [1, 2],
        inner,
        inner["a"],
        [True],
        True,
        {},
    ]
    odd = '{"x":[1e999,"\\ud800",123456789012345678901234567890,-1e999,{"\\udfff":2}]}'
    assert decode(odd, ("x",)) == [
        [math.inf, "\ufffd", 123456789012345678901234567890, -math.inf, {"\ufffd": 2}]
    ]
    (digits,) = decode(f'{{"x":[{"9" * 5000}]}}', ("x",))[0]
    assert digits == Decimal("9" * 5000)


@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        "1",
        "[]",
        "null",
        "{",
        "}",
        "{}}",
        "{},",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        '{,"a":1}',
        '{"a":1 "b":2}',
        '{"a":01}',
        '{"a":-}',
        '{"a":+1}',
        '{"a":.5}',
        '{"a":1.}',
        '{"a":1e}',
        '{"a":1e+}',
        '{"a":0x1}',
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":tru}',
        '{"a":truee}',
        '{"a":nul',
        '{"a":"x}',
        '{"a":"\\x"}',
        '{"a":"\\u12g4"}',
        '{"a":"\\',
        '{"a":"\\u1',
        '{"a":"tab\tinside"}',
        '{"skipped":"tab\tinside"}',
        '{"skipped":"no end}',
        '{"skipped":[{"a":1]',
        '{"x":[1,2',
        '{"x":[1 2]}',
        '{"x":[1,]}',
        "{a:1}",
        "{'a':1}",
        '{"a":1}{"a":2}',
        '\ufeff{"a":1}',
    ],
)
def test_the_error_names_the_line_that_is_not_an_object(line: str) -> None:
    payload = b'{"a":1}\n' + line.encode() + b'\n{"a":3}\n'
    with pytest.raises(DecodeError, match="line 1 ") as caught:
        decode_json_lines(payload, 3, [("a",), ("x", 0), ("x", 5)])
    assert caught.value.line == 1
    assert caught.value.byte is not None
    with pytest.raises(DecodeError, match="line 1 "):
        decode_json_lines_naive(payload, 3, [("a",)])


def test_brackets_in_skipped_values_are_counted_not_paired() -> None:
    assert decode_json_lines(b'{"skipped":[1,2},"a":3}\n', 1, [("a",)]).value(("a",), 0) == 3
    with pytest.raises(DecodeError):
        decode_json_lines(b'{"a":[1,2},"b":3}\n', 1, [("a", 5)])


@pytest.mark.parametrize(("payload", "line"), [(b"", 0), (b"{}\n", 1), (b"{}\n{}\n{}\n", 2), (b"{}\n{}", 1)])
def test_a_wrong_number_of_lines_is_rejected(payload: bytes, line: int) -> None:
    for decoder in decode_json_lines, decode_json_lines_naive:
        with pytest.raises(DecodeError) as caught:
            decoder(payload, 2, [("a",)])
        assert caught.value.line == line


def test_no_events_and_no_paths_make_empty_batches() -> None:
    empty = decode_json_lines(b"", 0, [("a",)])
    assert (empty.size, empty.columns, empty.text.size) == (0, {}, 0)
    assert decode_json_lines(b'{"a":1}\n{}\n', 2, []).columns == {}
    assert decode_json_lines(b"{}\n", 1, [("a",)]).columns == {}


def test_every_kind_of_buffer_is_read() -> None:
    payload = b'{"a":"x"}\n'
    array = np.frombuffer(payload, np.uint8)
    for buffer in payload, bytearray(payload), memoryview(payload), array, array.copy():
        assert decode_json_lines(buffer, 1, [("a",)]).value(("a",), 0) == "x"


def test_lines_of_changing_structure_are_read() -> None:
    """Members are added, removed, reordered, and nested differently from line to line."""
    rng = random.Random(5)
    names = [f"member{k}" for k in range(12)]
    lines = []
    for _ in range(300):
        chosen = [name for name in names if rng.random() < 0.8]
        if rng.random() < 0.2:
            rng.shuffle(chosen)
        event: dict[str, Any] = {name: rng.randrange(1000) for name in chosen}
        if rng.random() < 0.5:
            event["data"] = {name: name * rng.randrange(3) for name in chosen[::2]}
        lines.append(json.dumps(event) + "\n")
    paths: list[Any] = [(name,) for name in names[::3]] + [("data", name) for name in names]
    payload = "".join(lines).encode()
    fast = decode_json_lines(payload, len(lines), paths)
    assert_same(fast, decode_json_lines_naive(payload, len(lines), paths), paths)


def test_white_space_may_differ_from_line_to_line() -> None:
    payload = (
        b'{"a":1,"b":{"a":2}}\n{"a": 1 ,"b":{"a" :2} }\n{ "a":1,"b": {"a":2}}\t\n \t{"a":1,"b":{"a":2}}\n'
    )
    fast = decode_json_lines(payload, 4, [("a",), ("b", "a")])
    assert fast.columns[("a",)].words.tolist() == [1] * 4
    assert fast.columns[("b", "a")].words.tolist() == [2] * 4


def test_hundreds_of_paths_and_members_are_distinguished() -> None:
    event = {f"key{k}": k for k in range(1500)}
    paths = [(f"key{k}",) for k in range(0, 1600, 3)]
    payload = (json.dumps(event) + "\n").encode() * 3
    fast = decode_json_lines(payload, 3, paths)
    assert_same(fast, decode_json_lines_naive(payload, 3, paths), paths)


@pytest.mark.long
@pytest.mark.skipif(not COMPILED, reason="this is the run that it starts")
def test_the_kernels_agree_uncompiled_where_every_index_is_checked() -> None:
    """Run the tests without numba's compiler: numpy raises where compiled code would overrun."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
