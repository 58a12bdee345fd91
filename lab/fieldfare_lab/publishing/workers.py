"""The pool of worker threads (WTs) that receiving and publishing share.

Balasubramanian et al., section IV.A: one undivided pool; the main receive thread (MRT) has non-preemptive
priority over the main publisher thread (MPT): a worker that ends any task first looks for a request that
waits at the MRT. So a burst of requests may take all workers, and few requests are dropped at the MRT's
finite buffer.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Task(Enum):
    """The kind of a worker's task."""

    RECEIVE = "receive"
    PUBLISH = "publish"


class WorkerPool(Generic[Job]):
    """Assigns workers to jobs; a machine without I/O.

    Parameters
    ----------
    workers : int
        Number of worker threads. More serve more messages at a time; the paper does not give its number.
    receive_buffer : int
        Maximum requests waiting for a worker; further ones are dropped (section III.a).
    receive_first : bool
        Whether requests have priority over messages to be published. False is the paper's case without
        auto-tuning: first come, first served.
    """

    def __init__(self, workers: int, receive_buffer: int, *, receive_first: bool = True) -> None:
        if workers < 1 or receive_buffer < 0:
            raise ValueError("workers must be at least 1, receive_buffer at least 0")
        self._receive_buffer = receive_buffer
        self._receive_first = receive_first
        self._waiting: dict[Task, deque[tuple[int, Job]]] = {task: deque() for task in Task}
        self._asked = 0
        self.free_workers = workers
        self.dropped_requests = 0

    def ask(self, task: Task, job: Job) -> bool | None:
        """Request a worker for a job: True if it has one now, False if it waits, None if it is dropped."""
        if self.free_workers:
            self.free_workers -= 1
            return True
        waiting = self._waiting[task]
        if task is Task.RECEIVE and len(waiting) >= self._receive_buffer:
            self.dropped_requests += 1
            return None
        waiting.append((self._asked, job))
        self._asked += 1
        return False

    def release(self) -> tuple[Task, Job] | None:
        """Return a worker that has ended its task: the job that it gets next, or None if it is idle now."""
        task = self._choose()
        if task is None:
            self.free_workers += 1
            return None
        return task, self._waiting[task].popleft()[1]

    def waiting(self, task: Task) -> int:
        """Return the number of jobs of this kind that wait for a worker."""
        return len(self._waiting[task])

    def _choose(self) -> Task | None:
        asking = [task for task in Task if self._waiting[task]]
        if not asking:
            return None
        if self._receive_first:
            return asking[0]  # Task.RECEIVE, where one waits.
        return min(asking, key=lambda task: self._waiting[task][0][0])
