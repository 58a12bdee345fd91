"""Publishing through a service that drops and refuses: each event once and in order, or accounted for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest
from client_support import SOON
from faulty_service import Fault, FaultyService

from fieldfare import ApiError, BatchSettings, Client, ConnectionFailed, Position, PublishError
from fieldfare.client import ClientClosed, DeliveryTimeout, FlushTimeout, InvalidEvent, RetrySettings


def event(number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"n": number}}


def numbers(service: FaultyService) -> list[int]:
    return [each["data"]["n"] for each in service.events()]


def test_futures_resolve_to_the_positions_of_their_events(service: FaultyService, client: Client) -> None:
    futures = [client.publish(event(n)) for n in range(2500)]
    found = [future.result(60) for future in futures]
    assert len(set(found)) == 2500 and found == sorted(found)
    assert numbers(service) == list(range(2500))
    assert len(service.records) < 100, "events must travel together"


def test_publish_many_gives_positions_in_order(service: FaultyService, client: Client) -> None:
    found = client.publish_many(event(n) for n in range(2300))
    assert found[0] == Position(0, 0, 0) and found == sorted(found)
    assert [len(record) for record in service.records] == [500, 1000, 800] or len(found) == 2300
    assert numbers(service) == list(range(2300))
    assert client.publish_many([]) == []


def test_a_lost_answer_does_not_double_events(service: FaultyService, client: Client) -> None:
    """The connection drops after the append: the repeat has the same producer and sequence."""
    service.fail_next("events", Fault("drop_after"), Fault("drop_after"), Fault("drop_before"))
    found = client.publish_many([event(n) for n in range(10)])
    assert numbers(service) == list(range(10))
    assert service.duplicates >= 1
    assert [at.index for at in found] == list(range(10))


def test_a_service_in_trouble_is_asked_again(service: FaultyService, client: Client) -> None:
    service.fail_next(
        "events",
        Fault("status", 500),
        Fault("status", 429, {"retry-after": "0.01"}),
        Fault("status", 503, body=b"<html>proxy</html>"),
    )
    client.publish(event(1)).result(60)
    assert numbers(service) == [1]


def test_order_is_kept_while_requests_fail(service: FaultyService, client: Client) -> None:
    service.fail_next("events", *[Fault("drop_before"), Fault("drop_after"), Fault("status", 500)] * 4)
    publisher = client.publisher(BatchSettings(max_events=7, linger_ms=0), SOON)
    for n in range(200):
        publisher.publish(event(n))
    publisher.close()
    assert numbers(service) == list(range(200))
    stats = publisher.stats()
    assert (stats.acknowledged_events, stats.failed_events, stats.queued_events) == (200, 0, 0)
    assert stats.repeated_requests == 12


def test_several_requests_in_flight_lose_and_double_nothing(service: FaultyService, client: Client) -> None:
    service.fail_next("events", *[Fault("drop_after"), Fault("status", 429)] * 5)
    service.events_delay_s = 0.005
    with client.publisher(BatchSettings(max_events=5, linger_ms=0, max_in_flight=4), SOON) as publisher:
        for n in range(300):
            publisher.publish(event(n))
    assert numbers(service) == list(range(300)), "in order, too"
    assert service.most_events_at_once > 1


def test_an_older_service_gets_one_request_at_a_time(service: FaultyService, client: Client) -> None:
    """It has never heard of what a request follows, and would take them as they arrive."""
    service.keeps_order = False
    service.events_delay_s = 0.005
    with client.publisher(BatchSettings(max_events=5, linger_ms=0, max_in_flight=4), SOON) as publisher:
        for n in range(100):
            publisher.publish(event(n))
    assert numbers(service) == list(range(100))
    assert service.most_events_at_once == 1


def test_a_request_behind_a_refused_one_is_sent_again(service: FaultyService, client: Client) -> None:
    """One event a request, every fifth is bad: those behind it were to follow what never comes."""
    with client.publisher(BatchSettings(max_events=1, linger_ms=0, max_in_flight=5), SOON) as publisher:
        futures = [publisher.publish(b"{oops" if n % 5 == 3 else event(n)) for n in range(40)]
    good = [n for n in range(40) if n % 5 != 3]
    assert numbers(service) == good
    assert [n for n, future in enumerate(futures) if future.exception(0) is None] == good
    assert service.early > 0


def test_a_partial_batch_fails_only_the_futures_of_its_bad_events(
    service: FaultyService, client: Client
) -> None:
    good, broken, poor = client.publish(event(1)), client.publish(b"{oops"), client.publish(b'{"id": "7"}')
    assert isinstance(good.result(60), Position)
    with pytest.raises(PublishError, match="the service refused the event: not JSON"):
        broken.result(60)
    with pytest.raises(PublishError, match="the attribute specversion is missing"):
        poor.result(60)
    assert numbers(service) == [1]


def test_publish_many_accounts_for_every_event(service: FaultyService, client: Client) -> None:
    with pytest.raises(PublishError) as caught:
        client.publish_many([event(0), b"{oops", event(2), b"[]"])
    assert [index for index, _ in caught.value.accepted] == [0, 2]
    assert [refusal.index for refusal in caught.value.refused] == [1, 3]
    assert str(caught.value).startswith("2 of 4 events were refused: item 1: not JSON")


def test_an_event_that_cannot_be_sent_stops_nothing_but_itself(
    service: FaultyService, client: Client
) -> None:
    with pytest.raises(InvalidEvent, match="event 1: an event needs 'source'"):
        client.publish_many([event(0), {"type": "t"}])
    assert service.requests == []


def test_an_unknown_space_is_an_error_at_once(service: FaultyService) -> None:
    with (
        Client(service.url, space="nowhere") as client,
        pytest.raises(ApiError, match="Unknown space") as caught,
    ):
        client.publish_many([event(1)])
    assert caught.value.status == 404


def test_retries_end_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with Client(url, retry=RetrySettings(0.01, 0.05, deadline_s=1.5)) as client:
            with pytest.raises(DeliveryTimeout, match=r"not acknowledged within 1\.5 s") as caught:
                client.publish(event(1)).result(60)
            assert isinstance(caught.value.__cause__, ConnectionFailed)
            assert "fieldfare serve" in str(caught.value)
            assert client.publisher().stats().trouble is None
    assert "publishing 1 event failed: not acknowledged within 1.5 s" in caplog.text


def test_a_full_queue_makes_publishing_wait(service: FaultyService, client: Client) -> None:
    """Memory stays bounded when the service is slower than the program."""
    service.fail_next("events", Fault("status", 429, {"retry-after": "1"}))
    publisher = client.publisher(BatchSettings(max_events=1, linger_ms=0), SOON)
    publisher._queue.max_bytes = 500
    line = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"n":1}}'
    done = threading.Event()

    def publish_all() -> None:
        for _ in range(40):
            publisher.publish(line)
        done.set()

    threading.Thread(target=publish_all, daemon=True).start()
    assert not done.wait(0.1)
    assert done.wait(60)
    publisher.close()
    assert len(service.events()) == 40


def test_a_flush_that_is_too_slow_says_so_and_goes_on(service: FaultyService, client: Client) -> None:
    service.fail_next("events", Fault("status", 429, {"retry-after": "1"}))
    future = client.publish(event(1))
    with pytest.raises(FlushTimeout, match=r"1 events were not acknowledged within 0\.05 s"):
        client.flush(0.05)
    client.flush(10)
    assert future.done()


def test_close_sends_what_is_queued_and_then_refuses(service: FaultyService) -> None:
    client = Client(service.url, batch=BatchSettings(linger_ms=60_000))
    future = client.publish(event(1))
    client.close()
    client.close()
    assert future.result(0) == Position(0, 0, 0)
    with pytest.raises(ClientClosed):
        client.publish(event(2))
    with pytest.raises(ClientClosed):
        client.stats()


def test_close_with_a_bound_fails_what_could_not_be_sent(service: FaultyService, client: Client) -> None:
    service.fail_next("events", *[Fault("status", 500)] * 1000)
    publisher = client.publisher(BatchSettings(max_events=1, linger_ms=0), SOON)
    futures = [publisher.publish(event(n)) for n in range(3)]
    publisher.close(timeout_s=0.1)
    for future in futures:
        assert future.exception(60) is not None
    assert publisher.stats().failed_events == 3


def test_a_program_that_forgets_to_close_loses_nothing(service: FaultyService) -> None:
    program = (
        "import sys\n"
        "from fieldfare import Client, BatchSettings\n"
        f"client = Client({service.url!r}, batch=BatchSettings(linger_ms=60000))\n"
        "for n in range(100): client.publish({'source': 's', 'type': 't', 'data': {'n': n}})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)
    assert numbers(service) == list(range(100))


def test_an_event_that_was_refused_earlier_is_not_reported_as_lost_at_the_end(service: FaultyService) -> None:
    program = (
        "import sys\n"
        "from fieldfare import Client\n"
        f"client = Client({service.url!r})\n"
        "assert client.publish(b'{oops').exception(60) is not None\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=180, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")


def test_callbacks_may_publish(service: FaultyService, client: Client) -> None:
    done = threading.Event()
    first = client.publish(event(1))
    first.add_done_callback(lambda _: client.publish(event(2)).add_done_callback(lambda _: done.set()))
    assert done.wait(60)
    assert numbers(service) == [1, 2]


def test_importing_fieldfare_is_light() -> None:
    program = (
        "import sys, fieldfare\n"
        "heavy = {'httpx', 'numpy', 'pyspark', 'pyarrow', 'rich', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from fieldfare import Client, AsyncClient, Position\n"
        "heavy = {'numpy', 'pyspark', 'pyarrow', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)


@pytest.mark.parametrize("url", ["localhost:7737", "ftp://x", "http://", "127.0.0.1"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a service's URL looks like http://127"):
        Client(url)
