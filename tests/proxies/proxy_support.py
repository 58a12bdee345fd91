"""nginx and Caddy with the files of deploy/, on ports of this machine, in front of a gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from real_gateway import RealGateway, running_gateway

from fieldfare_lab.ports import find_free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = "events.example.com"
DEADLINE_S = 90.0
PROGRAMS = {
    "nginx": shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"),
    "caddy": shutil.which("caddy"),
}
NGINX_MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
{user}
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/fieldfare.conf;
}}
"""
CADDY_GLOBAL = "\n{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust"


@dataclass(frozen=True)
class Proxied:
    """A gateway behind a proxy.

    Attributes
    ----------
    kind, folder
        The proxy's name, and its folder with its files.
    gateway
        The gateway, which can be stopped and started.
    port
        The proxy's port on 127.0.0.1.
    certificate
        The proxy's certificate, which is its own authority.
    """

    kind: str
    folder: Path
    gateway: RealGateway
    port: int
    certificate: Path

    @property
    def url(self) -> str:
        """The address by the name that the proxy's certificate is for."""
        return f"https://{NAME}:{self.port}"

    @property
    def local_url(self) -> str:
        """The address for programs that cannot be told what the name resolves to."""
        return f"https://localhost:{self.port}"

    def curl(self, path: str, *options: str, host: str = NAME) -> subprocess.Popen[str]:
        """Start a request by HTTP/2."""
        command = ["curl", "--http2", "-sS", "-N", "--max-time", "60", "--cacert", str(self.certificate)]
        command += [
            "--resolve",
            f"{host}:{self.port}:127.0.0.1",
            *options,
            f"https://{host}:{self.port}{path}",
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, path: str, *options: str, host: str = NAME) -> tuple[str, str]:
        """Request by HTTP/2; return the HTTP version with the status, and the answer's body."""
        said, errors = self.curl(
            path, "-w", "\n%{http_version} %{http_code}", *options, host=host
        ).communicate()
        body, _, status = said.rpartition("\n")
        assert status, errors
        return status, body


@contextmanager
def proxied(kind: str, folder: Path, **settings: str) -> Iterator[Proxied]:
    """A gateway behind a proxy that trusts it."""
    settings |= {"allowed_hosts": NAME, "trusted_proxies": "127.0.0.1"}
    with (
        running_gateway(folder / "data", **settings) as gateway,
        proxy_of(kind, folder, urlsplit(gateway.url).netloc) as (port, certificate),
    ):
        yield Proxied(kind, folder, gateway, port, certificate)


@contextmanager
def proxy_of(kind: str, folder: Path, address: str) -> Iterator[tuple[int, Path]]:
    """A proxy with its file of deploy/, in which only places and ports are replaced.

    Yields its port and its certificate.
    """
    certificate, key = make_certificate(folder)
    port = find_free_port()
    command = (_nginx if kind == "nginx" else _caddy)(folder, address, port, certificate, key)
    environment = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait_until_open(port, process, folder)
        yield port, certificate
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for the proxy's name and this machine; return it and its key."""
    names = f"subjectAltName=DNS:{NAME},DNS:localhost,IP:127.0.0.1"
    request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    added = ["-addext", names, "-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    files = ["-keyout", "proxy.key", "-out", "proxy.pem", "-subj", f"/CN={NAME}"]
    run = ["openssl", "req", "-x509", *request, *files, *added]
    subprocess.run(run, cwd=folder, check=True, capture_output=True)
    return folder / "proxy.pem", folder / "proxy.key"


def _nginx(folder: Path, gateway: str, port: int, certificate: Path, key: Path) -> list[str]:
    replaced = {
        "server 127.0.0.1:7737;": f"server {gateway};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "/etc/ssl/fieldfare/fullchain.pem": str(certificate),
        "/etc/ssl/fieldfare/privkey.pem": str(key),
        "/var/log/nginx/fieldfare.log": f"{folder}/access.log",
    }
    (folder / "fieldfare.conf").write_text(_replace(DEPLOY / "nginx" / "fieldfare.conf", replaced))
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX_MAIN.format(folder=folder, user=user))
    return [
        str(PROGRAMS["nginx"]),
        "-p",
        str(folder),
        "-c",
        str(folder / "nginx.conf"),
        "-e",
        f"{folder}/error.log",
    ]


def _caddy(folder: Path, gateway: str, port: int, certificate: Path, key: Path) -> list[str]:
    replaced = {
        "\n{": CADDY_GLOBAL,
        f"\n{NAME} {{": f"\n{NAME}:{port}, localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {key}",
        "127.0.0.1:7737": gateway,
    }
    (folder / "Caddyfile").write_text(_replace(DEPLOY / "caddy" / "Caddyfile", replaced))
    return [str(PROGRAMS["caddy"]), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def _replace(file: Path, replaced: Mapping[str, str]) -> str:
    text = file.read_text()
    for old, new in replaced.items():
        assert text.count(old) == 1, (file, old)
        text = text.replace(old, new)
    return text


def _wait_until_open(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    with httpx.Client(verify=False) as client:
        while time.monotonic() < deadline_s and process.poll() is None:
            try:
                client.get(f"https://localhost:{port}/healthz")
                return
            except httpx.TransportError:
                time.sleep(0.02)
    raise AssertionError((folder / "proxy.log").read_text())
