"""Answers become results or errors whose text says what, where, and what to do."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fieldfare.client import protocol
from fieldfare.client.errors import ApiError, SubscriptionsRefused, UnexpectedAnswer
from fieldfare.client.protocol import Answer
from fieldfare.client.records import BulkStored, NewSubscription
from fieldfare.client.verbs import BULK_CHARS_MAX, BulkTally, cut_bulk
from fieldfare.model import Position

CALL = protocol.publish_lines("default", [b"{}", b"{}"], "p", 4)


def answer(status: int, value: Any, **headers: str) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer(status, {name.replace("_", "-"): text for name, text in headers.items()}, body)


def test_a_batch_is_json_lines_with_producer_and_sequence() -> None:
    assert CALL.path == "/v1/spaces/default/events"
    assert CALL.content == b"{}\n{}\n"
    assert dict(CALL.headers) == {
        "content-type": "application/x-ndjson",
        "fieldfare-producer": "p",
        "fieldfare-sequence": "4",
    }


def test_a_whole_batch_gets_its_positions() -> None:
    result = CALL.interpret(answer(200, {"partition": 0, "offset": 5, "count": 2, "duplicate": True}))
    assert result.positions == [Position(0, 5, 0), Position(0, 5, 1)]
    assert result.duplicate and not result.refused


def test_a_partial_batch_tells_the_good_from_the_bad() -> None:
    result = CALL.interpret(
        answer(
            207,
            {
                "accepted": [{"index": 1, "position": "0-5-0"}],
                "refused": [{"index": 0, "detail": "not JSON", "line": 1, "column": 9}],
            },
        )
    )
    assert result.positions == [None, Position(0, 5, 0)]
    assert str(result.refused[0]) == "item 0 at line 1, column 9: not JSON"


@pytest.mark.parametrize("status", [400, 413])
def test_a_batch_with_no_good_event_is_a_refusal_of_each(status: int) -> None:
    body = {"detail": "all were refused", "refused": [{"index": 0, "detail": "too large"}]}
    result = CALL.interpret(answer(status, body))
    assert result.positions == [None, None]
    assert [result.refused[index].detail for index in (0, 1)] == ["too large", "all were refused"]


def test_a_request_that_is_refused_as_a_whole_is_an_error() -> None:
    with pytest.raises(ApiError, match="Bad request: Fieldfare-Sequence is a whole number"):
        CALL.interpret(
            answer(400, {"title": "Bad request", "detail": "Fieldfare-Sequence is a whole number."})
        )


@pytest.mark.parametrize(
    "body",
    [
        {"partition": 0, "offset": 5, "count": 1},
        {"status": "fine"},
        [],
        b"<html>",
        {"partition": 0, "offset": "x", "count": 2},
    ],
)
def test_an_answer_of_unknown_form_is_not_a_success(body: Any) -> None:
    with pytest.raises(UnexpectedAnswer, match=r"unexpected form .* may have been carried out\nhint: check"):
        CALL.interpret(answer(200, body))


def test_an_answer_of_unknown_form_to_a_request_that_only_reads_leaves_nothing_open() -> None:
    with pytest.raises(UnexpectedAnswer) as unexpected:
        protocol.get_subscription("a", "b").interpret(answer(200, []))
    assert "carried out" not in str(unexpected.value)


def test_events_that_are_neither_accepted_nor_refused_are_not_taken_for_success() -> None:
    with pytest.raises(UnexpectedAnswer, match="1 events are neither accepted nor refused"):
        CALL.interpret(answer(207, {"accepted": [{"index": 1, "position": "0-5-0"}], "refused": []}))


def test_an_error_says_title_place_detail_and_hint() -> None:
    problem = {
        "title": "The filter has an error",
        "detail": "expected a value",
        "line": 2,
        "column": 14,
        "hint": "strings are in single quotes",
    }
    error = protocol.read_error(answer(400, problem))
    assert isinstance(error, ApiError)
    assert (error.title, error.detail, error.place) == (
        problem["title"],
        problem["detail"],
        "line 2, column 14",
    )
    assert str(error) == (
        "The filter has an error (at line 2, column 14): expected a value\nhint: strings are in single quotes"
    )


def test_a_place_that_the_detail_names_is_not_named_twice() -> None:
    problem = {"title": "Bad request", "detail": "Expected int, got str, at /max.", "pointer": "/max"}
    assert str(ApiError(400, problem)) == "Bad request: Expected int, got str, at /max."
    problem["pointer"] = "/other"
    assert str(ApiError(400, problem)) == "Bad request (at /other): Expected int, got str, at /max."


def test_retry_after_is_read_in_both_its_forms() -> None:
    seconds = protocol.read_error(answer(429, {}, retry_after="2"))
    date = protocol.read_error(
        answer(
            503,
            b"busy",
            retry_after="Wed, 21 Oct 2026 07:28:05 GMT",
            date="Wed, 21 Oct 2026 07:28:00 GMT",
        )
    )
    nonsense = protocol.read_error(answer(429, {}, retry_after="soon"))
    assert [getattr(error, "retry_after_s", "") for error in (seconds, date, nonsense)] == [2.0, 5.0, None]


def test_an_answer_of_another_server_is_an_error() -> None:
    error = protocol.read_error(answer(404, b"<html>nginx</html>"))
    assert isinstance(error, UnexpectedAnswer)
    assert str(error) == (
        "the answer (status 404) is not from fieldfare: '<html>nginx</html>'\nhint: check the URL"
    )


def test_ids_and_spaces_are_quoted_in_paths() -> None:
    call = protocol.get_subscription("a b", "x/../y?z")
    assert call.path == "/v1/spaces/a%20b/subscriptions/x%2F..%2Fy%3Fz"


def test_a_bulk_call_counts_what_is_stored_and_names_what_is_not() -> None:
    items = [NewSubscription("a = 1", "x")] * 3
    call = protocol.create_subscriptions("default", items)
    found = call.interpret(answer(200, {"created": 1, "replaced": 1, "unchanged": 1, "refused": []}))
    assert found == BulkStored(3)
    refused = [{"index": 2, "id": "x", "detail": "unknown name", "line": 1, "column": 3, "hint": "try b"}]
    tally = BulkTally()
    tally.add(items, call.interpret(answer(200, {"created": 2, "refused": refused})))
    with pytest.raises(SubscriptionsRefused) as caught:
        tally.result()
    assert caught.value.stored == 2
    assert str(caught.value) == (
        "1 of 3 subscriptions were refused: item 2 (x) at line 1, column 3: unknown name (hint: try b)"
    )


def test_bulk_calls_are_cut_by_number_and_by_size() -> None:
    assert [len(piece) for piece in cut_bulk([("a", "x")] * 10_001)] == [10_000, 1]
    long = "x" * (BULK_CHARS_MAX // 2 + 1)
    assert [len(piece) for piece in cut_bulk([("a", long)] * 3)] == [1, 1, 1]


def test_an_invalid_bulk_item_is_refused() -> None:
    with pytest.raises(ValueError) as refused:
        list(cut_bulk([{"id": "x", "filtre": "a"}]))
    assert str(refused.value) == (
        "the subscription 'x' has unknown fields ('filtre') and lacks the field 'filter': correct the names"
        " of its fields, which are filter (required), id, dialect, delivery, owner and labels"
    )
    with pytest.raises(ValueError, match="the subscription lacks the field 'filter': correct"):
        list(cut_bulk([{}]))


@pytest.mark.parametrize("quota", [math.nan, math.inf])
def test_a_quota_that_is_no_number_does_not_lift_the_bound(quota: float) -> None:
    """JSON has neither, and what was sent was null: the space had no bound any more."""
    with pytest.raises(ValueError, match="events_per_s"):
        protocol.set_quotas("a", {"subscriptions": None, "events_per_s": quota})
