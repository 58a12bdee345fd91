"""The links to neighbours: batches of entries out by HTTP requests, and in by a route.

    outbox ──Batch: entries from `first` on──▶ neighbour: stored in one transaction
       ◀─────Answer: watermark───────────────┘

A request that is lost is repeated with the same numbers; the receiver skips what is not above its watermark.
Both directions of a link are apart: each side sends requests to the other. Rows of the topology go along
where the two sides' digests differ.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from fieldfare.encodings import GZIP, RATIO_MAX, pack
from fieldfare.filters import Filter
from fieldfare.gateway.federation.balance_board import BalanceBoard
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.link_entries import LOST, emptied, inbound_of, is_for, place_of
from fieldfare.gateway.federation.link_filters import permitted
from fieldfare.gateway.federation.link_rates import NO_LIMITS, LinkRates
from fieldfare.gateway.federation.receipts import Receipts, owed_of
from fieldfare.gateway.federation.wire import (
    BATCH_ENTRIES_MAX,
    MEDIA_TYPE,
    VERSION,
    Answer,
    Batch,
    Entry,
    Lost,
    Receipt,
    Row,
    decode_answer,
    decode_batch,
    decode_entry,
    encoder,
)
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.token_bucket import TokenBucket
from fieldfare.routing.checking import RefusedError
from fieldfare.storage.errors import StorageError
from fieldfare.storage.links import KEPT_MAX_BYTES, Inbound, Owed, Part
from fieldfare.storage.sqlite.links import LinkStore

HEARTBEAT_S = 1.0
"""Seconds between requests over an idle link; they show that it is up."""

TIMEOUT_S = 10.0
DOWN_AFTER = 2
"""Failed requests in succession after which a link is down, and entries that were not sent go another way."""

BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 15.0
"""Bounds of the pause after a failed request, which doubles each time; the actual one is drawn below it."""

PACKED_MIN_BYTES = 1_000
"""Minimum bytes of a batch that is compressed."""

ANSWER_MAX_BYTES = 4 << 20
"""Maximum bytes of an answer; a longer one is an error."""

INLINE_BYTES = 64 << 10
"""Maximum bytes of a batch that is decoded on the event loop; larger ones go to a thread."""

INBOX_MAX_BYTES = 256 << 20
OUTBOXES_MAX_BYTES = 16 << 30
"""Maximum bytes that wait for this broker, and that links.db uses; beyond them a neighbour must wait (429),
and this broker's own events wait in its log."""

logger = logging.getLogger("fieldfare.gateway.federation")


class LinkError(ValueError):
    """A neighbour's answer refuses a batch, or is not the answer of a broker."""


class RemovedError(LinkError):
    """A neighbour says that this broker was removed, or has left."""


class TooLargeError(LinkError):
    """A batch is larger than the neighbour takes."""


@dataclass(slots=True)
class Peer:
    """A neighbour: its name and URL, and the state of the link to it.

    Attributes
    ----------
    is_compared
        Whether its watermark fits the numbers given here; it is compared once after a start.
    identity
        The identity that it is known to have.
    asked_s
        When the last request was sent to it, as `time.monotonic`.
    numbered
        The number of the last entry that was sent.
    withheld
        Number of events that the link's filter has kept back.
    is_told
        Whether it knows that this broker has left.
    buckets
        The bytes that the link's rates allow; see `LinkRates.buckets`.
    count_max
        Maximum entries of the next batch; 0 if its first entry must be sent without content, since the
        neighbour refuses it for its size.
    """

    name: str
    url: str
    digest: str = ""
    failures: int = 0
    trouble: str = ""
    is_compared: bool = False
    identity: str = ""
    asked_s: float = 0.0
    numbered: int = 0
    count_max: int = BATCH_ENTRIES_MAX
    requests: int = 0
    entries: int = 0
    bytes: int = 0
    withheld: int = 0
    is_told: bool = False
    buckets: tuple[TokenBucket | None, TokenBucket | None] = (None, None)
    poke: asyncio.Event = field(default_factory=asyncio.Event)
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    acknowledging: asyncio.Lock = field(default_factory=asyncio.Lock)


