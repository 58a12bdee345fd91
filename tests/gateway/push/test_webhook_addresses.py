"""Allowed addresses: private ones are refused in any spelling, and whatever a name resolves to at any
time."""

from __future__ import annotations

import asyncio
import ipaddress

import httpcore
import pytest
from gateway_support import SUBSCRIPTIONS, run, running, until_async
from receiver_support import LOOPBACK, described, pushed, receiving, some

from fieldfare.gateway.push.addresses import CallRules, CheckedBackend, Names, NotAllowed, Target, is_public
from fieldfare.gateway.settings import GatewaySettings

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200"),
    *("127.0.0.1", "127.255.0.9", "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.9.9"),
    *("192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "::", "::1", "::2", "::127.0.0.1", "::ffff:127.0.0.1"),
    *(
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
    ),
    *("100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::"),
    *("3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0"),
    *("fec0::1", "ff02::1", "ff0e::1", "4000::1"),
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "1.1.1.1",
    "2606:4700::1111",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_private_address_is_called_by_itself_or_under_a_name(address):
    rules = CallRules()
    assert rules.refusal(address, 443, is_tls=True) is not None

    async def work() -> None:
        async def resolve(host: str, port: int) -> list[str]:
            assert host == "innocent.example.com"
            return [address]

        backend = CheckedBackend(rules, resolve, is_tls=True)
        with pytest.raises(NotAllowed) as refused:
            await backend.connect_tcp("innocent.example.com", 443, timeout=5)
        assert address not in str(refused.value), "what a name leads to is not told"

    run(work)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called_by_tls_at_sensible_ports(address):
    rules = CallRules()
    assert is_public(ipaddress.ip_address(address))
    assert rules.refusal(address, 443, is_tls=True) is None
    assert rules.refusal(address, 8443, is_tls=True) is None
    assert rules.refusal(address, 25, is_tls=True) is not None
    assert rules.refusal(address, 80, is_tls=False) is not None


def test_networks_that_are_allowed_are_called_without_tls_and_however_they_are_written():
    rules = CallRules((ipaddress.ip_network("10.2.0.0/16"), ipaddress.ip_network("fd00::/8")))
    for address in ("10.2.3.4", "::ffff:10.2.3.4", "fd00::7"):
        assert rules.refusal(address, 80, is_tls=False) is None
    for address in ("10.3.0.1", "127.0.0.1", "::ffff:10.3.0.1", "fe80::1"):
        assert rules.refusal(address, 443, is_tls=True) is not None


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.com", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://x/"),
        *("https://", "https:///x", "https://user@example.com/", "https://user:pass@example.com/"),
        *("https://example.com#@127.0.0.1/", "https://example.com\\@127.0.0.1/", "https://example.com /"),
        *("https://example.com:0/", "https://example.com:65536/", "https://example.com:/", "https://a:b/"),
        *("https://0x7f.1/", "https://2130706433/", "https://017700000001/", "https://127.1/", "https://0/"),
        *("https://0x7f000001/", "https://127.0.0.0x1/", "https://127.0.0.01/", "https://256.1.1.1/"),
        *("https://[::1/", "https://[fe80::1%25eth0]/", "https://[v1.x]/", "https://[::1]x/"),
        *("https://①②⑦.⓪.⓪.①/", "https://exämple.com/", "https://example.com./", "https://-x.com/"),
        *("https://example..com/", "https://" + "a" * 64 + ".com/", "https://example.com/\r\nHost: x"),
        *("https://example.com/ x", "https://example.com/é", "https://example.com/" + "x" * 2000),
        "https://example.com?x=1",
    ],
)
def test_what_others_might_read_otherwise_is_no_address(url):
    with pytest.raises(ValueError, match=r"."):
        Target.parse(url)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("example.com", "does not begin with https://"),
        ("HTTPS://example.com/", "in lower case"),
        ("https://user:secret@example.com/", "user name or password before @: remove"),
        ("https://example.com#@127.0.0.1/", "a fragment: remove #"),
        ("https://example.com\\@127.0.0.1/", "a backslash: write it as %5C"),
        ("https://exämple.com/", "the character 'ä' in its host name: write"),
        ("https://example.com/\r\nHost: x", r"the character '\r': percent-encode it"),
        ("https://example.com?x=1", "no path before the question mark: write /"),
        ("https:///x", "no valid host: write a name or an IP address"),
        ("https://example.com:/", "no valid host: write a name or an IP address"),
    ],
)
def test_an_invalid_address_is_told_which_rule_it_breaks_and_not_quoted(url, fault):
    with pytest.raises(ValueError) as refused:
        Target.parse(url)
    said = str(refused.value)
    assert fault in said and said.endswith("; an example is https://example.com/path")
    assert "secret" not in said


