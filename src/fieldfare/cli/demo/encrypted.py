"""The demo in an encrypted space: its key, alerts that are left out, and what the service's files contain."""

from __future__ import annotations

import json
import mmap
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fieldfare.cli.demo.alerts import Alert
from fieldfare.client import NewSubscription
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption
from fieldfare.client.errors import EncryptionError
from fieldfare.model import DEFAULT_SPACE
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.folder import DataFolder

SPACE = "flights"
NUMBERS = {
    "data.flight": (0, 9999, 1),
    "data.hour": (0, 23, 1),
    "data.sched_arr_time": (0, 2400, 1),
    "data.dep_delay": (-200, 3000, 1),
    "data.arr_delay": (-200, 3000, 1),
    "data.distance": (0, 6000, 1),
    "data.weather.temp": (-50, 150, "0.01"),
    "data.weather.humid": (0, 100, "0.01"),
    "data.weather.precip": (0, 20, "0.01"),
    "data.weather.visib": (0, 10, "0.01"),
}
"""The number attributes that alerts use, except wind speeds: these were converted from knots and are
on no grid."""
TEXTS = (
    "source",
    "type",
    "subject",
    "data.origin",
    "data.dest",
    "data.carrier",
    "data.tailnum",
)
PLAIN_WORDS = (b"/airports/", b"com.fieldfare.flight", b"dep_delay", b"tailnum", b"weather")
"""Texts of which each event and each alert has some, and which do not occur by chance."""


@dataclass(frozen=True, slots=True)
class SpaceAccess:
    """The space of the demo's clients, and its key.

    Attributes
    ----------
    key_file
        The key file; None: the space is not encrypted.
    """

    space: str = DEFAULT_SPACE
    key_file: Path | None = None
    passphrase: str = field(default="", repr=False)

    def encryption(self) -> Encryption:
        """Return the argument ``encryption`` of a client."""
        if self.key_file is None:
            return NO_ENCRYPTION
        from fieldfare.client.encryption import read_key

        return read_key(self.key_file, self.passphrase)


def make_access(folder: Path) -> SpaceAccess:
    """Create a key for the flights, in a file with a random passphrase."""
    from fieldfare.client.encryption import SpaceKey, write_key

    access = SpaceAccess(SPACE, folder / "flights.key", secrets.token_urlsafe())
    write_key(folder / "flights.key", SpaceKey.generate(NUMBERS, TEXTS), access.passphrase)
    return access


def left_out(alerts: Iterable[Alert], encryption: Encryption) -> dict[str, tuple[Alert, str]]:
    """Return the families that cannot be encrypted, each with an alert and the reason.

    The alerts of a family have the same form, so one of each is tried.
    """
    found: dict[str, tuple[Alert, str]] = {}
    first = {alert.family: alert for alert in reversed(list(alerts))}
    for family, alert in first.items():
        try:
            encryption.seal_filter(NewSubscription(alert.filter))
        except EncryptionError as error:
            found[family] = alert, str(error)
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """Encrypted events and filters as a service's files contain them.

    Attributes
    ----------
    event
        The ``data`` of the first event in the log.
    alert, filter
        An alert, and its filter in the registry.
    files, size_bytes
        Number and size of the files that were searched for `PLAIN_WORDS`.
    plain
        The files that contain one, with the word.
    """

    event: str
    alert: Alert
    filter: str
    files: int
    size_bytes: int
    plain: list[str]


def search_service_files(folder: DataFolder, alert: Alert) -> Seen:
    """Read the first event and an alert from the service's files, and search all files for `PLAIN_WORDS`."""
    log, registry = open_event_log(folder.log_url), open_registry(folder.registry_url)
    try:
        first = next(iter(log.partitions[0].read(0, log.partitions[0].end())))
        subscription = registry.get(SPACE, alert.id)
    finally:
        log.close()
        registry.close()
    event = json.dumps(json.loads(bytes(first.payload).split(b"\n", 1)[0])["data"])
    files = [path for path in folder.root.rglob("*") if path.is_file() and path.stat().st_size]
    plain = [f"{path}: {word.decode()}" for path in files for word in _words_in(path)]
    size_bytes = sum(path.stat().st_size for path in files)
    return Seen(event, alert, subscription.filter if subscription else "", len(files), size_bytes, plain)


def _words_in(path: Path) -> list[bytes]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [word for word in PLAIN_WORDS if content.find(word) >= 0]


def cut_texts(document: str) -> str:
    """Return JSON with its long texts shortened."""
    return re.sub(r'"([^"]{12})[^"]+"', r'"\1.."', document)
