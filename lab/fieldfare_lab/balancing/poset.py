"""The poset of a broker's subscriptions, and its covering subscription set (section 2, Figure 1).

    ROOT ──▶ general filters ──▶ filters that they cover ──▶ …       the CSS: ROOT's children

Each *unique* subscription (filters that cover each other) is one node with the ids of its subscriptions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


class Region(Protocol):
    """A filter, as a poset sees it; `fieldfare.filters.FilterRegion` is one."""

    @property
    def key(self) -> Hashable:
        """A value that is equal only for equal filters."""

    def covers(self, other: Any, /) -> bool:
        """Return True only if every event that the other filter matches also matches this one."""


@dataclass(slots=True)
class Node:
    """A unique subscription: the ids of its subscriptions, and its neighbours by key."""

    region: Region
    ids: dict[str, None] = field(default_factory=dict)
    parents: set[Hashable] = field(default_factory=set)
    children: set[Hashable] = field(default_factory=set)


class Poset:
    """Subscriptions, partially ordered by covering."""

    def __init__(self, subscriptions: Iterable[tuple[str, Region]] = ()) -> None:
        self.nodes: dict[Hashable, Node] = {}
        self._keys: dict[str, Hashable] = {}
        self._top: dict[Hashable, None] = {}
        for id, region in subscriptions:
            self.add(id, region)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, id: str) -> bool:
        return id in self._keys

    def key_of(self, id: str) -> Hashable:
        """Return the key of a subscription's node."""
        return self._keys[id]

    def css(self) -> list[Hashable]:
        """Return the keys of the covering subscription set, oldest first."""
        return list(self._top)

    def add(self, id: str, region: Region) -> None:
        """Add a subscription."""
        if id in self._keys:
            self.remove(id)
        if region.key in self.nodes:
            self.nodes[region.key].ids[id] = None
            self._keys[id] = region.key
            return
        parents = self._lowest_above(region)
        equal = next((key for key in parents if region.covers(self.nodes[key].region)), None)
        if equal is not None:
            self.nodes[equal].ids[id] = None
            self._keys[id] = equal
            return
        self._insert(id, region, parents)

    def _insert(self, id: str, region: Region, parents: set[Hashable]) -> None:
        node = Node(region, {id: None}, parents)
        below = self._children_of(parents)
        children = self._highest_below(region, below)
        for parent in parents:
            self.nodes[parent].children -= children
            self.nodes[parent].children.add(region.key)
        for child in children:
            self.nodes[child].parents -= parents
            self.nodes[child].parents.add(region.key)
            self._top.pop(child, None)
        node.children = children
        self.nodes[region.key] = node
        self._keys[id] = region.key
        if not parents:
            self._top[region.key] = None

    def remove(self, id: str) -> None:
        """Remove a subscription, and its node with the last one."""
        key = self._keys.pop(id)
        ids = self.nodes[key].ids
        del ids[id]
        if not ids:
            self._drop(key)

    def discard(self, key: Hashable) -> None:
        """Remove a unique subscription with all its subscriptions; its children move up."""
        for id in self.nodes[key].ids:
            del self._keys[id]
        self._drop(key)

    def _drop(self, key: Hashable) -> None:
        node = self.nodes.pop(key)
        self._top.pop(key, None)
        for parent in node.parents:
            self.nodes[parent].children.discard(key)
        for child in node.children:
            self.nodes[child].parents.discard(key)
        for child in sorted(node.children, key=repr):
            # A parent of the removed node becomes a parent of its child, unless it still covers it by
            # another way.
            for parent in node.parents:
                if not self._reaches(parent, child):
                    self.nodes[parent].children.add(child)
                    self.nodes[child].parents.add(parent)
            if not self.nodes[child].parents:
                self._top[child] = None

    def descendants(self, key: Hashable) -> set[Hashable]:
        """Return the keys of all unique subscriptions that one covers."""
        found: set[Hashable] = set()
        waiting = list(self.nodes[key].children)
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.add(each)
                waiting += self.nodes[each].children
        return found

    def copy(self) -> Poset:
        """Return a poset to try removals on."""
        other = Poset()
        other.nodes = {
            key: Node(node.region, dict(node.ids), set(node.parents), set(node.children))
            for key, node in self.nodes.items()
        }
        other._keys = dict(self._keys)
        other._top = dict(self._top)
        return other

    def _children_of(self, parents: set[Hashable]) -> Iterator[Hashable]:
        if not parents:
            yield from list(self._top)
        seen: set[Hashable] = set()
        for parent in parents:
            for child in self.nodes[parent].children:
                if child not in seen:
                    seen.add(child)
                    yield child

    def _lowest_above(self, region: Region) -> set[Hashable]:
        """Return the nodes that cover a filter and of whose children none does."""
        found: set[Hashable] = set()
        seen: set[Hashable] = set()
        waiting = [key for key in self._top if self.nodes[key].region.covers(region)]
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            below = [each for each in self.nodes[key].children if self.nodes[each].region.covers(region)]
            if below:
                waiting += below
            else:
                found.add(key)
        return found

    def _highest_below(self, region: Region, candidates: Iterable[Hashable]) -> set[Hashable]:
        """Return the nodes that a filter covers and of whose parents it covers none."""
        found: set[Hashable] = set()
        seen: set[Hashable] = set()
        waiting = list(candidates)
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if region.covers(self.nodes[key].region):
                found.add(key)
            else:
                waiting += self.nodes[key].children
        covered: set[Hashable] = set()
        for key in found:
            if key not in covered:
                covered |= self.descendants(key)
        return found - covered

    def _reaches(self, above: Hashable, below: Hashable) -> bool:
        waiting = list(self.nodes[below].parents)
        while waiting:
            each = waiting.pop()
            if each == above:
                return True
            waiting += self.nodes[each].parents
        return False
