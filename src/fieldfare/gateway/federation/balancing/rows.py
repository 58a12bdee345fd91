"""The loads of brokers as rows of the links' protocol, and as operators see them."""

from __future__ import annotations

from fieldfare.balancing.advice import Peer
from fieldfare.balancing.claims import believed, state_of
from fieldfare.balancing.load import Load, MatchingCost
from fieldfare.balancing.messages import State
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.gateway.federation.documents import LoadDocument
from fieldfare.gateway.federation.wire import LoadRow


def row_of(name: str, number: int, load: Load, state: State, *, is_automatic: bool) -> LoadRow:
    """Return the row of a broker with this load and state."""
    return LoadRow(
        name,
        number,
        state.value,
        float(load.input_per_s),
        float(load.matching_s),
        int(load.subscriptions),
        float(load.deliveries_per_s),
        float(load.output_bytes_per_s),
        load.output_bytes_per_s_max,
        float(load.cpu),
        float(load.memory),
        load.input_queue_s,
        is_automatic,
    )


def load_of(row: LoadRow, unmeasured_s: float = 0.0) -> Load:
    """Return the load of a row; a broker without events is taken to need as much time for one as this."""
    matching_s = row.matching_s or unmeasured_s
    return Load(
        input_per_s=row.input_per_s,
        matching_s=matching_s,
        cost=MatchingCost(fixed_s=matching_s),
        is_calibrated=True,
        subscriptions=row.subscriptions,
        deliveries_per_s=row.deliveries_per_s,
        output_bytes_per_s=row.output_bytes_per_s,
        output_bytes_per_s_max=row.output_bytes_per_s_max,
        cpu=row.cpu,
        memory=row.memory,
        input_queue_s=row.queue_s,
    )


def peer_of(row: LoadRow, mine: Load, settings: BalancingSettings) -> Peer:
    """Return another broker as far as its claims count beside this broker's load; see `balancing.claims`."""
    theirs = believed(load_of(row, float(mine.matching_s)), mine)
    return Peer(theirs, state_of(theirs, State(row.state), settings))


def load_document(row: LoadRow, age_s: float, stale_s: float, *, counts: bool) -> LoadDocument:
    """Return a row for operators; the state of one that is older than `stale_s` is unknown."""
    load = load_of(row)
    return LoadDocument(
        name=row.name,
        state=row.state if age_s < stale_s else "unknown",
        is_automatic=row.is_automatic,
        input=round(float(load.input_ratio), 4),
        output=round(float(load.output_ratio), 4),
        delay_ms=round(1000 * row.matching_s, 4),
        cpu=round(row.cpu, 3),
        memory=round(row.memory, 3),
        queue_s=round(row.queue_s, 3),
        subscriptions=row.subscriptions,
        events_per_s=round(row.input_per_s, 1),
        deliveries_per_s=round(row.deliveries_per_s, 1),
        age_s=round(age_s, 1),
        counts=counts,
    )
