"""Which service a client talks to, through what, and what it says when it is not reached."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from faulty_service import FaultyService
from typer.testing import CliRunner

from fieldfare import Client, ConnectionFailed
from fieldfare.cli.app import app
from fieldfare.client import RetrySettings, ServiceNotTrusted, UnexpectedAnswer
from fieldfare.client.asynchronous.client import AsyncClient
from fieldfare.client.endpoint import choose_proxy, choose_url

KEY = "a-key-of-more-than-thirty-two-characters"
CLOSED = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_proxies_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name.startswith("FIELDFARE_"):
            monkeypatch.delenv(name)


class ProxyHandler(BaseHTTPRequestHandler):
    seen: list[tuple[str, str, str | None]]

    def log_message(self, *arguments: object) -> None:
        pass

    def refuse(self) -> None:
        self.seen.append((self.command, self.path, self.headers.get("authorization")))
        body = b"<html>this proxy blocks all requests</html>"
        self.send_response(403, "Forbidden by policy")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_CONNECT = do_GET = do_POST = refuse


class RefusingProxy:
    """A proxy that refuses everything and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []
        handler = type("Handler", (ProxyHandler,), {"seen": self.seen})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> RefusingProxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def proxy() -> Iterator[RefusingProxy]:
    with RefusingProxy() as running:
        yield running


