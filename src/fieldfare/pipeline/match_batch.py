"""The core of the data path as one pure function: a batch of records and indexes in, matches out.

The service's tasks consume the matches as they are found (`stream_matches`), because a
record's matches may exceed memory. `match_batch` and `find_matches`, for all other callers, collect them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from fieldfare.matching.grouping import Matches
from fieldfare.matching.pairs import Pairs
from fieldfare.model import interest_key
from fieldfare.pipeline.access_point import SpaceEvents, by_space, decoded, event_counts
from fieldfare.pipeline.exit_point import Found
from fieldfare.pipeline.matcher import match_space
from fieldfare.pipeline.slices import Searched


def match_batch(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Matches:
    """Match a batch of records against the subscriptions that were valid at each record's stamp.

    Parameters
    ----------
    events : pa.RecordBatch
        Records of the log, see ``access_point.RECORDS``.
    indexes : mapping from space to Index or Slices
        A space without an entry has no subscriptions. An index must cover every stamp of the batch; it may
        contain later and superseded versions, which are excluded by their validity.

    Returns
    -------
    Matches
        For every event of the batch, in order, the numbers of the matching subscriptions, ascending.
    """
    return find_matches(events, indexes).by_event()


def find_matches(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Found:
    """Like `match_batch`, but unordered: for callers that group matches by subscription."""
    return Found(int(event_counts(events).sum()), list(stream_matches(events, indexes)))


def stream_matches(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Iterator[Pairs]:
    """Like `find_matches`, but yield the matches as they are found, for results that may exceed memory."""
    for _, found in stream_by_space(events, indexes):
        yield from found


def stream_by_space(
    events: pa.RecordBatch, indexes: Mapping[str, Searched]
) -> Iterator[tuple[str, Iterator[Pairs]]]:
    """Yield each indexed space with an iterator of its matches; exhaust it before the next one.

    A space comes again for the matches of other brokers' filters, with those of its events that are matched
    for other brokers: see `model.is_forwarded`.
    """
    for space_events in by_space(events):
        space = space_events.space
        for key in (space, interest_key(space)) if space_events.is_local else (space,):
            index = indexes.get(key)
            if index is not None:
                yield space, _stream(space_events, index)


def _stream(events: SpaceEvents, index: Searched) -> Iterator[Pairs]:
    for some, columns in decoded(events, index.paths):
        yield from match_space(some, columns, index)
