"""TLS of the gateway: its certificate, the client certificates it requests, and the trusted authorities."""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import cache
from pathlib import Path

from fieldfare.gateway.settings import GatewaySettings, UnusableFile

RENEWED_S = 2.0
"""Interval of the check for a renewed certificate, in seconds."""

logger = logging.getLogger("fieldfare.gateway")


class TlsError(UnusableFile):
    """A file for TLS cannot be used."""


def server_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of the listening socket; None for plain HTTP.

    Raise TlsError with the unusable file.
    """
    certificate, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if certificate is None:
        if key is not None or client_ca is not None:
            raise TlsError("--tls-key and --tls-client-ca need --tls-cert")
        return None
    for path in filter(None, (certificate, key, client_ca)):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _NeedsPassword:
        raise TlsError(
            f"{key or certificate}: the key is protected by a password: store it without one"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"{key or certificate}: the key does not belong to the certificate {certificate}"
            ) from None
        files = certificate if key is None else f"{certificate} and {key}"
        raise TlsError(f"{files}: no PEM certificate with its private key ({_reason(error)})") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise TlsError(f"{client_ca}: no PEM certificates ({_reason(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Certificates:
    """The TLS context of the listening socket, renewed when its files change: a renewed certificate needs no
    restart.

    Open connections keep the context they began with. If the new files are unusable, perhaps because one of
    two is not written yet, the old context stays in use.

    Attributes
    ----------
    context : ssl.SSLContext
        Context of the next handshake. Each renewal creates a new one: an authority cannot be removed from a
        context in use, and a key that does not match would spoil it.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._files = [
            path for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if path is not None
        ]
        self._made_of = self._read_stats()  # before they are read, or a change meanwhile would be missed
        context = server_context(settings)
        assert context is not None
        self.context = context

    @classmethod
    def open(cls, settings: GatewaySettings) -> Certificates | None:
        """Return the certificates; None for plain HTTP. Raise TlsError with the unusable file."""
        if settings.tls_cert is None:
            server_context(settings)  # refuses TLS settings that need a certificate
            return None
        return cls(settings)

    def renew(self) -> None:
        """Reload the files if they have changed. Blocks: do not call it on the event loop."""
        now_of = self._read_stats()
        if now_of == self._made_of:
            return
        self._made_of = now_of
        try:
            context = server_context(self._settings)
        except TlsError as error:
            logger.warning("the new TLS certificate cannot be used, the old one stays in use: %s", error)
            return
        assert context is not None
        self.context = context
        logger.info("the TLS certificate was reloaded")

    async def keep_renewed(self) -> None:
        """Reload files that have changed, for new connections, until this is cancelled."""
        while True:
            await asyncio.sleep(RENEWED_S)
            try:
                await asyncio.to_thread(self.renew)
            except Exception:
                logger.exception("looking at the files of the TLS certificate failed; retrying later")

    def _read_stats(self) -> list[tuple[int, int, int] | None]:
        """Return inode, modification time and size of each file, None for a missing one."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


def caller_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS context for outgoing connections: it trusts the system's authorities and those of a
    file.
    """
    if ca_file is None:
        return _system_context()
    _check_readable(ca_file)
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise TlsError(f"{ca_file}: no PEM certificates ({_reason(error)})") from None
    return context


@cache
def _system_context() -> ssl.SSLContext:
    """Return the system's context, created once: reading all authorities of a system is slow."""
    return ssl.create_default_context()


class _NeedsPassword(Exception):
    pass


def _no_password() -> str:
    """Refuse a key with a password: OpenSSL would ask for it on the terminal, and wait."""
    raise _NeedsPassword


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