def test_an_address_is_read_once():
    assert Target.parse("https://Example.COM:8443/a?b=c%20d") == Target(
        "https", "example.com", 8443, "/a?b=c%20d"
    )
    assert Target.parse("http://127.0.0.1") == Target("http", "127.0.0.1", 80, "/")
    mapped = str(ipaddress.ip_address("::ffff:127.0.0.1"))  # Python 3.13 shows it in another way.
    assert Target.parse("https://[::FFFF:127.0.0.1]:1/") == Target("https", mapped, 1, "/")
    assert Target.parse("https://[2001:db8::1]:443/x").authority == "[2001:db8::1]"
    assert Target.parse("http://example.com:443/x").authority == "example.com:443"


def test_a_name_that_leads_elsewhere_the_second_time_is_judged_each_time(tmp_path):
    """DNS rebinding: each connection goes to the address that was checked for it."""

    async def work() -> None:
        with receiving() as receiver:
            asked = []
            async with running(tmp_path, webhook_allow="127.0.0.1") as r:

                async def resolve(host: str, port: int) -> list[str]:
                    asked.append(host)
                    return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

                for pool in r.gateway.pushes._means.sender._pools.values():
                    pool._network_backend._resolve = resolve
                receiver.answer(500)
                closing = {"connection": "close"}
                receiver.handshake = lambda got: (200, {"WebHook-Allowed-Origin": "*", **closing}, b"")
                await pushed(r, f"http://innocent.example.com:{receiver.port}/x", retry_delays_s=[0.01])
                await some(r, 1)
                await until_async(lambda: len(asked) >= 2)
                await until_async(lambda: any(each.last for each in r.gateway.pushes._servers.values()))
                assert "not public" in (await described(r))["push"]["last"]
                assert receiver.got == [] and len(receiver.asked) == 1
                assert receiver.asked[0].headers["host"] == f"innocent.example.com:{receiver.port}"

    run(work)


def test_a_redirect_to_a_private_address_is_not_followed(tmp_path):
    async def work() -> None:
        with receiving() as receiver, receiving() as inner:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.answer(302, 307, 308, headers={"location": inner.url})
                receiver.handshake = lambda got: (
                    (302, {"location": inner.url, "WebHook-Allowed-Origin": "*"}, b"")
                )
                await pushed(r, receiver.url, retry_delays_s=[0.01])
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 4)
                assert inner.got == inner.asked == []

    run(work)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://example.com/"),
        ({}, "https://127.0.0.1/"),
        ({}, "https://169.254.169.254/latest/meta-data/"),
        ({}, "https://[::1]/"),
        ({}, "https://8.8.8.8:25/"),
        ({"webhook_requests_max": 0}, "https://example.com/"),
        ({"webhook_allow": "10.0.0.0/8"}, "http://127.0.0.1/"),
    ],
)
def test_an_address_that_can_never_be_called_is_refused_when_it_is_set(tmp_path, settings, url):
    async def work() -> None:
        async with running(tmp_path, **settings) as r:
            await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"})
            push = {"delivery": {"push": {"url": url}}}
            for answer in (
                await r.client.patch(f"{SUBSCRIPTIONS}/a", json=push),
                await r.client.put(f"{SUBSCRIPTIONS}/b", json={"filter": "data.x = 1"} | push),
            ):
                assert answer.status_code == 400, answer.text
                assert answer.json()["pointer"] == "/delivery/push/url"

    run(work)


def test_addresses_of_a_name_are_tried_in_turn_and_no_others_are():
    async def work() -> None:
        with receiving() as receiver:
            rules = CallRules((ipaddress.ip_network("127.0.0.1"),))

            async def resolve(host: str, port: int) -> list[str]:
                return ["10.0.0.1", "127.0.0.2", "127.0.0.1"]

            backend = CheckedBackend(rules, resolve, is_tls=False)
            stream = await backend.connect_tcp("x.example.com", receiver.port, timeout=5)
            assert stream.get_extra_info("server_addr")[0] == "127.0.0.1"
            await stream.aclose()
            with pytest.raises(NotAllowed):
                await backend.connect_unix_socket("/var/run/docker.sock")

    run(work)


def test_a_name_that_cannot_be_resolved_or_not_in_time_is_not_reached():
    async def work() -> None:
        async def nowhere(host: str, port: int) -> list[str]:
            raise OSError("no such name")

        async def never(host: str, port: int) -> list[str]:
            await asyncio.sleep(60)
            return []

        for resolve, error in ((nowhere, httpcore.ConnectError), (never, httpcore.ConnectTimeout)):
            backend = CheckedBackend(CallRules(), resolve, is_tls=True)
            with pytest.raises(error):
                await backend.connect_tcp("x.example.com", 443, timeout=0.01)
        names = Names()
        assert await names.resolve("127.0.0.1", 80) == ["127.0.0.1"]
        names.close()

    run(work)


def test_a_network_that_is_none_is_named():
    with pytest.raises(ValueError, match=r"10\.2\.0\.0/33"):
        GatewaySettings(webhook_allow="10.2.0.0/33")
