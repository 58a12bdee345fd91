"""TLS of the gateway: its certificate, whose clients' certificates it asks for, and whom it trusts itself."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

from fieldfare.gateway.settings import GatewaySettings, UnusableFile


class TlsError(UnusableFile):
    """A file for TLS cannot be used."""


def server_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """What the gateway listens with; None for plain HTTP. TlsError names the file that is wrong."""
    certificate, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if certificate is None:
        if key is not None or client_ca is not None:
            raise TlsError("--tls-key and --tls-client-ca go with --tls-cert, which is missing")
        return None
    for path in filter(None, (certificate, key, client_ca)):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _NeedsPassword:
        raise TlsError(f"{key or certificate}: the key has a password; give it as a key without") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{key or certificate}: the key is not that of {certificate}") from None
        files = certificate if key is None else f"{certificate} and {key}"
        raise TlsError(f"{files}: no certificate in PEM with its key ({_reason(error)})") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise TlsError(f"{client_ca}: no certificates in PEM ({_reason(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def caller_context(ca_file: Path | None) -> ssl.SSLContext:
    """What the gateway calls others with: it trusts the system's authorities, and those of a file besides."""
    if ca_file is None:
        return _system_context()
    _check_readable(ca_file)
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise TlsError(f"{ca_file}: no certificates in PEM ({_reason(error)})") from None
    return context


@cache
def _system_context() -> ssl.SSLContext:
    """Made once: to read all authorities of a system takes long."""
    return ssl.create_default_context()


class _NeedsPassword(Exception):
    pass


def _no_password() -> str:
    """Without this OpenSSL would ask on the terminal, and wait."""
    raise _NeedsPassword


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
