"""Tuners of a publisher's batch size, polling interval and transfers in flight.

All are machines without I/O with one interface, `PublishingMachine`: the paper's (`autotuned`), ours
(`windowed`), and one with fixed settings (`fixed`).
"""

from fieldfare_lab.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare_lab.publishing.fixed import FixedPublisher
from fieldfare_lab.publishing.machine import (
    BatchAssigned,
    Message,
    Poll,
    Polled,
    PublishingMachine,
    ReadBatch,
    Setting,
    TransferCompleted,
)
from fieldfare_lab.publishing.windowed import WindowedKnobs, WindowedPublisher
from fieldfare_lab.publishing.workers import Task, WorkerPool

__all__ = [
    "AutotunedKnobs",
    "AutotunedPublisher",
    "BatchAssigned",
    "FixedPublisher",
    "Message",
    "Poll",
    "Polled",
    "PublishingMachine",
    "ReadBatch",
    "Setting",
    "Task",
    "TransferCompleted",
    "WindowedKnobs",
    "WindowedPublisher",
    "WorkerPool",
]
