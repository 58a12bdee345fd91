"""Tables of events: cut into requests, repeated as other publishes are, and accounted for row by row."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client_support import SOON
from real_gateway import RealGateway, running_gateway

from fieldfare import ApiError, AsyncClient, Client, ConnectionFailed, Position, PublishError
from fieldfare.client import ClientClosed, DeliveryTimeout, InvalidEvent, MissingPyarrow, Publisher
from fieldfare.client.endpoint import Endpoint
from fieldfare.client.protocol import Answer, ApiCall, PublishAnswer
from fieldfare.client.retry import RetrySettings
from fieldfare.client.tables import TABLE_MAX_BYTES, TablePieces, as_data

pytestmark = pytest.mark.long

NOW = datetime(2024, 1, 1, tzinfo=UTC)
QUICK = RetrySettings(first_wait_s=0.001, most_wait_s=0.002, deadline_s=30)


def quotes(count: int, **columns: Any) -> pa.Table:
    data = [{"price": float(number)} for number in range(count)]
    return pa.table({"source": ["/quotes"] * count, "type": ["quote"] * count, "data": data} | columns)


def rows_of(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


class Service:
    """Answers publishes in this process; `fail` may raise for the n-th request that comes."""

    def __init__(self, fail: Callable[[int, int], None] = lambda number, rows: None) -> None:
        self._fail = fail
        self.calls: list[tuple[dict[str, str], pa.Table]] = []
        self.requests = 0
        self.rows = 0

    endpoint = Endpoint.chosen("http://nowhere", 1.0, None, None, None)

    def perform(self, call: ApiCall[PublishAnswer]) -> PublishAnswer:
        rows = rows_of(call.content)
        self.requests += 1
        self._fail(self.requests, rows.num_rows)
        self.calls.append((dict(call.headers), rows))
        self.rows += rows.num_rows
        answer = b'{"partition":0,"offset":%d,"count":%d}' % (len(self.calls) - 1, rows.num_rows)
        return call.interpret(Answer(200, {}, answer))


def test_a_table_is_cut_by_rows_and_by_bytes_and_keeps_its_order() -> None:
    pieces = list(TablePieces(quotes(2_500), 1_000, NOW))
    assert [(piece.start, piece.count) for piece in pieces] == [(0, 1000), (1000, 1000), (2000, 500)]
    large = quotes(64, subject=["x" * (TABLE_MAX_BYTES // 10)] * 64)
    pieces = list(TablePieces(large, 1_000, NOW))
    assert [piece.start for piece in pieces] == list(range(0, 64, 8))
    assert all(len(piece.body) < TABLE_MAX_BYTES for piece in pieces)
    together = pa.concat_tables([rows_of(piece.body) for piece in pieces])
    assert together.select(large.column_names).equals(large)
    one = quotes(1, subject=["x" * 2 * TABLE_MAX_BYTES])
    assert [piece.count for piece in TablePieces(one, 1_000, NOW)] == [1], (
        "the service may take it, or say no"
    )


def test_missing_columns_are_filled_in() -> None:
    (piece,) = TablePieces(quotes(3), 10, NOW)
    rows = rows_of(piece.body)
    assert rows.column("specversion").to_pylist() == ["1.0"] * 3
    assert rows.column("time").to_pylist() == [NOW] * 3
    assert len(set(rows.column("id").to_pylist())) == 3
    given = quotes(1, id=["a"], time=[None], specversion=["1.0"])
    (piece,) = TablePieces(given, 10, NOW)
    assert rows_of(piece.body).equals(given)


def test_an_invalid_table_is_refused_before_anything_is_sent() -> None:
    for wrong, words in (
        ({"source": []}, "not dict"),
        (pa.table({"type": ["t"]}), "needs a column 'source'"),
        (pa.table({"source": ["t"], "price": [1]}), "needs a column 'type'.*this one has source, price"),
    ):
        with pytest.raises(InvalidEvent, match=words):
            TablePieces(wrong, 10, NOW)
    with pytest.raises(ValueError, match="max_events"):
        TablePieces(quotes(1), 10_001, NOW)


@pytest.mark.parametrize("indices", [pa.uint8(), pa.uint16(), pa.uint32(), pa.int64()], ids=str)
@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_columns_of_categories_are_published_as_their_words(
    values: pa.DataType, indices: pa.DataType
) -> None:
    """polars' Categorical and Enum are dictionaries of string views, which Arrow cannot cast to what they
    stand for: publish_table raised pyarrow's error."""
    words = pa.array(["YHOO", "IBM"], values)
    symbols = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0], indices), words, ordered=True)
    chunks = pa.chunked_array([symbols, symbols.slice(2, 1), symbols.slice(0, 0)])
    table = pa.table({"source": ["/a"] * 5, "type": ["t"] * 5, "s": chunks})
    for made in (table, as_data(table.select(["s"]), "t", "/a")):
        found = [rows_of(piece.body) for piece in TablePieces(made, 2, NOW)]
        column = pa.concat_tables(found).to_pylist()
        assert [row["s"] if "s" in row else row["data"]["s"] for row in column] == [
            "YHOO",
            None,
            "IBM",
            "YHOO",
            "IBM",
        ]
        for part in found:
            assert "dictionary" not in str(part.schema)


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPyarrow, match=r"pip install 'fieldfare\[arrow\]'"):
        TablePieces("anything", 10, NOW)


def test_rows_of_any_table_become_the_data_of_events() -> None:
    plain = pa.table({"price": [1.0, 2.0], "Symbol": ["A", None]}).slice(1)
    (piece,) = TablePieces(as_data(plain, "quote", "/quotes"), 10, NOW)
    assert rows_of(piece.body).column("data").to_pylist() == [{"price": 2.0, "Symbol": None}]


