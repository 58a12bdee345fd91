"""The demo's steps, one method each; `fieldfare demo` and benchmarks/end_to_end.py call them in order."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fieldfare.cli.demo.alerts import SEED, Alert, draw_alerts
from fieldfare.cli.demo.check import (
    Difference,
    Positions,
    compare,
    match_naively,
    open_events,
    read_match_log,
    write_events,
)
from fieldfare.cli.demo.display import Display, Show
from fieldfare.cli.demo.encrypted import Seen, SpaceAccess, left_out, make_access, search_service_files
from fieldfare.cli.demo.flights import encode_departures, read_departures
from fieldfare.cli.demo.followers import Followers
from fieldfare.cli.demo.memory import MemoryMeter
from fieldfare.cli.demo.replay import Replay, Replayed
from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.client import AsyncClient, Client, NewSubscription
from fieldfare.client.encrypting import NO_ENCRYPTION
from fieldfare.storage import open_registry

BULK_ALERTS = 2_500
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The size of a demo.

    Parameters
    ----------
    events
        Number of departures to replay, from the earliest on; None for all 336,776 of the year.
    alerts
        Number of filters, including those of the connected subscribers.
    subscribers
        Number of filters with a connected subscriber.
    sample
        Number of other filters that are compared with the naive evaluator at the end.
    seed
        Seed of the alerts and the sample.
    encrypted
        Whether to use an encrypted space.
    """

    events: int | None = None
    alerts: int = 100_000
    subscribers: int = 40
    sample: int = 60
    seed: int = SEED
    encrypted: bool = False


class Demo:
    """A context manager that runs a new service with the flights' alerts.

    Parameters
    ----------
    settings
        The demo's size.
    display
        Shows the progress.
    places
        The service's data directory and addresses. Its log must have one partition, its directory be empty.

    Attributes
    ----------
    access
        The space of the alerts, and its key; set by `prepare`.
    left_out
        Alerts that cannot be encrypted, one of each family, with the reasons.
    """

    def __init__(
        self,
        settings: DemoSettings,
        display: Display,
        places: ServicePlaces = ServicePlaces(),  # noqa: B008
    ):
        self.settings = settings
        self._display = display
        self._places = places
        self._stack = ExitStack()
        self.access = SpaceAccess()
        self._encryption = NO_ENCRYPTION
        self.left_out: dict[str, tuple[Alert, str]] = {}

    def __enter__(self) -> Demo:
        with ExitStack() as stack:
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fieldfare-demo-")))
            data = self._places.data or self._scratch / "data"
            self.memory = stack.enter_context(MemoryMeter(os.getpid()))
            self.service = stack.enter_context(Service(data, self._places))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def prepare(self) -> None:
        """Read the flights and draw the alerts while the service starts, then wait for the service."""
        with self._display.step("read a year of flights and weather, and draw the alerts"):
            departures = read_departures()
            self.followed, self.others = draw_alerts(
                departures, self.settings.alerts, self.settings.subscribers, self.settings.seed
            )
            events = encode_departures(departures[: self.settings.events])
            self._events_path = self._scratch / "events.arrow"
            write_events(events, self._events_path)
            self.events = open_events(self._events_path)
        if self.settings.encrypted:
            with self._display.step("make a key, and ask which alerts can be encrypted"):
                self._make_key()
        with self._display.step("wait for the service to be ready"):
            self.service.wait_until_ready()

    def _make_key(self) -> None:
        self.access = make_access(self._scratch)
        self._encryption = self.access.encryption()
        self.left_out = left_out([*self.followed, *self.others], self._encryption)
        self.followed, self.others = (
            [alert for alert in alerts if alert.family not in self.left_out]
            for alerts in (self.followed, self.others)
        )

    def register(self) -> None:
        """Create subscriptions for all alerts, and wait until the index has them."""
        alerts = [*self.followed, *self.others]
        if self.settings.encrypted:
            with Client(self.service.url) as admin:
                admin.create_space(self.access.space, encrypted=self._encryption)
        how = "encrypt and register" if self.settings.encrypted else "register"
        with (
            Client(
                self.service.url, self.access.space, timeout_s=TIMEOUT_S, encryption=self._encryption
            ) as client,
            self._display.step(f"{how} the travellers' alerts", len(alerts)) as advance,
        ):
            for start in range(0, len(alerts), BULK_ALERTS):
                piece = alerts[start : start + BULK_ALERTS]
                client.create_subscriptions([NewSubscription(alert.filter, alert.id) for alert in piece])
                advance(len(piece))
        with self._display.step("wait until the index holds them"):
            self.service.wait_until_indexed()

    @property
    def alerts(self) -> int:
        """Number of alerts that are registered."""
        return len(self.followed) + len(self.others)

    def search_service_files(self) -> Seen:
        """Return what the service's files contain of encrypted events and alerts."""
        return search_service_files(self.service.folder, self.others[0] if self.others else self.followed[0])

    def replay(self, connected: Callable[[], None] = lambda: None) -> Replayed:
        """Connect the subscribers, publish all events, and wait until they are matched and delivered.

        `connected` is called between connecting and publishing.
        """
        ids = [alert.id for alert in self.followed]
        with Followers(self.service.url, ids, self.access) as followers:
            with self._display.step(f"connect {len(ids)} subscribers"):
                self.service.wait_until_connected(len(ids))
            connected()
            with self._display.replay("replay the departures of 2013") as show:
                self.replayed = asyncio.run(self._replay(followers, show))
        return self.replayed

    async def _replay(self, followers: Followers, show: Show) -> Replayed:
        access = self.service.url, self.access.space, TIMEOUT_S
        async with AsyncClient(*access, encryption=self._encryption) as client:
            return await Replay(client, self.events, followers, show).run(self._expected_deliveries)

    def check(self) -> tuple[list[Difference], int]:
        """Compare the results with a naive evaluator; return the differences and the number of filters."""
        replayed = self.replayed
        rng = random.Random(self.settings.seed)
        sample = rng.sample(self.others, min(self.settings.sample, len(self.others)))
        alerts = [*self.followed, *sample]
        with self._display.step(
            f"ask {len(alerts)} filters about each event, naively", len(self.events)
        ) as advance:
            filters = [alert.filter for alert in alerts]
            matched = match_naively(self._events_path, len(self.events), filters, advance)
        expected = [replayed.positions[events] for events in matched]
        compared = [
            compare(alert.id, alert.filter, "in the match log", must, did)
            for alert, must, did in zip(alerts, expected, self._read_match_log(alerts), strict=True)
        ]
        delivered = replayed.deliveries
        compared += [
            compare(
                alert.id,
                alert.filter,
                "as delivered",
                expected[number],
                delivered.positions[delivered.followers == number],
            )
            for number, alert in enumerate(self.followed)
        ]
        return [difference for difference in compared if difference is not None], len(alerts)

    def _expected_deliveries(self, end: int) -> int:
        return sum(map(len, self._read_match_log(self.followed, end)))

    def _read_match_log(self, alerts: Sequence[Alert], end: int | None = None) -> list[Positions]:
        numbers = self._numbers(alerts)
        end = self.replayed.end if end is None else end
        return read_match_log(self.service.folder.matches_url, end, numbers)

    def _numbers(self, alerts: Sequence[Alert]) -> list[int]:
        """Return the subscriptions' numbers, which identify them in the match log."""
        registry = open_registry(self.service.folder.registry_url)
        try:
            found = [registry.get(self.access.space, alert.id) for alert in alerts]
        finally:
            registry.close()
        return [subscription.number for subscription in found if subscription is not None]
