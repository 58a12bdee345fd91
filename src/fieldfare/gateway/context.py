"""The parts of one gateway process, which are built here; each part gets only what it uses."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fieldfare.files import make_folder
from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.keyring import Keyring, read_admin_key
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.matching_time import MatchingTime
from fieldfare.gateway.admission.quotas import NAMES, Quotas
from fieldfare.gateway.admission.tickets import Tickets
from fieldfare.gateway.admission.tls import Certificates, caller_context
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower, ReadResult
from fieldfare.gateway.delivery.rate_limiter import DeliveryRateLimiter
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.delivery.replays import Replays
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.federation.opening import GatewayParts, open_federation
from fieldfare.gateway.maintenance.background import Background
from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.pipeline_figures import PipelineFigures
from fieldfare.gateway.maintenance.restored import make_consistent
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.maintenance.space_times import SpaceTimes
from fieldfare.gateway.maintenance.unused import Unused
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.publishing.appender import Appender
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.push.addresses import CallRules, Names, Target
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.push.sender import Sender
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.space_removal import SpaceRemoval
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.telemetry.opening import open_spans
from fieldfare.gateway.tracing import Tracer
from fieldfare.gateway.writer import Writer
from fieldfare.model import DEFAULT_SPACE, Offsets
from fieldfare.runtimes.process.logs import reopen_log
from fieldfare.storage import (
    open_delayed,
    open_event_log,
    open_keys,
    open_match_log,
    open_registry,
)
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import spent_by_space
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import SpaceStore
from fieldfare.storage.sql.keys import KeyStore
from fieldfare.storage.sqlite.first_page import save_first_page

if TYPE_CHECKING:
    from fieldfare.gateway.admission.token_keys import KeyWatch
    from fieldfare.gateway.admission.tokens import WebTokens


READERS = 9
READERS_EACH = 6
"""Threads that read the log, the match log and replays for deliveries; further reads wait. `READERS_EACH` may
read for one space at a time, so that others find a thread free.

