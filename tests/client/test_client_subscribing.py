"""Subscribing through a service whose streams break: each message once, acks durable, clear ends."""

from __future__ import annotations

import threading
from itertools import islice

import pytest
from faulty_service import Fault, FaultyService, wait_until

from fieldfare import ApiError, Client, ConnectionFailed, Message, Position
from fieldfare.client import (
    ClientClosed,
    FlushTimeout,
    NewSubscription,
    SubscriptionDeleted,
    SubscriptionsRefused,
)
from fieldfare.client.session import AckBatch, describe_acks
from fieldfare.client.verdict import Verdict


def publish(client: Client, count: int, start: int = 0) -> list[Position]:
    return client.publish_many(
        {"source": "/test", "type": "count", "data": {"n": n}} for n in range(start, start + count)
    )


def take(messages: object, count: int) -> list[Message]:
    return list(islice(messages, count))  # type: ignore[call-overload]


def test_messages_come_in_order_with_their_events(service: FaultyService, client: Client) -> None:
    found = publish(client, 5)
    with client.subscribe("mine", "data.n >= 0") as messages:
        got = take(messages, 5)
    assert [message.position for message in got] == found
    assert [message.event["data"]["n"] for message in got] == list(range(5))
    assert got[0].raw in service.records[0] and got[0].event is got[0].event
    assert repr(got[0]).startswith('Message(0-0-0, b\'{"specversion"')


def test_a_subscriber_resumes_after_a_broken_stream(service: FaultyService, client: Client) -> None:
    """Nothing is lost, and what the program still holds, or acked a moment ago, is not shown again."""
    found = publish(client, 3000)
    got: list[Position] = []
    with client.subscribe("mine", "data.n >= 0", window=700) as messages:
        for message in messages:
            got.append(message.position)
            if len(got) % 3:
                message.ack()
            if len(got) in (100, 1000, 1001):
                service.cut_all_streams()
            if len(got) == 1500:
                break
    assert got == found[:1500]
    service.wait_for(lambda: len(service.acked["mine"]) == 1000)


