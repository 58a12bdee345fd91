"""A webhook subscription that moves: its receiver gets each event from exactly one of the sites."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from federation_support import Site, sites
from gateway_support import until
from receiver_support import LOOPBACK, SECRETS, Answer, Got, receiving, verify

OF_ONE = "/v1/spaces/default/subscriptions/mine"


def test_a_receiver_gets_each_event_once_while_its_subscription_moves(tmp_path: Path) -> None:
    """It refuses everything at first: the site that it leaves goes on until its part is taken."""
    taken: list[int] = []
    is_open = [False]

    def answer(got: Got) -> Answer:
        verify(got, SECRETS[0])
        if not is_open[0]:
            return 503, {"retry-after": "0"}, b""
        taken.extend(int(id) for id in got.ids)
        return 204, {}, b""

    with receiving() as receiver, sites(tmp_path, "abc", "ab bc ac", **LOOPBACK) as (a, b, c):
        receiver.always = answer
        delivery = {"push": {"url": receiver.url, "secrets": [SECRETS[0]]}, "retry_delays_s": [0.2]}
        a.client.put(OF_ONE, json={"filter": "data.n >= 0", "delivery": delivery}).raise_for_status()
        revision = a.gateway.registry.revision()
        until(lambda: a.counts(revision, "b", "c"))
        published: list[int] = []

        def publish(rounds: int) -> None:
            for _ in range(rounds):
                for site in (a, b, c):
                    published.append(len(published))
                    site.publish(published[-1])

        publish(5)
        until(lambda: receiver.got)
        a.client.post(f"{OF_ONE}/move", json={"to": "b"}).raise_for_status()
        publish(5)
        until(lambda: b.brokers()["moves"].get("ready"))
        publish(5)
        assert pushed(a) > 0 == pushed(b), "it sends nothing before the other site's part is taken"
        is_open[0] = True
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        publish(5)
        until(lambda: len(taken) >= len(published))
        assert Counter(taken) == Counter(published)
        assert a.client.get(OF_ONE).status_code == 410
        push = b.client.get(OF_ONE).json()["delivery"]["push"]
        assert (push["url"], push["signed"]) == (receiver.url, 1)


def pushed(site: Site) -> float:
    """The number of requests that a site has made to push addresses."""
    lines = site.client.get("/metrics").text.splitlines()
    return sum(float(each.split()[-1]) for each in lines if each.startswith("fieldfare_push_requests_total"))
