"""The flights in an encrypted space: the key, what cannot be asked for, what the service has of them."""

from __future__ import annotations

import json
import mmap
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fieldfare.cli.demo.alerts import Alert
from fieldfare.client import NewSubscription
from fieldfare.client.encrypting import PLAINLY, Encryption
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
"""What alerts ask for. Speeds of the wind were made of knots and lie on no grid."""
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
"""Every event has some of these, and every alert; none of them could come about by chance."""


@dataclass(frozen=True, slots=True)
class SpaceAccess:
    """Where the demo's clients publish and subscribe, and the key that they do it with.

    Attributes
    ----------
    key_file
        None: nothing is encrypted.
    """

    space: str = DEFAULT_SPACE
    key_file: Path | None = None
    passphrase: str = ""

    def encryption(self) -> Encryption:
        """What a client takes."""
        if self.key_file is None:
            return PLAINLY
        from fieldfare.client.encryption import read_key

        return read_key(self.key_file, self.passphrase)


def make_access(folder: Path) -> SpaceAccess:
    """A new key for the flights, in a file under a passphrase that only this process knows."""
    from fieldfare.client.encryption import SpaceKey, write_key

    access = SpaceAccess(SPACE, folder / "flights.key", secrets.token_urlsafe())
    write_key(folder / "flights.key", SpaceKey.generate(NUMBERS, TEXTS), access.passphrase)
    return access


def left_out(alerts: Iterable[Alert], encryption: Encryption) -> dict[str, tuple[Alert, str]]:
    """The families of alerts that cannot be encrypted, as all of one are alike: an alert of each, and why."""
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
    """What a service has of events and filters that it could not read.

    Attributes
    ----------
    event
        The first in its log: what is below ``data``.
    alert, filter
        An alert, and what the registry has of its filter.
    files, size_bytes
        What of its data directory was searched for `PLAIN_WORDS`.
    plain
        The files in which one of them stands.
    """

    event: str
    alert: Alert
    filter: str
    files: int
    size_bytes: int
    plain: list[str]


def what_was_seen(folder: DataFolder, alert: Alert) -> Seen:
    """Read what the service has of the first event and of an alert, and search all of its files."""
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
    """JSON with the beginnings of its long texts only."""
    return re.sub(r'"([^"]{12})[^"]+"', r'"\1.."', document)