def test_requests_that_fail_in_passing_are_repeated_under_their_own_number() -> None:
    tried: list[int] = []

    def fail(number: int, rows: int) -> None:
        tried.append(rows)
        if number in (1, 3, 4):
            raise ConnectionFailed("gone", "http://nowhere")

    service = Service(fail)
    with Publisher(service, "default", retry=QUICK) as publisher:
        positions = publisher.publish_table(quotes(5), max_events=2)
        assert positions == [Position(0, number // 2, number % 2) for number in range(5)]
        again = publisher.publish_table(quotes(1))
        assert again == [Position(0, 3, 0)]
        stats = publisher.stats()
    assert tried == [2, 2, 2, 2, 2, 1, 1]
    assert [headers["fieldfare-sequence"] for headers, _ in service.calls] == ["0", "1", "2", "3"]
    assert len({headers["fieldfare-producer"] for headers, _ in service.calls}) == 1
    assert (stats.acknowledged_events, stats.requests, stats.repeated_requests) == (6, 7, 3)
    assert publisher.publish_table(quotes(0)) == []


def test_a_request_that_is_too_large_is_sent_in_two() -> None:
    def fail(number: int, rows: int) -> None:
        if rows > 2:
            raise ApiError(413, {"detail": "too large"})

    service = Service(fail)
    with Publisher(service, "default", retry=QUICK) as publisher:
        assert len(publisher.publish_table(quotes(9))) == 9
    assert [rows.num_rows for _, rows in service.calls] == [2, 2, 2, 1, 2]
    prices = [row["price"] for _, rows in service.calls for row in rows.column("data").to_pylist()]
    assert prices == [float(number) for number in range(9)]


def test_failed_rows_of_a_table_are_accounted_for() -> None:
    def fail(number: int, rows: int) -> None:
        if number == 2:
            raise ApiError(404, {"detail": "no such space"})

    with Publisher(Service(fail), "default", retry=QUICK) as publisher:
        with pytest.raises(PublishError) as caught:
            publisher.publish_table(quotes(6), max_events=2)
        assert [index for index, _ in caught.value.accepted] == [0, 1]
        assert caught.value.unknown == (2, 3, 4, 5)
        assert isinstance(caught.value.__cause__, ApiError)

    def fail_always(number: int, rows: int) -> None:
        raise ConnectionFailed("gone", "http://nowhere")

    publisher = Publisher(Service(fail_always), "default", retry=RetrySettings(0.001, 0.001, 0.01))
    with pytest.raises(DeliveryTimeout):
        publisher.publish_table(quotes(6), max_events=2)
    publisher.close()
    with pytest.raises(ClientClosed):
        publisher.publish_table(quotes(1))


def test_a_publisher_that_is_closed_meanwhile_ends_between_two_requests() -> None:
    """And what the requests before brought is said."""
    reached, go_on = threading.Event(), threading.Event()

    def fail(number: int, rows: int) -> None:
        reached.set()
        assert go_on.wait(60)

    publisher = Publisher(Service(fail), "default", retry=QUICK)
    errors: list[PublishError] = []

    def work() -> None:
        with pytest.raises(PublishError) as caught:
            publisher.publish_table(quotes(4), max_events=2)
        errors.append(caught.value)

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(60)
    closing = threading.Thread(target=publisher.close)
    closing.start()
    while not publisher._closed:
        threading.Event().wait(0.001)
    go_on.set()
    thread.join(60)
    closing.join(60)
    assert len(errors[0].accepted) == 2 and errors[0].unknown == (2, 3)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with running_gateway(tmp_path_factory.mktemp("data")) as running:
        yield running


def test_a_table_is_delivered_as_its_events(gateway: RealGateway, tmp_path: Path) -> None:
    with Client(gateway.url, retry=SOON) as client, client.subscribe("t", "data.price >= 7") as messages:
        before = client.publish({"source": "/a", "type": "b", "data": {"price": 8}})
        positions = client.publish_table(quotes(9), max_events=4)
        assert before.result(0) < positions[0], "what was queued before goes first"
        assert [(at.offset - positions[0].offset, at.index) for at in positions] == [
            (number // 4, number % 4) for number in range(9)
        ]
        found = [next(messages) for _ in range(3)]
        assert [message.event["data"]["price"] for message in found] == [8, 7, 8]
        assert [message.position for message in found[1:]] == positions[7:]
        with pytest.raises(PublishError) as caught:
            client.publish_table(quotes(3, id=["a", "", "c"]))
        assert [(each.index, each.place) for each in caught.value.refused] == [(1, "/id")]
        with pytest.raises(ApiError, match=r"/subject.*must be one of strings, not of type int64"):
            client.publish_table(quotes(1, subject=[1]))


def test_the_async_client_publishes_tables_too(gateway: RealGateway) -> None:
    async def work() -> None:
        async with AsyncClient(gateway.url, retry=SOON) as client:
            both = await asyncio.gather(
                client.publish_table(quotes(5), max_events=2), client.publish_table(quotes(2))
            )
            assert [len(positions) for positions in both] == [5, 2]
            with pytest.raises(PublishError) as caught:
                await client.publish_table(quotes(3, type=["t", "t", None]), max_events=2)
            assert [each.index for each in caught.value.refused] == [2]
            assert len(caught.value.accepted) == 2
            with pytest.raises(InvalidEvent):
                await client.publish_table(pa.table({"a": [1]}))
            assert await client.publish_table(quotes(0)) == []

    asyncio.run(asyncio.wait_for(work(), 60))