def test_a_service_that_restarts_is_found_again(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    with client.subscribe("mine", "data.n >= 0") as messages:
        next(messages).ack()
        service.fail_next("stream", Fault("status", 503), Fault("status", 429), Fault("status", 500))
        service.cut_all_streams()
        publish(client, 1, start=1)
        assert next(messages).event["data"]["n"] == 1


def test_acks_are_durable_after_a_flush(service: FaultyService, client: Client) -> None:
    found = publish(client, 3)
    with client.subscribe("mine", "data.n >= 0") as messages:
        for message in take(messages, 3):
            message.ack()
        messages.flush()
        assert service.acked["mine"] == set(map(str, found))


def test_acks_are_durable_after_close_and_sent_soon_without_it(
    service: FaultyService, client: Client
) -> None:
    publish(client, 2)
    with client.subscribe("mine", "data.n >= 0") as messages:
        next(messages).ack()
        service.wait_for(lambda: service.acked["mine"] == {"0-0-0"})
        last = next(messages)
        last.ack()
    assert service.acked["mine"] == {"0-0-0", "0-0-1"}
    with pytest.raises(ClientClosed, match="this subscriber is closed; the message will be redelivered"):
        last.ack()


def test_acks_are_repeated_while_the_service_is_in_trouble(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    service.fail_next("ack", Fault("status", 503), Fault("status", 429, {"retry-after": "0.01"}))
    with client.subscribe("mine", "data.n >= 0") as messages:
        next(messages).ack()
        messages.flush(10)
    assert service.acked["mine"] == {"0-0-0"}


def test_flush_raises_the_error_of_a_refused_ack(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    service.fail_next("ack", Fault("status", 404, body=b'{"title": "Not found", "detail": "gone"}'))
    with client.subscribe("mine", "data.n >= 0") as messages:
        next(messages).ack()
        with pytest.raises(ApiError, match="Not found: gone"):
            messages.flush(10)


def test_a_flush_that_is_too_slow_says_so(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    with client.subscribe("mine", "data.n >= 0") as messages:
        service.fail_next("ack", Fault("status", 503, {"retry-after": "1"}))
        next(messages).ack()
        with pytest.raises(FlushTimeout, match=r"1 acks could not be sent within 0\.2 s"):
            messages.flush(0.2)


def test_a_nacked_message_is_redelivered(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    with client.subscribe("mine", "data.n >= 0") as messages:
        first = next(messages)
        first.nack()
        again = next(messages)
        assert again.position == first.position


def test_auto_ack_acks_what_the_loop_is_done_with(service: FaultyService, client: Client) -> None:
    """The last message is not acked: the loop was left in the middle of it."""
    publish(client, 3)
    with client.subscribe("mine", "data.n >= 0", auto_ack=True) as messages:
        take(messages, 3)
    assert service.acked["mine"] == {"0-0-0", "0-0-1"}


def test_a_program_that_never_acks_gets_no_more_than_its_window(
    service: FaultyService, client: Client
) -> None:
    publish(client, 10)
    with client.subscribe("mine", "data.n >= 0", window=4) as messages:
        got = take(messages, 4)
        more = threading.Thread(target=lambda: got.append(next(messages)), daemon=True)
        more.start()
        assert len(got) == 4
        got[0].ack()
        more.join(60)
        assert got[4].event["data"]["n"] == 4


def test_close_ends_a_loop_that_waits_in_another_thread(service: FaultyService, client: Client) -> None:
    messages = client.subscribe("mine", "data.n >= 0")
    ended = threading.Event()

    def follow() -> None:
        for _ in messages:
            pass
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    wait_until(lambda: messages._reader.response is not None)
    messages.close()
    assert ended.wait(60)
    assert list(messages) == []


def test_a_deleted_subscription_ends_its_subscribers(service: FaultyService, client: Client) -> None:
    publish(client, 1)
    with client.subscribe("mine", "data.n >= 0") as messages:
        next(messages)
        client.delete_subscription("mine")
        with pytest.raises(SubscriptionDeleted, match="the subscription 'mine' was deleted"):
            next(messages)


def test_an_unknown_subscription_is_an_error_at_once(client: Client) -> None:
    with client.subscribe("nobody") as messages, pytest.raises(ApiError) as caught:
        next(messages)
    assert (caught.value.status, str(caught.value)) == (
        404,
        "Unknown subscription: there is no subscription nobody",
    )


def test_a_service_that_is_not_there_is_an_error_at_once() -> None:
    nothing_there = pytest.raises(ConnectionFailed, match=r"nothing answers at http://127\.0\.0\.1:9")
    with Client("http://127.0.0.1:9") as client, client.subscribe("mine") as messages, nothing_there:
        next(messages)


def test_subscribe_makes_sure_of_the_filter(service: FaultyService, client: Client) -> None:
    client.subscribe("mine", "a = 1").close()
    revision = service.subscriptions["mine"]["revision"]
    client.subscribe("mine", "a = 1").close()
    assert service.subscriptions["mine"]["revision"] == revision, "the same filter is left alone"
    client.subscribe("mine", "a = 2").close()
    assert service.subscriptions["mine"]["filter"] == "a = 2"
    unnamed = client.subscribe(filter="a = 3")
    assert service.subscriptions[unnamed.id]["filter"] == "a = 3"
    with pytest.raises(ValueError, match="the id of a subscription, a filter"):
        client.subscribe()


def test_pull_takes_messages_and_acks_them(service: FaultyService, client: Client) -> None:
    client.create_subscription("a = 1", "mine")
    assert client.pull("mine", wait_s=0.01) == []
    found = publish(client, 3)
    got = client.pull("mine", max_messages=2)
    assert [message.position for message in got] == found[:2]
    assert got[0].event["data"] == {"n": 0}
    client.ack("mine", [message.position for message in got])
    client.nack("mine", [found[2]])
    assert [message.position for message in client.pull("mine")] == found[2:]


def test_subscriptions_are_created_replaced_listed_and_deleted(
    service: FaultyService, client: Client
) -> None:
    created = client.create_subscription("a = 1", "b")
    assert (created.id, created.filter, created.dialect, created.space) == ("b", "a = 1", "sql", "default")
    assert created.valid_from == (Position(0, 0, 0),)
    assert client.replace_subscription("b", "a = 2").filter == "a = 2"
    assert client.get_subscription("b").filter == "a = 2"
    many = [("a", "x = 1"), {"id": "c", "filter": "y"}, NewSubscription("z", "d")]
    assert client.create_subscriptions(many) == 3
    assert [info.id for info in client.subscriptions(page_size=2)] == ["a", "b", "c", "d"]
    client.delete_subscription("b")
    with pytest.raises(ApiError, match="there is no subscription b"):
        client.get_subscription("b")
    with pytest.raises(ApiError, match="It exists: there is a subscription a"):
        client.create_subscription("a = 1", "a")


def test_a_filter_with_an_error_says_where_and_what_to_do(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.create_subscription("a = ???")
    assert str(caught.value) == (
        "The filter has an error (at line 1, column 5): expected a value, found '???'\n"
        "hint: write a number or a string in single quotes"
    )


def test_the_good_ones_of_a_bulk_call_are_stored(service: FaultyService, client: Client) -> None:
    with pytest.raises(SubscriptionsRefused) as caught:
        client.create_subscriptions([("a", "x = 1"), ("b", "???"), ("c", "y = 1")])
    assert caught.value.stored == 2
    assert [(refusal.index, refusal.id) for refusal in caught.value.refused] == [(1, "b")]
    assert sorted(service.subscriptions) == ["a", "c"]


def test_spaces_and_stats(client: Client) -> None:
    client.create_space("other")
    assert client.spaces() == ["default"]
    assert client.stats() == {"subscriptions": 0}


def test_very_many_acks_are_sent_in_requests_that_the_service_takes(service: FaultyService) -> None:
    """25,000 messages are acked in one call; the service refuses a request with that many."""
    positions = [Position(0, number // 1_000, number % 1_000) for number in range(25_000)]
    with Client(service.url) as client:
        client.create_subscription("data = 1", id="mine")
        client.ack("mine", positions)
        assert service.acked["mine"] == set(map(str, positions))
        client.nack("mine", positions)
        client.ack("mine", [])
    for verb, count in (("ack", 4), ("nack", 3)):
        path = f"/v1/spaces/default/subscriptions/mine/{verb}"
        assert sum(each == path for _, each in service.requests) == count
    calls = describe_acks("default", "mine", AckBatch(positions, {positions[0]: Verdict("nack")}))
    assert [call.path.rpartition("/")[2] for call in calls] == ["ack", "ack", "ack", "nack"]


def test_a_subscription_is_valid_from_a_place_in_each_partition(
    service: FaultyService, client: Client
) -> None:
    client.create_subscription("a = 1", "mine")
    service.subscriptions["mine"]["valid_from"] = "0-4-0,1-0-0,2-17-0"
    places = (Position(0, 4, 0), Position(1, 0, 0), Position(2, 17, 0))
    assert client.get_subscription("mine").valid_from == places
    assert [info.valid_from for info in client.subscriptions()] == [places]
