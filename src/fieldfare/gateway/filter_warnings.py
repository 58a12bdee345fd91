"""The attributes of a space's newest events, and warnings about filters with names that these do not have."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, Struct

from fieldfare.filters import Filter, compile_filter
from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.filters.help import use_cautions
from fieldfare.filters.help.column_types import ColumnType
from fieldfare.filters.help.documents import WarningDocument, warning_documents
from fieldfare.filters.help.names import KnownNames
from fieldfare.filters.help.sampling import Sample
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ABSENT
from fieldfare.gateway.event_samples import SampleSize, newest_events
from fieldfare.model import Subscription
from fieldfare.storage.event_log import EventReader

logger = logging.getLogger("fieldfare.gateway")

SAMPLE = SampleSize(100, size_bytes=64 << 10, read_bytes=4 << 20, read_records=100)
SAMPLE_FRESH_S = 10.0
EMPTY_SAMPLE_FRESH_S = 1.0
"""Seconds until a sample without events is read again, so that a space's first events are soon seen."""

SAMPLES_MAX = 32
"""Maximum spaces whose samples are kept in memory; beyond it the least recently used is dropped."""

WARNED_MAX_CHARACTERS = 1_024
"""Maximum characters of a filter that is checked; a longer one gets no warnings, as it was probably generated
and takes long to check."""

QUICK_MAX_CHARACTERS = 200
"""Maximum characters of a filter that is checked on the event loop if all its names are known; a thread costs
more than that check."""

WARNED_BULK_MAX = 20
"""Maximum subscriptions of a bulk request that are checked; those after them get no warnings."""


_TYPES = {
    ColumnType.NUMBER: "number",
    ColumnType.STRING: "string",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.DATE: "date",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.TIMESTAMP_NTZ: "timestamp",
    ColumnType.ARRAY: "array",
    ColumnType.OBJECT: "object",
}
"""Names of the types of attributes in `FilterWarnings.attributes`."""


@dataclass(slots=True)
class _Kept:
    events: list[dict[str, Any]]
    names: KnownNames
    read_s: float
    attributes: list[AttributeDocument] | None = None

    def is_fresh(self, now_s: float) -> bool:
        return now_s - self.read_s < (SAMPLE_FRESH_S if self.events else EMPTY_SAMPLE_FRESH_S)


class AttributeDocument(Struct, omit_defaults=True):
    """An attribute of a space's newest events."""

    name: Annotated[str, "Name of the attribute, as filters of the dialect `sql` write it."]
    events: Annotated[int, "Number of these events that have the attribute."]
    type: Annotated[
        str | None,
        Meta(extra_json_schema={"enum": sorted({*_TYPES.values()})}),
        "Type of its values; missing if they have several, or are all null.",
    ] = None


class NamedWarningDocument(WarningDocument, omit_defaults=True):
    """A warning about the filter of one of several subscriptions."""

    id: Annotated[str, "Id of the subscription."]


class FilterWarnings:
    """A checker of newly stored filters."""

    def __init__(self, log: EventReader) -> None:
        self._log = log
        self._samples: OrderedDict[str, _Kept] = OrderedDict()
        self._reading = threading.Lock()

    def at_once(self, subscription: Subscription) -> list[WarningDocument] | None:
        """Return a stored subscription's warnings if that takes little time and no log is read; else None."""
        if not _is_checked(subscription):
            return []
        kept = self._samples.get(subscription.space)
        if (
            kept is None
            or not kept.is_fresh(time.monotonic())
            or len(subscription.filter) > QUICK_MAX_CHARACTERS
            or not all(map(kept.names.__contains__, _compiled(subscription).column_paths))
        ):
            return None
        return _warnings(subscription, lambda: Sample(kept.events, kept.names))

    def of(self, subscription: Subscription) -> list[WarningDocument]:
        """Return a stored subscription's warnings; none if the check fails.

        It may read the log: call it on a thread.
        """
        if not _is_checked(subscription):
            return []
        return _warnings(subscription, lambda: self._sample(subscription.space))

    def of_bulk(self, stored: list[Subscription]) -> list[NamedWarningDocument]:
        """Return the warnings of the first `WARNED_BULK_MAX` subscriptions, each with its ``id``."""
        return [
            NamedWarningDocument(each.id, detail=warning.detail, hint=warning.hint)
            for each in stored[:WARNED_BULK_MAX]
            for warning in self.of(each)
        ]

    def attributes(self, space: str) -> tuple[list[AttributeDocument], int]:
        """Return the attributes of a space's newest events, sorted by name, and the number of these events.

        Each has its ``name``, as in filters of the dialect ``sql``, its ``type`` if all its values have one,
        and the number of ``events`` with it. It may read the log: call it on a thread.
        """
        kept = self._kept(space)
        if kept.attributes is None:
            kept.attributes = _attributes(Sample(kept.events, kept.names))
        return kept.attributes, len(kept.events)

    def _sample(self, space: str) -> Sample:
        """Return a new sample for each filter, so that attributes which filters name are not kept."""
        kept = self._kept(space)
        return Sample(kept.events, kept.names)

    def _kept(self, space: str) -> _Kept:
        with self._reading:
            kept = self._samples.get(space)
            if kept is None or not kept.is_fresh(time.monotonic()):
                events = newest_events(self._log, space, SAMPLE)
                kept = _Kept(events, Sample(events).names(), time.monotonic())
                self._samples[space] = kept
            self._samples.move_to_end(space)
            if len(self._samples) > SAMPLES_MAX:
                self._samples.popitem(last=False)
            return kept


def _attributes(sample: Sample) -> list[AttributeDocument]:
    found = []
    for path in sample.names():
        kind = sample.type_of(path)
        count = sum(value is not ABSENT for value in sample.column(path))
        found.append(AttributeDocument(format_path(path), count, None if kind is None else _TYPES.get(kind)))
    return sorted(found, key=attrgetter("name"))


def _is_checked(subscription: Subscription) -> bool:
    return subscription.dialect != ENCRYPTED and len(subscription.filter) <= WARNED_MAX_CHARACTERS


def _compiled(subscription: Subscription) -> Filter:
    return compile_filter(subscription.filter, subscription.dialect)


def _warnings(subscription: Subscription, sample: Callable[[], Sample]) -> list[WarningDocument]:
    try:
        found = use_cautions(_compiled(subscription), sample())
    except Exception:
        logger.exception(
            "warnings about the filter of subscription %s could not be computed", subscription.id
        )
        return []
    return warning_documents(found)
