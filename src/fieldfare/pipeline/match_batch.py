"""The data path's heart as one pure function: a batch of records and indexes in, matches out.

The tasks of the service's streaming query take the matches as they are found (`stream_matches`): a record may
have more than fit into memory. `match_batch` and `find_matches`, for everybody else, gather what that finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from fieldfare.matching.grouping import Matches, Pairs
from fieldfare.pipeline.access_point import by_space, decoded, event_counts
from fieldfare.pipeline.exit_point import Found
from fieldfare.pipeline.matcher import match_space
from fieldfare.pipeline.slices import Searched


def match_batch(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Matches:
    """Match a batch of records against the subscriptions as they stood at each record's stamp.

    Parameters
    ----------
    events : pa.RecordBatch
        Records of the log, see ``access_point.RECORDS``.
    indexes : mapping from space to Index or Slices
        A space that is not there has no subscriptions. An index must cover every stamp of the batch; it may
        know later changes and superseded versions: validity decides.

    Returns
    -------
    Matches
        For every event of the batch, in order, the numbers of the subscriptions that it matches, ascending.
    """
    return find_matches(events, indexes).by_event()


def find_matches(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Found:
    """The same in no order yet, for who wants the matches by subscription, not by event."""
    return Found(int(event_counts(events).sum()), list(stream_matches(events, indexes)))


def stream_matches(events: pa.RecordBatch, indexes: Mapping[str, Searched]) -> Iterator[Pairs]:
    """The same as they are found: for who cannot have all of them in memory."""
    for space_events in by_space(events):
        index = indexes.get(space_events.space)
        if index is not None:
            for some, columns in decoded(space_events, index.paths):
                yield from match_space(some, columns, index)
