"""Events of a site arrive in its order, also after they have waited for a path."""

from __future__ import annotations

from pathlib import Path

from federation_support import sites
from gateway_support import until

from fieldfare.storage.sqlite.links import LinkStore


def test_an_entry_that_waited_for_a_path_comes_before_later_ones(tmp_path: Path) -> None:
    """It got a new place in the order when its path was there again, behind what had been published since."""
    store = LinkStore(tmp_path / "links.db")
    store.add([("", b"first"), ("b", b"second")])
    [(id, _, _)] = store.unsent([""], 0, 10)
    store.reroute([(id, [("b", b"first"), ("c", b"first too")])])
    assert store.transmit("b", 10, 1_000) == (1, [b"first", b"second"])
    assert store.transmit("c", 10, 1_000) == (1, [b"first too"])
    store.reroute([(id, [("c", b"sent twice")])])
    assert store.transmit("c", 10, 1_000) == (1, [b"first too"]), "what was transmitted stays"
    store.close()


def test_nothing_is_sent_while_earlier_entries_may_have_to_get_their_ways(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a") and a.is_quiet())
        links = a.gateway.federation.links
        links.is_held = True
        a.publish(1)
        until(lambda: a.brokers()["links"][0]["outbox_entries"] == 1)
        requests = a.brokers()["links"][0]["sent_requests"]
        until(lambda: a.brokers()["links"][0]["sent_requests"] > requests + 1)
        assert a.brokers()["links"][0]["unacknowledged"] == 0 and b.pull("mine") == []
        links.is_held = False
        assert b.take("mine", 1) == [1]