These have threads of their own: each writer (a slow append must not delay a change), the followers of the
match log (they wait for its next block), compilation of filters and help with them (a large request computes
for long, and help must not delay subscriptions), name servers and servers of token keys (they may hang).
"""


class Gateway:
    """The parts of one gateway process, on one data directory. No part has a reference to this object.

    Parameters
    ----------
    settings
        The gateway's settings; the directory ``settings.data`` is created if it does not exist.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.certificates = Certificates.open(settings)
        self._open(settings.folder)
        matched = make_consistent(settings, self.log, self.registry, self.match_log)
        self._make_admission(settings)
        self._make_subscriptions(settings)
        self._make_delivery(settings, matched)
        self._make_maintenance(settings)

    def _make_admission(self, settings: GatewaySettings) -> None:
        """Create access control, quotas and limits."""
        first_key = settings.admin_key_file
        admin_digest = None if first_key is None else read_admin_key(first_key)
        tokens, self.key_watch = _tokens(
            settings, self._keys, lambda name: self.subscriptions.has_space(name)
        )
        self.keyring = Keyring(self._keys, admin_digest, tokens)
        self.tickets = Tickets()
        self.audit = Audit(settings.folder.audit_log)
        self.metrics = Metrics()
        self.spans = open_spans(os.environ, self.metrics.spans)
        self.tracer = Tracer(self.spans)
        self.load = Load(settings, self.metrics)
        self.quotas = _quotas(settings, self.registry)
        self.matching_time = MatchingTime(self.quotas)
        self.space_times = SpaceTimes()
        self.bodies = Bodies(settings.body_max_bytes, settings.bodies_max_bytes, self.load)
        self.help_threads = FairExecutor(2, 1, "fieldfare-filter-help")

    def _make_subscriptions(self, settings: GatewaySettings) -> None:
        """Create the writer, and the subscriptions that it stores."""
        self.writer = Writer(self.log, self.registry, queue_max_bytes=settings.queue_max_bytes)
        self.places = LogPlaces(self.log, lambda: self.writer.log_ends)
        self.subscriptions = Subscriptions(
            registry=self.registry,
            writer=self.writer,
            places=self.places,
            quotas=self.quotas,
            filter_max_bytes=settings.filter_max_bytes,
            pasts_max=settings.pasts_max,
            overloaded=self.load.overloaded,
            refuse_address=self._refuse_address,
        )

    def _make_delivery(self, settings: GatewaySettings, matched: Offsets) -> None:
        """Create the delivery from the match log to subscribers, and the queue of delayed events."""
        self.readers = FairExecutor(READERS, READERS_EACH, "fieldfare-readers")
        self._broken: set[tuple[int, tuple[int, int]]] = set()
        self.match_log.on_broken = lambda error: self._broken.add((error.partition, error.block))
        self.tail = MatchLogFollower(
            self.match_log,
            self.log,
            lambda: self.writer.log_ends,
            matched,
            self.readers,
            poll_s=settings.poll_ms / 1000,
            on_broken=self.match_log.on_broken,
        )
        self.tail.call_on_found(self._charge_matching)
        self.tail.call_on_found(self.tracer.noticed)
        self.replays = Replays(settings.folder, self.log, self.registry, self.writer.floor, self.readers)
        self.records = RecordCache(self.log, settings.record_cache_bytes, self.readers)
        self.deliveries = DeliveryService(
            log=self.log,
            registry=self.registry,
            tail=self.tail,
            replays=self.replays,
            records=self.records,
            rate_limiter=DeliveryRateLimiter(self.quotas),
            writer=self.writer,
            metrics=self.metrics,
            tracer=self.tracer,
            window_max=settings.window_max,
            letters_max=settings.dead_letters_max,
        )
        self.backlogs = Backlogs(
            self.registry, self.log, self.match_log, self.tail, self.deliveries, self.quotas
        )
        self.pushes = self._make_pushes()
        self.appender = Appender(self.writer, self.records, self.metrics, self.tracer)
        self.delayed = Delayed(
            store=open_delayed(settings.folder.delayed_url),
            appender=self.appender,
            is_there=self.subscriptions.is_there,
            max_bytes=settings.delayed_max_bytes,
        )
        self.federation = open_federation(settings, self._broker_parts())
        self.advertisements = None if self.federation is None else self.federation.advertisements
        if self.federation is not None:
            self.keyring.find_moved = self.federation.moves.find_caller
            self.tail.call_on_found(self.federation.matched)

    def _broker_parts(self) -> GatewayParts:
        """Return the parts that links to other sites use."""
        return GatewayParts(
            log=self.log,
            match_log=self.match_log,
            registry=self.registry,
            writer=self.writer,
            appender=self.appender,
            key_of_space=self._key_of_open_space,
            subscriptions=self.subscriptions,
            deliveries=self.deliveries,
            quotas=self.quotas,
            metrics=self.metrics,
            backlogs=self.backlogs,
            delayed_records=lambda: sum(records for records, _ in self.delayed.held.values()),
            delayed_ids=self.delayed.ids,
        )

    def _make_maintenance(self, settings: GatewaySettings) -> None:
        """Create the background work: retention, metrics, removal of spaces and unused subscriptions."""
        self._count_stored()
        self.maintenance = Maintenance(
            settings=settings,
            log=self.log,
            registry=self.registry,
            keys=self._keys,
            match_log=self.match_log,
            quarantine=self.quarantine,
            tail=self.tail,
            replays=self.replays,
            floor=self.writer.floor,
            broken=self._broken,
            metrics=self.metrics,
            count_stored=self._count_stored,
            before_trim=self.backlogs.forget_before,
            delayed=self.delayed,
            federation=self.federation,
        )
        self.figures = Figures(
            settings=settings,
            log=self.log,
            quarantine=self.quarantine,
            tail=self.tail,
            writer=self.writer,
            subscriptions=self.subscriptions,
            deliveries=self.deliveries,
            pushes=self.pushes,
            maintenance=self.maintenance,
            load=self.load,
            metrics=self.metrics,
            backlogs=self.backlogs,
        )
        self.pipeline_figures = PipelineFigures(settings.folder, self.figures, self.space_times)
        registry, subscriptions = self.registry, self.subscriptions
        self.unused = Unused(registry, subscriptions, self.deliveries, self.pushes, self.audit, self.metrics)
        self.space_removal = SpaceRemoval(
            registry,
            subscriptions,
            self.keyring,
            self.deliveries,
            self.delayed,
            None if self.federation is None else self.federation.space_removed,
        )
        self.background = Background(
            settings=settings,
            figures=self.figures,
            maintenance=self.maintenance,
            deliveries=self.deliveries,
            unused=self.unused,
            certificates=self.certificates,
        )

    def _open(self, data: DataFolder) -> None:
        """Open the stores, and create the folders and the default space if they are missing."""
        for folder in (data.root, data.matches, data.run, data.logs):
            make_folder(folder)
        self.log = open_event_log(data.log_url)
        self.registry = open_registry(data.registry_url)
        self.registry.mend_vanished()
        if not self.registry.has_space(DEFAULT_SPACE):
            self.registry.create_space(DEFAULT_SPACE)
        self._keys = open_keys(data.registry_url)
        self.match_log = open_match_log(data.matches_url)
        self.quarantine = Quarantine(data.quarantine)

    async def start(self) -> None:
        """Start all parts on the running event loop."""
        self.audit.start()
        if self.key_watch is not None:
            self.key_watch.start()
        self.writer.start()
        self.delayed.start()
        self.deliveries.start()
        self.backlogs.start()
        self.space_removal.start()
        if self.federation is not None:
            self.federation.start()
        self.pushes.start()
        self.background.start()

    def stop_requests(self) -> None:
        """End everything that keeps requests open: streams, compilation of filters, help with filters."""
        self.deliveries.end_sessions()
        self.tracer.stop()
        self.subscriptions.stop()
        self.help_threads.stop()
        if self.federation is not None:
            self.federation.stop_requests()

    def reload(self) -> None:
        """Reread the files that settings name, and reopen the log files; call this on a thread.

        An unusable file is reported, and its previous content stays in use. Signing keys of tokens are reread
        automatically.
        """
        self.keyring.reread_admin(self.settings.admin_key_file)
        if self.certificates is not None:
            self.certificates.renew()
        reopen_log()
        self.audit.reopen()

    async def close(self) -> None:
        """End the sessions, finish queued work, and save the cursors."""
        await self.background.close()
        await self.backlogs.close()
        if self.key_watch is not None:
            await self.key_watch.close()
        await self.pushes.close()
        if self.federation is not None:
            await self.federation.close()
        self.names.close()
        await self.space_removal.close()
        await self.deliveries.close()
        await self.delayed.close()
        await self.writer.close()
        if self.spans is not None:
            await self.spans.close()
        self.help_threads.close()
        self.subscriptions.close()
        self.readers.close()
        self.log.close()
        self.registry.close()
        self._keys.close()
        self.audit.close()
        for path in self.settings.folder.databases:
            save_first_page(path)

    def _key_of_open_space(self, name: str) -> str | None:
        """Return the key of a space whose events the service can read; None if there is none."""
        if not self.subscriptions.has_space(name):
            return None
        key = self.subscriptions.check_space(name)
        return key if self.subscriptions.encryption(key) is None else None

    def _charge_matching(self, found: ReadResult) -> None:
        """Charge the spaces for the matching time that a block of the match log records."""
        spent_ms = {} if found.block is None else spent_by_space(found.block.extra)
        self.matching_time.matched(found.partition, found.end, spent_ms)
        if found.block is not None:
            self.space_times.add(spent_ms, found.block.spaces)
        self.metrics.matching_time.inc(sum(spent_ms.values()) / 1000)

    def _count_stored(self) -> None:
        """Update the quotas with each space's bytes on disk."""
        self.quotas.count_stored(self._stored_bytes)
        matches = Counter(self.match_log.sizes())
        matches.update(self.replays.sizes())
        self.quotas.count_matches(matches)

    def _stored_bytes(self) -> Mapping[str, int]:
        """Return the bytes of each space's events, in the log and delayed."""
        stored = Counter(self.delayed.stored_bytes())
        stored.update(self.log.sizes())
        return stored

    def _make_pushes(self) -> Pushes:
        settings = self.settings
        self.rules, self.names = CallRules(settings.callable_networks), Names()
        sender = Sender(
            self.rules,
            self.names.resolve,
            origin=settings.webhook_origin,
            per_minute=settings.webhook_requests_per_min,
            connections_max=settings.webhook_requests_max,
            tls=caller_context(settings.webhook_ca_file),
        )
        return Pushes(
            deliveries=self.deliveries,
            subscriptions=self.subscriptions,
            metrics=self.metrics,
            sender=sender,
            requests_max=settings.webhook_requests_max,
            ack_deadline_s=settings.ack_deadline_s,
            timeout_s=settings.webhook_timeout_s,
            handshake=settings.webhook_handshake,
        )

    def _refuse_address(self, url: str) -> str | None:
        """Return why a push address is not allowed, as far as that is known before a request; else None."""
        if self.settings.webhook_requests_max == 0:
            return "push addresses are turned off in this service (FIELDFARE_WEBHOOK_REQUESTS_MAX is 0)"
        return self.rules.first_look(Target.parse(url))


