"""When a publisher sends how much: tuners of batch size, polling interval and transfers under way.

All of them are machines without I/O behind one interface, `PublishingMachine`: the paper's (`autotuned`),
ours (`windowed`), and one that never changes its mind (`fixed`).
"""

from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.fixed import FixedPublisher
from fieldfare.publishing.machine import (
    BatchAssigned,
    Message,
    Poll,
    Polled,
    PublishingMachine,
    ReadBatch,
    Setting,
    TransferCompleted,
)
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher
from fieldfare.publishing.workers import Task, WorkerPool

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