@pytest.mark.parametrize("setting", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("address", [CLOSED, "socks://127.0.0.1:9", "socks5://127.0.0.1:9", "nonsense://"])
def test_a_service_on_this_machine_is_reached_without_the_proxy(
    service: FaultyService, monkeypatch: pytest.MonkeyPatch, setting: str, address: str
) -> None:
    monkeypatch.setenv(setting, address)
    AsyncClient(service.url)
    with Client(service.url, key=KEY) as client:
        assert client.stats() == {"subscriptions": 0}
    shown = CliRunner().invoke(app, ["spaces", "list", "--url", service.url])
    assert shown.exit_code == 0 and shown.stdout == "default\n"


@pytest.mark.parametrize("host", ["localhost", "events.localhost", "127.1.2.3", "[::1]", "0.0.0.0"])
def test_no_proxy_is_chosen_for_a_loopback_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", CLOSED)
    assert choose_proxy(f"http://{host}:1") is None
    assert choose_proxy("http://events.invalid") is not None


def test_no_proxy_is_chosen_for_a_host_that_no_proxy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", CLOSED)
    monkeypatch.setenv("NO_PROXY", "events.invalid:8443,.inside.invalid")
    for url in ("https://events.invalid:8443", "https://a.inside.invalid"):
        assert choose_proxy(url) is None
    assert choose_proxy("https://events.invalid") is not None
    assert choose_proxy("http://elsewhere.invalid") is None, "only https has one"


def test_a_refusing_proxy_is_named_as_the_cause(
    proxy: RefusingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy.url)
    with Client("https://events.invalid") as client, pytest.raises(ConnectionFailed) as failed:
        client.spaces()
    assert f"the proxy {proxy.url} (ALL_PROXY) did not connect to https://events.invalid" in str(failed.value)
    assert "Forbidden by policy" in str(failed.value) and "NO_PROXY" in str(failed.value)
    assert "fieldfare serve" not in str(failed.value)
    with (
        Client("http://events.invalid") as client,
        pytest.raises(UnexpectedAnswer, match="through the proxy"),
    ):
        client.spaces()


def test_a_proxy_that_does_not_answer_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with Client("http://events.invalid") as client, pytest.raises(ConnectionFailed) as failed:
        client.spaces()
    assert "the proxy http://127.0.0.1:9 (HTTP_PROXY) did not connect" in str(failed.value)
    assert "secret" not in str(failed.value) and "secret" not in repr(vars(client))


def test_a_key_is_not_sent_to_a_proxy_in_clear_text(
    proxy: RefusingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    for key in (KEY, lambda: KEY):
        with pytest.raises(ValueError, match="would be sent in clear text to the proxy") as refused:
            Client("http://events.invalid", key=key)
        assert KEY not in str(refused.value) and "NO_PROXY" in str(refused.value)
    with Client("https://events.invalid", key=KEY) as client, pytest.raises(ConnectionFailed):
        client.spaces()
    assert proxy.seen == [("CONNECT", "events.invalid:443", None)]


@pytest.mark.parametrize("address", ["socks://127.0.0.1:9", "ftp://127.0.0.1:9", "http://", "http://h:99999"])
def test_a_proxy_address_that_cannot_be_used_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(
        ValueError, match="ALL_PROXY is not the address of a proxy that can be used"
    ) as refused:
        Client("http://events.invalid")
    assert "socks5://" in str(refused.value)
    shown = CliRunner().invoke(app, ["spaces", "list", "--url", "http://events.invalid"])
    assert shown.exit_code == 2 and "ALL_PROXY" in shown.stderr and "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("http://127.0.0.1:99999", "port"),
        ("http://127.0.0.1:0", "port"),
        ("http://127.0.0.1:x", "port"),
        ("http://[::1", "IPv6"),
        ("http://127.0.0.1/?a=b", "query"),
        ("http://127.0.0.1/#", "fragment"),
        ("http://a b", "space"),
        ("http://127.0.0.1/\x07", "control"),
        ("http://" + "a" * 70, "host"),
        ("http://..", "host"),
        ("ftp://127.0.0.1", "http://"),
        ("127.0.0.1:7737", "http://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_sent(given: str, fault: str) -> None:
    with pytest.raises(ValueError, match="a service's URL looks like http://127") as refused:
        Client(given)
    assert fault in str(refused.value).partition(f"{given!r}: ")[2]


def test_a_password_in_a_url_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="FIELDFARE_API_KEY") as refused:
        Client("http://user:secret@127.0.0.1:1")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("FIELDFARE_URL", "http://user:secret@127.0.0.1:1")
    with pytest.raises(ValueError, match="FIELDFARE_URL: ") as refused:
        Client()
    assert "secret" not in str(refused.value)


def test_scheme_and_host_in_upper_case_and_blanks_around_a_url_are_normalised() -> None:
    assert (
        choose_url(" HTTPS://Events.Example.com:8443/Prefix/\n") == "https://events.example.com:8443/Prefix"
    )


def test_a_port_without_tls_is_named_for_an_https_url(service: FaultyService) -> None:
    """ "nothing answers" sent users to start a second service."""
    url = service.url.replace("http://", "HTTPS://")
    with Client(url, key=KEY) as client, pytest.raises(ConnectionFailed) as failed:
        client.spaces()
    assert "answers, but not with TLS" in str(failed.value) and "http://" in str(failed.value)
    assert not service.requests


def test_an_unknown_host_is_named() -> None:
    with Client("http://nobody.invalid") as client, pytest.raises(ConnectionFailed, match="was not found"):
        client.spaces()


class TlsPort:
    """Accepts TLS connections with a certificate that no authority has signed, and counts what is sent."""

    def __init__(self, certificate: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.handshakes = self.accepted = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TlsPort:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                with self._context.wrap_socket(connection, server_side=True) as wrapped:
                    wrapped.recv(1)
                    self.handshakes += 1
            except OSError:
                pass


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[TlsPort]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is missing")
    path = tmp_path / "own.pem"
    request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", str(path), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *request, *files], check=True, capture_output=True)
    path.write_text(path.read_text() + (tmp_path / "cert.pem").read_text())
    with TlsPort(path) as running:
        yield running


@pytest.mark.parametrize("scheme", ["https", "HTTPS", "Https"])
def test_the_certificate_is_checked_however_the_scheme_is_written(tls_port: TlsPort, scheme: str) -> None:
    with Client(f"{scheme}://localhost:{tls_port.port}", key=KEY) as client:
        with pytest.raises(ServiceNotTrusted, match="is not trusted: self-signed certificate") as failed:
            client.spaces()
        assert "--ca-file" in str(failed.value) and "fieldfare serve" not in str(failed.value)
    assert tls_port.accepted == 1 and tls_port.handshakes == 0


def test_publishing_does_not_repeat_for_a_certificate_that_is_not_trusted(tls_port: TlsPort) -> None:
    patient = RetrySettings(deadline_s=1000.0)
    url = f"https://localhost:{tls_port.port}"
    with Client(url, retry=patient) as client, pytest.raises(ServiceNotTrusted):
        client.publish({"source": "/s", "type": "t"}).result(60)
    assert tls_port.accepted == 1


def test_a_url_without_tls_at_a_port_with_tls_says_so(tls_port: TlsPort) -> None:
    expected = pytest.raises(ConnectionFailed, match="may expect TLS: write https://")
    with Client(f"http://127.0.0.1:{tls_port.port}") as client, expected:
        client.spaces()


def test_a_host_in_wide_digits_is_refused_in_words() -> None:
    """The HTTP library's own error came out, at the first call."""
    with pytest.raises(ValueError, match="a service's URL looks like"):
        Client("http://１２７.0.0.1:7737")
