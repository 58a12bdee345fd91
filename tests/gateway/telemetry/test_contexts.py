"""Which events of a record are sampled, whatever publishers write into them."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from gateway_support import encode, event
from hypothesis import given
from hypothesis import strategies as st
from telemetry_support import PARENT, TRACE, context
from tests.yardstick import slowness

from fieldfare.arrow_events.canonical import SizeBudget
from fieldfare.arrow_events.checking import check_events
from fieldfare.arrow_events.stream import write_events
from fieldfare.gateway.telemetry.contexts import (
    EVENTS_MAX,
    SEARCHED_MAX_BYTES,
    STATE_MAX_CHARS,
    sampled_context,
    sampled_events,
)


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(encode(each) + b"\n" for each in events)


def test_the_sampled_events_of_a_record_are_found() -> None:
    payload = lines(
        event(0),
        event(1, traceparent=context()),
        event(2, traceparent=context(flags="00")),
        event(3, traceparent=context(span=7), tracestate="vendor=1"),
    )
    (first, one), (second, other) = sampled_events(payload)
    assert (first, one.trace_id, one.span_id, one.is_remote) == (1, TRACE, PARENT, True)
    assert (second, other.span_id, other.trace_state.to_header()) == (3, 7, "vendor=1")
    assert sampled_events(lines(event(0), event(1))) == []


@pytest.mark.parametrize(
    "parent",
    [
        *("", "x", "00", context()[:-1], context() + "0", context() + "-", context() + "\n", " " + context()),
        *(context(trace=0), context(span=0), context(flags="0x"), context().upper(), context(flags="0g")),
        *("ff" + context()[2:], context() + "-more", "00-" + "a" * 100_000, context()[:-2] + "٣1"),
        *(7, None, True, ["00"], {"a": 1}, 1.5),
    ],
)
def test_a_context_that_is_wrong_is_none(parent: Any) -> None:
    assert sampled_context(parent, None) is None


def test_a_later_version_of_the_format_may_have_more() -> None:
    found = sampled_context("01" + context()[2:] + "-more", None)
    assert found is not None and found.span_id == PARENT


@pytest.mark.parametrize("state", [7, "a" * 600, "=", "\x00", "a=1," * 200, None, "ä=ö"])
def test_a_state_that_is_wrong_is_left_out(state: Any) -> None:
    found = sampled_context(context(), state)
    assert found is not None and len(found.trace_state.to_header()) <= STATE_MAX_CHARS


def test_a_context_in_the_data_is_none_of_the_event() -> None:
    inner = {"traceparent": context(span=3)}
    assert sampled_events(lines(event(1, inner), event(2, [inner]), event(3, json.dumps(inner)))) == []
    ((index, found),) = sampled_events(lines(event(1, inner), event(2, inner, traceparent=context())))
    assert (index, found.span_id) == (1, PARENT)


def test_a_hostile_record_takes_little_time() -> None:
    """Eight megabytes of what looks like contexts are searched at their begin only, and each line once."""
    decoy = {f"k{at}": {"traceparent": context(span=at + 1)} for at in range(1000)}
    payload = lines(*(event(at, decoy) for at in range(100)))
    assert len(payload) > 20 * SEARCHED_MAX_BYTES
    began_s = time.thread_time()
    assert sampled_events(payload) == []
    assert len(sampled_events(lines(*(event(at, traceparent=context()) for at in range(5000))))) == EVENTS_MAX
    assert sampled_events(lines(event(1, "x" * SEARCHED_MAX_BYTES, traceparent=context()))) == []
    assert time.thread_time() - began_s < slowness()


def test_rows_of_an_arrow_record_are_found() -> None:
    def payload(**columns: list[Any]) -> bytes:
        given = (
            {name: ["a", "b", "c"] for name in ("id", "source", "type")}
            | {"specversion": ["1.0"] * 3}
            | columns
        )
        checked = check_events(pa.table(given).to_batches(), 1 << 20, SizeBudget(1 << 24))
        return bytes(write_events(checked.events))

    contexts = [None, context(), context(flags="00")]
    ((index, found),) = sampled_events(payload(traceparent=contexts, tracestate=[None, "a=1", None]))
    assert (index, found.trace_id, found.trace_state.to_header()) == (1, TRACE, "a=1")
    assert [index for index, _ in sampled_events(payload(traceparent=contexts))] == [1]
    assert sampled_events(payload()) == []
    assert sampled_events(payload(traceparent=contexts)[:-40]) == [], "a torn record"


texts = st.one_of(st.none(), st.integers(), st.text(), st.sampled_from([context(), context(flags="00")]))
datas = st.recursive(
    texts, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("traceparent"), inner)
)


@given(st.lists(st.tuples(texts, texts, datas), max_size=EVENTS_MAX), st.booleans())
def test_what_is_found_is_what_the_events_say(drawn: list[tuple[Any, Any, Any]], is_ascii: bool) -> None:
    events = [
        event(at, data, traceparent=parent, tracestate=state)
        for at, (parent, state, data) in enumerate(drawn)
    ]
    payload = b"".join(
        json.dumps(each, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass") + b"\n" for each in events
    )
    expected = [at for at, (parent, _, _) in enumerate(drawn) if parent == context()]
    assert [index for index, _ in sampled_events(payload)] == expected
