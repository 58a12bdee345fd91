"""At which other sites a subscription counts, in the answers about it."""

from __future__ import annotations

from pathlib import Path

from federation_support import sites
from gateway_support import DEADLINE_S, until


def test_a_subscription_says_at_which_sites_it_counts(tmp_path: Path) -> None:
    path = "/v1/spaces/default/subscriptions/mine"
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        until(lambda: {each["name"] for each in c.brokers()["brokers"]} == {"a", "b", "c"})
        c.subscribe("mine", "data.n < 100")
        waited = c.client.get(path, params={"sites_wait_s": DEADLINE_S}).json()
        assert waited["sites"] == {"a": True, "b": True}
        a.publish(1)
        assert c.take("mine", 1) == [1]
        b.stop()
        replaced = c.client.put(path, json={"filter": "data.n < 50"}).json()
        assert replaced["sites"] == {"a": False, "b": False}
        assert c.client.get(path, params={"sites_wait_s": 0.05}).json()["sites"] == replaced["sites"]
        assert c.client.get(path, params={"sites_wait_s": 61}).status_code == 400
        [listed] = c.client.get("/v1/spaces/default/subscriptions").json()["subscriptions"]
        assert "sites" not in listed
