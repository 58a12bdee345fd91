"""Report how the index of a data directory holds subscriptions; reads its files only."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.matching.explanation import IndexExplanation, IndexPlace
from fieldfare.matching.index import Index
from fieldfare.model import Subscription
from fieldfare.partitioning.encoding import kind_of
from fieldfare.pipeline.manifest import SpaceManifest
from fieldfare.runtimes.spark.distributed.loads import last_loads
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import open_index_store, open_registry
from fieldfare.storage.errors import IndexStoreError, RegistryError
from fieldfare.storage.folder import DataFolder


@dataclass(frozen=True, slots=True)
class SubscriptionReport:
    """How the index holds a subscription.

    Attributes
    ----------
    subscription
        The subscription's present state.
    places
        None if the index does not have it yet; empty if no event can match it.
    """

    subscription: Subscription
    places: tuple[IndexPlace, ...] | None


@dataclass(frozen=True, slots=True)
class SliceReport:
    """A slice of a space.

    Attributes
    ----------
    matcher
        The number of the matcher that holds it.
    subscriptions
        Number of versions in it.
    events_per_s
        Events searched per second of searching, as last measured; None if not measured.
    """

    matcher: int
    subscriptions: int
    events_per_s: float | None


@dataclass(frozen=True, slots=True)
class SlicesReport:
    """How a space is held: its partitioning (None if it is one slice), and its slices by number."""

    partitioning: str | None
    matchers: int
    slices: tuple[SliceReport, ...]


class IndexReader:
    """Reads the newest index of a data directory.

    Raises
    ------
    IndexStoreError, IndexFileError
        There is no index, or it cannot be read.
    """

    def __init__(self, folder: DataFolder) -> None:
        self._folder = folder
        store = open_index_store(folder.index_url)
        manifest = store.newest()
        if manifest is None:
            raise IndexStoreError(f"{folder.index} has no index yet")
        self.revision = manifest.revision
        """The registry revision that the index covers."""
        self._spaces = manifest.spaces
        self._indexes = IndexCache(store).indexes(manifest.number, manifest.revision)

    def explain(self, space: str) -> IndexExplanation:
        """Return how the index holds a space's subscriptions; UnknownSpaceError for an unknown name."""
        return self._index(self._key_of(space)).explain()

    def slices(self, space: str) -> SlicesReport:
        """Return how a space is held; UnknownSpaceError for an unknown name."""
        key = self._key_of(space)
        held = self._spaces.get(key, SpaceManifest())
        loads = last_loads(key, held, self._folder.slices)
        per_s = [load.matches_per_s or None for load in loads]
        slices = zip(held.slices, per_s, strict=True)
        return SlicesReport(
            kind_of(held.partitioning) if len(held.slices) > 1 else None,
            held.matchers,
            tuple(SliceReport(part.matcher, part.size, measured) for part, measured in slices),
        )

    def explain_subscription(self, space: str, id: str) -> SubscriptionReport | None:
        """Return how one subscription is held; None if there is no such subscription."""
        key = self._key_of(space)
        registry = open_registry(self._folder.registry_url)
        subscription = registry.get(key, id)
        if subscription is None:
            return None
        if subscription.revision > self.revision:
            return SubscriptionReport(subscription, None)
        return SubscriptionReport(subscription, self._index(key).explain_subscription(subscription.number))

    def _key_of(self, space: str) -> str:
        if not self._folder.registry_path.exists():
            raise RegistryError(f"{self._folder.registry_path} does not exist")
        return open_registry(self._folder.registry_url).key_of_space(space)

    def _index(self, key: str) -> Index:
        found = self._indexes.get(key)
        return found.whole if found is not None else Index()
