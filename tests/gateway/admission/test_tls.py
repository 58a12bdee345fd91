"""TLS of the service: accepted clients, trusted services, and wrong files."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from gateway_support import until
from typer.testing import CliRunner

from fieldfare import Client, ConnectionFailed
from fieldfare.cli.app import app
from fieldfare.client.asynchronous.client import AsyncClient
from fieldfare.gateway.admission.tls import Certificates, TlsError, server_context
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.service.serve import gateway_ready

sys.path.append(str(Path(__file__).parents[2] / "client"))

from real_gateway import RealGateway, running_gateway

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl, which makes the certificates, is missing"
    ),
]


class Authority:
    """Makes certificates in a folder, by openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        # Python 3.13 believes no authority without the second.
        extensions = "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
        self.path = self.make(name, extensions)

    def make(self, name: str, extensions: Sequence[str], *by: str) -> Path:
        request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        added = [part for extension in extensions for part in ("-addext", extension)]
        run = ["openssl", "req", "-x509", *request, *files, *added, *by]
        subprocess.run(run, cwd=self.folder, check=True, capture_output=True)
        return self.folder / f"{name}.pem"

    def sign(self, name: str) -> Path:
        """A certificate for this machine, and its key beside it and in ``NAME.both``."""
        by = ("-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key")
        # OpenSSL's own settings would make it an authority, which Python 3.13 does not believe either.
        extensions = "basicConstraints=critical,CA:FALSE", "subjectAltName=DNS:localhost,IP:127.0.0.1"
        path = self.make(name, extensions, *by)
        both = path.with_suffix(".both")
        both.write_text(path.read_text() + path.with_suffix(".key").read_text())
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "ca")
    for name in ("server", "client"):
        authority.sign(name)
    Authority(folder, "other-ca").sign("stranger")
    (folder / "junk.pem").write_text("junk")
    locked = ["openssl", "ec", "-in", "server.key", "-aes128", "-passout", "pass:x", "-out", "locked.key"]
    subprocess.run(locked, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def gateway(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    """A gateway that requires client certificates."""
    settings = {
        "tls_cert": files / "server.pem",
        "tls_key": files / "server.key",
        "tls_client_ca": files / "ca.pem",
    }
    named = {name: str(path) for name, path in settings.items()}
    with running_gateway(tmp_path_factory.mktemp("data"), **named) as running:
        yield running


def test_a_client_with_a_certificate_publishes_and_subscribes(gateway: RealGateway, files: Path) -> None:
    assert gateway.url.startswith("https://")
    own = (files / "client.pem", files / "client.key")
    with Client(gateway.url, ca_file=files / "ca.pem", certificate=own) as client:
        with client.subscribe("a", "data.x = 1") as messages:
            client.publish_many([{"source": "/s", "type": "t", "data": {"x": x}} for x in (0, 1)])
            message = next(messages)
            assert message.event["data"] == {"x": 1}
            message.ack()
        large = {"source": "/s", "type": "t", "data": "x" * 900_000}
        assert len(client.publish_many([large] * 5)) == 5


def test_clients_without_a_valid_certificate_are_rejected(gateway: RealGateway, files: Path) -> None:
    for certificate in (None, files / "stranger.both"):
        with (
            Client(gateway.url, ca_file=files / "ca.pem", certificate=certificate) as client,
            pytest.raises(ConnectionFailed),
        ):
            client.spaces()
    plain = gateway.url.replace("https", "http")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{plain}/healthz")


def test_a_service_with_a_certificate_of_another_authority_is_rejected(
    gateway: RealGateway, files: Path
) -> None:
    """A man in the middle presents another certificate: the client reports this, and sends nothing."""
    for ca_file in (files / "other-ca.pem", None):
        with (
            Client(gateway.url, ca_file=ca_file, certificate=files / "client.both", key="k" * 40) as client,
            pytest.raises(ConnectionFailed, match="certificate"),
        ):
            client.spaces()


def test_the_command_line_and_the_environment_name_the_files(
    gateway: RealGateway, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIELDFARE_CA_FILE", "FIELDFARE_CERTIFICATE"):
        monkeypatch.setenv(name, "")  # the command sets them: they are taken back in the end
    trusted = ["--ca-file", str(files / "ca.pem"), "--certificate", str(files / "client.both")]
    listed = CliRunner().invoke(app, [*trusted, "spaces", "list", "--url", gateway.url])
    assert listed.exit_code == 0 and listed.stdout == "default\n", listed.stderr
    wrong = CliRunner().invoke(
        app, ["--ca-file", str(files / "junk.pem"), "spaces", "list", "--url", gateway.url]
    )
    assert wrong.exit_code == 2 and "junk.pem" in wrong.stderr


def test_the_supervisor_sees_that_it_answers(gateway: RealGateway, files: Path) -> None:
    """Even without a client certificate."""
    port = int(gateway.url.rsplit(":", 1)[1])
    assert gateway_ready("127.0.0.1", port, is_tls=True)(0)
    assert not gateway_ready("127.0.0.1", 1, is_tls=True)(0)


WRONG = {
    "missing": ({"tls_cert": "missing.pem"}, r"missing\.pem: No such file"),
    "no certificate": ({"tls_cert": "junk.pem"}, r"junk\.pem: no PEM certificate with"),
    "no key": ({"tls_cert": "server.pem"}, r"server\.pem: no PEM certificate with its private key"),
    "another's key": (
        {"tls_cert": "server.pem", "tls_key": "client.key"},
        r"client\.key: the key does not belong",
    ),
    "a key with a password": (
        {"tls_cert": "server.pem", "tls_key": "locked.key"},
        r"locked\.key: .*password",
    ),
    "no authorities": (
        {"tls_cert": "server.both", "tls_client_ca": "junk.pem"},
        r"junk\.pem: no PEM certificates",
    ),
    "a key alone": ({"tls_key": "server.key"}, "--tls-cert"),
}


@pytest.mark.parametrize(("named", "message"), WRONG.values(), ids=WRONG.keys())
def test_files_that_are_wrong_are_named_at_the_start(
    files: Path, named: dict[str, str], message: str
) -> None:
    settings = GatewaySettings.model_validate({name: files / file for name, file in named.items()})
    with pytest.raises(TlsError, match=message):
        server_context(settings)
    options = [
        part for name, file in named.items() for part in (f"--{name}".replace("_", "-"), str(files / file))
    ]
    shown = CliRunner().invoke(app, ["serve", "--data", str(files / "data"), *options])
    assert shown.exit_code == 1 and not (files / "data").exists()
    assert re.search(message, shown.stderr)


def shown_by(gateway: RealGateway) -> str:
    """Return the certificate that a new connection gets."""
    to = urlsplit(gateway.url)
    return ssl.get_server_certificate((str(to.hostname), int(to.port or 0)), timeout=10)


def test_a_renewed_certificate_is_shown_without_a_new_start(files: Path, tmp_path: Path) -> None:
    """Certificates that last for weeks are renewed by a program, at night; streams of before go on."""
    shutil.copy(files / "server.both", tmp_path / "own.pem")
    trusted = [files / "server.pem", files / "client.pem"]
    with running_gateway(tmp_path / "data", tls_cert=str(tmp_path / "own.pem")) as gateway:
        with (
            Client(gateway.url, ca_file=files / "ca.pem") as client,
            client.subscribe("a", "TRUE") as messages,
        ):
            assert shown_by(gateway).split() == trusted[0].read_text().split()
            (tmp_path / "own.pem").write_text(trusted[1].read_text())  # its key comes later
            log = tmp_path / "data" / "gateway.log"
            until(lambda: "the new TLS certificate cannot be used" in log.read_text())
            assert shown_by(gateway).split() == trusted[0].read_text().split()
            shutil.copy(files / "client.both", tmp_path / "own.pem")
            until(lambda: shown_by(gateway).split() == trusted[1].read_text().split())
            client.publish({"source": "/s", "type": "t"}).result(20)
            next(messages).ack()
        with Client(gateway.url, ca_file=files / "ca.pem") as later:
            assert later.spaces() == ["default"]


def test_certificates_of_a_removed_authority_are_rejected(files: Path, tmp_path: Path) -> None:
    shutil.copy(files / "ca.pem", tmp_path / "clients.pem")
    named = {"tls_cert": files / "server.both", "tls_client_ca": tmp_path / "clients.pem"}
    certificates = Certificates.open(GatewaySettings.model_validate(named))
    assert certificates is not None
    first = certificates.context
    certificates.renew()
    assert certificates.context is first, "nothing has changed"
    (tmp_path / "clients.pem").unlink()
    certificates.renew()
    assert certificates.context is first, "what is missing is not taken for nothing"
    shutil.copy(files / "other-ca.pem", tmp_path / "clients.pem")
    certificates.renew()
    (authority,) = certificates.context.get_ca_certs()
    assert authority["subject"] == ((("commonName", "other-ca"),),)
    assert certificates.context.verify_mode is ssl.CERT_REQUIRED
    assert Certificates.open(GatewaySettings()) is None


def test_a_client_names_the_file_that_is_wrong(files: Path) -> None:
    for wrong in ({"ca_file": files / "missing.pem"}, {"certificate": files / "junk.pem"}):
        (path,) = wrong.values()
        with pytest.raises(ValueError, match=path.name):
            AsyncClient("https://localhost:1", **wrong)


def test_unfinished_handshakes_do_not_block_other_clients(files: Path, tmp_path: Path) -> None:
    """They were counted nowhere: some thousands took every file that the gateway may open, and storage failed
    with them. No certificate and no key was needed for it."""
    tls = {"tls_cert": str(files / "server.pem"), "tls_key": str(files / "server.key")}
    trusted = ssl.create_default_context(cafile=str(files / "ca.pem"))
    with running_gateway(tmp_path, connections_max="3", **tls) as gateway, ExitStack() as held:
        to = urlsplit(gateway.url)
        silent = [
            held.enter_context(socket.create_connection((to.hostname, to.port), timeout=15))
            for _ in range(20)
        ]
        for each in silent[:15]:
            assert each.recv(1) == b"", "the longest idle give way"
        spoken = [
            held.enter_context(
                trusted.wrap_socket(
                    socket.create_connection((to.hostname, to.port)), server_hostname="localhost"
                )
            )
            for _ in range(10)
        ]
        for _ in range(5):
            assert httpx.get(f"{gateway.url}/healthz", verify=trusted).status_code == 200
        assert spoken[0].recv(1) == b""
