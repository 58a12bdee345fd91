"""A match log without files, and a read scheduler whose reads have two steps, as on a thread."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.keys import keys_at
from fieldfare.delivery.read_scheduler import (
    Expire,
    Matched,
    Message,
    ReadDone,
    ReadGroup,
    ReadMatches,
    ReadScheduler,
    Ready,
    RetryRead,
    StopWaiting,
    Wait,
)
from fieldfare.effects import Ask, Effect, Tell, Timer


@dataclass(frozen=True, slots=True)
class Block:
    """The matches of some records of a partition: keys by subscription."""

    partition: int
    start: int
    end: int
    keys: dict[int, list[int]]


@dataclass(slots=True)
class Seen:
    """A read that has begun, for the deliveries that waited then, and has not answered yet."""

    look: ReadMatches
    joined: int
    found: list[tuple[int, list[int]]]
    end: int | None


@dataclass
class Readers:
    """A read scheduler and its readers: like the delivery service, but moved by hand."""

    blocks: list[Block] = field(default_factory=list)
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    partitions: int = 1
    now: float = 0.0
    unreadable: set[int] = field(default_factory=set)
    kept_from: int = 0
    looks: list[ReadMatches] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    timers: list[tuple[float, Expire]] = field(default_factory=list)
    looked: int = 0

    def __post_init__(self) -> None:
        self.scheduler = ReadScheduler((0,) * self.partitions)
        self.carry_out(self.scheduler.start(0.0))

    def hand_in(self, message: Message) -> None:
        self.carry_out(self.scheduler.handle(message, self.now))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                assert isinstance(effect.question, ReadMatches)
                self.looks.append(effect.question)
            elif isinstance(effect, Timer):
                assert isinstance(effect.message, Expire)
                self.timers.append((effect.at_s, effect.message))
            else:
                assert isinstance(effect, Tell) and isinstance(effect.news, Ready)
                self.ready(effect.news.delivery)

    def ready(self, delivery: Delivery) -> None:
        """Wake a waiting reader."""

    # What happens

    def end(self, partition: int = 0) -> int:
        """The end of the matched part of a partition."""
        return max((block.end for block in self.blocks if block.partition == partition), default=0)

    def matched(self, end: int, keys: dict[int, list[int]], partition: int = 0) -> None:
        self.blocks.append(Block(partition, self.end(partition), end, keys))

    def wait(self, number: int, *offsets: int) -> None:
        """Let a reader wait, which begins at these offsets the first time, or at 0 by default."""
        if number not in self.deliveries:
            begins = (*offsets, *(0,) * self.partitions)[: self.partitions]
            self.deliveries[number] = Delivery(number, keys_at(begins))
            self.sessions[number] = Session(1000)
        self.hand_in(Wait(self.deliveries[number]))

    def leave(self, number: int) -> None:
        self.hand_in(StopWaiting(self.deliveries[number]))

    def take(self, number: int, limit: int, lease_s: float = 30.0) -> list[int]:
        return self.deliveries[number].take(self.sessions[number], limit, self.now, lease_s)

    def mend(self) -> None:
        self.unreadable.clear()
        self.hand_in(RetryRead())

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((at, i) for i, (at, _) in enumerate(self.timers) if at <= end):
            self.now = max(self.now, due[0][0])
            self.hand_in(self.timers.pop(due[0][1])[1])
        self.now = end

    # Looks, in two steps

    def see(self) -> bool:
        """Do all possible reads, without passing on their results yet."""
        left = []
        for look in self.looks:
            group = look.group
            joined, members = group.joined, set(group.members)
            block = self._block_at(group)
            if block is not None and block.start not in self.unreadable:
                found = [(number, block.keys[number]) for number in sorted(members & block.keys.keys())]
                self.seen.append(Seen(look, joined, found, block.end))
                self.looked += 1
            elif look.follow:
                left.append(look)
            elif group.offset < self.kept_from:
                self.seen.append(Seen(look, joined, [], self.kept_from))
            else:
                self.seen.append(Seen(look, joined, [], None))
        self.looks, had = left, len(self.looks)
        return len(left) < had

    def answer(self) -> None:
        """Pass the results of a read to the scheduler."""
        seen, self.seen = self.seen, []
        for each in seen:
            group = each.look.group
            if each.end is not None:
                for number, keys in each.found:  # one at a time: others may come and go in between
                    array = np.array(keys, np.int64)
                    self.hand_in(Matched(group, [(number, array)], each.end))
            self.hand_in(ReadDone(group, each.joined, each.end))

    def look(self) -> None:
        """Do all possible reads, and pass on their results."""
        self.answer()
        while self.see():
            self.answer()

    def _block_at(self, group: ReadGroup) -> Block | None:
        if group.offset < self.kept_from:
            return None
        for block in self.blocks:
            if block.partition == group.partition and block.start <= group.offset < block.end:
                return block
        return None
