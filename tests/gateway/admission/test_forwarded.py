"""Addresses that proxies name: those of trusted ones count, all others are ignored."""

from __future__ import annotations

import pytest
from gateway_support import served
from pydantic import ValidationError
from test_connections import BINARY, GET, POST, ask, connect, problem, read_answer

from fieldfare.gateway.admission.forwarded import HOPS_MAX, TrustedProxies
from fieldfare.gateway.settings import GatewaySettings

CLIENT, FLOOD = b"198.51.100.7", b"203.0.113.9"
PROXIES = TrustedProxies(("127.0.0.1", "10.2.0.0/16", "2001:db8::/32"))


def named(*values: str) -> str | None:
    return PROXIES.client_address(
        [(b"host", b"a"), *((b"x-forwarded-for", each.encode()) for each in values)]
    )


def test_the_last_address_that_is_no_trusted_proxy_is_the_clients():
    assert named("198.51.100.7") == "198.51.100.7"
    assert named("203.0.113.9, 198.51.100.7") == "198.51.100.7", "a client wrote the first one"
    assert named("203.0.113.9", "198.51.100.7,10.2.3.4 , 2001:db8::1") == "198.51.100.7"
    assert named("::ffff:198.51.100.7") == "198.51.100.7"
    assert named("2001:bad:1:2:3:4:5:6") == "2001:bad:1:2::/64"


@pytest.mark.parametrize(
    "value",
    ["", "unknown", "198.51.100.7:443", "198.51.100.7, _hidden", "10.2.0.1", "1" * 60_000, "," * 60_000],
)
def test_a_proxy_that_names_no_client_counts_itself(value):
    assert named(value) is None
    assert named() is None


def test_only_the_last_addresses_are_read():
    assert named("198.51.100.7" + ", 10.2.0.1" * (HOPS_MAX - 1)) == "198.51.100.7"
    assert named("198.51.100.7" + ", 10.2.0.1" * HOPS_MAX) is None


def test_a_peer_is_trusted_by_its_own_address():
    assert PROXIES.trusts(("127.0.0.1", 1)) and PROXIES.trusts(("::ffff:10.2.9.9", 1, 0, 0))
    assert not PROXIES.trusts(("127.0.0.2", 1)) and not PROXIES.trusts(("10.3.0.1", 1))
    assert not PROXIES.trusts("") and not PROXIES.trusts(None) and not PROXIES.trusts(("/run/socket",))
    assert not TrustedProxies(()).trusts(("127.0.0.1", 1))


def test_a_setting_that_names_no_network_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="is no network"):
        GatewaySettings.model_validate({"data": tmp_path, "trusted_proxies": "localhost"})


def _begun(address: bytes) -> bytes:
    return POST + BINARY + b"X-Forwarded-For: " + address + b"\r\nContent-Length: 8\r\n\r\n{"


@pytest.mark.long
@pytest.mark.parametrize("trusted", ["127.0.0.1", "", "192.0.2.0/24"])
def test_a_flood_through_a_trusted_proxy_closes_its_own_requests(tmp_path, trusted):
    """All requests of a proxy counted for one address: whoever had begun first lost the connection."""
    with served(tmp_path, connections_max=4, trusted_proxies=trusted) as (_, client):
        client.close()
        with connect(client) as upload:
            upload.sendall(_begun(CLIENT))
            flood = [connect(client) for _ in range(3)]
            for each in flood:
                each.sendall(_begun(FLOOD))
            for _ in range(3):
                assert ask(client, GET)[0] == 200
                flood.append(connect(client))
                flood[-1].sendall(_begun(FLOOD))
            if trusted == "127.0.0.1":
                upload.sendall(b'"x": 1}')
                assert read_answer(upload)[0] == 200
            else:
                assert "was incomplete" in problem(read_answer(upload), 503)["detail"]
            for each in flood:
                each.close()
