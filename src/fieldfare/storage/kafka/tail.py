"""The end of a topic's partitions as it grows: a thread takes messages as soon as a broker has them.

A reader of a range asks where a partition ends, moves there, and waits until the range is known to have
ended: some requests for each record. A tail asks for messages before there are any, and the broker answers
when there are some. So a tail is also their waiter.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

logger = logging.getLogger("fieldfare.storage.kafka")

HEARD_BYTES_MAX = 4 << 20
"""Maximum bytes of messages that wait to be taken; at more, the thread stops asking for others."""

MESSAGE_BYTES = 500
"""Bytes that a message takes besides its payload, about."""

TAKE_S = 0.2
"""Maximum seconds for which the thread waits for a message at a time; its end takes as long."""

AGAIN_S = 0.5
"""Seconds after an error until the thread asks again."""


class Tail:
    """The messages of some partitions from given offsets on; see `storage.bell.Waiter`.

    Parameters
    ----------
    consumer
        A consumer whose requests wait at the broker; closed with the tail.
    topic
        Name of the topic.
    places
        The first offset of each partition.

    Attributes
    ----------
    hears : bool
        Whether messages are heard: from the first answer of the broker on. False after an error, until the
        next answer, and when the tail is closed.
    is_lost : bool
        Whether retention has removed messages that were not heard: then none are heard until `resume`.
    """

    def __init__(self, consumer: Consumer, topic: str, places: Mapping[int, int]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._changed = threading.Condition()
        self._messages: dict[int, deque[Message]] = {number: deque() for number in places}
        self._heard = dict(places)
        self._ends: dict[int, int] = {}
        """Where the broker has said that a partition ends for now."""
        self._bytes = 0
        self._is_set = self._is_closed = self.is_lost = False
        self._is_moved = True
        self.hears = False
        self._thread = threading.Thread(target=self._run, name="fieldfare-kafka-tail", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def take(self, partition: int, wait_s: float = 0.0) -> tuple[list[Message], int, bool]:
        """Take the next messages of a partition.

        Parameters
        ----------
        wait_s : float
            Seconds to wait for a message if there is none.

        Returns
        -------
        messages, heard, is_end
            The messages, the offset up to which the partition has been heard, and whether the broker has said
            that it ended there.
        """
        with self._changed:
            waiting = self._messages[partition]
            if wait_s and not waiting:
                self._changed.wait_for(lambda: waiting or self._is_closed or not self.hears, wait_s)
            taken = list(waiting)
            waiting.clear()
            self._bytes -= _size_bytes(taken)
            self._changed.notify_all()
            heard = self._heard[partition]
            return taken, heard, self._ends.get(partition) == heard

    def resume(self, places: Mapping[int, int]) -> None:
        """Go on at other offsets, without the messages that were not taken."""
        with self._changed:
            for number, offset in places.items():
                self._bytes -= _size_bytes(self._messages[number])
                self._messages[number].clear()
                self._heard[number] = offset
            self.is_lost, self._is_moved = False, True
            self._changed.notify_all()

    def set(self) -> None:
        """Wake the waiting thread."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget the messages that were heard and the calls of `set`."""
        with self._changed:
            self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for a message or a call of `set`, or for none if there was one since `clear`; say whether."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_set or self._is_closed, timeout_s)

    def close(self) -> None:
        """End the thread, which then closes the consumer; does not wait for that."""
        with self._changed:
            self._is_closed, self.hears = True, False
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                try:
                    if not self._may_ask():
                        break
                    self._hear(TAKE_S)
                except KafkaException as error:
                    self._stop_hearing(error.args[0])
        finally:
            self.close()
            self._consumer.close()

    def _may_ask(self) -> bool:
        """Wait until there is room for messages; return False when the tail is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or (self._bytes < HEARD_BYTES_MAX and not self.is_lost)
            )
            if self._is_closed:
                return False
            places = dict(self._heard) if self._is_moved else None
            self._is_moved = False
        if places is not None:
            self._consumer.assign(
                [TopicPartition(self._topic, number, offset) for number, offset in places.items()]
            )
        return True

    def _hear(self, wait_s: float) -> None:
        """Take the messages that have arrived, after waiting for the first of them."""
        message = self._consumer.poll(wait_s)
        size_bytes = 0
        while message is not None:  # a message without a value is false
            self._take_in(message)
            size_bytes += len(message) + MESSAGE_BYTES
            message = self._consumer.poll(0) if size_bytes < HEARD_BYTES_MAX else None

    def _take_in(self, message: Message) -> None:
        problem = message.error()
        if problem is not None and problem.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(problem)
        number, offset = message.partition(), message.offset()
        with self._changed:
            if self._is_moved or self._is_closed:
                return  # It may be from before the place to which the tail was moved.
            if problem is None:
                if offset < self._heard[number]:
                    return  # heard already, as after a change of leader
                self._messages[number].append(message)
                self._bytes += len(message) + MESSAGE_BYTES
                self._heard[number] = offset + 1
            else:  # Only markers of transactions lie in between.
                self._heard[number] = self._ends[number] = max(offset, self._heard[number])
            self.hears = True
            self._is_set = True
            self._changed.notify_all()

    def _stop_hearing(self, problem: KafkaError) -> None:
        """Note an error, and ask again some time later."""
        logger.info("%s is not followed for a moment: %s", self._topic, problem.str())
        with self._changed:
            # After `resume` it is another place that was lost.
            self.is_lost = problem.code() == KafkaError._AUTO_OFFSET_RESET and not self._is_moved
            self.hears, self._is_moved = False, True
            self._is_set = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed, AGAIN_S)


def _size_bytes(messages: Collection[Message]) -> int:
    return sum(map(len, messages)) + MESSAGE_BYTES * len(messages)
