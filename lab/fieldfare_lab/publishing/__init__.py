"""What the paper's publisher has besides its tuners: fixed settings (`fixed`), and workers (`workers`).

The tuners themselves, `autotuned` and `windowed`, are in ``fieldfare.publishing``: the client has them too.
"""

from fieldfare_lab.publishing.fixed import FixedPublisher
from fieldfare_lab.publishing.workers import Task, WorkerPool

__all__ = ["FixedPublisher", "Task", "WorkerPool"]
