"""The data path's heart as one pure function: a batch of records and indexes in, matches out.

The service's streaming query, a batch job over files and every test call this same function.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from fieldfare.matching.index import Index
from fieldfare.matching.part import Matches
from fieldfare.pipeline.access_point import by_space, decode, event_counts
from fieldfare.pipeline.exit_point import Found
from fieldfare.pipeline.matcher import match_space


def match_batch(events: pa.RecordBatch, indexes: Mapping[str, Index]) -> Matches:
    """Match a batch of records against the subscriptions as they stood when each record was appended.

    Parameters
    ----------
    events : pa.RecordBatch
        Records of the log, see ``access_point.RECORDS``.
    indexes : mapping from space to Index
        A space that is not there has no subscriptions. An index must cover the last record of the batch;
        it may know later changes and superseded versions: validity decides.

    Returns
    -------
    Matches
        For every event of the batch, in order, the numbers of the subscriptions that it matches, ascending.
    """
    return find_matches(events, indexes).by_event()


def find_matches(events: pa.RecordBatch, indexes: Mapping[str, Index]) -> Found:
    """The same in no order yet, for who wants the matches by subscription, not by event."""
    pairs = []
    for space_events in by_space(events):
        index = indexes.get(space_events.space)
        if index is not None:
            pairs += match_space(space_events, decode(space_events, index.paths), index)
    return Found(int(event_counts(events).sum()), pairs)
