"""Slices as parts of the matching engine: what all slices find together is what one index finds."""

from __future__ import annotations

import numpy as np
import pytest

from fieldfare.filters import NormalForm
from fieldfare.forwarding import (
    Adaptive,
    Balanced,
    ForwardingPolicy,
    LoadReport,
    LoadTable,
    Random,
    SubscriptionCount,
    forward_batch,
)
from fieldfare.matching.events.columns import Column, ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import (
    AttributeSpace,
    HashPartitioning,
    Partitioning,
    Replicated,
    constrained_paths,
    extents_of,
)
from fieldfare.planning.plans import plan
from fieldfare_lab.axes import single_attribute
from fieldfare_lab.workloads.synthetic import WORKLOADS

MATCHERS = 4


def part_of(forms: list[NormalForm], numbers: np.ndarray) -> Part:
    entries = [IndexEntry(n, n, 0, OPEN_END, forms[n], "", "sql") for n in numbers.tolist()]
    return build_part(entries)


def taken(events: ColumnBatch, chosen: np.ndarray) -> ColumnBatch:
    columns = {path: Column(c.kinds[chosen], c.words[chosen]) for path, c in events.columns.items()}
    return ColumnBatch(len(chosen), columns, events.text, events.exact)


class Cluster:
    """A part for every slice: placed once, then matched under any policy."""

    def __init__(self, space: Partitioning, forms: list[NormalForm]) -> None:
        self.space = space
        placement = space.place(extents_of(enumerate(forms), space.paths))
        self.parts = [part_of(forms, placement.of(i)) for i in range(len(space.slices))]
        self.loads = LoadTable(len(self.parts))
        sizes = enumerate(placement.sizes.tolist())
        self.loads.take(LoadReport(i, 0.0, 0, 0.0, 0.0, size) for i, size in sizes)

    def match(self, policy: ForwardingPolicy, events: ColumnBatch) -> list[list[int]]:
        """Route, forward, match in each slice on its own, and merge."""
        routes = self.space.route(events)
        start, visitors = forward_batch(policy, routes, self.loads, 0.0).by_slice(routes, len(self.parts))
        pairs: list[tuple[int, int]] = []
        for i, part in enumerate(self.parts):
            visiting = visitors[start[i] : start[i + 1]]
            found = Index((part,)).match(taken(events, visiting), np.zeros(len(visiting), np.int64))
            owners = np.repeat(visiting, np.diff(found.indptr))
            pairs += zip(owners.tolist(), found.subscriptions.tolist(), strict=True)
        assert len(set(pairs)) == len(pairs)
        return [sorted(number for event, number in pairs if event == e) for e in range(events.size)]


@pytest.mark.parametrize("name", ["bluedove", "mixed"])
def test_every_partitioning_and_policy_finds_what_one_index_finds(name: str) -> None:
    forms = list(WORKLOADS[name].normal_forms(150, 1))
    events = WORKLOADS[name].events(300, 2)
    expected = Index((part_of(forms, np.arange(150)),)).match(events, np.zeros(300, np.int64)).lists()
    extents = extents_of(enumerate(forms), sorted(constrained_paths(forms)))
    found = plan(extents, events, MATCHERS)
    assert found is not None
    space = found.partitioning
    wide = AttributeSpace(space.axes, space.owners, tuple(range(MATCHERS)), wide_share=0.4)
    one = single_attribute(space.axes[0], range(MATCHERS))
    for partitioning in (space, wide, one, HashPartitioning(MATCHERS), Replicated(MATCHERS)):
        holders = np.array([part.matcher for part in partitioning.slices], np.int32)
        chance = Random(np.random.default_rng(3))
        cluster = Cluster(partitioning, forms)
        for policy in (Adaptive(), Balanced(holders), SubscriptionCount(), chance):
            assert cluster.match(policy, events) == expected