class Links:
    """The links of one broker.

    Parameters
    ----------
    routing
        The routing protocol; all brokers that are linked use the same.
    peers
        The URLs of the neighbours.
    key
        The API key for requests to neighbours; None for services that need none.
    tls
        The TLS context of these requests.
    receipts
        The receipts that go along with requests.
    rates
        The limits of each link.
    filters
        By neighbour, which events may be sent to it; default: all.
    """

    def __init__(
        self,
        clusters: Clusters,
        store: LinkStore,
        routing: str,
        peers: Mapping[str, str],
        key: str | None,
        tls: ssl.SSLContext,
        receipts: Receipts,
        rates: LinkRates = NO_LIMITS,
        filters: Mapping[str, Filter] | None = None,
    ) -> None:
        self.receipts = receipts
        self._filters = filters or {}
        self._rates = rates
        self._clusters = clusters
        self._store = store
        self.routing = routing
        now_s = time.monotonic()
        self.peers = {name: Peer(name, url, buckets=rates.buckets(now_s)) for name, url in peers.items()}
        self.board = BalanceBoard(clusters)
        """The loads of all brokers and letters about sessions, which go along with the requests."""
        self.board.on_post = self.poke
        self.on_change: Callable[[], None] = lambda: None
        """Called on the event loop when entries were received or the topology has changed."""
        headers = {"Content-Type": MEDIA_TYPE, "User-Agent": "fieldfare-broker"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx.AsyncClient(
            headers=headers, verify=tls, timeout=TIMEOUT_S, trust_env=False, follow_redirects=False
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.must_reroute = False
        """Whether the topology has changed since entries were last given their ways."""
        self.not_kept = 0
        """Number of entries of which no copy is kept, since there were too many."""
        self.is_held = False
        """Whether entries may not be sent: earlier ones may still have to get their ways."""
        self._opened = asyncio.Event()
        self._opened.set()
        self.receiving = 0
        """Number of batches that are being stored."""
        self._storing = asyncio.Lock()
        self._is_stored = True
        """Whether the file has the topology as it is now."""

    def start(self) -> None:
        """Start sending, on the running event loop."""
        self._tasks = [asyncio.create_task(self._send_to(peer)) for peer in self.peers.values()]

    async def close(self) -> None:
        """End all requests; unacknowledged entries are sent again after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def poke(self) -> None:
        """Send what is in the outboxes now."""
        for peer in self.peers.values():
            peer.poke.set()

    # Out

    async def _send_to(self, peer: Peer) -> None:
        while peer.name not in self._clusters.removed and not peer.is_told:
            peer.poke.clear()
            try:
                has_more = await self._exchange(peer)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, StorageError, ValueError) as error:
                await self._failed(peer, error)
                continue
            except Exception:
                logger.exception("sending to the broker %s failed", peer.name)
                await self._failed(peer, RuntimeError("an error of this broker: see its log"))
                continue
            peer.failures, peer.trouble = 0, ""
            if self._clusters.set_up(peer.name, is_up=True):
                logger.info("the link to the broker %s is up", peer.name)
                self._is_stored = False
            if not self._is_stored and await self._try_to_store():
                continue
            wait_s = _wait_s(peer)
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, HEARTBEAT_S))
            elif not has_more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await peer.poke.wait()
        if not peer.is_told:
            peer.trouble = f"the broker was removed: start this one without --peer {peer.name}=..."

    async def _failed(self, peer: Peer, error: Exception) -> None:
        peer.failures += 1
        peer.trouble = str(error) or type(error).__name__
        if peer.failures >= DOWN_AFTER and self._clusters.set_up(peer.name, is_up=False):
            logger.warning("the link to the broker %s is down: %s", peer.name, peer.trouble)
            self._is_stored = False
            await self._try_to_store()
        pause_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(peer.failures, 16))
        await asyncio.sleep(random.uniform(pause_s / 2, pause_s))

    async def remove(self, name: str) -> None:
        """Remove another broker for good, and tell the others."""
        self._clusters.remove(name)
        await self._changed()

    async def set_leaving(self, *, is_leaving: bool) -> None:
        """Say whether this broker is leaving; durable on return."""
        self._clusters.set_leaving(is_leaving=is_leaving)
        await self._changed()

    def hold(self, *, is_held: bool) -> None:
        """Let the batches of neighbours wait, or let them go on; `receiving` counts those under way."""
        if is_held:
            self._opened.clear()
        else:
            self._opened.set()

    async def leave(self) -> None:
        """Leave for good. Neighbours hear of it after that is stored, and what they send is refused."""
        async with self._storing:
            rows = encoder.encode(self._clusters.rows_after_leaving)
            await asyncio.to_thread(self._store.set_row, self._clusters.version, rows)
            self._clusters.leave()
        for peer in self.peers.values():
            peer.digest = ""
        self.hold(is_held=False)
        await self._changed()

    async def _try_to_store(self) -> bool:
        """Store a topology that has changed; return False if that has to be tried again."""
        try:
            await self._changed()
        except (StorageError, OSError) as error:
            logger.error("the state of the links could not be stored; retrying: %s", error)
            return False
        return True

    async def _changed(self) -> None:
        """Store the topology, and have entries rerouted and neighbours told."""
        self._is_stored = False
        async with self._storing:  # else an older state could be written after a newer one
            rows, self._is_stored = encoder.encode(self._clusters.rows), True
            try:
                await asyncio.to_thread(self._store.set_row, self._clusters.version, rows)
            except BaseException:
                self._is_stored = False
                raise
        self.must_reroute = self.is_held = True
        self.on_change()
        self.poke()

    async def _exchange(self, peer: Peer) -> bool:
        """Send a batch and process its answer; return whether there is more to send."""
        digest, has_left = self._clusters.digest(peer.name), self._clusters.has_left
        # The first request after a start only compares the neighbour's watermark with the numbers given here.
        is_sending = peer.is_compared and not self.is_held and not _wait_s(peer)
        count_max = max(1, peer.count_max) if is_sending else 0
        batch_bytes = self._rates.batch_bytes()
        first, entries = await asyncio.to_thread(self._store.transmit, peer.name, count_max, batch_bytes)
        if not entries and not self._is_request_due(peer, digest):
            return False
        last, withheld = first + len(entries) - 1, 0
        if entries and peer.name in self._filters:
            entries, withheld = await asyncio.to_thread(self._permitted, peer.name, entries)
        peer.numbered = max(peer.numbered, last)
        receipts = self.receipts.for_peer(peer.name)
        body, headers = await self._encoded(peer, first, entries, digest, receipts)
        if entries:
            is_full = len(entries) == count_max or sum(map(len, entries)) > batch_bytes // 2
            of_all, of_full = peer.buckets
            for bucket in (of_all, of_full if is_full else None):
                if bucket is not None:
                    bucket.take(len(body), time.monotonic())
        try:
            answer = await self._post(peer, body, headers)
        except TooLargeError:
            if not entries or not peer.count_max:
                raise
            peer.count_max = len(entries) // 2
            return True
        except RemovedError:
            peer.is_told = has_left
            if has_left:
                return False
            raise
        if answer.source != peer.name:
            raise LinkError(f"{peer.url} is the broker {answer.source!r}, not {peer.name!r}")
        await self._meet(peer, answer.identity)
        if not peer.is_compared and answer.watermark > last:
            raise LinkError(
                f"it has stored entries up to {answer.watermark}, but {last} is the last that was sent:"
                " links.db was restored from a copy. Give this broker a new name and an empty links.db"
            )
        if answer.rows:
            await self._merge(peer, answer.rows)
        peer.is_compared = True
        if entries:
            if not first - 1 <= answer.watermark <= peer.numbered:
                raise LinkError(f"it has stored entries up to {answer.watermark}, not {first - 1} to {last}")
            await self._acknowledge(peer, answer.watermark)
            peer.entries += answer.watermark - first + 1
            peer.withheld += withheld
            peer.count_max = min(BATCH_ENTRIES_MAX, 2 * max(1, peer.count_max))
        self.board.sent(peer.name)
        self.receipts.sent(receipts)
        peer.requests += 1
        peer.bytes += len(body)
        peer.digest = answer.digest
        peer.is_told = has_left
        return bool(entries) or peer.digest != self._clusters.digest(peer.name)

    async def _acknowledge(self, peer: Peer, watermark: int) -> None:
        """Remove what a neighbour has stored; copies stay of what goes on from there."""
        async with peer.acknowledging:
            if peer.name in self._clusters.removed:
                raise LinkError("it was removed: entries sent to it take another path")
            left_out = await asyncio.to_thread(self._store.acknowledge, peer.name, watermark, self._owed_by)
        if left_out and not self.not_kept:
            logger.warning(
                "copies of %d bytes wait for receipts: none is kept of further entries, which are lost if a"
                " broker between is removed",
                KEPT_MAX_BYTES,
            )
        self.not_kept += left_out

    def _owed_by(self, data: bytes) -> list[Owed]:
        return owed_of(decode_entry(data), self._clusters.name)

    def _permitted(self, name: str, entries: Sequence[bytes]) -> tuple[list[bytes], int]:
        found = [permitted(each, self._filters[name]) for each in entries]
        return [each for each, _ in found], sum(withheld for _, withheld in found)

    def _is_request_due(self, peer: Peer, digest: str) -> bool:
        """Whether a request without entries is due: to say something, or to show that the link is up."""
        is_usual = peer.is_compared and not peer.failures and digest == peer.digest
        is_usual = is_usual and not self.board.has_letters(peer.name)
        return not is_usual or time.monotonic() - peer.asked_s >= HEARTBEAT_S

    async def _meet(self, peer: Peer, identity: str) -> None:
        """Raise LinkError if a neighbour is not the one that was known by its name."""
        if identity != peer.identity:
            if not await asyncio.to_thread(self._store.meet, peer.name, identity):
                raise LinkError(
                    f"The broker {peer.name!r} is not the one that was known by this name: two brokers have"
                    " it, or its file links.db was replaced. Give it a new name."
                )
            peer.identity = identity

    async def _encoded(
        self, peer: Peer, first: int, entries: Sequence[bytes], digest: str, receipts: tuple[Receipt, ...]
    ) -> tuple[bytes, dict[str, str]]:
        """Return the body of a request, and its headers."""
        if entries and not peer.count_max:
            logger.error(
                "the broker %s refuses entry %d for its size; it is sent without content: %s",
                peer.name,
                first,
                place_of(decode_entry(entries[0])),
            )
            entries = [emptied(entries[0])]
        batch = Batch(
            VERSION,
            self._clusters.name,
            self._store.identity,
            peer.name,
            self.routing,
            first,
            tuple(msgspec.Raw(each or LOST) for each in entries),
            digest,
            () if digest == peer.digest else self._clusters.rows_for(peer.name),
            self._clusters.cluster_of_peer(peer.name),
            self.board.rows_for(peer.name),
            self.board.letters_for(peer.name),
            receipts,
        )
        body = encoder.encode(batch)
        if len(body) >= PACKED_MIN_BYTES:
            packed = await asyncio.to_thread(pack, body, GZIP)
            if len(packed) * RATIO_MAX > 2 * len(body):
                return packed, {"Content-Encoding": GZIP}
        return body, {}

    async def _post(self, peer: Peer, body: bytes, headers: Mapping[str, str]) -> Answer:
        url = f"{peer.url}/v1/brokers/{self._clusters.name}/entries"
        peer.asked_s = time.monotonic()
        async with self._client.stream("POST", url, content=body, headers=headers) as response:
            answer = bytearray()
            async for piece in response.aiter_bytes():
                answer += piece
                if len(answer) > ANSWER_MAX_BYTES:
                    raise LinkError(f"its answer is longer than {ANSWER_MAX_BYTES} bytes")
        if response.status_code == 413:
            raise TooLargeError(f"it answered 413: {_detail(bytes(answer))}")
        if response.status_code != 200:
            is_removal = response.status_code == 409 and b":broker-removed" in answer
            raise (RemovedError if is_removal else LinkError)(
                f"it answered {response.status_code}: {_detail(bytes(answer))}"
            )
        return decode_answer(bytes(answer))

    async def _merge(self, peer: Peer, rows: Sequence[Row]) -> None:
        try:
            is_new = self._clusters.merge(peer.name, rows)
        except RefusedError as error:
            raise LinkError(str(error)) from None
        if is_new:
            await self._changed()

    # In

    async def receive(self, name: str, body: bytes) -> bytes:
        """Store a neighbour's batch, and return the encoded answer. Raise HttpProblem if it is refused."""
        peer = self.peers.get(name)
        if peer is None:
            detail = f"{name!r:.80} is not a neighbour of the broker {self._clusters.name!r}."
            raise HttpProblem(404, "unknown-broker", detail, hint=f"Start it with --peer {name[:80]}=URL.")
        if len(body) <= INLINE_BYTES:
            batch, entries = decode_batch(body)
        else:
            batch, entries = await asyncio.to_thread(decode_batch, body)
        if name in self._clusters.removed:
            detail = f"The broker {name!r} was removed from these sites for good."
            hint = "Give it another name and an empty links.db."
            raise HttpProblem(409, "broker-removed", detail, hint=hint)
        self._check(peer, batch)
        self.board.merge(batch.loads)
        self.board.receive(batch.letters)
        self.receipts.receive(batch.receipts)
        async with peer.receiving:
            await self._opened.wait()
            if self._clusters.has_left:
                detail = f"The broker {self._clusters.name!r} has left these sites for good."
                raise HttpProblem(409, "broker-removed", detail)
            self.receiving += 1
            try:
                watermark = await self._absorb(peer, batch, entries)
            finally:
                self.receiving -= 1
        me = self._clusters.name
        if self.must_reroute or any(not isinstance(each, Lost) and is_for(each, me) for each in entries):
            self.on_change()
        if entries:
            self.poke()
        digest = self._clusters.digest(name)
        rows = () if digest == batch.digest else self._clusters.rows_for(name)
        return encoder.encode(Answer(VERSION, me, self._store.identity, watermark, digest, rows))

    async def _absorb(self, peer: Peer, batch: Batch, entries: Sequence[Entry]) -> int:
        """Store a batch, and return the watermark."""
        try:
            await self._meet(peer, batch.identity)
            # The rows first: a neighbour that must not be one sends no entries.
            if batch.rows:
                await self._merge(peer, batch.rows)
        except LinkError as error:
            raise HttpProblem(409, "broker-clash", str(error)) from None
        self._check_entries(peer, entries)
        return await asyncio.to_thread(self._store_batch, peer, batch, entries)

    def _check(self, peer: Peer, batch: Batch) -> None:
        """Raise HttpProblem for a batch that this broker must not take."""
        if batch.source != peer.name:
            raise HttpProblem(400, "bad-batch", f"The batch is of {batch.source!r}, not of {peer.name!r}.")
        if batch.to != self._clusters.name:
            detail = f"This is the broker {self._clusters.name!r}, not {batch.to!r}."
            raise HttpProblem(409, "broker-clash", detail, hint="Correct --broker here, or --peer there.")
        if batch.routing != self.routing:
            detail = f"This broker has --routing {self.routing}, the neighbour {batch.routing!r:.40}."
            raise HttpProblem(409, "routing", detail, hint="Start all brokers with the same --routing.")
        cluster = self._clusters.cluster_of_peer(peer.name)
        if batch.cluster != cluster:
            detail = (
                f"The link belongs to the cluster {cluster!r} here, at the neighbour to {batch.cluster!r}."
            )
            raise HttpProblem(409, "routing", detail, hint="Correct --cluster or --peer at one of them.")

    def _check_entries(self, peer: Peer, entries: Sequence[Entry]) -> None:
        """Raise HttpProblem for entries that do not belong on this link."""
        cluster, me = self._clusters.cluster_of_peer(peer.name), self._clusters.name
        for entry in entries:
            if isinstance(entry, Lost):
                continue
            # An entry of this broker may come back while others have not heard yet which link is down: it is
            # given another way. A refusal would hold up the link for good, since the entry has its number.
            for name in (entry.source, *(each.name for each in entry.destinations)):
                if name != me and self._clusters.cluster_of(name) not in (None, cluster):
                    detail = f"An entry names {name!r}, which is not in the cluster {cluster!r} of this link."
                    raise HttpProblem(400, "bad-batch", detail)

    def _store_batch(self, peer: Peer, batch: Batch, entries: Sequence[Entry]) -> int:
        """Store the entries that are new, and return the watermark."""
        watermark = self._store.watermark(peer.name)
        if not entries:
            return watermark
        if not 1 <= batch.first <= watermark + 1:
            detail = f"The batch begins with entry {batch.first}, but {watermark + 1} comes next."
            raise HttpProblem(409, "link-gap", detail)
        fresh = entries[watermark + 1 - batch.first :]
        if not fresh:
            return watermark
        if self._store.inbound_bytes() > INBOX_MAX_BYTES or self._store.used_bytes() > OUTBOXES_MAX_BYTES:
            detail = "Too many entries of other brokers wait here: send the batch again later."
            raise HttpProblem(429, "overloaded", detail, headers={"Retry-After": "1"})
        parts: list[Part] = []
        mine: list[Inbound] = []
        digest = self._clusters.digest(peer.name)
        me = self._clusters.name
        for entry in fresh:
            if isinstance(entry, Lost):
                continue
            others = [each for each in entry.destinations if each.name != me]
            parts += self._clusters.split(entry, others)
            if not self._clusters.is_relay:  # Brokers of earlier versions send it their filters.
                mine += [inbound_of(entry, each) for each in entry.destinations if each.name == me]
        watermark += len(fresh)
        self._store.receive(peer.name, watermark, parts, mine)
        if self._clusters.digest(peer.name) != digest:
            # Entries may have been given their ways by the old topology after all others were rerouted.
            self.must_reroute = True
        return watermark


def _wait_s(peer: Peer) -> float:
    """Return the seconds until the link's rates allow the next batch."""
    now_s = time.monotonic()
    return max((bucket.wait_s(now_s) for bucket in peer.buckets if bucket is not None), default=0.0)


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any]).get("detail", ""))[:300]
    except (ValueError, RecursionError):
        return "no problem document"
