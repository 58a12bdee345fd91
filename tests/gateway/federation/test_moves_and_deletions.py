"""Subscriptions and spaces that are deleted while a subscription moves, and the tokens of moved ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.gateway.federation.moving import leaving

OF_ONE = "/v1/spaces/default/subscriptions/mine"
OF_SPACE = "/v1/spaces/s/subscriptions/mine"
KEY = "k" * 40


def with_keys(root: Path) -> dict[str, Any]:
    file = root / "key"
    file.write_text(KEY)
    return {"admin_key_file": file, "peer_key_file": file}


def authorise(*found: Site) -> None:
    for site in found:
        site.client.headers["authorization"] = f"Bearer {KEY}"


def counted_everywhere(site: Site, others: str) -> None:
    revision = site.gateway.registry.revision()
    until(lambda: site.counts(revision, *others))


def make_space(*found: Site) -> None:
    for site in found:
        site.client.post("/v1/spaces", json={"name": "s"}).raise_for_status()
    found[0].client.put(OF_SPACE, json={"filter": "data.n >= 0"}).raise_for_status()


def begin(site: Site, to: Site, path: str = OF_ONE) -> None:
    until(lambda: site.client.get(path).status_code == 200)
    site.client.post(f"{path}/move", json={"to": to.name}).raise_for_status()


def moved(site: Site, to: Site, path: str = OF_ONE) -> str:
    """Move a subscription without a backlog; return its token."""
    begin(site, to, path)
    until(lambda: site.client.get(path).status_code == 410)
    until(lambda: to.client.get(path).status_code == 200)
    return str(site.client.get(path).json()["token"])


def status(site: Site, token: str, path: str = OF_ONE) -> int:
    return httpx.get(site.url + path, headers={"authorization": f"Bearer {token}"}).status_code


def test_a_token_of_an_earlier_arrival_reads_nothing(tmp_path: Path) -> None:
    """It outlived the subscription: one that was created with the same id later was readable with it."""
    with sites(tmp_path, "ab", "ab", **with_keys(tmp_path)) as (a, b):
        authorise(a, b)
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "b")
        first = moved(a, b)
        assert status(b, first) == 200
        moved(b, a)
        last = moved(a, b)
        assert (status(b, first), status(b, last)) == (401, 200)
        b.client.delete(OF_ONE).raise_for_status()
        b.subscribe("mine", "data.n < 0")
        assert (status(b, first), status(b, last)) == (401, 401)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_token_ends_with_a_subscription_that_is_deleted_while_it_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    with sites(tmp_path, "abc", "ab bc ac", **with_keys(tmp_path)) as (a, b, c):
        authorise(a, b, c)
        a.subscribe("mine", "data.n >= 0")
        counted_everywhere(a, "bc")
        token = moved(a, b)
        monkeypatch.setattr(leaving, "OFFERED_S", 0.5)
        c.stop()  # No offer is accepted.
        begin(b, a)
        b.client.delete(OF_ONE).raise_for_status()
        assert status(b, token) == 401
        if is_restarted:
            a.stop()  # The offer stays cancelled.
            b.stop()
            b.start()
        b.subscribe("mine", "data.n < 0")
        assert status(b, token) == 401
        if is_restarted:
            a.start()
        c.start()
        until(lambda: not b.brokers()["moves"])
        assert status(b, token) == 401


def test_a_token_ends_with_its_space(tmp_path: Path) -> None:
    """One of a subscription that had moved on read the next space of that name."""
    with sites(tmp_path, "ab", "ab", **with_keys(tmp_path)) as (a, b):
        authorise(a, b)
        make_space(a, b)
        counted_everywhere(a, "b")
        token = moved(a, b, OF_SPACE)
        moved(b, a, OF_SPACE)
        assert status(b, token, OF_SPACE) == 410
        b.client.delete("/v1/spaces/s").raise_for_status()
        make_space(b)
        assert status(b, token, OF_SPACE) == 401
        b.stop()
        b.start()
        assert status(b, token, OF_SPACE) == 401


def test_a_space_in_which_a_subscription_arrives_is_not_deleted(tmp_path: Path) -> None:
    """Its broker processed nothing of others any more: the next message of the move failed for ever."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        make_space(a, b, c)
        counted_everywhere(a, "bc")
        c.stop()
        begin(a, b, OF_SPACE)
        until(lambda: b.brokers()["moves"].get("arriving"))
        refused = b.client.delete("/v1/spaces/s")
        assert refused.status_code == 409 and refused.json()["type"].endswith(":moving")
        c.start()
        until(lambda: b.client.get(OF_SPACE).status_code == 200)
        for site in (a, b):
            assert site.client.delete("/v1/spaces/s").status_code == 204