def _tokens(
    settings: GatewaySettings, keys: KeyStore, has_space: Callable[[str], bool]
) -> tuple[WebTokens | None, KeyWatch | None]:
    """Return the verifier of tokens and the watch on their signing keys; None without a token issuer."""
    if settings.jwt_issuer is None:
        return None, None
    # Cryptography takes a quarter of a second to load.
    from fieldfare.gateway.admission.token_keys import KeyWatch, is_url, open_source
    from fieldfare.gateway.admission.tokens import WebTokens

    assert settings.jwt_audience is not None and settings.jwt_jwks is not None
    tokens = WebTokens(
        settings.jwt_issuer,
        settings.jwt_audience,
        has_space=has_space,
        claim=settings.jwt_claim,
        leeway_s=settings.jwt_leeway_s,
        ended=keys.ended_spaces(),
    )
    watch = KeyWatch(open_source(settings.jwt_jwks, settings.jwt_refresh_s), tokens.use, tokens.sweep)
    if not is_url(settings.jwt_jwks):
        watch.read_now()
    return tokens, watch


def _quotas(settings: GatewaySettings, registry: SpaceStore) -> Quotas:
    """Return the quotas of all spaces."""
    quotas = Quotas({name: getattr(settings, f"quota_{name}") for name in NAMES})
    for space in registry.stored_spaces():
        quotas.configure(space.key, space.quotas)
    return quotas
