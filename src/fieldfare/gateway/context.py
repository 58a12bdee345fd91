"""What one gateway process holds: put together here, once; each part is given what it uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fieldfare.files import make_folder
from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.keyring import Keyring, read_admin_key
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.quotas import NAMES, Quotas
from fieldfare.gateway.admission.tls import Certificates, caller_context
from fieldfare.gateway.delivery.match_tail import MatchTail
from fieldfare.gateway.delivery.pasts import Pasts
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.rations import Rations
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.push.addresses import CallRules, Names, Target
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.push.sender import Sender
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.space_removal import SpaceRemoval
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.upkeep.background import Background
from fieldfare.gateway.upkeep.figures import Figures
from fieldfare.gateway.upkeep.maintenance import Maintenance
from fieldfare.gateway.upkeep.restored import make_consistent
from fieldfare.gateway.upkeep.unused import Unused
from fieldfare.gateway.writer import Writer
from fieldfare.model import DEFAULT_SPACE
from fieldfare.storage import (
    Registry,
    open_delayed,
    open_event_log,
    open_keys,
    open_match_log,
    open_registry,
)
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.keys import KeyStore
from fieldfare.storage.quarantine import Quarantine

if TYPE_CHECKING:
    from fieldfare.gateway.admission.token_keys import KeyWatch
    from fieldfare.gateway.admission.tokens import WebTokens


class Gateway:
    """The parts of one gateway process, on one data directory. No part knows it.

    Parameters
    ----------
    settings
        Its knobs; ``settings.data`` is created if it is not there.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.certificates = Certificates.open(settings)
        data = settings.folder
        self._open(data)
        first_key = settings.admin_key_file
        admin_digest = None if first_key is None else read_admin_key(first_key)
        tokens, self.key_watch = _tokens(
            settings, self._keys, lambda name: self.subscriptions.has_space(name)
        )
        self.keyring = Keyring(self._keys, admin_digest, tokens)
        self.audit = Audit(data.audit_log)
        matched = make_consistent(settings, self.log, self.registry, self.match_log)

        self.metrics = Metrics()
        self.load = Load(settings, self.metrics)
        self.quotas = _quotas(settings, self.registry)
        self.bodies = Bodies(settings.body_max_bytes, settings.bodies_max_bytes, self.load)

        self.writer = Writer(self.log, self.registry, queue_max_bytes=settings.queue_max_bytes)
        self.places = LogPlaces(self.log, lambda: self.writer.log_ends)
        self.subscriptions = Subscriptions(
            *(self.registry, self.writer, self.places, self.quotas),
            filter_max_bytes=settings.filter_max_bytes,
            pasts_max=settings.pasts_max,
            overloaded=self.load.overloaded,
            refuse_address=self._refuse_address,
        )

        broken: set[tuple[int, tuple[int, int]]] = set()
        self.match_log.on_broken = lambda error: broken.add((error.partition, error.block))
        log, registry, writer, metrics = self.log, self.registry, self.writer, self.metrics
        self.tail = MatchTail(
            self.match_log,
            log,
            lambda: writer.log_ends,
            matched,
            poll_s=settings.poll_ms / 1000,
            on_broken=self.match_log.on_broken,
        )
        self.pasts = Pasts(data, log, registry, writer.floor)
        self.records = RecordCache(log, settings.record_cache_bytes)
        self.pump = Pump(
            *(log, registry, self.tail, self.pasts, self.records, Rations(self.quotas), writer, metrics),
            window_max=settings.window_max,
            letters_max=settings.dead_letters_max,
        )

        self.pushes = self._make_pushes()
        self.delayed = Delayed(
            *(open_delayed(data.delayed_url), writer, self.records, metrics, self.subscriptions.is_there),
            max_bytes=settings.delayed_max_bytes,
        )
        self._count_stored()
        matches, quarantine, tail = self.match_log, self.quarantine, self.tail
        self.maintenance = Maintenance(
            *(settings, log, registry, matches, quarantine, tail, self.pasts, writer.floor, broken, metrics),
            *(self._count_stored, self.delayed),
        )
        self.figures = Figures(
            *(settings, log, quarantine, tail, writer, self.subscriptions),
            *(self.pump, self.pushes, self.maintenance, self.load, metrics),
        )
        self.unused = Unused(registry, self.subscriptions, self.pump, self.pushes, self.audit, metrics)
        self.space_removal = SpaceRemoval(registry, self.subscriptions, self.keyring, self.pump, self.delayed)
        self.background = Background(
            *(settings, self.figures, self.maintenance, self.pump, self.unused), self.certificates
        )

    def _open(self, data: DataFolder) -> None:
        """Open what is durable."""
        for folder in (data.root, data.matches, data.run, data.logs):
            make_folder(folder)
        self.log = open_event_log(data.log_url)
        self.registry = open_registry(data.registry_url)
        if not self.registry.has_space(DEFAULT_SPACE):
            self.registry.create_space(DEFAULT_SPACE)
        self._keys = open_keys(data.registry_url)
        self.match_log = open_match_log(data.matches_url)
        self.quarantine = Quarantine(data.quarantine)

    async def start(self) -> None:
        """Begin to work, on the running event loop."""
        self.audit.start()
        if self.key_watch is not None:
            self.key_watch.start()
        self.writer.start()
        self.delayed.start()
        self.pump.start()
        self.space_removal.start()
        self.pushes.start()
        self.background.start()

    async def close(self) -> None:
        """End the sessions, finish what is queued, save the cursors."""
        await self.background.close()
        if self.key_watch is not None:
            await self.key_watch.close()
        await self.pushes.close()
        self.names.close()
        await self.space_removal.close()
        await self.pump.close()
        await self.delayed.close()
        await self.writer.close()
        self.subscriptions.close()
        self.records.close()
        self.pasts.close()
        self.log.close()
        self.registry.close()
        self._keys.close()
        self.audit.close()

    def _count_stored(self) -> None:
        """Tell the quotas what each space has on disk."""
        self.quotas.count_stored(self._stored_bytes)
        matches = Counter(self.match_log.sizes())
        matches.update(self.pasts.sizes())
        self.quotas.count_matches(matches)

    def _stored_bytes(self) -> Mapping[str, int]:
        """How many bytes of events each space has, in the log and waiting for it."""
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
            *(self.pump, self.subscriptions, self.metrics, sender),
            requests_max=settings.webhook_requests_max,
            ack_deadline_s=settings.ack_deadline_s,
            timeout_s=settings.webhook_timeout_s,
            handshake=settings.webhook_handshake,
        )

    def _refuse_address(self, url: str) -> str | None:
        """Why no subscription may have an address, as far as one can say before it is called."""
        if self.settings.webhook_requests_max == 0:
            return "this service sends messages to no address"
        return self.rules.first_look(Target.parse(url))


def _tokens(
    settings: GatewaySettings, keys: KeyStore, has_space: Callable[[str], bool]
) -> tuple[WebTokens | None, KeyWatch | None]:
    """Who finds those who come with tokens, and what keeps the keys that those are signed with."""
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


def _quotas(settings: GatewaySettings, registry: Registry) -> Quotas:
    """What spaces may, and how much they keep."""
    quotas = Quotas({name: getattr(settings, f"quota_{name}") for name in NAMES})
    for space in registry.stored_spaces():
        quotas.configure(space.key, space.quotas)
    return quotas
